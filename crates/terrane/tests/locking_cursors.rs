//! Cursors that lock the rows which they show: what each level locks and shows, who waits, and who is passed over.
#![allow(clippy::disallowed_methods, reason = "a test may start threads")]

mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use support::{DIR, Rng, tiny, tiny_table};
use terrane::media::Media;
use terrane::media::real::RealOptions;
use terrane::media::sim::SimMedia;
use terrane::{
    Db, Durability, ErrorKind, Isolation, LockWait, ReadOptions, RowLocks, Subtable, Transaction,
    TransactionCursor, TransactionOptions,
};

const LEVELS: [Isolation; 3] = [Isolation::ReadCommitted, Isolation::Snapshot, Isolation::Serializable];
const WITHOUT_GAPS: [Isolation; 2] = [Isolation::ReadCommitted, Isolation::Snapshot];
const BOTH_WAYS: [bool; 2] = [false, true];

fn empty() -> (Db, Subtable) {
    let media = SimMedia::with_threads(0, &RealOptions::default());
    let db = Db::open_on(media as Arc<dyn Media>, DIR, tiny()).unwrap();
    let t = db.create_subtable("t", tiny_table()).unwrap();
    (db, t)
}

/// A database with the rows b, d, f and h, all "0".
fn rig() -> (Db, Subtable) {
    let (db, t) = empty();
    for key in [b"b", b"d", b"f", b"h"] {
        t.put(key, b"0").unwrap();
    }
    (db, t)
}

fn begin(db: &Db, isolation: Isolation) -> Transaction {
    db.begin(TransactionOptions::new().isolation(isolation).lock_wait(LockWait::No)).unwrap()
}

/// Each level, and each way to go.
fn ways(levels: &[Isolation]) -> impl Iterator<Item = (Isolation, bool)> {
    levels.iter().flat_map(|level| BOTH_WAYS.map(|back| (*level, back)))
}

fn kind<T: std::fmt::Debug>(r: terrane::Result<T>) -> ErrorKind {
    r.unwrap_err().kind()
}

fn locking<'t>(txn: &'t mut Transaction, t: &Subtable, rows: RowLocks) -> TransactionCursor<'t> {
    txn.locking_cursor(t, ReadOptions::new(), rows).unwrap()
}

/// To the first key as one goes this way.
fn start(c: &mut TransactionCursor<'_>, back: bool) {
    if back { c.seek_to_last().unwrap() } else { c.seek_to_first().unwrap() }
}

fn step(c: &mut TransactionCursor<'_>, back: bool) {
    if back { c.prev().unwrap() } else { c.next().unwrap() }
}

/// The keys, each with the first byte of its value, in the order of the keys.
fn walked(c: &mut TransactionCursor<'_>, back: bool) -> String {
    start(c, back);
    let mut seen = Vec::new();
    while c.valid() {
        seen.push(format!("{}{}", c.key().escape_ascii(), char::from(c.value().unwrap()[0])));
        step(c, back);
    }
    if back {
        seen.reverse();
    }
    seen.join(" ")
}

#[test]
fn without_gaps_only_what_is_shown_is_locked() {
    for (isolation, back) in ways(&WITHOUT_GAPS) {
        let (db, t) = rig();
        let mut txn = begin(&db, isolation);
        let mut c = locking(&mut txn, &t, RowLocks::exclusive());
        start(&mut c, back);
        step(&mut c, back);
        let shown = if back { [b"h", b"f"] } else { [b"b", b"d"] };
        assert_eq!(c.key(), shown[1]);
        let mut other = begin(&db, isolation);
        for key in [b"b", b"d", b"f", b"h"] {
            let taken = other.put(&t, key, b"1").is_err();
            assert_eq!(taken, shown.contains(&key), "{isolation:?} {}", key.escape_ascii());
        }
        // A phantom: these levels do not keep it away.
        for gap in [b"a", b"c", b"e", b"g", b"i"] {
            other.put(&t, gap, b"1").unwrap();
        }
        assert_eq!(kind(other.get_for_share(&t, shown[0])), ErrorKind::LockBusy);
        assert_eq!(other.get(&t, shown[0]).unwrap().unwrap(), b"0");
        drop((txn, other));
        assert_eq!(db.stats().locked_keys, 0);
    }
}

