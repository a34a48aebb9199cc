//! LMDB, through heed.

use std::path::Path;

use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, WithoutTls};

use crate::Failure;
use crate::engine::{Ending, Engine, Outcome, Script, Session, Step};
use crate::settings::{self, Settings};

pub(crate) struct Lmdb {
    env: Env<WithoutTls>,
    table: Database<Bytes, Bytes>,
}

impl Lmdb {
    pub(crate) fn open(dir: &Path, s: &Settings, own: &settings::Lmdb) -> Result<Self, Failure> {
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(own.map_gib << 30).max_readers(1024);
        let mut flags = EnvFlags::empty();
        if own.writemap {
            flags |= EnvFlags::WRITE_MAP;
        }
        if !s.sync {
            // Its memory is the page cache: no budget applies.
            flags |= EnvFlags::NO_SYNC;
        }
        // SAFETY: the flags weaken durability, which the settings ask for; the directory was made for this process, which
        // opens it once, and nothing else writes to its files while they are mapped.
        let env = unsafe { options.flags(flags).open(dir)? };
        let mut txn = env.write_txn()?;
        let table = env.create_database(&mut txn, None)?;
        txn.commit()?;
        Ok(Lmdb { env, table })
    }
}

impl Engine for Lmdb {
    fn session(&self) -> Result<Box<dyn Session + '_>, Failure> {
        Ok(Box::new(Handle { env: &self.env, table: self.table }))
    }

    /// A commit leaves nothing in memory.
    fn flush(&self) -> Result<(), Failure> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        self.env.prepare_for_closing().wait();
        Ok(())
    }
}

struct Handle<'a> {
    env: &'a Env<WithoutTls>,
    table: Database<Bytes, Bytes>,
}

impl Session for Handle<'_> {
    fn write(&mut self, records: &[(&[u8], Option<&[u8]>)], _sync: bool) -> Result<(), Failure> {
        let mut txn = self.env.write_txn()?;
        for (key, value) in records {
            match value {
                Some(v) => self.table.put(&mut txn, key, v)?,
                None => drop(self.table.delete(&mut txn, key)?),
            }
        }
        Ok(txn.commit()?)
    }

    fn get(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, Failure> {
        let txn = self.env.read_txn()?;
        let found = self.table.get(&txn, key)?;
        if let Some(v) = found {
            see(v);
        }
        Ok(found.is_some())
    }

    fn scan(&mut self, from: &[u8], limit: u64, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64, Failure> {
        let txn = self.env.read_txn()?;
        let range = (std::ops::Bound::Included(from), std::ops::Bound::Unbounded);
        let mut n = 0;
        for record in self.table.range(&txn, &range)?.take(limit as usize) {
            let (key, value) = record?;
            see(key, value);
            n += 1;
        }
        Ok(n)
    }

    /// There is one writer at a time: nobody else is in the way, and nothing is to be locked.
    fn transact(&mut self, script: &Script<'_>, see: &mut dyn FnMut(&[u8])) -> Result<Outcome, Failure> {
        let mut txn = self.env.write_txn()?;
        for step in script.steps {
            match *step {
                Step::GetForUpdate(key) => {
                    if let Some(value) = self.table.get(&txn, key)? {
                        see(value);
                    }
                }
                Step::Put(key, value) => self.table.put(&mut txn, key, value)?,
            }
        }
        match script.ending {
            Ending::Commit { .. } => txn.commit()?,
            Ending::Rollback => txn.abort(),
        }
        Ok(Outcome::Done)
    }
}
