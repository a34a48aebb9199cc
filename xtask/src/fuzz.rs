//! `fuzz`: runs the targets in `fuzz/` one after another.

use std::process::Command;

use clap::Args;

use crate::Outcome;
use crate::command::{cargo, root, step};

#[derive(Debug, Args)]
pub(crate) struct FuzzArgs {
    /// Targets; all of them if none is named
    targets: Vec<String>,
    /// Seconds for each target
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// List the targets and stop
    #[arg(long)]
    list: bool,
    /// Instead: random and damaged input as ordinary tests, without cargo-fuzz
    #[arg(long)]
    quick: bool,
}

pub(crate) fn run(args: &FuzzArgs) -> Outcome {
    if args.quick {
        return step(
            "quick fuzzing",
            cargo(["test", "-p", "terrane-format", "--release"]).env("PROPTEST_CASES", "5000"),
        );
    }
    let targets = if args.targets.is_empty() { all()? } else { args.targets.clone() };
    if args.list {
        println!("{}", targets.join("\n"));
        return Ok(());
    }
    let mut samples = cargo(["test", "-p", "terrane-format", "--test", "damage", "samples"]);
    step("well-formed input to start from", samples.env("TERRANE_CORPUS", root().join("fuzz/corpus")))?;
    for target in targets {
        // The proxy of rustup understands "+nightly"; the cargo that runs this program does not.
        let mut c = Command::new("cargo");
        c.args(["+nightly", "fuzz", "run", &target, "--"]).current_dir(root());
        c.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
        c.arg(format!("-max_total_time={}", args.seconds)).args(["-print_final_stats=1", "-timeout=20"]);
        step(&format!("fuzz {target}"), &mut c).map_err(|e| {
            format!("{e}\nIs cargo-fuzz there (cargo install cargo-fuzz), and a nightly toolchain?")
        })?;
    }
    Ok(())
}

fn all() -> Result<Vec<String>, crate::Failure> {
    let dir = root().join("fuzz/fuzz_targets");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "rs")
            && let Some(stem) = path.file_stem()
        {
            names.push(stem.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}
