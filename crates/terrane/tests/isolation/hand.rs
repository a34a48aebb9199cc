//! Histories made by hand, so that the checker can be seen to find each anomaly, and to find none where there is none.

use crate::checker::check;
use crate::history::{Key, Level, Op, Outcome, Record, Txn, Value};

fn record(value: Value) -> Option<Record> {
    (value > 0).then_some(Record { value, replaces: None })
}

/// A read of nothing is a read of 0.
fn r(key: Key, value: Value) -> Op {
    Op::Read { key, seen: record(value), locked: false }
}

fn locked(key: Key, value: Value) -> Op {
    Op::Read { key, seen: record(value), locked: true }
}

fn w(key: Key, value: Value) -> Op {
    Op::Write { key, record: record(value) }
}

fn scan(from: Key, to: Key, seen: &[(Key, Value)]) -> Op {
    Op::Scan { from, to, seen: seen.iter().filter_map(|(k, v)| Some((*k, record(*v)?))).collect() }
}

/// The transactions of a history, with their sequences (0: it wrote nothing). The first comes before the others, which all
/// overlap.
fn history(level: Level, txns: &[(u64, &[Op])]) -> Vec<Txn> {
    let txn = |(at, (seq, ops)): (usize, &(u64, &[Op]))| {
        let (begin, end) = if at == 0 { (1, 2) } else { (10 + at as u64, 100 + at as u64) };
        let outcome = Outcome::Committed((*seq > 0).then_some(*seq));
        Txn { level, thread: at, begin, end, ops: ops.to_vec(), outcome }
    };
    txns.iter().enumerate().map(txn).collect()
}

fn found(txns: &[Txn]) -> &'static str {
    check(txns).map_or_else(|a| a.name, |()| "nothing")
}

const ALL: [Level; 5] = [
    Level::ReadCommitted,
    Level::Snapshot,
    Level::Serializable,
    Level::OptimisticSnapshot,
    Level::OptimisticSerializable,
];

/// What is found under read committed, snapshot, serializable.
fn found_under(txns: &[(u64, &[Op])]) -> [&'static str; 3] {
    let [rc, si, ser, osi, oser] = ALL.map(|level| found(&history(level, txns)));
    assert_eq!((osi, oser), (si, ser));
    [rc, si, ser]
}

#[test]
fn nothing_is_found_in_what_ran_one_after_the_other() {
    let txns: &[(u64, &[Op])] = &[
        (10, &[r(1, 0), w(1, 1), w(2, 2), r(1, 1)]),
        (20, &[r(1, 1), w(1, 3), Op::DeleteRange { from: 2, to: 4 }, scan(0, 4, &[(1, 3)])]),
        (0, &[r(1, 3), r(2, 0), scan(1, 4, &[(1, 3)])]),
    ];
    assert_eq!(found_under(txns), ["nothing"; 3]);
}

#[test]
fn own_writes_and_savepoints_are_followed() {
    let undone = [w(1, 1), Op::Savepoint, w(1, 2), w(2, 3), Op::RollbackTo(0), r(1, 1), r(2, 0)];
    assert_eq!(found_under(&[(10, &undone), (0, &[r(1, 1), r(2, 0)])]), ["nothing"; 3]);
    assert_eq!(
        found_under(&[(10, &[w(1, 1), Op::Savepoint, w(1, 2), Op::RollbackTo(0), r(1, 2)])]),
        ["internal"; 3]
    );
    assert_eq!(found_under(&[(10, &[w(1, 1), r(1, 0)])]), ["internal"; 3]);
    assert_eq!(found_under(&[(10, &[w(1, 1), scan(0, 3, &[])])]), ["internal"; 3]);
    assert_eq!(found_under(&[(10, &[w(1, 1)]), (0, &[scan(2, 3, &[(1, 1)])])]), ["internal"; 3]);
    assert_eq!(found_under(&[(0, &[r(1, 77)])]), ["garbage"; 3]);
}

#[test]
fn g1a_and_g1b_are_found() {
    let mut txns = history(Level::ReadCommitted, &[(10, &[w(1, 1)]), (0, &[r(1, 1)])]);
    txns[0].outcome = Outcome::Aborted("why not".into());
    assert_eq!(found(&txns), "G1a");
    let undone = [w(2, 2), Op::Savepoint, w(1, 1), Op::RollbackTo(0)];
    assert_eq!(found_under(&[(10, &undone), (0, &[r(1, 1)])]), ["G1a"; 3]);
    assert_eq!(found_under(&[(10, &[w(1, 1), w(1, 2)]), (0, &[r(1, 1)])]), ["G1b"; 3]);
}

#[test]
fn circles_of_writes_and_reads_are_found_at_every_level() {
    // A transaction has one sequence, so two are never ordered differently by writes alone, but by time.
    let mut txns = history(Level::ReadCommitted, &[(20, &[w(1, 1)]), (10, &[w(1, 2)])]);
    assert_eq!(found(&txns), "G0");
    (txns[0].begin, txns[0].end) = (15, 120);
    assert_eq!(found(&txns), "nothing");
    let circular: &[(u64, &[Op])] = &[(5, &[w(9, 9)]), (10, &[w(1, 1), r(2, 2)]), (20, &[w(2, 2), r(1, 1)])];
    assert_eq!(found_under(circular), ["G1c"; 3]);
    // Reads of one that had ended before: of what it overwrote.
    let stale: &[(u64, &[Op])] = &[(10, &[w(1, 1)]), (0, &[r(1, 0)])];
    assert_eq!(found_under(stale), ["nothing", "G-single", "G-single"]);
}

