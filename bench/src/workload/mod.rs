//! The workloads: what each does to a database, and what it finds there.

mod each;
mod reads;
mod txn;
mod ycsb;

use std::ops::Range;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::choice::{Random, Zipf};
use crate::data::{Data, Shuffle};
use crate::engine::{Engine, Session};
use crate::measure::{Measured, Recorder};
use crate::settings::Settings;
#[cfg(test)]
pub(crate) use reads::own_record;
pub(crate) use reads::start_cores;

/// A workload's name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Workload {
    /// An empty database, keys in order
    Fillseq,
    /// An empty database, every key once, in no order
    Fillrandom,
    /// New values for keys taken at random
    Overwrite,
    /// Keys taken at random, all there
    Readrandom,
    /// As readrandom, but that each thread has tables for itself
    Readown,
    /// As readrandom, 64 keys of one table in one call; an operation is a key
    Multiget,
    /// As readrandom of one table, with as many lookups under way as the engine can have; latencies are times between answers
    Readahead,
    /// Keys taken at random, none there
    Readmissing,
    /// A seek to a key taken at random, and the ten records from there
    Seekrandom,
    /// A seek to a key taken at random, and the record there
    Seek,
    /// All records in order; an operation is a record
    Scan,
    /// As readrandom, while one more thread overwrites
    Readwhilewriting,
    /// Keys of one stretch in eight, and one in a hundred elsewhere, while one more thread overwrites one record in twenty and then
    /// merges everything
    Readwhilecompacting,
    /// Keys of one stretch in 32, and one in a hundred elsewhere, while one more thread overwrites some; the stretch is another one from
    /// quarter to quarter of the time, and in the last it is the first again
    Readmoving,
    /// Deletes keys taken at random
    Deleterandom,
    /// Half reads, half updates
    YcsbA,
    /// 95 % reads, 5 % updates
    YcsbB,
    /// Reads
    YcsbC,
    /// 95 % reads of the latest, 5 % inserts
    YcsbD,
    /// 95 % scans of up to 100 records, 5 % inserts
    YcsbE,
    /// Half reads, half reads followed by an update
    YcsbF,
    /// Commits of one record
    Commit,
    /// As commit, every other thread unsynced; figures are those of the unsynced ones
    CommitMixed,
    /// Merges four runs, each with a quarter of the records, on one core; an operation is a record
    Compact,
    /// Opens a database whose process was killed before it wrote anything but its log; an operation is a record
    ReopenKilled,
    /// Opens a database that was closed; an operation is a record
    ReopenClosed,
    /// Transactions that get five keys for update, and put each of them; an operation is a transaction
    Txn,
    /// Transactions that get ten keys for update, and are rolled back; an operation is a transaction
    TxnRollback,
    /// As txn, on 64 records and in no order: deadlocks are frequent, and are retried
    TxnContended,
    /// As overwrite, where transactions have begun: writes that are none take locks too
    OverwriteLocked,
}

/// What a workload begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// All records, loaded once for all such workloads of a call.
    Loaded,
    /// An empty database.
    Empty,
    /// A database of its own, which [`prepare`] fills.
    Prepared,
}

impl Workload {
    pub(crate) fn start(self) -> Start {
        match self {
            Workload::Fillseq | Workload::Fillrandom => Start::Empty,
            Workload::Compact | Workload::ReopenKilled | Workload::ReopenClosed => Start::Prepared,
            _ => Start::Loaded,
        }
    }

    /// Whether opening the database is what is timed.
    pub(crate) fn reopens(self) -> bool {
        matches!(self, Workload::ReopenKilled | Workload::ReopenClosed)
    }

    /// Whether it is about what happens from second to second, and asks engines what they count.
    pub(crate) fn by_second(self) -> bool {
        matches!(self, Workload::Readwhilecompacting | Workload::Readmoving)
    }

    /// Whether it counts on records that follow each other having keys that do.
    pub(crate) fn needs_order(self) -> bool {
        use Workload as W;
        matches!(self, W::Scan | W::Readwhilecompacting | W::Readmoving)
    }

    /// Whether its operations are transactions, or go on beside some.
    pub(crate) fn transacts(self) -> bool {
        use Workload as W;
        matches!(self, W::Txn | W::TxnRollback | W::TxnContended | W::OverwriteLocked)
    }

    /// Skew of the choice of keys if nothing else is asked for.
    pub(crate) fn default_zipf(self) -> f64 {
        if self.transacts() { 0.8 } else { 0.99 }
    }