#[test]
fn a_serializable_one_locks_the_gaps_that_it_passes_in_the_mode_asked_for() {
    for back in BOTH_WAYS {
        for rows in [RowLocks::exclusive(), RowLocks::shared()] {
            let (db, t) = rig();
            let mut txn = begin(&db, Isolation::Serializable);
            let bounds = ReadOptions::new().lower(b"b".to_vec()).upper(b"g".to_vec());
            let mut c = txn.locking_cursor(&t, bounds, rows).unwrap();
            assert_eq!(walked(&mut c, back), "b0 d0 f0");
            let mut other = begin(&db, Isolation::Serializable);
            for key in [&b"b"[..], b"c", b"d", b"d\0", b"f", b"fz"] {
                assert_eq!(kind(other.put(&t, key, b"1")), ErrorKind::LockBusy, "{}", key.escape_ascii());
                let read = other.get(&t, key);
                assert_eq!(read.is_ok(), rows == RowLocks::shared(), "{}", key.escape_ascii());
            }
            other.put(&t, b"a", b"1").unwrap();
            other.put(&t, b"g", b"1").unwrap();
        }
    }
}

#[test]
fn what_is_shown_is_the_latest_and_may_be_written() {
    for (isolation, back) in ways(&LEVELS) {
        let (db, t) = rig();
        let mut txn = begin(&db, isolation);
        t.put(b"d", b"1").unwrap();
        t.delete(b"b").unwrap();
        t.put(b"e", b"1").unwrap();
        t.delete_range(b"g", b"i").unwrap();
        let mut c = locking(&mut txn, &t, RowLocks::exclusive());
        assert_eq!(walked(&mut c, back), "d1 e1 f0");
        c.seek(b"e").unwrap();
        c.transaction().put(&t, b"d", b"2").unwrap();
        c.transaction().delete(&t, b"e").unwrap();
        assert_eq!(&*c.value().unwrap(), b"");
        txn.commit(Durability::Buffered).unwrap();
        assert_eq!((t.get(b"d").unwrap().unwrap(), t.get(b"e").unwrap()), (b"2".to_vec(), None));
    }
}

#[test]
fn what_was_changed_before_the_cursor_came_there_is_shown_so_and_what_is_gone_is_let_go_of() {
    for (isolation, back) in ways(&WITHOUT_GAPS) {
        let (db, t) = rig();
        let mut txn = begin(&db, isolation);
        let mut c = locking(&mut txn, &t, RowLocks::exclusive());
        start(&mut c, back);
        let (second, third, last) = if back { (b"f", b"d", b"b") } else { (b"d", b"f", b"h") };
        t.put(second, b"1").unwrap();
        step(&mut c, back);
        assert_eq!((c.key(), &*c.value().unwrap()), (&second[..], &b"1"[..]));
        t.delete(third).unwrap();
        step(&mut c, back);
        assert_eq!((c.key(), &*c.value().unwrap()), (&last[..], &b"0"[..]));
        assert_eq!(db.stats().locked_keys, 3);
        let mut other = begin(&db, Isolation::ReadCommitted);
        other.put(&t, third, b"2").unwrap();
        assert_eq!(kind(other.put(&t, second, b"2")), ErrorKind::LockBusy);
        // And on in the other direction.
        step(&mut c, !back);
        assert_eq!(c.key(), second);
    }
}

#[test]
fn who_waited_for_a_row_shows_what_became_of_it() {
    for isolation in LEVELS {
        for gone in [false, true] {
            let (db, t) = rig();
            let mut holder = begin(&db, Isolation::ReadCommitted);
            if gone {
                holder.delete(&t, b"d").unwrap()
            } else {
                holder.put(&t, b"d", b"1").unwrap()
            }
            std::thread::scope(|s| {
                let waits = s.spawn(|| {
                    let mut txn = begin(&db, isolation);
                    txn.set_lock_wait(LockWait::Forever);
                    let mut c = locking(&mut txn, &t, RowLocks::exclusive());
                    walked(&mut c, false)
                });
                while db.stats().lock_waits == 0 {
                    std::thread::yield_now();
                }
                holder.commit(Durability::Buffered).unwrap();
                assert_eq!(waits.join().unwrap(), if gone { "b0 f0 h0" } else { "b0 d1 f0 h0" });
            });
        }
    }
}

#[test]
fn own_writes_are_shown() {
    for isolation in LEVELS {
        for optimistic in [false, true] {
            if optimistic && isolation == Isolation::ReadCommitted {
                continue;
            }
            let (db, t) = rig();
            t.put(b"x", b"0").unwrap();
            let options = TransactionOptions::new().isolation(isolation).optimistic(optimistic);
            let mut txn = db.begin(options).unwrap();
            txn.put(&t, b"a", b"1").unwrap();
            txn.put(&t, b"b", b"1").unwrap();
            txn.delete(&t, b"d").unwrap();
            txn.delete_range(&t, b"g", b"k").unwrap();
            txn.put(&t, b"i", b"1").unwrap();
            for back in BOTH_WAYS {
                for rows in [RowLocks::exclusive(), RowLocks::shared().skip_locked()] {
                    assert_eq!(walked(&mut locking(&mut txn, &t, rows), back), "a1 b1 f0 i1 x0");
                }
            }
        }
    }
}

