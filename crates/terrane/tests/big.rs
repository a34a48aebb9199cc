//! Transactions that do not fit their share of memory, and sorted data that is taken in at once.
#![allow(clippy::disallowed_methods, reason = "a test may start threads")]

mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use support::*;
use terrane::media::Media;
use terrane::media::sim::{CrashKind, Fault, FaultPlan, OpKind};
use terrane::{
    Db, Durability, ErrorKind, Isolation, LockWait, Options, ReadOptions, Subtable, Transaction,
    TransactionCursor, TransactionOptions,
};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

fn begin(db: &Db, isolation: Isolation) -> Transaction {
    db.begin(TransactionOptions::new().isolation(isolation).lock_wait(LockWait::No)).unwrap()
}

fn rows(t: &Subtable) -> Rows {
    t.range(ReadOptions::new()).unwrap().map(Result::unwrap).collect()
}

fn seen(txn: &mut Transaction, t: &Subtable) -> Rows {
    let mut c = txn.cursor(t, ReadOptions::new()).unwrap();
    c.seek_to_first().unwrap();
    let mut rows = Rows::new();
    while let Some((key, value)) = c.take_next().unwrap() {
        assert!(rows.insert(key, value).is_none(), "a key twice");
    }
    c.seek_to_last().unwrap();
    for (key, value) in rows.iter().rev() {
        assert_eq!((c.key(), &*c.value().unwrap()), (&key[..], &value[..]));
        c.prev().unwrap();
    }
    assert!(!c.valid());
    rows
}

/// One write of a transaction, and of the model.
fn write(rng: &mut Rng, txn: &mut Transaction, t: &Subtable, model: &mut Rows) {
    let key = format!("k{:04}", rng.below(800)).into_bytes();
    match rng.below(12) {
        0 => {
            let end = format!("k{:04}", rng.below(800)).into_bytes();
            let (start, end) = (key.clone().min(end.clone()), key.max(end));
            txn.delete_range(t, &start, &end).unwrap();
            model.retain(|k, _| !(start <= *k && *k < end));
        }
        1 | 2 => {
            txn.delete(t, &key).unwrap();
            model.remove(&key);
        }
        n => {
            let len = if n == 3 { 5000 } else { rng.below(80) as usize };
            let value = vec![rng.next() as u8; len];
            txn.put(t, &key, &value).unwrap();
            model.insert(key, value);
        }
    }
}

/// What a transaction has read of what it spilled does not stay in the cache when it is given up.
#[test]
fn what_a_transaction_that_is_rolled_back_has_read_of_its_own_leaves_the_cache() {
    let (_media, db) = fresh(1, &tiny()).unwrap();
    let t = db.subtable("t0").unwrap();
    let before = db.stats().cache_bytes;
    let mut txn = begin(&db, Isolation::Snapshot);
    let key = |n: u32| format!("k{n:06}").into_bytes();
    (0..8000).for_each(|n| txn.put(&t, &key(n), &[7; 60]).unwrap());
    for n in (0..8000).step_by(5) {
        assert!(txn.get(&t, &key(n)).unwrap().is_some());
    }
    let read = db.stats().cache_bytes;
    assert!(read > before + (64 << 10), "it was read by way of the cache");
    txn.rollback();
    db.wait_idle().unwrap();
    // But for what waits for others to have looked away.
    let left = db.stats().cache_bytes;
    assert!(left - before < (read - before) / 2, "{left} bytes of {read}, {before} before");
}

