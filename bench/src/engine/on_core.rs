//! Terrane's executor, on whose cores the work is made up that they carry out.

use parking_lot::Mutex;
use terrane::{Db, Executor, ExecutorOptions, Polled, Subtable};

use crate::data::{owner_of, table_of};
use crate::engine::{Cores, Turn};
use crate::{Failure, machine};

/// A database whose cores come with the first run, as many as that has threads.
pub(super) struct OnCore {
    db: Db,
    tables: Vec<Subtable>,
    executor: Mutex<Option<Executor>>,
}

impl OnCore {
    pub(super) fn new(db: &Db, tables: &[Subtable]) -> Self {
        OnCore { db: db.clone(), tables: tables.to_vec(), executor: Mutex::default() }
    }
}

impl Cores for OnCore {
    fn start(&self, n: u64) -> Result<bool, Failure> {
        let (n, mut executor) = (usize::try_from(n)?, self.executor.lock());
        if executor.as_ref().is_some_and(|e| e.cores() == n) {
            return Ok(false);
        }
        if n > self.tables.len() {
            let tables = self.tables.len();
            return Err(format!(
                "{n} cores, each with tables of its own, want --tables {n}: there are {tables}"
            )
            .into());
        }
        // First, or the parts of the cache would be those of both.
        *executor = None;
        let processors = machine::processors()?;
        let bound: Vec<usize> = processors.iter().copied().cycle().take(n).collect();
        // What a core reads is decided before the run: nothing is to move.
        let fresh = self.db.executor(ExecutorOptions::new().cores(bound).balance(false))?;
        for (number, table) in (0..).zip(&self.tables) {
            fresh.assign(table, owner_of(number, n as u64) as usize)?;
        }
        // Frames move to the parts of the cache that are their owners' now.
        self.db.wait_idle()?;
        *executor = Some(fresh);
        Ok(true)
    }

    fn go(&self, core: u64, mut turn: Turn) -> Result<(), Failure> {
        let (core, tables) = (usize::try_from(core)?, self.tables.clone());
        let executor = self.executor.lock();
        let executor = executor.as_ref().ok_or("no core has been started")?;
        executor.poll_on(core, move |core| {
            let more = turn(&mut |key, see| {
                Ok(core.get_with(&tables[table_of(key, tables.len())], key, see)?.is_some())
            });
            if more { Polled::Again } else { Polled::Done }
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use terrane::{Options, SubtableOptions};

    use super::*;
    use crate::choice::Random;
    use crate::data::Data;
    use crate::workload::own_record;

    #[test]
    fn cores_own_what_they_read() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), Options::new()).unwrap();
        let tables: Vec<_> =
            (0..5).map(|n| db.create_subtable(&format!("t{n}"), SubtableOptions::new()).unwrap()).collect();
        let engine = OnCore::new(&db, &tables);
        let (data, mut random, mut key) = (Data::new(16, 8), Random::new(1), Vec::new());
        for cores in [2, 3, 1, 5] {
            assert!(engine.start(cores).unwrap());
            assert!(!engine.start(cores).unwrap(), "they are there");
            let executor = engine.executor.lock();
            for core in (0..cores).cycle().take(200) {
                data.key(own_record(1003, 5, core, cores, &mut random), &mut key);
                let owner = executor.as_ref().unwrap().owner(&tables[table_of(&key, 5)], &key).unwrap();
                assert_eq!(owner as u64, core);
            }
        }
        assert!(engine.start(6).is_err(), "one would have no table");
    }
}
