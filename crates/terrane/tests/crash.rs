//! A crash at every I/O call of a history, of every kind; a crash while that is recovered from; and life afterwards.
//!
//! Each history runs on a simulated machine from its first call to its last. Before every call that changes something a picture
//! of the machine is kept; stores to persistent memory and fences are such calls. Each picture is made into the machine that
//! comes up after each kind of crash; the database is opened there, compared with the model, checked, written to, and opened once
//! more. A power failure leaves one of many states of persistent memory on a device: as many of them as are asked for are taken
//! besides, all if they are fewer, else some by seed. Behind a power failure all that is there is certain: of machines that have
//! the same then, and of which the same is expected, one is tried.
//!
//! The quick form takes the kinds in turn, and in persistent memory every fence and some of the stores. The long form:
//! `TERRANE_CRASH_EXHAUSTIVE=1` takes every kind at every call, `TERRANE_CRASH_STATES` says how many states,
//! `TERRANE_CRASH_STRIDE` takes one call in so many but every fence, `TERRANE_CRASH_OPS` sets how long histories are,
//! `TERRANE_CRASH_SEEDS` how many, `TERRANE_CRASH_FIRST` the first seed, `TERRANE_CRASH_ROUNDS` how many crashes of each kind are
//! made of a picture, `TERRANE_CRASH_NESTED` after how many crashes each one is crashed again while it recovers,
//! `TERRANE_DISTINCT` how many different images there have to be. `TERRANE_CRASH_AT` looks at one call alone. A failure names its
//! seed and call: `TERRANE_CRASH_FIRST=seed TERRANE_CRASH_SEEDS=1 TERRANE_CRASH_AT=call TERRANE_CRASH_EXHAUSTIVE=1` and the same
//! length and medium repeat it.

#![allow(clippy::disallowed_methods, reason = "a test may start threads and look at the clock")]

#[path = "crash/history.rs"]
mod history;
#[path = "crash/sample.rs"]
mod sample;
mod support;
#[path = "crash/survivor.rs"]
mod survivor;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use history::{Counts, Course, History, Point, Reached};
use support::{DIR, Rng, crash_kinds, fresh, in_memory, on_medium, open, tiny, tiny_table};
use survivor::{Stop, Survivor};
use terrane::media::sim::{CrashKind, OpKind, PmModel, SimMedia};
use terrane::media::{Media, OpenMode};
use terrane::{Options, PmemOptions};
use xxhash_rust::xxh3::Xxh3;

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// So small that memtables fill up within a history.
fn options() -> Options {
    let memory = PmemOptions::new(500 << 10).zone_bytes(16 << 10);
    on_medium(tiny().memtable_bytes(128 << 10), memory)
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
    /// How many states of persistent memory are tried at a call.
    states: u64,
    /// One call in so many, besides all fences.
    stride: u64,
    /// This call alone.
    only: Option<u64>,
}

impl Plan {
    fn has(&self, point: &Point) -> bool {
        match self.only {
            Some(only) => only == point.index,
            None => point.kind == OpKind::Fence || point.index.is_multiple_of(self.stride),
        }
    }

    /// How the machine stops at a point.
    fn stops(&self, seed: u64, point: &Point) -> Vec<Stop> {
        let kinds = crash_kinds();
        // Calls have a rhythm, which the turn of the kinds is not to follow.
        let turn = Rng(seed ^ point.index << 24).below(kinds.len() as u64) as usize;
        let kinds = if self.exhaustive { kinds } else { &kinds[turn..=turn] };
        let mut stops: Vec<Stop> = kinds.iter().map(|kind| Stop::By(*kind)).collect();
        let mut rng = Rng(seed ^ point.index << 22);
        for by in PmModel::ALL.into_iter().filter(|_| in_memory()) {
            let states = point.image.pm_states(by);
            if states > 1 {
                let some = |n| if states <= self.states { n } else { rng.below(states) };
                stops.extend((0..states.min(self.states)).map(some).map(|state| Stop::InState(by, state)));
            }
        }
        stops
    }
}

/// What was tried.
#[derive(Default)]
struct Tally {
    images: AtomicU64,
    recovered: AtomicU64,
    /// By what their files hold.
    distinct: Mutex<HashSet<u64>>,
    /// Behind power failures: with what is expected of them.
    tried: Mutex<HashSet<(u64, u64, Reached)>>,
    nested: AtomicU64,
    counts: Mutex<Counts>,
}

impl Tally {
    /// Whether the same was tried before; from now on it was.
    fn has_tried(&self, media: &SimMedia, survivor: &Survivor<'_>) -> bool {
        let hash = hash(media);
        self.distinct.lock().unwrap().insert(hash);
        let of = (hash, survivor.history.seed, survivor.point.reached);
        survivor.stop.is_power() && !self.tried.lock().unwrap().insert(of)
    }

    fn count(&self, history: &History) {
        let mut counts = self.counts.lock().unwrap();
        history.counts.iter().for_each(|(what, n)| *counts.entry(what).or_default() += n);
        let fences = history.points.iter().filter(|p| p.kind == OpKind::Fence).count();
        *counts.entry("fences").or_default() += fences as u64;
        *counts.entry("calls").or_default() += history.calls;
    }
}

