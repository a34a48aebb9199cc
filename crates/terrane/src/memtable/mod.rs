//! A memtable: the newest records of one subtable, in memory, ordered by key.
//!
//! A subtable has one *active* memtable, which takes writes, and any number of *frozen* ones, which wait to be written
//! out. Records live in a DRAM arena that the index points into; range tombstones stand beside it.
//!
//! # Invariants
//! A memtable holds exactly the records of its subtable whose LSN lies in `[start, end)`; `end` is unknown while it is
//! active. Which memtable a commit writes to is decided by the *generation* that its reservation carries (see
//! `db::freeze`), so the bounds are exact although writers never wait for a freeze.
//!
//! # Concurrency
//! Any number of writers and readers. Records become visible to a snapshot by their sequence, not by being inserted.

mod filter;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use terrane_base::reclaim::Clock;
use terrane_base::{Lsn, MemoryBudget, Result, Seq};
use terrane_commit::Stretch;
use terrane_format::value_ref::ValueRef;
use terrane_format::{Kind, checksum};
use terrane_memindex::MemIndex;

use crate::memtable::filter::KeyFilter;
use crate::options::IndexKind;
use crate::tombstone::{During, MemTombstones};

/// See the module's head.
pub(crate) struct Memtable {
    pub(crate) index: MemIndex,
    keys: KeyFilter,
    pub(crate) tombstones: MemTombstones,
    /// Commits of its epoch, here called generation, and later ones (until the next memtable's) write here.
    pub(crate) stretch: Stretch,
    /// Deletions among the records.
    deletes: AtomicU64,
    /// Large values that records of this memtable refer to.
    values: Mutex<Vec<ValueRef>>,
}

impl std::fmt::Debug for Memtable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memtable")
            .field("stretch", &self.stretch)
            .field("records", &self.index.len())
            .finish_non_exhaustive()
    }
}

impl Memtable {
    pub(crate) fn new(kind: IndexKind, generation: u64, budget: MemoryBudget, clock: Arc<Clock>) -> Self {
        let kind = match kind {
            IndexKind::Art => terrane_memindex::IndexKind::Art,
            IndexKind::Skiplist => terrane_memindex::IndexKind::Skiplist,
        };
        Memtable {
            index: MemIndex::on(clock, kind, budget.clone()),
            keys: KeyFilter::new(budget.clone()),
            tombstones: MemTombstones::new(budget),
            stretch: Stretch::new(generation),
            deletes: AtomicU64::new(0),
            values: Mutex::new(Vec::new()),
        }
    }

    /// With random numbers inside that follow from `salt`, so that nobody can choose keys by them.
    #[must_use]
    pub(crate) fn salted(mut self, salt: u64) -> Self {
        self.tombstones.salt(salt);
        self
    }

    /// Adds one operation of the batch entry at `lsn`: `during` replay, or while others read.
    pub(crate) fn insert(
        &self,
        lsn: Lsn,
        seq: Seq,
        kind: Kind,
        key: &[u8],
        value: &[u8],
        during: During<'_>,
    ) -> Result<()> {
        self.stretch.note(lsn);
        match kind {
            Kind::RangeDelete => self.tombstones.insert(lsn, seq, key, value, during)?,
            _ => {
                let hash = checksum::key_hash(key);
                self.keys.announce(hash);
                self.index.insert(key, seq, kind as u8, value)?;
                self.keys.add(hash);
            }
        }
        if kind.is_delete() {
            self.deletes.fetch_add(1, Ordering::Relaxed);
        }
        if kind == Kind::ValueRef {
            self.values.lock().push(ValueRef::decode(value)?);
        }
        Ok(())
    }

    /// Which memtable a commit writes to: see the module's head.
    pub(crate) fn generation(&self) -> u64 {
        self.stretch.epoch()
    }

    /// LSN of the oldest record, if there is any.
    pub(crate) fn first_record(&self) -> Option<Lsn> {
        self.stretch.first()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first_record().is_none()
    }

    /// Fixes the end: nothing at or above `boundary` will be inserted.
    pub(crate) fn freeze(&self, boundary: Lsn) {
        self.stretch.close(boundary);
    }

    /// The boundary, once frozen.
    pub(crate) fn end(&self) -> Option<Lsn> {
        self.stretch.end()
    }

    /// Whether the index may have a record that is published, with the key whose hash ([`checksum::key_hash`]) that is. Says no for nearly
    /// all keys that it has not, and much faster than the index. The hash is asked for only if there are any.
    #[inline]
    pub(crate) fn may_have(&self, hash: impl FnOnce() -> u64) -> bool {
        self.keys.may_have(hash)
    }

    /// Memory held, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.index.bytes() + self.tombstones.bytes() + self.keys.bytes()
    }

    pub(crate) fn deletes(&self) -> u64 {
        self.deletes.load(Ordering::Relaxed)
    }

    /// Large values referred to by any record, live or superseded.
    pub(crate) fn values(&self) -> Vec<ValueRef> {
        self.values.lock().clone()
    }
}
