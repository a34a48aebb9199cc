//! The index as the memtable sees it: one safe face over both structures.

use terrane_base::{MemoryBudget, Result, Seq};

use crate::cursor::IndexCursor;
use crate::record::Record;

/// Longest key that an index takes, in bytes.
pub const MAX_KEY_BYTES: usize = (1 << 24) - 1;

/// Longest value that an index takes, in bytes.
pub const MAX_VALUE_BYTES: usize = u32::MAX as usize;

/// Which structure a [`MemIndex`] searches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IndexKind {
    /// The adaptive radix tree.
    #[default]
    Art,
    /// A skiplist.
    Skiplist,
}

/// A concurrent ordered map from keys to versions of records.
pub struct MemIndex {}

impl MemIndex {
    /// An empty index whose memory (records and nodes) is charged to `budget` until it is dropped.
    pub fn new(_kind: IndexKind, _budget: MemoryBudget) -> Self {
        todo!()
    }

    /// Adds a version of `key`. Any number of threads may insert at once; the sequences of one key may arrive in any
    /// order. A (key, sequence) pair that is there already stays as it is.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::LimitExceeded`] above [`MAX_KEY_BYTES`] or [`MAX_VALUE_BYTES`]; nothing else.
    pub fn insert(&self, _key: &[u8], _seq: Seq, _kind: u8, _value: &[u8]) -> Result<()> {
        todo!()
    }

    /// The newest version of `key` with a sequence at or below `snapshot`.
    pub fn get(&self, _key: &[u8], _snapshot: Seq) -> Option<Record<'_>> {
        todo!()
    }

    /// A cursor that borrows this index. See [`crate::Cursor`] for one that does not.
    pub fn cursor(&self) -> IndexCursor<'_> {
        IndexCursor::new(self)
    }

    /// Records inserted.
    pub fn len(&self) -> usize {
        todo!()
    }

    /// Whether nothing was inserted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Distinct keys.
    pub fn keys(&self) -> usize {
        todo!()
    }

    /// Bytes charged to the budget for records and nodes.
    pub fn bytes(&self) -> usize {
        todo!()
    }
}
