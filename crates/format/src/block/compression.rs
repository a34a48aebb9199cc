//! Compression of stored blocks.

use terrane_base::Result;

/// How a block is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Compression {
    /// As it is.
    None = 0,
    /// As one Zstandard frame that names its content size. (2 is reserved for LZ4.)
    Zstd = 1,
}

impl Compression {
    /// Decodes the stored byte; unknown ones are [`terrane_base::ErrorKind::NewerFormat`].
    pub fn from_u8(_byte: u8) -> Result<Self> {
        todo!()
    }
}

/// A reusable compression context.
pub struct Compressor {}

impl Compressor {
    /// A context for `compression` at `level` (Zstandard's levels; out of range is clamped).
    pub fn new(_compression: Compression, _level: i32) -> Result<Self> {
        todo!()
    }

    /// The compressed form, or `None` where it would not save an eighth: then the block is stored raw.
    pub fn compress(&mut self, _raw: &[u8]) -> Option<Vec<u8>> {
        todo!()
    }
}

/// The raw block from its stored form; fails unless exactly `raw_len` bytes come out.
pub fn decompress(_compression: Compression, _stored: &[u8], _raw_len: usize) -> Result<Vec<u8>> {
    todo!()
}
