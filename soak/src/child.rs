//! The process that is killed: writers, a reader, and reports of what was acknowledged.
//!
//! A report is 16 bytes, written in one call: a pipe takes so few whole or not at all, so reports of several threads
//! never mix, and what was written before the kill is there to be read after it.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use terrane::{Db, Durability, Isolation, ReadOptions, Subtable, TransactionOptions, WriteBatch};

use crate::plan::{self, By, Rng, TABLES, Target, WRITERS};
use crate::{ChildArgs, Failure, Outcome};

/// What the child tells its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The database is open, and this is the writer's last batch in it.
    Found { writer: usize, n: u64 },
    /// The writer's batch is committed.
    Acknowledged { writer: usize, n: u64 },
}

impl Report {
    pub(crate) const BYTES: usize = 16;

    pub(crate) fn encode(self) -> [u8; Self::BYTES] {
        let (kind, writer, n) = match self {
            Report::Found { writer, n } => (1u32, writer, n),
            Report::Acknowledged { writer, n } => (2, writer, n),
        };
        let mut out = [0; Self::BYTES];
        out[..4].copy_from_slice(&kind.to_le_bytes());
        out[4..8].copy_from_slice(&(writer as u32).to_le_bytes());
        out[8..].copy_from_slice(&n.to_le_bytes());
        out
    }

    pub(crate) fn decode(b: &[u8; Self::BYTES]) -> Option<Report> {
        let word = |i: usize| b[i..i + 4].iter().rev().fold(0u32, |w, x| w << 8 | u32::from(*x));
        let writer = word(4) as usize;
        let n = u64::from(word(8)) | u64::from(word(12)) << 32;
        match word(0) {
            1 if writer < WRITERS => Some(Report::Found { writer, n }),
            2 if writer < WRITERS => Some(Report::Acknowledged { writer, n }),
            _ => None,
        }
    }
}

/// Opens and writes until killed; now and then closes and opens again in between.
pub(crate) fn child(args: &ChildArgs) -> Outcome {
    let mut rng = Rng::new(&[args.seed, args.round, 1]);
    let out = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    loop {
        let db = plan::open(args.medium, &args.db, &mut rng)?;
        let tables = plan::subtables(&db, &mut rng).map_err(|e| format!("subtables: {e}"))?;
        plan::end_in_doubt(&db, &mut rng).map_err(|e| format!("ending what is in doubt: {e}"))?;
        let mut counters = [0; WRITERS];
        for (writer, n) in counters.iter_mut().enumerate() {
            *n = counter(&tables, writer)?;
            (&out).write_all(&Report::Found { writer, n: *n }.encode())?;
        }
        let session = if rng.one_in(4) { Duration::from_millis(50 + rng.below(500)) } else { Duration::MAX };
        let stop = AtomicBool::new(false);
        let (db, tables, stop, out) = (&db, &tables[..], &stop, &out);
        let reader = Rng::new(&[rng.next()]);
        std::thread::scope(|s| -> Outcome {
            let mut threads = vec![s.spawn(move || read(db, tables, reader, stop))];
            for (writer, n) in counters.into_iter().enumerate() {
                threads.push(s.spawn(move || write(args.seed, writer, n, db, tables, out, stop)));
            }
            let from = Instant::now();
            while from.elapsed() < session && threads.iter().all(|t| !t.is_finished()) {
                std::thread::sleep(Duration::from_millis(5));
            }
            stop.store(true, Ordering::Relaxed);
            for t in threads {
                t.join().map_err(|_| "a thread panicked")??;
            }
            Ok(())
        })?;
        if rng.one_in(3) {
            continue;
        }
        db.clone().close().map_err(|e| format!("close: {e}"))?;
    }
}

fn counter(tables: &[Subtable], writer: usize) -> Result<u64, Failure> {
    let mut found = tables.iter().map(|t| -> Result<u64, Failure> {
        match t.get(&plan::counter_key(writer))? {
            None => Ok(0),
            Some(v) => plan::value_counter(&v).ok_or_else(|| "a counter is damaged".into()),
        }
    });
    let first = found.next().ok_or("no subtables")??;
    for other in found {
        let other = other?;
        if other != first {
            return Err(format!("writer {writer}: counters {first} and {other} of one batch").into());
        }
    }
    Ok(first)
}

fn write(
    seed: u64,
    writer: usize,
    mut n: u64,
    db: &Db,
    tables: &[Subtable],
    mut out: &File,
    stop: &AtomicBool,
) -> Outcome {
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let plan = plan::batch(seed, writer, n);
        let durability = if plan.sync { Durability::Sync } else { Durability::Buffered };
        let target = match plan.by {
            By::Write | By::Submit => Target::Batch(WriteBatch::new()),
            by => {
                let options = TransactionOptions::new().isolation(Isolation::Serializable);
                Target::Transaction(Box::new(db.begin(options.optimistic(by == By::Optimistic))?))
            }
        };
        match (plan::fill(seed, writer, n, tables, target)?, plan.by) {
            (Target::Batch(batch), By::Submit) => db.submit(batch, durability).and_then(|p| p.wait()),
            (Target::Batch(batch), _) => db.write(batch, durability),
            (Target::Transaction(txn), By::TwoPhases) => {
                let xid = plan::xid(writer, n);
                txn.prepare(&xid).and_then(|()| db.commit_prepared(&xid, durability))
            }
            (Target::Transaction(txn), _) => txn.commit(durability),
        }
        .map_err(|e| format!("writer {writer}, batch {n}: {e}"))?;
        out.write_all(&Report::Acknowledged { writer, n }.encode())?;
    }
    Ok(())
}

/// Reads at snapshots: counters agree across subtables, and no value is damaged or newer than its writer's counter.
fn read(db: &Db, tables: &[Subtable], mut rng: Rng, stop: &AtomicBool) -> Outcome {
    while !stop.load(Ordering::Relaxed) {
        let snapshot = db.snapshot();
        let writer = rng.below(WRITERS as u64) as usize;
        let mut counters = Vec::new();
        for table in tables {
            let v = table.get_at(&plan::counter_key(writer), &snapshot)?;
            counters.push(v.as_deref().and_then(plan::value_counter).unwrap_or(0));
        }
        if counters.iter().any(|c| *c != counters[0]) {
            return Err(format!("a snapshot shows half a batch of writer {writer}: {counters:?}").into());
        }
        let t = rng.below(TABLES.len() as u64) as usize;
        let options = ReadOptions::new().snapshot(&snapshot).prefix(&plan::prefix(writer));
        let backwards = rng.one_in(2);
        let mut range = tables[t].range(options)?;
        while let Some(record) = if backwards { range.next_back() } else { range.next() } {
            let (key, value) = record?;
            let name = String::from_utf8_lossy(&key);
            match plan::value_counter(&value) {
                None => return Err(format!("{}: the value of {name} is damaged", TABLES[t]).into()),
                Some(n) if n > counters[0] => {
                    return Err(
                        format!("{}: {name} is of batch {n}, after {}", TABLES[t], counters[0]).into()
                    );
                }
                Some(_) => {}
            }
        }
        if rng.one_in(50) {
            tables[t].flush()?;
        }
        std::thread::sleep(Duration::from_millis(rng.below(20)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_come_back_as_they_were() {
        for r in [Report::Found { writer: 3, n: 0 }, Report::Acknowledged { writer: 1, n: 0x1234_5678_9abc }]
        {
            assert_eq!(Report::decode(&r.encode()), Some(r));
        }
        assert_eq!(Report::decode(&[0; Report::BYTES]), None);
    }
}
