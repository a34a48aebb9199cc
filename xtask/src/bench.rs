//! `bench`: the demonstration workload, in numbers.

use clap::Args;

use crate::Outcome;
use crate::command::{cargo, step};

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// Records to write
    #[arg(long, default_value_t = 1_000_000)]
    records: u64,
    /// Seconds of the mixed workload
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &BenchArgs) -> Outcome {
    let mut c = cargo(["run", "--release", "--", "demo", "--records"]);
    c.arg(args.records.to_string()).arg("--seconds").arg(args.seconds.to_string());
    if args.json {
        c.arg("--json");
    }
    step("bench", &mut c)
}
