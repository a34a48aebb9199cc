//! Opening a database: superblock, manifest, space, log, memtables; and creating and destroying one.
//!
//! # Order
//! 1. The directory lock.
//! 2. Superblock and manifest give the state of all levels and the range of the log that matters.
//! 3. The log is replayed (or persistent memory read, which may have a log beside it: [`memory`]): every operation that is not in
//!    an extent yet goes into its subtable's memtable. Replay is parallel and needs no order, since versions carry their
//!    sequences.
//! 4. Space: what neither the manifest nor a replayed record refers to is free. Nothing was allocated before. What a prepared
//!    transaction needs whose end is not known durable stays until it is, at step 6.
//! 5. Large values that only the tail's records refer to are written again and flushed: nothing else proves them. (On a device of persistent
//!    memory they were flushed before.)
//! 6. A higher log generation becomes durable in the manifest before the first byte is appended (design rule 3).
//! 7. Where persistent memory has too few memtables to go on with, some of what was found is written out first.
//!
//! # After a crash
//! A crash during any of these steps leaves what the next opening needs: old log segments are released only after the
//! memtables made from them have reached extents by a durable manifest edit.

mod create;
mod memory;
mod opening;
pub(crate) mod options;
mod renew;
mod replay;
mod stages;
mod target;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::Mutex;
use terrane_base::metrics::STRIPES;
use terrane_base::reclaim::Clock;
use terrane_base::{Error, ErrorKind, Result, SubtableId};
use terrane_cache::HeatSampler;
use terrane_commit::{Buckets, Limits, Ring};
use terrane_format::manifest::{Edit, LogPosition};
use terrane_format::options::SubtableOptionsRecord;
use terrane_media::{Media, Signal};

pub(crate) use create::{MEMORY, destroy};

use crate::chains::Chains;
use crate::db::engine::Engine;
use crate::db::homes::Estates;
use crate::db::journal::Journal;
use crate::levels::{DbState, Ids, ManifestStore, Poison, Reclaimer, Space, Survey};
use crate::memtable::{Memtable, MemtableBudget};
use crate::options::{IndexKind, Medium, Options};
use crate::read::rows::RowCache;
use crate::recovery::renew::Renewal;
use crate::txn::shared::Transactions;

/// Slots of the commit ring: more than threads will ever stand in it at once.
pub(crate) const RING_SLOTS: usize = 1024;
/// Memtable bytes that are written out at close rather than replayed at the next opening.
const FLUSH_AT_CLOSE: u64 = 8 << 20;
/// Ordinary memory for what is known of blocks in persistent memory, however small the cache is.
const LEAST_INDEX_BYTES: usize = 1 << 20;
/// Followers' bytes that a leader takes along.
const GROUP_BYTES: u64 = 1 << 20;

static NEXT_DATABASE: AtomicU64 = AtomicU64::new(1);

/// As many leaders as can run at a time, and twice that, for threads come to buckets by chance; but no more than threads are told apart.
fn buckets(media: &dyn Media) -> usize {
    (media.processors() * 2).min(STRIPES)
}

