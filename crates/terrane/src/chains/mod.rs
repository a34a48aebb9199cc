//! Commits in persistent memory: what takes the log's place where a database has one.
//!
//! Each memtable has a chain there ([`terrane_chainlog`]), and a commit is one item in the chain of each memtable that it writes to. So
//! nothing is written twice, and what a memtable has is found where it lies after a crash. Everything behind the memtables is as it is with
//! a log: they freeze at a boundary of the order, and are written out to extents.
//!
//! # What it upholds (rules of the design, by number)
//! * 2, *free after manifest*, and 7, *settled*. A chain is released by the last reader of its memtable, once a durable edit of the
//!   manifest says that its records are in extents or its subtable is gone, and that all commits are settled up to its last one at least
//!   ([`Chains::release`]). The manifest's durable LSN is what recovery takes for settled.
//! * 5, *reservation*. Places in the zones are assigned in the turns of the ring ([`commit`]).
//! * 6, *gidx belongs to a memtable*. A memtable freezes with its chain, and the next one has its own.
//! * 16, *poison*. What fails behind a reservation ends all writing.
//! * 17, *checksums*. Records carry their own; they are looked at when the chain is read back, when it is written out, and when a value is
//!   read.
//! * And memory is bounded. Zones count against the budget of the memtables, so what holds writers up before memory is full does so before
//!   zones are; and no commit has a place that takes a zone unless that was set aside for it.
//!
//! # Concurrency
//! Leaders have their turns one after the other, under the ring's mutex, and write in parallel; one orderer at a time has the words
//! advance. What else there is are an atomic and, for releasing and closing, a mutex.
//!
//! # After a crash
//! See [`terrane_chainlog::recover()`] and [`crate::recovery`].

pub(crate) mod commit;
pub(crate) mod records;
pub(crate) mod shelf;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use terrane_base::{Error, ErrorKind, Lsn, MemoryBudget, Result, SubtableId};
use terrane_chainlog::{Admission, Chain, Space, VolatileZones};
use terrane_format::chain::{ChainMemtable, MAX_SLOTS};
use terrane_media::Media;

use crate::chains::shelf::Shelf;
use crate::recovery::RING_SLOTS;

/// Of how many parts of all zones' bytes one is left out of the memtables' budget: commits on their way may need zones beyond it.
pub(crate) const SPARE: usize = 8;
/// Of how many memtables one is left for openings: where a log trails, commits that were on their way to some subtables when the
/// process died may have come to the log alone, and what follows these there needs memtables behind. (Where it is too few, an opening has to
/// write some out first.)
const FOR_OPENINGS: u64 = 32;
/// Zones that memtables may take at least, whatever their budget is to be.
const LEAST_ZONES: usize = 16;
/// Zones that are asked back from the shelf at a time.
const GIVEN_BACK: usize = 2;

/// The persistent memory of an open database.
#[derive(Debug)]
pub(crate) struct Chains {
    media: Arc<dyn Media>,
    space: Arc<Space>,
    /// All commits before it are durable, unless a log trails and says so. Apart from what each commit looks at, for each changes it.
    durable: CachePadded<AtomicU64>,
    /// Of the next memtable, over all subtables.
    next_generation: AtomicU64,
    closed: AtomicBool,
    poisoned: AtomicBool,
    cause: Mutex<Option<Error>>,
    /// Whether chains may still be made and released: not after the memory was closed.
    open: Mutex<bool>,
    /// Where it is told that one could not be released.
    lost_space: Arc<ArcSwapOption<Error>>,
    /// The memory is new, in the place of one that was of no use any more.
    renewed: bool,
    /// What zones that no commit needs are used for, on a device.
    shelf: Option<Arc<Shelf>>,
    /// Where indexes of memtables lie, if they lie there.
    index_zones: Option<Arc<VolatileZones>>,
}

/// Whether a chain of a memory with so many zones can be so long that commits on their way run out of slots. It has each zone once, so never
/// more than there are.
fn slots_run_out(zones: u64) -> bool {
    zones + RING_SLOTS as u64 > u64::from(MAX_SLOTS)
}

