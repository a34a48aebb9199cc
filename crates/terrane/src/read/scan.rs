//! What a cursor goes on with: the sources of its snapshot in one state of the subtable, merged, at a position.
//!
//! A scan keeps memtables, extents and blocks in memory and space on the device from being freed. Between two calls it
//! therefore does not belong to the cursor: it lies in a *seat*, from which whoever comes first takes it whole: the cursor, to
//! go on, or a flush or a merge that has replaced the state, to drop it. A cursor that finds its seat empty builds a scan on
//! the newest state and seeks to the entry that it remembers.
//!
//! # Concurrency
//! Taking and putting back is one swap each, and nobody waits. A scan of a replaced state never stays in a seat: whoever
//! replaces the state first tells so (`Table::epoch`) and then empties the seats; the cursor first puts its scan back and then
//! looks whether its state was replaced. Why that is enough: `terrane_base::seat`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use terrane_base::metrics::stripe;
use terrane_base::seat::Seat;
use terrane_base::{MAX_SEQ, Result, Seq};

use crate::db::engine::Engine;
use crate::db::table::{Super, Table};
use crate::levels::Run;
use crate::read::blocks::{load, load_many};
use crate::read::merge::Merge;
use crate::read::source::Source;

const SHARDS: usize = 16;
/// Sources that most scans have at most.
const SOURCES: usize = 4;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Scan {
    state: Arc<Super>,
    pub(crate) merge: Merge,
}

impl Scan {
    /// On the newest state, without a position; above it `own` runs of a transaction, the newest first.
    pub(crate) fn new(engine: &Engine, table: &Table, seq: Seq, own: &[Arc<Run>]) -> Box<Self> {
        let state = table.state_full();
        let mut sources = Vec::with_capacity(SOURCES + own.len());
        sources.extend(own.iter().map(|r| Source::run(r.clone(), engine.cache.clone(), MAX_SEQ)));
        sources.extend(
            state.memtables.iter().filter(|m| !m.is_empty()).map(|m| Source::memtable(m.clone(), seq)),
        );
        let runs = state.version.runs().filter(|(_, r)| !r.is_empty());
        sources.extend(runs.map(|(_, r)| Source::run(r.clone(), engine.cache.clone(), seq)));
        let merge = Merge::new(sources);
        Box::new(Scan { state, merge })
    }

    /// The epoch of the state it works on.
    pub(crate) fn epoch(&self) -> u64 {
        self.state.epoch
    }

    /// To the first key at or after `key`.
    pub(crate) fn seek(&mut self, engine: &Engine, key: &[u8]) -> Result<()> {
        self.merge.seek(key, |needs| match needs {
            // Whoever else misses the same block meanwhile waits for this read.
            [one] => Ok(vec![load(&engine.cache, &one.extent, &one.part)?]),
            all => load_many(engine, all),
        })
    }

    /// One key on from `key`, on which it stands.
    #[inline]
    pub(crate) fn step(&mut self, forward: bool, key: &[u8]) -> Result<()> {
        if forward { self.merge.next(key) } else { self.merge.prev(key) }
    }

    /// One key on from `key`, wherever it stands.
    pub(crate) fn step_from(&mut self, engine: &Engine, forward: bool, key: &[u8]) -> Result<()> {
        if forward {
            self.seek(engine, key)?;
        } else {
            self.merge.seek_for_prev(key)?;
        }
        // The snapshot shows the same keys in every state, so the key is there again; step off it.
        if self.merge.valid() && self.merge.key() == key { self.step(forward, key) } else { Ok(()) }
    }
}

/// A cursor as its subtable knows it.
#[derive(Debug, Default)]
struct Reader {
    /// Where its scan lies between two calls.
    seat: Seat<Scan>,
    /// Place in the shard; changed under its lock only.
    at: AtomicUsize,
}

/// The cursors of a subtable, by their seats. Spread over shards by thread.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    shards: [CachePadded<Mutex<Vec<Arc<Reader>>>>; SHARDS],
}

impl Readers {
    /// Drops the scans of all cursors that are not in a call; those that are drop theirs when the call ends, if its state was
    /// replaced. To be called without locks: it may free memtables and queue space.
    pub(crate) fn strip(&self) {
        for shard in &self.shards {
            let scans: Vec<_> = shard.lock().iter().filter_map(|r| r.seat.take()).collect();
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
    reader: Arc<Reader>,
    shard: usize,
}

impl Seated {
    /// A seat among the readers of `table`.
    pub(crate) fn new(table: Arc<Table>) -> Self {
        let shard = stripe() % SHARDS;
        let reader = Arc::new(Reader::default());
        let mut readers = table.readers.shards[shard].lock();
        reader.at.store(readers.len(), Ordering::Relaxed);
        readers.push(reader.clone());
        drop(readers);
        Seated { table, reader, shard }
    }

    /// The scan, if nobody has taken it.
    #[inline]
    pub(crate) fn take(&self) -> Option<Box<Scan>> {
        self.reader.seat.take()
    }

    /// Leaves the scan until the next call, unless its state was replaced meanwhile.
    #[inline]
    pub(crate) fn put(&self, scan: Box<Scan>) {
        let epoch = scan.epoch();
        self.reader.seat.put(scan, || self.table.epoch() > epoch);
    }
}

impl Drop for Seated {
    fn drop(&mut self) {
        let mut readers = self.table.readers.shards[self.shard].lock();
        let at = self.reader.at.load(Ordering::Relaxed);
        readers.swap_remove(at);
        if let Some(moved) = readers.get(at) {
            moved.at.store(at, Ordering::Relaxed);
        }
        drop(readers);
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
        let memtable = Arc::new(Memtable::new(IndexKind::Art, 0, MemoryBudget::new(1 << 20), Arc::default()));
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
    fn a_scan_goes_when_its_state_is_replaced_and_stays_when_a_memtable_freezes() {
        let table = table();
        let idle = Seated::new(table.clone());
        let busy = Seated::new(table.clone());
        idle.put(scan(&table));
        let taken = scan(&table);
        table.push_memtable(Arc::new(Memtable::new(
            IndexKind::Art,
            1,
            MemoryBudget::new(1 << 20),
            Arc::default(),
        )));
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
