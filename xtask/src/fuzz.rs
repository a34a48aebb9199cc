//! `fuzz`: runs the targets in `fuzz/` one after another, each for a time or until it finds nothing new.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use clap::Args;

use crate::command::{cargo, root, step, timed};
use crate::{Failure, Outcome};

#[derive(Debug, Args)]
pub(crate) struct FuzzArgs {
    /// Targets; all of them if none is named
    targets: Vec<String>,
    /// Seconds for each target
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Instead of a time: go on until this many executions in a row bring no new coverage
    #[arg(long, value_name = "N", conflicts_with = "seconds")]
    until_quiet: Option<u64>,
    /// Without the address sanitizer: several times as many executions. Decoders are safe code
    #[arg(long)]
    no_sanitizer: bool,
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
        match args.until_quiet {
            None => {
                let mut c = fuzzer(args, &target);
                c.arg(format!("-max_total_time={}", args.seconds)).arg("-print_final_stats=1");
                step(&format!("fuzz {target}"), &mut c).map_err(hinted)?;
            }
            Some(runs) => {
                timed(&format!("fuzz {target}"), || until_quiet(args, &target, runs)).map_err(hinted)?
            }
        }
    }
    Ok(())
}

fn hinted(e: Failure) -> Failure {
    format!("{e}\nIs cargo-fuzz there (cargo install cargo-fuzz), and a nightly toolchain?").into()
}

fn fuzzer(args: &FuzzArgs, target: &str) -> Command {
    // The proxy of rustup understands "+nightly"; the cargo that runs this program does not.
    let mut c = Command::new("cargo");
    c.args(["+nightly", "fuzz", "run"]).current_dir(root());
    c.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO");
    if args.no_sanitizer {
        c.args(["--sanitizer", "none"]);
    }
    c.args([target, "--", "-timeout=20"]);
    c
}

/// Runs `target` in rounds, each from the corpus that the last one left, until one of `runs` executions ends with the
/// coverage it began with. Short rounds come first: the corpus grows fast at the beginning.
fn until_quiet(args: &FuzzArgs, target: &str, runs: u64) -> Outcome {
    let mut executions = 0;
    let mut round = (runs / 20).max(1);
    loop {
        let coverage = one_round(args, target, round)?;
        executions += round;
        println!("{target}: coverage {} -> {} in {round} executions", coverage.0, coverage.1);
        if coverage.0 < coverage.1 {
            continue;
        }
        if round >= runs {
            println!("{target}: {executions} executions, the last {round} without new coverage");
            return Ok(());
        }
        round = runs;
    }
}

/// The coverage at the beginning and at the end of a round.
fn one_round(args: &FuzzArgs, target: &str, runs: u64) -> Result<(u64, u64), Failure> {
    let mut c = fuzzer(args, target);
    c.arg(format!("-runs={runs}")).stderr(Stdio::piped());
    let mut child = c.spawn().map_err(|e| format!("cannot start {c:?}: {e}"))?;
    let mut first = None;
    let mut last = 0;
    let mut tail = std::collections::VecDeque::new();
    if let Some(err) = child.stderr.take() {
        for line in BufReader::new(err).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            if let Some(c) = covered(&line) {
                last = c;
                if line.contains("INITED") {
                    first = Some(c);
                }
            } else {
                // Kept for the case that it fails: what it found stands at the end.
                tail.push_back(line);
                if tail.len() > 60 {
                    tail.pop_front();
                }
            }
        }
    }
    let status = child.wait()?;
    if !status.success() {
        let tail: Vec<String> = tail.into();
        return Err(format!("fuzz {target} failed: {status}\n{}", tail.join("\n")).into());
    }
    let first = first.ok_or_else(|| format!("fuzz {target}: the fuzzer did not say where it began"))?;
    Ok((first, last))
}

/// The coverage that a status line of the fuzzer states.
fn covered(line: &str) -> Option<u64> {
    let mut words = line.strip_prefix('#')?.split_whitespace();
    words.find(|w| *w == "cov:")?;
    words.next()?.parse().ok()
}

fn all() -> Result<Vec<String>, Failure> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coverage_is_read_from_status_lines_only() {
        assert_eq!(covered("#12\tINITED cov: 345 ft: 400 corp: 9/1b exec/s: 0 rss: 40Mb"), Some(345));
        assert_eq!(covered("#9000\tDONE   cov: 346 ft: 400"), Some(346));
        assert_eq!(covered("INFO: seed corpus: files: 3"), None);
        assert_eq!(covered("#12 NEW"), None);
    }
}
