//! Writing sorted blocks as extents of a run.

use std::sync::Arc;

use terrane_base::{Result, Seq};
use terrane_format::block::FinishedBlock;
use terrane_format::extent::{BlockHandle, ExtentForm, ExtentMeta};
use terrane_format::tombstone::RangeTombstones;

use super::{Ids, Space};

/// Cuts a sorted stream of blocks into extents (never between versions of one key) and writes them.
pub(crate) struct RunWriter {}

impl RunWriter {
    /// `tombstones` are all range tombstones of the output.
    pub(crate) fn new(
        _space: Arc<Space>,
        _ids: Arc<Ids>,
        _form: ExtentForm,
        _tombstones: RangeTombstones,
    ) -> Result<Self> {
        todo!()
    }
    /// Adds a block, in key order.
    pub(crate) fn add_block(&mut self, _block: FinishedBlock) -> Result<()> {
        todo!()
    }
    /// Adds a block of another extent as stored; the caller has verified it.
    pub(crate) fn add_stored_block(
        &mut self,
        _first: (&[u8], Seq),
        _last_key: &[u8],
        _handle: &BlockHandle,
        _stored: &[u8],
        _filter: &[u8],
    ) -> Result<()> {
        todo!()
    }
    /// Closes the last extent and makes all of them durable.
    pub(crate) fn finish(self) -> Result<WrittenRun> {
        todo!()
    }
}

/// Durable extents that nothing refers to yet. Dropped without [`WrittenRun::keep`], their space is free again.
#[derive(Debug)]
pub(crate) struct WrittenRun {}

impl WrittenRun {
    /// The extents in key order.
    pub(crate) fn extents(&self) -> &[Arc<ExtentMeta>] {
        todo!()
    }
    /// Call when the edit that refers to them is durable.
    pub(crate) fn keep(self) -> Vec<Arc<ExtentMeta>> {
        todo!()
    }
}
