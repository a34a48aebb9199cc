//! `soak`: a program of its own, for it is made of the engine; the other commands are not, and are there soon.

use std::ffi::OsString;

use clap::Args;

use crate::command::cargo;
use crate::{Failure, Outcome};

#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct SoakArgs {
    /// What it is told: `--help` lists it
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

pub(crate) fn run(args: &SoakArgs) -> Outcome {
    let mut c = cargo(["run", "--release", "--package", "terrane-soak", "--"]);
    // What it has to say it says itself.
    match c.args(&args.args).status()?.success() {
        true => Ok(()),
        false => Err(Failure::from("the soak failed")),
    }
}