#[test]
fn a_large_transaction_reads_its_own_writes_and_commits_whole() {
    for seed in 0..12 {
        let (media, db) = fresh(seed, &tiny()).unwrap();
        let (t, other) = (db.subtable("t0").unwrap(), db.subtable("t1").unwrap());
        let mut rng = Rng(seed);
        let mut model = Rows::new();
        for i in 0..300u32 {
            let key = format!("k{:04}", i * 3).into_bytes();
            t.put(&key, b"before").unwrap();
            model.insert(key, b"before".to_vec());
        }
        let before = model.clone();
        let isolation =
            [Isolation::ReadCommitted, Isolation::Snapshot, Isolation::Serializable][seed as usize % 3];
        let mut txn = begin(&db, isolation);
        let mut saved = Vec::new();
        for n in 0..900 {
            write(&mut rng, &mut txn, &t, &mut model);
            match rng.below(60) {
                0 => saved.push((txn.savepoint(), model.clone(), txn.len())),
                1 if !saved.is_empty() => {
                    let at = rng.below(saved.len() as u64) as usize;
                    let (point, then, len): (_, Rows, u64) = saved[at].clone();
                    txn.rollback_to(point).unwrap();
                    assert_eq!(txn.len(), len);
                    saved.truncate(at + 1);
                    model = then;
                }
                2 if saved.len() > 3 => {
                    txn.release(saved[1].0).unwrap();
                    saved.truncate(1);
                }
                _ => {}
            }
            if n % 300 == 299 {
                assert_eq!(seen(&mut txn, &t), model, "seed {seed}");
                for k in (0..800).step_by(7) {
                    let key = format!("k{k:04}").into_bytes();
                    assert_eq!(txn.get(&t, &key).unwrap(), model.get(&key).cloned());
                }
            }
        }
        txn.put(&other, b"other", b"1").unwrap();
        assert_eq!(rows(&t), before);
        assert_eq!(other.get(b"other").unwrap(), None);
        if seed % 4 == 3 {
            txn.rollback();
            model = before;
        } else {
            txn.commit(Durability::Buffered).unwrap();
            assert_eq!(db.stats().attached, 1);
            assert_eq!(other.get(b"other").unwrap().unwrap(), b"1");
        }
        assert_eq!(rows(&t), model, "seed {seed}");
        assert_eq!(db.stats().locked_keys + db.stats().locked_ranges, 0);
        assert!(db.check(|_| true).unwrap().is_clean());
        t.compact().unwrap();
        assert_eq!(rows(&t), model, "seed {seed}: merged down");
        let next = media.image().crash(CrashKind::PowerLost, seed);
        media.shutdown();
        drop((t, other, db));
        let db = open(&next, &tiny()).unwrap();
        assert_eq!(rows(&db.subtable("t0").unwrap()), model, "seed {seed}: after a power failure");
        assert!(db.check(|_| true).unwrap().is_clean());
    }
}

#[test]
fn snapshots_from_before_do_not_see_it_and_later_ones_do() {
    let (_media, db) = fresh(1, &tiny()).unwrap();
    let t = db.subtable("t0").unwrap();
    t.put(b"k0001", b"before").unwrap();
    let before = db.snapshot();
    let mut txn = begin(&db, Isolation::Snapshot);
    for i in 0..400u32 {
        txn.put(&t, format!("k{i:04}").as_bytes(), b"after").unwrap();
    }
    txn.delete_range(&t, b"k0300", b"k0400").unwrap();
    let seq = txn.commit(Durability::Buffered).unwrap();
    assert!(seq > before.sequence());
    let after = db.snapshot();
    t.put(b"k0001", b"later").unwrap();
    for flushed in [false, true] {
        if flushed {
            t.flush().unwrap();
            t.compact().unwrap();
        }
        assert_eq!(t.get_at(b"k0001", &before).unwrap().unwrap(), b"before");
        assert_eq!(t.get_at(b"k0002", &before).unwrap(), None);
        assert_eq!(t.get_at(b"k0001", &after).unwrap().unwrap(), b"after");
        assert_eq!(t.get_at(b"k0300", &after).unwrap(), None);
        assert_eq!(t.get(b"k0001").unwrap().unwrap(), b"later");
        let count = |s| t.range(ReadOptions::new().snapshot(s)).unwrap().count();
        assert_eq!((count(&before), count(&after)), (1, 300));
    }
    // Somebody who began before it is told so.
    let mut late = begin(&db, Isolation::Snapshot);
    let mut big = begin(&db, Isolation::ReadCommitted);
    for i in 0..200u32 {
        big.put(&t, format!("k{i:04}").as_bytes(), b"again").unwrap();
    }
    big.commit(Durability::Buffered).unwrap();
    assert_eq!(late.put(&t, b"k0007", b"late").unwrap_err().kind(), ErrorKind::WriteConflict);
}