#[test]
fn a_value_that_comes_before_what_it_replaces_is_found() {
    let late = Op::Write { key: 1, record: Some(Record { value: 2, replaces: Some(1) }) };
    assert_eq!(found_under(&[(5, &[w(9, 9)]), (20, &[w(1, 1)]), (10, &[late])]), ["incompatible order"; 3]);
}

#[test]
fn lost_updates_and_read_skews_are_found_from_snapshot_on() {
    let lost: &[(u64, &[Op])] = &[(5, &[w(1, 1)]), (10, &[r(1, 1), w(1, 2)]), (20, &[r(1, 1), w(1, 3)])];
    assert_eq!(found_under(lost), ["nothing", "G-single", "G-single"]);
    let skew: &[(u64, &[Op])] =
        &[(5, &[w(1, 1), w(2, 2)]), (10, &[w(1, 3), w(2, 4)]), (0, &[r(1, 1), r(2, 4)])];
    assert_eq!(found_under(skew), ["nothing", "G-single", "G-single"]);
    let phantom: &[(u64, &[Op])] =
        &[(5, &[w(1, 1)]), (10, &[w(2, 2), w(3, 3)]), (0, &[scan(1, 3, &[(1, 1)]), r(3, 3)])];
    assert_eq!(found_under(phantom), ["nothing", "G-single", "G-single"]);
    // A range that was deleted, of which one key is there yet.
    let half: &[(u64, &[Op])] = &[
        (5, &[w(1, 1), w(2, 2)]),
        (10, &[Op::DeleteRange { from: 0, to: 4 }]),
        (0, &[scan(0, 4, &[(2, 2)])]),
    ];
    assert_eq!(found_under(half), ["nothing", "G-single", "G-single"]);
}

#[test]
fn a_lost_update_under_a_lock_is_found_at_every_level() {
    let lost: &[(u64, &[Op])] =
        &[(5, &[w(1, 1)]), (10, &[locked(1, 1), w(1, 2)]), (20, &[locked(1, 1), w(1, 3)])];
    assert_eq!(found_under(lost), ["G-single"; 3]);
    // Not if a savepoint gave the lock back.
    let given_back = [Op::Savepoint, locked(1, 1), Op::RollbackTo(0), w(1, 3)];
    let txns = history(Level::ReadCommitted, &[(5, &[w(1, 1)]), (10, &[w(1, 2)]), (20, &given_back)]);
    assert_eq!(found(&txns), "nothing");
}

#[test]
fn long_forks_are_found_from_snapshot_on() {
    let fork: &[(u64, &[Op])] = &[
        (5, &[w(1, 1), w(2, 2)]),
        (10, &[w(1, 3)]),
        (20, &[w(2, 4)]),
        (0, &[r(1, 3), r(2, 2)]),
        (0, &[r(1, 1), r(2, 4)]),
    ];
    assert_eq!(found_under(fork), ["nothing", "G-nonadjacent", "G-nonadjacent"]);
}

#[test]
fn write_skews_are_found_under_serializable_alone() {
    let item: &[(u64, &[Op])] =
        &[(5, &[w(1, 1), w(2, 2)]), (10, &[r(1, 1), r(2, 2), w(1, 3)]), (20, &[r(1, 1), r(2, 2), w(2, 4)])];
    assert_eq!(found_under(item), ["nothing", "nothing", "G2-item"]);
    let range: &[(u64, &[Op])] =
        &[(5, &[w(9, 9)]), (10, &[scan(1, 4, &[]), w(1, 1)]), (20, &[scan(1, 4, &[]), w(2, 2)])];
    assert_eq!(found_under(range), ["nothing", "nothing", "G2"]);
    let read_only: &[(u64, &[Op])] = &[
        (5, &[w(1, 1), w(2, 2)]),
        (30, &[r(1, 1), r(2, 2), w(1, 3)]),
        (20, &[w(2, 4)]),
        (0, &[r(1, 1), r(2, 4)]),
    ];
    assert_eq!(found_under(read_only), ["nothing", "nothing", "G2-item"]);
}

/// A serializable transaction beside weaker ones: what it read stays, what they read does not count.
#[test]
fn levels_may_be_mixed() {
    let ops: &[(u64, &[Op])] =
        &[(5, &[w(1, 1), w(2, 2)]), (10, &[r(1, 1), r(2, 2), w(1, 3)]), (20, &[r(1, 1), r(2, 2), w(2, 4)])];
    let mut txns = history(Level::Serializable, ops);
    txns[2].level = Level::Snapshot;
    assert_eq!(found(&txns), "nothing");
    // What the second did not see of the first one: but it saw something later.
    let ops: &[(u64, &[Op])] = &[(5, &[w(1, 1)]), (10, &[r(1, 1), r(2, 2)]), (20, &[w(1, 3), w(2, 2)])];
    let mut txns = history(Level::ReadCommitted, ops);
    assert_eq!(found(&txns), "nothing");
    txns[1].level = Level::Serializable;
    assert_eq!(found(&txns), "G-single");
}

/// Which of two deletions was seen is not known, and not guessed.
#[test]
fn what_is_not_there_is_taken_for_any_deletion_that_fits() {
    let ops: &[(u64, &[Op])] = &[
        (5, &[w(1, 1)]),
        (10, &[w(1, 0)]),
        (20, &[w(1, 2)]),
        (30, &[w(1, 0), w(2, 3)]),
        (0, &[r(1, 0), r(2, 3)]),
    ];
    assert_eq!(found_under(ops), ["nothing"; 3]);
}
