//! `run`: starts a worker per engine, and has them run the workloads in turn, round by round.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::Failure;
use crate::args::RunArgs;
use crate::engine::Entrant;
use crate::report::{self, Row};
use crate::settings::{Peers, Settings};
use crate::worker::{Answer, Job, Order};
use crate::workload::Plan;

pub(crate) fn run(a: &RunArgs) -> Result<(), Failure> {
    let peers = Peers::load(a)?;
    let settings = Settings::new(a);
    if !(0.0..1.0).contains(&settings.zipf) {
        return Err(format!("--zipf {}: from 0 up to, and without, 1", settings.zipf).into());
    }
    let entrants: Vec<Entrant> = a.engine.iter().flat_map(|k| k.entrants(&peers)).collect();
    let mut builder = tempfile::Builder::new();
    builder.prefix("terrane-bench-");
    let dir = match &a.dir {
        Some(d) => {
            std::fs::create_dir_all(d)?;
            builder.tempdir_in(d)?
        }
        None => builder.tempdir()?,
    };
    let start = |entrant: &Entrant, name: String| -> Result<Worker, Failure> {
        let job = Job {
            entrant: entrant.clone(),
            dir: dir.path().join(name),
            settings: settings.clone(),
            peers: peers.clone(),
        };
        Worker::start(&job)
    };

    let mut loaded = Vec::new();
    if a.workload.iter().any(|w| !w.fills()) {
        for (i, entrant) in entrants.iter().enumerate() {
            let mut worker = start(entrant, format!("{i}"))?;
            let answer = worker.order(&Order::Load)?;
            report::note(&format!(
                "{entrant}: loaded {} records in {:.1} s, at rest {:.1} s later, {} MiB on disk",
                settings.records,
                answer.measured.seconds,
                answer.settled_after,
                answer.bytes_on_disk >> 20
            ));
            loaded.push(worker);
        }
    }

    let mut rows = Vec::new();
    for round in 0..a.rounds {
        for &workload in &a.workload {
            for turn in 0..entrants.len() {
                // Each goes first once in a while.
                let i = (turn + round as usize) % entrants.len();
                let plan = Plan { workload, threads: a.threads, ops: a.ops, seconds: a.seconds, round };
                let answer = if workload.fills() {
                    let name = format!("{i}-{workload}-{round}");
                    let mut worker = start(&entrants[i], name.clone())?;
                    let answer = worker.order(&Order::Run(plan.clone()))?;
                    worker.stop()?;
                    discard(&dir.path().join(name))?;
                    answer
                } else {
                    loaded[i].order(&Order::Run(plan.clone()))?
                };
                let row = Row::new(&entrants[i], &plan, &settings, answer);
                if a.json {
                    println!("{}", serde_json::to_string(&row)?);
                } else {
                    report::note(&row.line());
                }
                rows.push(row);
            }
        }
    }
    for worker in loaded {
        worker.stop()?;
    }
    if !a.json {
        println!("{}", report::table(&rows, &a.workload, &entrants));
    }
    Ok(())
}

fn discard(dir: &Path) -> Result<(), Failure> {
    std::fs::remove_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()).into())
}

/// A worker process. Dropped without [`Worker::stop`], it meets the end of its input and stops by itself.
struct Worker {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    name: String,
}

impl Worker {
    fn start(job: &Job) -> Result<Self, Failure> {
        let name = job.entrant.to_string();
        let mut child = Command::new(std::env::current_exe()?)
            .arg("worker")
            .arg(serde_json::to_string(job)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("{name}: its process has no pipes").into());
        };
        Ok(Worker { child, to, from: BufReader::new(from), name })
    }

    fn order(&mut self, order: &Order) -> Result<Answer, Failure> {
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        let sent = self.to.write_all(line.as_bytes()).and_then(|()| self.to.flush());
        let mut answer = String::new();
        if sent.is_err() || self.from.read_line(&mut answer)? == 0 {
            let status = self.child.wait()?;
            return Err(format!("{} failed ({status}); what it said stands above", self.name).into());
        }
        Ok(serde_json::from_str(&answer)?)
    }

    fn stop(self) -> Result<(), Failure> {
        let Worker { mut child, to, from, name } = self;
        drop((to, from));
        let status = child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("{name}: closing failed: {status}").into()) }
    }
}
