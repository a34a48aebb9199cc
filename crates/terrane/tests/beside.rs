//! Closing, dropping, flushing and a full device, beside writers that are on their way.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use support::{DIR, open, tiny, tiny_table};
use terrane::media::Media;
use terrane::media::real::RealOptions;
use terrane::media::sim::{CrashKind, OpInfo, OpKind, SimMedia};
use terrane::{Db, Durability, ErrorKind, ReadOptions, WriteBatch};

fn fresh(seed: u64) -> (Arc<SimMedia>, Db) {
    let media = SimMedia::new(seed);
    let db = open(&media, &tiny()).unwrap();
    (media, db)
}

/// A machine whose background work runs on threads.
fn threaded(seed: u64) -> (Arc<SimMedia>, Db) {
    let media = SimMedia::with_threads(seed, &RealOptions::default());
    let db = open(&media, &tiny()).unwrap();
    (media, db)
}

#[test]
fn a_commit_that_close_overtakes_is_kept_or_refused() {
    let (media, db) = fresh(1);
    let t = db.create_subtable("t", tiny_table()).unwrap();
    t.put(b"before", b"close").unwrap();
    // The put has passed every look at the state of the database when it writes its large value.
    let (once, closing) = (AtomicBool::new(false), db.clone());
    media.on_op(Some(Arc::new(move |_: &SimMedia, op: &OpInfo<'_>| {
        let data = op.kind == OpKind::Write && op.path.to_string_lossy().contains("data");
        if data && !once.swap(true, Ordering::SeqCst) {
            closing.clone().close().unwrap();
        }
    })));
    let done = t.put(b"large", &[7; 10_000]);
    media.on_op(None);
    let image = media.image();
    drop((t, db));
    let media = image.crash(CrashKind::Process, 1);
    let db = open(&media, &tiny()).unwrap();
    let t = db.subtable("t").unwrap();
    assert_eq!(t.get(b"before").unwrap().as_deref(), Some(&b"close"[..]));
    match done {
        Ok(()) => assert_eq!(t.get(b"large").unwrap().as_deref(), Some(&[7; 10_000][..])),
        Err(e) => assert_eq!(e.kind(), ErrorKind::Closed, "{e}"),
    }
}

#[test]
fn a_dropped_subtable_gives_its_memtables_back_and_comes_to_rest() {
    let (media, db) = fresh(2);
    let t = db.create_subtable("t", tiny_table()).unwrap();
    let idle = db.stats().memtable_bytes;
    while db.stats().subtables[0].memtables < 2 {
        for i in 0..20u32 {
            t.put(&i.to_be_bytes(), &[1; 900]).unwrap();
        }
    }
    assert!(media.pending() > 0, "a flush is queued");
    db.drop_subtable("t").unwrap();
    for _ in 0..1000 {
        if !media.step() {
            break;
        }
    }
    assert_eq!(media.pending(), 0, "background work goes on for a subtable that is gone");
    db.wait_idle().unwrap();
    // The handle is alive still.
    assert!(t.get(b"x").is_err());
    assert!(db.stats().memtable_bytes <= idle, "{} bytes are held", db.stats().memtable_bytes);
}

#[test]
fn a_cursor_on_a_dropped_subtable_goes_on_to_its_end_both_ways() {
    for flushed in [true, false] {
        let (_media, db) = fresh(3);
        let t = db.create_subtable("t", tiny_table()).unwrap();
        for i in 0..500u32 {
            t.put(&i.to_be_bytes(), b"v").unwrap();
        }
        if flushed {
            t.flush().unwrap();
        }
        let (mut up, mut down) =
            (t.cursor(ReadOptions::new()).unwrap(), t.cursor(ReadOptions::new()).unwrap());
        up.seek(&100u32.to_be_bytes()).unwrap();
        down.seek(&100u32.to_be_bytes()).unwrap();
        let mut range = t.range(ReadOptions::new()).unwrap();
        range.next().unwrap().unwrap();
        db.drop_subtable("t").unwrap();
        db.wait_idle().unwrap();
        for i in 100..500u32 {
            assert_eq!(up.key(), i.to_be_bytes());
            up.next().unwrap();
        }
        assert!(!up.valid());
        for i in (0..=100u32).rev() {
            assert_eq!(down.key(), i.to_be_bytes());
            down.prev().unwrap();
        }
        assert!(!down.valid());
        assert_eq!(range.count(), 499);
        drop((up, down));
        db.wait_idle().unwrap();
        assert_eq!(db.stats().data_used, 0, "the space of what is gone is held");
    }
}