    /// Records that `ops` operations of it write, about; 0 where it is not known how many a company wrote.
    pub(crate) fn written_records(self, ops: u64) -> f64 {
        let share = match self {
            Workload::Fillseq | Workload::Fillrandom | Workload::Commit => 1.0,
            Workload::Overwrite | Workload::OverwriteLocked => 1.0,
            Workload::YcsbA | Workload::YcsbF => 0.5,
            Workload::YcsbB | Workload::YcsbD | Workload::YcsbE => 0.05,
            Workload::Readwhilewriting | Workload::CommitMixed | Workload::Deleterandom => 0.0,
            Workload::Readrandom
            | Workload::Readown
            | Workload::Readwhilecompacting
            | Workload::Readmoving
            | Workload::Multiget
            | Workload::Readahead
            | Workload::Readmissing
            | Workload::Seekrandom
            | Workload::Seek
            | Workload::Scan
            | Workload::YcsbC
            | Workload::ReopenKilled
            | Workload::ReopenClosed
            | Workload::TxnRollback => 0.0,
            Workload::Compact => 1.0,
            Workload::Txn | Workload::TxnContended => txn::KEYS as f64,
        };
        ops as f64 * share
    }

    /// Operations if nothing else is asked for.
    fn default_ops(self, records: u64) -> u64 {
        match self {
            Workload::Seekrandom | Workload::Seek | Workload::YcsbE => (records / 10).max(1),
            Workload::OverwriteLocked => records,
            w if w.transacts() => (records / 10).max(1),
            _ => records,
        }
    }
}

impl std::fmt::Display for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use clap::ValueEnum;
        f.write_str(self.to_possible_value().as_ref().map_or("", |v| v.get_name()))
    }
}

/// How a workload is run once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) workload: Workload,
    pub(crate) threads: u64,
    /// All threads together; none: as the workload has it.
    pub(crate) ops: Option<u64>,
    pub(crate) seconds: Option<f64>,
    /// Different rounds take different keys.
    pub(crate) round: u64,
}

/// What the threads of one run share.
struct Course<'a> {
    engine: &'a dyn Engine,
    plan: &'a Plan,
    settings: &'a Settings,
    data: &'a Data,
    shuffle: Shuffle,
    zipf: Zipf,
    /// Records that there are: ycsb-d and ycsb-e insert.
    inserted: &'a std::sync::atomic::AtomicU64,
    began: Instant,
    /// The others are done: a thread that only keeps them company stops.
    over: std::sync::atomic::AtomicBool,
}

/// One thread's part of a run.
struct Lane<'a> {
    course: &'a Course<'a>,
    session: Box<dyn Session + 'a>,
    random: Random,
    recorder: Recorder,
    /// First operation, and how many.
    first: u64,
    ops: u64,
    /// How long the run may take.
    limit: Option<Duration>,
    key: Vec<u8>,
}

impl Lane<'_> {
    fn due(&self) -> bool {
        self.recorder.is_past(self.limit)
    }

    /// Does the lane's operations one by one, as long as there is time.
    fn each(&mut self, mut operation: impl FnMut(&mut Self) -> Result<(), Failure>) -> Result<(), Failure> {
        for _ in 0..self.ops {
            if self.due() {
                break;
            }
            operation(self)?;
            self.recorder.done(1);
        }
        Ok(())
    }
}

/// Makes the database all read workloads work on: every record once, in no order.
pub(crate) fn load(engine: &dyn Engine, settings: &Settings) -> Result<Measured, Failure> {
    fill(engine, settings, 0..settings.records)
}

/// Has all records written out and merged into one level.
pub(crate) fn merge(engine: &dyn Engine, settings: &Settings) -> Result<Measured, Failure> {
    let mut recorder = Recorder::new(Instant::now())?;
    engine.flush()?;
    engine.compact()?;
    recorder.done(settings.records);
    Ok(recorder.result())
}

/// Has all records written out, and reads in the calling thread until the cache holds whatever a read may want. Twice: what is
/// read for the first time is marked as read, and no later read has to do that. Of several tables one record of each is read in `every` that
/// follow each other there.
pub(crate) fn warm(engine: &dyn Engine, settings: &Settings, every: u64) -> Result<Measured, Failure> {
    /// Lookups touch what scans do not: filters. There is one for this many records at least.
    const STRIDE: usize = 64;
    engine.flush()?;
    engine.settle()?;
    let data = Data::of(settings);
    let mut session = engine.session()?;
    let mut recorder = Recorder::new(Instant::now())?;
    let mut key = Vec::new();
    for _ in 0..2 {
        // There are no scans of several.
        if settings.tables > 1 {
            look_up_one_in(every, &mut *session, &data, settings)?;
            recorder.done(settings.records);
            continue;
        }
        data.key(0, &mut key);
        let seen = session.scan(&key, settings.records, &mut |_, _| ())?;
        if seen != settings.records {
            return Err(format!("{seen} records of {}", settings.records).into());
        }
        for record in (0..settings.records).step_by(STRIDE) {
            data.key(record, &mut key);
            session.get(&key, &mut |_| ())?;
        }
        recorder.done(settings.records);
    }
    Ok(recorder.result())
}

