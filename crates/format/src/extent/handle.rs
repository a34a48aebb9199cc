//! What an extent's index knows about a block.

use terrane_base::{Result, Seq};

use crate::block::Compression;

/// What an extent's index knows about a block: where it is, its checksum, its counts and its filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHandle {
    /// First byte, from the extent's start.
    pub offset: u32,
    /// Stored length in bytes.
    pub stored_len: u32,
    /// Uncompressed length in bytes.
    pub raw_len: u32,
    /// CRC-32C of the stored bytes.
    pub crc: u32,
    /// How the block is stored.
    pub compression: Compression,
    /// Number of records.
    pub rows: u32,
    /// Records whose kind is a delete.
    pub deletes: u32,
    /// Smallest sequence.
    pub min_seq: Seq,
    /// Largest sequence.
    pub max_seq: Seq,
    /// Whether a record refers to a value stored in units of its own.
    pub value_refs: bool,
    /// First byte of the block's filter, from the start of the filter section.
    pub filter_offset: u32,
    /// Length of the filter in bytes; 0 means there is none.
    pub filter_len: u32,
}

impl BlockHandle {
    /// Appends the encoded form.
    pub fn encode(&self, _out: &mut Vec<u8>) {
        todo!()
    }

    /// Decodes a handle that fills `bytes`.
    pub fn decode(_bytes: &[u8]) -> Result<Self> {
        todo!()
    }
}
