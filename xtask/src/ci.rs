//! `ci`: everything a change must pass. Quick checks come first, all tests last.

use crate::command::{Counts, cargo, step, timed};
use crate::{Outcome, test, tidy};

pub(crate) fn run() -> Outcome {
    let mut counts = Counts::default();
    step("format", &mut cargo(["fmt", "--all", "--check"]))?;
    timed("house rules", tidy::run)?;
    step("lints", &mut cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    step("documentation", cargo(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))?;
    step(
        "the program",
        &mut cargo(["run", "--release", "--", "demo", "--records", "20000", "--seconds", "1"]),
    )?;
    for medium in ["pmem", "page-cache"] {
        let demo =
            ["run", "--release", "--", "demo", "--medium", medium, "--records", "20000", "--seconds", "1"];
        step(&format!("the program with {medium}"), &mut cargo(demo))?;
    }
    counts.add(test::models()?);
    counts.add(test::workspace()?);
    counts.add(test::other_media()?);
    println!("{}", counts.line());
    Ok(())
}
