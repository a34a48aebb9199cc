//! What a cursor goes on with: the sources of its snapshot in one state of the subtable, merged, at a position.
//!
//! A scan keeps memtables, extents and blocks in memory and space on the device from being freed. Between two calls it
//! therefore does not belong to the cursor: it lies in a *seat*, from which whoever comes first takes it whole: the cursor, to
//! go on, or a flush or a merge that has replaced the state, to drop it. A cursor that finds its seat empty builds a scan on
//! the newest state and seeks to the entry that it remembers.
//!
//! # Concurrency
//! Taking and putting back is one swap each, and nobody waits. A scan of a replaced state never stays in a seat: the one who
//! replaces the state first tells so (`Table::epoch`) and then empties the seats; the cursor first puts its scan back and
//! then looks whether its state was replaced. Both sides swap the same word, and a swap that finds nothing writes all the
//! same: so either the replacer comes second and takes the scan, or the cursor comes second and has read what the replacer
//! wrote, hence sees the new epoch.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use crossbeam_utils::atomic::AtomicCell;
use parking_lot::Mutex;
use terrane_base::metrics::stripe;
use terrane_base::{Result, Seq};

use crate::db::engine::Engine;
use crate::db::table::{Super, Table};
use crate::read::merge::Merge;
use crate::read::source::Source;

const SHARDS: usize = 16;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Scan {
    state: Arc<Super>,
    pub(crate) merge: Merge,
}

impl Scan {
    /// On the newest state, without a position.
    pub(crate) fn new(engine: &Engine, table: &Table, seq: Seq) -> Box<Self> {
        let state = table.state_full();
        let runs = state.version.runs().filter(|(_, r)| !r.is_empty());
        let runs = runs.map(|(_, r)| Source::run(r.clone(), engine.cache.clone(), seq));
        let mems = state.memtables.iter().filter(|m| !m.is_empty());
        let merge = Merge::new(mems.map(|m| Source::memtable(m.clone(), seq)).chain(runs).collect());
        Box::new(Scan { state, merge })
    }

    /// The epoch of the state it works on.
    pub(crate) fn epoch(&self) -> u64 {
        self.state.epoch
    }

    /// One key on from `key`, on which it stands.
    #[inline]
    pub(crate) fn step(&mut self, forward: bool, key: &[u8]) -> Result<()> {
        if forward { self.merge.next(key) } else { self.merge.prev(key) }
    }

    /// One key on from `key`, wherever it stands.
    pub(crate) fn step_from(&mut self, forward: bool, key: &[u8]) -> Result<()> {
        if forward {
            self.merge.seek(key)?;
        } else {
            self.merge.seek_for_prev(key)?;
        }
        // The snapshot shows the same keys in every state, so the key is there again; step off it.
        if self.merge.valid() && self.merge.key() == key { self.step(forward, key) } else { Ok(()) }
    }
}

/// Where a scan lies between two calls; see the module's head.
#[derive(Default)]
struct Seat {
    /// A word: swapped without a lock.
    scan: AtomicCell<Option<Box<Scan>>>,
    /// Place in the shard; changed under its lock only.
    at: AtomicUsize,
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").finish_non_exhaustive()
    }
}

/// The cursors of a subtable, by their seats. Spread over shards by thread.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    shards: [CachePadded<Mutex<Vec<Arc<Seat>>>>; SHARDS],
}

impl Readers {
    /// Drops the scans of all cursors that are not in a call; those that are drop theirs when the call ends, if its state was
    /// replaced. To be called without locks: it may free memtables and queue space.
    pub(crate) fn strip(&self) {
        for shard in &self.shards {
            let scans: Vec<_> = shard.lock().iter().filter_map(|seat| seat.scan.take()).collect();
            drop(scans);
        }
    }

    /// Whether there is no cursor.
    pub(crate) fn is_empty(&self) -> bool {
        self.shards.iter().all(|s| s.lock().is_empty())
    }
}

/// A cursor's seat, as long as the cursor lives.
#[derive(Debug)]
pub(crate) struct Seated {
    table: Arc<Table>,
    seat: Arc<Seat>,
    shard: usize,
}

