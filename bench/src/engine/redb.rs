//! redb.

use std::path::Path;

use redb::{Database, Durability, ReadableDatabase, ReadableTable, TableDefinition};

use crate::Failure;
use crate::engine::{Ending, Engine, Outcome, Script, Session, Step};
use crate::settings::Settings;

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("bench");

pub(crate) struct Redb {
    db: Database,
}

impl Redb {
    pub(crate) fn open(dir: &Path, s: &Settings) -> Result<Self, Failure> {
        // It has no memtables: both budgets are its cache.
        let bytes = (s.cache_bytes + s.memtable_bytes) as usize;
        let db = Database::builder().set_cache_size(bytes).create(dir.join("redb"))?;
        let txn = db.begin_write()?;
        txn.open_table(TABLE)?;
        txn.commit()?;
        Ok(Redb { db })
    }
}

impl Engine for Redb {
    fn session(&self) -> Result<Box<dyn Session + '_>, Failure> {
        Ok(Box::new(Handle { db: &self.db }))
    }

    /// A commit leaves nothing in memory.
    fn flush(&self) -> Result<(), Failure> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        drop(self.db);
        Ok(())
    }
}

struct Handle<'a> {
    db: &'a Database,
}

impl Session for Handle<'_> {
    fn write(&mut self, records: &[(&[u8], Option<&[u8]>)], sync: bool) -> Result<(), Failure> {
        let mut txn = self.db.begin_write()?;
        txn.set_durability(if sync { Durability::Immediate } else { Durability::None })?;
        {
            let mut table = txn.open_table(TABLE)?;
            for (key, value) in records {
                match value {
                    Some(v) => drop(table.insert(*key, *v)?),
                    None => drop(table.remove(*key)?),
                }
            }
        }
        Ok(txn.commit()?)
    }

    fn get(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, Failure> {
        let txn = self.db.begin_read()?;
        let found = txn.open_table(TABLE)?.get(key)?;
        if let Some(v) = &found {
            see(v.value());
        }
        Ok(found.is_some())
    }

    fn scan(&mut self, from: &[u8], limit: u64, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64, Failure> {
        let txn = self.db.begin_read()?;
        let table = txn.open_table(TABLE)?;
        let mut n = 0;
        for record in table.range(from..)?.take(limit as usize) {
            let (key, value) = record?;
            see(key.value(), value.value());
            n += 1;
        }
        Ok(n)
    }

    /// There is one writer at a time: nobody else is in the way, and nothing is to be locked.
    fn transact(&mut self, script: &Script<'_>, see: &mut dyn FnMut(&[u8])) -> Result<Outcome, Failure> {
        let mut txn = self.db.begin_write()?;
        if script.ending == (Ending::Commit { sync: false }) {
            txn.set_durability(Durability::None)?;
        }
        {
            let mut table = txn.open_table(TABLE)?;
            for step in script.steps {
                match *step {
                    Step::GetForUpdate(key) => {
                        if let Some(value) = table.get(key)? {
                            see(value.value());
                        }
                    }
                    Step::Put(key, value) => drop(table.insert(key, value)?),
                }
            }
        }
        match script.ending {
            Ending::Commit { .. } => txn.commit()?,
            Ending::Rollback => txn.abort()?,
        }
        Ok(Outcome::Done)
    }
}
