//! Counts in place of times: what an operation costs in instructions, in cache misses, in atomic read-modify-writes, and in lines of
//! memory that threads share. They say the same on a busy machine, and on one with few cores.
//!
//! Valgrind runs one thread at a time, in turns of some 100,000 jumps. So threads that meet only where one waits (for a
//! flush, say) do so as ever; the retries of those that meet on a word at the same moment do not occur.

mod caches;
mod code;
mod gets;
mod hardware;
mod maps;
mod place;
mod profile;
mod reader;
mod tool;
mod trace;
mod trial;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::rc::Rc;

use crate::Failure;
use crate::args::{ReproArgs, RunArgs};
use crate::engine::{Entrant, Kind};
use crate::report;
use crate::repro::{Line, threads, without_absent};
use crate::scratch::Scratch;
use crate::settings::Peers;
use crate::workload::Workload;
pub(super) use gets::{Cost, about, cost};
use profile::{Misses, Site};
use reader::{Found, Reader};
pub(super) use tool::Unfit;
use trial::{Trial, Who};

/// The figure's name.
const FIGURE: &str = "counters";

/// Operations that are counted.
struct Counted {
    /// What a user calls one.
    name: &'static str,
    workload: Workload,
    who: Who,
    /// Further arguments of `terrane-bench run`.
    command: &'static str,
}

const fn counted(name: &'static str, workload: Workload, who: Who, command: &'static str) -> Counted {
    Counted { name, workload, who, command }
}

const READS: &str = "--engine terrane,rocksdb --records 200000 --ops 50000 --memtable-mib 16";

const COUNTED: [Counted; 13] = {
    use Who::{Background, Callers};
    use Workload::{Fillrandom, Readrandom, Seek, Seekrandom};
    // All in one memtable: valgrind slows flushes down as much as writers, who would be paced.
    const ONE: &str = "--threads 1 --engine terrane,rocksdb --records 200000";
    const MANY: &str = "--threads 32 --engine terrane --records 200000";
    // Five memtables, written out and merged.
    const ONE_MERGED: &str = "--threads 1 --engine terrane,rocksdb --records 200000 --memtable-mib 16";
    const MANY_MERGED: &str = "--threads 32 --engine terrane --records 200000 --memtable-mib 16";
    const SYNCED: &str = "--threads 1 --engine terrane --records 2000 --sync";
    const MANY_SYNCED: &str = "--threads 32 --engine terrane --records 6400 --sync";
    const READ_BY_ITSELF: &str =
        "--threads 1 --engine terrane-reader --records 200000 --ops 50000 --memtable-mib 16";
    const READ_BY_MANY: &str = "--threads 32 --engine terrane --records 200000 --ops 64000 --memtable-mib 16";
    [
        counted("get", Readrandom, Callers, READS),
        counted("get", Readrandom, Callers, READ_BY_MANY),
        counted("get by a reader", Readrandom, Callers, READ_BY_ITSELF),
        counted("seek", Seek, Callers, READS),
        counted("seek and 10 records", Seekrandom, Callers, READS),
        counted("put", Fillrandom, Callers, ONE),
        counted("put", Fillrandom, Background, ONE_MERGED),
        counted("put", Fillrandom, Callers, MANY),
        counted("put", Fillrandom, Background, MANY_MERGED),
        counted("synced commit", Fillrandom, Callers, SYNCED),
        counted("synced commit", Fillrandom, Background, SYNCED),
        counted("synced commit", Fillrandom, Callers, MANY_SYNCED),
        counted("synced commit", Fillrandom, Background, MANY_SYNCED),
    ]
};

/// Lookups of which every access is followed: few, for each is a thousand lines of text.
const TRACED: &str =
    "--workload readrandom --engine terrane,rocksdb --threads 4 --records 10000 --ops 2400 --memtable-mib 4";