#[test]
fn own_writes_that_were_spilled_are_shown() {
    for isolation in LEVELS {
        let (db, t) = rig();
        let mut txn = begin(&db, isolation);
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> =
            [b"b", b"d", b"f", b"h"].map(|k| (k.to_vec(), b"0".to_vec())).into();
        for i in 0..3000u32 {
            let (key, value) = (format!("c{:04}", i * 7 % 3000).into_bytes(), vec![b'v'; 100]);
            txn.put(&t, &key, &value).unwrap();
            model.insert(key, value);
        }
        txn.delete_range(&t, b"c1000", b"c2000").unwrap();
        model.retain(|key, _| !(&b"c1000"[..]..&b"c2000"[..]).contains(&&key[..]));
        for back in BOTH_WAYS {
            let mut c = locking(&mut txn, &t, RowLocks::exclusive());
            start(&mut c, back);
            let mut seen = BTreeMap::new();
            while c.valid() {
                seen.insert(c.key().to_vec(), c.value().unwrap().into_owned());
                step(&mut c, back);
            }
            assert!(seen == model, "{isolation:?}: {} rows and not {}", seen.len(), model.len());
        }
    }
}

#[test]
fn skip_locked_passes_over_what_others_hold() {
    for (isolation, back) in ways(&LEVELS) {
        let (db, t) = rig();
        let mut holder = begin(&db, Isolation::ReadCommitted);
        holder.delete(&t, b"b").unwrap();
        holder.get_for_share(&t, b"f").unwrap();
        let mut txn = begin(&db, isolation);
        let mut c = locking(&mut txn, &t, RowLocks::exclusive().skip_locked());
        assert_eq!(walked(&mut c, back), "d0 h0");
        // What may be shared is not passed over.
        let mut c = locking(&mut txn, &t, RowLocks::shared().skip_locked());
        assert_eq!(walked(&mut c, back), "d0 f0 h0");
        // No gap is locked, and nothing that was passed over.
        holder.put(&t, b"e", b"1").unwrap();
        drop(holder);
        let mut other = begin(&db, Isolation::ReadCommitted);
        other.put(&t, b"b", b"1").unwrap();
        for key in [b"d", b"f", b"h"] {
            assert_eq!(kind(other.put(&t, key, b"1")), ErrorKind::LockBusy);
        }
    }
}

#[test]
fn no_wait_names_the_row_and_is_the_cursors_alone() {
    for (isolation, back) in ways(&LEVELS) {
        let (db, t) = rig();
        let mut holder = begin(&db, Isolation::ReadCommitted);
        holder.put(&t, b"d", b"1").unwrap();
        let mut txn = begin(&db, isolation);
        txn.set_lock_wait(LockWait::AtMost(Duration::from_millis(1)));
        let mut c = locking(&mut txn, &t, RowLocks::exclusive().no_wait());
        start(&mut c, back);
        let e = loop {
            match if back { c.prev() } else { c.next() } {
                Ok(()) => assert!(c.valid()),
                Err(e) => break e,
            }
        };
        assert_eq!((e.kind(), e.subtable()), (ErrorKind::LockBusy, Some("t")));
        // Of a window its start is named.
        let named = if isolation == Isolation::Serializable && !back { &b"b\0"[..] } else { b"d" };
        assert_eq!(e.key(), Some(named), "{isolation:?} {back}");
        assert!(e.message().contains(&format!("transaction {}", holder.id())), "{e}");
        assert!(!c.valid());
        assert_eq!(kind(txn.put(&t, b"d", b"2")), ErrorKind::LockTimeout);
    }
}

#[test]
fn a_savepoint_gives_rows_back_as_it_does_keys() {
    for isolation in LEVELS {
        let (db, t) = rig();
        let mut txn = begin(&db, isolation);
        let mut c = locking(&mut txn, &t, RowLocks::exclusive());
        c.seek(b"b").unwrap();
        let point = c.transaction().savepoint();
        c.next().unwrap();
        c.transaction().put(&t, b"d", b"1").unwrap();
        c.transaction().rollback_to(point).unwrap();
        assert_eq!((c.key(), &*c.value().unwrap()), (&b"d"[..], &b"0"[..]));
        let mut other = begin(&db, Isolation::ReadCommitted);
        assert_eq!(kind(other.put(&t, b"b", b"1")), ErrorKind::LockBusy);
        let stays = isolation == Isolation::Serializable;
        assert_eq!(other.put(&t, b"d", b"1").is_err(), stays, "{isolation:?}");
        drop(other);
        c.next().unwrap();
        assert_eq!(c.key(), b"f");
    }
}

