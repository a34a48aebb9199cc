//! A subtable's state in memory.
//!
//! Everything a reader needs hangs off one pointer, the [`Super`]: memtables, newest first, and the version of the
//! levels. Readers load it without a lock; every change builds a new one and swaps it in. A freeze only adds to what a state
//! holds; whatever takes something out of it begins a new *epoch*, after which cursors move over to the newest state.
//!
//! # Concurrency
//! Swaps are serialised by [`Current`] (where the models of all this are, too), for moments only, never across I/O. `edit`
//! serialises changes of the version and is held across the manifest's write, so that versions reach the manifest in the
//! order in which they are shown.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use terrane_base::{Current, Epoch, Error, ErrorKind, Kept, Lsn, Result, SubtableId};
use terrane_commit::of_epoch;

use crate::compact::busy::{BusyRanges, KeyRange};
use crate::compact::pick::{Clearing, Cursors, MAX_L0_RUNS, RESCUE_RUNS};
use crate::db::pacing::meter::Meter;
use crate::db::spent::Spent;
use crate::db::trouble::Trouble;
use crate::levels::{Run, Version};
use crate::memtable::{Memtable, Of};
use crate::options::SubtableOptions;
use crate::read::scan::Readers;

/// What readers see of a subtable at one moment.
#[derive(Debug)]
pub(crate) struct Super {
    /// Newest first; the first one is active.
    pub(crate) memtables: Vec<Arc<Memtable>>,
    pub(crate) version: Arc<Version>,
    /// States of one epoch differ in what a freeze put in front alone.
    pub(crate) epoch: u64,
}

impl Epoch for Super {
    fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl Super {
    pub(crate) fn active(&self) -> &Arc<Memtable> {
        &self.memtables[0]
    }

    /// Memtables that hold anything, newest first.
    pub(crate) fn filled(&self) -> impl Iterator<Item = &Arc<Memtable>> {
        self.memtables.iter().filter(|m| !m.is_empty())
    }

    /// The memtable that a commit of `generation` writes to.
    pub(crate) fn memtable_for(&self, generation: u64) -> &Arc<Memtable> {
        of_epoch(&self.memtables, generation, |m| &m.stretch)
            // Frozen memtables leave only after all commits of their generations are settled, so one is always found;
            // the oldest is the only sound answer if that were ever broken.
            .unwrap_or_else(|| &self.memtables[self.memtables.len() - 1])
    }
}

/// Levels whose lookups are counted apart: as many as there are, mostly.
const COUNTED_LEVELS: usize = 8;

/// A subtable.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) id: SubtableId,
    pub(crate) name: Arc<str>,
    /// Tells databases of one process apart.
    pub(crate) database: u64,
    options: ArcSwap<SubtableOptions>,
    value_threshold: AtomicUsize,
    /// Runs of L0 from which on flushes wait for a place.
    l0_runs: usize,
    state: Current<Super>,
    /// Open cursors, and what closed ones have left.
    pub(crate) readers: Readers,
    /// Serialises version changes; see the module's head.
    pub(crate) edit: Mutex<()>,
    dropped: AtomicBool,
    /// What takes the place of a dropped subtable's last state.
    empty: Mutex<Option<(Arc<Memtable>, Arc<Version>)>>,
    /// All records of LSNs below it are in extents.
    pub(crate) persisted: AtomicU64,
    pub(crate) flushing: AtomicBool,
    /// Runs that wait for a place in L0, to be attached.
    pub(crate) attaching: AtomicUsize,
    pub(crate) busy: Mutex<BusyRanges>,
    /// Somebody merges everything down.
    pub(crate) compacting: AtomicBool,
    pub(crate) cursors: Mutex<Cursors>,
    /// Deletions that seeks have stepped over, many at a time, until they are cleared away.
    pub(crate) deletions_met: Mutex<Clearing>,
    /// Why its background work stands still, if it does.
    pub(crate) trouble: Trouble,
    /// Lookups that were answered by each level, as far as they were sampled. The last counts for those below too.
    lookups: [AtomicU64; COUNTED_LEVELS],
    /// What reads spend on sources above L1.
    pub(crate) spent: Spent,
    /// When a compaction of it was last chosen, in calls of the scheduler.
    pub(crate) served: AtomicU64,
    /// Bytes of the memtables that were written out lately, smoothed.
    pub(crate) flushed_bytes: AtomicU64,
    /// Passes of L0 through L1 per second, while there is one to make.
    pub(crate) passes: Mutex<Meter>,
    /// Bytes per second that leave levels above their target, while there is such a level.
    pub(crate) sinking: Mutex<Meter>,
}

