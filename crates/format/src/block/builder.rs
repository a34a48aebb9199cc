//! Building of blocks.

use terrane_base::Seq;

use super::BlockForm;
use crate::Kind;

/// Builds one block after another from records in internal order (key ascending, then sequence descending).
#[derive(Debug)]
pub struct BlockBuilder {
    _form: BlockForm,
}

/// A finished block and what its extent must know about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedBlock {
    /// The block, uncompressed.
    pub bytes: Vec<u8>,
    /// Key of the first record.
    pub first_key: Vec<u8>,
    /// Sequence of the first record.
    pub first_seq: Seq,
    /// Key of the last record.
    pub last_key: Vec<u8>,
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
    /// [`crate::checksum::key_hash`] of each distinct key, for the filter.
    pub hashes: Vec<u64>,
}

impl BlockBuilder {
    /// A builder of blocks of this form.
    pub fn new(form: BlockForm) -> Self {
        BlockBuilder { _form: form }
    }

    /// Adds a record. The caller keeps the internal order.
    pub fn add(&mut self, _key: &[u8], _seq: Seq, _kind: Kind, _value: &[u8]) {
        todo!()
    }

    /// Whether a record of these lengths still belongs in this block. True when empty: an oversize record gets a block
    /// of its own.
    pub fn fits(&self, _key_len: usize, _value_len: usize) -> bool {
        todo!()
    }

    /// Whether no record was added since the last block was finished.
    pub fn is_empty(&self) -> bool {
        todo!()
    }

    /// Records added since the last block was finished.
    pub fn rows(&self) -> u32 {
        todo!()
    }

    /// Closes the block and starts the next.
    pub fn finish(&mut self) -> FinishedBlock {
        todo!()
    }
}
