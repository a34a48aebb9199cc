//! The options of a subtable that its stored form depends on, as a versioned list of tagged fields.
//!
//! ```text
//! version 1 byte, then per field: tag u16 | length varint | bytes      (tags strictly ascending)
//! ```
//! The high bit of a tag means *required*: a reader that does not know it refuses the subtable. Other unknown fields are
//! kept and written back, so that an older version does not strip what a newer one added.

use terrane_base::{Error, ErrorKind, Result};

use crate::block::{Compression, DirectoryKind};
use crate::codec::{Reader, put_bytes, put_varint, read_varint};

/// Longest encoded list in bytes.
pub const MAX_OPTIONS: usize = 4096;

const VERSION: u8 = 1;
const REQUIRED: u16 = 1 << 15;
const BLOCK_BYTES: u16 = 1;
const COMPRESSION: u16 = 2;
const ZSTD_LEVEL: u16 = 3;
const FILTER_BITS: u16 = 4;
const VALUE_THRESHOLD: u16 = 5;
const INDEX_KIND: u16 = 6;
const DIRECTORY: u16 = 7;
const LAYOUT: u16 = REQUIRED | 1;

/// How a subtable keeps its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Layout {
    /// Log-structured merge tree. (2 is reserved for `BucketLog`, 3 for `PmHash`.)
    #[default]
    Lsm = 1,
}

/// The in-memory index of a subtable's memtables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum IndexChoice {
    /// Adaptive radix tree.
    #[default]
    Art = 1,
    /// Skiplist.
    Skiplist = 2,
}

/// The persisted options of a subtable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubtableOptionsRecord {
    /// How records are kept.
    pub layout: Layout,
    /// Size at which a block closes: 4 to 64 KiB.
    pub block_bytes: u32,
    /// How blocks of the cold levels are stored.
    pub compression: Compression,
    /// Zstandard level.
    pub zstd_level: i32,
    /// Filter bits per distinct key, at most 64; 0 means no filters.
    pub filter_bits: u32,
    /// Values of at least this many bytes own their space.
    pub value_threshold: u32,
    /// Index of the memtables.
    pub index: IndexChoice,
    /// Search structure of blocks.
    pub directory: DirectoryKind,
    /// Optional fields of later versions, in order of their tags.
    pub unknown: Vec<(u16, Vec<u8>)>,
}

impl Default for SubtableOptionsRecord {
    fn default() -> Self {
        SubtableOptionsRecord {
            layout: Layout::Lsm,
            block_bytes: 16 << 10,
            compression: Compression::None,
            zstd_level: 3,
            filter_bits: 10,
            value_threshold: 128 << 10,
            index: IndexChoice::Art,
            directory: DirectoryKind::TwoLayer,
            unknown: Vec::new(),
        }
    }
}

impl SubtableOptionsRecord {
    /// The encoded list.
    pub fn encode(&self) -> Vec<u8> {
        let number = |v: u64| {
            let mut b = Vec::new();
            put_varint(&mut b, v);
            b
        };
        let mut fields = vec![
            (BLOCK_BYTES, number(u64::from(self.block_bytes))),
            (COMPRESSION, vec![self.compression as u8]),
            (ZSTD_LEVEL, self.zstd_level.to_le_bytes().to_vec()),
            (FILTER_BITS, number(u64::from(self.filter_bits))),
            (VALUE_THRESHOLD, number(u64::from(self.value_threshold))),
            (INDEX_KIND, vec![self.index as u8]),
            (DIRECTORY, vec![self.directory as u8]),
            (LAYOUT, vec![self.layout as u8]),
        ];
        fields.extend(self.unknown.iter().cloned());
        fields.sort_by_key(|(tag, _)| *tag);
        let mut out = vec![VERSION];
        for (tag, bytes) in fields {
            out.extend_from_slice(&tag.to_le_bytes());
            put_bytes(&mut out, &bytes);
        }
        out
    }

