//! `repro`: the figures that Terrane claims, measured anew, each beside what is claimed.

mod claim;
mod counters;
mod figures;
mod floor;
mod halloc;
mod in_memory;
mod parts;
mod pm;

use std::path::Path;

use serde::Serialize;

use crate::Failure;
use crate::args::{ReproArgs, RunArgs};
use crate::report::Row;
use crate::{machine, report, run, scratch};
use claim::Claim;

/// A part of a figure.
enum Part {
    /// One run of workloads, and what its rows are to show.
    Rows {
        /// The arguments of `terrane-bench run`.
        command: String,
        claims: Vec<Claim>,
    },
    /// The same with all files in main memory, where there is room for them.
    InMemory { command: String, claims: Vec<Claim> },
    /// Counts of what workers do, by tools that look into them.
    Counters,
    /// What a get costs beside what a load from memory costs.
    Floor,
    /// What a core keeps in the cache beside another one.
    Parts,
    /// What allocating persistent memory takes.
    Halloc,
    /// Memtables in persistent memory.
    PmMemtable,
    /// Commits in persistent memory.
    PmCommit,
    /// What comes up again of persistent memory.
    PmRecovery,
    /// A database with persistent memory that grows.
    PmGrowth,
}

/// One claim, measured.
#[derive(Clone, Debug, Serialize)]
struct Line {
    figure: &'static str,
    row: String,
    /// What is claimed; nothing where a figure is only stated.
    claimed: Option<f64>,
    measured: f64,
    unit: String,
    note: String,
    /// Whether the claim holds.
    #[serde(skip)]
    holds: bool,
}

pub(crate) fn run(a: &ReproArgs) -> Result<(), Failure> {
    if a.name.iter().any(|n| n == "list") {
        for f in figures::ALL {
            report::say(&format!("{:<16}{}", f.name, f.about))?;
        }
        return Ok(());
    }
    if !(a.scale > 0.0 && a.scale <= ReproArgs::MOST_SCALE) {
        return Err(format!("--scale {}: above 0, at most {}", a.scale, ReproArgs::MOST_SCALE).into());
    }
    let all = a.name.iter().any(|n| n == "all");
    if let Some(unknown) = a.name.iter().find(|n| *n != "all" && figures::named(n).is_none()) {
        return Err(format!("there is no figure {unknown:?}; `terrane-bench repro list` names them").into());
    }
    let wanted = figures::ALL.iter().filter(|f| all || a.name.iter().any(|n| n == f.name));
    for figure in wanted {
        let chosen = |part: &Part| !a.in_memory || matches!(part, Part::InMemory { .. });
        let parts: Vec<Part> = (figure.parts)().into_iter().filter(chosen).collect();
        if parts.is_empty() {
            report::note(&format!("{}: no part of it is of files in main memory", figure.name));
        }
        for part in parts {
            match part {
                Part::Rows { command, claims } => measure(a, figure.name, &command, &claims)?,
                Part::InMemory { command, claims } => in_main_memory(a, figure.name, &command, &claims)?,
                Part::Floor => floor::measure(a, &mut |line| line.say(a))?,
                Part::Halloc => halloc::measure(a, &mut |line| line.say(a))?,
                Part::PmMemtable => pm::memtable::measure(a, &mut |line| line.say(a))?,
                Part::PmCommit => pm::commit::measure(a, &mut |line| line.say(a))?,
                Part::PmGrowth => pm::growth::measure(a, &mut |line| line.say(a))?,
                Part::PmRecovery => pm::recovery::measure(a, &mut |line| line.say(a))?,
                Part::Parts => parts::measure(a, &mut |line| line.say(a))?,
                Part::Counters => match counters::measure(a, &mut |line| line.say(a)) {
                    // What is missing is the machine's; the other figures do without.
                    Err(e) if e.is::<counters::Unfit>() => {
                        report::note(&format!("{}: skipped: {e}", figure.name));
                    }
                    done => done?,
                },
            }
        }
    }
    Ok(())
}

/// Runs workloads, and says what their rows show.
fn measure(a: &ReproArgs, figure: &'static str, command: &str, claims: &[Claim]) -> Result<(), Failure> {
    if cfg!(not(feature = "peers")) && without_absent(command) != command {
        return Err(format!(
            "{figure}: it compares Terrane with RocksDB: build that in with `--features peers`"
        )
        .into());
    }
    let (args, rows) = rows_of(a, figure, command)?;
    claims.iter().try_for_each(|claim| match claim.line(figure, &args, &rows) {
        Some(line) => line.say(a),
        None => {
            let what = claim.of.names().0;
            report::note(&format!(
                "{figure}: {}: {what}: no row says it: too short a run, or nothing to count",
                claim.workload
            ));
            Ok(())
        }
    })
}

