//! The `terrane` program.
//!
//! Output for people goes to the terminal with progress on standard error; with `--json` every command prints one JSON
//! object a line on standard output. Exit status: 0 done, 1 failed (for `check`: damage found; for `get`: no such key),
//! 2 wrong usage, 130 interrupted.

#![forbid(unsafe_code)]
#![recursion_limit = "256"]
#![allow(clippy::disallowed_methods, reason = "a program reads files and clocks itself; the engine does not")]

/// Prints a line. (Whoever reads it may be gone, at which the standard library's own panics.)
macro_rules! say {
    ($($what:tt)*) => {
        std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{}\n", format_args!($($what)*)))?
    };
}

mod args;
mod check;
mod demo;
mod interrupt;
mod load;
mod medium;
mod point;
mod progress;
mod records;
mod scan;
mod stat;
mod text;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

/// How a command ended, when it did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// The answer is no: key not found, damage found.
    Negative,
    Interrupted,
}

/// What a command can fail with.
type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let args = Args::parse();
    let done = match args.command.unwrap_or_default() {
        Command::Demo(a) => demo::run(&a),
        Command::Load(a) => load::run(&a),
        Command::Get(a) => point::get(&a),
        Command::Put(a) => point::put(&a),
        Command::Del(a) => point::del(&a),
        Command::Scan(a) => scan::run(&a),
        Command::Stat(a) => stat::run(&a),
        Command::Check(a) => check::run(&a),
    };
    match done {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Negative) => ExitCode::from(1),
        Ok(Outcome::Interrupted) => ExitCode::from(130),
        Err(e) if is_broken_pipe(&*e) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("terrane: {e}");
            ExitCode::from(1)
        }
    }
}

/// What was told, or nobody reads on: then the status still says how it went.
fn unless_unread(told: Result<(), Failure>) -> Result<(), Failure> {
    told.or_else(|e| if is_broken_pipe(&*e) { Ok(()) } else { Err(e) })
}

/// Whoever read our output has seen enough.
fn is_broken_pipe(e: &(dyn std::error::Error + 'static)) -> bool {
    e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
