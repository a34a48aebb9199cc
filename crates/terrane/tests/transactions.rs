//! Transactions one by one: what they read of themselves and of others, savepoints, cursors, and what locks refuse.
#![allow(clippy::disallowed_methods, reason = "a test may start threads")]

mod support;

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use support::{on_medium, stand_in};
use terrane::{
    Db, Durability, ErrorKind, Isolation, LockWait, Locked, Options, ReadOptions, RowLocks, Savepoint,
    Subtable, SubtableOptions, Transaction, TransactionCursor, TransactionOptions, WriteBatch,
};

const LEVELS: [Isolation; 3] = [Isolation::ReadCommitted, Isolation::Snapshot, Isolation::Serializable];

struct Rig {
    db: Db,
    t: Subtable,
    _dir: tempfile::TempDir,
}

fn rig() -> Rig {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().memtable_bytes(4 << 20).cache_bytes(4 << 20);
    let db = Db::open(dir.path(), on_medium(options, stand_in(4 << 20))).unwrap();
    let t = db.create_subtable("t", SubtableOptions::new()).unwrap();
    Rig { db, t, _dir: dir }
}

fn level(isolation: Isolation) -> TransactionOptions {
    TransactionOptions::new().isolation(isolation).lock_wait(LockWait::No)
}

fn kind<T: std::fmt::Debug>(r: terrane::Result<T>) -> ErrorKind {
    r.unwrap_err().kind()
}

/// All that a transaction sees of a subtable, forwards; looks whether backwards it is the same.
fn all(txn: &mut Transaction, t: &Subtable) -> Vec<(Vec<u8>, Vec<u8>)> {
    all_of(txn.cursor(t, ReadOptions::new()).unwrap())
}

fn all_of(mut c: TransactionCursor<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    c.seek_to_first().unwrap();
    let mut seen = Vec::new();
    while let Some(record) = c.take_next().unwrap() {
        seen.push(record);
    }
    c.seek_to_last().unwrap();
    for (key, value) in seen.iter().rev() {
        assert_eq!((c.key(), &*c.value().unwrap()), (&key[..], &value[..]));
        c.prev().unwrap();
    }
    assert!(!c.valid());
    seen
}

#[test]
fn a_transaction_reads_its_own_writes_and_nobody_else_does() {
    for isolation in LEVELS {
        let r = rig();
        r.t.put(b"a", b"0").unwrap();
        r.t.put(b"b", b"0").unwrap();
        let mut txn = r.db.begin(level(isolation)).unwrap();
        txn.put(&r.t, b"a", b"1").unwrap();
        txn.delete(&r.t, b"b").unwrap();
        txn.put(&r.t, b"c", b"1").unwrap();
        assert_eq!(txn.get(&r.t, b"a").unwrap().unwrap(), b"1");
        assert_eq!(txn.get(&r.t, b"b").unwrap(), None);
        assert_eq!(all(&mut txn, &r.t), [(b"a".into(), b"1".into()), (b"c".into(), b"1".into())]);
        assert_eq!(r.t.get(b"a").unwrap().unwrap(), b"0");
        assert_eq!(r.t.get(b"c").unwrap(), None);
        txn.commit(Durability::Buffered).unwrap();
        assert_eq!(r.t.get(b"a").unwrap().unwrap(), b"1");
        assert_eq!(r.t.get(b"b").unwrap(), None);
        let mut dropped = r.db.begin(level(isolation)).unwrap();
        dropped.put(&r.t, b"a", b"2").unwrap();
        drop(dropped);
        assert_eq!(r.t.get(b"a").unwrap().unwrap(), b"1");
    }
}