/// Opens (or creates) the database in `dir`.
pub(crate) fn open(media: Arc<dyn Media>, dir: &Path, options: Options) -> Result<Arc<Engine>> {
    let lock = create::prepare(&media, dir, &options)?;
    let poison = Arc::new(Poison::new());
    let manifest = ManifestStore::open(media.clone(), dir, poison.clone())?;
    let state = manifest.with_state(DbState::clone);
    // One that was never open has nothing, whatever an attempt to make it has left.
    match state.log.generation == 0 {
        true if !options.makes_one() => return Err(not_a_database(dir)),
        false if options.error_if_exists => return Err(exists_already(dir)),
        _ => {}
    }
    let uuid = manifest.superblock().uuid;
    let mut options = options.on_processors(media.processors());
    if let Some(simd) = options.tuning.simd {
        simd.use_at_most();
    }
    let clock = Arc::new(Clock::new());
    let cache = Arc::new(opening::cache(&*media, &clock, &options));
    let mut log_options = opening::log_options(dir, uuid, &options);
    let mut renewal = Renewal {
        media: &media,
        log: &log_options,
        state: &state,
        manifest: &manifest,
        uuid,
        wanted: options.renew_pmem,
        was_at: None,
        was_moved: false,
    };
    let opened = memory::open(dir, &manifest, &options, &mut renewal)?;
    if let Some(opened) = &opened {
        let bound = match &options.medium {
            Some(Medium::Pmem(memory)) => memory.memtable_bytes,
            _ => None,
        };
        options.memtable_bytes = Chains::budget(&opened.space, bound);
        // What trails behind takes it too.
        options.batch_in_memory = Some(Chains::max_batch(&opened.space).min(options.max_logged_bytes()));
    }
    let index_in_pmem = matches!(&options.medium, Some(Medium::Pmem(p)) if p.index_in_pmem);
    let memory = match opened.is_some() && !index_in_pmem {
        true => MemtableBudget::apart(options.memtable_bytes),
        false => MemtableBudget::shared(options.memtable_bytes),
    };
    let lost_space: Arc<ArcSwapOption<Error>> = Arc::default();
    let database = NEXT_DATABASE.fetch_add(1, Ordering::Relaxed);

    let survey =
        Survey::new(media.clone(), dir, opening::space_options(uuid, &options), &state, poison.clone())?;
    let ids = Arc::new(Ids::new(&state.next));
    let kinds = index_kinds(&state)?;
    let means = memory::Means {
        media: &media,
        budget: &memory,
        clock: &clock,
        lost_space: &lost_space,
        index_bytes: (options.cache_bytes / 8).max(LEAST_INDEX_BYTES),
        index_in_pmem,
    };
    let mut contents = opening::contents(opened, &manifest, &renewal, &kinds, &means)?;
    let (space, doubtful) = opening::claim(survey, &ids, &mut contents)?;
    opening::rewrite_unproved(&space, &mut contents)?;

    // A higher generation is durable before anything is appended; what an older one left beyond this point is void.
    let generation = state.log.generation + 1;
    manifest.append(&[Edit::Log(LogPosition { generation, clean: false, ..state.log })])?;
    let values_dirty = Arc::new(AtomicBool::new(false));
    // A log record must not reach the device before the large values that it refers to.
    log_options.before_write = {
        let (space, dirty) = (space.clone(), values_dirty.clone());
        Arc::new(move || flush_values(&space, &dirty))
    };
    let opening::Started { journal, end, in_doubt } =
        opening::start_journal(&media, log_options, generation, &mut contents)?;
    // All of the log is durable: whoever is in doubt now is so for good, and the others need nothing any more.
    doubtful.iter().try_for_each(|value| space.free_value(value))?;
    manifest.append(&[Edit::Log(LogPosition {
        generation,
        durable_lsn: journal.durable_lsn(),
        clean: false,
        ..state.log
    })])?;
    let (memory_lock, waiting) = contents
        .in_memory
        .map(|mut found| {
            found.give_back();
            (found.lock, found.waiting)
        })
        .unzip();

    let wake: Arc<OnceLock<std::sync::Weak<Engine>>> = Arc::default();
    let reclaimer = {
        let wake = wake.clone();
        Reclaimer::new(move || {
            if let Some(engine) = wake.get().and_then(std::sync::Weak::upgrade) {
                engine.schedule_reclaim();
            }
        })
    };
    let tables = opening::tables(&state, &contents.memtables, &space, &reclaimer, database, &options)?;
    // Those that are written out come free.
    drop(contents.memtables);
    let scheduler = opening::scheduler(&media, &options);
    let ring = match journal {
        Journal::Log(_) => Ring::new(RING_SLOTS, end / 8)?,
        Journal::Chains { .. } => Ring::with_turns(RING_SLOTS, end / 8)?,
    };
    let progress = Arc::new(Signal::new());
    if let Some(chains) = journal.chains() {
        if let Some(shelf) = chains.shelf().filter(|_| options.tuning.pmem_cache) {
            cache.set_below(shelf.clone());
        }
        chains.space().tell(progress.clone());
    }
    let engine = Arc::new_cyclic(|me: &std::sync::Weak<Engine>| Engine {
        database,
        dir: dir.to_owned(),
        manifest,
        space,
        journal,
        log_generation: generation,
        cache,
        clock,
        rows: RowCache::new(options.row_cache_bytes),
        heat: HeatSampler::telling({
            let me = me.clone();
            move || {
                if let Some(engine) = me.upgrade() {
                    engine.look_at_reads();
                }
            }
        }),
        heat_samples: AtomicU64::new(0),
        left: Default::default(),
        remains: Mutex::default(),
        estates: Estates::default(),
        snapshots: Arc::default(),
        visible: AtomicU64::new(end - 1).into(),
        ring,
        buckets: Buckets::new(
            buckets(&*media),
            Limits { bytes: GROUP_BYTES.min(options.max_batch_bytes()), count: 64 },
        ),
        generation: AtomicU64::new(0),
        freezing: Mutex::new(()),
        next_boundary: AtomicU64::new(u64::MAX),
        looked_at: AtomicUsize::new(0),
        tables: ArcSwap::from_pointee(tables),
        ddl: Mutex::new(()),
        memory,
        pacer: Default::default(),
        scheduler,
        progress,
        jobs: AtomicU64::new(0),
        compactions: AtomicU64::new(0),
        compaction_calls: AtomicU64::new(0),
        rested_at: AtomicU64::new(0),
        looking: AtomicBool::new(false),
        awaiting_rest: AtomicBool::new(false),
        awaiting_trim: AtomicBool::new(false),
        next_task: AtomicU64::new(1),
        lost_space,
        ending: AtomicBool::new(false),
        closed: Mutex::new(None),
        releasing: AtomicBool::new(false),
        renewing: AtomicBool::new(false),
        closing: AtomicBool::new(false),
        ids,
        poison,
        reclaimer,
        owns_media: AtomicBool::new(false),
        values_dirty,
        transactions: Transactions::new(),
        counters: Default::default(),
        me: me.clone(),
        media,
        options,
        _locks: (lock, memory_lock),
    });
    let _ = wake.set(Arc::downgrade(&engine));
    engine.adopt(in_doubt, &state.stages)?;
    engine.update_pressure();
    if let Err(e) = engine.start(&waiting.unwrap_or_default()) {
        // Background work ends, and what holds the directory with it. What else that comes to is the same again.
        let _same = engine.close();
        return Err(e);
    }
    Ok(engine)
}

