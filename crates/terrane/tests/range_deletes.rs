//! Range deletions that slide, nest and overlap within one memtable: what they cost, and that reads stay right.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use support::{on_medium, open, stand_in};
use terrane::media::sim::SimMedia;
use terrane::{
    Db, Durability, LookupStep, Medium, Options, PmemOptions, ReadOptions, Snapshot, Subtable,
    SubtableOptions, WriteBatch,
};

/// Keys that a queue holds at any time.
const LEFT: u64 = 10;
const ROUNDS: u64 = 5000;

fn options() -> Options {
    let options = Options::new().memtable_bytes(8 << 20).cache_bytes(1 << 20).background_threads(1);
    on_medium(options, PmemOptions::new(8 << 20))
}

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

/// One round of a queue: a new entry at the back, and all before a watermark go.
fn round(t: &Subtable, i: u64) {
    t.put(&key(i), b"job").unwrap();
    t.delete_range(b"", &key((i + 1).saturating_sub(LEFT))).unwrap();
}

/// What is there once round `last` is done, by every way of reading.
fn holds(t: &Subtable, last: u64, snapshot: Option<&Snapshot>) {
    let want: Vec<u64> = ((last + 1).saturating_sub(LEFT)..=last).collect();
    let options = || snapshot.map_or(ReadOptions::new(), |s| ReadOptions::new().snapshot(s));
    let number = |k: &[u8]| u64::from_be_bytes(k.try_into().unwrap());
    let keys = |r: terrane::Result<Vec<(Vec<u8>, Vec<u8>)>>| -> Vec<u64> {
        r.unwrap().iter().map(|(k, _)| number(k)).collect()
    };
    assert_eq!(keys(t.range(options()).unwrap().collect()), want);
    let mut back = keys(t.range(options()).unwrap().rev().collect());
    back.reverse();
    assert_eq!(back, want);
    for i in [0, last / 2, last.saturating_sub(LEFT), last.saturating_sub(LEFT - 1), last, last + 1] {
        let there = want.contains(&i);
        match snapshot {
            Some(s) => assert_eq!(t.get_at(&key(i), s).unwrap().is_some(), there, "{i}"),
            None => {
                assert_eq!(t.get(&key(i)).unwrap().is_some(), there, "{i}");
                let found = t.multi_get(&[key(i), key(i + 1)]).unwrap();
                assert_eq!(found[0].is_some(), there, "{i}");
                assert_eq!(found[1].is_some(), want.contains(&(i + 1)), "{i}");
            }
        }
    }
}

fn queue(options: &Options) -> (Arc<SimMedia>, Db, Subtable) {
    let media = SimMedia::new(1);
    let db = open(&media, options).unwrap();
    let t = db.create_subtable("queue", SubtableOptions::new()).unwrap();
    (media, db, t)
}

#[test]
fn a_trimmed_queue_costs_what_it_holds() {
    let (media, db, t) = queue(&options());
    let mut held = None;
    for i in 0..ROUNDS {
        round(&t, i);
        if i == ROUNDS / 2 {
            held = Some(db.snapshot());
        }
        // No scans: they have memtables of many deletions written out.
        assert_eq!(t.get(&key(i)).unwrap().as_deref(), Some(&b"job"[..]));
        assert_eq!(t.get(&key(i / 2)).unwrap().is_some(), i - i / 2 < LEFT);
    }
    let stats = db.stats();
    assert_eq!(stats.subtables[0].memtables, 1, "all of it is in one memtable");
    // 5000 records of 8 + 3 bytes in the index; the deletions are a handful.
    assert!(stats.memtable_bytes < 1 << 20, "{} bytes of memtable", stats.memtable_bytes);
    holds(&t, ROUNDS - 1, None);
    holds(&t, ROUNDS / 2, held.as_ref());

    t.flush().unwrap();
    let stats = db.stats();
    assert!(stats.data_used <= 128 << 10, "{} bytes of data files for 20 records", stats.data_used);
    holds(&t, ROUNDS - 1, None);
    holds(&t, ROUNDS / 2, held.as_ref());
    drop(held);
    t.compact().unwrap();
    media.run_all();
    holds(&t, ROUNDS - 1, None);
    assert!(db.check(|_| true).unwrap().is_clean());
}