#[test]
fn space_of_what_comes_to_nothing_comes_back() {
    let (_media, db) = fresh(1, &tiny()).unwrap();
    let t = db.subtable("t0").unwrap();
    t.put(b"k", b"v").unwrap();
    db.wait_idle().unwrap();
    let used = db.stats().data_used;
    let mut txn = begin(&db, Isolation::Snapshot);
    for i in 0..2000u32 {
        txn.put(&t, &i.to_be_bytes(), &vec![i as u8; if i % 50 == 0 { 9000 } else { 50 }]).unwrap();
    }
    assert!(db.stats().data_used > used);
    txn.rollback();
    assert_eq!(db.stats().data_used, used);
    let mut ingest = db.ingest().unwrap();
    for i in 0..2000u32 {
        ingest.put(&t, &i.to_be_bytes(), &vec![i as u8; if i % 50 == 0 { 9000 } else { 50 }]).unwrap();
    }
    drop(ingest);
    assert_eq!(db.stats().data_used, used);
}

#[test]
fn sorted_data_is_taken_in_at_once() {
    let (media, db) = fresh(1, &tiny()).unwrap();
    let (t, other) = (db.subtable("t0").unwrap(), db.subtable("t1").unwrap());
    let mut model = Rows::new();
    for i in (0..3000u32).step_by(5) {
        t.put(&i.to_be_bytes(), b"old").unwrap();
    }
    let mut ingest = db.ingest().unwrap();
    for i in 0..3000u32 {
        let value = vec![i as u8; if i % 500 == 0 { 9000 } else { 40 }];
        ingest.put(&t, &i.to_be_bytes(), &value).unwrap();
        ingest.put(&other, &i.to_be_bytes(), b"").unwrap();
        model.insert(i.to_be_bytes().to_vec(), value);
    }
    let e = ingest.put(&t, &7u32.to_be_bytes(), b"").unwrap_err();
    assert!(e.kind() == ErrorKind::InvalidArgument && e.key() == Some(&7u32.to_be_bytes()[..]), "{e}");
    assert_eq!(ingest.len(), 6000);
    let mut holder = begin(&db, Isolation::ReadCommitted);
    holder.put(&t, b"elsewhere", b"").unwrap();
    assert_eq!(rows(&other).len(), 0);
    ingest.commit().unwrap();
    assert_eq!((rows(&t), rows(&other).len()), (model.clone(), 3000));
    drop(holder);
    let next = media.image().crash(CrashKind::PowerLost, 5);
    media.shutdown();
    drop((t, other, db));
    let db = open(&next, &tiny()).unwrap();
    assert_eq!(rows(&db.subtable("t0").unwrap()), model);
    assert!(db.check(|_| true).unwrap().is_clean());
    assert!(db.ingest().unwrap().commit().is_ok());
}

#[test]
fn what_is_too_much_for_an_entry_of_the_log_is_no_less_a_transaction() {
    let tuning = terrane::Tuning { transaction_bytes: 0, ..TUNING };
    let (_media, db) = fresh(1, &tiny().tuning(tuning)).unwrap();
    let t = db.subtable("t0").unwrap();
    for (round, bytes) in (1..).zip([5_000usize, 9_000, 15_000, 20_000, 60_000]) {
        for way in 0..3 {
            let mut txn = begin(&db, Isolation::Snapshot);
            for i in 0..bytes / 100 {
                txn.put(&t, format!("k{i:04}").as_bytes(), &[round; 90]).unwrap();
            }
            txn.put(&t, b"large", &vec![round; bytes]).unwrap();
            match way {
                0 => drop(txn.commit(Durability::Buffered).unwrap()),
                1 => drop(txn.submit(Durability::Buffered).unwrap().wait().unwrap()),
                _ => {
                    txn.prepare(b"x").unwrap();
                    db.commit_prepared(b"x", Durability::Buffered).unwrap();
                }
            }
            assert_eq!(t.get(b"large").unwrap().unwrap(), vec![round; bytes]);
            assert_eq!(t.get(b"k0042").unwrap().unwrap(), [round; 90]);
        }
    }
    assert!(db.stats().attached > 0);
    assert!(db.check(|_| true).unwrap().is_clean());
}

