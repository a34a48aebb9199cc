//! The versions of one key, once there are two: a growing array of (sequence, record), oldest first.
//!
//! The newest record is kept apart, so that a read of the present state goes straight to it. Sequences mostly arrive in
//! order and are appended; one that comes late moves the newer ones up. The first two entries lie inside the list, whose
//! 64 bytes are all that most keys need; then the array doubles, and the old one is retired.
//!
//! # Concurrency
//! Writers hold the list's lock bit. An append stores the entry, then the length. Moving entries is marked in the lock
//! word, which then counts on: a reader that searched meanwhile sees the word changed and searches again. A list lives
//! as long as the index; its arrays are reclaimed by epoch, so readers of entries are pinned.

use std::ptr::with_exposed_provenance;

use terrane_base::Seq;
use terrane_base::sync::atomic::{AtomicU64, Ordering};

use crate::art::lock::Wait;
use crate::art::pool::Pool;
use crate::art::reclaim::Guard;
use crate::record::RecordPtr;

/// Where a damaged record stands in a list: below all sequences that there are.
pub(crate) const MISPLACED: Seq = 0;

const LOCKED: u64 = 1;
const MOVING: u64 = 2;
const STEP: u64 = 4;
const INLINE: usize = 2;

/// One version.
#[repr(C)]
pub(crate) struct Entry {
    seq: AtomicU64,
    record: AtomicU64,
}

impl Entry {
    pub(crate) fn new() -> Self {
        Entry { seq: AtomicU64::new(0), record: AtomicU64::new(0) }
    }

    /// Release, so that a reader of what a move stored here also sees that a move is under way.
    fn set(&self, seq: Seq, record: u64) {
        self.seq.store(seq, Ordering::Release);
        self.record.store(record, Ordering::Release);
    }

    fn copy_from(&self, other: &Entry) {
        self.set(other.seq.load(Ordering::Relaxed), other.record.load(Ordering::Relaxed));
    }
}

/// See the module's head.
#[repr(C, align(64))]
pub(crate) struct VersionList {
    /// Lock bit, moving bit, count of moves.
    lock: AtomicU64,
    newest: AtomicU64,
    len: AtomicU64,
    /// Address of an array of `capacity` entries; zero while they are `inline`.
    array: AtomicU64,
    inline: [Entry; INLINE],
}

impl VersionList {
    pub(crate) fn new() -> Self {
        VersionList {
            lock: AtomicU64::new(0),
            newest: AtomicU64::new(0),
            len: AtomicU64::new(0),
            array: AtomicU64::new(0),
            inline: std::array::from_fn(|_| Entry::new()),
        }
    }

    /// Makes this the list of two versions of one key. Only for the list's sole owner.
    pub(crate) fn start(&self, older: (Seq, RecordPtr), newer: (Seq, RecordPtr)) {
        debug_assert!(older.0 < newer.0);
        self.inline[0].set(older.0, older.1.address());
        self.inline[1].set(newer.0, newer.1.address());
        self.newest.store(newer.1.address(), Ordering::Relaxed);
        self.len.store(2, Ordering::Relaxed);
        self.array.store(0, Ordering::Relaxed);
    }

    /// The newest version's record.
    #[inline]
    pub(crate) fn newest(&self) -> Option<RecordPtr> {
        RecordPtr::from_address(self.newest.load(Ordering::Acquire))
    }

    /// The record of the newest version at or below `snapshot`.
    pub(crate) fn at_or_below(&self, snapshot: Seq, _pinned: &Guard<'_>) -> Option<RecordPtr> {
        let mut wait = Wait::new();
        loop {
            let word = self.lock.load(Ordering::Acquire);
            if word & MOVING == 0 {
                // The length first: the array read after it has at least that many entries.
                let len = self.len.load(Ordering::Acquire) as usize;
                let entries = self.entries(len);
                let above = entries.partition_point(|entry| entry.seq.load(Ordering::Acquire) <= snapshot);
                let found = above.checked_sub(1).and_then(|at| entries.get(at));
                let found = found.map_or(0, |entry| entry.record.load(Ordering::Acquire));
                if self.lock.load(Ordering::Relaxed) & !LOCKED == word & !LOCKED {
                    return RecordPtr::from_address(found);
                }
            }
            wait.pause();
        }
    }

    /// Adds a version. False if the sequence is there already.
    pub(crate) fn insert(&self, seq: Seq, record: RecordPtr, pool: &Pool, guard: &Guard<'_>) -> bool {
        let word = self.acquire();
        let len = self.len.load(Ordering::Relaxed) as usize;
        let entries = self.entries(len);
        // Searched from the end: a late sequence is late by a few.
        let mut at = len;
        while at > 0 && entries[at - 1].seq.load(Ordering::Relaxed) > seq {
            at -= 1;
        }
        if at > 0 && entries[at - 1].seq.load(Ordering::Relaxed) == seq {
            self.lock.store(word, Ordering::Release);
            return false;
        }
        let moves = at < len;
        if moves {
            self.lock.store(word | LOCKED | MOVING, Ordering::Relaxed);
        }
        if len == self.capacity(len) {
            self.grow(len, pool, guard);
        }
        let entries = self.entries(len + 1);
        for i in (at..len).rev() {
            entries[i + 1].copy_from(&entries[i]);
        }
        entries[at].set(seq, record.address());
        self.len.store(len as u64 + 1, Ordering::Release);
        if !moves {
            self.newest.store(record.address(), Ordering::Release);
        }
        self.lock.store(if moves { word + STEP } else { word }, Ordering::Release);
        true
    }

    /// Doubles the array. The old one stays readable for whoever is pinned.
    fn grow(&self, len: usize, pool: &Pool, guard: &Guard<'_>) {
        let old = self.array.load(Ordering::Relaxed);
        let array = pool.entries(2 * len);
        for (new, old) in array.iter().zip(self.entries(len)) {
            new.copy_from(old);
        }
        self.array.store(array.as_ptr().expose_provenance() as u64, Ordering::Release);
        if old != 0 {
            pool.retire_entries(old as usize, len, guard);
        }
    }

    /// Entries there is room for when there are `len`: two, and then always a power of two.
    fn capacity(&self, len: usize) -> usize {
        if self.array.load(Ordering::Relaxed) == 0 { INLINE } else { len.next_power_of_two().max(2 * INLINE) }
    }

    /// The first `len` entries, of which there must be that many.
    fn entries(&self, len: usize) -> &[Entry] {
        match self.array.load(Ordering::Acquire) as usize {
            0 => &self.inline[..len.min(INLINE)],
            // SAFETY: an array has room for the entries that the length read before it counts, is initialised
            // throughout, and is not reused before this thread is unpinned.
            at => unsafe { std::slice::from_raw_parts(with_exposed_provenance(at), len) },
        }
    }

    fn acquire(&self) -> u64 {
        let mut wait = Wait::new();
        loop {
            let word = self.lock.load(Ordering::Relaxed) & !(LOCKED | MOVING);
            let locked = word | LOCKED;
            if self.lock.compare_exchange(word, locked, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                return word;
            }
            wait.pause();
        }
    }
}