impl Chains {
    /// Of a memory whose commits end at `durable`; memtables made from here on have generations from `generation` on. `renewed`: see
    /// [`Chains::is_renewed`]. `index_bytes`: see [`Shelf::new`].
    pub(crate) fn new(
        media: Arc<dyn Media>,
        space: Arc<Space>,
        durable: Lsn,
        generation: u64,
        lost_space: Arc<ArcSwapOption<Error>>,
        renewed: bool,
        index_bytes: usize,
    ) -> Self {
        let shelf = space.is_on_device().then(|| Arc::new(Shelf::new(space.clone(), index_bytes)));
        Chains {
            media,
            space,
            durable: CachePadded::new(AtomicU64::new(durable)),
            next_generation: AtomicU64::new(generation),
            closed: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
            cause: Mutex::new(None),
            open: Mutex::new(true),
            lost_space,
            renewed,
            shelf,
            index_zones: None,
        }
    }

    /// With the indexes of memtables there too. Their zones are charged to `budget`, and come before what zones are used for that nobody
    /// needs.
    #[must_use]
    pub(crate) fn with_indexes(mut self, budget: MemoryBudget) -> Self {
        let shelf = self.shelf.clone();
        let make_room = move || {
            if let Some(shelf) = &shelf {
                shelf.give_back(GIVEN_BACK);
            }
        };
        self.index_zones = Some(VolatileZones::charged(self.space.clone(), budget, Box::new(make_room)));
        self
    }

    /// Where indexes of memtables lie, if they lie there.
    pub(crate) fn index_zones(&self) -> Option<&Arc<VolatileZones>> {
        self.index_zones.as_ref()
    }

    /// Whether the memory took the place of one that was lost.
    pub(crate) fn is_renewed(&self) -> bool {
        self.renewed
    }

    /// What lies in zones that no commit needs.
    pub(crate) fn shelf(&self) -> Option<&Arc<Shelf>> {
        self.shelf.as_ref()
    }

    pub(crate) fn space(&self) -> &Arc<Space> {
        &self.space
    }

    /// Bytes of all zones, and of those that are taken or set aside.
    pub(crate) fn sizes(&self) -> (u64, u64) {
        let (all, zone) = (self.space.zone_count(), self.space.zone_bytes() as u64);
        let shelf = self.shelf.as_ref().map_or(0, |shelf| shelf.bytes());
        (all * zone, (all.saturating_sub(self.space.free()) * zone).saturating_sub(shelf))
    }

    /// What memtables may take of a memory, where it is to be `bound` at most. Their indexes, if they lie elsewhere, may take as much there.
    pub(crate) fn budget(space: &Space, bound: Option<u64>) -> usize {
        let bytes = space.zone_count() as usize * space.zone_bytes();
        let most = bytes - bytes / SPARE;
        let bound = bound.map_or(most, |bound| usize::try_from(bound).unwrap_or(most));
        bound.max(LEAST_ZONES * space.zone_bytes()).min(most)
    }

    /// Whether commits on their way may need more zones of this chain than it can open: nobody may begin one then.
    pub(crate) fn is_long(chain: &Chain) -> bool {
        chain.slots_left() <= RING_SLOTS as u32
    }

    /// Whether a chain can be [that long](Chains::is_long).
    pub(crate) fn have_long_chains(&self) -> bool {
        slots_run_out(self.space.zone_count())
    }

    /// The most bytes that the records of a commit take in one memtable.
    pub(crate) fn largest_item(&self) -> usize {
        Chain::most(&self.space)
    }

    /// The most subtables of a commit, for each of which it may take a zone. Memtables may not have the last eighth of all.
    pub(crate) fn most_subtables_of_a_commit(&self) -> u64 {
        Chains::without_spare(self.space.zone_count())
    }

    /// The largest batch, in bytes of encoded operations, of a memory: with all that its records take beside them they fit an item, unless
    /// they are tiny.
    pub(crate) fn max_batch(space: &Space) -> u64 {
        Chain::most(space) as u64 / 2
    }

    /// The chain of a new memtable of a subtable, which has no commits before `from`.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfSpace`] if there are too many memtables; [`ErrorKind::Closed`] once the memory was closed.
    pub(crate) fn create(&self, subtable: SubtableId, from: Lsn) -> Result<Chain> {
        // Held meanwhile: nothing is stored once it is written down that the memory was closed.
        let open = self.open.lock();
        if !*open {
            return Err(memory_closed());
        }
        let generation = self.next_generation.fetch_add(1, Ordering::Relaxed);
        Chain::create(
            &self.space,
            ChainMemtable { subtable: u64::from(subtable.0), generation, from_lsn: from },
        )
    }

    /// As [`Chains::create`], in an open database.
    ///
    /// # Errors
    /// As there; some memtables [are left](Chains::has_memtable_left).
    pub(crate) fn create_next(&self, subtable: SubtableId, from: Lsn) -> Result<Chain> {
        if self.has_memtable_left() {
            return self.create(subtable, from);
        }
        let (_, all) = self.space.memtables_left();
        let what = format!("no memtable is free of the {all} that persistent memory has");
        Err(Error::new(ErrorKind::OutOfSpace, what).with_file(self.space.path()))
    }

