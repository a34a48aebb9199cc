//! References to values that are stored in units of their own.
//!
//! ```text
//! form u8 (1) | id varint | len varint | pieces varint | piece*
//! piece = file varint | unit varint | units u8 | crc u32
//! ```
//!
//! Every piece but the last is full (2 MiB), so how many bytes of each piece count follows from `len`.

use terrane_base::{Error, ErrorKind, Result};

use crate::codec::{Reader, put_varint};
use crate::extent::UNIT_BYTES;
use crate::limits::MAX_VALUE;

/// Most units of a piece.
pub const MAX_PIECE_UNITS: u32 = 32;
/// Bytes of a full piece.
pub const PIECE_BYTES: usize = MAX_PIECE_UNITS as usize * UNIT_BYTES;

const FORM: u8 = 1;

/// A part of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValuePiece {
    /// The data file.
    pub file: u32,
    /// First unit within the file.
    pub unit: u32,
    /// Units taken, 1 to 32.
    pub units: u32,
    /// CRC-32C of the piece's bytes, padding not included.
    pub crc: u32,
}

/// A value stored in units of its own. Every piece but the last is full.
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
    /// Lengths of the pieces of a value of `len` bytes.
    pub fn piece_lens(len: u64) -> impl Iterator<Item = usize> {
        let full = len / PIECE_BYTES as u64;
        let rest = (len % PIECE_BYTES as u64) as usize;
        (0..full).map(|_| PIECE_BYTES).chain((rest > 0).then_some(rest))
    }

    /// Appends the encoded form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(FORM);
        put_varint(out, self.id);
        put_varint(out, self.len);
        put_varint(out, self.pieces.len() as u64);
        for p in &self.pieces {
            put_varint(out, p.file.into());
            put_varint(out, p.unit.into());
            out.push(p.units as u8);
            out.extend_from_slice(&p.crc.to_le_bytes());
        }
    }

    /// Decodes a reference that fills `bytes`.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] if it is cut short or its pieces do not make up its length,
    /// [`ErrorKind::NewerFormat`] for an unknown form.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes);
        let value = Self::read(&mut r)?;
        r.finish("value reference")?;
        Ok(value)
    }

    /// Reads one reference.
    ///
    /// # Errors
    /// As [`ValueRef::decode`].
    pub fn read(r: &mut Reader<'_>) -> Result<Self> {
        let form = r.u8()?;
        if form != FORM {
            return Err(Error::new(
                ErrorKind::NewerFormat,
                format!("value reference of form {form} is not known to this version"),
            ));
        }
        let id = r.varint()?;
        let len = r.varint_max(MAX_VALUE as u64, "value length")?;
        let count = r.varint_max(len.div_ceil(PIECE_BYTES as u64), "number of pieces")?;
        let mut pieces = Vec::with_capacity(count as usize);
        for _ in 0..count {
            pieces.push(ValuePiece {
                file: r.varint_max(u32::MAX.into(), "file number")? as u32,
                unit: r.varint_max(u32::MAX.into(), "unit number")? as u32,
                units: r.u8()?.into(),
                crc: r.u32()?,
            });
        }
        let units = Self::piece_lens(len).map(|n| n.div_ceil(UNIT_BYTES) as u32);
        if !pieces.iter().map(|p| p.units).eq(units) {
            return Err(Error::corruption(format!(
                "value reference {id}: its pieces do not make up its length"
            )));
        }
        Ok(ValueRef { id, len, pieces })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn value(id: u64, len: u64) -> ValueRef {
        let piece = |(i, n): (usize, usize)| ValuePiece {
            file: 3,
            unit: i as u32 * 500,
            units: n.div_ceil(UNIT_BYTES) as u32,
            crc: 0xdead_beef,
        };
        ValueRef { id, len, pieces: ValueRef::piece_lens(len).enumerate().map(piece).collect() }
    }

    fn encoded(v: &ValueRef) -> Vec<u8> {
        let mut out = Vec::new();
        v.encode(&mut out);
        out
    }

    #[test]
    fn golden_value_ref() {
        let v = value(77, 2 * PIECE_BYTES as u64 + 65_537);
        assert_eq!(encoded(&v), include_bytes!("../tests/golden/value-ref.bin"));
    }

    #[test]
    fn pieces_must_make_up_the_length() {
        let mut v = value(1, 5 << 20);
        v.pieces.pop();
        assert!(ValueRef::decode(&encoded(&v)).is_err());
        let mut v = value(1, 5 << 20);
        v.pieces[2].units = 15;
        assert!(ValueRef::decode(&encoded(&v)).is_err());
        let v = value(1, MAX_VALUE as u64 + 1);
        assert!(ValueRef::decode(&encoded(&v)).is_err());
    }

    #[test]
    fn an_unknown_form_is_newer() {
        let mut bytes = encoded(&value(1, 10));
        bytes[0] = 2;
        assert_eq!(ValueRef::decode(&bytes).unwrap_err().kind(), ErrorKind::NewerFormat);
    }

    proptest! {
        #[test]
        fn references_round_trip(id: u64, len in 0..=MAX_VALUE as u64) {
            let v = value(id, len);
            prop_assert_eq!(ValueRef::decode(&encoded(&v)).unwrap(), v);
        }

        #[test]
        fn whatever_decodes_came_from_an_encoder(mut bytes in vec(any::<u8>(), 0..40), form: bool) {
            if form && !bytes.is_empty() {
                bytes[0] = FORM;
            }
            if let Ok(v) = ValueRef::decode(&bytes) {
                prop_assert_eq!(ValueRef::decode(&encoded(&v)).unwrap(), v);
            }
        }
    }
}
