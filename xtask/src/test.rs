//! `test`: all tests, and the models that loom explores.

use std::process::Command;

use clap::Args;

use crate::command::{Counts, cargo, root, tests};
use crate::{Failure, Outcome};

/// Rooms with protocols that loom explores.
const MODELS: [&str; 7] = [
    "terrane-base",
    "terrane-commit",
    "terrane-cache",
    "terrane-memindex",
    "terrane-media",
    "terrane-locks",
    "terrane-halloc",
];

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Also the loom models, and histories of a million operations
    #[arg(long)]
    long: bool,
    /// Only the loom models
    #[arg(long)]
    models: bool,
    /// Only crashes in persistent memory: a million different images of commits, and a million of the engine
    #[arg(long, conflicts_with_all = ["long", "models"])]
    crashes: bool,
}

pub(crate) fn run(args: &TestArgs) -> Outcome {
    let mut counts = Counts::default();
    if args.crashes {
        counts.add(crashes()?);
    }
    if args.models || args.long {
        counts.add(models()?);
    }
    if args.long {
        counts.add(tests(
            "a million operations against the model",
            cargo(["test", "-p", "terrane", "--release", "--test", "model"])
                .env("TERRANE_SEEDS", "400")
                .env("TERRANE_OPS", "3000"),
        )?);
    }
    if !args.models && !args.crashes {
        counts.add(workspace()?);
    }
    println!("{}", counts.line());
    Ok(())
}

/// The tests of the whole workspace, as the README runs them.
pub(crate) fn workspace() -> Result<Counts, Failure> {
    tests("tests", &mut cargo(["test", "--workspace"]))
}

/// Tests of the engine that say nothing of the medium that is tested: they choose their own, or are of the log.
const OF_ONE_MEDIUM: [&str; 5] = ["damaged_memory", "index_in_pmem", "memory", "page_cache", "trailing_log"];

/// Those that crash and fail in most ways, and some of many threads, are run with memory in the page cache too, ...
const IN_PAGE_CACHE: [&str; 9] = [
    "random_crashes",
    "faults",
    "bitflips",
    "two_phase",
    "model",
    "isolation",
    "big",
    "cursors",
    "published",
];

/// ... and with a log behind persistent memory.
const WITH_LOG: [&str; 3] = ["random_crashes", "faults", "two_phase"];

/// ... and with the indexes of memtables there too.
const WITH_INDEXES: [&str; 2] = ["random_crashes", "model"];

/// The engine's tests once more, on the other media.
pub(crate) fn other_media() -> Result<Counts, Failure> {
    let in_memory = of_engine()?;
    let named = |chosen: &[&str]| chosen.iter().map(|test| (*test).to_owned()).collect();
    let all: [(&str, Vec<String>); 4] = [
        ("pmem", in_memory),
        ("page-cache", named(&IN_PAGE_CACHE)),
        ("pmem-log", named(&WITH_LOG)),
        ("pmem-index", named(&WITH_INDEXES)),
    ];
    let mut counts = Counts::default();
    for (medium, chosen) in all {
        // With the programs, which have none of these: their features are the workspace's, so that what its tests were built of serves again.
        let mut c = cargo(["test", "-p", "terrane", "-p", "terrane-cli", "-p", "terrane-bench"]);
        // And the tests within the engine.
        c.env("TERRANE_TEST_MEDIUM", medium).arg("--lib");
        for test in &chosen {
            c.args(["--test", test]);
        }
        counts.add(tests(&format!("tests with {medium}"), &mut c)?);
    }
    Ok(counts)
}

/// All tests of the engine that are run in persistent memory: a new one is among them.
fn of_engine() -> Result<Vec<String>, Failure> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(root().join("crates/terrane/tests"))? {
        let path = entry?.path();
        let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        if path.extension().is_some_and(|e| e == "rs") && !OF_ONE_MEDIUM.contains(&name) {
            all.push(name.to_owned());
        }
    }
    all.sort();
    Ok(all)
}

