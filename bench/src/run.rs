//! `run`: starts a worker per engine, and has them run the workloads in turn, round by round.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::Failure;
use crate::args::RunArgs;
use crate::engine::Entrant;
use crate::report::{self, Row};
use crate::scratch::{Running, Scratch, main_memory};
use crate::settings::{Peers, Settings};
use crate::worker::{Answer, Hello, Job, Order};
use crate::workload::{Plan, Start, Workload};

pub(crate) fn run(a: &RunArgs) -> Result<(), Failure> {
    let rows = rows(a, &mut |row| {
        if a.json {
            report::say(&serde_json::to_string(row)?)
        } else {
            report::note(&row.line());
            Ok(())
        }
    })?;
    if !a.json {
        report::say(&report::table(&rows, a))?;
    }
    Ok(())
}

/// The rows of all engines, workloads and rounds; `see` gets each as it comes.
pub(crate) fn rows(
    a: &RunArgs,
    see: &mut dyn FnMut(&Row) -> Result<(), Failure>,
) -> Result<Vec<Row>, Failure> {
    let peers = Peers::load(a)?;
    let settings = Settings::new(a);
    if let Some(zipf) = settings.zipf.filter(|z| !(0.0..1.0).contains(z)) {
        return Err(format!("--zipf {zipf}: from 0 up to, and without, 1").into());
    }
    if let Some(w) = a.workload.iter().find(|w| a.scattered && w.needs_order()) {
        return Err(format!("{w} is about stretches of keys, and keys that are scattered have none").into());
    }
    let entrants: Vec<Entrant> =
        a.engine.iter().flat_map(|k| k.entrants(&peers, a.terrane_block_kib.as_deref())).collect();
    let dir = Scratch::new(a.dir.as_deref())?;
    let memory = memory_of(a, &entrants, &settings)?;
    // Each database has a directory of its own, and one in memory.
    let homes = |entrant: &Entrant, name: &str| {
        let apart = memory.as_ref().map(|m| m.path().join(name));
        let home = match &apart {
            Some(apart) if entrant.kind.is_in_memory() => apart.join("db"),
            _ => dir.path().join(name),
        };
        (home, apart)
    };
    let under: Vec<OsString> =
        a.under.as_deref().unwrap_or_default().split_whitespace().map(Into::into).collect();
    let start = |entrant: &Entrant, name: &str, workload: Option<Workload>| -> Result<Worker, Failure> {
        let alone = workload == Some(Workload::Compact);
        let (home, memory_dir) = homes(entrant, name);
        let job = Job {
            entrant: entrant.clone(),
            dir: home,
            memory_dir,
            settings: Settings {
                hold_compactions: alone,
                transactions: workload.is_some_and(Workload::transacts),
                ..settings.clone()
            },
            peers: peers.clone(),
            one_core: alone,
        };
        Worker::start(&job, &under, Stdio::inherit())
    };

    // Databases for transactions are apart: an engine may have to be opened in another way for them.
    let mut loaded = [Vec::new(), Vec::new()];
    for (transacts, loaded) in [false, true].into_iter().zip(&mut loaded) {
        let mut loads = a.workload.iter().filter(|w| w.start() == Start::Loaded);
        let Some(&workload) = loads.find(|w| w.transacts() == transacts) else { continue };
        for (i, entrant) in entrants.iter().enumerate() {
            let name = if transacts { format!("{i}-transactions") } else { format!("{i}") };
            let mut worker = start(entrant, &name, Some(workload))?;
            let answer = worker.order(&Order::Load)?;
            report::note(&format!(
                "{entrant}: loaded {} records in {:.1} s, at rest {:.1} s later, {} MiB on disk",
                settings.records,
                answer.measured.seconds,
                answer.settled_after,
                answer.bytes_on_disk >> 20
            ));
            if a.merged {
                worker.order(&Order::Merge)?;
            }
            // (With `--warm` it is before every one.)
            if settings.tables > 1 && !a.warm {
                let warmed = worker.order(&Order::Warm)?;
                report::note(&format!("{entrant}: read in {:.1} s", warmed.measured.seconds));
            }
            loaded.push(worker);
        }
    }

    let mut rows = Vec::new();
    for round in 0..a.rounds {
        for (workload, threads) in a.rows() {
            for turn in 0..entrants.len() {
                // Each goes first once in a while.
                let i = (turn + round as usize) % entrants.len();
                let plan = Plan { workload, threads, ops: a.ops, seconds: a.seconds, round };
                let order = Order::Run(plan.clone());
                let answer = if workload.start() == Start::Loaded {
                    let worker = &mut loaded[usize::from(workload.transacts())][i];
                    if a.warm {
                        worker.order(&Order::Warm)?;
                    }
                    worker.order(&order)?
                } else {
                    let name = format!("{i}-{workload}-{round}");
                    let mut worker = start(&entrants[i], &name, Some(workload))?;
                    let prepared = match workload.start() {
                        Start::Prepared => Some(worker.order(&Order::Prepare(workload))?),
                        _ => None,
                    };
                    if workload.reopens() {
                        worker.leave(workload)?;
                        worker = start(&entrants[i], &name, Some(workload))?;
                    }
                    let mut answer = worker.order(&order)?;
                    if let (Some(p), true) = (prepared, workload.reopens()) {
                        answer.opened(worker.opened_seconds, settings.records, p.log_bytes);
                    }
                    worker.stop()?;
                    let (home, apart) = homes(&entrants[i], &name);
                    discard(&home)?;
                    apart.filter(|apart| apart.exists()).map_or(Ok(()), |apart| discard(&apart))?;
                    answer
                };
                let row = Row::new(&entrants[i], &plan, &settings, answer);
                see(&row)?;
                rows.push(row);
            }
        }
    }
    for worker in loaded.into_iter().flatten() {
        worker.stop()?;
    }
    Ok(rows)
}

