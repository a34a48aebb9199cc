//! Reading access to a block's bytes.

use terrane_base::{Result, Seq};

/// A block over borrowed bytes.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    bytes: &'a [u8],
    shape: BlockShape,
}

/// What [`Block::parse`] found out, without the bytes: lets whoever keeps the bytes pinned make the [`Block`] again on
/// each step at no cost.
#[derive(Clone, Copy, Debug)]
pub struct BlockShape {
    base_seq: Seq,
}

impl<'a> Block<'a> {
    /// Reads the trailer and checks the directory's bounds, in constant time. What lies inside is checked when it is
    /// read.
    pub fn parse(_bytes: &'a [u8]) -> Result<Block<'a>> {
        todo!()
    }

    /// The parsed shape, to be kept beside the bytes.
    pub fn shape(&self) -> BlockShape {
        self.shape
    }

    /// Number of records.
    pub fn rows(&self) -> u32 {
        let _ = (self.bytes, self.shape.base_seq);
        todo!()
    }

    /// Records whose kind is a delete.
    pub fn deletes(&self) -> u32 {
        todo!()
    }

    /// Walks the whole block and checks what searching relies on: internal order, exact prefix lengths, known kinds,
    /// counts, and that leaves start where the directory says.
    pub fn verify(&self) -> Result<()> {
        todo!()
    }
}

impl BlockShape {
    /// The block again, over the bytes that were parsed; fails if their length differs.
    pub fn over<'a>(&self, _bytes: &'a [u8]) -> Result<Block<'a>> {
        todo!()
    }
}
