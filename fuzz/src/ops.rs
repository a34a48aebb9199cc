//! Operations on a simulated machine, chosen by the fuzzer, against the model of the tests.

use terrane::Isolation;
use terrane::media::sim::{CrashKind, SimMedia};

use crate::support::*;

/// Bytes, taken one by one; zeros behind the end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u64 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        u64::from(*first)
    }

    fn table(&mut self) -> usize {
        self.next() as usize % TABLES
    }

    fn key(&mut self) -> Vec<u8> {
        match self.next() {
            255 => Vec::new(),
            n => format!("k{n:04}").into_bytes(),
        }
    }

    fn change(&mut self) -> Change {
        let table = self.table();
        match self.next() % 8 {
            0 => {
                let (a, b) = (self.key(), self.key());
                Change::DeleteRange { table, start: a.clone().min(b.clone()), end: a.max(b) }
            }
            1 => Change::Delete { table, key: self.key() },
            _ => {
                let (key, fill, len) = (self.key(), self.next() as u8, self.next());
                // The longest ones are stored apart.
                let len = if len > 250 { (len as usize - 250) * 2000 } else { len as usize * 4 };
                Change::Put { table, key, value: vec![fill; len] }
            }
        }
    }

    fn op(&mut self) -> Op {
        match self.next() % 16 {
            0 => Op::Flush(self.table()),
            1 => Op::Compact(self.table()),
            2 => Op::Sync,
            3 => Op::Recreate(self.table()),
            4 | 5 => Op::Background,
            _ => {
                let n = 1 + self.next() % 4;
                let by = match self.next() % 8 {
                    0 => By::Transaction(Isolation::Snapshot),
                    1 => By::Transaction(Isolation::Serializable),
                    2 => By::Optimistic,
                    _ => By::Batch,
                };
                Op::Write { changes: (0..n).map(|_| self.change()).collect(), sync: n == 2, by }
            }
        }
    }
}

/// Runs a history with restarts and crashes of the process; panics where the database and the model differ.
pub fn run(data: &[u8]) {
    let mut data = Bytes(data);
    let seed = data.next();
    let options = tiny();
    let (mut media, mut db) = fresh(seed, &options).unwrap();
    let mut model = empty_model();
    while !data.0.is_empty() {
        match data.next() % 24 {
            0 => {
                let crashed = media.image().crash(CrashKind::Process, seed);
                drop(db);
                (media, db) = reopened(crashed, &model, "after a crash");
            }
            1 => {
                db.close().unwrap();
                media.run_all();
                (media, db) = reopened(media, &model, "after closing");
            }
            _ => {
                let op = data.op();
                crate::support::run(&db, &media, &op).unwrap_or_else(|e| panic!("{op:?}: {e}"));
                apply(&mut model, &op);
            }
        }
    }
    same(&db, &model, "at the end");
    let report = db.check(|_| true).unwrap();
    assert!(report.is_clean(), "{:?}", report.damage);
}

fn reopened(
    media: std::sync::Arc<SimMedia>,
    model: &Model,
    when: &str,
) -> (std::sync::Arc<SimMedia>, terrane::Db) {
    let db = open(&media, &tiny()).unwrap_or_else(|e| panic!("{when}: {e}"));
    same(&db, model, when);
    (media, db)
}

fn same(db: &terrane::Db, model: &Model, when: &str) {
    if let Some(d) = difference(&contents(db).unwrap(), model) {
        panic!("{when}: {d}");
    }
}
