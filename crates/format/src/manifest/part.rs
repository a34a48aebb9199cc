//! How much of an extent a reference shows.

use terrane_base::{Error, Result};

use crate::codec::{Reader, put_varint};
use crate::extent::ExtentMeta;

/// What a part of an extent holds: the sums over the blocks that may have keys within its bounds. A block that straddles
/// a bound counts on both sides of it, so the parts of an extent may together hold a little more than the extent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartSize {
    /// Stored bytes of the blocks.
    pub bytes: u32,
    /// Their records.
    pub rows: u64,
    /// Those of the records that are deletions.
    pub deletes: u64,
}

impl PartSize {
    /// That of a whole extent.
    pub fn whole(extent: &ExtentMeta) -> Self {
        PartSize { bytes: extent.data_bytes, rows: extent.rows, deletes: extent.deletes }
    }

    /// Fails if a part of `extent` cannot have this size.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::Corruption`].
    pub fn check(&self, extent: &ExtentMeta) -> Result<()> {
        let most = PartSize::whole(extent);
        if self.bytes <= most.bytes && self.rows <= most.rows && self.deletes <= most.deletes.min(self.rows) {
            return Ok(());
        }
        Err(Error::corruption(format!(
            "a part of extent {} is said to hold {} bytes, {} records, {} deletions; the extent holds {}, {}, {}",
            extent.id, self.bytes, self.rows, self.deletes, most.bytes, most.rows, most.deletes
        )))
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.bytes.into());
        put_varint(out, self.rows);
        put_varint(out, self.deletes);
    }

    pub(super) fn decode(r: &mut Reader<'_>, extent: &ExtentMeta) -> Result<Self> {
        let bytes = r.varint_max(u32::MAX.into(), "bytes of a part")? as u32;
        let size = PartSize { bytes, rows: r.varint()?, deletes: r.varint()? };
        size.check(extent)?;
        Ok(size)
    }
}
