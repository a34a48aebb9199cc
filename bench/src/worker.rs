//! The child process that holds one engine open and does what it is told, line by line.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::args::WorkerArgs;
use crate::engine::{self, Engine, Entrant};
use crate::machine::{self, Counters};
use crate::measure::Measured;
use crate::settings::{Peers, Settings};
use crate::workload::{self, Plan, Workload};

/// What a worker is started with.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) entrant: Entrant,
    pub(crate) dir: PathBuf,
    pub(crate) settings: Settings,
    pub(crate) peers: Peers,
}

/// What it is told, one per line on its standard input. At the end of the input it closes its database and stops.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Fill the database that the read workloads work on.
    Load,
    Run(Plan),
}

/// What it answers, one per line on its standard output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) measured: Measured,
    /// From the beginning of the workload until the background had nothing left to do.
    pub(crate) cost: Counters,
    /// Time from the last operation until then.
    pub(crate) settled_after: f64,
    pub(crate) rss_bytes: u64,
    pub(crate) peak_rss_bytes: u64,
    pub(crate) bytes_on_disk: u64,
    pub(crate) log_bytes: u64,
    pub(crate) says: serde_json::Value,
}

pub(crate) fn run(args: &WorkerArgs) -> Result<(), Failure> {
    let job: Job = serde_json::from_str(&args.job)?;
    std::fs::create_dir_all(&job.dir)?;
    let engine = engine::open(&job.entrant, &job.dir, &job.settings, &job.peers)?;
    let inserted = AtomicU64::new(job.settings.records);
    for line in std::io::stdin().lock().lines() {
        let order: Order = serde_json::from_str(&line?)?;
        let answer = obey(&*engine, &job, &order, &inserted)?;
        let mut out = std::io::stdout().lock();
        serde_json::to_writer(&mut out, &answer)?;
        out.write_all(b"\n")?;
        out.flush()?;
        if matches!(&order, Order::Run(p) if p.workload == Workload::Deleterandom) {
            workload::load(&*engine, &job.settings)?;
            engine.settle()?;
        }
    }
    engine.close()
}

fn obey(engine: &dyn Engine, job: &Job, order: &Order, inserted: &AtomicU64) -> Result<Answer, Failure> {
    let before = Counters::now()?;
    let measured = match order {
        Order::Load => workload::load(engine, &job.settings)?,
        Order::Run(plan) => workload::run(engine, &job.settings, plan, inserted)?,
    };
    let (rss_bytes, peak_rss_bytes) = machine::resident()?;
    let says = engine.says();
    let rest = std::time::Instant::now();
    engine.settle()?;
    let settled_after = rest.elapsed().as_secs_f64();
    let cost = Counters::now()?.since(&before);
    let (bytes_on_disk, log_bytes) = machine::disk_bytes(&job.dir, &|f| engine.is_log(f))?;
    Ok(Answer { measured, cost, settled_after, rss_bytes, peak_rss_bytes, bytes_on_disk, log_bytes, says })
}
