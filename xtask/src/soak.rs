//! `soak`: a program of its own, for it is made of the engine; the other commands are not, and are there soon.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;

use clap::Args;

use crate::Outcome;
use crate::command::{cargo, root};

#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct SoakArgs {
    /// Its options: `cargo xtask soak --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Becomes the soak: what ends this process ends that. Returns only if it cannot.
pub(crate) fn run(args: &SoakArgs) -> Outcome {
    let mut c = cargo(["run", "--release", "--package", "terrane-soak", "--manifest-path"]);
    // Paths that it is given are those of whoever calls.
    c.arg(root().join("Cargo.toml")).arg("--").args(&args.args).current_dir(std::env::current_dir()?);
    Err(c.exec().into())
}
