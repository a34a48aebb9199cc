//! Optimistic transactions that read much, write much, or are prepared.

mod support;

use std::sync::Arc;

use support::{fresh, on_medium, open, stand_in, tiny, tiny_table};
use terrane::media::Media;
use terrane::media::sim::{CrashKind, SimMedia};
use terrane::{
    Db, Durability, ErrorKind, Isolation, LockWait, Options, ReadOptions, Subtable, SubtableOptions,
    Transaction, TransactionOptions,
};

fn rig() -> (Arc<SimMedia>, Db, Subtable) {
    let (media, db) = fresh(1, &tiny()).unwrap();
    let t = db.subtable("t0").unwrap();
    t.put(b"x", b"10").unwrap();
    t.put(b"y", b"20").unwrap();
    (media, db, t)
}

fn begin(db: &Db) -> Transaction {
    let options = TransactionOptions::new().isolation(Isolation::Serializable).optimistic(true);
    db.begin(options.lock_wait(LockWait::No)).unwrap()
}

fn begin_with_locks(db: &Db) -> Transaction {
    let options = TransactionOptions::new().isolation(Isolation::ReadCommitted);
    db.begin(options.lock_wait(LockWait::No)).unwrap()
}

fn kind<T: std::fmt::Debug>(r: terrane::Result<T>) -> ErrorKind {
    r.unwrap_err().kind()
}

/// Reads all rows from x to before z.
fn scan(txn: &mut Transaction, t: &Subtable) -> usize {
    let options = ReadOptions::new().lower(b"x".to_vec()).upper(b"z".to_vec());
    let mut c = txn.cursor(t, options).unwrap();
    c.seek_to_first().unwrap();
    let mut count = 0;
    while c.take_next().unwrap().is_some() {
        count += 1;
    }
    count
}

#[test]
fn what_a_prepared_one_has_read_holds_until_it_ends_also_after_a_crash() {
    for writes in [true, false] {
        let (media, db, t) = rig();
        let mut txn = begin(&db);
        assert_eq!(txn.get(&t, b"gone").unwrap(), None);
        assert_eq!(scan(&mut txn, &t), 2);
        if writes {
            txn.put(&t, b"a", b"1").unwrap();
        }
        txn.prepare(b"p").unwrap();
        let nobody_changes_it = |db: &Db, t: &Subtable| {
            for key in [&b"x"[..], b"xx", b"y", b"yy", b"gone"] {
                let mut other = begin_with_locks(db);
                assert_eq!(kind(other.put(t, key, b"1")), ErrorKind::LockBusy, "{}", key.escape_ascii());
                assert!(other.get_for_share(t, key).is_ok());
            }
            begin_with_locks(db).put(t, b"z", b"1").unwrap();
            // Nor one that looks only when it commits.
            let mut other = begin(db);
            other.put(t, b"x", b"1").unwrap();
            assert_eq!(kind(other.commit(Durability::Buffered)), ErrorKind::LockBusy);
        };
        nobody_changes_it(&db, &t);
        let next = media.image().crash(CrashKind::PowerLost, 3);
        media.shutdown();
        drop((t, db));
        let db = open(&next, &tiny()).unwrap();
        let t = db.subtable("t0").unwrap();
        nobody_changes_it(&db, &t);
        db.commit_prepared(b"p", Durability::Sync).unwrap();
        t.put(b"x", b"1").unwrap();
        assert_eq!(t.get(b"a").unwrap().is_some(), writes);
    }
}

#[test]
fn two_that_are_prepared_do_not_miss_each_others_writes() {
    let (_media, db, t) = rig();
    let (mut a, mut b) = (begin(&db), begin(&db));
    a.get(&t, b"x").unwrap();
    b.get(&t, b"y").unwrap();
    a.put(&t, b"y", b"a").unwrap();
    b.put(&t, b"x", b"b").unwrap();
    a.prepare(b"a").unwrap();
    assert_eq!(kind(b.prepare(b"b")), ErrorKind::LockBusy);
    db.commit_prepared(b"a", Durability::Buffered).unwrap();
    assert_eq!(t.get(b"x").unwrap().unwrap(), b"10");
}

