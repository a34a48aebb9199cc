//! What a cached get costs in instructions and in cache misses, whatever else the machine does meanwhile.
//!
//! All gets are from one level: what a load has left above it differs from time to time, and is one more search for some of the keys.

use std::fmt::Write;
use std::path::Path;

use crate::args::{ReproArgs, RunArgs};
use crate::engine::Entrant;
use crate::report::median;
use crate::repro::counters::reader::Reader;
use crate::repro::counters::trial::{Trial, Who};
use crate::repro::counters::{FIGURE, Unfit, arguments, caches, hardware, stated, tool};
use crate::repro::{Line, threads};
use crate::scratch::Scratch;
use crate::settings::Peers;
use crate::workload::Workload;
use crate::{Failure, report};

/// Those whose times `inmemory-read` compares, on the same data.
const STEPS: &str = "--workload readrandom --threads 1 --tables 32 --records 6400000 --value-bytes 8 --cache-mib 2048 \
                     --engine terrane-plain,terrane-layers,terrane-vectors,terrane-indexes,terrane,terrane-reader,rocksdb,rocksdb-tuned \
                     --ops 50000";

/// Something that a get costs.
pub(in crate::repro) struct Cost {
    pub(in crate::repro) what: &'static str,
    /// Per get, where that is not said otherwise.
    pub(in crate::repro) measured: f64,
    pub(in crate::repro) note: String,
}

/// What gets of one engine take.
pub(in crate::repro) struct Gets {
    pub(in crate::repro) records: u64,
    /// Median over rounds.
    pub(in crate::repro) nanos: f64,
    pub(in crate::repro) costs: Vec<Cost>,
}

/// Counts the steps that the read path is built of.
pub(super) fn steps(
    a: &ReproArgs,
    dir: &Path,
    see: &mut dyn FnMut(Line) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let args = arguments(FIGURE, STEPS, a)?;
    let peers = Peers::load(&args)?;
    let lacks = hardware::lacks();
    for entrant in args.engine.iter().flat_map(|k| k.entrants(&peers, None)) {
        let own = tempfile::tempdir_in(dir)?;
        let trial = of(&args, &peers, &entrant, own.path());
        let mut costs = counted(&trial, None)?;
        if lacks.is_none() {
            costs.extend(by_hardware(&trial)?);
        }
        for Cost { what, measured, note } in costs {
            let row = format!("{entrant} readrandom {}, {} tables: {what}", threads(1), args.tables);
            see(stated(row, measured, "per get", note))?;
        }
    }
    lacks.into_iter().for_each(|lack| report::note(&format!("{FIGURE}: {lack}")));
    Ok(())
}

/// What is to be known of all that is counted.
pub(in crate::repro) fn about() -> impl Iterator<Item = String> {
    [caches::ABOUT.to_owned()].into_iter().chain(hardware::lacks().map(str::to_owned))
}

/// Times gets of the engine that `command` names, and counts what they cost where valgrind can do that; for `figure`.
pub(in crate::repro) fn cost(a: &ReproArgs, figure: &str, command: &str) -> Result<Gets, Failure> {
    let dir = Scratch::new(a.dir.as_deref())?;
    let args = arguments(figure, command, a)?;
    let peers = Peers::load(&args)?;
    let entrant = args.engine.iter().flat_map(|k| k.entrants(&peers, None)).next();
    let entrant = entrant.ok_or("no engine is named")?;
    let trial = of(&args, &peers, &entrant, dir.path());
    let nanos = median(trial.speeds()?.iter().map(|per_s| 1e9 / per_s).collect());
    let mut costs = Vec::new();
    match tool::check() {
        Ok(()) => costs.extend(counted(&trial, Some(&mut Reader::default()))?),
        // What is missing is the machine's.
        Err(e) if e.is::<Unfit>() => report::note(&format!("{figure}: not counted: {e}")),
        Err(e) => return Err(e),
    }
    if hardware::lacks().is_none() {
        costs.extend(by_hardware(&trial)?);
    }
    Ok(Gets { records: args.records, nanos, costs })
}

fn of<'a>(args: &'a RunArgs, peers: &'a Peers, entrant: &'a Entrant, dir: &'a Path) -> Trial<'a> {
    Trial { args, peers, entrant, workload: Workload::Readrandom, merged: true, dir }
}

/// By valgrind. `reader`, if there is one, names the places where caches miss.
fn counted(trial: &Trial<'_>, reader: Option<&mut Reader>) -> Result<Vec<Cost>, Failure> {
    let (profile, ops) = trial.count(Who::Callers)?;
    let of = |what, n: u64, note| Cost { what, measured: n as f64 / ops as f64, note };
    let mut costs = vec![of("instructions", profile.instructions(), "all in one level".to_owned())];
    costs.extend(caches::rows(profile.misses()).map(|(what, n, model)| of(what, n, model)));
    if let (Some(reader), [.., first, last]) = (reader, &mut costs[..]) {
        let _ = write!(first.note, "; {}", reader.misses(&profile, ops, |missed| missed.first)?);
        let _ = write!(last.note, "; {}", reader.misses(&profile, ops, |missed| missed.last)?);
    }
    Ok(costs)
}

fn by_hardware(trial: &Trial<'_>) -> Result<Vec<Cost>, Failure> {
    let counted = trial.watch()?;
    let of = |what, measured| Cost { what, measured, note: "the processor's own counters".to_owned() };
    let mut costs = vec![of("instructions per cycle", counted.per_cycle)];
    costs.extend(counted.missed.map(|n| of("L1d load misses per 1000 instructions", n)));
    Ok(costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_can_be_read_with_peers_and_without() {
        use clap::Parser;

        use crate::args::{Cli, Command};
        let Ok(Cli { command: Command::Repro(a) }) = Cli::try_parse_from(["bench", "repro", FIGURE]) else {
            panic!("the figure cannot be asked for");
        };
        let args = arguments(FIGURE, STEPS, &a).unwrap();
        let terranes = args.engine.iter().filter(|kind| kind.is_terrane());
        assert_eq!(terranes.count(), 6);
        assert_eq!((args.tables, args.threads[0], args.workload[0]), (32, 1, Workload::Readrandom));
    }
}
