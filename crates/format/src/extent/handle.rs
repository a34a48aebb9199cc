//! What an extent's index knows about a block.

use terrane_base::{Error, ErrorKind, MAX_SEQ, Result, Seq};

use crate::block::{Compression, decompress};
use crate::checksum::crc;
use crate::codec::{Reader, put_varint};

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

/// The part of a [`BlockHandle`] that finds the block where it is in memory already; costs a fraction of the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSpan {
    /// First byte of the block, from the extent's start.
    pub offset: u32,
    /// Uncompressed length in bytes.
    pub raw_len: u32,
}

impl BlockSpan {
    /// Decodes it from the encoded form of a handle.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] if that is cut short.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes);
        let offset = number(&mut r, "block offset")?;
        number(&mut r, "stored length")?;
        Ok(BlockSpan { offset, raw_len: number(&mut r, "raw length")? })
    }
}

const VALUE_REFS: u8 = 1;

impl BlockHandle {
    /// Where its stored bytes end, within the extent.
    pub fn end(&self) -> u32 {
        self.offset.saturating_add(self.stored_len)
    }

    /// Appends the encoded form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_varint(out, self.offset.into());
        put_varint(out, self.stored_len.into());
        put_varint(out, self.raw_len.into());
        out.extend_from_slice(&self.crc.to_le_bytes());
        out.push(self.compression as u8);
        out.push(if self.value_refs { VALUE_REFS } else { 0 });
        put_varint(out, self.rows.into());
        put_varint(out, self.deletes.into());
        put_varint(out, self.min_seq);
        put_varint(out, self.max_seq.saturating_sub(self.min_seq));
        put_varint(out, self.filter_offset.into());
        put_varint(out, self.filter_len.into());
    }

    /// Decodes a handle that fills `bytes`.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] if it is cut short or contradicts itself, [`ErrorKind::NewerFormat`] for an unknown
    /// compression or flag.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes);
        let offset = number(&mut r, "block offset")?;
        let stored_len = number(&mut r, "stored length")?;
        let raw_len = number(&mut r, "raw length")?;
        let crc = r.u32()?;
        let compression = Compression::from_u8(r.u8()?)?;
        let flags = r.u8()?;
        if flags & !VALUE_REFS != 0 {
            return Err(Error::new(
                ErrorKind::NewerFormat,
                format!("block with flags {flags:#x} is not known to this version"),
            ));
        }
        let rows = number(&mut r, "rows")?;
        let deletes = number(&mut r, "deletes")?;
        let min_seq = r.varint_max(MAX_SEQ, "sequence")?;
        let max_seq = min_seq + r.varint_max(MAX_SEQ - min_seq, "range of sequences")?;
        let filter_offset = number(&mut r, "filter offset")?;
        let filter_len = number(&mut r, "filter length")?;
        r.finish("block handle")?;
        let raw = compression == Compression::None;
        if raw && stored_len != raw_len || stored_len > raw_len || deletes > rows {
            return Err(Error::corruption("block handle contradicts itself"));
        }
        let value_refs = flags & VALUE_REFS != 0;
        Ok(BlockHandle {
            offset,
            stored_len,
            raw_len,
            crc,
            compression,
            rows,
            deletes,
            min_seq,
            max_seq,
            value_refs,
            filter_offset,
            filter_len,
        })
    }

    /// The raw block from its stored bytes: verifies their checksum, then decompresses.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] if length or checksum differ or they do not decompress.
    pub fn open(&self, stored: &[u8]) -> Result<Vec<u8>> {
        self.verify(stored)?;
        decompress(self.compression, stored, self.raw_len as usize)
    }

    /// Verifies length and checksum of a block's stored bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] if either differs.
    pub fn verify(&self, stored: &[u8]) -> Result<()> {
        if stored.len() != self.stored_len as usize {
            return Err(Error::corruption("block has not the length that its index entry says"));
        }
        if crc(stored) != self.crc {
            return Err(Error::corruption("block does not match the checksum in its index entry"));
        }
        Ok(())
    }

    /// The block's filter, from the bytes of the filter section; empty if there is none (an empty filter lets every key
    /// pass).
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] if it lies outside the section.
    #[inline]
    pub fn filter<'a>(&self, section: &'a [u8]) -> Result<&'a [u8]> {
        let filter =
            section.get(self.filter_offset as usize..).and_then(|s| s.get(..self.filter_len as usize));
        filter.ok_or_else(|| Error::corruption("block filter lies outside the filter section"))
    }
}

#[inline]
fn number(r: &mut Reader<'_>, what: &str) -> Result<u32> {
    Ok(r.varint_max(u32::MAX.into(), what)? as u32)
}