/// Measures everything; `see` gets each line as it comes.
pub(super) fn measure(
    a: &ReproArgs,
    see: &mut dyn FnMut(Line) -> Result<(), Failure>,
) -> Result<(), Failure> {
    tool::check()?;
    let dir = Scratch::new(a.dir.as_deref())?;
    let mut reader = Reader::default();
    report::note(&format!("{FIGURE}: {}", caches::ABOUT));
    for c in &COUNTED {
        let args = arguments(FIGURE, &format!("--workload {} {}", c.workload, c.command), a)?;
        count(c, &args, dir.path(), &mut reader)?.into_iter().try_for_each(&mut *see)?;
    }
    gets::steps(a, dir.path(), see)?;
    // As small as it can be.
    let args = arguments(FIGURE, TRACED, &ReproArgs { scale: 1.0, ..a.clone() })?;
    trace(&args, dir.path(), &mut reader)?.into_iter().try_for_each(see)
}

fn arguments(figure: &str, command: &str, a: &ReproArgs) -> Result<RunArgs, Failure> {
    // Terrane's own counts need no peer, and no peer has to be built for them.
    let command = without_absent(command);
    report::note(&format!("{figure}: what is counted: terrane-bench run {command}"));
    let mut args = RunArgs::from_line(&command)?;
    args.scale(a.scale);
    Ok(args)
}

/// What all engines do, and the lines about it.
fn count(c: &Counted, args: &RunArgs, dir: &Path, reader: &mut Reader) -> Result<Vec<Line>, Failure> {
    let peers = Peers::load(args)?;
    let (mut instructions, mut misses, mut rmws) = (Vec::new(), Vec::new(), Vec::new());
    for entrant in args.engine.iter().flat_map(|k| k.entrants(&peers, None)) {
        let trial =
            Trial { args, peers: &peers, entrant: &entrant, workload: c.workload, merged: false, dir };
        let (profile, ops) = trial.count(c.who)?;
        let per_op = |n: u64| n as f64 / ops as f64;
        report::note(&format!(
            "{entrant}: {:.0} instructions per {}",
            per_op(profile.instructions()),
            c.name
        ));
        instructions.push((entrant.clone(), per_op(profile.instructions())));
        if trial.models_caches(c.who) {
            misses.push((entrant.clone(), profile.misses(), ops));
        }
        let found = reader.rmws(&profile)?;
        rmws.push((entrant, per_op(found.total()), found.says(ops)));
    }
    let row = |what: &str| {
        let who = if c.who == Who::Background { ", background" } else { "" };
        format!("{} {}{who}: {what}", c.name, threads(args.threads[0]))
    };
    let mut lines = Vec::new();
    let ours = instructions.iter().find(|(e, _)| e.kind.is_terrane()).map(|&(_, n)| n);
    let theirs = instructions.iter().filter(|(e, _)| !e.kind.is_terrane()).map(|&(_, n)| n).reduce(f64::min);
    let each: Vec<_> = instructions.iter().map(|(e, n)| format!("{e} {n:.0}")).collect();
    let each = each.join(", ");
    lines.extend(match (ours, theirs) {
        (Some(ours), Some(theirs)) => Some(stated(row("instructions"), ours / theirs, "x RocksDB's", each)),
        (Some(ours), None) => Some(stated(row("instructions"), ours, "per operation", each)),
        (None, _) => None,
    });
    lines.extend(missed(&misses).map(|(what, ours, note)| stated(row(what), ours, "per operation", note)));
    if let Some((_, total, says)) = rmws.iter().find(|(e, ..)| e.kind.is_terrane()) {
        let mut note = says.clone();
        for (entrant, total, _) in rmws.iter().filter(|(e, ..)| !e.kind.is_terrane()) {
            let _ = write!(note, "; {entrant} {total:.2} in all");
        }
        lines.push(stated(row("atomic RMWs"), *total, "per operation", note));
    }
    Ok(lines)
}