    /// Decodes a list; fields that are not there have their defaults.
    ///
    /// # Errors
    /// [`ErrorKind::NewerFormat`] for another version, an unknown required field or an unknown choice;
    /// [`ErrorKind::Corruption`] for anything malformed.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes);
        let version = r.u8()?;
        if version != VERSION {
            return Err(newer(&format!("option list version {version}")));
        }
        let mut options = SubtableOptionsRecord::default();
        let mut last = None;
        while !r.is_at_end() {
            let tag = r.u16()?;
            let body = r.prefixed(MAX_OPTIONS, "subtable option")?;
            if last.is_some_and(|l| l >= tag) {
                return Err(Error::corruption(format!("subtable option {tag:#x} is out of order")));
            }
            last = Some(tag);
            options.set(tag, body)?;
        }
        options.validate().map_err(|e| Error::corruption(e.message()))?;
        Ok(options)
    }

    fn set(&mut self, tag: u16, body: &[u8]) -> Result<()> {
        match tag {
            BLOCK_BYTES => self.block_bytes = number(body)?,
            COMPRESSION => self.compression = Compression::from_u8(byte(body)?)?,
            ZSTD_LEVEL => {
                let mut r = Reader::new(body);
                self.zstd_level = r.u32()?.cast_signed();
                r.finish("subtable option")?;
            }
            FILTER_BITS => self.filter_bits = number(body)?,
            VALUE_THRESHOLD => self.value_threshold = number(body)?,
            INDEX_KIND => {
                self.index = match byte(body)? {
                    1 => IndexChoice::Art,
                    2 => IndexChoice::Skiplist,
                    other => return Err(newer(&format!("memtable index {other}"))),
                }
            }
            DIRECTORY => self.directory = DirectoryKind::from_u8(byte(body)?)?,
            LAYOUT => match byte(body)? {
                1 => self.layout = Layout::Lsm,
                other => return Err(newer(&format!("layout {other}"))),
            },
            _ if tag & REQUIRED != 0 => return Err(newer(&format!("subtable option {tag:#x}"))),
            _ => self.unknown.push((tag, body.to_vec())),
        }
        Ok(())
    }

    /// Checks that every option is in its range.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], naming the option and its range.
    pub fn validate(&self) -> Result<()> {
        if !(4 << 10..=64 << 10).contains(&self.block_bytes) {
            return Err(Error::invalid(format!(
                "block_bytes is {}, legal are 4096 to 65536",
                self.block_bytes
            )));
        }
        if self.filter_bits > 64 {
            return Err(Error::invalid(format!("filter_bits is {}, legal are 0 to 64", self.filter_bits)));
        }
        if self.value_threshold == 0 {
            return Err(Error::invalid("value_threshold is 0, legal is 1 and above"));
        }
        Ok(())
    }
}

fn number(body: &[u8]) -> Result<u32> {
    match read_varint(body) {
        Some((v, n)) if n == body.len() && v <= u64::from(u32::MAX) => Ok(v as u32),
        _ => Err(Error::corruption("a subtable option is not a number of 32 bits")),
    }
}

fn byte(body: &[u8]) -> Result<u8> {
    match body {
        [b] => Ok(*b),
        _ => Err(Error::corruption("a subtable option is not one byte")),
    }
}

fn newer(what: &str) -> Error {
    Error::new(ErrorKind::NewerFormat, format!("{what} is not known to this version"))
        .with_hint("open the database with the version that wrote it, or a later one")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> SubtableOptionsRecord {
        SubtableOptionsRecord {
            block_bytes: 4096,
            compression: Compression::Zstd,
            zstd_level: -3,
            filter_bits: 0,
            value_threshold: 1,
            index: IndexChoice::Skiplist,
            directory: DirectoryKind::RestartArray,
            unknown: vec![(5000, b"later".to_vec())],
            ..SubtableOptionsRecord::default()
        }
    }

    #[test]
    fn options_round_trip_with_the_fields_of_later_versions() {
        for o in [sample(), SubtableOptionsRecord::default()] {
            assert_eq!(SubtableOptionsRecord::decode(&o.encode()).unwrap(), o);
        }
    }

    #[test]
    fn the_first_version_is_pinned() {
        let golden = [
            1, // version
            1, 0, 3, 0x80, 0x80, 1, // block bytes
            2, 0, 1, 0, // compression
            3, 0, 4, 3, 0, 0, 0, // Zstandard level
            4, 0, 1, 10, // filter bits
            5, 0, 3, 0x80, 0x80, 8, // value threshold
            6, 0, 1, 1, // index
            7, 0, 1, 2, // directory
            1, 0x80, 1, 1, // layout
        ];
        assert_eq!(SubtableOptionsRecord::default().encode(), golden);
    }

    #[test]
    fn what_is_unknown_and_required_is_newer() {
        for (version, tag, body) in [
            (1u8, REQUIRED | 9, b"?".to_vec()),
            (1, LAYOUT, vec![2]),
            (1, INDEX_KIND, vec![9]),
            (1, DIRECTORY, vec![9]),
            (2, BLOCK_BYTES, vec![1]),
        ] {
            let mut bytes = vec![version];
            bytes.extend_from_slice(&tag.to_le_bytes());
            put_bytes(&mut bytes, &body);
            assert_eq!(
                SubtableOptionsRecord::decode(&bytes).unwrap_err().kind(),
                ErrorKind::NewerFormat,
                "{tag:#x}"
            );
        }
    }

    #[test]
    fn malformed_lists_are_corruption() {
        let good = sample().encode();
        // A cut at a field's end is a shorter list; anywhere else it is damage. Never is it a panic.
        let readable = (0..good.len()).filter(|n| SubtableOptionsRecord::decode(&good[..*n]).is_ok()).count();
        assert_eq!(readable, 9, "the empty list and each prefix of whole fields but the whole");
        let twice = [1, 4, 0, 1, 10, 4, 0, 1, 10];
        let range = [1, 1, 0, 1, 1];
        for bytes in [&[][..], &twice, &range] {
            assert_eq!(SubtableOptionsRecord::decode(bytes).unwrap_err().kind(), ErrorKind::Corruption);
        }
    }
}
