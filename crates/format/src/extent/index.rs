//! Searching an extent's index block.

use terrane_base::{Result, Seq};

use super::BlockHandle;
use crate::block::{Block, BlockCursor, BlockShape};

/// An extent's index over borrowed bytes.
#[derive(Clone, Copy, Debug)]
pub struct Index<'a> {
    block: Block<'a>,
}

/// Where a record must be if the extent has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The entry's number, from 0.
    pub position: u32,
    /// The block to look in first.
    pub handle: BlockHandle,
    /// The block behind it (entry `position + 1`), where that starts with an older version of the very key: a lookup
    /// that finds nothing in `handle` goes on there.
    pub then: Option<BlockHandle>,
}

impl<'a> Index<'a> {
    /// Reads the index block's trailer, in constant time.
    pub fn parse(bytes: &'a [u8]) -> Result<Index<'a>> {
        Ok(Index { block: Block::parse(bytes)? })
    }

    /// Number of entries.
    pub fn len(&self) -> u32 {
        self.block.rows()
    }

    /// Whether there is no entry (an extent of range tombstones alone).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The parsed shape, to be kept beside the bytes.
    pub fn shape(&self) -> BlockShape {
        self.block.shape()
    }

    /// The last entry whose first record is at or before `(key, seq)`, or the first entry if all are behind it. `None`
    /// only if the index is empty. Allocates nothing.
    pub fn find(&self, _key: &[u8], _seq: Seq) -> Result<Option<Found>> {
        todo!()
    }
}

/// A position in an index, detached from its lifetime like [`BlockCursor`].
#[derive(Clone, Debug, Default)]
pub struct IndexCursor {
    cursor: BlockCursor,
    handle: Option<BlockHandle>,
}

impl IndexCursor {
    /// A cursor at no entry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the cursor is at an entry.
    pub fn valid(&self) -> bool {
        self.cursor.valid()
    }

    /// Leaves the entry; buffers are kept.
    pub fn clear(&mut self) {
        self.cursor.clear();
        self.handle = None;
    }

    /// Moves to where [`Index::find`] would.
    pub fn seek(&mut self, _index: Index<'_>, _key: &[u8], _seq: Seq) -> Result<()> {
        todo!()
    }

    /// Moves to the first entry.
    pub fn seek_first(&mut self, _index: Index<'_>) -> Result<()> {
        todo!()
    }

    /// Moves to the last entry.
    pub fn seek_last(&mut self, _index: Index<'_>) -> Result<()> {
        todo!()
    }

    /// Moves to the next entry; at the last one the cursor becomes invalid.
    pub fn next(&mut self, _index: Index<'_>) -> Result<()> {
        todo!()
    }

    /// Moves to the previous entry; at the first one the cursor becomes invalid.
    pub fn prev(&mut self, _index: Index<'_>) -> Result<()> {
        todo!()
    }

    /// First key of the entry's block.
    pub fn key(&self) -> &[u8] {
        self.cursor.key()
    }

    /// Sequence of the first record of the entry's block.
    pub fn seq(&self) -> Seq {
        self.cursor.seq()
    }

    /// The entry's number, from 0.
    pub fn position(&self) -> u32 {
        self.cursor.position()
    }

    /// The entry's block; `None` where the cursor is not valid.
    pub fn handle(&self) -> Option<&BlockHandle> {
        self.handle.as_ref()
    }
}
