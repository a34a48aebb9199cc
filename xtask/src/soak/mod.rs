//! `soak`: kills a writing process again and again, and verifies what it left.
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

mod child;
mod parent;
mod plan;
mod verify;

use std::path::PathBuf;

use clap::Args;

pub(crate) use child::child;
pub(crate) use parent::run;

#[derive(Debug, Args)]
pub(crate) struct SoakArgs {
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
pub(crate) struct ChildArgs {
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
