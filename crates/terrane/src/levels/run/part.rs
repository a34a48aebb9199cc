//! A part of an extent: what a run refers to.

use std::sync::Arc;

use terrane_base::{MAX_SEQ, Result, Seq};
use terrane_format::extent::{Index, IndexCursor};
use terrane_format::manifest::PartSize;
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
    /// What the blocks between the two hold.
    pub(crate) size: PartSize,
}

impl ExtentRef {
    /// The whole extent.
    pub(crate) fn whole(extent: Arc<Extent>) -> Self {
        let (lo, hi) = (extent.meta.lo.as_slice().into(), extent.meta.hi.as_slice().into());
        let size = PartSize::whole(&extent.meta);
        ExtentRef { extent, lo, hi, size }
    }

    /// The part of this one in `[lo, hi)`; `None` if that is empty. No `hi` means no upper bound. Its size stays that of
    /// this one until it is [measured](ExtentRef::measure): all that is known without the index.
    pub(crate) fn trim(&self, lo: &[u8], hi: Option<&[u8]>) -> Option<Self> {
        let lo = lo.max(&self.lo);
        let hi = hi.map_or(&*self.hi, |h| h.min(&self.hi));
        (lo < hi).then(|| ExtentRef {
            extent: self.extent.clone(),
            lo: lo.into(),
            hi: hi.into(),
            size: self.size,
        })
    }

    /// Sets the size by the extent's index block (unused for an extent without blocks, or for a whole one).
    ///
    /// # Errors
    /// Corruption if the index is damaged.
    pub(crate) fn measure(&mut self, index: Index<'_>) -> Result<()> {
        let whole = PartSize::whole(&self.extent.meta);
        if !self.is_trimmed() || self.extent.meta.blocks == 0 {
            self.size = whole;
            return Ok(());
        }
        let mut size = PartSize::default();
        let mut cursor = IndexCursor::new();
        cursor.seek(index, &self.lo, MAX_SEQ)?;
        while let Some(h) = cursor.handle().filter(|_| *cursor.key() < *self.hi) {
            if *cursor.key() <= *self.lo {
                // The block before ends where this one begins.
                size = PartSize::default();
            }
            size.bytes = size.bytes.saturating_add(h.stored_len);
            size.rows += u64::from(h.rows);
            size.deletes += u64::from(h.deletes);
            cursor.next(index)?;
        }
        size.check(&self.extent.meta)?;
        self.size = size;
        Ok(())
    }

    /// Stored bytes of the blocks that the part shows.
    pub(crate) fn bytes(&self) -> u64 {
        self.size.bytes.into()
    }

    /// Bytes of the part before compression, in the extent's proportion.
    pub(crate) fn raw_bytes(&self) -> u64 {
        let m = &self.extent.meta;
        let raw = u128::from(m.raw_bytes) * u128::from(self.size.bytes) / u128::from(m.data_bytes.max(1));
        raw as u64
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
