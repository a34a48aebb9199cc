//! Moving through a block's records, both ways.

use std::ops::Range;

use terrane_base::{Result, Seq};

use super::Block;
use crate::Kind;

/// A position in a block. Detached from the block's lifetime: every method that moves takes the block again, so that an
/// iterator may keep the bytes pinned beside its cursor.
#[derive(Clone, Debug, Default)]
pub struct BlockCursor {
    key: Vec<u8>,
}

impl BlockCursor {
    /// A cursor at no record.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the cursor is at a record.
    pub fn valid(&self) -> bool {
        todo!()
    }

    /// Leaves the record; buffers are kept.
    pub fn clear(&mut self) {
        todo!()
    }

    /// Moves to the first record at or after `(key, seq)`.
    pub fn seek(&mut self, _block: Block<'_>, _key: &[u8], _seq: Seq) -> Result<()> {
        todo!()
    }

    /// Moves to the last record at or before `(key, seq)`.
    pub fn seek_for_prev(&mut self, _block: Block<'_>, _key: &[u8], _seq: Seq) -> Result<()> {
        todo!()
    }

    /// Moves to the first record.
    pub fn seek_first(&mut self, _block: Block<'_>) -> Result<()> {
        todo!()
    }

    /// Moves to the last record.
    pub fn seek_last(&mut self, _block: Block<'_>) -> Result<()> {
        todo!()
    }

    /// Moves to the next record; at the last one the cursor becomes invalid.
    pub fn next(&mut self, _block: Block<'_>) -> Result<()> {
        todo!()
    }

    /// Moves to the previous record; at the first one the cursor becomes invalid.
    pub fn prev(&mut self, _block: Block<'_>) -> Result<()> {
        todo!()
    }

    /// The record's key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The record's sequence.
    pub fn seq(&self) -> Seq {
        todo!()
    }

    /// The record's kind.
    pub fn kind(&self) -> Kind {
        todo!()
    }

    /// The record's number within the block, from 0.
    pub fn position(&self) -> u32 {
        todo!()
    }

    /// Where the value lies in the block's bytes.
    pub fn value_range(&self) -> Range<usize> {
        todo!()
    }

    /// The record's value; `block` is the one that the cursor was moved over.
    pub fn value<'a>(&self, _block: Block<'a>) -> &'a [u8] {
        todo!()
    }
}