/// By level of cache: what is counted, how many there were of Terrane's per operation, and of each engine's. Each engine comes with the number of
/// its operations.
fn missed(all: &[(Entrant, Misses, u64)]) -> impl Iterator<Item = (&'static str, f64, String)> {
    let ours = all.iter().find(|(e, ..)| e.kind.is_terrane());
    let levels = ours.map(|(_, misses, ops)| {
        caches::rows(*misses).into_iter().enumerate().map(move |(level, (what, n, model))| {
            let each = all.iter().map(|(e, misses, ops)| {
                let (_, n, _) = &caches::rows(*misses)[level];
                format!("{e} {:.2}", *n as f64 / *ops as f64)
            });
            let each: Vec<_> = each.collect();
            (what, n as f64 / *ops as f64, format!("{model}; {}", each.join(", ")))
        })
    });
    levels.into_iter().flatten()
}

/// Which lines of memory cached lookups write that other threads touch.
fn trace(args: &RunArgs, dir: &Path, reader: &mut Reader) -> Result<Vec<Line>, Failure> {
    let peers = Peers::load(args)?;
    let own: Rc<str> = std::env::current_exe()?.to_string_lossy().into();
    let (mut lines, mut theirs) = (Vec::new(), String::new());
    for entrant in args.engine.iter().flat_map(|k| k.entrants(&peers, None)) {
        // Not that of the engine's transactions.
        let entry = format!("::{}::Handle", entrant.kind.name());
        let entries =
            reader.code(&own)?.functions(|f| f.contains(&entry) && f.ends_with("engine::Session>::get"));
        let [entry] = entries[..] else {
            return Err(format!("{entrant}: {} functions are its lookup", entries.len()).into());
        };
        let (peers, entrant) = (&peers, &entrant);
        let trial = Trial { args, peers, entrant, workload: Workload::Readrandom, merged: false, dir };
        let (shared, maps) = trial.trace(entry)?;
        if shared.lookups == 0 || shared.threads < 2 {
            return Err(format!("{entrant}: no lookup could be followed").into());
        }
        let mut found = |stores: &BTreeMap<u64, u64>| -> Result<Found, Failure> {
            let unknown = Site { object: "elsewhere".into(), address: 0 };
            let all = stores.iter().map(|(&at, &n)| (maps.site(at).unwrap_or(unknown.clone()), n));
            reader.found(all.map(|(site, times)| (site, "?".into(), times)).collect())
        };
        let (many, read) = (found(&shared.written_by_many)?, found(&shared.read_by_others)?);
        let per_get = |n: u64| n as f64 / shared.lookups as f64;
        report::note(&format!(
            "{entrant}: {:.3} stores per get to lines that others write",
            per_get(many.total())
        ));
        if entrant.kind != Kind::Terrane {
            let (many, read) = (per_get(many.total()), per_get(read.total()));
            let _ = write!(theirs, "; {entrant} {many:.3}, and {read:.3} to lines that others read");
            continue;
        }
        let stores = per_get(shared.stores);
        let note = format!("of {stores:.0} stores in all; {}", many.says(shared.lookups));
        let row = |what| format!("get {} threads: {what}", shared.threads);
        let measured = per_get(many.total());
        let claimed = Some(0.0);
        let line = stated(row("stores to lines that others write"), measured, "per get", note);
        lines.push(Line { claimed, holds: measured == 0.0, ..line });
        let note =
            format!("{:.3} loads by others; {}", per_get(shared.loads_by_others), read.says(shared.lookups));
        lines.push(stated(row("stores to lines that others read"), per_get(read.total()), "per get", note));
    }
    lines.iter_mut().take(1).for_each(|line| line.note.push_str(&theirs));
    Ok(lines)
}

fn stated(row: String, measured: f64, unit: &str, note: String) -> Line {
    Line { figure: FIGURE, row, claimed: None, measured, unit: unit.to_owned(), note, holds: true }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    #[test]
    fn every_command_can_be_read() {
        let own = COUNTED.iter().map(|c| format!("--workload {} {}", c.workload, c.command));
        let Ok(Cli { command: Command::Repro(a) }) = Cli::try_parse_from(["bench", "repro", FIGURE]) else {
            panic!("the figure cannot be asked for");
        };
        for command in own.chain([TRACED.to_owned()]) {
            arguments(FIGURE, &command, &a).unwrap();
        }
    }
}
