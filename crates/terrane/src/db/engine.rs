//! The engine behind all handles of an open database.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use arc_swap::{ArcSwap, ArcSwapOption};
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use terrane_base::reclaim::Clock;
use terrane_base::{Error, ErrorKind, Lsn, Result, Seq, SubtableId};
use terrane_cache::{Cache, HeatSampler};
use terrane_commit::{Buckets, Ring};
use terrane_compaction::Scheduler;
use terrane_format::Kind;
use terrane_format::value_ref::ValueRef;
use terrane_media::{LockGuard, Media, Signal};

use crate::compact::pick::{Met, READ_L0_RUNS};
use crate::db::homes::Estates;
use crate::db::journal::Journal;
use crate::db::pacing::Pacer;
use crate::db::request::{Placed, Request};
use crate::db::schema::Remains;
use crate::db::snapshot::{Registered, Snapshot, SnapshotGuard, Snapshots};
use crate::db::stats::Counters;
use crate::db::table::{Super, Table};
use crate::levels::{Heirs, Homes, Ids, ManifestStore, Poison, Reclaimer, Space};
use crate::memtable::MemtableBudget;
use crate::options::Options;
use crate::read::blocks::load;
use crate::read::iter::foreign_snapshot;
use crate::read::left::LeftScans;
use crate::read::lookup::{Copied, Found, Step, View, Walk};
use crate::read::rows::RowCache;
use crate::tombstone::outdated;
use crate::txn::shared::Transactions;

/// The subtables alive, by id and by name. In order, so that a seed gives one history.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    by_id: BTreeMap<SubtableId, Arc<Table>>,
    by_name: BTreeMap<Arc<str>, Arc<Table>>,
}

impl Tables {
    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.by_id.values()
    }

    pub(crate) fn by_id(&self, id: SubtableId) -> Option<&Arc<Table>> {
        self.by_id.get(&id)
    }

    /// As [`Tables::by_id`]; fails if it was dropped.
    pub(crate) fn alive(&self, id: SubtableId) -> Result<&Arc<Table>> {
        self.by_id(id).ok_or_else(|| Error::new(ErrorKind::SubtableDropped, "the subtable was dropped"))
    }

    pub(crate) fn by_name(&self, name: &str) -> Option<&Arc<Table>> {
        self.by_name.get(name)
    }

    pub(crate) fn insert(&mut self, table: Arc<Table>) {
        self.by_name.insert(table.name.clone(), table.clone());
        self.by_id.insert(table.id, table);
    }

    pub(crate) fn remove(&mut self, table: &Table) {
        self.by_name.remove(&*table.name);
        self.by_id.remove(&table.id);
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }
}