#[test]
fn the_first_updater_wins() {
    let r = rig();
    for optimistic in [false, true] {
        let options = level(Isolation::Snapshot).optimistic(optimistic);
        let mut late = r.db.begin(options.clone()).unwrap();
        let mut early = r.db.begin(options).unwrap();
        early.put(&r.t, b"k", b"early").unwrap();
        early.commit(Durability::Buffered).unwrap();
        let lost = late.put(&r.t, b"k", b"late").and_then(|()| late.commit(Durability::Buffered));
        let e = lost.unwrap_err();
        assert!(e.kind() == ErrorKind::WriteConflict && e.should_retry(), "{e}");
        assert_eq!((e.key(), e.subtable()), (Some(&b"k"[..]), Some("t")));
        assert_eq!(r.t.get(b"k").unwrap().unwrap(), b"early");
    }
    // Also where it was deleted, by itself or in a range, and written out since.
    for how in 0..3 {
        r.t.put(b"x", b"0").unwrap();
        let mut late = r.db.begin(level(Isolation::Snapshot)).unwrap();
        match how {
            0 => r.t.delete(b"x").unwrap(),
            1 => r.t.delete_range(b"w", b"y").unwrap(),
            _ => r.t.put(b"x", b"1").unwrap(),
        }
        r.t.flush().unwrap();
        assert_eq!(kind(late.put(&r.t, b"x", b"late")), ErrorKind::WriteConflict);
        assert_eq!(kind(late.delete_range(&r.t, b"v", b"z")), ErrorKind::WriteConflict);
        // A locking read sees the latest, and may be followed by a write.
        let mut other = r.db.begin(level(Isolation::Snapshot)).unwrap();
        drop(late);
        assert_eq!(other.get_for_update(&r.t, b"x").unwrap(), r.t.get(b"x").unwrap());
        other.put(&r.t, b"x", b"other").unwrap();
        other.commit(Durability::Buffered).unwrap();
    }
}

#[test]
fn nowait_skip_locked_and_time_out_tell_who_holds_the_lock() {
    let r = rig();
    let mut a = r.db.begin(level(Isolation::ReadCommitted)).unwrap();
    let mut b = r.db.begin(level(Isolation::ReadCommitted)).unwrap();
    a.put(&r.t, b"k", b"a").unwrap();
    let e = b.put(&r.t, b"k", b"b").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::LockBusy);
    assert!(e.message().contains(&format!("transaction {}", a.id())), "{e}");
    assert_eq!(b.try_get_for_update(&r.t, b"k").unwrap(), Locked::Skipped);
    assert_eq!(b.try_get_for_update(&r.t, b"l").unwrap(), Locked::Here(None));
    b.set_lock_wait(LockWait::AtMost(Duration::from_millis(1)));
    assert_eq!(kind(b.get_for_share(&r.t, b"k")), ErrorKind::LockTimeout);
    a.commit(Durability::Buffered).unwrap();
    assert_eq!(b.get_for_share(&r.t, b"k").unwrap().unwrap(), b"a");
    // Two may share, and then none may write.
    let mut c = r.db.begin(level(Isolation::ReadCommitted)).unwrap();
    assert_eq!(c.get_for_share(&r.t, b"k").unwrap().unwrap(), b"a");
    assert_eq!(kind(c.put(&r.t, b"k", b"c")), ErrorKind::LockBusy);
    // Each one who holds a key counts.
    assert_eq!(r.db.stats().locked_keys, 3);
    drop((b, c));
    assert_eq!(r.db.stats().locked_keys, 0);
}

#[test]
fn a_deadlock_ends_for_the_younger_and_names_the_circle() {
    let r = rig();
    let options = || TransactionOptions::new().lock_wait(LockWait::Forever);
    let mut old = r.db.begin(options()).unwrap();
    let mut young = r.db.begin(options()).unwrap();
    old.put(&r.t, b"a", b"old").unwrap();
    young.put(&r.t, b"b", b"young").unwrap();
    let (old_id, young_id) = (old.id(), young.id());
    let t = r.t.clone();
    let e = std::thread::scope(|s| {
        let waits = s.spawn(|| {
            old.put(&t, b"b", b"old").unwrap();
            old.commit(Durability::Buffered).unwrap();
        });
        let e = young.put(&r.t, b"a", b"young").unwrap_err();
        drop(young);
        waits.join().unwrap();
        e
    });
    assert_eq!(e.kind(), ErrorKind::Deadlock);
    assert!(e.message().contains(&old_id.to_string()) && e.message().contains(&young_id.to_string()), "{e}");
    assert_eq!(r.t.get(b"b").unwrap().unwrap(), b"old");
}

