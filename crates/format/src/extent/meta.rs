//! What the manifest knows about an extent.
//!
//! ```text
//! flags u8 | id | file | unit | units | 3 x section (index, filter, footer) | rows | deletes | blocks | stored bytes of blocks
//! | raw bytes of blocks | smallest sequence | largest less smallest | [global sequence] | lo (len + bytes) | hi (likewise)
//! section = offset | length | crc u32                                                   (all else varints)
//! ```

use terrane_base::{Error, ErrorKind, ExtentId, MAX_SEQ, Result, Seq};

use super::UNIT_BYTES;
use crate::codec::{Reader, put_bytes, put_varint};
use crate::limits::MAX_BOUND;

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
    /// Of an extent that was written before its sequence was known: the one of all its records and range tombstones, which
    /// are stored with [`STAGED_SEQ`]. Who reads its blocks and its index sets it ([`crate::block::set_sequence`]).
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

/// The sequence with which records are stored whose own is not known yet.
pub const STAGED_SEQ: Seq = 1;

/// Presence bits, in one byte of the encoded form.
const HAS_TOMBSTONES: u8 = 1;
const VALUE_REFS: u8 = 2;
const GLOBAL_SEQ: u8 = 4;

impl ExtentMeta {
    /// Appends the encoded form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let bit = |on: bool, bit: u8| if on { bit } else { 0 };
        out.push(
            bit(self.has_tombstones, HAS_TOMBSTONES)
                | bit(self.value_refs, VALUE_REFS)
                | bit(self.global_seq.is_some(), GLOBAL_SEQ),
        );
        put_varint(out, self.id.0);
        for v in [self.file, self.unit, self.units] {
            put_varint(out, v.into());
        }
        for section in [self.index, self.filter, self.footer] {
            put_varint(out, section.offset.into());
            put_varint(out, section.len.into());
            out.extend_from_slice(&section.crc.to_le_bytes());
        }
        put_varint(out, self.rows);
        put_varint(out, self.deletes);
        put_varint(out, self.blocks.into());
        put_varint(out, self.data_bytes.into());
        put_varint(out, self.raw_bytes);
        put_varint(out, self.min_seq);
        put_varint(out, self.max_seq.saturating_sub(self.min_seq));
        if let Some(seq) = self.global_seq {
            put_varint(out, seq);
        }
        put_bytes(out, &self.lo);
        put_bytes(out, &self.hi);
    }

    /// Reads one meta.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] if it is cut short or contradicts itself, [`ErrorKind::NewerFormat`] for unknown flags.
    pub fn decode(r: &mut Reader<'_>) -> Result<Self> {
        let at = r.position() as u64;
        let flags = r.u8()?;
        if flags & !(HAS_TOMBSTONES | VALUE_REFS | GLOBAL_SEQ) != 0 {
            return Err(Error::new(
                ErrorKind::NewerFormat,
                format!("extent with flags {flags:#x} is not known to this version"),
            ));
        }
        let meta = ExtentMeta {
            id: ExtentId(r.varint()?),
            file: number(r, "file number")?,
            unit: number(r, "unit number")?,
            units: number(r, "number of units")?,
            index: section(r)?,
            filter: section(r)?,
            footer: section(r)?,
            rows: r.varint()?,
            deletes: r.varint()?,
            blocks: number(r, "number of blocks")?,
            data_bytes: number(r, "stored bytes")?,
            raw_bytes: r.varint()?,
            min_seq: r.varint_max(MAX_SEQ, "sequence")?,
            max_seq: r.varint_max(MAX_SEQ, "range of sequences")?,
            global_seq: match flags & GLOBAL_SEQ {
                0 => None,
                _ => Some(r.varint_max(MAX_SEQ, "global sequence")?),
            },
            lo: r.prefixed(MAX_BOUND, "lower bound")?.to_vec(),
            hi: r.prefixed(MAX_BOUND, "upper bound")?.to_vec(),
            has_tombstones: flags & HAS_TOMBSTONES != 0,
            value_refs: flags & VALUE_REFS != 0,
        };
        let meta = ExtentMeta { max_seq: meta.min_seq + meta.max_seq, ..meta };
        meta.check().map_err(|e| e.with_offset(at))?;
        Ok(meta)
    }

    /// The same extent, whose records were stored with [`STAGED_SEQ`], at the sequence `seq`.
    #[must_use]
    pub fn attached(&self, seq: Seq) -> Self {
        ExtentMeta { global_seq: Some(seq), min_seq: seq, max_seq: seq, ..self.clone() }
    }

    /// Smallest and largest sequence as they are stored.
    pub fn stored_seqs(&self) -> (Seq, Seq) {
        match self.global_seq {
            Some(_) => (STAGED_SEQ, STAGED_SEQ),
            None => (self.min_seq, self.max_seq),
        }
    }

    /// The bytes from the extent's start to the end of its footer.
    pub fn stored_len(&self) -> u64 {
        [self.index, self.filter, self.footer].iter().map(Section::end).fold(self.data_bytes.into(), u64::max)
    }

    fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::corruption(format!("extent {}: {what}", self.id)));
        if self.stored_len() > u64::from(self.units) * UNIT_BYTES as u64 {
            return wrong("a section lies outside its units");
        }
        if self.unit.checked_add(self.units).is_none() {
            return wrong("its units lie beyond any file");
        }
        if self.lo >= self.hi {
            return wrong("its bounds are empty or inverted");
        }
        if self.deletes > self.rows || u64::from(self.blocks) > self.rows {
            return wrong("its counts contradict each other");
        }
        if self.max_seq > MAX_SEQ {
            return wrong("its sequences are out of range");
        }
        if self.global_seq.is_some_and(|g| (g, g) != (self.min_seq, self.max_seq)) {
            return wrong("its sequences are not the one of all its records");
        }
        Ok(())
    }
}

impl Section {
    /// The first byte behind the section.
    pub fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.len)
    }
}

fn number(r: &mut Reader<'_>, what: &str) -> Result<u32> {
    Ok(r.varint_max(u32::MAX.into(), what)? as u32)
}

fn section(r: &mut Reader<'_>) -> Result<Section> {
    Ok(Section { offset: number(r, "section offset")?, len: number(r, "section length")?, crc: r.u32()? })
}
