//! One engine at one workload, in a process that valgrind runs, or at full speed.
//!
//! Databases that workloads begin with are loaded by a process of its own, at full speed. Callgrind counts what threads do
//! within the functions that are asked for, so neither opening nor warming nor the bench's own part of an operation counts;
//! each thread has a file of its own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Failure;
use crate::args::RunArgs;
use crate::engine::{Entrant, Kind};
use crate::report;
use crate::repro::counters::caches;
use crate::repro::counters::hardware::{self, Counted, Watch};
use crate::repro::counters::maps::Maps;
use crate::repro::counters::profile::Profile;
use crate::repro::counters::trace::{Shared, Trace};
use crate::run::Worker;
use crate::settings::{Peers, Settings};
use crate::worker::{Job, Order};
use crate::workload::{Plan, Start, Workload};

/// Whose instructions count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// The threads that call the engine, within the call.
    Callers,
    /// The engine's own threads.
    Background,
}

impl Who {
    /// The functions within which instructions count, as callgrind wants them. One of them never calls another.
    fn functions(self, kind: Kind) -> &'static [&'static str] {
        match (self, kind) {
            (Who::Callers, _) => {
                &["*engine::Session>::get", "*engine::Session>::write", "*engine::Session>::scan"]
            }
            #[cfg(feature = "peers")]
            (Who::Background, Kind::Rocksdb | Kind::RocksdbTuned) => {
                &["rocksdb::ThreadPoolImpl::Impl::BGThreadWrapper*"]
            }
            (Who::Background, _) => &["terrane_media::pool::run"],
        }
    }
}

/// See the module's head.
pub(super) struct Trial<'a> {
    pub(super) args: &'a RunArgs,
    pub(super) peers: &'a Peers,
    pub(super) entrant: &'a Entrant,
    pub(super) workload: Workload,
    /// Whether a database that the workload begins with is merged into one level first.
    pub(super) merged: bool,
    /// Where databases and what tools write have room.
    pub(super) dir: &'a Path,
}

