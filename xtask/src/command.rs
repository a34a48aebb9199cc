//! Running other programs, mostly cargo, at the root of the workspace.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::{Failure, Outcome};

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// `cargo` with these arguments, at the root.
pub(crate) fn cargo<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut c = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    c.args(args).current_dir(root());
    c
}

/// Runs one step to its end, says what it is and how long it took.
pub(crate) fn step(name: &str, command: &mut Command) -> Outcome {
    timed(name, || {
        let status = command.status().map_err(|e| format!("{name}: cannot start {command:?}: {e}"))?;
        ended(name, status)
    })
}

/// Passed, failed and ignored tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
    /// Programs of tests, each of which has a summary, in which at least one passed.
    pub(crate) programs: u64,
}

impl Counts {
    /// Adds what a summary line of the test runner says; other lines add nothing.
    pub(crate) fn add_line(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test result: ") else { return };
        let before = self.passed;
        for part in rest.split([';', '.']) {
            let mut words = part.split_whitespace();
            let (Some(n), Some(what)) = (words.next().and_then(|n| n.parse::<u64>().ok()), words.next())
            else {
                continue;
            };
            match what {
                "passed" => self.passed += n,
                "failed" => self.failed += n,
                "ignored" => self.ignored += n,
                _ => {}
            }
        }
        self.programs += u64::from(self.passed > before);
    }

    pub(crate) fn add(&mut self, other: Counts) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
        self.programs += other.programs;
    }

    /// The closing line, as the test runner words it.
    pub(crate) fn line(&self) -> String {
        let word = if self.failed == 0 { "ok" } else { "FAILED" };
        format!(
            "test result: {word}. {} passed; {} failed; {} ignored; 0 measured; 0 filtered out",
            self.passed, self.failed, self.ignored
        )
    }
}

/// As [`step`] for a command that runs tests, and counts them.
pub(crate) fn tests(name: &str, command: &mut Command) -> Result<Counts, Failure> {
    let mut counts = Counts::default();
    timed(name, || {
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{name}: cannot start {command:?}: {e}"))?;
        if let Some(out) = child.stdout.take() {
            let mut to = std::io::stdout().lock();
            for line in BufReader::new(out).split(b'\n') {
                let line = line?;
                to.write_all(&line)?;
                to.write_all(b"\n")?;
                counts.add_line(&String::from_utf8_lossy(&line));
            }
        }
        ended(name, child.wait()?)
    })?;
    Ok(counts)
}

/// Runs `work` as a step of this name.
pub(crate) fn timed(name: &str, work: impl FnOnce() -> Outcome) -> Outcome {
    println!("== {name}");
    let from = Instant::now();
    work()?;
    println!("== {name}: {:.1} s", from.elapsed().as_secs_f64());
    Ok(())
}

fn ended(name: &str, status: std::process::ExitStatus) -> Outcome {
    if status.success() { Ok(()) } else { Err(format!("{name} failed: {status}").into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_lines_are_added_and_others_are_not() {
        let mut c = Counts::default();
        c.add_line(
            "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.10s",
        );
        c.add_line("test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out");
        c.add_line("test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out");
        c.add_line("test a_test_that_says 5 passed; ... ok");
        assert_eq!(c, Counts { passed: 13, failed: 2, ignored: 3, programs: 2 });
        assert!(c.line().contains("FAILED. 13 passed; 2 failed; 3 ignored"));
    }
}
