//! Kills a writing process again and again, and verifies what it left: `cargo xtask soak`.
//!
//! A child process (this program, started again) opens a database in a real directory; four writers commit batches, as such, as
//! transactions (small ones and such as do not fit their memory, with locks and optimistic) and in two phases, each
//! with a counter and with keys that follow from seed, writer and counter alone; flushes and compactions run beside
//! them. Every acknowledged commit is reported through a pipe: the record outside the process. The parent kills the child
//! with SIGKILL at a random moment, opens the database with other options, and verifies:
//!
//! * no acknowledged commit is lost, synced or not;
//! * each writer's keys are exactly what its first n batches leave, n being its counter: no hole in the order, no batch
//!   in halves, nothing deleted that came back;
//! * `check` finds nothing;
//! * no writer goes without progress for ten seconds while the process lives (now and then it lives longer than that).
//!
//! Some kills hit the opening, the recovery after an earlier kill, or the closing.
//!
//! | module | what |
//! |---|---|
//! | `plan` | what writer w does in batch n; options by seed |
//! | `child` | the process that is killed |
//! | `parent` | starts, kills, keeps the record |
//! | `verify` | compares a database with the record |

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "what a killed process leaves is looked at with real processes, files and clocks"
)]

mod child;
mod parent;
mod plan;
mod verify;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// What it can fail with.
type Failure = Box<dyn std::error::Error + Send + Sync>;
type Outcome = Result<(), Failure>;

/// Kills a writing process again and again, and verifies what it left.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask soak", bin_name = "cargo xtask soak", args_conflicts_with_subcommands = true)]
struct Command {
    #[command(flatten)]
    soak: SoakArgs,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Debug, Subcommand)]
enum Part {
    /// The process that is killed
    #[command(hide = true)]
    Child(ChildArgs),
}

#[derive(Debug, Args)]
struct SoakArgs {
    /// Stop after so many minutes (default 2, or none if --kills is given)
    #[arg(long)]
    minutes: Option<f64>,
    /// Stop after so many kills
    #[arg(long)]
    kills: Option<u64>,
    /// What writers do, when they are killed, and the options (default: from the clock)
    #[arg(long)]
    seed: Option<u64>,
    /// Where commits go
    #[arg(long, value_enum, default_value_t)]
    medium: plan::SoakMedium,
    /// Put the database into a new directory here (default: the directory for temporary files)
    #[arg(long)]
    dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct ChildArgs {
    /// Directory of the database
    #[arg(long)]
    db: PathBuf,
    /// Seed of the writers
    #[arg(long)]
    seed: u64,
    /// Seed of this process's options
    #[arg(long)]
    round: u64,
    /// Where commits go
    #[arg(long, value_enum)]
    medium: plan::SoakMedium,
}

fn main() -> ExitCode {
    let Command { soak, part } = Command::parse();
    let done = match part {
        Some(Part::Child(args)) => child::child(&args),
        None => parent::run(&soak),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("soak: {e}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        super::Command::command().debug_assert();
    }
}
