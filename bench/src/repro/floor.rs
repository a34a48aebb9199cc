//! What a cached get costs beside the least that it could: loads from memory, each of which has to wait for the one before.
//!
//! A get in a run goes through three things that lie anywhere in memory, each found by the one before: the index, the data block and
//! the record in it. So three loads are its floor. What else it loads is listed ([`WAITS`]), and counted by place; and its time where no
//! load goes to memory tells what of the whole is its instructions'.

use std::hint::black_box;
use std::time::Instant;

use memmap2::{Advice, MmapMut};

use crate::Failure;
use crate::args::ReproArgs;
use crate::choice::Random;
use crate::report;
use crate::repro::Line;
use crate::repro::counters::{self, Cost};

const FIGURE: &str = "get-cost";
/// Much more than any processor's cache.
const BYTES: usize = 512 << 20;
/// What a processor loads at once.
const LINE: usize = 64;
const LOADS: usize = 5_000_000;
/// See the module's head.
const LEAST_LOADS: f64 = 3.0;
/// So many seconds are timed, and so many operations counted.
const GETS: &str = "--workload readrandom --engine terrane --records 5000000 --seconds 6 --ops 100000";
/// The same of records that a core's own caches hold, with their index and filters: without loads from memory.
const NEAR: &str = "--workload readrandom --engine terrane --records 2000 --seconds 2 --ops 100000";

/// What a get waits for where all is cached and in one level. (`read/lookup.rs`, `read/near.rs`, `levels/run/mod.rs` and
/// `levels/extent/mod.rs` of the engine; `swizzle.rs` and `frame.rs` of the cache; `two_layer.rs`, `foresight.rs` and `lookup.rs` of blocks.)
const WAITS: [&str; 12] = [
    "what a get waits for, each found by the one before; [floor] is what its floor has:",
    " 1. the subtable's state, version and run, and the memtables, which are empty: the same lines for all gets",
    " 2. the bounds of the run's extents: 8 bytes each, halved in a search",
    " 3. the extent: the reference to it, its object; from there its description, and its slots",
    " 4. the header of the index's frame, which has its length, and beside it the head of the array of blocks' slots",
    " 5. [floor] the index: the root of its directory",
    " 6. the index's inner node, and beside it the slots of eight blocks",
    " 7. the block's slot, in one of these lines: it has the block's length and the place of its filter",
    " 8. [floor] the block: its frame's header, its trailer and the root of its directory, asked for together; meanwhile the filter's line",
    " 9. [floor] the record: an inner node, a leaf's offset and the leaf, asked for with 8 where keys are spread as evenly as here, so that \
     8 and 9 are one wait; else inner node with offset, and leaf, are two more",
    "2 to 7 are some 5 KiB of each extent of 2 MiB: in the second level of cache, or the last, unless there are many more. 8 and 9 are \
     anywhere in the data: from memory, some nine lines at the same time",
    "beyond the floor are: 2, 3, 4, 6 and 7, at the speed of those levels; the filter, if it comes later than the block; and instructions",
];

/// Measures; `see` gets each line as it comes.
pub(super) fn measure(
    a: &ReproArgs,
    see: &mut dyn FnMut(Line) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let huge = load_nanos(Some(Advice::HugePage))?;
    see(line("a load from 512 MiB, huge pages", huge, "ns", String::new()))?;
    see(line("a load from 512 MiB, 4 KiB pages", load_nanos(None)?, "ns", String::new()))?;

    let mut all = [0.0; 2];
    for (gets, nanos) in [GETS, NEAR].into_iter().zip(&mut all) {
        let gets = counters::cost(a, FIGURE, gets)?;
        let row = format!("a get of {} records", gets.records);
        *nanos = gets.nanos;
        see(line(&row, *nanos, "ns", "1 thread, all in one level".to_owned()))?;
        for Cost { what, measured, note } in gets.costs {
            see(line(&row, measured, what, note))?;
        }
    }
    let [far, near] = all;
    let note = format!("{LEAST_LOADS} are the least: index, data block, record");
    see(line("a get", far / huge, "loads' worth", note))?;
    let note = "what its instructions take where a core's own caches hold all".to_owned();
    see(line("a get without waits for memory", near / huge, "loads' worth", note))?;
    counters::about().for_each(|known| report::note(&format!("{FIGURE}: {known}")));
    WAITS.iter().for_each(|wait| report::note(&format!("{FIGURE}: {wait}")));
    Ok(())
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