#[test]
fn one_that_only_read_is_prepared_if_it_holds_and_commits_in_any_case() {
    let (_media, db, t) = rig();
    for prepares in [true, false] {
        let mut txn = begin(&db);
        scan(&mut txn, &t);
        t.put(b"xx", b"1").unwrap();
        if prepares {
            assert_eq!(kind(txn.prepare(b"p")), ErrorKind::WriteConflict);
            assert!(db.prepared().is_empty());
        } else {
            txn.commit(Durability::Buffered).unwrap();
        }
        assert_eq!(db.stats().locked_ranges, 0);
    }
}

/// Each key is read by itself: far more than are remembered one by one.
#[test]
fn a_million_reads_are_remembered_well_enough() {
    const MANY: u32 = 1_000_000;
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().memtable_bytes(4 << 20).cache_bytes(4 << 20);
    let db = Db::open(dir.path(), on_medium(options, stand_in(4 << 20))).unwrap();
    let t = db.create_subtable("t", SubtableOptions::new()).unwrap();
    let key = |group: u8, n: u32| [&[group][..], &n.to_be_bytes()].concat();
    let reads = |txn: &mut Transaction| {
        for n in 0..MANY / 2 {
            assert_eq!(txn.get(&t, &key(1, n * 3)).unwrap(), None);
            assert_eq!(txn.get(&t, &key(5, n * 3)).unwrap(), None);
        }
        txn.put(&t, b"written", b"1").unwrap();
    };
    // Between the groups, before and behind them, and in a subtable of its own.
    let mut txn = begin(&db);
    reads(&mut txn);
    let beside = db.create_subtable("beside", tiny_table()).unwrap();
    for group in [0, 2, 3, 4, 6] {
        for n in 0..100 {
            t.put(&key(group, n * 1_000_000), b"1").unwrap();
        }
    }
    beside.put(&key(1, 0), b"1").unwrap();
    txn.commit(Durability::Buffered).unwrap();
    let mut txn = begin(&db);
    reads(&mut txn);
    t.put(&key(5, 77 * 3), b"1").unwrap();
    assert_eq!(kind(txn.commit(Durability::Buffered)), ErrorKind::WriteConflict);
}

/// More than the log takes in one entry.
#[test]
fn one_that_has_read_many_long_keys_is_prepared_with_fewer_ranges() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), on_medium(Options::new(), stand_in(64 << 20))).unwrap();
    let t = db.create_subtable("t", SubtableOptions::new()).unwrap();
    let key = |n: u32| [&n.to_be_bytes()[..], &[7; 400]].concat();
    let mut txn = begin(&db);
    for n in 0..14_000 {
        assert_eq!(txn.get(&t, &key(n * n)).unwrap(), None);
    }
    assert!(14_000 * key(0).len() as u64 > db.max_batch_bytes());
    txn.prepare(b"p").unwrap();
    for n in [0, 77, 13_999] {
        assert_eq!(kind(begin_with_locks(&db).put(&t, &key(n * n), b"")), ErrorKind::LockBusy);
    }
    begin_with_locks(&db).put(&t, &key(u32::MAX), b"").unwrap();
    db.commit_prepared(b"p", Durability::Buffered).unwrap();
}

#[test]
fn what_many_keys_are_locked_by_at_the_commit_becomes_ranges() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), on_medium(Options::new(), stand_in(64 << 20))).unwrap();
    let t = db.create_subtable("t", SubtableOptions::new()).unwrap();
    let mut txn = begin(&db);
    for n in 0..80_000u32 {
        txn.put(&t, &n.to_be_bytes(), b"").unwrap();
    }
    txn.prepare(b"p").unwrap();
    let stats = db.stats();
    assert!(stats.locked_keys < 20_000, "{}", stats.locked_keys);
    assert!((1..=8).contains(&stats.locked_ranges), "{}", stats.locked_ranges);
    assert_eq!(kind(begin_with_locks(&db).put(&t, &7u32.to_be_bytes(), b"")), ErrorKind::LockBusy);
    db.commit_prepared(b"p", Durability::Buffered).unwrap();
    assert_eq!(t.range(ReadOptions::new()).unwrap().count(), 80_000);
}
