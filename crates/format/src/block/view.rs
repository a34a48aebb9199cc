//! Reading access to a block's bytes: the trailer, parsed once, and the checked decoding of one record.

mod search;

use std::ops::Range;

use terrane_base::{MAX_SEQ, Result, Seq};

use super::errors::{bad, newer};
use super::key_buffer::WIDE;
use super::simd;
use super::two_layer::{self, ALIGNMENT};
use super::{BlockCursor, DirectoryKind, MAX_LEAF_RECORDS, MAX_LEAVES, common_prefix};
use crate::Kind;
use crate::codec::read_varint;

pub(crate) use search::{Approach, Spot};

/// Bytes of a block's trailer.
pub(super) const TRAILER: usize = 24;
/// Bytes of the smallest record: an empty key with an empty value.
const MIN_RECORD: u64 = 4;
/// Trailer flag: leaf offsets take four bytes instead of two.
pub(super) const FLAG_WIDE: u8 = 1;
/// Trailer flag, with a directory of two layers: no leaf begins between the versions of a key.
pub(super) const FLAG_UNDIVIDED: u8 = 2;
/// Bits of the trailer's flags below the number of padding bytes.
pub(super) const PADDING_SHIFT: u32 = 2;

/// Most bytes of a leaf that are brought near at the same time: as many as the processor has under way.
pub(super) const MOST_NEAR: u32 = 16 * 64;

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
    len: u32,
    /// Where the records end and the sequence column begins.
    column: u32,
    directory: u32,
    rows: u32,
    deletes: u32,
    leaves: u32,
    leaf_records: u32,
    column_width: u32,
    base_seq: Seq,
    wide: bool,
    /// Whether no leaf begins between the versions of a key.
    undivided: bool,
    /// Length of the nodes of a two-layer directory, right before the trailer; 0 without one.
    nodes: u32,
    /// Length of the prefix of all keys that the nodes leave out.
    prefix: u32,
}

/// A record's place in its block. All offsets are within the bytes in front of the sequence column.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record {
    pub kind: u8,
    /// Bytes of the key that are those of the key before it.
    pub shared: u32,
    /// Where the rest of the key lies.
    pub suffix: u32,
    /// Where the value lies; the suffix ends here.
    pub value: u32,
    /// Where the next record lies; the value ends here.
    pub next: u32,
}

/// A record that is as most are: a put with short lengths, and some key of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlainRecord<'a> {
    pub(super) shared: usize,
    /// The bytes from its suffix on, ...
    pub(super) suffix: &'a [u8; WIDE],
    /// ... and how many of them are the suffix's, if it has not more.
    pub(super) suffix_len: usize,
    pub(super) value: u32,
    pub(super) next: u32,
}

/// The lengths that a record's header states. What they lead to is checked where it is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lens {
    /// Of the header itself.
    pub(super) header: usize,
    /// Of what the key has in common with the one before.
    pub(super) shared: usize,
    /// Of the rest of the key, ...
    pub(super) suffix: usize,
    /// ... and of the value behind it.
    pub(super) value: usize,
}

impl Lens {
    /// Those of the record that lies at `at`; `None` if one is longer than most are, or the record is cut short.
    #[inline]
    pub(super) fn read(records: &[u8], at: usize) -> Option<Lens> {
        let lens = |header, shared: u8, suffix: u8, value: usize| {
            Some(Lens { header, shared: shared.into(), suffix: suffix.into(), value })
        };
        match *records.get(at..)? {
            [_, shared, suffix, value, ..] if (shared | suffix | value) < 0x80 => {
                lens(4, shared, suffix, value.into())
            }
            // Values of 128 bytes to 16 KiB.
            [_, shared, suffix, low, high, ..] if (shared | suffix | high) < 0x80 => {
                lens(5, shared, suffix, usize::from(low & 0x7f) | usize::from(high) << 7)
            }
            _ => None,
        }
    }
}

