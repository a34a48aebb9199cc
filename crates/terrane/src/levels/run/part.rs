//! A part of an extent: what a run refers to.

use std::sync::Arc;

use terrane_base::{Result, Seq};
use terrane_format::tombstone::RangeTombstones;

use crate::levels::Extent;

/// The records and range tombstones of an extent in `[lo, hi)`. What lies outside of the bounds belongs to somebody
/// else, or to nobody any more, and must not be looked at.
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
    pub(crate) fn whole(extent: Arc<Extent>) -> Self {
        let (lo, hi) = (extent.meta.lo.as_slice().into(), extent.meta.hi.as_slice().into());
        ExtentRef { extent, lo, hi }
    }

    /// The part of this one in `[lo, hi)`; `None` if that is empty. No `hi` means no upper bound.
    pub(crate) fn trim(&self, lo: &[u8], hi: Option<&[u8]>) -> Option<Self> {
        let lo = lo.max(&self.lo);
        let hi = hi.map_or(&*self.hi, |h| h.min(&self.hi));
        (lo < hi).then(|| ExtentRef { extent: self.extent.clone(), lo: lo.into(), hi: hi.into() })
    }

    /// Whether this is not the whole extent.
    pub(crate) fn is_trimmed(&self) -> bool {
        *self.lo != *self.extent.meta.lo || *self.hi != *self.extent.meta.hi
    }

    /// Whether `key` is within the bounds.
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        *self.lo <= *key && *key < *self.hi
    }

    /// The largest sequence of at most `snapshot` whose range tombstone covers `key`, in this part; 0 if none does.
    pub(crate) fn covering(&self, key: &[u8], snapshot: Seq) -> Result<Seq> {
        if !self.extent.meta.has_tombstones || !self.contains(key) {
            return Ok(0);
        }
        Ok(self.extent.tombstones()?.covering(key, snapshot))
    }

    /// The range tombstones of this part.
    pub(crate) fn tombstones(&self) -> Result<Arc<RangeTombstones>> {
        let all = self.extent.tombstones()?;
        if all.is_empty() || !self.is_trimmed() {
            return Ok(all.clone());
        }
        Ok(Arc::new(all.clip(&self.lo, Some(&self.hi))))
    }
}
