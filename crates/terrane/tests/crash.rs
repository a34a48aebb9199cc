//! A crash at every I/O call of a history, of every kind; a crash while that is recovered from; and life afterwards.
//!
//! Each history runs on a simulated machine from its first call to its last. Before every call that changes something a
//! picture of the machine is kept. Each picture is made into the machine that comes up after each kind of crash; the
//! database is opened there, compared with the model, checked, written to, and opened once more.
//!
//! The quick form takes the kinds in turn. The long form: `TERRANE_CRASH_EXHAUSTIVE=1` takes every kind at every call,
//! `TERRANE_CRASH_OPS` sets how long histories are, `TERRANE_CRASH_SEEDS` how many, `TERRANE_CRASH_FIRST` the first seed,
//! `TERRANE_CRASH_ROUNDS` how many crashes of each kind are made of a picture, `TERRANE_CRASH_NESTED` after how many
//! crashes each one is crashed again while it recovers. `TERRANE_CRASH_AT` looks at one call alone. A failure names its
//! seed and call: `TERRANE_CRASH_FIRST=seed TERRANE_CRASH_SEEDS=1 TERRANE_CRASH_AT=call TERRANE_CRASH_EXHAUSTIVE=1`
//! and the same length repeat it.

#![allow(clippy::disallowed_methods, reason = "a test may start threads and look at the clock")]

#[path = "crash/history.rs"]
mod history;
#[path = "crash/sample.rs"]
mod sample;
mod support;
#[path = "crash/survivor.rs"]
mod survivor;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use history::{Course, History, Point};
use support::{Rng, fresh, open, tiny, tiny_table};
use survivor::Survivor;
use terrane::media::sim::CrashKind;

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Which crashes are tried.
#[derive(Clone, Copy)]
struct Plan {
    ops: u64,
    /// Every kind at every call, or the kinds in turn.
    exhaustive: bool,
    rounds: u64,
    /// After how many crashes one is crashed again during recovery.
    nested: u64,
    /// This call alone.
    only: Option<u64>,
}

/// What was tried.
#[derive(Default)]
struct Tally {
    images: AtomicU64,
    nested: AtomicU64,
}

fn crash_at(history: &History, point: &Point, plan: Plan, tally: &Tally) -> Result<(), String> {
    let turn = point.index as usize % CrashKind::ALL.len();
    for (n, kind) in CrashKind::ALL.into_iter().enumerate() {
        if !plan.exhaustive && n != turn {
            continue;
        }
        for round in 0..plan.rounds {
            let seed = Rng(history.seed ^ point.index << 20 ^ round << 50).next();
            let survivor = Survivor { history, point, kind, seed, options: |_| tiny() };
            let told = |e| {
                format!(
                    "seed {}, call {} ({}), {kind:?}, crash seed {seed} (round {round}): {e}",
                    history.seed, point.index, point.call
                )
            };
            let number = tally.images.fetch_add(1, Ordering::Relaxed);
            survivor.lives().map_err(told)?;
            if number.is_multiple_of(plan.nested) || plan.only.is_some() {
                tally.nested.fetch_add(survivor.crashes_again().map_err(told)?, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

/// Crashes at all points of a history, on all processors.
fn crash_everywhere(seed: u64, plan: Plan, tally: &Tally) -> Result<(), String> {
    let (ops, options) = (plan.ops, tiny());
    let history = History::record(&Course { seed, ops, keys: 120, options, synced: 1, points: usize::MAX })?;
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(point) = history.points.get(next.fetch_add(1, Ordering::Relaxed)) {
            if plan.only.is_none_or(|only| only == point.index) {
                crash_at(&history, point, plan, tally).inspect_err(|_| {
                    next.store(history.points.len(), Ordering::Relaxed);
                })?;
            }
        }
        Ok(())
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|s| {
        let workers: Vec<_> = (0..threads).map(|_| s.spawn(work)).collect();
        workers.into_iter().try_for_each(|w| w.join().map_err(|_| format!("seed {seed}: a panic"))?)
    })
}

#[test]
fn no_crash_anywhere_loses_or_tears_a_commit() {
    let plan = Plan {
        ops: env("TERRANE_CRASH_OPS", 100),
        exhaustive: env("TERRANE_CRASH_EXHAUSTIVE", 0) != 0,
        rounds: env("TERRANE_CRASH_ROUNDS", 1).max(1),
        nested: env("TERRANE_CRASH_NESTED", 50).max(1),
        only: std::env::var("TERRANE_CRASH_AT").ok().and_then(|v| v.parse().ok()),
    };
    let tally = Tally::default();
    let began = Instant::now();
    let first = env("TERRANE_CRASH_FIRST", 0);
    let mut failures = Vec::new();
    for seed in first..first + env("TERRANE_CRASH_SEEDS", 3) {
        if let Err(e) = crash_everywhere(seed, plan, &tally) {
            eprintln!("{e}");
            failures.push(e);
        }
        eprintln!(
            "up to seed {seed}: {} crash images, {} more crashed during recovery, {} s",
            tally.images.load(Ordering::Relaxed),
            tally.nested.load(Ordering::Relaxed),
            began.elapsed().as_secs()
        );
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The lengths of the log before and after a power failure differ: what lies beyond the new end must not be relied on.
#[test]
fn a_subtable_created_after_unsynced_commits_keeps_what_is_written_after_a_power_failure() {
    let (media, db) = fresh(5, &tiny()).unwrap();
    db.subtable("t0").unwrap().put(b"lost or not", &[7; 2000]).unwrap();
    db.create_subtable("new", tiny_table()).unwrap();
    let media = media.image().crash(CrashKind::PowerLost, 5);
    drop(db);
    let db = open(&media, &tiny()).unwrap();
    // A creation is durable, and so is what was committed before it.
    assert!(db.subtable("t0").unwrap().get(b"lost or not").unwrap().is_some());
    db.subtable("new").unwrap().put(b"k", b"v").unwrap();
    db.sync().unwrap();
    let media = media.image().crash(CrashKind::PowerLost, 6);
    drop(db);
    let db = open(&media, &tiny()).unwrap();
    assert_eq!(db.subtable("new").unwrap().get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
}
