//! The programs that look into a worker and into its code.

use std::fmt;
use std::io::{BufRead, BufReader, ErrorKind};
use std::process::{Command, Stdio};

use crate::Failure;

/// What is wanted: valgrind runs the workers, binutils say what their code is.
const WANTED: [&str; 3] = ["valgrind", "objdump", "addr2line"];

/// Why nothing can be counted here, and what would help.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::repro) struct Unfit {
    what: String,
    hint: &'static str,
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.hint)
    }
}

impl std::error::Error for Unfit {}

/// Sees that the programs are there, and that valgrind can run this one.
pub(super) fn check() -> Result<(), Failure> {
    WANTED.into_iter().try_for_each(present)?;
    let own = std::env::current_exe()?;
    let runs = quiet("valgrind").args(["-q", "--tool=none"]).arg(own).arg("--version").status()?;
    if runs.success() {
        return Ok(());
    }
    let hint = "it knows no AVX-512; build RocksDB with CXXFLAGS=-march=haswell";
    Err(Unfit { what: format!("valgrind cannot run this program ({runs})"), hint }.into())
}

fn present(program: &str) -> Result<(), Failure> {
    match quiet(program).arg("--version").status() {
        Err(e) if e.kind() == ErrorKind::NotFound => Err(Unfit {
            what: format!("{program} is not installed"),
            hint: "the packages valgrind and binutils have what is wanted",
        }
        .into()),
        Err(e) => Err(format!("{program}: {e}").into()),
        Ok(_) => Ok(()),
    }
}

fn quiet(program: &str) -> Command {
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Shows what `command` says on standard output to `see`, line by line.
pub(super) fn lines(command: &mut Command, see: &mut dyn FnMut(&str)) -> Result<(), Failure> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    if let Some(out) = child.stdout.take() {
        each_line(out, see)?;
    }
    let status = child.wait()?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{}: {status}", command.get_program().display()).into())
    }
}

/// Shows all lines of `from` to `see`; what is no UTF-8 in them is replaced.
pub(super) fn each_line(from: impl std::io::Read, see: &mut dyn FnMut(&str)) -> Result<(), Failure> {
    let mut from = BufReader::with_capacity(1 << 20, from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        see(String::from_utf8_lossy(line.trim_ascii_end()).as_ref());
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_told_with_a_hint() {
        let e = present("terrane-no-such-program").unwrap_err();
        let unfit = e.downcast_ref::<Unfit>().unwrap();
        assert_eq!(unfit.what, "terrane-no-such-program is not installed");
        assert!(e.to_string().contains("valgrind and binutils"));
    }

    #[test]
    fn lines_are_seen_whole() {
        let mut seen = Vec::new();
        each_line(&b"a\nb \xff\n\nc"[..], &mut |l| seen.push(l.to_owned())).unwrap();
        assert_eq!(seen, ["a", "b \u{fffd}", "", "c"]);
    }
}