/// Gives all records of a block one sequence. The block must store none apart from its base, as one does whose records all
/// have the same.
///
/// # Errors
/// [`terrane_base::ErrorKind::Corruption`] otherwise, and as [`Block::parse`].
pub fn set_sequence(bytes: &mut [u8], seq: Seq) -> Result<()> {
    let shape = Block::parse(bytes)?.shape;
    let at = bytes.len() - TRAILER;
    if shape.column_width != 0 || seq > MAX_SEQ {
        return Err(bad("has sequences of its own", at));
    }
    bytes[at..at + 8].copy_from_slice(&seq.to_le_bytes());
    Ok(())
}

impl<'a> Block<'a> {
    /// Reads the trailer and checks the directory's bounds, in constant time. What lies inside is checked when it is
    /// read.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::Corruption`], or [`terrane_base::ErrorKind::NewerFormat`] for an unknown directory, flag or seal.
    pub fn parse(bytes: &'a [u8]) -> Result<Block<'a>> {
        let Some((body, trailer)) = bytes.split_last_chunk::<TRAILER>() else {
            return Err(bad("is shorter than its trailer", 0));
        };
        if u32::try_from(bytes.len()).is_err() {
            return Err(bad("is longer than 4 GiB", 0));
        }
        // In three loads, for every lookup passes here.
        let mut words = trailer.as_chunks::<8>().0.iter().map(|w| u64::from_le_bytes(*w));
        let (Some(base_seq), Some(counts), Some(form)) = (words.next(), words.next(), words.next()) else {
            return Err(bad("is shorter than its trailer", 0));
        };
        let (rows, deletes) = (counts as u32, (counts >> 32) as u32);
        let (leaf_records, column_width) = (u32::from(form as u16), u32::from((form >> 16) as u8));
        let (directory, flags) = (DirectoryKind::from_u8((form >> 24) as u8)?, (form >> 32) as u8);
        let (seal, prefix) = ((form >> 40) as u8, (form >> 48) as u16);
        let padding = u32::from(flags >> PADDING_SHIFT);
        if seal != 0 {
            return Err(newer("seal", seal.into()));
        }
        if leaf_records == 0
            || leaf_records > MAX_LEAF_RECORDS as u32
            || column_width > 7
            || base_seq > MAX_SEQ
        {
            return Err(bad("has a trailer out of range", body.len()));
        }
        let (wide, undivided) = (flags & FLAG_WIDE != 0, flags & FLAG_UNDIVIDED != 0);
        let leaves = rows.div_ceil(leaf_records);
        let nodes = match directory {
            DirectoryKind::RestartArray if padding != 0 || undivided || prefix != 0 => {
                return Err(newer("parts that its directory does not have", flags.into()));
            }
            DirectoryKind::RestartArray => 0,
            DirectoryKind::TwoLayer if leaves as usize > MAX_LEAVES => {
                return Err(bad("has more leaves than its directory", body.len()));
            }
            DirectoryKind::TwoLayer => two_layer::nodes_len(leaves as usize) as u32,
        };
        let directory_len = u64::from(leaves) * if wide { 4 } else { 2 } + u64::from(padding + nodes);
        let column_len = u64::from(rows) * u64::from(column_width);
        let Some(column) = (body.len() as u64).checked_sub(directory_len + column_len) else {
            return Err(bad("is too short for its directory", body.len()));
        };
        if column / MIN_RECORD < u64::from(rows) {
            return Err(bad("is too short for its records", body.len()));
        }
        let shape = BlockShape {
            len: bytes.len() as u32,
            column: column as u32,
            directory: (column + column_len) as u32,
            rows,
            deletes,
            leaves,
            leaf_records,
            column_width,
            base_seq,
            wide,
            undivided,
            nodes,
            prefix: prefix.into(),
        };
        Ok(Block { bytes, shape })
    }

    /// The parsed shape, to be kept beside the bytes.
    pub fn shape(&self) -> BlockShape {
        self.shape
    }

    /// Number of records.
    #[inline]
    pub fn rows(&self) -> u32 {
        self.shape.rows
    }

    /// Records whose kind is a delete.
    pub fn deletes(&self) -> u32 {
        self.shape.deletes
    }

    /// The bytes from `from` to `to`; empty where they are not within the block.
    #[inline]
    pub(crate) fn slice(&self, from: u32, to: u32) -> &'a [u8] {
        self.bytes.get(from as usize..to as usize).unwrap_or_default()
    }

