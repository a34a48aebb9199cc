//! What a cursor goes on with: the sources of its snapshot in one state of the subtable, merged, at a position.
//!
//! A scan keeps memtables, extents and blocks in memory and space on the device from being freed. Between two calls it
//! therefore does not belong to the cursor: it lies in a *seat*, from which whoever comes first takes it whole: the cursor, to
//! go on, or a flush or a merge that has replaced the state, to drop it. A cursor that finds its seat empty builds a scan on
//! the newest state and seeks to the entry that it remembers.
//!
//! A cursor that is closed leaves its seat behind, with a scan that rests: it pins no block, but its sources and their memory are
//! there. Where many cursors live shortly, the next one sits down on it, has the scan show its own snapshot, and builds nothing. That
//! is right as long as the state is the present one, in which everything is that the new snapshot sees. One seat of each shard of a
//! subtable is kept so, for so many subtables as `read/left.rs` says; a buffer at rest keeps [`RESTING_BYTES`] at most. A cursor
//! that shows runs of a transaction, that has failed or that never stood anywhere leaves nothing.
//!
//! # Concurrency
//! Taking and putting back is one swap each, and nobody waits. A scan of a replaced state never stays in a seat: whoever
//! replaces the state first tells so (`Table::epoch`) and then empties the seats; the cursor first puts its scan back and then
//! looks whether its state was replaced. Why that is enough: `terrane_base::seat`. A seat that is left behind goes from the list of open
//! ones to its place under the lock of the shard, under which both are emptied.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use terrane_base::metrics::{STRIPES, stripe};
use terrane_base::seat::Seat;
use terrane_base::{Kept, MAX_SEQ, Result, Seq};

use crate::db::anchor::Both;
use crate::db::engine::Engine;
use crate::db::spent::{LOOKS_A_SEEK, TOLD_AT_ONCE};
use crate::db::table::{Super, Table};
use crate::levels::Run;
use crate::read::blocks::{load, load_many};
use crate::read::entry::Entry;
use crate::read::lead::Lead;
use crate::read::left::LeftScans;
use crate::read::merge::Merge;
use crate::read::source::Source;

/// Most bytes that a buffer of a scan or of tools at rest keeps.
pub(crate) const RESTING_BYTES: usize = 1 << 10;

/// Empties a buffer that is to rest.
pub(crate) fn empty(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.shrink_to(RESTING_BYTES);
}

/// Sources that most scans have at most.
pub(crate) const SOURCES: usize = 8;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Scan {
    state: Kept<Super>,
    /// It shows no snapshot, and pins no block.
    rests: bool,
    /// How many of the state's memtables are among the sources: the others were empty.
    memtables: usize,
    /// What seeks and steps took of which nobody was told, in looks, where merging memtables and runs of L0 down would spare some.
    looks: Option<u32>,
    /// What a seek takes beside that which it takes where these are merged down.
    seek_looks: u32,
    pub(crate) merge: Merge,
    /// Those of the cursor that has left it, while it rests.
    tools: Tools,
}

impl Scan {
    /// On the newest state, without a position; above it `own` runs of a transaction, the newest first.
    pub(crate) fn new(Both { engine, table }: &Both, seq: Seq, own: &[Arc<Run>]) -> Box<Self> {
        let state = table.keep_state();
        let version = &state.value().version;
        let mut sources = Vec::with_capacity(SOURCES + own.len());
        sources.extend(own.iter().map(|r| Source::run(r.clone(), engine.cache.clone(), MAX_SEQ)));
        sources.extend(state.value().filled().map(|m| Source::memtable(m.clone(), seq)));
        let memtables = sources.len() - own.len();
        let runs = version.runs().filter(|(_, r)| !r.is_empty());
        sources.extend(runs.map(|(_, r)| Source::run(r.clone(), engine.cache.clone(), seq)));
        let mergeable = (memtables + version.l0.len()) as u32;
        let further = sources.len().saturating_sub(own.len() + 1) as u32;
        let looks = (mergeable > 0 && further > 0).then_some(0);
        let merge = Merge::new(sources);
        let (seek_looks, tools) = (further.min(mergeable) * LOOKS_A_SEEK, Tools::default());
        Box::new(Scan { state, rests: false, memtables, looks, seek_looks, merge, tools })
    }

    /// If it rests, has it show the registered snapshot `seq`, without a position. False if its state has not all of that.
    #[inline]
    pub(crate) fn show(&mut self, table: &Table, seq: Seq) -> bool {
        !self.rests || self.renew(table, seq)
    }

    fn renew(&mut self, table: &Table, seq: Seq) -> bool {
        // A state with one more memtable is told of before any commit goes there: who sees such a commit sees that this one has passed.
        if !table.is_present(&self.state) || self.state.value().filled().count() != self.memtables {
            return false;
        }
        self.rests = false;
        self.merge.show_as_of(seq);
        true
    }

    fn rest(&mut self, mut tools: Tools) {
        self.rests = true;
        self.merge.rest();
        tools.entry.rest();
        tools.lead.rest();
        self.tools = tools;
    }

