//! References to values that are stored in units of their own.

use terrane_base::Result;

/// A part of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValuePiece {
    /// The data file.
    pub file: u32,
    /// First unit within the file.
    pub unit: u32,
    /// Units taken, at most 32.
    pub units: u32,
    /// CRC-32C of the piece's bytes, padding not included.
    pub crc: u32,
}

/// A value stored in units of its own. Each piece but the last is full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueRef {
    /// Unique; never used for another value.
    pub id: u64,
    /// The value's length in bytes.
    pub len: u64,
    /// Where it lies, in order.
    pub pieces: Vec<ValuePiece>,
}

impl ValueRef {
    /// Appends the encoded form.
    pub fn encode(&self, _out: &mut Vec<u8>) {
        todo!()
    }

    /// Decodes a reference that fills `bytes`.
    pub fn decode(_bytes: &[u8]) -> Result<Self> {
        todo!()
    }
}