#[test]
fn closing_ends_while_writers_write_as_fast_as_they_can() {
    let (_media, db) = threaded(4);
    let t = db.create_subtable("t", tiny_table()).unwrap();
    let written = AtomicU64::new(0);
    std::thread::scope(|s| {
        let writers: Vec<_> = (0..4u64)
            .map(|w| {
                let (t, written) = (&t, &written);
                s.spawn(move || {
                    let mut n = 0u64;
                    loop {
                        n += 1;
                        match t.put(&((w << 32) | (n % 1000)).to_be_bytes(), &[1; 400]) {
                            Ok(()) => written.fetch_add(1, Ordering::Relaxed),
                            Err(e) => break e,
                        };
                    }
                })
            })
            .collect();
        while written.load(Ordering::Relaxed) < 5000 {
            std::thread::yield_now();
        }
        // Neither waits for writers to pause.
        t.flush().unwrap();
        db.clone().close().unwrap();
        for w in writers {
            let e = w.join().unwrap();
            assert_eq!(e.kind(), ErrorKind::Closed, "{e}");
        }
    });
    let e = t.put(b"k", b"v").unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Closed);
}

#[test]
fn who_closes_second_waits_for_the_first() {
    let (_media, db) = threaded(5);
    let t = db.create_subtable("t", tiny_table()).unwrap();
    for i in 0..2000u32 {
        t.put(&i.to_be_bytes(), &[1; 200]).unwrap();
    }
    let other = db.clone();
    std::thread::scope(|s| {
        let first = s.spawn(move || other.close());
        db.close().unwrap();
        first.join().unwrap().unwrap();
    });
}

#[test]
fn batches_larger_than_the_reserve_never_poison_a_full_device() {
    let (media, db) = threaded(6);
    let t = db.create_subtable("t", tiny_table()).unwrap();
    t.put(b"k", b"v").unwrap();
    let full = std::sync::Barrier::new(24);
    for round in 0..6u64 {
        media.set_capacity(Some(media.used_bytes() + (round << 14)));
        std::thread::scope(|s| {
            for w in 0..24u64 {
                let (t, db, full) = (&t, &db, &full);
                s.spawn(move || {
                    full.wait();
                    for n in 0..8u64 {
                        let mut batch = WriteBatch::new();
                        for i in 0..6u64 {
                            batch.put(t, &(w << 32 | n << 8 | i).to_be_bytes(), &[3; 2500]).unwrap();
                        }
                        if let Err(e) = db.write(batch, Durability::Buffered) {
                            assert_eq!(e.kind(), ErrorKind::OutOfSpace, "{e}");
                        }
                    }
                });
            }
        });
    }
    media.set_capacity(None);
    t.put(b"k", b"w").unwrap();
    db.sync().unwrap();
    assert_eq!(t.get(b"k").unwrap().as_deref(), Some(&b"w"[..]));
}

#[test]
fn groups_of_large_batches_fit_a_small_tail() {
    let (_media, db) = threaded(7);
    let t = db.create_subtable("t", tiny_table()).unwrap();
    std::thread::scope(|s| {
        for w in 0..80u32 {
            let (t, db) = (&t, &db);
            s.spawn(move || {
                for n in 0..3u32 {
                    let mut batch = WriteBatch::new();
                    for i in 0..6u32 {
                        batch.put(t, &[w, n, i].map(u32::to_be_bytes).concat(), &[3; 2500]).unwrap();
                    }
                    db.write(batch, Durability::Buffered).unwrap();
                }
            });
        }
    });
    assert_eq!(t.range(ReadOptions::new()).unwrap().count(), 80 * 3 * 6);
}

#[test]
fn the_log_stays_within_bounds_when_subtables_come_and_go() {
    let (media, db) = fresh(8);
    for i in 0..200u32 {
        let name = format!("temporary {i}");
        let t = db.create_subtable(&name, tiny_table()).unwrap();
        for k in 0..12u32 {
            t.put(&k.to_be_bytes(), &[9; 1000]).unwrap();
        }
        drop(t);
        db.drop_subtable(&name).unwrap();
        media.run_all();
    }
    let bytes = db.stats().log_bytes;
    assert!(bytes < 2 * support::TUNING.log_budget, "{bytes} bytes of log for nothing");
    db.close().unwrap();
}

#[test]
fn the_log_is_never_needed_from_beyond_what_is_durable() {
    // A commit to a subtable that is being dropped, unsynced, then a flush of another one, then a power failure.
    let (media, db) = fresh(9);
    let a = db.create_subtable("a", tiny_table()).unwrap();
    let b = db.create_subtable("b", tiny_table()).unwrap();
    b.put(b"k", b"v").unwrap();
    let (once, dropping) = (AtomicBool::new(false), db.clone());
    media.on_op(Some(Arc::new(move |_: &SimMedia, op: &OpInfo<'_>| {
        let data = op.kind == OpKind::Write && op.path.to_string_lossy().contains("data");
        if data && !once.swap(true, Ordering::SeqCst) {
            dropping.drop_subtable("a").unwrap();
        }
    })));
    let _either = a.put(b"large", &[7; 10_000]);
    media.on_op(None);
    b.flush().unwrap();
    drop((a, b));
    let media = media.image().crash(CrashKind::PowerLost, 1);
    let db = open(&media, &tiny()).unwrap();
    assert_eq!(db.subtable("b").unwrap().get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    assert!(media.exists(std::path::Path::new(DIR)).unwrap());
}