impl Seated {
    /// A seat among the readers of `table`.
    pub(crate) fn new(table: Arc<Table>) -> Self {
        let shard = stripe() % SHARDS;
        let seat = Arc::new(Seat::default());
        let mut seats = table.readers.shards[shard].lock();
        seat.at.store(seats.len(), Ordering::Relaxed);
        seats.push(seat.clone());
        drop(seats);
        Seated { table, seat, shard }
    }

    /// The scan, if nobody has taken it.
    #[inline]
    pub(crate) fn take(&self) -> Option<Box<Scan>> {
        self.seat.scan.take()
    }

    /// Leaves the scan until the next call, unless its state was replaced meanwhile.
    #[inline]
    pub(crate) fn put(&self, scan: Box<Scan>) {
        let epoch = scan.epoch();
        let before = self.seat.scan.swap(Some(scan));
        debug_assert!(before.is_none(), "only the cursor puts a scan here");
        if self.table.epoch() > epoch {
            drop(self.take());
        }
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        let mut seats = self.table.readers.shards[self.shard].lock();
        let at = self.seat.at.load(Ordering::Relaxed);
        seats.swap_remove(at);
        if let Some(moved) = seats.get(at) {
            moved.at.store(at, Ordering::Relaxed);
        }
        drop(seats);
        self.table.reader_left();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use terrane_base::{MemoryBudget, SubtableId};

    use super::*;
    use crate::levels::{Reclaimer, Version};
    use crate::memtable::Memtable;
    use crate::options::{IndexKind, SubtableOptions};

    fn version() -> Arc<Version> {
        Arc::new(Version::empty(Reclaimer::new(|| ())))
    }

    fn table() -> Arc<Table> {
        let memtable = Arc::new(Memtable::new(IndexKind::Art, 0, MemoryBudget::new(1 << 20)));
        Arc::new(Table::new(SubtableId(1), "t", 1, SubtableOptions::new(), memtable, version(), 0))
    }

    fn scan(table: &Table) -> Box<Scan> {
        Box::new(Scan { state: table.state_full(), merge: Merge::new(Vec::new()) })
    }

    fn replace(table: &Table) {
        table.install_version(version(), None);
        table.readers.strip();
    }

    #[test]
    fn a_seat_needs_no_lock() {
        assert!(AtomicCell::<Option<Box<Scan>>>::is_lock_free());
    }

    #[test]
    fn a_scan_goes_when_its_state_is_replaced_and_stays_when_a_memtable_freezes() {
        let table = table();
        let idle = Seated::new(table.clone());
        let busy = Seated::new(table.clone());
        idle.put(scan(&table));
        let taken = scan(&table);
        table.push_memtable(Arc::new(Memtable::new(IndexKind::Art, 1, MemoryBudget::new(1 << 20))));
        let kept = idle.take().expect("a freeze takes nothing away");
        idle.put(kept);
        let old = Arc::downgrade(&taken.state);
        replace(&table);
        assert!(idle.take().is_none());
        busy.put(taken);
        assert!(busy.take().is_none(), "put back after its state was replaced");
        assert!(old.upgrade().is_none());
    }

    #[test]
    fn seats_are_given_up_in_any_order() {
        let table = table();
        let mut seats: Vec<_> = (0..5).map(|_| Seated::new(table.clone())).collect();
        for at in [0, 3, 1, 1] {
            drop(seats.remove(at));
            seats.iter().for_each(|s| s.put(scan(&table)));
            replace(&table);
            assert!(seats.iter().all(|s| s.take().is_none()));
        }
        assert!(!table.readers.is_empty());
        drop(seats);
        assert!(table.readers.is_empty());
    }

    #[test]
    fn no_scan_of_a_replaced_state_stays_however_the_two_meet() {
        let table = table();
        let seat = Seated::new(table.clone());
        let together = Barrier::new(2);
        std::thread::scope(|s| {
            s.spawn(|| {
                for _ in 0..5000 {
                    together.wait();
                    replace(&table);
                    together.wait();
                }
            });
            for _ in 0..5000 {
                let mine = seat.take().unwrap_or_else(|| scan(&table));
                together.wait();
                seat.put(mine);
                together.wait();
                if let Some(left) = seat.take() {
                    assert_eq!(left.epoch(), table.epoch());
                    seat.put(left);
                }
            }
        });
    }
}
