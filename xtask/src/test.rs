//! `test`: all tests, and the models that loom explores.

use clap::Args;

use crate::command::{Counts, cargo, tests};
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
}

pub(crate) fn run(args: &TestArgs) -> Outcome {
    let mut counts = Counts::default();
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
    if !args.models {
        counts.add(workspace()?);
    }
    println!("{}", counts.line());
    Ok(())
}

/// The tests of the whole workspace, as the README runs them.
pub(crate) fn workspace() -> Result<Counts, Failure> {
    tests("tests", &mut cargo(["test", "--workspace"]))
}

/// Tests of the engine that are run once more with persistent memory in place of the log, ...
const IN_MEMORY: [&str; 11] = [
    "model",
    "random_crashes",
    "faults",
    "bitflips",
    "beside",
    "cursors",
    "big",
    "two_phase",
    "refusals",
    "published",
    "isolation",
];

/// ... and with memory in the page cache: those that crash and fail.
const IN_PAGE_CACHE: [&str; 4] = ["random_crashes", "faults", "bitflips", "two_phase"];

/// ... and with a log behind persistent memory.
const WITH_LOG: [&str; 3] = ["random_crashes", "faults", "two_phase"];

/// ... and with the indexes of memtables there too.
const WITH_INDEXES: [&str; 2] = ["random_crashes", "model"];

/// The engine's tests once more, on the other media.
pub(crate) fn other_media() -> Result<Counts, Failure> {
    let mut counts = Counts::default();
    let all = [
        ("pmem", &IN_MEMORY[..]),
        ("page-cache", &IN_PAGE_CACHE),
        ("pmem-log", &WITH_LOG),
        ("pmem-index", &WITH_INDEXES),
    ];
    for (medium, chosen) in all {
        let mut c = cargo(["test", "-p", "terrane"]);
        c.env("TERRANE_TEST_MEDIUM", medium);
        for test in chosen {
            c.args(["--test", test]);
        }
        counts.add(tests(&format!("tests with {medium}"), &mut c)?);
    }
    Ok(counts)
}

/// The models. They are compiled apart: loom replaces atomics and threads in all of a room. Each goes as far as it says itself: most up
/// to three preemptions an execution, the smallest without a bound. `LOOM_MAX_PREEMPTIONS`, if it is set, is the bound of all instead,
/// but for those that show a flaw and need three.
pub(crate) fn models() -> Result<Counts, Failure> {
    let mut counts = Counts::default();
    for room in MODELS {
        let mut c = cargo(["test", "--release", "--target-dir", "target/loom", "--lib", "-p", room]);
        c.env("RUSTFLAGS", "--cfg loom");
        // The other tests of a room use threads that loom does not see.
        c.args(["--", "model"]);
        let found = tests(&format!("models of {room}"), &mut c)?;
        if found.passed == 0 {
            return Err(format!("{room} has no models any more: correct the list in xtask").into());
        }
        counts.add(found);
    }
    Ok(counts)
}
