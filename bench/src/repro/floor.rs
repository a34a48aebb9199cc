//! What a cached get costs beside the least that it could: loads from memory, each of which has to wait for the one before.
//!
//! A get in a run goes through three things that lie anywhere in memory, each found by the one before: the index, the data block and
//! the record in it. So three loads are its floor.

use std::hint::black_box;
use std::time::Instant;

use memmap2::{Advice, MmapMut};

use crate::Failure;
use crate::args::ReproArgs;
use crate::choice::Random;
use crate::report::median;
use crate::repro::{Line, rows_of};

const FIGURE: &str = "get-cost";
/// Much more than any processor's cache.
const BYTES: usize = 512 << 20;
/// What a processor loads at once.
const LINE: usize = 64;
const LOADS: usize = 5_000_000;
/// See the module's head.
const LEAST_LOADS: f64 = 3.0;
const GETS: &str = "--workload readrandom --engine terrane --records 5000000 --ops 1000000000 --seconds 6";

/// Measures; `see` gets each line as it comes.
pub(super) fn measure(
    a: &ReproArgs,
    see: &mut dyn FnMut(Line) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let huge = load_nanos(Some(Advice::HugePage))?;
    see(line("a load from 512 MiB, huge pages", huge, "ns", String::new()))?;
    see(line("a load from 512 MiB, 4 KiB pages", load_nanos(None)?, "ns", String::new()))?;

    let (args, rows) = rows_of(a, FIGURE, GETS)?;
    let nanos = median(rows.iter().map(|r| 1e9 / r.ops_per_s).collect());
    see(line("readrandom 1 thread: a get", nanos, "ns", format!("{} records", args.records)))?;
    let note = format!("{LEAST_LOADS} are the least: index, data block, record");
    see(line("readrandom 1 thread: a get", nanos / huge, "loads' worth", note))
}

fn line(row: &str, measured: f64, unit: &str, note: String) -> Line {
    Line {
        figure: FIGURE,
        row: row.to_owned(),
        claimed: None,
        measured,
        unit: unit.to_owned(),
        note,
        holds: true,
    }
}

/// How long a load takes whose address the one before has given: along a circle through all lines, in no order.
fn load_nanos(pages: Option<Advice>) -> Result<f64, Failure> {
    let mut memory = MmapMut::map_anon(BYTES)?;
    if let Some(advice) = pages {
        memory.advise(advice)?;
    }
    circle(&mut memory, &mut Random::new(1));
    let mut at = 0;
    let began = Instant::now();
    for _ in 0..LOADS {
        at = next(&memory, at);
    }
    let nanos = began.elapsed().as_nanos() as f64 / LOADS as f64;
    black_box(at);
    Ok(nanos)
}

/// Has each line name another one, so that all lie on one circle (Sattolo's shuffle).
fn circle(memory: &mut [u8], random: &mut Random) {
    let lines = memory.len() / LINE;
    let mut order: Vec<u32> = (0..lines as u32).collect();
    for i in (1..lines).rev() {
        order.swap(i, random.below(i as u64) as usize);
    }
    for (line, next) in memory.chunks_exact_mut(LINE).zip(order) {
        line[..4].copy_from_slice(&next.to_le_bytes());
    }
}

fn next(memory: &[u8], at: usize) -> usize {
    let mut next = [0; 4];
    next.copy_from_slice(&memory[at * LINE..][..4]);
    u32::from_le_bytes(next) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_goes_through_every_line() {
        let mut memory = vec![0; 1000 * LINE];
        circle(&mut memory, &mut Random::new(7));
        let mut seen = vec![false; 1000];
        let mut at = 0;
        while !std::mem::replace(&mut seen[at], true) {
            at = next(&memory, at);
        }
        assert!(at == 0 && seen.iter().all(|s| *s));
    }
}
