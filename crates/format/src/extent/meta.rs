//! What the manifest knows about an extent.

use terrane_base::{ExtentId, Result, Seq};

use crate::codec::Reader;

/// A part of an extent, and its checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Section {
    /// First byte, from the extent's start.
    pub offset: u32,
    /// Length in bytes.
    pub len: u32,
    /// CRC-32C of the bytes.
    pub crc: u32,
}

/// What the manifest knows about an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentMeta {
    /// Its birth id.
    pub id: ExtentId,
    /// The data file that it lies in.
    pub file: u32,
    /// Its first unit within the file.
    pub unit: u32,
    /// How many units it takes.
    pub units: u32,
    /// The index block.
    pub index: Section,
    /// The filters of all blocks, one behind the other; empty if there are none.
    pub filter: Section,
    /// The footer.
    pub footer: Section,
    /// Number of records.
    pub rows: u64,
    /// Records whose kind is a delete.
    pub deletes: u64,
    /// Number of blocks.
    pub blocks: u32,
    /// Stored bytes of all blocks.
    pub data_bytes: u32,
    /// Uncompressed bytes of all blocks.
    pub raw_bytes: u64,
    /// Smallest sequence of any record or range tombstone.
    pub min_seq: Seq,
    /// Largest sequence of any record or range tombstone.
    pub max_seq: Seq,
    /// Reserved for attached runs: one sequence that stands for all of the extent's records. Always `None` now.
    pub global_seq: Option<Seq>,
    /// All keys and range tombstones are at or above this key.
    pub lo: Vec<u8>,
    /// All keys and range tombstones are below this key.
    pub hi: Vec<u8>,
    /// Whether the footer holds range tombstones.
    pub has_tombstones: bool,
    /// Whether a record refers to a value stored in units of its own.
    pub value_refs: bool,
}

impl ExtentMeta {
    /// Appends the encoded form.
    pub fn encode(&self, _out: &mut Vec<u8>) {
        todo!()
    }

    /// Reads one meta and checks it.
    pub fn decode(_reader: &mut Reader<'_>) -> Result<Self> {
        todo!()
    }
}