impl Table {
    pub(crate) fn new(
        id: SubtableId,
        name: &str,
        database: u64,
        options: SubtableOptions,
        memtable: Arc<Memtable>,
        version: Arc<Version>,
        persisted: Lsn,
    ) -> Self {
        Table {
            id,
            name: name.into(),
            database,
            value_threshold: AtomicUsize::new(options.value_threshold),
            options: ArcSwap::from_pointee(options),
            l0_runs: MAX_L0_RUNS,
            state: Current::new(Super { memtables: vec![memtable], version, epoch: 0 }),
            readers: Readers::default(),
            edit: Mutex::new(()),
            dropped: AtomicBool::new(false),
            empty: Mutex::default(),
            persisted: AtomicU64::new(persisted),
            flushing: AtomicBool::new(false),
            attaching: AtomicUsize::new(0),
            busy: Mutex::default(),
            compacting: AtomicBool::new(false),
            cursors: Mutex::default(),
            deletions_met: Mutex::default(),
            trouble: Trouble::default(),
            lookups: Default::default(),
            spent: Spent::default(),
            served: AtomicU64::new(0),
            flushed_bytes: AtomicU64::new(0),
            passes: Mutex::default(),
            sinking: Mutex::default(),
        }
    }

    /// With another number of runs of L0 from which on flushes wait for a place.
    #[must_use]
    pub(crate) fn with_l0_runs(self, l0_runs: usize) -> Self {
        Table { l0_runs, ..self }
    }

    /// The most runs that L0 ever has.
    pub(crate) fn most_l0_runs(&self) -> usize {
        self.l0_runs + RESCUE_RUNS
    }

    /// The present state, for a short look: no shared counter is touched.
    #[inline]
    pub(crate) fn state(&self) -> arc_swap::Guard<Arc<Super>> {
        self.state.load()
    }

    /// The present state, to keep.
    pub(crate) fn state_full(&self) -> Arc<Super> {
        self.state.load_full()
    }

    /// The present state, to keep and to compare.
    pub(crate) fn keep_state(&self) -> Kept<Super> {
        self.state.keep()
    }

