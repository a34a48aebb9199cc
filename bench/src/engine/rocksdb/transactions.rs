//! RocksDB's `TransactionDB`, with locks: its way to transactions that wait for each other. It is opened for workloads that are
//! about them alone, for it makes all other writes dearer.

use std::path::Path;

use rust_rocksdb::{
    Error, ErrorKind, MultiThreaded, Options, ReadOptions, Transaction, TransactionDB, TransactionDBOptions,
    TransactionOptions, WriteBatchWithTransaction, WriteOptions,
};

use crate::Failure;
use crate::engine::{Ending, Engine, LOCK_WAIT, Outcome, Script, Session, Step, rocksdb, wait_while};
use crate::settings::{RocksDbForm, Settings};

/// Of the two there are, the one that says its properties. They differ in column families alone, of which there is one.
type Db = TransactionDB<MultiThreaded>;

pub(crate) struct TransactionDb {
    db: Db,
    options: Options,
    reads_direct: bool,
}

impl TransactionDb {
    pub(crate) fn open(dir: &Path, s: &Settings, form: &RocksDbForm<'_>) -> Result<Self, Failure> {
        let options = rocksdb::options(s, form)?;
        let own = form.own;
        let mut of_locks = TransactionDBOptions::default();
        of_locks.set_num_stripes(own.lock_stripes);
        of_locks.set_use_per_key_point_lock_mgr(own.per_key_locks);
        of_locks.set_txn_lock_timeout(LOCK_WAIT.as_millis() as i64);
        let db = Db::open(&options, &of_locks, dir)?;
        Ok(TransactionDb { db, options, reads_direct: rocksdb::direct(s, form) })
    }

    fn number(&self, property: &str) -> u64 {
        self.db.property_int_value(property).ok().flatten().unwrap_or(0)
    }
}

impl Engine for TransactionDb {
    fn session(&self) -> Result<Box<dyn Session + '_>, Failure> {
        let mut detecting = TransactionOptions::default();
        detecting.set_deadlock_detect(true);
        // At once, as is advised where deadlocks are frequent. Only locks per key know how to put it off.
        detecting.set_deadlock_timeout_us(0);
        Ok(Box::new(Handle {
            db: &self.db,
            synced: rocksdb::synced(),
            buffered: WriteOptions::default(),
            read: ReadOptions::default(),
            plain: TransactionOptions::default(),
            detecting,
        }))
    }

    fn settle(&self) -> Result<(), Failure> {
        const BUSY: [&str; 4] = [
            "rocksdb.mem-table-flush-pending",
            "rocksdb.num-running-flushes",
            "rocksdb.compaction-pending",
            "rocksdb.num-running-compactions",
        ];
        wait_while(|| BUSY.iter().any(|property| self.number(property) > 0));
        Ok(())
    }

    fn is_log(&self, file: &str) -> bool {
        rocksdb::is_log(file)
    }

    fn l0_runs(&self) -> Option<u64> {
        Some(self.number("rocksdb.num-files-at-level0"))
    }

    fn flush(&self) -> Result<(), Failure> {
        Ok(self.db.flush()?)
    }

    fn says(&self) -> serde_json::Value {
        rocksdb::says(&self.options, self.reads_direct, |property| self.number(property))
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        drop(self.db);
        Ok(())
    }
}

struct Handle<'a> {
    db: &'a Db,
    synced: WriteOptions,
    buffered: WriteOptions,
    read: ReadOptions,
    plain: TransactionOptions,
    detecting: TransactionOptions,
}

impl Session for Handle<'_> {
    fn write(&mut self, records: &[(&[u8], Option<&[u8]>)], sync: bool) -> Result<(), Failure> {
        let options = if sync { &self.synced } else { &self.buffered };
        let mut batch = WriteBatchWithTransaction::<true>::default();
        for (key, value) in records {
            match value {
                Some(v) => batch.put(key, v),
                None => batch.delete(key),
            }
        }
        Ok(self.db.write_opt(&batch, options)?)
    }

    fn get(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, Failure> {
        Ok(rocksdb::show(self.db.get_pinned_opt(key, &self.read)?, see))
    }

    fn scan(&mut self, from: &[u8], limit: u64, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64, Failure> {
        rocksdb::walk(self.db.raw_iterator_opt(ReadOptions::default()), from, limit, see)
    }

    fn transact(&mut self, script: &Script<'_>, see: &mut dyn FnMut(&[u8])) -> Result<Outcome, Failure> {
        let sync = script.ending == Ending::Commit { sync: true };
        let transaction = self.db.transaction_opt(
            if sync { &self.synced } else { &self.buffered },
            if script.deadlocks { &self.detecting } else { &self.plain },
        );
        match self.perform(transaction, script, see) {
            Ok(()) => Ok(Outcome::Done),
            Err(e) if matches!(e.kind(), ErrorKind::Busy | ErrorKind::TimedOut | ErrorKind::TryAgain) => {
                Ok(Outcome::Refused)
            }
            Err(e) => Err(e.into()),
        }
    }
}

impl Handle<'_> {
    /// After an error it is dropped, and so rolled back.
    fn perform(
        &self,
        transaction: Transaction<'_, Db>,
        script: &Script<'_>,
        see: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Error> {
        for step in script.steps {
            match *step {
                Step::GetForUpdate(key) => {
                    if let Some(v) = transaction.get_pinned_for_update_opt(key, true, &self.read)? {
                        see(&v);
                    }
                }
                Step::Put(key, value) => transaction.put(key, value)?,
            }
        }
        match script.ending {
            Ending::Commit { .. } => transaction.commit(),
            Ending::Rollback => transaction.rollback(),
        }
    }
}