#[test]
fn a_trimmed_queue_is_replayed_into_what_it_holds() {
    // Persistent memory is not replayed.
    let options = || options().medium(Medium::Log);
    let (media, db, t) = queue(&options());
    for i in 0..ROUNDS {
        round(&t, i);
    }
    drop(t);
    db.close().unwrap();
    let db = open(&media, &options()).unwrap();
    let t = db.subtable("queue").unwrap();
    let stats = db.stats();
    assert!(stats.log_bytes > 0 && stats.flushes == 0, "it comes from the log");
    assert!(stats.memtable_bytes < 1 << 20, "{} bytes of memtable", stats.memtable_bytes);
    holds(&t, ROUNDS - 1, None);
    // And goes on from there.
    for i in ROUNDS..ROUNDS + 100 {
        round(&t, i);
        holds(&t, i, None);
    }
    t.flush().unwrap();
    holds(&t, ROUNDS + 99, None);
    assert!(db.stats().data_used <= 128 << 10);
}

#[test]
fn deletions_in_one_batch_are_judged_against_its_puts() {
    let (_media, db, t) = queue(&options());
    let mut batch = WriteBatch::new();
    batch.put(&t, b"a", b"1").unwrap();
    batch.put(&t, b"m", b"1").unwrap();
    batch.delete_range(&t, b"a", b"z").unwrap();
    batch.put(&t, b"b", b"2").unwrap();
    batch.put(&t, b"n", b"2").unwrap();
    batch.delete_range(&t, b"m", b"p").unwrap();
    batch.put(&t, b"o", b"3").unwrap();
    db.write(batch, Durability::Buffered).unwrap();
    for flushed in [false, true] {
        if flushed {
            t.flush().unwrap();
        }
        let all: Vec<_> = t.range(ReadOptions::new()).unwrap().map(|r| r.unwrap().0).collect();
        assert_eq!(all, [b"b", b"o"]);
        assert_eq!(t.multi_get(&[b"a", b"b", b"m", b"n", b"o"]).unwrap().iter().flatten().count(), 2);
    }
}

#[test]
fn range_deletions_count_as_memory() {
    // Nothing but range deletions, far too few to freeze a memtable by their number.
    let (media, db, t) = queue(&options());
    for i in 0..6000u64 {
        let mut start = vec![0; 2000];
        start[..8].copy_from_slice(&key(i));
        let mut end = start.clone();
        end[8] = 1;
        t.delete_range(&start, &end).unwrap();
        let stats = db.stats();
        assert!(stats.memtable_bytes <= stats.memtable_budget, "{} bytes", stats.memtable_bytes);
        media.run_all();
    }
    assert!(db.stats().flushes > 2, "{} flushes", db.stats().flushes);
}

#[test]
fn a_read_never_shows_what_was_deleted_before_it_began() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), on_medium(Options::new(), stand_in(8 << 20))).unwrap();
    let t = db.create_subtable("t", SubtableOptions::new()).unwrap();
    t.put(b"k", b"deleted before any read begins").unwrap();
    t.delete_range(b"a", b"z").unwrap();
    let done = AtomicBool::new(false);
    let by_steps = || {
        let mut lookup = t.lookup(b"k").unwrap();
        loop {
            match lookup.step().unwrap() {
                LookupStep::Done(value) => return value,
                LookupStep::Need(block) => lookup.supply(block.fetch().unwrap()),
            }
        }
    };
    let read = |way: usize| match way {
        0 => t.get(b"k").unwrap(),
        1 => t.multi_get(&[b"j", b"k"]).unwrap().remove(1),
        2 => by_steps(),
        _ => t.range(ReadOptions::new()).unwrap().next().map(|r| r.unwrap().1),
    };
    std::thread::scope(|s| {
        let (read, done) = (&read, &done);
        let readers: Vec<_> = (0..4)
            .map(|way| {
                s.spawn(move || {
                    while !done.load(Ordering::Relaxed) {
                        assert_eq!(read(way), None, "by way {way}");
                    }
                })
            })
            .collect();
        for _ in 0..40_000 {
            t.delete_range(b"a", b"z").unwrap();
            if readers.iter().any(|r| r.is_finished()) {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
    });
}
