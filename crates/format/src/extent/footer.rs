//! An extent's footer: a typed section table.

use terrane_base::{Error, ErrorKind, ExtentId, Result, Seq};

use crate::checksum::crc;
use crate::codec::{Reader, put_varint};
use crate::tombstone::RangeTombstones;

/// What an extent says about itself: cross-checked with the manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties {
    /// Its birth id.
    pub id: ExtentId,
    /// Number of blocks.
    pub blocks: u32,
    /// Number of records.
    pub rows: u64,
    /// Records whose kind is a delete.
    pub deletes: u64,
    /// Uncompressed bytes of all blocks.
    pub raw_bytes: u64,
    /// Smallest sequence of any record or range tombstone.
    pub min_seq: Seq,
    /// Largest sequence of any record or range tombstone.
    pub max_seq: Seq,
}

/// A decoded footer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Footer {
    /// Range tombstones, clipped to the extent's bounds.
    pub tombstones: RangeTombstones,
    /// What the extent says about itself.
    pub properties: Properties,
}

const MAGIC: [u8; 4] = *b"TXF1";
/// Tags with this bit must be understood by whoever reads them.
const REQUIRED: u16 = 0x8000;
const TOMBSTONES: u16 = REQUIRED | 1;
const PROPERTIES: u16 = 2;
/// Bytes in front of the table, and of each entry of it.
const HEAD: usize = 6;
const ENTRY: usize = 14;

impl Footer {
    /// Appends the encoded form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut sections: Vec<(u16, Vec<u8>)> = Vec::new();
        if !self.tombstones.is_empty() {
            let mut bytes = Vec::new();
            self.tombstones.encode(&mut bytes);
            sections.push((TOMBSTONES, bytes));
        }
        let mut bytes = Vec::new();
        self.properties.encode(&mut bytes);
        sections.push((PROPERTIES, bytes));

        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&(sections.len() as u16).to_le_bytes());
        let mut offset = HEAD + sections.len() * ENTRY;
        for (tag, bytes) in &sections {
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&(offset as u32).to_le_bytes());
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(&crc(bytes).to_le_bytes());
            offset += bytes.len();
        }
        for (_, bytes) in &sections {
            out.extend_from_slice(bytes);
        }
    }

    /// Decodes a footer that fills `bytes`. Every known section's checksum is verified; unknown optional sections are
    /// skipped.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`], or [`ErrorKind::NewerFormat`] for an unknown required section.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader::new(bytes);
        if r.bytes(MAGIC.len())? != MAGIC {
            return Err(Error::corruption("footer does not start with its magic"));
        }
        let mut footer = Footer::default();
        for _ in 0..r.u16()? {
            let (tag, offset, len, sum) = (r.u16()?, r.u32()?, r.u32()?, r.u32()?);
            let section = || {
                let section = bytes.get(offset as usize..).and_then(|b| b.get(..len as usize));
                match section {
                    Some(section) if crc(section) == sum => Ok(Reader::new(section)),
                    _ => {
                        Err(Error::corruption(format!("footer section {tag:#x} does not match its checksum")))
                    }
                }
            };
            match tag {
                TOMBSTONES => {
                    let mut r = section()?;
                    footer.tombstones = RangeTombstones::decode(&mut r)?;
                    r.finish("range tombstones")?;
                }
                PROPERTIES => footer.properties = Properties::decode(&mut section()?)?,
                unknown if unknown & REQUIRED != 0 => {
                    return Err(Error::new(
                        ErrorKind::NewerFormat,
                        format!("footer section {unknown:#x} is not known to this version"),
                    ));
                }
                _ => {}
            }
        }
        Ok(footer)
    }
}

impl Properties {
    fn encode(&self, out: &mut Vec<u8>) {
        let Properties { id, blocks, rows, deletes, raw_bytes, min_seq, max_seq } = self;
        for v in [id.0, (*blocks).into(), *rows, *deletes, *raw_bytes, *min_seq, *max_seq] {
            put_varint(out, v);
        }
    }

    /// Later versions may append fields, so what follows the known ones is not looked at.
    fn decode(r: &mut Reader<'_>) -> Result<Self> {
        Ok(Properties {
            id: ExtentId(r.varint()?),
            blocks: r.varint_max(u32::MAX.into(), "number of blocks")? as u32,
            rows: r.varint()?,
            deletes: r.varint()?,
            raw_bytes: r.varint()?,
            min_seq: r.varint()?,
            max_seq: r.varint()?,
        })
    }
}
