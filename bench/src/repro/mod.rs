//! `repro`: the figures that Terrane claims, measured anew, each beside what is claimed.

mod claim;
mod figures;

use serde::Serialize;

use crate::Failure;
use crate::args::{ReproArgs, RunArgs};
use crate::{report, run};
use claim::Claim;

/// One run of workloads, and what its rows are to show.
struct Part {
    /// The arguments of `terrane-bench run`.
    command: String,
    claims: Vec<Claim>,
}

/// One claim, measured.
#[derive(Clone, Debug, Serialize)]
struct Line {
    figure: &'static str,
    row: String,
    /// What is claimed; nothing where a figure is only stated.
    claimed: Option<f64>,
    measured: f64,
    unit: &'static str,
    note: String,
    /// Whether the claim holds.
    #[serde(skip)]
    holds: bool,
}

pub(crate) fn run(a: &ReproArgs) -> Result<(), Failure> {
    if a.name.iter().any(|n| n == "list") {
        for f in figures::ALL {
            report::say(&format!("{:<14}{}", f.name, f.about));
        }
        return Ok(());
    }
    if cfg!(not(feature = "peers")) {
        return Err("the figures compare Terrane with RocksDB: build it in with `--features peers`".into());
    }
    if !(a.scale > 0.0 && a.scale <= 1.0) {
        return Err(format!("--scale {}: above 0, at most 1", a.scale).into());
    }
    let all = a.name.iter().any(|n| n == "all");
    if let Some(unknown) = a.name.iter().find(|n| *n != "all" && figures::named(n).is_none()) {
        return Err(format!("there is no figure {unknown:?}; `terrane-bench repro list` names them").into());
    }
    let wanted = figures::ALL.iter().filter(|f| all || a.name.iter().any(|n| n == f.name));
    for figure in wanted {
        for part in (figure.parts)() {
            report::note(&format!("{}: terrane-bench run {}", figure.name, part.command));
            let mut args = RunArgs::from_line(&part.command)?;
            args.scale(a.scale);
            args.dir.clone_from(&a.dir);
            let rows = run::rows(&args, &mut |row| {
                report::note(&if a.rows { serde_json::to_string(row)? } else { row.line() });
                Ok(())
            })?;
            for claim in &part.claims {
                let line = claim.line(figure.name, &args, &rows)?;
                report::say(&if a.json { serde_json::to_string(&line)? } else { line.text() });
            }
        }
    }
    Ok(())
}

impl Line {
    fn text(&self) -> String {
        let claimed = self.claimed.map_or_else(String::new, |c| {
            format!("{} ({c} claimed)", if self.holds { "holds" } else { "FALLS SHORT" })
        });
        format!(
            "{:<12} {:<36} {:>9.2} {:<14} {claimed:<28} {}",
            self.figure, self.row, self.measured, self.unit, self.note
        )
    }
}
