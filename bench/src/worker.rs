//! The child process that holds one engine open and does what it is told, line by line.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::args::WorkerArgs;
use crate::engine::{self, Engine, Entrant};
use crate::machine::{self, Counters};
use crate::measure::{self, Measured};
use crate::settings::{Peers, Settings};
use crate::watch::{self, Peaks};
use crate::workload::{self, Plan, Workload};

/// What a worker is started with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) entrant: Entrant,
    pub(crate) dir: PathBuf,
    /// Where what is to be persistent memory goes, for those that have some.
    pub(crate) memory_dir: Option<PathBuf>,
    pub(crate) settings: Settings,
    pub(crate) peers: Peers,
    /// Whether one core has to do.
    pub(crate) one_core: bool,
}

/// What it says first, when its database is open.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Hello {
    pub(crate) opened_seconds: f64,
}

/// What it is told, one per line on its standard input. At the end of the input it closes its database and stops.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Fill the database that the read workloads work on.
    Load,
    /// Fill a database for this workload alone.
    Prepare(Workload),
    /// Have everything merged into one level.
    Merge,
    /// Have everything written out, and what reads want in the cache.
    Warm,
    /// The same with few reads, for a process that is slowed down: of several tables, about one in each block.
    WarmSparsely,
    Run(Plan),
    /// Be killed, as by kill -9: nothing is closed.
    Die,
}

/// What it answers, one per line on its standard output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) measured: Measured,
    pub(crate) peaks: Peaks,
    /// From the beginning of the workload until its last operation.
    pub(crate) worked: Counters,
    /// The same until the background had nothing left to do.
    pub(crate) cost: Counters,
    /// Time from the last operation until then.
    pub(crate) settled_after: f64,
    pub(crate) rss_bytes: u64,
    pub(crate) peak_rss_bytes: u64,
    pub(crate) bytes_on_disk: u64,
    pub(crate) log_bytes: u64,
    pub(crate) says: serde_json::Value,
}

impl Answer {
    /// Says of opening a database what is said of a workload; `log` bytes of log were there.
    pub(crate) fn opened(&mut self, seconds: f64, records: u64, log: u64) {
        (self.measured.ops, self.measured.seconds) = (records, seconds);
        self.measured.ops_per_s = records as f64 / seconds;
        self.log_bytes = log;
    }
}

pub(crate) fn run(args: &WorkerArgs) -> Result<(), Failure> {
    let job: Job = serde_json::from_str(&args.job)?;
    std::fs::create_dir_all(&job.dir)?;
    if job.one_core {
        machine::keep_to_one_core()?;
    }
    // Before anything is timed.
    measure::set_clock();
    let began = Instant::now();
    let engine = engine::open(&job)?;
    say(&Hello { opened_seconds: began.elapsed().as_secs_f64() })?;
    let inserted = AtomicU64::new(job.settings.records);
    for line in std::io::stdin().lock().lines() {
        let order: Order = serde_json::from_str(&line?)?;
        if matches!(order, Order::Die) {
            machine::kill_self()?;
        }
        let answer = obey(&*engine, &job, &order, &inserted)?;
        say(&answer)?;
        if matches!(&order, Order::Run(p) if p.workload == Workload::Deleterandom) {
            workload::load(&*engine, &job.settings)?;
            engine.settle()?;
        }
    }
    engine.close()
}

fn say(what: &impl Serialize) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, what)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

fn obey(engine: &dyn Engine, job: &Job, order: &Order, inserted: &AtomicU64) -> Result<Answer, Failure> {
    if let Order::Run(plan) = order {
        // Before anything is counted.
        workload::start_cores(engine, &job.settings, plan.threads)?;
    }
    let before = Counters::now(&job.dir)?;
    let ((measured, memory, says, worked, settled_after), peaks) = watch::during(engine, &job.dir, || {
        let measured = match order {
            Order::Load => workload::load(engine, &job.settings)?,
            Order::Merge => workload::merge(engine, &job.settings)?,
            Order::Warm => workload::warm(engine, &job.settings, 1)?,
            Order::WarmSparsely => {
                let in_a_block = job.settings.records_in_a_block(job.entrant.block_bytes());
                workload::warm(engine, &job.settings, in_a_block)?
            }
            Order::Prepare(w) => workload::prepare(engine, &job.settings, *w)?,
            Order::Run(plan) => workload::run(engine, &job.settings, plan, inserted)?,
            Order::Die => return Err("killed, and still there".into()),
        };
        let worked = Counters::now(&job.dir)?.since(&before);
        let (memory, says) = (machine::resident()?, engine.says());
        let rest = Instant::now();
        // What was killed or closed is to be as it was left.
        if !matches!(order, Order::Prepare(_)) {
            engine.settle()?;
        }
        Ok((measured, memory, says, worked, rest.elapsed().as_secs_f64()))
    })?;
    let (rss_bytes, peak_rss_bytes) = memory;
    let cost = Counters::now(&job.dir)?.since(&before);
    let (bytes_on_disk, log_bytes) = machine::disk_bytes(&job.dir, &|f| engine.is_log(f))?;
    Ok(Answer {
        measured,
        peaks,
        worked,
        cost,
        settled_after,
        rss_bytes,
        peak_rss_bytes,
        bytes_on_disk,
        log_bytes,
        says,
    })
}