/// Of each table looks up one record in `every` that follow each other there.
fn look_up_one_in(
    every: u64,
    session: &mut dyn Session,
    data: &Data,
    settings: &Settings,
) -> Result<(), Failure> {
    let mut key = Vec::new();
    // What follows each other goes to one table after the other.
    for first in (0..settings.records).step_by(usize::try_from(settings.tables * every)?) {
        for record in first..settings.records.min(first + settings.tables) {
            data.key(record, &mut key);
            session.get(&key, &mut |_| ())?;
        }
    }
    Ok(())
}

/// Makes what a workload with [`Start::Prepared`] begins with.
pub(crate) fn prepare(
    engine: &dyn Engine,
    settings: &Settings,
    workload: Workload,
) -> Result<Measured, Failure> {
    if workload != Workload::Compact {
        return load(engine, settings);
    }
    let mut last = None;
    for run in 0..RUNS {
        let (from, to) = (settings.records * run / RUNS, settings.records * (run + 1) / RUNS);
        last = Some(fill(engine, settings, from..to)?);
        engine.flush()?;
    }
    match engine.sorted_runs() {
        Some(RUNS) => last.ok_or_else(|| "there are no runs to merge".into()),
        n => {
            Err(format!("{n:?} runs instead of {RUNS}: --memtable-mib is too small to hold one at a time")
                .into())
        }
    }
}

/// Runs that [`Workload::Compact`] merges.
const RUNS: u64 = 4;

/// Writes these records of the one order in which loads go, in batches.
fn fill(engine: &dyn Engine, settings: &Settings, range: Range<u64>) -> Result<Measured, Failure> {
    const BATCH: u64 = 100;
    // So that a batch fits a quarter of a zone of the smallest memory.
    const BATCH_BYTES: u64 = 60_000;
    let batch = (BATCH_BYTES / (settings.key_bytes + settings.value_bytes + 16) as u64).clamp(1, BATCH);
    let data = Data::of(settings);
    let shuffle = Shuffle::new(settings.records, 1);
    let mut session = engine.session()?;
    let mut recorder = Recorder::new(Instant::now())?;
    let mut keys = vec![Vec::new(); batch as usize];
    let mut at = range.start;
    while at < range.end {
        let n = batch.min(range.end - at);
        let numbers: Vec<u64> = (at..at + n).map(|i| shuffle.at(i)).collect();
        for (key, i) in keys.iter_mut().zip(&numbers) {
            data.key(*i, key);
        }
        let records: Vec<_> =
            keys.iter().zip(&numbers).map(|(k, &i)| (k.as_slice(), Some(data.value(i, 0)))).collect();
        session.write(&records, false)?;
        recorder.done(n);
        at += n;
    }
    Ok(recorder.result())
}

