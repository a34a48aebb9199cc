//! `pm-recovery`: building the index of a memtable in persistent memory again, by one thread and by two; and opening a database with that after
//! its process died, against opening one that replays the log of the same records.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use terrane_chainlog::{ChainIndex, recover};
use terrane_format::chain::record_len;

use super::{Hand, KEY_BYTES, Memory, Nodes, ROUNDS, Store, batches, index, line, scaled, together};
use crate::Failure;
use crate::args::ReproArgs;
use crate::data::Shuffle;
use crate::report::median;
use crate::repro::figures::PM;
use crate::repro::{Line, rows_of, threads as in_words};

const FIGURE: &str = "pm-recovery";
/// Of 16 bytes and 100, as the log's: some 256 MiB.
const RECORDS: u64 = 2_000_000;
/// With keys of 8 bytes as long as those are.
const VALUE_BYTES: usize = 108;
const BATCH: u64 = 50;
/// Seconds that the reference's cores take between them for a GiB: 104 have 32 GB in nearly one.
const CORE_SECONDS: f64 = 104.0 / (32e9 / (1 << 30) as f64);

/// Measures; `see` gets each line as it comes.
pub(in crate::repro) fn measure(
    a: &ReproArgs,
    see: &mut dyn FnMut(Line) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let records = scaled(a, RECORDS);
    let bytes = records * record_len(KEY_BYTES, VALUE_BYTES) as u64;
    let memory = Memory::create(a, a.pm_mode(), None, bytes)?;
    let shuffle = Shuffle::new(records, 7);
    let store = Store::create(&memory.open()?, Nodes::Dram, VALUE_BYTES, false)?;
    let mut hand = Hand::new();
    for places in batches(0..records, BATCH) {
        store.commit(&mut hand, &places.map(|n| shuffle.at(n)).collect::<Vec<_>>())?;
    }
    drop(store);
    for threads in [1, 2] {
        let (mut found, mut built) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let began = Instant::now();
            let space = memory.open()?;
            let mut recovered = recover(&space, 0)?;
            found.push(began.elapsed().as_secs_f64() * 1e3);
            let chain = recovered.chains.pop().ok_or("the memtable is gone")?;
            let memtable = ChainIndex::new(chain, index(&space, Nodes::Dram));
            let (next, slots) = (AtomicU32::new(0), memtable.chain().slots()?);
            built.push(together(threads, |_| {
                loop {
                    let slot = next.fetch_add(1, Ordering::Relaxed);
                    if slot >= slots {
                        return Ok(());
                    }
                    memtable.rebuild(slot, |_, _| Ok(true))?;
                }
            })?);
            if memtable.index().len() as u64 != records {
                return Err(format!("{} of {records} records were found", memtable.index().len()).into());
            }
        }
        let seconds = median(built);
        let note = format!("{}; {records} records, {} MiB without headers", a.pm_in_words(), bytes >> 20);
        if threads == 1 {
            let row = "opening, and what was committed".to_owned();
            see(line(FIGURE, row, None, median(found), "ms", note.clone()))?;
        }
        let row = format!("rebuild, {}", in_words(threads));
        let gib = bytes as f64 / f64::from(1 << 30);
        see(line(FIGURE, row.clone(), None, seconds * 1e3, "ms", note.clone()))?;
        let measured = seconds * threads as f64 / gib;
        let (claimed, unit) = (Some(CORE_SECONDS), "s of a core/GiB".to_owned());
        see(Line { figure: FIGURE, row, claimed, measured, unit, note, holds: measured <= CORE_SECONDS })?;
    }
    let engines = if cfg!(feature = "peers") { "terrane-pm,terrane,rocksdb" } else { "terrane-pm,terrane" };
    // Beside what is to be measured memory for it: nothing is written out.
    let command = format!(
        "--workload reopen-killed --engine {engines} --records {RECORDS} --memtable-mib 2048 --rounds {ROUNDS}"
    );
    let (_, rows) = rows_of(a, FIGURE, &command)?;
    let speed = |engine: &str| {
        let of = rows.iter().filter(|r| r.engine == engine).map(|r| r.ops_per_s / 1e6);
        median(of.collect())
    };
    if !rows.iter().any(|r| r.engine == PM) {
        return Err(format!("{FIGURE}: there is no row of {PM}").into());
    }
    let mut names: Vec<&str> = rows.iter().map(|r| r.engine.as_str()).filter(|name| *name != PM).collect();
    names.sort_unstable();
    names.dedup();
    for engine in names {
        let (ours, theirs) = (speed(PM), speed(engine));
        let row = format!("open after the process died: {engine}");
        let note = format!("{}; {ours:.2} M records/s against {theirs:.2}", a.pm_in_words());
        see(line(FIGURE, row, Some(1.0), ours / theirs, "x its opening", note))?;
    }
    Ok(())
}
