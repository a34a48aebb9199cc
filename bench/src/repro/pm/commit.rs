//! `pm-commit`: commits of small records in persistent memory, as their number of records grows, and with it that of threads: by the parts
//! that store and order them, without an index, and through the whole engine, which has one.

use std::time::Instant;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use terrane::media::PmemMode;
use terrane::{Db, Durability, Medium, Options, PmemOptions, SubtableOptions, WriteBatch};
use terrane_format::chain::{ITEM_HEADER, record_len};

use super::{Hand, KEY_BYTES, Memory, Nodes, ROUNDS, Store, batches, dir_of, line, part, scaled, together};
use crate::Failure;
use crate::args::ReproArgs;
use crate::report::median;
use crate::repro::{Line, threads as in_words};
use crate::scratch::Scratch;
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
/// What the least behind the knee is to have, of the best: a measurement's width.
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
        say_by_batch(&by_batch, "", Some(GAIN), what, see)?;
        // Of those with more records, or more threads, than the best.
        let kept = |of: &[Measured]| {
            let speeds = of.iter().map(|m| m.0);
            let best = speeds.clone().fold(0.0, f64::max);
            speeds.skip_while(|speed| *speed < best).fold(best, f64::min) / best
        };
        let row = format!("{ALL_THREADS} threads: least behind the best");
        see(line(FIGURE, row, Some(KEPT), kept(&by_batch), "of the best", what.to_owned()))?;
        for (threads, (speed, p99)) in THREADS.iter().zip(&by_threads) {
            let row = format!("{threads} threads, {BATCH} records a commit");
            see(line(FIGURE, row, None, speed / 1e6, "M records/s", format!("p99 {p99:.1} us; {what}")))?;
        }
        let row = format!("{BATCH} records a commit: least behind the best");
        see(line(FIGURE, row, Some(KEPT), kept(&by_threads), "of the best", what.to_owned()))?;
    }
    with_costs(a, PmCost::Optane, records, see)?;
    through_engine(a, records, see)
}

/// Commits of all threads through the whole engine, to a subtable whose memtable has room for all of them.
fn through_engine(
    a: &ReproArgs,
    records: u64,
    see: &mut dyn FnMut(Line) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut rounds = vec![Vec::new(); BATCHES.len()];
    for _ in 0..ROUNDS {
        for (batch, rounds) in BATCHES.iter().zip(&mut rounds) {
            rounds.push(run_engine(a, of_batch(records, *batch), *batch)?);
        }
    }
    let measured: Vec<Measured> = rounds.iter().map(|r| medians(r)).collect();
    say_by_batch(&measured, ", whole engine", None, a.pm_and_instructions(), see)
}

/// What commits of [`BATCHES`] do, and how many times one record's; of [`ENOUGH`] a gain may be claimed.
fn say_by_batch(
    measured: &[Measured],
    by: &str,
    gain: Option<f64>,
    what: &str,
    see: &mut dyn FnMut(Line) -> Result<(), Failure>,
) -> Result<(), Failure> {
    for (batch, (speed, p99)) in BATCHES.iter().zip(measured) {
        let row = format!("{ALL_THREADS} threads, {batch} records a commit{by}");
        let note = format!("p99 {p99:.1} us; {what}");
        see(line(FIGURE, row.clone(), None, speed / 1e6, "M records/s", note))?;
        if *batch > 1 {
            let claimed = gain.filter(|_| *batch == ENOUGH);
            see(line(FIGURE, row, claimed, speed / measured[0].0, "x one record", what.to_owned()))?;
        }
    }
    Ok(())
}

/// Records per second, and how long a commit takes, of a new database.
fn run_engine(a: &ReproArgs, records: u64, batch: usize) -> Result<Measured, Failure> {
    // A memtable freezes at half of what memtables may take.
    let stored = records * (record_len(KEY_BYTES, VALUE_BYTES) + ITEM_HEADER) as u64;
    let bytes = (3 * stored).max(64 << 20);
    let dir = dir_of(a, a.pm_mode(), bytes)?;
    let apart = Scratch::new(a.dir.as_deref())?;
    let memory = PmemOptions::new(bytes).path(dir.path().join("pmem")).mode(a.pm_mode());
    let db = Db::open(apart.path().join("db"), Options::new().medium(Medium::Pmem(memory)))?;
    let table = db.create_subtable("t", SubtableOptions::new())?;
    let (to_db, to_table) = (&db, &table);
    let measured = timed(records, batch, ALL_THREADS, || {
        move |numbers: &[u64]| {
            let mut commit = WriteBatch::new();
            for number in numbers {
                commit.put(to_table, &number.to_be_bytes(), &[b'v'; VALUE_BYTES])?;
            }
            to_db.write(commit, Durability::Buffered)?;
            Ok(())
        }
    })?;
    if db.stats().flushes > 0 {
        return Err("a memtable was written out: what it took is not what this says".into());
    }
    drop(table);
    db.close()?;
    Ok(measured)
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
            let store = Store::create(&space, Nodes::Dram, VALUE_BYTES, false)?;
            let measured = timed(of_batch(records, *batch), *batch, *threads, || {
                let (store, mut hand) = (&store, Hand::new());
                move |numbers: &[u64]| store.commit(&mut hand, numbers).map(drop)
            })?;
            rounds.push(measured);
            store.release()?;
        }
    }
    Ok(rounds.iter().map(|r| medians(r)).collect())
}

/// Of so many records as many as a measurement with commits of `batch` has: one of one record takes as long as one of many.
fn of_batch(records: u64, batch: usize) -> u64 {
    if batch < 10 { records / 10 } else { records }
}

fn medians(rounds: &[Measured]) -> Measured {
    let of = |which: fn(&Measured) -> f64| median(rounds.iter().map(which).collect());
    (of(|m| m.0), of(|m| m.1))
}

/// Threads that commit so many records between them, `batch` at a time; `committer` makes what a thread commits with.
fn timed<C: FnMut(&[u64]) -> Result<(), Failure>>(
    records: u64,
    batch: usize,
    threads: u64,
    committer: impl Fn() -> C + Sync,
) -> Result<Measured, Failure> {
    let all = Mutex::new(Histogram::<u64>::new(3)?);
    let seconds = together(threads, |t| {
        let (mut commit, mut numbers) = (committer(), Vec::with_capacity(batch));
        let mut latencies = Histogram::<u64>::new(3)?;
        for places in batches(part(records, t, threads), batch as u64) {
            numbers.clear();
            numbers.extend(places);
            let began = Instant::now();
            commit(&numbers)?;
            latencies.record(began.elapsed().as_nanos() as u64)?;
        }
        all.lock().add(&latencies)?;
        Ok(())
    })?;
    let p99 = all.lock().value_at_quantile(0.99) as f64 / 1e3;
    Ok((records as f64 / seconds, p99))
}