#[test]
fn a_serializable_scan_keeps_others_out_of_its_gaps() {
    let r = rig();
    for k in [b"b", b"d", b"f"] {
        r.t.put(k, b"0").unwrap();
    }
    let mut scan = r.db.begin(level(Isolation::Serializable)).unwrap();
    let mut c = scan.cursor(&r.t, ReadOptions::new().lower(b"b".to_vec()).upper(b"e".to_vec())).unwrap();
    c.seek_to_first().unwrap();
    while c.take_next().unwrap().is_some() {}
    let mut other = r.db.begin(level(Isolation::ReadCommitted)).unwrap();
    for k in [b"b", b"c", b"d"] {
        assert_eq!(kind(other.put(&r.t, k, b"1")), ErrorKind::LockBusy, "{}", k.escape_ascii());
    }
    assert_eq!(kind(other.put(&r.t, b"d\0", b"1")), ErrorKind::LockBusy);
    other.put(&r.t, b"a", b"1").unwrap();
    other.put(&r.t, b"e", b"1").unwrap();
    // Plain writers wait too, and then give up.
    assert_eq!(kind(r.t.put(b"c", b"1")), ErrorKind::LockTimeout);
    drop(scan);
    other.put(&r.t, b"c", b"1").unwrap();
}

#[test]
fn what_is_locked_in_touch_is_one_range() {
    let r = rig();
    for key in 0..3000u32 {
        r.t.put(&key.to_be_bytes(), b"0").unwrap();
    }
    // A scan that writes on its way, within a savepoint.
    let mut txn = r.db.begin(level(Isolation::Serializable)).unwrap();
    txn.savepoint();
    let mut c = txn.cursor(&r.t, ReadOptions::new()).unwrap();
    c.seek_to_first().unwrap();
    while c.valid() {
        let key = c.key().to_vec();
        if key[3] % 16 == 0 {
            c.transaction().put(&r.t, &key, b"1").unwrap();
        }
        assert_eq!(r.db.stats().locked_ranges, 1);
        c.next().unwrap();
    }
    assert_eq!(kind(r.t.put(b"\xff", b"")), ErrorKind::LockTimeout, "behind the last key");
    drop(txn);
    // Ranges that are deleted, each as if by a savepoint of its own, and those since a savepoint.
    let mut txn = r.db.begin(level(Isolation::Snapshot)).unwrap();
    let delete = |txn: &mut Transaction, at: u32| {
        txn.delete_range(&r.t, &at.to_be_bytes(), &(at + 1).to_be_bytes()).unwrap();
        r.db.stats().locked_ranges
    };
    assert!((0..10).all(|at| delete(&mut txn, at) == 1));
    let savepoint = txn.savepoint();
    assert!((10..20).all(|at| delete(&mut txn, at) == 2));
    txn.rollback_to(savepoint).unwrap();
    r.t.put(&10u32.to_be_bytes(), b"2").unwrap();
    assert_eq!(kind(r.t.put(&9u32.to_be_bytes(), b"2")), ErrorKind::LockTimeout);
    assert!((11..20).all(|at| delete(&mut txn, at) == 2));
    txn.release(savepoint).unwrap();
    assert!((20..30).all(|at| delete(&mut txn, at) == 2), "the gap stays");
    assert_eq!(
        kind(txn.delete_range(&r.t, &10u32.to_be_bytes(), &11u32.to_be_bytes())),
        ErrorKind::WriteConflict
    );
    assert_eq!(r.db.stats().locked_ranges, 2);
}

#[test]
fn an_optimistic_serializable_transaction_hears_of_what_came_into_its_ranges() {
    let r = rig();
    let options = || level(Isolation::Serializable).optimistic(true);
    r.t.put(b"b", b"0").unwrap();
    let mut scan = r.db.begin(options()).unwrap();
    assert_eq!(all(&mut scan, &r.t).len(), 1);
    r.t.put(b"c", b"1").unwrap();
    assert_eq!(all(&mut scan, &r.t).len(), 1);
    scan.put(&r.t, b"z", b"1").unwrap();
    assert_eq!(kind(scan.commit(Durability::Buffered)), ErrorKind::WriteConflict);
    // One that wrote nothing has seen one moment.
    let mut reader = r.db.begin(options()).unwrap();
    assert_eq!(all(&mut reader, &r.t).len(), 2);
    r.t.delete(b"c").unwrap();
    reader.commit(Durability::Buffered).unwrap();
    let refused = r.db.begin(TransactionOptions::new().optimistic(true).isolation(Isolation::ReadCommitted));
    assert_eq!(kind(refused), ErrorKind::InvalidArgument);
}

