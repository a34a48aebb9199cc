//! Terrane.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use terrane::{
    Compression, Db, DirectoryKind, Durability, Executor, ExecutorOptions, IndexKind, Isolation, Lane,
    LockWait, Medium, Options, PmemMode, ReadOptions, Reader, Simd, Subtable, SubtableOptions, Swizzling,
    Taken, Transaction, TransactionOptions, Tuning, WriteBatch,
};

use crate::Failure;
use crate::data::table_of;
use crate::engine::on_core::OnCore;
use crate::engine::{Cores, Ending, Engine, Kind, LOCK_WAIT, Outcome, Script, Session, Step, one_by_one};
use crate::machine;
use crate::settings::{self, Settings};
use crate::worker::Job;

/// Requests of a session that an executor's core has at once.
const LANE_DEPTH: usize = 256;
/// Keys that are sent to the cores in one call.
const SENT_AT_ONCE: usize = 32;

pub(crate) struct Terrane {
    db: Db,
    tables: Vec<Subtable>,
    way: Way,
    /// Sessions so far.
    sessions: AtomicUsize,
}

/// How a session reads.
enum Way {
    /// As any thread.
    Plain,
    /// By a reader of its own, on one of these processors.
    Reader(Vec<usize>),
    /// By asking an executor.
    Cores(Executor),
    /// As any thread, beside cores that read what they own.
    OnCore(OnCore),
}

/// What an entrant does without.
fn without(kind: Kind) -> (DirectoryKind, Option<Simd>, Swizzling) {
    let (layers, plain) = (DirectoryKind::TwoLayer, Some(Simd::Scalar));
    match kind {
        Kind::TerranePlain => (DirectoryKind::RestartArray, plain, Swizzling::Nothing),
        Kind::TerraneLayers => (layers, plain, Swizzling::Nothing),
        Kind::TerraneVectors => (layers, None, Swizzling::Nothing),
        Kind::TerraneIndexes => (layers, None, Swizzling::Parents),
        _ => (layers, None, Swizzling::Children),
    }
}

impl Terrane {
    pub(crate) fn open(job: &Job, s: &Settings) -> Result<Self, Failure> {
        let Job { entrant, dir, .. } = job;
        let (directory, simd, swizzling) = without(entrant.kind);
        let mut memory = match entrant.kind {
            Kind::TerranePageCache => s.page_cache(),
            _ => s.pmem(),
        };
        if let Some(apart) = job.memory_dir.as_deref().filter(|_| entrant.kind.has_memory()) {
            std::fs::create_dir_all(apart)?;
            memory = memory.path(apart.join("pmem"));
        }
        let medium = match entrant.kind {
            kind if kind.has_memory() => {
                let has_log = kind == Kind::TerranePmLog;
                let mut memory = memory.index_in_pmem(kind == Kind::TerranePmIndex);
                if let Some(costs) = s.pm_cost {
                    memory = memory.cost(costs.cost());
                }
                let mode = if s.pm_device { PmemMode::Dax } else { PmemMode::StandIn };
                Medium::Pmem(memory.mode(mode).trailing_log(has_log))
            }
            Kind::TerranePageCache => Medium::Pmem(memory.mode(PmemMode::PageCache)),
            _ => Medium::Log,
        };
        let piled = matches!(entrant.kind, Kind::TerranePiled | Kind::TerranePiledBare);
        let memtable_bytes = match entrant.kind {
            // Half of it becomes a run.
            _ if piled => s.piled_run_bytes() * 2,
            _ => s.memtable_bytes,
        };
        let options = Options::new()
            .medium(medium)
            .memtable_bytes(memtable_bytes as usize)
            .cache_bytes(s.cache_bytes as usize)
            .count_references(entrant.kind == Kind::TerraneCounted)
            .tuning(Tuning {
                compact: !(s.hold_compactions || piled),
                pmem_cache: entrant.kind != Kind::TerranePmBare,
                l0_runs: if piled { usize::MAX / 2 } else { Tuning::default().l0_runs },
                simd,
                swizzling,
                warm: entrant.kind != Kind::TerraneCold,
                ..Tuning::default()
            });
        let db = Db::open(dir, options)?;
        let compression = match s.compression {
            settings::Compression::None => Compression::None,
            settings::Compression::Zstd => Compression::Zstd(1),
        };
        let mut of_table = SubtableOptions::new().compression(compression).directory(directory);
        if entrant.kind == Kind::TerranePiledBare {
            of_table = of_table.filter_bits(0);
        }
        if entrant.kind.has_skiplists() {
            of_table = of_table.index(IndexKind::Skiplist);
        }
        if let Some(k) = entrant.block_kib {
            of_table = of_table.block_bytes(k << 10);
        }
        let table = |n| db.subtable_or_create(&format!("bench{n}"), of_table.clone());
        let tables: Vec<_> = (0..s.tables).map(table).collect::<terrane::Result<_>>()?;
        if s.transactions {
            // From the first one on, writes that are none take locks.
            db.begin(TransactionOptions::new())?.rollback();
        }
        let way = match entrant.kind {
            Kind::TerraneReader => Way::Reader(machine::processors()?),
            Kind::TerraneCores => Way::Cores(db.executor(ExecutorOptions::new())?),
            Kind::TerraneOnCore => Way::OnCore(OnCore::new(&db, &tables)),
            _ => Way::Plain,
        };
        Ok(Terrane { db, tables, way, sessions: AtomicUsize::new(0) })
    }
}