/// The directory for all that is in persistent memory, and for files that are in main memory; `None` if nothing is.
fn memory_of(a: &RunArgs, entrants: &[Entrant], settings: &Settings) -> Result<Option<Scratch>, Failure> {
    if entrants.iter().any(|e| e.kind.is_in_memory()) {
        return Scratch::new(a.pm_dir.as_deref().or(main_memory()).or(a.dir.as_deref())).map(Some);
    }
    let memories = entrants.iter().filter(|e| e.kind.has_memory()).count() as u64;
    // One that is loaded, and one that is filled anew beside it.
    let bytes = memories * 2 * settings.pmem().bytes();
    match memories {
        0 => Ok(None),
        _ => Scratch::of_memory(a.pm_dir.as_deref(), a.dir.as_deref(), bytes).map(Some),
    }
}

fn discard(dir: &Path) -> Result<(), Failure> {
    std::fs::remove_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()).into())
}

/// A worker process. Dropped without [`Worker::stop`], it is ended: its files are about to be removed.
pub(crate) struct Worker {
    child: Child,
    _running: Running,
    /// There until it is stopped.
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    name: String,
    opened_seconds: f64,
}

impl Worker {
    /// Starts one by the command `under`, or by itself where that is empty.
    pub(crate) fn start(job: &Job, under: &[OsString], errors: Stdio) -> Result<Self, Failure> {
        let name = job.entrant.to_string();
        let mut words = under.to_vec();
        words.push(std::env::current_exe()?.into());
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .arg("worker")
            .arg(serde_json::to_string(job)?)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            .spawn()?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("{name}: its process has no pipes").into());
        };
        let _running = Running::new(child.id());
        let from = BufReader::new(from);
        let mut worker = Worker { child, _running, to: Some(to), from, name, opened_seconds: 0.0 };
        let hello: Hello = worker.hear()?;
        worker.opened_seconds = hello.opened_seconds;
        Ok(worker)
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn order(&mut self, order: &Order) -> Result<Answer, Failure> {
        self.send(order)?;
        self.hear()
    }

    fn send(&mut self, order: &Order) -> Result<(), Failure> {
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        // If it cannot be told, it ended: that shows when it is heard.
        if let Some(to) = &mut self.to {
            let _ = to.write_all(line.as_bytes()).and_then(|()| to.flush());
        }
        Ok(())
    }

    fn hear<T: serde::de::DeserializeOwned>(&mut self) -> Result<T, Failure> {
        let mut answer = String::new();
        if self.from.read_line(&mut answer)? == 0 {
            let status = self.child.wait()?;
            return Err(format!("{} failed ({status}); what it said stands above", self.name).into());
        }
        Ok(serde_json::from_str(&answer)?)
    }

    /// Ends it as the workload wants its database left.
    fn leave(mut self, workload: Workload) -> Result<(), Failure> {
        if workload == Workload::ReopenKilled {
            self.send(&Order::Die)?;
            self.child.wait()?;
            return Ok(());
        }
        self.stop()
    }

    pub(crate) fn stop(mut self) -> Result<(), Failure> {
        // It meets the end of its input.
        drop(self.to.take());
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("{}: closing failed: {status}", self.name).into()) }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if self.to.is_some() {
            // An error says that it has ended already.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