#[test]
fn a_circle_of_cursors_is_found() {
    for isolation in LEVELS {
        let (db, t) = rig();
        let mut old = begin(&db, isolation);
        let mut young = begin(&db, isolation);
        old.set_lock_wait(LockWait::Forever);
        young.set_lock_wait(LockWait::Forever);
        let exclusive = RowLocks::exclusive;
        start(&mut locking(&mut old, &t, exclusive()), false);
        start(&mut locking(&mut young, &t, exclusive()), true);
        let e = std::thread::scope(|s| {
            let (db, t) = (&db, &t);
            let waits = s.spawn(move || {
                let all = walked(&mut locking(&mut old, t, exclusive()), false);
                old.commit(Durability::Buffered).unwrap();
                all
            });
            while db.stats().lock_waits == 0 {
                std::thread::yield_now();
            }
            let mut c = locking(&mut young, t, exclusive());
            let mut walk = || -> terrane::Result<()> {
                c.seek_to_last()?;
                while c.valid() {
                    c.prev()?;
                }
                Ok(())
            };
            let e = walk().unwrap_err();
            assert!(!c.valid());
            drop(young);
            assert_eq!(waits.join().unwrap(), "b0 d0 f0 h0");
            e
        });
        assert_eq!(e.kind(), ErrorKind::Deadlock, "{e}");
        assert_eq!(db.stats().locked_keys, 0);
    }
}

#[test]
fn many_take_from_a_queue_and_each_row_is_taken_once() {
    const ROWS: u32 = 1200;
    for isolation in LEVELS {
        let (db, t) = empty();
        for i in 0..ROWS {
            t.put(&i.to_be_bytes(), b"job").unwrap();
        }
        let taken = Mutex::new(Vec::new());
        std::thread::scope(|s| {
            for thread in 0..4 {
                let (db, t, taken) = (&db, &t, &taken);
                s.spawn(move || {
                    let mut rng = Rng(thread);
                    loop {
                        let back = rng.below(4) == 0;
                        let mut txn = begin(db, isolation);
                        let mut c = locking(&mut txn, t, RowLocks::exclusive().skip_locked());
                        let mut own = Vec::new();
                        start(&mut c, back);
                        while c.valid() && own.len() < 3 {
                            own.push(c.key().to_vec());
                            step(&mut c, back);
                        }
                        // What is left may be what others hold, and give back.
                        if own.is_empty() && t.range(ReadOptions::new()).unwrap().next().is_none() {
                            return;
                        }
                        for key in &own {
                            txn.delete(t, key).unwrap();
                        }
                        if rng.below(5) == 0 {
                            txn.rollback();
                        } else {
                            txn.commit(Durability::Buffered).unwrap();
                            taken.lock().unwrap().extend(own);
                        }
                    }
                });
            }
        });
        let mut taken = taken.into_inner().unwrap();
        taken.sort_unstable();
        let all: Vec<Vec<u8>> = (0..ROWS).map(|i| i.to_be_bytes().to_vec()).collect();
        assert!(taken == all, "{} rows were taken", taken.len());
        assert_eq!(db.stats().locked_keys, 0);
    }
}

#[test]
fn an_optimistic_one_hears_of_changes_of_what_it_has_shown() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        for (changed, refused) in [(b"b", true), (b"h", false)] {
            let (db, t) = rig();
            let options = TransactionOptions::new().isolation(isolation).optimistic(true);
            let mut txn = db.begin(options).unwrap();
            let mut c = locking(&mut txn, &t, RowLocks::exclusive());
            c.seek_to_first().unwrap();
            t.put(changed, b"1").unwrap();
            assert_eq!((c.key(), &*c.value().unwrap()), (&b"b"[..], &b"0"[..]));
            txn.put(&t, b"z", b"1").unwrap();
            let done = txn.commit(Durability::Buffered);
            assert_eq!(done.err().map(|e| e.kind()), refused.then_some(ErrorKind::WriteConflict));
        }
    }
}

#[test]
fn a_snapshot_is_refused() {
    let (db, t) = rig();
    let snapshot = db.snapshot();
    let mut txn = begin(&db, Isolation::Snapshot);
    let options = ReadOptions::new().snapshot(&snapshot);
    assert_eq!(kind(txn.locking_cursor(&t, options, RowLocks::shared())), ErrorKind::InvalidArgument);
}