#[test]
fn what_is_submitted_is_visible_in_that_order_and_lets_go_of_its_locks() {
    let r = rig();
    let mut pending = Vec::new();
    for i in 0..50u8 {
        let mut txn = r.db.begin(TransactionOptions::new().isolation(Isolation::ReadCommitted)).unwrap();
        txn.put(&r.t, b"k", &[i]).unwrap();
        txn.put(&r.t, &[i], b"").unwrap();
        pending.push(txn.submit(Durability::Sync).unwrap());
    }
    let seqs: Vec<_> = pending.into_iter().map(|p| p.wait().unwrap()).collect();
    assert!(seqs.is_sorted());
    assert_eq!(r.t.get(b"k").unwrap().unwrap(), [49]);
    assert_eq!(r.db.stats().locked_keys, 0);
}

#[test]
fn a_first_transaction_loses_no_update_to_a_write_that_began_before_it() {
    for _ in 0..200 {
        let r = rig();
        r.t.put(b"k", b"0").unwrap();
        let barrier = std::sync::Barrier::new(2);
        std::thread::scope(|s| {
            s.spawn(|| {
                barrier.wait();
                for i in 0..50u8 {
                    r.t.put(b"k", &[b'p', i]).unwrap();
                }
            });
            barrier.wait();
            loop {
                // What it reads when it begins is what it overwrites, or it hears of it.
                let mut txn = r.db.begin(TransactionOptions::new()).unwrap();
                let before = txn.get(&r.t, b"k").unwrap().unwrap();
                match txn.put(&r.t, b"k", &[&before[..], b"+"].concat()) {
                    Ok(()) => {
                        let seen = r.t.get(b"k").unwrap().unwrap();
                        assert_eq!(seen, before, "somebody wrote beside the lock");
                        txn.commit(Durability::Buffered).unwrap();
                        break;
                    }
                    Err(e) => assert_eq!(e.kind(), ErrorKind::WriteConflict),
                }
            }
        });
    }
}

#[test]
fn a_cursor_sees_what_is_undone_while_it_stands() {
    let r = rig();
    for k in [b"c", b"k", b"n"] {
        r.t.put(k, b"0").unwrap();
    }
    let mut txn = r.db.begin(level(Isolation::Snapshot)).unwrap();
    txn.put(&r.t, b"a", b"1").unwrap();
    txn.put(&r.t, b"z", b"1").unwrap();
    for backwards in [false, true] {
        let point = txn.savepoint();
        txn.delete_range(&r.t, b"b", b"m").unwrap();
        txn.put(&r.t, b"k", b"2").unwrap();
        let mut c = txn.cursor(&r.t, ReadOptions::new()).unwrap();
        c.seek(b"k").unwrap();
        assert_eq!((c.key(), &*c.value().unwrap()), (&b"k"[..], &b"2"[..]));
        c.seek(if backwards { b"z" } else { b"a" }).unwrap();
        c.transaction().rollback_to(point).unwrap();
        let mut seen = Vec::new();
        while c.valid() {
            seen.push((c.key()[0], c.value().unwrap()[0]));
            if backwards { c.prev().unwrap() } else { c.next().unwrap() }
        }
        if backwards {
            seen.reverse();
        }
        assert_eq!(seen, [(b'a', b'1'), (b'c', b'0'), (b'k', b'0'), (b'n', b'0'), (b'z', b'1')]);
    }
    // What it stands on, undone beneath it.
    let point = txn.savepoint();
    txn.put(&r.t, b"k", b"3").unwrap();
    let mut c = txn.cursor(&r.t, ReadOptions::new()).unwrap();
    c.seek(b"k").unwrap();
    c.transaction().rollback_to(point).unwrap();
    assert_eq!(&*c.value().unwrap(), b"0");
    let mut other = r.db.begin(level(Isolation::Snapshot)).unwrap();
    other.savepoint();
    assert_eq!(kind(other.rollback_to(point)), ErrorKind::InvalidArgument);
}