    /// The present state, from the one that was kept if it still is that.
    #[inline]
    pub(crate) fn refresh<'k>(&self, kept: &'k mut Option<Kept<Super>>) -> &'k Arc<Super> {
        self.state.refresh(kept)
    }

    /// Whether a state that was kept is the present one.
    pub(crate) fn is_present(&self, kept: &Kept<Super>) -> bool {
        self.state.is_present(kept)
    }

    /// States of lower epochs hold what a newer one has not: long readers move over.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.state.epoch()
    }

    pub(crate) fn options(&self) -> Arc<SubtableOptions> {
        self.options.load_full()
    }

    pub(crate) fn set_options(&self, options: SubtableOptions) {
        self.value_threshold.store(options.value_threshold, Ordering::Relaxed);
        self.options.store(Arc::new(options));
    }

    /// Has values stored apart that are large beside the largest batch.
    pub(crate) fn cut_values(&self, max_batch: u64) {
        self.value_threshold.store(self.options.load().effective_threshold(max_batch), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn value_threshold(&self) -> usize {
        self.value_threshold.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Acquire)
    }

    /// Ends the subtable. Its state stays for the cursors that are open, until the last of them goes; then it has the empty
    /// `memtable` and `version`, and holds nothing for whoever keeps a handle. The caller holds `edit`.
    pub(crate) fn drop_with(&self, memtable: Arc<Memtable>, version: Arc<Version>) {
        *self.empty.lock() = Some((memtable, version));
        self.dropped.store(true, Ordering::Release);
        self.reader_left();
    }

    /// Lets go of a dropped subtable's state if there is no cursor. Whoever opens one looks whether the subtable is dropped
    /// after taking a seat, whoever leaves comes here after giving it up: so no seat is missed, nor the last to be given up.
    pub(crate) fn reader_left(&self) {
        if self.is_dropped() && self.readers.is_empty() {
            let empty = self.empty.lock().take();
            if let Some((memtable, version)) = empty {
                self.swap(true, |_| (vec![memtable], version));
                // What cursors have left behind is of the state before.
                self.readers.strip();
            }
        }
    }

    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.is_dropped() {
            return Err(
                Error::new(ErrorKind::SubtableDropped, "the subtable was dropped").with_subtable(&*self.name)
            );
        }
        Ok(())
    }

    /// Puts a new active memtable in front.
    pub(crate) fn push_memtable(&self, memtable: Arc<Memtable>) {
        self.swap(false, |old| {
            let mut memtables = Vec::with_capacity(old.memtables.len() + 1);
            memtables.push(memtable);
            memtables.extend(old.memtables.iter().cloned());
            (memtables, old.version.clone())
        });
    }

    /// Puts memtables behind all others, which are newer, when it is opened.
    pub(crate) fn put_behind(&self, older: &[Arc<Memtable>]) {
        if !older.is_empty() {
            self.swap(false, |now| ([&now.memtables[..], older].concat(), now.version.clone()));
        }
    }

    /// Takes back what [`Table::push_memtable`] put in front of `old`.
    pub(crate) fn pop_memtable(&self, old: &Arc<Memtable>) {
        self.swap(true, |state| {
            let from = state.memtables.iter().position(|m| Arc::ptr_eq(m, old)).unwrap_or(0);
            (state.memtables[from..].to_vec(), state.version.clone())
        });
    }

    /// Puts another memtable in the place of the active one, which is empty and stays so.
    pub(crate) fn replace_active(&self, memtable: Arc<Memtable>) {
        self.swap(true, |now| ([&[memtable][..], &now.memtables[1..]].concat(), now.version.clone()));
    }

    /// Counts lookups that `level` has answered.
    pub(crate) fn answered(&self, level: u8, lookups: u64) {
        self.lookups[usize::from(level).min(COUNTED_LEVELS - 1)].fetch_add(lookups, Ordering::Relaxed);
    }

    /// How many there were.
    pub(crate) fn lookups(&self, level: u8) -> u64 {
        self.lookups.get(usize::from(level)).map_or(0, |n| n.load(Ordering::Relaxed))
    }

    fn l0_is_full(&self) -> bool {
        self.state().version.l0.len() >= self.l0_runs
    }

    /// Whether a memtable, or a run that is to be attached, waits for a place in L0.
    pub(crate) fn waits_for_l0(&self) -> bool {
        let waiting = self.state().memtables.len() > 1 || self.attaching.load(Ordering::Acquire) > 0;
        self.l0_is_full() && waiting
    }

    /// Whether a memtable that freezes now could be written out at once.
    pub(crate) fn can_flush_next(&self) -> bool {
        self.state().memtables.len() == 1 && self.has_l0_room()
    }

    /// Runs of L0 with which its pass goes on in any case. No more than there are places: else flushes might wait for one that no pass is
    /// to make.
    pub(crate) fn l0_due(&self, version: &Version) -> usize {
        self.l0_runs.min(self.spent.l0_due(version))
    }

    /// Whether a further L0 run is allowed.
    pub(crate) fn has_l0_room(&self) -> bool {
        let runs = self.state().version.l0.len();
        runs < self.l0_runs || (runs < self.most_l0_runs() && self.damage_bars_l0())
    }

    /// Whether damage keeps L0 from being emptied.
    pub(crate) fn damage_bars_l0(&self) -> bool {
        self.trouble.bars_l0(|ranges| self.l0_is_stuck(ranges))
    }

    /// Whether as many runs of L0 as there may be meet one of these ranges.
    fn l0_is_stuck(&self, ranges: &[&KeyRange]) -> bool {
        let state = self.state();
        let meets = |run: &Run| ranges.iter().any(|r| !run.overlapping(&r.lo, r.hi.as_deref()).is_empty());
        state.version.l0.iter().filter(|run| meets(run)).count() >= self.l0_runs
    }

    /// Why nothing more of this subtable can be written out, if so: a flush failed, or L0 is full and cannot be emptied.
    pub(crate) fn standstill(&self) -> Option<Error> {
        self.trouble.standstill(self.l0_is_full(), |ranges| self.l0_is_stuck(ranges))
    }

    /// As [`Table::standstill`], leaving out damage that is being tried again.
    pub(crate) fn lasting_standstill(&self) -> Option<Error> {
        self.trouble.lasting_standstill(self.l0_is_full(), |ranges| self.l0_is_stuck(ranges))
    }

    /// Why nothing more can be written out, leaving out what is about to be tried again.
    pub(crate) fn given_up(&self) -> Option<Error> {
        self.trouble.given_up(!self.has_l0_room(), |ranges| self.l0_is_stuck(ranges))
    }

    /// Bytes in memtables, of the memory that counts.
    pub(crate) fn memtable_bytes(&self, which: Of) -> usize {
        self.state().memtables.iter().map(|m| m.bytes_of(which)).sum()
    }

    /// Shows `version`, without the memtable `flushed` whose records it now holds. The caller holds `edit`, and strips
    /// `readers` when it does not any more.
    pub(crate) fn install_version(&self, version: Arc<Version>, flushed: Option<&Arc<Memtable>>) {
        self.swap(true, |old| {
            let keep = |m: &&Arc<Memtable>| flushed.is_none_or(|f| !Arc::ptr_eq(f, m));
            (old.memtables.iter().filter(keep).cloned().collect(), version)
        });
    }

    fn swap(&self, removes: bool, next: impl FnOnce(&Super) -> (Vec<Arc<Memtable>>, Arc<Version>)) {
        self.state.replace(|old| {
            let (memtables, version) = next(old);
            Super { memtables, version, epoch: old.epoch + u64::from(removes) }
        });
    }

    /// LSN of the oldest record that only a memtable holds, `skip` left out. Of what is settled: to be asked after that was read, for an
    /// empty memtable can only receive records from there on.
    pub(crate) fn oldest_unflushed(&self, skip: Option<&Arc<Memtable>>) -> Option<Lsn> {
        if self.is_dropped() {
            return None;
        }
        let state = self.state();
        let counts = |m: &&Arc<Memtable>| skip.is_none_or(|s| !Arc::ptr_eq(s, m));
        state.memtables.iter().filter(counts).filter_map(|m| m.first_record()).min()
    }

    /// Frozen memtables, oldest first.
    pub(crate) fn frozen(&self) -> Vec<Arc<Memtable>> {
        self.state().memtables.iter().skip(1).rev().cloned().collect()
    }
}