    /// So many subtables can there be where there are so many memtables.
    pub(crate) fn most_subtables(memtables: u64) -> u64 {
        Chains::without_spare(memtables)
    }

    fn without_spare(all: u64) -> u64 {
        all - all / SPARE as u64
    }

    /// Whether there is a memtable that nobody has, but for what openings may need.
    pub(crate) fn has_memtable_left(&self) -> bool {
        let (left, all) = self.space.memtables_left();
        left > all / FOR_OPENINGS
    }

    /// Whether there can be one subtable more: each memtable needs another one to freeze.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] if not.
    pub(crate) fn check_one_more(&self) -> Result<()> {
        let (left, all) = self.space.memtables_left();
        match left > all / SPARE as u64 {
            true => Ok(()),
            false => Err(Error::limit(
                "memtables in persistent memory",
                all - left + 1,
                Chains::most_subtables(all),
            )
            .with_hint("drop subtables, or create the database with more persistent memory")),
        }
    }

    /// Sets zones aside for a commit to so many subtables; `None` if there are too few now.
    pub(crate) fn try_admit(&self, subtables: usize) -> Option<Admission> {
        if let Some(shelf) = self.shelf.as_ref().filter(|_| self.space.is_scarce()) {
            // Before anybody has to wait for them. A few at a time: the caller commits.
            shelf.give_back(GIVEN_BACK);
        }
        if let Ok(zones) = self.space.admit(subtables as u64) {
            return Some(zones);
        }
        self.shelf.as_ref()?.give_back(subtables.max(GIVEN_BACK));
        self.space.admit(subtables as u64).ok()
    }

    /// Gives a memtable's chain back: all that was committed in it is in extents or of no use, and the manifest says so, and that all
    /// commits before `settled` were.
    pub(crate) fn release(&self, chain: Chain, settled: Lsn) {
        let open = self.open.lock();
        if *open
            && !self.is_poisoned()
            && let Err(e) = chain.release(settled)
        {
            self.lost_space.store(Some(Arc::new(e.context("giving persistent memory back"))));
        }
        // Else the next opening does.
    }

    /// For the orderer, where no log trails: all commits before `end` are durable.
    pub(crate) fn is_durable_to(&self, end: Lsn) {
        self.durable.store(end, Ordering::Release);
    }

    /// All commits before it survive a power failure, as far as the memory does; where no log trails.
    pub(crate) fn durable_lsn(&self) -> Lsn {
        self.durable.load(Ordering::Acquire)
    }

    pub(crate) fn poison(&self, cause: &Error) {
        self.cause.lock().get_or_insert_with(|| cause.clone());
        self.poisoned.store(true, Ordering::Release);
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    /// Fails once something has failed that ends all writing, and once closing has begun.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_closed() {
            return Err(memory_closed());
        }
        if !self.is_poisoned() {
            return Ok(());
        }
        let cause = self.cause.lock().as_ref().map_or_else(String::new, |c| format!(": {c}"));
        Err(Error::new(ErrorKind::Poisoned, format!("an earlier write to persistent memory failed{cause}"))
            .with_hint("close the database, see to the memory, and open it again"))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Refuses further commits. Those that were let in end as they would.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Notes that the memory was closed in order. Nobody commits any more.
    ///
    /// # Errors
    /// What the memory fails with.
    pub(crate) fn finish(&self) -> Result<()> {
        if self.seal() && !self.is_poisoned() {
            self.space.close(&*self.media)?;
        }
        Ok(())
    }

    /// Stores nothing from here on, whatever closing came to: once the directory's lock is let go of the memory may be another's, and memtables and
    /// blocks may be held longer. Whether that is new.
    pub(crate) fn seal(&self) -> bool {
        let mut open = self.open.lock();
        if let Some(shelf) = &self.shelf {
            shelf.close();
        }
        self.space.seal();
        std::mem::replace(&mut *open, false)
    }
}

fn memory_closed() -> Error {
    Error::new(ErrorKind::Closed, "the persistent memory is closed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_run_out_where_commits_on_their_way_may_open_more_than_a_chain_has() {
        let most = u64::from(MAX_SLOTS) - RING_SLOTS as u64;
        assert!(!slots_run_out(most) && slots_run_out(most + 1));
    }
}
