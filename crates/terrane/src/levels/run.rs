//! Runs: sorted, non-overlapping references to extents.

use std::sync::Arc;

use terrane_base::Result;

use super::Extent;

/// A part of an extent: its records and range tombstones in `[lo, hi)`.
#[derive(Clone, Debug)]
pub(crate) struct ExtentRef {
    /// The extent.
    pub(crate) extent: Arc<Extent>,
    /// First key of the part.
    pub(crate) lo: Box<[u8]>,
    /// First key behind the part.
    pub(crate) hi: Box<[u8]>,
}

impl ExtentRef {
    /// The whole extent.
    pub(crate) fn whole(_extent: Arc<Extent>) -> Self {
        todo!()
    }
    /// The part of this one in `[lo, hi)`; `None` if that is empty.
    pub(crate) fn trim(&self, _lo: &[u8], _hi: Option<&[u8]>) -> Option<Self> {
        todo!()
    }
    /// Whether this is not the whole extent.
    pub(crate) fn is_trimmed(&self) -> bool {
        todo!()
    }
    /// Whether `key` is within the bounds.
    pub(crate) fn contains(&self, _key: &[u8]) -> bool {
        todo!()
    }
}

/// A sorted run.
#[derive(Debug)]
pub(crate) struct Run {
    /// Its id: L0 runs are ordered by it, newest largest; 0 from L1 on.
    pub(crate) id: u64,
    /// Its parts in key order, no two overlapping.
    refs: Vec<Arc<ExtentRef>>,
}

impl Run {
    /// Checks that `refs` are sorted, not empty and do not overlap.
    pub(crate) fn new(_id: u64, _refs: Vec<Arc<ExtentRef>>) -> Result<Self> {
        todo!()
    }
    /// The parts in key order.
    pub(crate) fn refs(&self) -> &[Arc<ExtentRef>] {
        &self.refs
    }
    /// The part whose bounds contain `key`.
    pub(crate) fn find(&self, _key: &[u8]) -> Option<&Arc<ExtentRef>> {
        todo!()
    }
    /// Position of the first part that ends behind `key`; the number of parts if there is none.
    pub(crate) fn position(&self, _key: &[u8]) -> usize {
        todo!()
    }
    /// The parts that meet `[lo, hi)`; no `hi` means no upper bound.
    pub(crate) fn overlapping(&self, _lo: &[u8], _hi: Option<&[u8]>) -> &[Arc<ExtentRef>] {
        todo!()
    }
    /// Bytes of space of the extents referred to (parts of one extent count it in proportion... once per part).
    pub(crate) fn bytes(&self) -> u64 {
        todo!()
    }
    /// Records.
    pub(crate) fn rows(&self) -> u64 {
        todo!()
    }
    /// Records that are deletes.
    pub(crate) fn deletes(&self) -> u64 {
        todo!()
    }
}
