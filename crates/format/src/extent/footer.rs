//! An extent's footer: a typed section table.

use terrane_base::{ExtentId, Result, Seq};

use crate::tombstone::RangeTombstones;

/// What an extent says about itself: cross-checked with the manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// Its birth id.
    pub id: ExtentId,
    /// Number of blocks.
    pub blocks: u32,
    /// Number of records.
    pub rows: u64,
    /// Records whose kind is a delete.
    pub deletes: u64,
    /// Uncompressed bytes of all blocks.
    pub raw_bytes: u64,
    /// Smallest sequence of any record or range tombstone.
    pub min_seq: Seq,
    /// Largest sequence of any record or range tombstone.
    pub max_seq: Seq,
}

/// A decoded footer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Footer {
    /// Range tombstones, clipped to the extent's bounds.
    pub tombstones: RangeTombstones,
    /// What the extent says about itself.
    pub properties: Properties,
}

impl Footer {
    /// Appends the encoded form.
    pub fn encode(&self, _out: &mut Vec<u8>) {
        todo!()
    }

    /// Decodes a footer that fills `bytes`. Unknown optional sections are skipped; an unknown required one is
    /// [`terrane_base::ErrorKind::NewerFormat`].
    pub fn decode(_bytes: &[u8]) -> Result<Self> {
        todo!()
    }
}