/// As [`measure`], with all files in main memory; where there is no room for that, says so.
fn in_main_memory(
    a: &ReproArgs,
    figure: &'static str,
    command: &str,
    claims: &[Claim],
) -> Result<(), Failure> {
    let mut args = RunArgs::from_line(command)?;
    args.scale(a.scale);
    let dir = scratch::MAIN_MEMORY;
    match no_room(scratch::main_memory(), &args)? {
        Some(why) => report::note(&format!("{figure}: skipped in {dir}: {why}")),
        None => measure(a, figure, &format!("{command} --dir {dir}"), claims)?,
    }
    Ok(())
}

/// Why a run cannot have its files in main memory, if so.
fn no_room(dir: Option<&Path>, args: &RunArgs) -> Result<Option<String>, Failure> {
    let Some(dir) = dir else { return Ok(Some("there is no such directory".to_owned())) };
    let Some(room) = machine::room_in_memory(dir)? else {
        return Ok(Some("that is not in main memory".to_owned()));
    };
    Ok(is_short(room, args))
}

/// Why a run needs more of main memory than that, if so.
fn is_short(room: u64, args: &RunArgs) -> Option<String> {
    // Data, logs, and what is merged again: of all engines at the same time, and of one that is filled anew.
    const TIMES: u64 = 4;
    const MORE: u64 = 1 << 30;
    let data = args.records * (args.key_bytes + args.value_bytes) * TIMES;
    let each = data + ((args.cache_mib + args.memtable_mib) << 20);
    let wanted = each * args.engine.len() as u64 + MORE;
    (wanted > room).then(|| format!("it has room for {} MiB, of {}", room >> 20, wanted >> 20))
}

/// Runs workloads at the scale that is wanted.
fn rows_of(a: &ReproArgs, figure: &str, command: &str) -> Result<(RunArgs, Vec<Row>), Failure> {
    let mut args = RunArgs::from_line(command)?;
    args.scale(a.scale);
    if args.dir.is_none() {
        args.dir.clone_from(&a.dir);
    }
    if args.pm_cost.is_none() {
        args.pm_dir.clone_from(&a.pm_dir);
    }
    let place = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    std::fs::create_dir_all(&place)?;
    let system = machine::file_system(&place)?;
    report::note(&format!("{figure}: terrane-bench run {command} (on {system})"));
    let rows = run::rows(&args, &mut |row| {
        report::note(&if a.rows { serde_json::to_string(row)? } else { row.line() });
        Ok(())
    })?;
    Ok((args, rows))
}

/// A command without the peers among its engines, where they are not built in.
fn without_absent(command: &str) -> String {
    const PEERS: [&str; 7] = [
        ",rocksdb-tuned",
        ",rocksdb-unsynced",
        ",rocksdb-small",
        ",rocksdb-piled",
        ",rocksdb",
        ",fjall",
        ",lmdb",
    ];
    let absent = if cfg!(feature = "peers") { &[][..] } else { &PEERS };
    absent.iter().fold(command.to_owned(), |command, peer| command.replace(peer, ""))
}

fn threads(n: u64) -> String {
    if n == 1 { "1 thread".to_owned() } else { format!("{n} threads") }
}

impl Line {
    fn say(&self, a: &ReproArgs) -> Result<(), Failure> {
        report::say(&if a.json { serde_json::to_string(self)? } else { self.text() })
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_in_main_memory_where_that_is_and_has_room() {
        let of = |records: u64| {
            RunArgs::from_line(&format!("--workload fillrandom --records {records} --value-bytes 8")).unwrap()
        };
        let why = |dir: Option<&str>, records| no_room(dir.map(Path::new), &of(records)).unwrap();
        assert!(why(None, 1).unwrap().contains("no such directory"));
        assert!(why(Some("/proc"), 1).unwrap().contains("not in main memory"));
        // Of 24 bytes with the key; and a cache, and memtables.
        assert!(is_short(8 << 30, &of(1_000_000)).is_none());
        assert!(is_short(8 << 30, &of(100_000_000)).unwrap().contains("room for 8192 MiB"));
        assert!(is_short(1 << 30, &of(1)).is_some());
    }
}
