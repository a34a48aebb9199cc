//! Compares a database with what its writers must have left in it.

use std::collections::BTreeMap;

use terrane::{Db, ReadOptions, Subtable};

use crate::Failure;
use crate::plan::{self, Op, TABLES, WRITERS};

/// What one writer's first `n` batches leave: for each key the batch that put it, the place in that batch, the length.
#[derive(Debug, Default)]
struct Keys {
    n: u64,
    tables: [BTreeMap<u64, (u64, usize, usize)>; TABLES.len()],
}

/// What the database must hold.
#[derive(Debug)]
pub(crate) struct Model {
    seed: u64,
    writers: [Keys; WRITERS],
}

/// What a comparison covered.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Covered {
    pub(crate) batches: u64,
    pub(crate) operations: u64,
    pub(crate) records: u64,
}

impl Model {
    pub(crate) fn new(seed: u64) -> Self {
        Model { seed, writers: Default::default() }
    }

    /// Verifies the writer's keys in `tables`. `acknowledged` is the last batch that was reported; one more may have been
    /// on its way. Returns the writer's last batch in the database.
    pub(crate) fn verify(
        &mut self,
        writer: usize,
        acknowledged: u64,
        tables: &[Subtable],
        covered: &mut Covered,
    ) -> Result<u64, Failure> {
        let fail = |t: usize, what: String| -> Failure {
            format!("writer {writer}, subtable {}: {what}", TABLES[t]).into()
        };
        let mut n = 0;
        for (t, table) in tables.iter().enumerate() {
            let found = match table.get(&plan::counter_key(writer))? {
                None => 0,
                Some(v) => {
                    plan::value_counter(&v).ok_or_else(|| fail(t, "the counter is damaged".to_owned()))?
                }
            };
            if t > 0 && found != n {
                return Err(fail(t, format!("counter {found}, but {n} in the other: half a batch")));
            }
            n = found;
        }
        if n < acknowledged {
            return Err(fail(
                0,
                format!("{} acknowledged batches are lost: {n} of {acknowledged}", acknowledged - n),
            ));
        }
        if n > acknowledged + 1 {
            return Err(fail(0, format!("batch {n} is there, at most {} was begun", acknowledged + 1)));
        }
        self.advance(writer, n, covered);
        for (t, table) in tables.iter().enumerate() {
            self.compare(writer, t, table, covered).map_err(|e| fail(t, format!("at batch {n}: {e}")))?;
        }
        Ok(n)
    }

    fn advance(&mut self, writer: usize, n: u64, covered: &mut Covered) {
        let keys = &mut self.writers[writer];
        for i in keys.n + 1..=n {
            let batch = plan::batch(self.seed, writer, i);
            covered.batches += 1;
            covered.operations += (batch.ops.len() + TABLES.len()) as u64;
            for (place, op) in batch.ops.iter().enumerate() {
                match *op {
                    Op::Put { table, key, len } => {
                        keys.tables[table].insert(key, (i, place, len));
                    }
                    Op::Delete { table, key } => {
                        keys.tables[table].remove(&key);
                    }
                    Op::DeleteRange { table, start, end } => {
                        keys.tables[table].retain(|k, _| !(start..end).contains(k));
                    }
                }
            }
        }
        keys.n = n.max(keys.n);
    }

    fn compare(
        &self,
        writer: usize,
        t: usize,
        table: &Subtable,
        covered: &mut Covered,
    ) -> Result<(), Failure> {
        let keys = &self.writers[writer].tables[t];
        let mut found = table.range(ReadOptions::new().prefix(&plan::prefix(writer)))?;
        for (key, (n, place, len)) in keys {
            let wanted = plan::key(writer, *key);
            let name = String::from_utf8_lossy(&wanted).into_owned();
            let (got, value) = found.next().ok_or_else(|| format!("{name} of batch {n} is missing"))??;
            if got != wanted {
                let got = String::from_utf8_lossy(&got).into_owned();
                let word =
                    if *got < *name { "should not be there" } else { "is there, before it one is missing" };
                return Err(format!("{got} {word}; wanted {name} of batch {n}").into());
            }
            if value != plan::value(self.seed, writer, *n, *place, *len) {
                let of = plan::value_counter(&value);
                return Err(format!(
                    "{name} has {} bytes of batch {of:?}, wanted {len} of batch {n}",
                    value.len()
                )
                .into());
            }
            covered.records += 1;
        }
        match found.next().transpose()? {
            Some((key, _)) if key == plan::counter_key(writer) => {}
            Some((key, _)) => {
                return Err(format!("{} should not be there", String::from_utf8_lossy(&key)).into());
            }
            None if self.writers[writer].n > 0 => return Err("the counter is missing in a scan".into()),
            None => {}
        }
        Ok(())
    }
}

/// Verifies every checksum and invariant.
pub(crate) fn check(db: &Db) -> Result<(), Failure> {
    let report = db.check(|_| true)?;
    if report.is_clean() {
        return Ok(());
    }
    let damage: Vec<String> = report.damage.iter().take(10).map(ToString::to_string).collect();
    Err(format!("check: {} damaged: {}", report.damage.len(), damage.join("; ")).into())
}

#[cfg(test)]
mod tests {
    use terrane::{Durability, WriteBatch};

    use super::super::plan::{Rng, Target};
    use super::*;

    const SEED: u64 = 5;

    /// Verifies a database into which writer 1 wrote these batches, and `then` something more.
    fn verified(
        batches: impl Iterator<Item = u64>,
        acknowledged: u64,
        then: impl FnOnce(&[Subtable]) -> terrane::Result<()>,
    ) -> Result<u64, String> {
        let dir = tempfile::tempdir().unwrap();
        let mut rng = Rng::new(&[SEED]);
        let db = Db::open(dir.path().join("db"), plan::options(plan::SoakMedium::Log, &mut rng)).unwrap();
        let tables = plan::subtables(&db, &mut rng).unwrap();
        for n in batches {
            let batch = plan::fill(SEED, 1, n, &tables, Target::Batch(WriteBatch::new())).unwrap();
            let Target::Batch(batch) = batch else { panic!("a batch became a transaction") };
            db.write(batch, Durability::Buffered).unwrap();
        }
        then(&tables).unwrap();
        check(&db).unwrap();
        Model::new(SEED).verify(1, acknowledged, &tables, &mut Covered::default()).map_err(|e| e.to_string())
    }

    fn refused(found: Result<u64, String>, with: &str) {
        let e = found.expect_err("should have been noticed");
        assert!(e.contains(with), "{e}");
    }

    #[test]
    fn what_all_batches_leave_is_accepted_with_one_on_its_way() {
        assert_eq!(verified(1..=300, 300, |_| Ok(())), Ok(300));
        assert_eq!(verified(1..=300, 299, |_| Ok(())), Ok(300));
    }

    #[test]
    fn a_lost_a_missing_and_an_invented_batch_are_noticed() {
        refused(verified(1..=299, 300, |_| Ok(())), "lost");
        refused(verified((1..=300).filter(|n| *n != 298), 300, |_| Ok(())), "at batch 300");
        refused(verified(1..=302, 300, |_| Ok(())), "at most 301");
    }

    #[test]
    fn half_a_batch_and_a_foreign_value_are_noticed() {
        refused(verified(1..=300, 300, |t| t[1].delete(&plan::counter_key(1))), "half a batch");
        refused(verified(1..=300, 300, |t| t[0].put(&plan::key(1, 9), b"foreign")), "at batch 300");
        refused(
            verified(1..=300, 300, |t| t[0].delete_range(&plan::key(1, 0), &plan::key(1, 90))),
            "missing",
        );
    }
}
