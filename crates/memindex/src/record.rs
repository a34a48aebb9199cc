//! Records in memory, and the arena that holds them.

use std::num::NonZeroU64;

use terrane_base::{MemoryBudget, Seq};

/// One version of one key, borrowed from where it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The sequence.
    pub seq: Seq,
    /// The kind byte, as the caller gave it.
    pub kind: u8,
    /// The value.
    pub value: &'a [u8],
}

/// Where a record lies in its [`RecordArena`]. Stable for the arena's life; means nothing to another arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RecordPtr(NonZeroU64);

/// Append-only memory for records: a concurrent bump allocator, freed as a whole when it is dropped.
pub struct RecordArena {}

impl RecordArena {
    /// An empty arena that charges its memory to `budget`.
    pub fn new(_budget: MemoryBudget) -> Self {
        todo!()
    }

    /// Copies a record in.
    pub fn push(&self, _key: &[u8], _seq: Seq, _kind: u8, _value: &[u8]) -> RecordPtr {
        todo!()
    }

    /// Reads a record.
    ///
    /// # Safety
    /// `at` must come from [`RecordArena::push`] on this very arena, and that call must have happened before this one.
    pub unsafe fn get(&self, _at: RecordPtr) -> Record<'_> {
        todo!()
    }

    /// Bytes taken from the budget.
    pub fn bytes(&self) -> usize {
        todo!()
    }
}