/// What a history does next.
#[derive(Clone, Debug)]
enum Step {
    Put(u8, u8),
    Delete(u8),
    DeleteRange(u8, u8),
    Savepoint,
    RollbackTo(usize),
    Release(usize),
    Scan,
    /// Another transaction's commit, on other keys.
    Beside(u8),
    Flush,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..40u8, any::<u8>()).prop_map(|(k, v)| Step::Put(k, v)),
        2 => (0..40u8).prop_map(Step::Delete),
        1 => (0..40u8, 0..40u8).prop_map(|(a, b)| Step::DeleteRange(a, b)),
        1 => Just(Step::Savepoint),
        1 => (0..4usize).prop_map(Step::RollbackTo),
        1 => (0..4usize).prop_map(Step::Release),
        2 => Just(Step::Scan),
        1 => (0..40u8).prop_map(Step::Beside),
        1 => Just(Step::Flush),
    ]
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Keys of the transaction are even, those of others odd.
fn key(k: u8) -> Vec<u8> {
    vec![b'k', k * 2]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn a_transaction_behaves_like_a_map_with_savepoints(
        before in prop::collection::btree_map(0..40u8, any::<u8>(), 0..30),
        steps in prop::collection::vec(step(), 1..60),
        which in 0..4usize,
        commits in any::<bool>(),
    ) {
        let r = rig();
        let mut others = Model::new();
        let mut own = Model::new();
        for (k, v) in &before {
            r.t.put(&key(*k), &[*v]).unwrap();
            own.insert(key(*k), vec![*v]);
        }
        r.t.flush().unwrap();
        let committed = own.clone();
        let optimistic = which == 3;
        // Gaps are locked under serializable: others could not get on.
        let isolation = [Isolation::ReadCommitted, Isolation::Snapshot, Isolation::Serializable, Isolation::Snapshot][which];
        let mut txn = r.db.begin(level(isolation).optimistic(optimistic)).unwrap();
        let mut saved: Vec<(Savepoint, Model)> = Vec::new();
        let mut ranges = false;
        for s in &steps {
            match s {
                Step::Put(k, v) => {
                    txn.put(&r.t, &key(*k), &[*v]).unwrap();
                    own.insert(key(*k), vec![*v]);
                }
                Step::Delete(k) => {
                    txn.delete(&r.t, &key(*k)).unwrap();
                    own.remove(&key(*k));
                }
                // Those would meet what others write.
                Step::DeleteRange(..) if !others.is_empty() => {}
                Step::DeleteRange(a, b) => {
                    txn.delete_range(&r.t, &key(*a), &key(*b)).unwrap();
                    let (a, b) = (key(*a), key(*b));
                    own.retain(|k, _| !(a <= *k && *k < b));
                    ranges = true;
                }
                Step::Savepoint => saved.push((txn.savepoint(), own.clone())),
                Step::RollbackTo(i) => {
                    if let Some((point, then)) = saved.get(*i).cloned() {
                        txn.rollback_to(point).unwrap();
                        saved.truncate(i + 1);
                        own = then;
                    }
                }
                Step::Release(i) => {
                    if let Some((point, _)) = saved.get(*i).cloned() {
                        txn.release(point).unwrap();
                        prop_assert!(txn.rollback_to(point).is_err());
                        saved.truncate(*i);
                    }
                }
                Step::Scan => {
                    let mut seen: Model = own.clone();
                    if isolation == Isolation::ReadCommitted {
                        seen.extend(others.clone());
                    }
                    let shown: Model = all(&mut txn, &r.t).into_iter().collect();
                    prop_assert_eq!(&shown, &seen);
                    // What is locked is the latest; others are to get on after that.
                    if !optimistic {
                        seen.extend(others.clone());
                    }
                    let point = txn.savepoint();
                    let c = txn.locking_cursor(&r.t, ReadOptions::new(), RowLocks::exclusive()).unwrap();
                    let shown: Model = all_of(c).into_iter().collect();
                    prop_assert_eq!(&shown, &seen);
                    txn.rollback_to(point).unwrap();
                    txn.release(point).unwrap();
                    for k in 0..40 {
                        prop_assert_eq!(txn.get(&r.t, &key(k)).unwrap(), own.get(&key(k)).cloned());
                    }
                }
                Step::Beside(k) if !ranges && isolation != Isolation::Serializable => {
                    let k = vec![b'k', k * 2 + 1];
                    let mut batch = WriteBatch::new();
                    batch.put(&r.t, &k, b"beside").unwrap();
                    r.db.write(batch, Durability::Buffered).unwrap();
                    others.insert(k, b"beside".to_vec());
                }
                Step::Beside(_) => {}
                Step::Flush => r.t.flush().unwrap(),
            }
        }
        if commits {
            txn.commit(Durability::Buffered).unwrap();
        } else {
            txn.rollback();
            own = committed;
        }
        own.extend(others);
        let left: Model = r.t.range(ReadOptions::new()).unwrap().map(Result::unwrap).collect();
        prop_assert_eq!(left, own);
        prop_assert_eq!(r.db.stats().locked_keys, 0);
    }
}