/// What all files of a machine hold, as a number.
fn hash(media: &SimMedia) -> u64 {
    let (dir, mut buf, mut hasher) = (Path::new(DIR), Vec::new(), Xxh3::new());
    // It may not be there yet.
    let mut names: Vec<String> =
        media.list(dir).unwrap_or_default().into_iter().map(|entry| entry.name).collect();
    names.sort_unstable();
    for name in names {
        let file = media.open(&dir.join(&name), OpenMode::READ).unwrap();
        buf.resize(file.len().unwrap() as usize, 0);
        file.read_at(&mut buf, 0).unwrap();
        hasher.update(name.as_bytes());
        hasher.update(&buf);
    }
    hasher.digest()
}

fn crash_at(history: &History, point: &Point, plan: Plan, tally: &Tally) -> Result<(), String> {
    for stop in plan.stops(history.seed, point) {
        // A state is one machine, whatever the seed.
        let rounds = if let Stop::By(_) = stop { plan.rounds } else { 1 };
        for round in 0..rounds {
            let seed = Rng(history.seed ^ point.index << 20 ^ round << 50).next();
            let survivor = Survivor { history, point, stop, seed, options: |_| options() };
            let told = |e| {
                format!(
                    "seed {}, call {} ({}), {stop:?}, crash seed {seed} (round {round}): {e}",
                    history.seed, point.index, point.call
                )
            };
            tally.images.fetch_add(1, Ordering::Relaxed);
            let media = survivor.machine();
            if tally.has_tried(&media, &survivor) {
                continue;
            }
            let number = tally.recovered.fetch_add(1, Ordering::Relaxed);
            survivor.lives_on(media).map_err(told)?;
            if number.is_multiple_of(plan.nested) || plan.only.is_some() {
                tally.nested.fetch_add(survivor.crashes_again().map_err(told)?, Ordering::Relaxed);
            }
        }
    }
    Ok(())
}

/// Crashes at all points of a history, on all processors.
fn crash_everywhere(seed: u64, plan: Plan, tally: &Tally) -> Result<(), String> {
    let (ops, options) = (plan.ops, options());
    let history = History::record(&Course {
        seed,
        ops,
        keys: 120,
        options,
        synced: 1,
        points: usize::MAX,
        fills: true,
    })?;
    let numbers = history.points.iter().map(|p| p.index);
    if !numbers.eq(0..history.calls) {
        return Err(format!("seed {seed}: of {} calls not all are points", history.calls));
    }
    tally.count(&history);
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(point) = history.points.get(next.fetch_add(1, Ordering::Relaxed)) {
            if plan.has(point) {
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
    let exhaustive = env("TERRANE_CRASH_EXHAUSTIVE", 0) != 0;
    // There are far more calls in persistent memory than in files, of recoveries too.
    let [seeds, states, stride, nested] = match (exhaustive, in_memory()) {
        (true, _) => [3, 8, 1, 50],
        (false, true) => [2, 1, 8, 300],
        (false, false) => [3, 1, 1, 50],
    };
    let plan = Plan {
        ops: env("TERRANE_CRASH_OPS", 100),
        exhaustive,
        rounds: env("TERRANE_CRASH_ROUNDS", 1).max(1),
        nested: env("TERRANE_CRASH_NESTED", nested).max(1),
        states: env("TERRANE_CRASH_STATES", states),
        stride: env("TERRANE_CRASH_STRIDE", stride).max(1),
        only: std::env::var("TERRANE_CRASH_AT").ok().and_then(|v| v.parse().ok()),
    };
    let tally = Tally::default();
    let began = Instant::now();
    let first = env("TERRANE_CRASH_FIRST", 0);
    let mut failures = Vec::new();
    for seed in first..first + env("TERRANE_CRASH_SEEDS", seeds) {
        if let Err(e) = crash_everywhere(seed, plan, &tally) {
            eprintln!("{e}");
            failures.push(e);
        }
        eprintln!(
            "up to seed {seed}: {} crash images, {} distinct, {} recovered, {} more crashed during recovery, {} s",
            tally.images.load(Ordering::Relaxed),
            tally.distinct.lock().unwrap().len(),
            tally.recovered.load(Ordering::Relaxed),
            tally.nested.load(Ordering::Relaxed),
            began.elapsed().as_secs()
        );
    }
    let (counts, distinct) =
        (tally.counts.into_inner().unwrap(), tally.distinct.into_inner().unwrap().len() as u64);
    eprintln!("{counts:?}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    let least = env("TERRANE_DISTINCT", 0);
    assert!(distinct >= least, "{distinct} distinct images, {least} were asked for");
    if plan.only.is_none() && plan.ops >= 100 {
        let fences = in_memory().then_some("fences");
        for what in ["memtables frozen", "flushes", "compactions"].into_iter().chain(fences) {
            assert!(counts.get(what).is_some_and(|n| *n > 0), "no history has: {what}");
        }
    }
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
