//! `pm-commit`: commits of small records in persistent memory, without an index, as their number of records grows, and with it that of
//! threads.

use std::time::Instant;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use terrane::media::PmemMode;
use terrane_format::chain::record_len;

use super::{Hand, KEY_BYTES, Memory, Nodes, ROUNDS, Store, batches, line, part, scaled, together};
use crate::Failure;
use crate::args::ReproArgs;
use crate::report::median;
use crate::repro::{Line, threads as in_words};
use crate::settings::PmCost;

const FIGURE: &str = "pm-commit";
/// With keys of 8 bytes the 24 of the reference.
const VALUE_BYTES: usize = 16;
/// Of one measurement.
const RECORDS: u64 = 3_000_000;
const BATCHES: [usize; 6] = [1, 10, 50, 90, 100, 200];
const THREADS: [u64; 6] = [1, 2, 4, 8, 16, 32];
/// Threads of the rows by batch, and batch of the rows by threads, as in the reference.
const ALL_THREADS: u64 = 32;
const BATCH: usize = 50;
/// What the reference gains from commits of so many records.
const ENOUGH: usize = 90;
const GAIN: f64 = 49.0;
/// Points with a device's costs, which are few: one record, as many as the reference says are enough, and one thread.
const COSTLY: [(usize, u64); 3] = [(1, ALL_THREADS), (ENOUGH, ALL_THREADS), (BATCH, 1)];
/// What there may be lost behind the knee, of the best: a measurement's width.
const KEPT: f64 = 0.9;

/// Records per second, and the longest of a hundred commits in us.
type Measured = (f64, f64);

/// Measures; `see` gets each line as it comes.
pub(in crate::repro) fn measure(
    a: &ReproArgs,
    see: &mut dyn FnMut(Line) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let records = scaled(a, RECORDS);
    for (mode, what) in
        [(a.pm_mode(), a.pm_and_instructions()), (PmemMode::PageCache, "page cache: survives the process")]
    {
        let memory = Memory::create(a, mode, None, record_bytes(records))?;
        let by_batch = all(&memory, records, &BATCHES.map(|batch| (batch, ALL_THREADS)))?;
        let by_threads = all(&memory, records, &THREADS.map(|threads| (BATCH, threads)))?;
        let best = |of: &[Measured]| of.iter().map(|m| m.0).fold(0.0, f64::max);
        for (batch, (speed, p99)) in BATCHES.iter().zip(&by_batch) {
            let row = format!("{ALL_THREADS} threads, {batch} records a commit");
            see(line(
                FIGURE,
                row.clone(),
                None,
                speed / 1e6,
                "M records/s",
                format!("p99 {p99:.1} us; {what}"),
            ))?;
            if *batch > 1 {
                let claimed = (*batch == ENOUGH).then_some(GAIN);
                see(line(FIGURE, row, claimed, speed / by_batch[0].0, "x one record", what.to_owned()))?;
            }
        }
        let last = |of: &[Measured]| of.last().map_or(0.0, |m| m.0) / best(of);
        let row = format!("{ALL_THREADS} threads: largest commits");
        see(line(FIGURE, row, Some(KEPT), last(&by_batch), "of the best", what.to_owned()))?;
        for (threads, (speed, p99)) in THREADS.iter().zip(&by_threads) {
            let row = format!("{threads} threads, {BATCH} records a commit");
            see(line(FIGURE, row, None, speed / 1e6, "M records/s", format!("p99 {p99:.1} us; {what}")))?;
        }
        let row = format!("{BATCH} records a commit: most threads");
        see(line(FIGURE, row, Some(KEPT), last(&by_threads), "of the best", what.to_owned()))?;
    }
    with_costs(a, PmCost::Optane, records, see)
}

/// The same in a memory that takes as long as a device.
fn with_costs(
    a: &ReproArgs,
    costs: PmCost,
    records: u64,
    see: &mut dyn FnMut(Line) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let memory = Memory::create(a, PmemMode::StandIn, Some(costs), record_bytes(records))?;
    let measured = all(&memory, records, &COSTLY)?;
    let what = format!("simulated, with {}", costs.in_words());
    for ((batch, threads), (speed, p99)) in COSTLY.iter().zip(&measured) {
        let row = format!("{}, {batch} records a commit, {}", in_words(*threads), costs.in_words());
        let note = format!("p99 {p99:.1} us; {what}");
        see(line(FIGURE, row.clone(), None, speed / 1e6, "M records/s", note))?;
        if *batch == ENOUGH {
            let gain = speed / measured[0].0;
            see(line(FIGURE, row, Some(GAIN), gain, "x one record", what.clone()))?;
        }
    }
    Ok(())
}

fn record_bytes(records: u64) -> u64 {
    records * record_len(KEY_BYTES, VALUE_BYTES) as u64
}

/// What each of these numbers of records and of threads does, in turns.
fn all(memory: &Memory, records: u64, points: &[(usize, u64)]) -> Result<Vec<Measured>, Failure> {
    let space = memory.open()?;
    let mut rounds = vec![Vec::new(); points.len()];
    for _ in 0..ROUNDS {
        for ((batch, threads), rounds) in points.iter().zip(&mut rounds) {
            // A commit of one record takes as long as one of many.
            let records = if *batch < 10 { records / 10 } else { records };
            let store = Store::create(&space, Nodes::Dram, VALUE_BYTES, false)?;
            rounds.push(run(&store, records, *batch, *threads)?);
            store.release()?;
        }
    }
    let of = |r: &Vec<Measured>, which: fn(&Measured) -> f64| median(r.iter().map(which).collect());
    Ok(rounds.iter().map(|r| (of(r, |m| m.0), of(r, |m| m.1))).collect())
}

fn run(store: &Store, records: u64, batch: usize, threads: u64) -> Result<Measured, Failure> {
    let all = Mutex::new(Histogram::<u64>::new(3)?);
    let seconds = together(threads, |t| {
        let (mut hand, mut numbers) = (Hand::new(), Vec::with_capacity(batch));
        let mut latencies = Histogram::<u64>::new(3)?;
        for places in batches(part(records, t, threads), batch as u64) {
            numbers.clear();
            numbers.extend(places);
            let began = Instant::now();
            store.commit(&mut hand, &numbers)?;
            latencies.record(began.elapsed().as_nanos() as u64)?;
        }
        all.lock().add(&latencies)?;
        Ok(())
    })?;
    let p99 = all.lock().value_at_quantile(0.99) as f64 / 1e3;
    Ok((records as f64 / seconds, p99))
}
