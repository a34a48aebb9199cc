//! The skiplist: one entry for each version, in the order of key, then sequence from new to old.
//!
//! Slower than the radix tree in every respect that we measure, and simple: an option, and what the tree is tested
//! against. The list allocates its nodes itself, so their share of the memory is an estimate.

use std::cmp::Ordering as Order;
use std::ops::Bound;

use crossbeam_skiplist::SkipMap;
use terrane_base::{MAX_SEQ, MemoryBudget, Seq};

use crate::art::{Leaf, Word};
use crate::record::{Record, RecordPtr};

/// What an entry takes: our 32 bytes, a word of bookkeeping, a tower of two pointers on average, the allocator's own.
const ENTRY_BYTES: usize = 72;

/// A key and a sequence. The key's bytes lie in the record or, while searching, with the caller.
struct Place {
    key: *const [u8],
    seq: Seq,
}

// SAFETY: the bytes are never written while the place exists, so any thread may read them.
unsafe impl Send for Place {}
// SAFETY: as above.
unsafe impl Sync for Place {}

impl Place {
    fn key(&self) -> &[u8] {
        // SAFETY: places in the list point into records, which outlive it; a place to search for points at the key of a
        // caller who waits for the search to end.
        unsafe { &*self.key }
    }
}

impl Ord for Place {
    fn cmp(&self, other: &Self) -> Order {
        self.key().cmp(other.key()).then(other.seq.cmp(&self.seq))
    }
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Order::Equal
    }
}

impl Eq for Place {}

/// See the module's head.
pub(crate) struct List {
    map: SkipMap<Place, RecordPtr>,
    budget: MemoryBudget,
}

impl List {
    pub(crate) fn new(budget: MemoryBudget) -> Self {
        List { map: SkipMap::new(), budget }
    }

    /// Bytes charged to the budget.
    pub(crate) fn bytes(&self) -> usize {
        self.map.len() * ENTRY_BYTES
    }

    /// Adds `record`, whose key and sequence are given as well. False if that version is there.
    ///
    /// # Safety
    /// `key` must be the record's own, and live as long as the list.
    pub(crate) unsafe fn insert(&self, key: *const [u8], seq: Seq, record: RecordPtr) -> bool {
        let added = *self.map.get_or_insert(Place { key, seq }, record).value() == record;
        if added {
            self.budget.charge(ENTRY_BYTES);
        }
        added
    }

    /// The newest version of `key` at or below `snapshot`.
    pub(crate) fn get(&self, key: &[u8], snapshot: Seq) -> Option<Record<'_>> {
        self.version(key, snapshot).map(|at| self.read(at))
    }

    /// Where that lies.
    pub(crate) fn version(&self, key: &[u8], snapshot: Seq) -> Option<RecordPtr> {
        let found = self.first(Bound::Included(&Place { key, seq: snapshot }))?;
        (self.read(found).key == key).then_some(found)
    }

    /// The records before and behind where that is looked for; it would be the second one.
    pub(crate) fn around(&self, key: &[u8], snapshot: Seq) -> [Option<RecordPtr>; 2] {
        let place = Place { key, seq: snapshot };
        [self.last(Bound::Excluded(&place)), self.first(Bound::Included(&place))]
    }

    /// A record of the first key at or after `key`.
    pub(crate) fn at_or_after(&self, key: &[u8]) -> Option<RecordPtr> {
        self.first(Bound::Included(&Place { key, seq: MAX_SEQ }))
    }

    /// A record of the first key after `key`.
    pub(crate) fn after(&self, key: &[u8]) -> Option<RecordPtr> {
        self.first(Bound::Excluded(&Place { key, seq: 0 }))
    }

    /// A record of the last key at or before `key`.
    pub(crate) fn at_or_before(&self, key: &[u8]) -> Option<RecordPtr> {
        self.last(Bound::Included(&Place { key, seq: 0 }))
    }

    /// A record of the last key before `key`.
    pub(crate) fn before(&self, key: &[u8]) -> Option<RecordPtr> {
        self.last(Bound::Excluded(&Place { key, seq: MAX_SEQ })).filter(|found| self.read(*found).key != key)
    }

    /// A record of the largest key.
    pub(crate) fn last_key(&self) -> Option<RecordPtr> {
        self.last(Bound::Unbounded)
    }

    /// The record that a leaf word points at.
    pub(crate) fn of(&self, leaf: Word) -> Option<RecordPtr> {
        // SAFETY: cursors hand in words of records of this list only, and those outlive it.
        match unsafe { leaf.leaf() }? {
            Leaf::One(record) => Some(record),
            Leaf::Many(_) => None,
        }
    }

    /// The key of that.
    pub(crate) fn key(&self, leaf: Word) -> Option<&[u8]> {
        self.of(leaf).map(|record| self.read(record).key)
    }

    /// Distinct keys. Walks the list.
    pub(crate) fn keys(&self) -> usize {
        let mut last = None;
        let fresh = self.map.iter().filter(|entry| {
            let key = self.read(*entry.value()).key;
            last.replace(key) != Some(key)
        });
        fresh.count()
    }

    fn first(&self, bound: Bound<&Place>) -> Option<RecordPtr> {
        self.map.lower_bound(bound).map(|entry| *entry.value())
    }

    fn last(&self, bound: Bound<&Place>) -> Option<RecordPtr> {
        self.map.upper_bound(bound).map(|entry| *entry.value())
    }

    fn read(&self, record: RecordPtr) -> Record<'_> {
        // SAFETY: what is in the list was pushed before, and the index drops the arena after the list.
        unsafe { record.read() }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        self.budget.release(self.bytes());
    }
}
