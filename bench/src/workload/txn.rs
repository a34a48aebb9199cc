//! One thread of the workloads of transactions.

use crate::Failure;
use crate::engine::{Ending, Outcome, Script, Step};
use crate::workload::{Lane, Workload};

/// Keys that a transaction reads and writes: ten operations.
pub(super) const KEYS: usize = 5;
/// Keys that one only reads.
const KEYS_READ: usize = 10;
/// Records that all fight for.
const HOT: u64 = 64;

pub(super) fn work(lane: &mut Lane<'_>, workload: Workload) -> Result<(), Failure> {
    let keys = if workload == Workload::TxnRollback { KEYS_READ } else { KEYS };
    if lane.course.settings.records < keys as u64 {
        return Err(format!("{workload}: there are fewer than {keys} records").into());
    }
    let mut keys = vec![Vec::new(); keys];
    let mut done = 0;
    while done < lane.ops && !lane.due() {
        match attempt(lane, workload, &mut keys)? {
            Outcome::Done => {
                lane.recorder.done(1);
                done += 1;
            }
            // With other keys, drawn anew.
            Outcome::Refused => lane.recorder.retry(),
        }
    }
    Ok(())
}

fn attempt(lane: &mut Lane<'_>, workload: Workload, keys: &mut [Vec<u8>]) -> Result<Outcome, Failure> {
    let mut records = [0; KEYS_READ];
    let records = &mut records[..keys.len()];
    draw(records, || match workload {
        Workload::TxnContended => {
            let hot = lane.random.below(HOT.min(lane.course.settings.records));
            lane.course.shuffle.at(hot)
        }
        _ => lane.course.zipf.record(&mut lane.random),
    });
    let contended = workload == Workload::TxnContended;
    if !contended {
        // All in one order: nobody waits for somebody who waits for him.
        records.sort_unstable();
    }
    let data = lane.course.data;
    for (key, &record) in keys.iter_mut().zip(&*records) {
        data.key(record, key);
    }
    let (mut seen, want) = (0, lane.course.settings.value_bytes);
    let mut see = |value: &[u8]| seen += usize::from(value.len() == want);
    let outcome = if workload == Workload::TxnRollback {
        let steps: [_; KEYS_READ] = std::array::from_fn(|i| Step::GetForUpdate(&keys[i]));
        let script = Script { steps: &steps, ending: Ending::Rollback, deadlocks: false };
        lane.session.transact(&script, &mut see)?
    } else {
        let version = lane.random.next();
        let steps: [_; 2 * KEYS] = std::array::from_fn(|i| match i % 2 {
            0 => Step::GetForUpdate(&keys[i / 2]),
            _ => Step::Put(&keys[i / 2], data.value(records[i / 2], version)),
        });
        let ending = Ending::Commit { sync: lane.course.settings.sync };
        lane.session.transact(&Script { steps: &steps, ending, deadlocks: contended }, &mut see)?
    };
    if outcome == Outcome::Done && seen != keys.len() {
        return Err(format!("{seen} values of {} are as they were written", keys.len()).into());
    }
    Ok(outcome)
}

/// Fills `records` with ones that differ, in the order in which they come.
fn draw(records: &mut [u64], mut next: impl FnMut() -> u64) {
    for i in 0..records.len() {
        records[i] = loop {
            let record = next();
            if !records[..i].contains(&record) {
                break record;
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_a_transaction_differ() {
        let mut records = [0; 4];
        let mut all = [7, 7, 1, 7, 9, 1, 0].into_iter();
        draw(&mut records, || all.next().unwrap());
        assert_eq!(records, [7, 1, 9, 0]);
    }
}