/// Runs a workload once. `inserted` is how many records there are, before and after.
pub(crate) fn run(
    engine: &dyn Engine,
    settings: &Settings,
    plan: &Plan,
    inserted: &std::sync::atomic::AtomicU64,
) -> Result<Measured, Failure> {
    if let Some(cores) = engine.cores() {
        return reads::on_cores(cores, settings, plan);
    }
    let data = Data::of(settings);
    let zipf = settings.zipf.unwrap_or(plan.workload.default_zipf());
    let zipf = Zipf::new(settings.records, zipf);
    let began = Instant::now();
    let course = Course {
        engine,
        plan,
        settings,
        data: &data,
        shuffle: Shuffle::new(settings.records, plan.round + 2),
        zipf,
        inserted,
        began,
        over: false.into(),
    };
    let threads = if plan.workload == Workload::Compact { 1 } else { plan.threads };
    let total = plan.ops.unwrap_or(plan.workload.default_ops(settings.records));
    let total = if plan.workload.start() == Start::Empty { total.min(settings.records) } else { total };
    let over = Arc::new(Barrier::new(usize::try_from(threads)?));
    let (recorders, looks) = std::thread::scope(|scope| {
        let course = &course;
        let beside = match plan.workload {
            Workload::Readwhilewriting => {
                Some(each::write_beside as fn(&mut Lane<'_>) -> Result<(), Failure>)
            }
            Workload::Readwhilecompacting => Some(each::compact_beside as _),
            Workload::Readmoving => Some(each::write_some_beside as _),
            _ => None,
        };
        let company =
            beside.map(|beside| scope.spawn(move || beside(&mut lane(engine, course, plan.threads, 0, 0)?)));
        let looks = plan.workload.by_second().then(|| scope.spawn(move || look_by_second(course)));
        let threads: Vec<_> = (0..threads)
            .map(|t| {
                let (first, ops) = share(total, t, threads);
                let stay = Stay(over.clone());
                scope.spawn(move || -> Result<Recorder, Failure> {
                    let _stay = stay;
                    let mut lane = lane(engine, course, t, first, ops)?;
                    each::work(&mut lane, t)?;
                    lane.recorder.check(course.began)?;
                    Ok(lane.recorder)
                })
            })
            .collect();
        let done: Vec<_> = threads.into_iter().map(joined).collect();
        course.over.store(true, std::sync::atomic::Ordering::Relaxed);
        if let Some(c) = company {
            joined(c)?;
        }
        let looks = looks.map_or(Ok(Vec::new()), joined)?;
        Ok::<_, Failure>((done.into_iter().collect::<Result<Vec<_>, Failure>>()?, looks))
    })?;
    let mut all = Recorder::new(began)?;
    for (t, r) in recorders.iter().enumerate() {
        // Mixed commits: the synced ones are only the company.
        if plan.workload != Workload::CommitMixed || t % 2 == 1 || plan.threads == 1 {
            all.add(r)?;
        }
    }
    let mut result = all.result();
    for (second, look) in result.series.iter_mut().zip(looks) {
        (second.misses, second.above) = (look.misses, look.above);
    }
    Ok(result)
}

/// What an engine says of one second.
struct Look {
    misses: Option<u64>,
    above: Option<f64>,
}

/// Asks the engine second by second, until the readers are done.
fn look_by_second(course: &Course<'_>) -> Result<Vec<Look>, Failure> {
    let look = || (course.engine.cache_misses(), course.engine.lookups_above());
    let mut seconds = Vec::new();
    let mut before = look();
    while !course.over.load(std::sync::atomic::Ordering::Relaxed) {
        let next = course.began + Duration::from_secs(seconds.len() as u64 + 1);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let now = look();
        let misses = now.0.zip(before.0).map(|(now, before)| now - before);
        let above = now.1.zip(before.1).and_then(|(now, before)| {
            let (above, all) = (now.0 - before.0, now.1 - before.1);
            (all > 0).then(|| above as f64 / all as f64)
        });
        seconds.push(Look { misses, above });
        before = now;
    }
    Ok(seconds)
}

/// Has a thread, however its part ends, wait for the others before it goes. What an engine keeps for a thread that went is taken
/// over by the next one: all threads of a run are to have their own.
struct Stay(Arc<Barrier>);

impl Drop for Stay {
    fn drop(&mut self) {
        self.0.wait();
    }
}

fn joined<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T, Failure>>) -> Result<T, Failure> {
    thread.join().unwrap_or_else(|_| Err("a thread of the workload panicked".into()))
}

fn lane<'a>(
    engine: &'a dyn Engine,
    course: &'a Course<'a>,
    thread: u64,
    first: u64,
    ops: u64,
) -> Result<Lane<'a>, Failure> {
    let mut recorder = Recorder::new(course.began)?;
    if course.plan.workload.by_second() {
        recorder = recorder.second_by_second();
    }
    let (random, limit) = (Random::new(seed(course.plan, thread)), limit(course.plan));
    let session = engine.session()?;
    recorder.start();
    Ok(Lane { course, session, random, recorder, first, ops, limit, key: Vec::new() })
}

/// The first of a thread's operations, and how many it has.
fn share(total: u64, thread: u64, threads: u64) -> (u64, u64) {
    let first = total * thread / threads;
    (first, total * (thread + 1) / threads - first)
}

/// What a thread's choices follow from.
fn seed(plan: &Plan, thread: u64) -> u64 {
    plan.round << 32 | thread << 8 | plan.workload as u64
}

/// How long a run may take, if time ends it.
fn limit(plan: &Plan) -> Option<Duration> {
    plan.seconds.map(Duration::from_secs_f64)
}