#[test]
fn runs_are_attached_though_compactions_wait_to_be_asked_for() {
    let tuning = terrane::Tuning { compact: false, ..TUNING };
    let (_media, db) = fresh(1, &tiny().tuning(tuning)).unwrap();
    let t = db.subtable("t0").unwrap();
    for round in 0..12u8 {
        let mut ingest = db.ingest().unwrap();
        (0..50u8).for_each(|i| ingest.put(&t, &[i], &[round]).unwrap());
        ingest.commit().unwrap();
    }
    assert_eq!(t.get(&[7]).unwrap().unwrap(), [11]);
}

#[test]
fn an_optimistic_one_hears_of_what_others_did_meanwhile() {
    let (_media, db) = fresh(1, &tiny()).unwrap();
    let t = db.subtable("t0").unwrap();
    for meets in [true, false] {
        let mut txn = db.begin(TransactionOptions::new().optimistic(true)).unwrap();
        for i in 0..300u32 {
            txn.put(&t, format!("k{i:04}").as_bytes(), b"1").unwrap();
        }
        t.put(if meets { b"k0100" } else { b"z0100" }, b"2").unwrap();
        let done = txn.commit(Durability::Buffered);
        assert_eq!(done.map_err(|e| e.kind()).err(), meets.then_some(ErrorKind::WriteConflict));
    }
}

#[test]
fn what_a_savepoint_took_back_counts_no_longer() {
    let (_media, db) = fresh(0, &tiny()).unwrap();
    let t = db.subtable("t0").unwrap();
    let mut txn = begin(&db, Isolation::ReadCommitted);
    let put = |txn: &mut Transaction, count: u64| {
        for n in 0..count {
            txn.put(&t, format!("k{n:04}").as_bytes(), &[7; 100]).unwrap();
        }
    };
    let empty = txn.savepoint();
    put(&mut txn, 2000);
    let some = txn.savepoint();
    put(&mut txn, 1000);
    assert_eq!(txn.len(), 3000);
    txn.rollback_to(some).unwrap();
    assert_eq!(txn.len(), 2000);
    put(&mut txn, 7);
    assert_eq!(txn.len(), 2007);
    txn.rollback_to(empty).unwrap();
    assert!(txn.is_empty());
}

#[test]
fn a_cursor_on_what_was_spilled_shows_what_lies_beneath_once_that_is_undone() {
    let (_media, db) = fresh(0, &tiny()).unwrap();
    let t = db.subtable("t0").unwrap();
    t.put(b"k0001", b"before").unwrap();
    for isolation in [Isolation::ReadCommitted, Isolation::Snapshot, Isolation::Serializable] {
        let mut txn = begin(&db, isolation);
        let keys = || (1..200u32).map(|i| format!("k{i:04}").into_bytes());
        txn.put(&t, b"k0003", b"kept").unwrap();
        let point = txn.savepoint();
        keys().for_each(|key| txn.put(&t, &key, b"mine").unwrap());
        for (key, beneath) in [(b"k0001", &b"before"[..]), (b"k0002", b""), (b"k0003", b"kept")] {
            let mut c = txn.cursor(&t, ReadOptions::new()).unwrap();
            c.seek(key).unwrap();
            assert_eq!((c.key(), &*c.value().unwrap()), (&key[..], &b"mine"[..]));
            c.transaction().rollback_to(point).unwrap();
            assert_eq!((c.key(), &*c.value().unwrap()), (&key[..], beneath));
            c.next().unwrap();
            assert_eq!(c.valid(), key < b"k0003");
            drop(c);
            keys().for_each(|key| txn.put(&t, &key, b"mine").unwrap());
        }
        txn.rollback();
    }
}

