//! fjall.

use std::path::Path;

use fjall::config::{
    BlockSizePolicy, BloomConstructionPolicy, CompressionPolicy, FilterPolicy, FilterPolicyEntry,
};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use serde_json::json;

use crate::Failure;
use crate::engine::{Engine, Session, wait_while};
use crate::settings::{self, Settings};

pub(crate) struct Fjall {
    db: Database,
    table: Keyspace,
}

impl Fjall {
    pub(crate) fn open(dir: &Path, s: &Settings, own: &settings::Fjall) -> Result<Self, Failure> {
        let db =
            Database::builder(dir).cache_size(s.cache_bytes).worker_threads(own.background_jobs).open()?;
        let filter = FilterPolicyEntry::Bloom(BloomConstructionPolicy::BitsPerKey(own.bloom_bits));
        let table = db.keyspace("bench", || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(s.memtable_bytes / 4)
                .data_block_size_policy(BlockSizePolicy::all(own.block_kib << 10))
                // It knows lz4 and no zstd: unlike the others it runs uncompressed when zstd is asked for.
                .data_block_compression_policy(CompressionPolicy::all(CompressionType::None))
                .filter_policy(FilterPolicy::all(filter))
        })?;
        Ok(Fjall { db, table })
    }
}

impl Engine for Fjall {
    fn session(&self) -> Result<Box<dyn Session + '_>, Failure> {
        Ok(Box::new(Handle { db: &self.db, table: self.table.clone() }))
    }

    fn settle(&self) -> Result<(), Failure> {
        wait_while(|| self.db.outstanding_flushes() + self.db.active_compactions() > 0);
        Ok(())
    }

    fn flush(&self) -> Result<(), Failure> {
        Ok(self.table.rotate_memtable_and_wait()?)
    }

    fn is_log(&self, file: &str) -> bool {
        file.ends_with(".jnl")
    }

    fn says(&self) -> serde_json::Value {
        json!({ "level0_tables": self.table.l0_table_count() })
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        Ok(self.db.persist(PersistMode::Buffer)?)
    }
}

struct Handle<'a> {
    db: &'a Database,
    table: Keyspace,
}

impl Session for Handle<'_> {
    fn write(&mut self, records: &[(&[u8], Option<&[u8]>)], sync: bool) -> Result<(), Failure> {
        if let [(key, value)] = records {
            match value {
                Some(v) => self.table.insert(*key, *v)?,
                None => self.table.remove(*key)?,
            }
        } else {
            let mut batch = self.db.batch();
            for (key, value) in records {
                match value {
                    Some(v) => batch.insert(&self.table, *key, *v),
                    None => batch.remove(&self.table, *key),
                }
            }
            batch.commit()?;
        }
        if sync {
            self.db.persist(PersistMode::SyncData)?;
        }
        Ok(())
    }

    fn get(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, Failure> {
        let found = self.table.get(key)?;
        if let Some(v) = &found {
            see(v);
        }
        Ok(found.is_some())
    }

    fn scan(&mut self, from: &[u8], limit: u64, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64, Failure> {
        let mut n = 0;
        for record in self.table.range(from..).take(limit as usize) {
            let (key, value) = record.into_inner()?;
            see(&key, &value);
            n += 1;
        }
        Ok(n)
    }
}
