//! The one door for contributors: `cargo xtask {ci,test,fuzz,soak,mutants,bench,tidy}`. CI calls nothing else.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "developer commands start programs and read files and clocks themselves"
)]

mod bench;
mod ci;
mod command;
mod fuzz;
mod mutants;
mod soak;
mod test;
mod tidy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What a command can fail with.
type Failure = Box<dyn std::error::Error + Send + Sync>;
type Outcome = Result<(), Failure>;

/// Developer commands of the Terrane workspace.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Everything a change must pass: form, lints, documentation, models, all tests
    Ci,
    /// All tests; with --long also the forms that take an hour
    Test(test::TestArgs),
    /// Fuzz decoders and operations with cargo-fuzz (needs a nightly toolchain)
    Fuzz(fuzz::FuzzArgs),
    /// Kill a writing process again and again, and verify what it left
    Soak(soak::SoakArgs),
    /// Switch rules of transactions off one by one, and show that tests see it
    Mutants(mutants::MutantsArgs),
    /// Measure: the demonstration workload, in numbers
    Bench(bench::BenchArgs),
    /// Check the house rules that neither compiler nor clippy know
    Tidy,
}

fn main() -> ExitCode {
    let done = match Args::parse().task {
        Task::Ci => ci::run(),
        Task::Test(a) => test::run(&a),
        Task::Fuzz(a) => fuzz::run(&a),
        Task::Soak(a) => soak::run(&a),
        Task::Mutants(a) => mutants::run(&a),
        Task::Bench(a) => bench::run(&a),
        Task::Tidy => tidy::run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask: {e}");
            ExitCode::FAILURE
        }
    }
}
