//! Histories of random transactions on several threads, and whether their levels of isolation allow them: see [`checker`].
//!
//! What a thread does follows from the seed, how threads meet does not. `TERRANE_SEED` runs one seed, `TERRANE_SEEDS` sets how many,
//! `TERRANE_ISOLATION_SECONDS` goes on with new ones for so long.
#![allow(clippy::disallowed_methods, reason = "a test may start threads, and looks at the clock")]

#[path = "isolation/checker.rs"]
mod checker;
#[path = "isolation/graph.rs"]
mod graph;
#[path = "isolation/hand.rs"]
mod hand;
#[path = "isolation/history.rs"]
mod history;
mod support;
#[path = "isolation/workload.rs"]
mod workload;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use history::Level;
use workload::{Plan, reasons};

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|v| v.parse().ok())
}

const LEVELS: [Option<Level>; 6] = [
    Some(Level::ReadCommitted),
    Some(Level::Snapshot),
    Some(Level::Serializable),
    Some(Level::OptimisticSnapshot),
    Some(Level::OptimisticSerializable),
    None,
];

/// Histories with this seed at every level.
fn try_seed(seed: u64, tally: &mut BTreeMap<String, usize>) {
    for level in LEVELS {
        let plan = Plan { seed, threads: 4, txns: 120, keys: 4 + (seed % 3 * 4) as u8, level };
        let txns = workload::run(&plan);
        *tally.entry("histories".to_owned()).or_default() += 1;
        for (why, count) in reasons(&txns) {
            *tally.entry(why.to_owned()).or_default() += count;
        }
        if let Err(found) = checker::check(&txns) {
            panic!("{plan:?} (TERRANE_SEED={seed}): {}", found.told);
        }
    }
}

#[test]
fn histories_are_what_their_levels_allow() {
    let began = Instant::now();
    let long = env("TERRANE_ISOLATION_SECONDS").map(Duration::from_secs);
    let mut tally = BTreeMap::new();
    let first = env("TERRANE_SEED").unwrap_or(0);
    let count = if env("TERRANE_SEED").is_some() { 1 } else { env("TERRANE_SEEDS").unwrap_or(25) };
    for seed in first.. {
        let goes_on = match long {
            Some(time) => began.elapsed() < time,
            None => seed < first + count,
        };
        if !goes_on {
            eprintln!("seeds {first} to {}: {tally:?}", seed - 1);
            return;
        }
        try_seed(seed, &mut tally);
    }
}
