//! `terrane-bench`: times Terrane and its peers on the same data, with the same budgets and the same durability.
//!
//! Engines run in processes of their own, so that memory, processor time and device traffic are known for each; one works
//! while the others rest. Rounds are interleaved: drift of the machine meets all engines alike, and only ratios within
//! one call mean anything.

#![allow(clippy::disallowed_methods, reason = "a bench reads clocks and files itself")]
#![allow(missing_docs, reason = "a program, not a library")]

mod args;
mod choice;
mod data;
mod engine;
mod machine;
mod measure;
mod report;
mod repro;
mod run;
mod scratch;
mod settings;
mod watch;
mod worker;
mod workload;

use clap::Parser;

/// What went wrong, in words.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> std::process::ExitCode {
    let command = args::Cli::parse().command;
    if !matches!(command, args::Command::Worker(_)) {
        scratch::end_when_interrupted();
    }
    let done = match command {
        args::Command::Run(a) => run::run(&a),
        args::Command::Repro(a) => repro::run(&a),
        args::Command::Worker(a) => worker::run(&a),
    };
    match done {
        Ok(()) => std::process::ExitCode::SUCCESS,
        // Nobody reads on.
        Err(e) if is_broken_pipe(&*e) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("terrane-bench: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(e: &(dyn std::error::Error + 'static)) -> bool {
    e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