    /// Counts a step, and gives how many looks' time was spent if that is to be told.
    #[inline]
    pub(crate) fn count(&mut self) -> Option<u32> {
        let looks = self.looks.as_mut()?;
        *looks += 1;
        (*looks >= TOLD_AT_ONCE).then(|| std::mem::take(looks))
    }

    /// The epoch of the state it works on.
    pub(crate) fn epoch(&self) -> u64 {
        self.state.value().epoch
    }

    /// To the first key at or after `key`.
    pub(crate) fn seek(&mut self, engine: &Engine, key: &[u8]) -> Result<()> {
        self.looks = self.looks.map(|looks| looks.saturating_add(self.seek_looks));
        self.merge.seek(&engine.cache, key, |needs| match needs {
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

/// A cursor as its subtable knows it, or what a closed one has left. Written to in each call: nobody else's lie beside it.
#[derive(Debug, Default)]
struct Reader {
    /// Where its scan lies between two calls.
    seat: Seat<Scan>,
    /// Place in the shard; changed under its lock only.
    at: AtomicUsize,
}

/// What a cursor works with, but for its scan; kept for its memory.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) entry: Entry,
    pub(crate) lead: Lead,
}

impl Default for Tools {
    fn default() -> Self {
        Tools { entry: Entry::new(), lead: Lead::new() }
    }
}

/// The cursors of a subtable, by their seats. Spread over shards by thread.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    shards: [CachePadded<Mutex<Shard>>; STRIPES],
}

#[derive(Debug, Default)]
struct Shard {
    open: Vec<Arc<CachePadded<Reader>>>,
    /// What one that was closed has left.
    left: Option<Arc<CachePadded<Reader>>>,
    /// The subtable is among those of this shard that may have something left: see [`LeftScans`].
    noted: bool,
}

impl Readers {
    /// Drops the scans of all cursors that are not in a call; those that are drop theirs when the call ends, if its state was
    /// replaced. To be called without locks, for it may free memtables and queue space; or by whoever holds the replaced state.
    pub(crate) fn strip(&self) {
        for shard in &self.shards {
            let shard = shard.lock();
            let readers = shard.open.iter().chain(&shard.left);
            let scans: Vec<_> = readers.filter_map(|r| r.seat.take()).collect();
            drop(shard);
            drop(scans);
        }
    }

    /// Drops what was left in a shard, whose subtable is noted no more.
    pub(crate) fn forget(&self, shard: usize) {
        let mut shard = self.shards[shard].lock();
        shard.noted = false;
        let left = shard.left.take();
        drop(shard);
        drop(left);
    }

    /// Whether there is no open cursor.
    pub(crate) fn is_empty(&self) -> bool {
        self.shards.iter().all(|s| s.lock().open.is_empty())
    }
}

/// A cursor's seat among the readers of a subtable, which whoever uses it has: to be given up by [`Seated::leave`].
#[derive(Debug)]
pub(crate) struct Seated {
    reader: Arc<CachePadded<Reader>>,
    shard: usize,
}

impl Seated {
    /// A seat among the readers of `table`, and tools; what is in a `shared` one shows what the subtable has and nothing else.
    pub(crate) fn new(table: &Table, shared: bool) -> (Self, Tools) {
        let shard = stripe();
        let mut readers = table.readers.shards[shard].lock();
        let reader = readers.left.take_if(|_| shared).unwrap_or_default();
        reader.at.store(readers.open.len(), Ordering::Relaxed);
        readers.open.push(reader.clone());
        drop(readers);
        let seated = Seated { reader, shard };
        let tools = seated.take().map(|mut scan| {
            let tools = std::mem::take(&mut scan.tools);
            seated.put(scan, table);
            tools
        });
        (seated, tools.unwrap_or_default())
    }

    /// The scan, if nobody has taken it.
    #[inline]
    pub(crate) fn take(&self) -> Option<Box<Scan>> {
        self.reader.seat.take()
    }

    /// Leaves the scan until the next call, unless its state was replaced meanwhile.
    #[inline]
    pub(crate) fn put(&self, scan: Box<Scan>, table: &Table) {
        let epoch = scan.epoch();
        self.reader.seat.put(scan, || table.epoch() > epoch);
    }

    /// Gives the seat up; leaves a `shared` one, and the tools, to the next cursor, if that can use them.
    pub(crate) fn leave(&self, table: &Arc<Table>, tools: Tools, shared: bool, noted: &LeftScans) {
        let mut rested = None;
        if let Some(mut scan) = self.take()
            && shared
            && table.is_present(&scan.state)
        {
            scan.rest(tools);
            self.put(scan, table);
            rested = Some(self.reader.clone());
        }
        let mut readers = table.readers.shards[self.shard].lock();
        let at = self.reader.at.load(Ordering::Relaxed);
        readers.open.swap_remove(at);
        if let Some(moved) = readers.open.get(at) {
            moved.at.store(at, Ordering::Relaxed);
        }
        let replaced = rested.and_then(|rested| readers.left.replace(rested));
        let first = readers.left.is_some() && !std::mem::replace(&mut readers.noted, true);
        drop(readers);
        // Its scan with it: without a lock.
        drop(replaced);
        if first {
            noted.note(self.shard, table);
        }
        table.reader_left();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use terrane_base::SubtableId;

    use super::*;
    use crate::levels::{Reclaimer, Version};
    use crate::memtable::{Memtable, MemtableBudget};
    use crate::options::{IndexKind, SubtableOptions};
    use crate::read::left::MOST;

    fn version() -> Arc<Version> {
        Arc::new(Version::empty(Reclaimer::new(|| ())))
    }

    fn memtable(generation: u64) -> Arc<Memtable> {
        Arc::new(Memtable::new(IndexKind::Art, generation, &MemtableBudget::shared(1 << 20), Arc::default()))
    }

    fn table() -> Arc<Table> {
        Arc::new(Table::new(SubtableId(1), "t", 1, SubtableOptions::new(), memtable(0), version(), 0))
    }

    fn scan(table: &Table) -> Box<Scan> {
        Box::new(Scan {
            state: table.keep_state(),
            rests: false,
            memtables: 0,
            looks: None,
            seek_looks: 0,
            merge: Merge::new(Vec::new()),
            tools: Tools::default(),
        })
    }

    fn replace(table: &Table) {
        table.install_version(version(), None);
        table.readers.strip();
    }

    #[test]
    fn a_scan_goes_when_its_state_is_replaced_and_stays_when_a_memtable_freezes() {
        let table = table();
        let idle = Seated::new(&table, true).0;
        let busy = Seated::new(&table, true).0;
        idle.put(scan(&table), &table);
        let taken = scan(&table);
        table.push_memtable(memtable(1));
        let kept = idle.take().expect("a freeze takes nothing away");
        idle.put(kept, &table);
        let old = Arc::downgrade(taken.state.value());
        replace(&table);
        assert!(idle.take().is_none());
        busy.put(taken, &table);
        assert!(busy.take().is_none(), "put back after its state was replaced");
        assert!(old.upgrade().is_none());
    }

    #[test]
    fn seats_are_given_up_in_any_order() {
        let (table, noted) = (table(), LeftScans::default());
        let mut seats: Vec<_> = (0..5).map(|_| Seated::new(&table, true).0).collect();
        for at in [0, 3, 1, 1] {
            seats.remove(at).leave(&table, Tools::default(), true, &noted);
            seats.iter().for_each(|s| s.put(scan(&table), &table));
            replace(&table);
            assert!(seats.iter().all(|s| s.take().is_none()));
        }
        assert!(!table.readers.is_empty());
        seats.iter().for_each(|s| s.leave(&table, Tools::default(), true, &noted));
        assert!(table.readers.is_empty());
    }

    /// Opens a cursor, has it make a scan and closes it. Returns whether it found what another had left.
    fn visit(table: &Arc<Table>, noted: &LeftScans) -> bool {
        let (seat, tools) = Seated::new(table, true);
        let found = seat.take();
        let fresh = found.is_none();
        seat.put(found.unwrap_or_else(|| scan(table)), table);
        seat.leave(table, tools, true, noted);
        !fresh
    }

    #[test]
    fn what_a_closed_cursor_leaves_goes_with_its_state() {
        let (table, noted) = (table(), LeftScans::default());
        assert_eq!([(); 3].map(|()| visit(&table, &noted)), [false, true, true]);
        let old = Arc::downgrade(table.keep_state().value());
        replace(&table);
        assert!(old.upgrade().is_none(), "kept by what was left");
        assert_eq!([(); 2].map(|()| visit(&table, &noted)), [false, true]);

        let old = Arc::downgrade(table.keep_state().value());
        let seat = Seated::new(&table, true).0;
        let outdated = seat.take().expect("left by the one before");
        table.push_memtable(memtable(1));
        seat.put(outdated, &table);
        seat.leave(&table, Tools::default(), true, &noted);
        assert!(!visit(&table, &noted), "left, though another state was present already");

        table.drop_with(memtable(2), version());
        assert!(old.upgrade().is_none());
    }

    #[test]
    fn only_so_many_subtables_keep_what_was_left() {
        let (tables, noted) = ([(); MOST + 2].map(|()| table()), LeftScans::default());
        tables.iter().for_each(|t| assert!(!visit(t, &noted)));
        let left = |t: &Arc<Table>| t.readers.shards[stripe()].lock().left.is_some();
        let kept: Vec<_> = tables.iter().map(left).collect();
        assert_eq!(kept, [vec![false; 2], vec![true; MOST]].concat());
        assert!(visit(&tables[2], &noted) && !visit(&tables[0], &noted));
        assert!(left(&tables[0]) && !left(&tables[2]), "who came first goes first");
    }

    #[test]
    fn no_scan_of_a_replaced_state_stays_however_the_two_meet() {
        let table = table();
        let seat = Seated::new(&table, true).0;
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
                seat.put(mine, &table);
                together.wait();
                if let Some(left) = seat.take() {
                    assert_eq!(left.epoch(), table.epoch());
                    seat.put(left, &table);
                }
            }
        });
    }
}
