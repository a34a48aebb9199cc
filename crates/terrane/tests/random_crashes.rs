//! Very many short histories, each with a few crashes at random calls, and crashes while those are recovered from.
//!
//! `tests/crash.rs` crashes few histories everywhere. Here everything follows from a seed: how long the history is, with what
//! options and how durably it commits, which of its calls are crash points, the kinds of the crashes, how often each recovery is
//! crashed, and the options of each opening. Nothing is kept but the pictures that are crashed.
//!
//! `TERRANE_CRASH_SEEDS` sets how many seeds, `TERRANE_CRASH_FIRST` the first one, `TERRANE_CRASH_THREADS` how many are tried at
//! a time (default: one for each processor). Ranges of seeds may as well be tried by processes of their own. A failure
//! names its seed: `TERRANE_CRASH_FIRST=seed TERRANE_CRASH_SEEDS=1` repeats it.

#![allow(clippy::disallowed_methods, reason = "a test may start threads and look at the clock")]

#[path = "crash/history.rs"]
mod history;
#[path = "crash/sample.rs"]
mod sample;
mod support;
#[path = "crash/survivor.rs"]
mod survivor;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use history::{Counts, Course, History, Point};
use support::{Rng, TUNING, crash_kind, in_memory, tiny};
use survivor::{Found, Stop, Survivor};
use terrane::media::sim::CrashKind;
use terrane::{Options, Tuning};

/// So many seeds have all kinds of steps and crashes among them.
const QUICK: u64 = 40;

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

/// Small sizes of all sorts: memtables, segments and extents fill, and transactions are large or not.
fn options(rng: &mut Rng) -> Options {
    let tuning = Tuning {
        compact: true,
        segment_bytes: (128 << 10) << rng.below(2),
        tail_bytes: (64 << 10) << rng.below(2),
        drain_bytes: (4 << 10) << rng.below(3),
        log_budget: (256 << 10) << rng.below(3),
        data_file_bytes: (4 << 20) << rng.below(2),
        extent_bytes: (32 << 10) << rng.below(2),
        piece_bytes: (64 << 10) << rng.below(2),
        task_bytes: (16 << 10) << rng.below(2),
        transaction_bytes: [0, 300, 1000, 6000][rng.below(4) as usize],
        // By the way, as soon as anybody waits for anything.
        flush_after: [None, Some(Duration::ZERO)][rng.below(2) as usize],
        ..TUNING
    };
    let options = tiny().memtable_bytes((300 << 10) << rng.below(3));
    options.background_threads(1 + rng.below(3) as usize).tuning(tuning)
}

fn course(seed: u64) -> Course {
    let mut rng = Rng(seed ^ 0x636f_7572);
    let longest = [60, 60, 60, 240][rng.below(4) as usize];
    Course {
        seed,
        ops: 5 + rng.below(longest),
        keys: [30, 120, 400][rng.below(3) as usize],
        synced: [0, 1, 1, 4, 8][rng.below(5) as usize],
        points: 6,
        fills: false,
        options: options(&mut rng),
    }
}

/// Crashes of one point; failures say all that is needed to have them again.
fn crash_at(history: &History, point: &Point, rng: &mut Rng, counts: &mut Counts) -> Result<(), String> {
    let mut count = |what, n| *counts.entry(what).or_default() += n;
    let kind = crash_kind(rng);
    let survivor = Survivor { history, point, stop: Stop::By(kind), seed: rng.next(), options };
    let more = [0, 0, 0, 1, 2][rng.below(5) as usize];
    let lived = match more {
        0 => survivor.lives(),
        _ => survivor.crashes_in_a_row(more),
    };
    count("images", 1);
    count(
        match kind {
            CrashKind::Process => "process died",
            CrashKind::ProcessTorn => "process died in a call",
            CrashKind::PowerLost => "power failed, unsynced lost",
            CrashKind::PowerKept => "power failed, unsynced kept",
            CrashKind::PowerTorn => "power failed, unsynced torn",
            CrashKind::PowerWords => "power failed, unsynced torn by words",
        },
        1,
    );
    count("crashes during recovery", more);
    count("third crashes", u64::from(more == 2));
    count("calls of persistent memory", u64::from(point.call.contains("/pmem")));
    let Found { prepared, staged } = lived
        .map_err(|e| format!("call {} ({}), {kind:?}, then {more} more: {e}", point.index, point.call))?;
    count("found in doubt", prepared);
    count("found staged", staged);
    Ok(())
}

fn one_seed(seed: u64) -> Result<Counts, String> {
    let mut history = History::record(&course(seed))?;
    let mut counts = std::mem::take(&mut history.counts);
    let mut rng = Rng(seed ^ 0x706f_696e);
    for point in &history.points {
        crash_at(&history, point, &mut rng, &mut counts)?;
    }
    Ok(counts)
}

#[test]
fn no_crash_of_a_random_history_loses_or_tears_a_commit() {
    let (first, seeds) = (env("TERRANE_CRASH_FIRST", 0), env("TERRANE_CRASH_SEEDS", QUICK));
    let next = AtomicU64::new(first);
    let outcome: Mutex<(Counts, Vec<String>)> = Mutex::default();
    let began = Instant::now();
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + seeds {
                return;
            }
            let tried = catch_unwind(AssertUnwindSafe(|| one_seed(seed)));
            let tried = tried.unwrap_or_else(|_| Err("a panic".into()));
            let mut outcome = outcome.lock().unwrap();
            match tried {
                Ok(counts) => counts.into_iter().for_each(|(k, n)| *outcome.0.entry(k).or_default() += n),
                Err(e) => {
                    let e = format!(
                        "{e}\n  again: TERRANE_CRASH_FIRST={seed} TERRANE_CRASH_SEEDS=1 cargo test --release \
                         -p terrane --test random_crashes -- --nocapture"
                    );
                    eprintln!("seed {seed}: {e}");
                    outcome.1.push(format!("seed {seed}: {e}"));
                }
            }
            let done = outcome.0.entry("seeds").or_default();
            *done += 1;
            if done.is_multiple_of(1000) {
                eprintln!("{} s: {:?}, {} failures", began.elapsed().as_secs(), outcome.0, outcome.1.len());
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    std::thread::scope(|s| {
        for _ in 0..env("TERRANE_CRASH_THREADS", threads) {
            s.spawn(work);
        }
    });
    let (counts, failures) = outcome.into_inner().unwrap();
    eprintln!("seeds {first}..{}, {} s: {counts:#?}", first + seeds, began.elapsed().as_secs());
    assert!(failures.is_empty(), "{} seeds fail:\n{}", failures.len(), failures.join("\n"));
    if seeds < QUICK {
        return;
    }
    for what in [
        "batches",
        "transactions",
        "transactions, overtaken",
        "ingests",
        "prepared",
        "prepared, committed",
        "prepared, rolled back",
        "subtables dropped",
        "runs attached",
        "flushes",
        "compactions",
        "process died",
        "process died in a call",
        "power failed, unsynced lost",
        "power failed, unsynced kept",
        "power failed, unsynced torn",
        "crashes during recovery",
        "third crashes",
        "found in doubt",
        "found staged",
    ] {
        assert!(counts.get(what).is_some_and(|n| *n > 0), "none of the seeds has: {what}");
    }
    if in_memory() {
        for what in ["power failed, unsynced torn by words", "calls of persistent memory"] {
            assert!(counts.get(what).is_some_and(|n| *n > 0), "none of the seeds has: {what}");
        }
    }
}
