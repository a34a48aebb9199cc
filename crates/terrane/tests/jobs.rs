//! Several compaction jobs at once, and compactions asked for by hand among them: nothing comes back, nothing is lost,
//! nobody meets an error.
//!
//! `TERRANE_SEEDS` sets how many histories run, `TERRANE_SEED` runs one.

mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use support::{Rng, TUNING, open, tiny, tiny_table};
use terrane::media::real::RealOptions;
use terrane::media::sim::SimMedia;
use terrane::{Db, Durability, Options, ReadOptions, Subtable, Tuning, WriteBatch};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

const KEYS: u64 = 12_000;

/// So small that data soon reaches L2.
fn small(jobs: usize) -> Options {
    tiny().memtable_bytes(128 << 10).background_threads(jobs).tuning(Tuning { log_budget: 0, ..TUNING })
}

fn key(n: u64) -> Vec<u8> {
    format!("k{n:06}").into_bytes()
}

/// Writes `keys` in batches: values of `fill`, or deletions.
fn write(db: &Db, t: &Subtable, rows: &mut Rows, keys: impl Iterator<Item = u64>, fill: Option<u8>) {
    let keys: Vec<u64> = keys.collect();
    for some in keys.chunks(50) {
        let mut batch = WriteBatch::new();
        for n in some {
            match fill {
                Some(f) => {
                    let value = vec![f; 20 + (*n % 60) as usize];
                    batch.put(t, &key(*n), &value).unwrap();
                    rows.insert(key(*n), value);
                }
                None => {
                    batch.delete(t, &key(*n)).unwrap();
                    rows.remove(&key(*n));
                }
            }
        }
        db.write(batch, Durability::Buffered).unwrap();
    }
}

fn contents(t: &Subtable) -> Rows {
    t.range(ReadOptions::new()).unwrap().collect::<terrane::Result<_>>().unwrap()
}

fn same(got: &Rows, want: &Rows, when: &str) {
    let back = got.iter().find(|(k, v)| want.get(*k) != Some(v)).map(|(k, _)| String::from_utf8_lossy(k));
    assert!(back.is_none(), "{when}: {back:?} came back");
    let lost = want.keys().find(|k| !got.contains_key(*k)).map(|k| String::from_utf8_lossy(k));
    assert!(lost.is_none(), "{when}: {lost:?} is lost");
}

fn clean(db: &Db) {
    let report = db.check(|_| true).unwrap();
    assert!(report.is_clean(), "{:?}", report.damage);
}

/// A job that waits for its tasks runs other jobs meanwhile: neighbours end before those that began first.
fn stretches(seed: u64) {
    let media = SimMedia::new(seed);
    let db = open(&media, &small(2 + (seed % 3) as usize)).unwrap();
    let t = db.create_subtable("t", tiny_table()).unwrap();
    let mut rng = Rng(seed);
    let mut rows = Rows::new();
    write(&db, &t, &mut rows, 0..KEYS, Some(0));
    t.compact().unwrap();
    for round in 0..24u8 {
        let first = rng.below(KEYS);
        let all = first..(first + 500 + rng.below(4000)).min(KEYS);
        match rng.below(8) {
            0..=2 => write(&db, &t, &mut rows, all, None),
            3..=4 => write(&db, &t, &mut rows, all, Some(round)),
            5 => write(&db, &t, &mut rows, all.step_by(7), Some(round)),
            6 => {
                t.delete_range(&key(all.start), &key(all.end)).unwrap();
                rows.retain(|k, _| !(key(all.start) <= *k && *k < key(all.end)));
            }
            _ => t.compact().unwrap(),
        }
        if rng.below(3) == 0 {
            t.flush().unwrap();
        }
        for _ in 0..rng.below(8) {
            media.step();
        }
        same(&contents(&t), &rows, &format!("round {round}"));
    }
    media.run_all();
    t.flush().unwrap();
    same(&contents(&t), &rows, "at the end");
    clean(&db);
    assert!(db.stats().compactions > 10);
}

#[test]
fn deleted_stretches_stay_deleted_whatever_jobs_run_side_by_side() {
    let env = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    match env("TERRANE_SEED") {
        Some(one) => stretches(one),
        None => (0..env("TERRANE_SEEDS").unwrap_or(12)).for_each(|seed| {
            println!("seed {seed}");
            stretches(seed);
        }),
    }
}

#[test]
fn compacting_by_hand_goes_along_with_jobs_and_writers() {
    let threads = RealOptions {
        log_threads: 1,
        io_threads: 2,
        read_threads: 1,
        flush_threads: 4,
        compaction_threads: 3,
    };
    let media = SimMedia::with_threads(1, &threads);
    let db = open(&media, &small(3)).unwrap();
    let t = db.create_subtable("t", tiny_table()).unwrap();
    // Writers at work; counted out even if they fail.
    struct Out<'a>(&'a AtomicU64);
    impl Drop for Out<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let left = AtomicU64::new(3);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while left.load(Ordering::Relaxed) > 0 {
                    t.compact().unwrap();
                }
            });
        }
        for w in 0..3u64 {
            let (db, t, left) = (&db, &t, &left);
            s.spawn(move || {
                let _out = Out(left);
                let mut rng = Rng(w);
                let mut rows = Rows::new();
                // Each writer has its own keys, among those of the others.
                for round in 0..60u8 {
                    let first = rng.below(KEYS / 3);
                    let all = first..(first + 200 + rng.below(1500)).min(KEYS / 3);
                    let fill = (rng.below(5) < 3).then_some(round);
                    write(db, t, &mut rows, all.map(|n| n * 3 + w), fill);
                    let mut got = contents(t);
                    got.retain(|k, _| String::from_utf8_lossy(&k[1..]).parse::<u64>().unwrap() % 3 == w);
                    same(&got, &rows, &format!("writer {w}, round {round}"));
                }
            });
        }
    });
    db.wait_idle().unwrap();
    clean(&db);
    db.close().unwrap();
}

#[test]
fn compacting_by_hand_ends_however_much_is_written_meanwhile() {
    const MOST: u64 = 2000;
    let threads = RealOptions {
        log_threads: 1,
        io_threads: 2,
        read_threads: 1,
        flush_threads: 3,
        compaction_threads: 2,
    };
    let media = SimMedia::with_threads(1, &threads);
    let db = open(&media, &small(2)).unwrap();
    let t = db.create_subtable("t", tiny_table()).unwrap();
    write(&db, &t, &mut Rows::new(), 0..KEYS, Some(0));
    let (ended, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        s.spawn(|| {
            while !ended.load(Ordering::Relaxed) && rounds.load(Ordering::Relaxed) < MOST {
                let round = rounds.fetch_add(1, Ordering::Relaxed);
                // Among what is there, and behind it.
                write(&db, &t, &mut Rows::new(), (round % 97..KEYS).step_by(97), Some(1));
                write(&db, &t, &mut Rows::new(), KEYS + round * 100..KEYS + round * 100 + 100, Some(2));
            }
        });
        while rounds.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        t.compact().unwrap();
        ended.store(true, Ordering::Relaxed);
    });
    let rounds = rounds.load(Ordering::Relaxed);
    println!("{rounds} rounds");
    assert!(rounds < MOST, "it did not end before the writing did");
    db.close().unwrap();
}