/// Everything an open database consists of. Handles, cursors and background jobs share it.
#[derive(Debug)]
pub(crate) struct Engine {
    /// Tells the open databases of a process apart.
    pub(crate) database: u64,
    pub(crate) media: Arc<dyn Media>,
    pub(crate) dir: PathBuf,
    pub(crate) options: Options,
    pub(crate) manifest: ManifestStore,
    pub(crate) space: Arc<Space>,
    pub(crate) journal: Journal,
    /// The generation that log records of this opening carry.
    pub(crate) log_generation: u32,
    pub(crate) cache: Arc<Cache>,
    /// Of dropped subtables, until the manifest says that what was committed to them is settled.
    pub(crate) remains: Mutex<Vec<Remains>>,
    /// What executors' cores own, and where in the cache that is.
    pub(crate) estates: Estates,
    pub(crate) rows: Option<RowCache>,
    pub(crate) heat: HeatSampler,
    pub(crate) left: LeftScans,
    /// Samples folded so far.
    pub(crate) heat_samples: AtomicU64,
    pub(crate) snapshots: Arc<Snapshots>,
    /// The newest published sequence. Stored by the orderer alone.
    pub(crate) visible: CachePadded<AtomicU64>,
    pub(crate) ring: Ring<Placed>,
    pub(crate) buckets: Buckets<Box<Request>>,
    /// Generation of the newest memtables.
    pub(crate) generation: AtomicU64,
    pub(crate) freezing: Mutex<()>,
    /// The lowest boundary of a frozen memtable that is not complete yet.
    pub(crate) next_boundary: AtomicU64,
    /// How much memory was in use when somebody last looked whether memtables are to freeze for it: see `db::freeze`.
    pub(crate) looked_at: AtomicUsize,
    pub(crate) tables: ArcSwap<Tables>,
    /// Serialises creating, dropping and configuring subtables.
    pub(crate) ddl: Mutex<()>,
    /// All memtables.
    pub(crate) memory: MemtableBudget,
    /// That of memtables and the cache: who is inside of one is inside of all.
    pub(crate) clock: Arc<Clock>,
    pub(crate) pacer: Pacer,
    pub(crate) scheduler: Scheduler,
    /// Raised whenever background work ended.
    pub(crate) progress: Arc<Signal>,
    /// Background jobs (flushes and compactions) queued or running.
    pub(crate) jobs: AtomicU64,
    /// Compactions queued or running that count against their limit.
    pub(crate) compactions: AtomicU64,
    /// How often somebody asked for compactions.
    pub(crate) compaction_calls: AtomicU64,
    /// A subtable rests whose active memtable is of a generation below this: it is older than a while, or somebody said that
    /// nobody writes. Only grows.
    pub(crate) rested_at: AtomicU64,
    /// Someone will look at what is read.
    pub(crate) looking: AtomicBool,
    /// Someone will look whether there is a rest.
    pub(crate) awaiting_rest: AtomicBool,
    /// Somebody will look whether free space is to go back.
    pub(crate) awaiting_trim: AtomicBool,
    pub(crate) next_task: AtomicU64,
    /// Why space of data files or of the log could not be let go of, if that ever failed.
    pub(crate) lost_space: Arc<ArcSwapOption<Error>>,
    /// Closing has begun: no commit is taken.
    pub(crate) ending: AtomicBool,
    /// What closing came to, once it has ended.
    pub(crate) closed: Mutex<Option<Result<()>>>,
    /// A job that lets go of the log is queued or running.
    pub(crate) releasing: AtomicBool,
    /// A job that writes prepares again is queued or running.
    pub(crate) renewing: AtomicBool,
    /// No further work is started and no commit taken.
    pub(crate) closing: AtomicBool,
    pub(crate) ids: Arc<Ids>,
    pub(crate) poison: Arc<Poison>,
    /// Space whose last reader has gone.
    pub(crate) reclaimer: Arc<Reclaimer>,
    /// The machine is ours alone: its threads end with the database.
    pub(crate) owns_media: AtomicBool,
    /// Large values have been written that are not flushed yet.
    pub(crate) values_dirty: Arc<AtomicBool>,
    pub(crate) transactions: Transactions,
    pub(crate) counters: Counters,
    pub(crate) me: std::sync::Weak<Engine>,
    /// Of the directory, and of the persistent memory: held as long as the database is open.
    pub(crate) _locks: (Box<dyn LockGuard>, Option<Box<dyn LockGuard>>),
}

impl Engine {
    /// The newest published sequence.
    #[inline]
    pub(crate) fn visible(&self) -> Seq {
        self.visible.load(Ordering::Acquire)
    }

    /// Everything below this LSN is published.
    #[inline]
    pub(crate) fn settled(&self) -> Lsn {
        self.visible.load(Ordering::SeqCst) + 1
    }