    /// The `N` bytes from `from` on, if there are so many.
    #[inline]
    pub(super) fn chunk<const N: usize>(&self, from: u32) -> Option<&'a [u8; N]> {
        self.bytes.get(from as usize..)?.first_chunk()
    }

    /// The bytes of the records.
    #[inline]
    pub(super) fn records(&self) -> &'a [u8] {
        self.slice(0, self.shape.column)
    }

    /// Bytes of the block; never 0.
    pub(super) fn len(&self) -> u32 {
        self.shape.len
    }

    /// Where the records end.
    pub(super) fn records_end(&self) -> u32 {
        self.shape.column
    }

    pub(super) fn leaves(&self) -> u32 {
        self.shape.leaves
    }

    /// Where the directory begins.
    #[cfg(test)]
    pub(super) fn directory(&self) -> u32 {
        self.shape.directory
    }

    /// Length of the prefix of all keys that the nodes leave out.
    #[inline]
    pub(super) fn prefix(&self) -> usize {
        self.shape.prefix as usize
    }

    /// Whether its directory tells the leaf without a look at most leaves.
    pub(crate) fn has_nodes(&self) -> bool {
        self.shape.nodes > 0
    }

    /// Whether the nodes of its directory, if it has any, are those of its keys.
    pub(super) fn nodes_are_right(&self) -> Result<bool> {
        let BlockShape { len, nodes, leaves, prefix, rows, directory, wide, .. } = self.shape;
        if nodes == 0 {
            return Ok(true);
        }
        let mut cursor = BlockCursor::new();
        cursor.seek_last(*self)?;
        let shared = if rows == 0 { 0 } else { common_prefix(self.leaf_key(0)?, cursor.key()) };
        let numbers = (0..leaves)
            .map(|leaf| Ok(two_layer::significant(self.leaf_key(leaf)?, prefix as usize)))
            .collect::<Result<Vec<u64>>>()?;
        let mut want = Vec::new();
        two_layer::append_nodes(&mut want, &numbers);
        let start = len - TRAILER as u32 - nodes;
        let offsets_end = directory + leaves * if wide { 4 } else { 2 };
        Ok(prefix as usize <= shared
            && self.slice(offsets_end, start).iter().all(|b| *b == 0)
            && (start as usize).is_multiple_of(ALIGNMENT)
            && self.slice(start, start + nodes) == want)
    }

    #[inline]
    pub(crate) fn leaf_records(&self) -> u32 {
        self.shape.leaf_records
    }

    /// Where the directory has these leaves' offsets, as far as there are such leaves.
    #[inline]
    pub(super) fn offsets(&self, leaves: Range<u32>) -> &'a [u8] {
        let width = if self.shape.wide { 4 } else { 2 };
        let (from, to) = (leaves.start.min(self.shape.leaves), leaves.end.min(self.shape.leaves));
        self.slice(self.shape.directory + from * width, self.shape.directory + to * width)
    }

    /// Where the first record of `leaf` lies.
    #[inline]
    pub(crate) fn leaf_start(&self, leaf: u32) -> Result<u32> {
        let directory = self.shape.directory as usize;
        let found = if self.shape.wide {
            self.bytes
                .get(directory + leaf as usize * 4..)
                .and_then(|b| b.first_chunk())
                .map(|b| u32::from_le_bytes(*b))
        } else {
            let entry = self.bytes.get(directory + leaf as usize * 2..).and_then(|b| b.first_chunk());
            entry.map(|b| u32::from(u16::from_le_bytes(*b)))
        };
        found.ok_or_else(|| bad("has no such leaf", directory))
    }

    /// Has a leaf that is to be walked through brought near, all its lines at the same time.
    #[inline]
    pub(super) fn bring_near(&self, leaf: u32) {
        // (Whoever walks through it finds out what is wrong.)
        let start = self.leaf_start(leaf).unwrap_or(0);
        let end = match leaf + 1 < self.shape.leaves {
            true => self.leaf_start(leaf + 1).unwrap_or(0),
            false => self.shape.column,
        };
        simd::prefetch(self.slice(start, end.min(start.saturating_add(MOST_NEAR))));
    }

    /// The sequence of record number `position`.
    #[inline]
    pub(super) fn seq_at(&self, position: u32) -> Result<Seq> {
        self.shape.seq_of(self.bytes, position).ok_or_else(|| bad("has no such record", position as usize))
    }

    /// The record that lies at `at`.
    #[inline]
    pub(crate) fn record_at(&self, at: u32) -> Result<Record> {
        match self.short_record(at) {
            Some(record) => Ok(record),
            None => self.any_record(at),
        }
    }

    /// As [`Block::record_at`], if its lengths are as short as most are: in one load, for every step of a scan passes here.
    #[inline]
    pub(super) fn short_record(&self, at: u32) -> Option<Record> {
        // (Behind the records comes the trailer, so there are as many bytes as that.)
        let head = u64::from_le_bytes(*self.chunk(at)?);
        let (header, value_len) = if head & 0x8080_8000 == 0 {
            (4, head >> 24 & 0x7f)
        } else if head & 0x80_0080_8000 == 0 {
            // Values of 128 bytes to 16 KiB.
            (5, head >> 24 & 0x7f | head >> 25 & 0x3f80)
        } else {
            return None;
        };
        let (shared, suffix_len) = (head >> 8 & 0x7f, head >> 16 & 0x7f);
        let suffix = u64::from(at) + header;
        let value = suffix + suffix_len;
        let next = value + value_len;
        (next <= u64::from(self.shape.column) && shared <= u64::from(at)).then_some(Record {
            kind: head as u8,
            shared: shared as u32,
            suffix: suffix as u32,
            value: value as u32,
            next: next as u32,
        })
    }

    /// As [`Block::record_at`], whatever its lengths are, and says what is wrong.
    #[cold]
    pub(super) fn any_record(&self, at: u32) -> Result<Record> {
        let records = self.bytes.get(at as usize..self.shape.column as usize).unwrap_or_default();
        let Some((kind, shared, suffix_len, value_len, header)) = long_header(records) else {
            return Err(bad("has a record cut short", at as usize));
        };
        let suffix = u64::from(at) + header;
        let value = suffix.saturating_add(suffix_len);
        let next = value.saturating_add(value_len);
        if next > u64::from(self.shape.column) || shared > u64::from(at) {
            return Err(bad("has a record that does not fit", at as usize));
        }
        Ok(Record {
            kind,
            shared: shared as u32,
            suffix: suffix as u32,
            value: value as u32,
            next: next as u32,
        })
    }

    /// The lengths of the record that lies at `at`.
    #[inline]
    pub(super) fn lens_at(&self, at: usize) -> Result<Lens> {
        match Lens::read(self.records(), at) {
            Some(lens) => Ok(lens),
            None => self.long_lens(at),
        }
    }

    /// As [`Block::lens_at`], where [`Lens::read`] does not tell.
    #[cold]
    pub(super) fn long_lens(&self, at: usize) -> Result<Lens> {
        // (Where it is not within the block at all, that is said.)
        let r = self.record_at(u32::try_from(at).unwrap_or(u32::MAX))?;
        let (header, suffix, value) = (r.suffix as usize - at, r.value - r.suffix, r.next - r.value);
        Ok(Lens { header, shared: r.shared as usize, suffix: suffix as usize, value: value as usize })
    }

    /// The first record of `leaf`, with its key.
    #[inline]
    pub(super) fn leaf_head(&self, leaf: u32) -> Result<(Record, &'a [u8])> {
        let at = self.leaf_start(leaf)?;
        let record = self.record_at(at)?;
        if record.shared != 0 {
            return Err(bad("has a leaf whose first key is cut", at as usize));
        }
        Ok((record, self.slice(record.suffix, record.value)))
    }

    /// The key of [`Block::leaf_head`] alone.
    #[inline]
    fn leaf_key(&self, leaf: u32) -> Result<&'a [u8]> {
        let at = self.leaf_start(leaf)?;
        let records = self.bytes.get(at as usize..self.shape.column as usize).unwrap_or_default();
        let (header, len) = match *records {
            [_, 0, suffix, value, ..] if (suffix | value) < 0x80 => (4, suffix),
            [_, 0, suffix, _, high, ..] if (suffix | high) < 0x80 => (5, suffix),
            _ => return Ok(self.leaf_head(leaf)?.1),
        };
        match records.get(header..header + usize::from(len)) {
            Some(key) => Ok(key),
            None => Err(bad("has a record that does not fit", at as usize)),
        }
    }

    /// Whether no leaf begins between the versions of a key.
    pub(super) fn is_undivided(&self) -> bool {
        self.shape.is_undivided()
    }
}

