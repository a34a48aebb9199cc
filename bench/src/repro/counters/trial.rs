//! One engine at one workload, in a process that valgrind runs.
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
    /// Where databases and what tools write have room.
    pub(super) dir: &'a Path,
}

impl Trial<'_> {
    /// Counts, and says over how many operations.
    pub(super) fn count(&self, who: Who) -> Result<(Profile, u64), Failure> {
        let out = tempfile::tempdir_in(self.dir)?;
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
        for function in who.functions(self.entrant.kind) {
            under.push(format!("--toggle-collect={function}").into());
        }
        let mut file = OsString::from("--callgrind-out-file=");
        file.push(out.path().join("profile"));
        under.push(file);
        let mut worker = self.begin(&under, Stdio::inherit())?;
        self.warm(&mut worker)?;
        let ops = self.work(&mut worker)?;
        worker.stop()?;
        let mut profile = Profile::default();
        for entry in std::fs::read_dir(out.path())? {
            let text = std::fs::read_to_string(entry?.path())?;
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
            worker.order(&Order::Warm)?;
            worker.stop()?;
        }
        Worker::start(&job, under, errors)
    }

    /// A loaded database serves all workloads that want one of its size.
    fn database(&self, empty: bool) -> Result<PathBuf, Failure> {
        let name = format!("{}-{}", self.entrant, self.args.records).replace(' ', "-");
        let dir = self.dir.join(if empty { format!("{name}-new") } else { name });
        if empty && dir.exists() {
            std::fs::remove_dir_all(&dir)?;
        }
        Ok(dir)
    }

    fn warm(&self, worker: &mut Worker) -> Result<(), Failure> {
        if self.workload.start() == Start::Loaded {
            worker.order(&Order::Warm)?;
        }
        Ok(())
    }

    fn work(&self, worker: &mut Worker) -> Result<u64, Failure> {
        let plan = Plan {
            workload: self.workload,
            threads: self.args.threads[0],
            ops: self.args.ops,
            seconds: None,
            round: 0,
        };
        Ok(worker.order(&Order::Run(plan))?.measured.ops)
    }
}
