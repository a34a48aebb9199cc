//! Values in units of their own.

use terrane_base::{Error, ErrorKind, Result};
use terrane_format::checksum::crc;
use terrane_format::extent::UNIT_BYTES;
use terrane_format::value_ref::{ValuePiece, ValueRef};

use super::{Alloc, Space, io};

impl Space {
    /// Writes a value in pieces of units of its own. Not durable before [`Space::sync_values`]. On an error everything
    /// allocated is free again.
    pub(crate) fn write_value(&self, id: u64, bytes: &[u8]) -> Result<ValueRef> {
        let mut value = ValueRef { id, len: bytes.len() as u64, pieces: Vec::new() };
        match self.write_pieces(&mut value, bytes) {
            Ok(()) => Ok(value),
            Err(e) => {
                self.free_value(&value)?;
                Err(e)
            }
        }
    }

    fn write_pieces(&self, value: &mut ValueRef, mut bytes: &[u8]) -> Result<()> {
        for len in ValueRef::piece_lens(value.len) {
            let (piece, rest) = bytes.split_at(len);
            let at = self.alloc(len.div_ceil(UNIT_BYTES) as u32)?;
            let crc = crc(piece);
            value.pieces.push(ValuePiece { file: at.file, unit: at.unit, units: at.units, crc });
            self.write(at, 0, piece)?;
            bytes = rest;
        }
        Ok(())
    }

    /// Makes written values durable.
    pub(crate) fn sync_values(&self, values: &[ValueRef]) -> Result<()> {
        self.sync_files(values.iter().flat_map(|v| &v.pieces).map(|p| p.file))
    }

    /// Gives a value's units back, as [`Space::free`].
    pub(crate) fn free_value(&self, value: &ValueRef) -> Result<()> {
        value.pieces.iter().try_for_each(|p| self.free(Alloc::of_piece(p)))
    }

    /// Reads a value and verifies its checksums.
    pub(crate) fn read_value(&self, value: &ValueRef) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(value.len as usize);
        for (piece, len) in value.pieces.iter().zip(ValueRef::piece_lens(value.len)) {
            out.extend_from_slice(self.read_piece(value.id, piece, len)?.bytes());
        }
        Ok(out)
    }

    fn read_piece(&self, value: u64, piece: &ValuePiece, len: usize) -> Result<io::Window> {
        let at = Alloc::of_piece(piece);
        let file = self.file(piece.file)?;
        let read = io::Window::read(&*file, at.offset(), len)?;
        if crc(read.bytes()) != piece.crc {
            return Err(Error::corruption(format!("value {value} does not match its checksum"))
                .with_file(file.path())
                .with_offset(at.offset()));
        }
        Ok(read)
    }

    /// Writes a value again where it lies, so that the next flush makes it durable whatever became of an earlier one: what a
    /// failed flush did not write may read back well, yet no later flush writes it. Nothing durable may refer to the value,
    /// for a power failure can tear it meanwhile. A damaged piece is left as it is: reading it is an error.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn rewrite_value(&self, value: &ValueRef) -> Result<()> {
        for (piece, len) in value.pieces.iter().zip(ValueRef::piece_lens(value.len)) {
            match self.read_piece(value.id, piece, len) {
                Ok(read) => self.write(Alloc::of_piece(piece), 0, read.bytes())?,
                Err(e) if e.kind() == ErrorKind::Corruption => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}