/// So many histories of commits in persistent memory leave a million different images, and take 20 to 30 minutes on two cores.
const CHAIN_HISTORIES: &str = "240";

/// So many histories of the engine, of three hundred operations each, leave as many, and take an hour and more.
const ENGINE_HISTORIES: &str = "7";

/// Crashes in persistent memory at every store and fence: of what commits are made of, and of the whole engine, with a log behind it and with indexes
/// in it too; and with memory in the page cache at every call.
fn crashes() -> Result<Counts, Failure> {
    let mut counts = chosen(
        "a million crash images of commits",
        cargo(["test", "-p", "terrane-chainlog", "--release", "--test", "crash"])
            .args(["commits_are_whole", "--", "--nocapture"])
            .env("TERRANE_SEEDS", CHAIN_HISTORIES)
            .env("TERRANE_DISTINCT", "1000000"),
    )?;
    counts.add(chosen(
        "a million crash images of the engine",
        cargo(["test", "-p", "terrane", "--release", "--test", "crash"])
            .args(["no_crash_anywhere", "--", "--nocapture"])
            .env("TERRANE_TEST_MEDIUM", "pmem")
            .env("TERRANE_CRASH_EXHAUSTIVE", "1")
            .env("TERRANE_CRASH_OPS", "300")
            .env("TERRANE_CRASH_NESTED", "2000")
            .env("TERRANE_CRASH_SEEDS", ENGINE_HISTORIES)
            .env("TERRANE_DISTINCT", "1000000"),
    )?);
    counts.add(chosen(
        "a crash at every call with page-cache",
        cargo(["test", "-p", "terrane", "--release", "--test", "crash"])
            .env("TERRANE_TEST_MEDIUM", "page-cache"),
    )?);
    for medium in ["pmem-log", "pmem-index"] {
        counts.add(chosen(
            &format!("every crash of the engine with {medium}"),
            cargo(["test", "-p", "terrane", "--release", "--test", "crash"])
                .args(["no_crash_anywhere", "--", "--nocapture"])
                .env("TERRANE_TEST_MEDIUM", medium)
                .env("TERRANE_CRASH_EXHAUSTIVE", "1")
                .env("TERRANE_CRASH_NESTED", "200")
                .env("TERRANE_CRASH_SEEDS", "1"),
        )?);
    }
    Ok(counts)
}

/// Tests that are chosen by name: there must be some.
fn chosen(what: &str, command: &mut Command) -> Result<Counts, Failure> {
    let found = tests(what, command)?;
    if found.passed == 0 {
        return Err(format!("{what}: no test has that name any more: correct the list in xtask").into());
    }
    Ok(found)
}

/// The models. They are compiled apart: loom replaces atomics and threads in all of a room. Each goes as far as it says itself: most up
/// to three preemptions an execution, the smallest without a bound. `LOOM_MAX_PREEMPTIONS`, if it is set, is the bound of all instead,
/// but for those that show a flaw and need three.
pub(crate) fn models() -> Result<Counts, Failure> {
    // All at once, so that all processors have something to do, and what rooms have in common is built once.
    let mut c = cargo(["test", "--release", "--target-dir", "target/loom", "--lib"]);
    c.args(MODELS.iter().flat_map(|room| ["-p", room]));
    c.env("RUSTFLAGS", "--cfg loom");
    // Small programs, most of which is loom: optimised as a whole they take a third longer in all, for what that takes it does not
    // save. Without any of it frames are too large for the stacks that loom gives its threads.
    c.env("CARGO_PROFILE_RELEASE_LTO", "thin").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "4");
    c.env("CARGO_PROFILE_RELEASE_DEBUG", "0");
    // The other tests of a room use threads that loom does not see.
    let found = tests("models", c.args(["--", "model"]))?;
    if found.programs != MODELS.len() as u64 {
        return Err(
            "models: a room has none that goes by that name any more: correct the list in xtask".into()
        );
    }
    Ok(found)
}