impl Engine for Terrane {
    fn session(&self) -> Result<Box<dyn Session + '_>, Failure> {
        let way = match &self.way {
            Way::Plain | Way::OnCore(_) => Own::Nothing,
            Way::Reader(processors) => {
                let number = self.sessions.fetch_add(1, Ordering::Relaxed);
                machine::bind(processors[number % processors.len()])?;
                Own::Reader(self.db.reader())
            }
            Way::Cores(executor) => Own::Lane(executor.lane(LANE_DEPTH)?),
        };
        Ok(Box::new(Handle { db: &self.db, tables: self.tables.clone(), way }))
    }

    fn settle(&self) -> Result<(), Failure> {
        Ok(self.db.wait_idle()?)
    }

    fn is_log(&self, file: &str) -> bool {
        file.starts_with("log-") || file == "tail" || file == "pmem"
    }

    fn l0_runs(&self) -> Option<u64> {
        let stats = self.db.stats();
        let l0 = stats.subtables.iter().flat_map(|t| &t.levels).filter(|l| l.name == "L0");
        Some(l0.map(|l| l.runs as u64).sum())
    }

    fn sorted_runs(&self) -> Option<u64> {
        // The first one that is flushed goes straight to L1.
        let stats = self.db.stats();
        let levels = stats.subtables.iter().flat_map(|t| &t.levels);
        Some(levels.filter(|l| l.extents > 0).map(|l| l.runs as u64).sum())
    }

    fn flush(&self) -> Result<(), Failure> {
        Ok(self.tables.iter().try_for_each(Subtable::flush)?)
    }

    fn compact(&self) -> Result<(), Failure> {
        Ok(self.tables.iter().try_for_each(Subtable::compact)?)
    }

    fn cores(&self) -> Option<&dyn Cores> {
        match &self.way {
            Way::OnCore(cores) => Some(cores),
            _ => None,
        }
    }

    fn cache_misses(&self) -> Option<u64> {
        Some(self.db.stats().cache_misses)
    }

    fn lookups_above(&self) -> Option<(u64, u64)> {
        let stats = self.db.stats();
        let levels = || stats.subtables.iter().flat_map(|t| &t.levels);
        let above = levels().filter(|l| ["L0", "L1"].contains(&&*l.name));
        Some((above.map(|l| l.lookups).sum(), levels().map(|l| l.lookups).sum()))
    }

    fn says(&self) -> serde_json::Value {
        let stats = self.db.stats();
        let levels: Vec<_> = stats.subtables.iter().flat_map(|t| &t.levels).collect();
        json!({
            "pmem": stats.pmem_mode.map(|mode| format!("{mode:?}")),
            "levels": levels.iter().map(|l| json!([l.name, l.runs, l.bytes])).collect::<Vec<_>>(),
            "paced_seconds": stats.paced_seconds,
            "full_waits": stats.full_waits,
            "full_wait_seconds": stats.full_wait_seconds,
            "flush_bytes": stats.flush_bytes,
            "compact_written": stats.compact_written,
        })
    }

    fn close(self: Box<Self>) -> Result<(), Failure> {
        let Terrane { db, tables, way, .. } = *self;
        drop((tables, way));
        Ok(db.close()?)
    }
}

struct Handle<'a> {
    db: &'a Db,
    tables: Vec<Subtable>,
    way: Own<'a>,
}

/// What a session reads by.
enum Own<'a> {
    Nothing,
    Reader(Reader<'a>),
    Lane(Lane),
}

/// What cores have answered.
struct Answers<'s> {
    see: &'s mut dyn FnMut(&[u8]),
    found: u64,
    failed: Option<terrane::Error>,
}

impl<'s> Answers<'s> {
    fn new(see: &'s mut dyn FnMut(&[u8])) -> Self {
        Answers { see, found: 0, failed: None }
    }

    /// Takes those that are there.
    fn take(&mut self, lane: &mut Lane) {
        lane.answers(|_, outcome| match outcome {
            Ok(Some(value)) => {
                (self.see)(value);
                self.found += 1;
            }
            Ok(None) => {}
            Err(e) => {
                self.failed.get_or_insert(e);
            }
        });
    }

    /// Sends these, and takes answers where there is no room.
    fn send(&mut self, lane: &mut Lane, table: &Subtable, mut keys: &[Vec<u8>]) -> terrane::Result<()> {
        loop {
            keys = &keys[lane.multi_get(table, keys, 0)?..];
            if keys.is_empty() {
                return Ok(());
            }
            lane.wait()?;
            self.take(lane);
        }
    }