/// What makes memtables in ordinary memory, for any subtable alive.
fn make_memtables(
    kinds: &BTreeMap<SubtableId, IndexKind>,
    memory: &MemtableBudget,
    clock: &Arc<Clock>,
    media: &Arc<dyn Media>,
) -> replay::MakeMemtable {
    let (kinds, memory, clock, media) = (kinds.clone(), memory.clone(), clock.clone(), media.clone());
    Box::new(move |id| {
        let kind = kinds.get(&id).copied().unwrap_or_default();
        Memtable::new(kind, 0, &memory, clock.clone()).salted(media.entropy())
    })
}

/// Which index the memtables of each subtable alive have.
fn index_kinds(state: &DbState) -> Result<BTreeMap<SubtableId, IndexKind>> {
    let kinds = state.subtables.iter().map(|(id, s)| {
        let record = SubtableOptionsRecord::decode(&s.options).map_err(|e| e.with_subtable(&*s.name))?;
        Ok((*id, options::from_record(&record).index))
    });
    kinds.collect()
}

/// Flushes large values written since the last call.
fn flush_values(space: &Space, dirty: &AtomicBool) -> Result<()> {
    if !dirty.swap(false, Ordering::AcqRel) {
        return Ok(());
    }
    space.sync_all().inspect_err(|_| dirty.store(true, Ordering::Release))
}

impl Engine {
    /// Starts background work. Returns when those subtables that wait for a memtable in persistent memory have one.
    fn start(self: &Arc<Self>, waiting: &[SubtableId]) -> Result<()> {
        self.schedule_flushes();
        self.schedule_compactions();
        self.go_on_in_memory(waiting).map_err(|e| {
            let e = e.context("writing memtables out, which are too many for others beside them");
            match e.kind() {
                // Writing does not resume by itself where there is no database yet.
                ErrorKind::OutOfSpace => {
                    e.with_other_hint("make room on the device, and open the database again")
                }
                _ => e,
            }
        })?;
        self.close_gap()
    }

    /// Ends background work, makes the log durable and notes a clean end.
    pub(crate) fn close(self: &Arc<Self>) -> Result<()> {
        self.ending.store(true, Ordering::Release);
        // Who comes second waits for the first, and hears the same.
        let mut closed = self.closed.lock();
        if let Some(done) = &*closed {
            return done.clone();
        }
        let done = self.close_once();
        if let Some(chains) = self.journal.chains() {
            chains.seal();
        }
        self.closing.store(true, Ordering::Release);
        self.progress.notify_all();
        if self.owns_media.load(Ordering::Acquire) {
            self.media.shutdown();
        }
        *closed = Some(done.clone());
        done
    }

    fn close_once(self: &Arc<Self>) -> Result<()> {
        // A long log would make the next opening slow. It is no less safe: whatever this comes to, the rest is done.
        let mut flushed = Ok(());
        let is_long = self.journal.chains().is_none() && self.memory.used() as u64 > FLUSH_AT_CLOSE;
        if is_long && !self.journal.is_poisoned() {
            for table in self.tables.load().all() {
                if !table.is_dropped() {
                    flushed = flushed.and(self.flush_table(table));
                }
            }
        }
        if !self.journal.is_poisoned() {
            // What the log lacks would be lost with the memory.
            flushed = flushed.and(self.mend_log());
        }
        // From here on jobs stop at the next piece, and nothing new is started.
        self.closing.store(true, Ordering::Release);
        self.progress.notify_all();
        self.wait_idle()?;
        self.reclaim();
        self.space.trim();
        self.scheduler.close();
        self.journal.close()?;
        self.append_edits(&[Edit::Log(LogPosition {
            generation: self.log_generation,
            first_lsn: self.oldest_needed(self.settled(), |_| None),
            durable_lsn: self.journal.durable_lsn(),
            clean: true,
        })])?;
        if let Some(chains) = self.journal.chains() {
            // What is reserved behind it is refused.
            self.barrier()?;
            chains.finish()?;
        }
        flushed
    }
}

fn exists_already(dir: &Path) -> Error {
    Error::new(ErrorKind::AlreadyExists, "there is a database here already").with_file(dir)
}

/// What opening says where nothing is and nothing is to be made.
pub(crate) fn not_a_database(dir: &Path) -> Error {
    Error::new(ErrorKind::NotFound, "there is no database here")
        .with_file(dir)
        .with_hint("check the path, or allow creating one")
}
