//! Lookups of records that are there, and those that the cores of an engine make up themselves.
//!
//! Such a core does what a thread of `readown` does: it takes records at random from the tables that are its own, looks each up,
//! and times it. No key comes to it from elsewhere, and none is asked for that another core owns. All cores together read all
//! tables, each of them as often as another one where each core has as many: so `readrandom` is to them the same.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::choice::Random;
use crate::data::Data;
use crate::engine::{Cores, Engine, Get};
use crate::measure::{Measured, Recorder};
use crate::settings::Settings;
use crate::workload::{Plan, Workload, limit, look_up_one_in, seed, share};

/// Lookups of a turn: so few that a core comes back after microseconds, as it should.
const PER_TURN: u64 = 16;

/// Looks a record up by `get`: it must be there, with a value of `want` bytes.
#[inline]
pub(super) fn find(
    record: u64,
    key: &[u8],
    want: usize,
    get: impl FnOnce(&[u8], &mut dyn FnMut(&[u8])) -> Result<bool, Failure>,
) -> Result<(), Failure> {
    let mut bytes = None;
    let found = get(key, &mut |v| bytes = Some(v.len()))?;
    if !found || bytes != Some(want) {
        return Err(format!("record {record}: found {found} with {bytes:?} bytes").into());
    }
    Ok(())
}

/// A record at random, of a table that is the own one of a thread of so many ([`owner_of`](crate::data::owner_of)).
pub(crate) fn own_record(records: u64, tables: u64, thread: u64, threads: u64, random: &mut Random) -> u64 {
    let own = (tables + threads - 1 - thread % threads) / threads;
    let table = match own {
        // More threads than tables: some share one.
        0 => thread % tables,
        _ => thread % threads + threads * random.below(own),
    };
    let of_table = (records + tables - 1 - table) / tables;
    table + tables * random.below(of_table.max(1))
}

/// The lookups of one core. It borrows nothing, for it lives there.
struct Reads {
    settings: Settings,
    data: Arc<Data>,
    core: u64,
    cores: u64,
    random: Random,
    recorder: Recorder,
    /// Whether the time of the first one runs.
    started: bool,
    left: u64,
    limit: Option<Duration>,
    key: Vec<u8>,
}

impl Reads {
    /// Makes some lookups; whether there are more to make.
    fn turn(&mut self, get: &mut Get<'_>) -> Result<bool, Failure> {
        if !self.started {
            self.recorder.start();
            self.started = true;
        }
        let Settings { records, tables, value_bytes, .. } = self.settings;
        for _ in 0..PER_TURN {
            if self.left == 0 || self.recorder.is_past(self.limit) {
                return Ok(false);
            }
            self.left -= 1;
            let record = own_record(records, tables, self.core, self.cores, &mut self.random);
            self.data.key(record, &mut self.key);
            find(record, &self.key, value_bytes, &mut *get)?;
            self.recorder.done(1);
        }
        Ok(true)
    }
}

/// Has an engine with cores of its own start as many as a run has threads. What moves to another part of the cache then is looked up once, so
/// that the next lookup finds it as directly as those of other engines do that were warmed.
pub(crate) fn start_cores(engine: &dyn Engine, settings: &Settings, cores: u64) -> Result<(), Failure> {
    /// Records of values up to a few KiB are several to a block: one in so many is in every one.
    const STRIDE: u64 = 4;
    let Some(of_its_own) = engine.cores() else { return Ok(()) };
    if !of_its_own.start(cores)? {
        return Ok(());
    }
    look_up_one_in(STRIDE, &mut *engine.session()?, &Data::of(settings), settings)
}

/// Runs a workload on cores that have been started: see the module's head.
pub(super) fn on_cores(cores: &dyn Cores, settings: &Settings, plan: &Plan) -> Result<Measured, Failure> {
    let Plan { workload, threads, .. } = *plan;
    if !matches!(workload, Workload::Readrandom | Workload::Readown) {
        return Err(format!(
            "{workload}: an engine whose cores make up the work is for readrandom and readown"
        )
        .into());
    }
    let total = plan.ops.unwrap_or(workload.default_ops(settings.records));
    let data = Arc::new(Data::of(settings));
    let began = Instant::now();
    let (tell, told) = mpsc::channel();
    for core in 0..threads {
        let mut reads = Some(Reads {
            settings: settings.clone(),
            data: data.clone(),
            core,
            cores: threads,
            random: Random::new(seed(plan, core)),
            recorder: Recorder::new(began)?,
            started: false,
            left: share(total, core, threads).1,
            limit: limit(plan),
            key: Vec::new(),
        });
        let tell = tell.clone();
        let turn = move |get: &mut Get<'_>| {
            let done = match reads.as_mut().map(|r| r.turn(get)) {
                Some(Ok(true)) => return true,
                Some(Err(e)) => Err(e),
                Some(Ok(false)) | None => Ok(reads.take()),
            };
            // Nobody listens any more if another core has failed.
            let _ = tell.send(done);
            false
        };
        cores.go(core, Box::new(turn))?;
    }
    drop(tell);
    let mut all = Recorder::new(began)?;
    for _ in 0..threads {
        let done = told.recv().map_err(|_| "a core has panicked")??;
        if let Some(Reads { recorder, .. }) = done {
            recorder.check(began)?;
            all.add(&recorder)?;
        }
    }
    Ok(all.result())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::owner_of;
    use crate::engine::{self, Entrant, Kind};
    use crate::settings::Peers;
    use crate::worker::Job;
    use crate::workload::{load, run, warm};

    #[test]
    fn a_thread_takes_every_record_of_its_own_tables() {
        let (records, tables, threads) = (103, 5, 2);
        let mut random = Random::new(3);
        for thread in 0..threads {
            let mut seen = vec![false; records as usize];
            for _ in 0..5000 {
                seen[own_record(records, tables, thread, threads, &mut random) as usize] = true;
            }
            let own = (0..records).map(|record| owner_of(record % tables, threads) == thread);
            assert!(own.eq(seen), "thread {thread}");
        }
    }

    #[test]
    fn cores_make_as_many_lookups_as_they_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let line =
            "--workload readrandom --records 3000 --tables 3 --value-bytes 8 --memtable-mib 8 --cache-mib 8";
        let args = crate::args::RunArgs::from_line(line).unwrap();
        let job = Job {
            entrant: Entrant { kind: Kind::TerraneOnCore, block_kib: None },
            dir: dir.path().to_owned(),
            memory_dir: None,
            settings: Settings::new(&args),
            peers: Peers::load(&args).unwrap(),
            one_core: false,
        };
        let engine = engine::open(&job).unwrap();
        load(&*engine, &job.settings).unwrap();
        warm(&*engine, &job.settings, 1).unwrap();
        let inserted = job.settings.records.into();
        let go = |workload, threads, ops| {
            let plan = Plan { workload, threads, ops: Some(ops), seconds: None, round: 0 };
            start_cores(&*engine, &job.settings, threads)?;
            run(&*engine, &job.settings, &plan, &inserted)
        };
        for (workload, threads) in
            [(Workload::Readrandom, 1), (Workload::Readown, 2), (Workload::Readrandom, 3)]
        {
            let measured = go(workload, threads, 5001).unwrap();
            assert_eq!((measured.ops, measured.p50_us > 0.0), (5001, true));
        }
        assert!(go(Workload::Overwrite, 2, 10).is_err());
        engine.close().unwrap();
    }
}