impl BlockShape {
    /// Length of the prefix, common to all keys, that the directory leaves out.
    pub fn prefix(&self) -> usize {
        self.prefix as usize
    }

    /// Whether no leaf begins between the versions of a key.
    pub(super) fn is_undivided(&self) -> bool {
        self.undivided
    }

    /// The sequence of record number `position` of the block with these bytes, if there are so many.
    #[inline]
    pub(super) fn seq_of(&self, bytes: &[u8], position: u32) -> Option<Seq> {
        let BlockShape { column, column_width: width, base_seq, rows, .. } = *self;
        if width == 0 {
            return Some(base_seq);
        }
        // Behind the column comes the trailer, so eight bytes can be read at each of its entries.
        let entry = bytes.get(column as usize + position as usize * width as usize..)?.first_chunk()?;
        (position < rows).then(|| base_seq + (u64::from_le_bytes(*entry) & (u64::MAX >> (64 - 8 * width))))
    }

    /// The record of the block with these bytes that lies at `at`, if it is as most are. In few steps.
    #[inline]
    pub(super) fn plain_record<'a>(&self, bytes: &'a [u8], at: u32) -> Option<PlainRecord<'a>> {
        const PUT: u64 = Kind::Put as u64;
        // Behind the records comes the trailer, so there are as many bytes as that: the header, and what is behind it.
        let head: &[u8; TRAILER] = bytes.get(at as usize..)?.first_chunk()?;
        let lens = u64::from_le_bytes(*head.first_chunk()?);
        let (header, value_len, suffix) = if lens & 0x8080_80ff == PUT {
            (4, lens >> 24 & 0x7f, head[4..].first_chunk()?)
        } else if lens & 0x80_0080_80ff == PUT {
            // Values of 128 bytes to 16 KiB.
            (5, lens >> 24 & 0x7f | lens >> 25 & 0x3f80, head[5..].first_chunk()?)
        } else {
            return None;
        };
        let (shared, suffix_len) = (lens >> 8 & 0x7f, lens >> 16 & 0x7f);
        let value = u64::from(at) + header + suffix_len;
        let next = value + value_len;
        (next <= u64::from(self.column) && suffix_len > 0).then_some(PlainRecord {
            shared: shared as usize,
            suffix,
            suffix_len: suffix_len as usize,
            value: value as u32,
            next: next as u32,
        })
    }

    /// The block again, over the bytes that were parsed.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::Corruption`] if their length differs.
    #[inline]
    pub fn over<'a>(&self, bytes: &'a [u8]) -> Result<Block<'a>> {
        if bytes.len() != self.len as usize {
            return Err(bad("is not the one that was parsed", 0));
        }
        Ok(Block { bytes, shape: *self })
    }
}

fn long_header(records: &[u8]) -> Option<(u8, u64, u64, u64, u64)> {
    let (&kind, rest) = records.split_first()?;
    let (shared, a) = read_varint(rest)?;
    let (suffix, b) = read_varint(&rest[a..])?;
    let (value, c) = read_varint(&rest[a + b..])?;
    Some((kind, shared, suffix, value, (1 + a + b + c) as u64))
}
