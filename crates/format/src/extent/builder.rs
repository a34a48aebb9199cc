//! Building of extents.

use terrane_base::{ExtentId, Result};

use super::{BlockHandle, ExtentMeta};
use crate::block::{BlockForm, Compression, FinishedBlock};
use crate::tombstone::RangeTombstones;

/// How extents of a subtable are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentForm {
    /// The form of its blocks.
    pub block: BlockForm,
    /// How blocks are stored.
    pub compression: Compression,
    /// Zstandard level.
    pub zstd_level: i32,
    /// Filter bits per distinct key; 0 means no filters.
    pub filter_bits_per_key: usize,
    /// Bytes at which an extent closes.
    pub max_bytes: usize,
    /// Blocks at which an extent closes.
    pub max_blocks: usize,
}

impl Default for ExtentForm {
    fn default() -> Self {
        ExtentForm {
            block: BlockForm::default(),
            compression: Compression::None,
            zstd_level: 3,
            filter_bits_per_key: 10,
            max_bytes: 2 << 20,
            max_blocks: 1024,
        }
    }
}

/// An extent ready to be written.
#[derive(Clone, Debug)]
pub struct FinishedExtent {
    /// The bytes to write, a multiple of 4096.
    pub bytes: Vec<u8>,
    /// What the manifest must know; `file` and `unit` are 0 until the writer has placed it.
    pub meta: ExtentMeta,
}

/// Builds one extent after another from blocks in key order.
pub struct ExtentBuilder {
    _form: ExtentForm,
}

impl ExtentBuilder {
    /// A builder of extents of this form.
    pub fn new(form: ExtentForm) -> Result<Self> {
        Ok(ExtentBuilder { _form: form })
    }

    /// Adds a block: compresses it and builds its filter.
    pub fn add_block(&mut self, _block: FinishedBlock) -> Result<()> {
        todo!()
    }

    /// Adds a block of another extent as its stored bytes, which the caller has verified against `handle`.
    pub fn add_stored_block(
        &mut self,
        _first: (&[u8], terrane_base::Seq),
        _last_key: &[u8],
        _handle: &BlockHandle,
        _stored: &[u8],
        _filter: &[u8],
    ) -> Result<()> {
        todo!()
    }

    /// Sets the range tombstones, already clipped to the extent's bounds.
    pub fn set_tombstones(&mut self, _tombstones: &RangeTombstones) {
        todo!()
    }

    /// Bytes that the extent would take if finished now (an upper bound, without padding).
    pub fn stored_len(&self) -> usize {
        todo!()
    }

    /// Blocks added since the last extent was finished.
    pub fn blocks(&self) -> usize {
        todo!()
    }

    /// Whether there is neither a block nor a range tombstone.
    pub fn is_empty(&self) -> bool {
        todo!()
    }

    /// Whether a block of `next_raw` bytes (plus the length of its first key) no longer belongs in this extent.
    pub fn would_overflow(&self, _next_raw: usize) -> bool {
        todo!()
    }

    /// Closes the extent and starts the next. Fails if it is empty.
    pub fn finish(&mut self, _id: ExtentId) -> Result<FinishedExtent> {
        todo!()
    }
}