impl Trial<'_> {
    /// Whether what it counts of caches says something: a model that threads take turns with is none of theirs.
    pub(super) fn models_caches(&self, who: Who) -> bool {
        who == Who::Callers && self.args.threads[0] == 1
    }

    /// Counts, and says over how many operations.
    pub(super) fn count(&self, who: Who) -> Result<(Profile, u64), Failure> {
        let out = tempfile::tempdir_in(self.dir)?;
        // What valgrind says may be why counting failed. Else it is about the caches that it found, which are not those that it models.
        let log = out.path().join("log");
        let counted = self.count_in(who, out.path(), &log);
        if counted.is_err() {
            std::fs::read_to_string(&log).unwrap_or_default().lines().for_each(report::note);
        }
        counted
    }

    fn count_in(&self, who: Who, out: &Path, log: &Path) -> Result<(Profile, u64), Failure> {
        const PROFILE: &str = "profile";
        let option = |name: &str, path: &Path| {
            let mut option = OsString::from(name);
            option.push(path);
            option
        };
        let mut under: Vec<OsString> = [
            "valgrind",
            "-q",
            "--tool=callgrind",
            "--vgdb=no",
            "--separate-threads=yes",
            "--dump-instr=yes",
            "--dump-line=no",
            "--compress-strings=no",
            "--compress-pos=no",
            "--collect-atstart=no",
        ]
        .map(Into::into)
        .into();
        if self.models_caches(who) {
            under.extend(caches::arguments().map(Into::into));
        }
        for function in who.functions(self.entrant.kind) {
            under.push(format!("--toggle-collect={function}").into());
        }
        under.push(option("--callgrind-out-file=", &out.join(PROFILE)));
        under.push(option("--log-file=", log));
        let mut worker = self.begin(&under, Stdio::inherit())?;
        self.warm(&mut worker)?;
        let ops = self.work(&mut worker)?;
        worker.stop()?;
        let mut profile = Profile::default();
        for entry in std::fs::read_dir(out)? {
            let entry = entry?;
            if !entry.file_name().to_string_lossy().starts_with(PROFILE) {
                continue;
            }
            let text = std::fs::read_to_string(entry.path())?;
            let mut own = Profile::default();
            // The first thread opens and warms; the threads of the workload, and the engine's, come later.
            if own.add(&text)? > 1 {
                profile.add(&text)?;
            }
        }
        if profile.sites.is_empty() {
            return Err(format!(
                "{}: callgrind saw none of {:?}",
                self.entrant,
                who.functions(self.entrant.kind)
            )
            .into());
        }
        Ok((profile, ops))
    }

    /// Operations per second at full speed, round by round.
    pub(super) fn speeds(&self) -> Result<Vec<f64>, Failure> {
        let mut worker = self.begin(&[], Stdio::inherit())?;
        self.warm(&mut worker)?;
        let seconds = self.args.seconds.ok_or("it is not said for how long")?;
        let mut round =
            |round| Ok(worker.order(&Order::Run(Plan { round, ..self.timed(seconds) }))?.measured.ops_per_s);
        let speeds = (0..self.args.rounds).map(&mut round).collect::<Result<_, Failure>>()?;
        worker.stop()?;
        Ok(speeds)
    }

    /// Has the processor count, at full speed.
    pub(super) fn watch(&self) -> Result<Counted, Failure> {
        let mut worker = self.begin(&[], Stdio::inherit())?;
        self.warm(&mut worker)?;
        let watch = Watch::begin(worker.pid())?;
        worker.order(&Order::Run(self.timed(hardware::WORK_SECONDS)))?;
        let counted = watch.end()?;
        worker.stop()?;
        Ok(counted)
    }

    /// Follows what each thread's lookups touch in memory. `entry` is where in this program a lookup begins.
    pub(super) fn trace(&self, entry: u64) -> Result<(Shared, Maps), Failure> {
        let under = [
            "valgrind",
            "--tool=lackey",
            "--vgdb=no",
            "--trace-sched=yes",
            "--trace-mem=yes",
            "--basic-counts=no",
        ];
        let (from, to) = std::io::pipe()?;
        // Known once the worker runs; it is read from its first word on, lest it wait for a reader.
        let at = AtomicU64::new(u64::MAX);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| Trace::read(from, &at));
            let mut worker = self.begin(&under.map(Into::into), to.into())?;
            let maps = Maps::of(worker.pid())?;
            let own = std::env::current_exe()?;
            let base = maps.base(&own).ok_or("a worker does not have its program in memory")?;
            self.warm(&mut worker)?;
            at.store(base + entry, Ordering::Relaxed);
            self.work(&mut worker)?;
            worker.stop()?;
            let trace = reader.join().map_err(|_| "the trace's reader panicked")??;
            Ok((trace.finish(), maps))
        })
    }

    /// Its worker, with the database that the workload begins with open.
    fn begin(&self, under: &[OsString], errors: Stdio) -> Result<Worker, Failure> {
        let empty = self.workload.start() == Start::Empty;
        let dir = self.database(empty)?;
        let job = Job {
            memory_dir: None,
            entrant: self.entrant.clone(),
            dir: dir.clone(),
            settings: Settings::new(self.args),
            peers: self.peers.clone(),
            one_core: false,
        };
        if !empty && !dir.exists() {
            let mut worker = Worker::start(&job, &[], Stdio::inherit())?;
            worker.order(&Order::Load)?;
            if self.merged {
                worker.order(&Order::Merge)?;
            }
            worker.order(&Order::WarmSparsely)?;
            worker.stop()?;
        }
        Worker::start(&job, under, errors)
    }

    /// A loaded database serves all workloads that want one of its size.
    fn database(&self, empty: bool) -> Result<PathBuf, Failure> {
        let (records, tables) = (self.args.records, self.args.tables);
        let name = format!("{}-{records}-{tables}", self.entrant).replace(' ', "-");
        let dir = self.dir.join(if empty { format!("{name}-new") } else { name });
        if empty && dir.exists() {
            std::fs::remove_dir_all(&dir)?;
        }
        Ok(dir)
    }

    fn warm(&self, worker: &mut Worker) -> Result<(), Failure> {
        if self.workload.start() == Start::Loaded {
            worker.order(&Order::WarmSparsely)?;
        }
        Ok(())
    }

    fn plan(&self) -> Plan {
        Plan {
            workload: self.workload,
            threads: self.args.threads[0],
            ops: self.args.ops,
            seconds: None,
            round: 0,
        }
    }

    /// The same for so long, however many operations that makes.
    fn timed(&self, seconds: f64) -> Plan {
        Plan { ops: Some(u64::MAX >> 16), seconds: Some(seconds), ..self.plan() }
    }

    fn work(&self, worker: &mut Worker) -> Result<u64, Failure> {
        Ok(worker.order(&Order::Run(self.plan()))?.measured.ops)
    }
}