#[test]
fn a_cursor_on_what_could_not_be_spilled_says_so() {
    let (media, db) = fresh(0, &tiny()).unwrap();
    let t = db.subtable("t0").unwrap();
    t.put(b"k", b"before").unwrap();
    let mut txn = begin(&db, Isolation::Snapshot);
    txn.put(&t, b"k", b"mine").unwrap();
    let mut c = txn.cursor(&t, ReadOptions::new()).unwrap();
    c.seek(b"k").unwrap();
    assert_eq!(&*c.value().unwrap(), b"mine");
    media.set_fault(Some(FaultPlan::nth(1, Fault::Io).only(&[OpKind::Write]).files("data").sticky()));
    let put = |c: &mut TransactionCursor<'_>, i: u32| c.transaction().put(&t, &i.to_be_bytes(), &[7; 100]);
    assert!((0..1000).any(|i| put(&mut c, i).is_err()));
    assert!(c.value().is_err());
    media.set_fault(None);
    drop(c);
    drop(txn);
    assert_eq!(t.get(b"k").unwrap().as_deref(), Some(&b"before"[..]));
}

#[test]
fn readers_and_writers_beside_large_commits_see_all_of_each_or_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new()
        .memtable_bytes(1 << 20)
        .cache_bytes(1 << 20)
        .tuning(terrane::Tuning { transaction_bytes: 20_000, ..terrane::Tuning::default() });
    let db = Db::open(dir.path(), on_medium(options, stand_in(4 << 20))).unwrap();
    let tables = ["a", "b"].map(|n| db.create_subtable(n, tiny_table()).unwrap());
    let over = AtomicBool::new(false);
    let [a, b] = &tables;
    std::thread::scope(|s| {
        let looker = |from: u32| {
            let (db, over) = (&db, &over);
            move || {
                let mut last = 0u32;
                let mut k = from;
                while !over.load(Ordering::Relaxed) {
                    k = (k + 7) % 1000;
                    let snapshot = db.snapshot();
                    let at = |t: &Subtable, k: u32| {
                        let value = t.get_at(&k.to_be_bytes(), &snapshot).unwrap();
                        value.map_or(0, |v| u32::from_be_bytes(v[..4].try_into().unwrap()))
                    };
                    let round = at(a, k);
                    assert_eq!((at(a, 999 - k), at(b, k), at(b, 0)), (round, round, round));
                    assert!(round >= last, "{round} after {last}");
                    last = round;
                    // Without a snapshot each read is at least as new.
                    let now = a.get(&k.to_be_bytes()).unwrap();
                    assert!(now.map_or(0, |v| u32::from_be_bytes(v[..4].try_into().unwrap())) >= last);
                }
            }
        };
        s.spawn(looker(0));
        s.spawn(looker(500));
        s.spawn(|| {
            let mut n = 0u64;
            while !over.load(Ordering::Relaxed) {
                n += 1;
                a.put(&[b"x", &n.to_be_bytes()[..]].concat(), &[1; 100]).unwrap();
            }
        });
        for round in 1..=25u32 {
            let mut txn = db.begin(TransactionOptions::new().isolation(Isolation::ReadCommitted)).unwrap();
            for k in 0..1000u32 {
                for t in &tables {
                    let value = [&round.to_be_bytes()[..], &[7; 60]].concat();
                    txn.put(t, &k.to_be_bytes(), &value).unwrap();
                }
            }
            txn.commit(Durability::Buffered).unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(db.stats().attached, 25);
    assert!(db.check(|_| true).unwrap().is_clean());
}