    /// Fails if the database takes no writes.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.closing.load(Ordering::Acquire) {
            return Err(closing());
        }
        self.poison.check()?;
        if self.journal.is_poisoned() {
            return Err(log_poisoned());
        }
        Ok(())
    }

    /// Fails for a subtable of another database.
    #[inline]
    pub(crate) fn check_is_own(&self, table: &Table) -> Result<()> {
        if table.database != self.database {
            return Err(Error::invalid("the subtable is of another database").with_subtable(&*table.name));
        }
        Ok(())
    }

    /// Registers the present, for a short time.
    pub(crate) fn register(&self) -> Registered<&Snapshots> {
        Registered::new(&*self.snapshots, |_| self.visible())
    }

    /// Registers the present for as long as somebody likes.
    pub(crate) fn register_owned(&self) -> SnapshotGuard {
        Registered::new(self.snapshots.clone(), |_| self.visible())
    }

    pub(crate) fn check_snapshot(&self, snapshot: &Snapshot) -> Result<()> {
        if snapshot.database != self.database {
            return Err(foreign_snapshot());
        }
        Ok(())
    }

    /// Calls `f` on the value of `key` at `seq` (default: now).
    pub(crate) fn get<R>(
        &self,
        table: &Table,
        key: &[u8],
        seq: Option<Seq>,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        let mut f = Some(f);
        // The state first, the sequence after: see `read::lookup`.
        let state = table.state();
        let at = seq.unwrap_or_else(|| self.visible());
        if let Some(answer) = self.get_in(&state, table, key, at, &mut f)? {
            return Ok(answer);
        }
        let gone = |at| outdated(at).with_subtable(&*table.name);
        if seq.is_some() {
            return Err(gone(at));
        }
        // Others have deleted ranges meanwhile: once more, at a sequence that is registered before the state is loaded.
        let snapshot = self.register();
        self.get_in(&table.state(), table, key, snapshot.seq, &mut f)?.ok_or_else(|| gone(snapshot.seq))
    }

    /// Calls `f` on the value of `key` at the sequence `at` in `state`; `None` if that can no longer be read.
    pub(crate) fn get_in<R>(
        &self,
        state: &Super,
        table: &Table,
        key: &[u8],
        at: Seq,
        f: &mut Option<impl FnOnce(&[u8]) -> R>,
    ) -> Result<Option<Option<R>>> {
        let place = |e: Error| e.with_subtable(&*table.name);
        // Of a dropped table the state may be the empty one.
        table.check_alive()?;
        let view = View { state, cache: &self.cache, heat: &self.heat, rows: self.rows.as_ref() };
        let mut walk = Walk::default();
        let mut supplied = None;
        // Read after the walk: within it, cache memory waits for us to end before it can be used again.
        let mut large: Option<Vec<u8>> = None;
        let mut found = Some(|hit: Found<'_>| match hit.kind {
            Kind::ValueRef => {
                large = Some(hit.value.to_vec());
                None
            }
            _ => f.take().map(|f| f(hit.value)),
        });
        let answer = loop {
            let step = walk.advance(view, key, at, &mut supplied, &mut found);
            match step.map_err(place)? {
                Step::Done(answer) => break answer.flatten(),
                Step::Need(need) => {
                    supplied = Some(load(&self.cache, &need.extent, &need.part).map_err(place)?);
                }
                Step::Outdated => return Ok(None),
            }
        };
        match large {
            None => Ok(Some(answer)),
            Some(encoded) => {
                let value = self.read_large(&encoded).map_err(place)?;
                Ok(Some(f.take().map(|f| f(&value))))
            }
        }
    }

    /// The large value that `encoded` refers to.
    pub(crate) fn read_large(&self, encoded: &[u8]) -> Result<Vec<u8>> {
        self.space.read_value(&ValueRef::decode(encoded)?)
    }

    /// What enters the cache of what is written: see [`Heirs::new`].
    pub(crate) fn heirs(&self, table: SubtableId, sections: bool, allowance: usize) -> Heirs {
        self.heirs_at(self.estates.homes(table), sections, allowance)
    }

    /// As [`Engine::heirs`], of a subtable that is at home there.
    pub(crate) fn heirs_at(&self, homes: Homes, sections: bool, allowance: usize) -> Heirs {
        let cache = self.cache.clone();
        match self.options.tuning.warm {
            true => Heirs::new(cache, homes, sections, allowance),
            false => Heirs::none(cache, homes),
        }
    }

    /// Frees the space whose last reader has gone.
    pub(crate) fn reclaim(&self) {
        let queued = self.reclaimer.take();
        let some = !queued.is_empty();
        for r in queued {
            if let Some(extent) = r.extent {
                self.cache.remove_extent(extent.0);
            }
            if let Err(e) = self.space.free(r.space) {
                self.lost_space.store(Some(Arc::new(e.context("freeing space"))));
            }
        }
        if some {
            self.retry_all();
            self.await_trim();
        }
    }

    /// The value of a lookup's answer. The caller still holds the state in which it was found.
    pub(crate) fn value_of(&self, copy: Copied) -> Result<Vec<u8>> {
        match copy.kind {
            Kind::ValueRef => self.read_large(&copy.value),
            _ => Ok(copy.value),
        }
    }

    /// A read stepped over many deletions: have them cleared away.
    pub(crate) fn many_deletions(&self, table: &Arc<Table>, met: Met, in_memory: bool) {
        let Some(me) = self.me.upgrade() else { return };
        if in_memory {
            let active = table.state().active().clone();
            // Else what comes of it would not be merged away for its deletions. And frozen memtables slow reads too.
            let mostly_deletes =
                active.deletes() > 512 && active.deletes() * 2 >= active.index().len() as u64;
            if mostly_deletes && table.frozen().len() < READ_L0_RUNS {
                me.freeze_active(table);
            }
        }
        if table.deletions_met.lock().add(met, self.media.now()) {
            me.schedule_compactions();
        }
    }
}

/// Every write once closing has begun.
pub(crate) fn closing() -> Error {
    Error::new(ErrorKind::Closed, "the database is being closed")
}

/// Every write after a failed one of the log.
pub(crate) fn log_poisoned() -> Error {
    Error::new(ErrorKind::Poisoned, "an earlier write or flush of the log, or of persistent memory, failed")
        .with_hint("reads go on; close and reopen the database to write again")
}