    /// Waits for all; how many keys were there.
    fn all(mut self, lane: &mut Lane) -> terrane::Result<u64> {
        while lane.under_way() > 0 {
            lane.wait()?;
            self.take(lane);
        }
        self.failed.map_or(Ok(self.found), Err)
    }
}

impl Handle<'_> {
    fn of(&self, key: &[u8]) -> &Subtable {
        &self.tables[table_of(key, self.tables.len())]
    }
}

/// The one that there is.
fn only(tables: &[Subtable]) -> Result<&Subtable, Failure> {
    match tables {
        [table] => Ok(table),
        _ => Err("this workload is for one table".into()),
    }
}

impl Session for Handle<'_> {
    fn write(&mut self, records: &[(&[u8], Option<&[u8]>)], sync: bool) -> Result<(), Failure> {
        if let ([(key, value)], false) = (records, sync) {
            match value {
                Some(v) => self.of(key).put(key, v)?,
                None => self.of(key).delete(key)?,
            }
            return Ok(());
        }
        let mut batch = WriteBatch::new();
        for (key, value) in records {
            match value {
                Some(v) => batch.put(self.of(key), key, v)?,
                None => batch.delete(self.of(key), key)?,
            }
        }
        self.db.write(batch, if sync { Durability::Sync } else { Durability::Buffered })?;
        Ok(())
    }

    fn get(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, Failure> {
        let table = &self.tables[table_of(key, self.tables.len())];
        Ok(match &mut self.way {
            Own::Nothing => table.get_with(key, see)?.is_some(),
            Own::Reader(reader) => reader.get_with(table, key, see)?.is_some(),
            Own::Lane(lane) => {
                let mut answers = Answers::new(see);
                while lane.get(table, key, 0)? == Taken::Full {
                    lane.wait()?;
                    answers.take(lane);
                }
                answers.all(lane)? == 1
            }
        })
    }

    fn multi_get(&mut self, keys: &[Vec<u8>], see: &mut dyn FnMut(&[u8])) -> Result<u64, Failure> {
        let mut found = 0;
        let table = only(&self.tables)?;
        if let Own::Lane(lane) = &mut self.way {
            let mut answers = Answers::new(see);
            answers.send(lane, table, keys)?;
            return Ok(answers.all(lane)?);
        }
        table.multi_get_with(keys, |_, value| {
            found += u64::from(value.is_some());
            value.map(&mut *see);
        })?;
        Ok(found)
    }

    fn stream(
        &mut self,
        next: &mut dyn FnMut(&mut Vec<u8>) -> bool,
        see: &mut dyn FnMut(&[u8]),
    ) -> Result<u64, Failure> {
        let Own::Lane(lane) = &mut self.way else { return one_by_one(self, next, see) };
        let table = only(&self.tables)?;
        let (mut keys, mut answers) = (vec![Vec::new(); SENT_AT_ONCE], Answers::new(see));
        loop {
            let n = keys.iter_mut().map(&mut *next).take_while(|there| *there).count();
            answers.send(lane, table, &keys[..n])?;
            if n < keys.len() || answers.failed.is_some() {
                return Ok(answers.all(lane)?);
            }
            answers.take(lane);
        }
    }

    fn scan(&mut self, from: &[u8], limit: u64, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64, Failure> {
        let mut cursor = only(&self.tables)?.cursor(ReadOptions::new())?;
        cursor.seek(from)?;
        let mut n = 0;
        if limit > 0 {
            cursor.walk(|key, value| {
                see(key, value);
                n += 1;
                if n < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            })?;
        }
        Ok(n)
    }

    fn transact(&mut self, script: &Script<'_>, see: &mut dyn FnMut(&[u8])) -> Result<Outcome, Failure> {
        // Locks, and reads of the latest: what the peers' transactions are if nothing more is asked of them.
        let options = TransactionOptions::new()
            .isolation(Isolation::ReadCommitted)
            .lock_wait(LockWait::AtMost(LOCK_WAIT));
        match perform(self.db.begin(options)?, only(&self.tables)?, script, see) {
            Ok(()) => Ok(Outcome::Done),
            Err(e) if e.should_retry() => Ok(Outcome::Refused),
            Err(e) => Err(e.into()),
        }
    }
}

/// After an error it is dropped, and so rolled back.
fn perform(
    mut transaction: Transaction,
    table: &Subtable,
    script: &Script<'_>,
    see: &mut dyn FnMut(&[u8]),
) -> terrane::Result<()> {
    for step in script.steps {
        match *step {
            Step::GetForUpdate(key) => {
                if let Some(value) = transaction.get_for_update(table, key)? {
                    see(&value);
                }
            }
            Step::Put(key, value) => transaction.put(table, key, value)?,
        }
    }
    match script.ending {
        Ending::Commit { sync: true } => drop(transaction.commit(Durability::Sync)?),
        Ending::Commit { sync: false } => drop(transaction.commit(Durability::Buffered)?),
        Ending::Rollback => transaction.rollback(),
    }
    Ok(())
}
