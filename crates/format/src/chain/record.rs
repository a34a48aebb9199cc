//! Records of an item. As they lie in memtables elsewhere (`memindex/src/record.rs`), and a checksum behind each: an index points at
//! them where they are.

use terrane_base::{Error, Result, Seq};

use super::UNIT;
use crate::codec::Reader;
use crate::{Kind, checksum};

const HEADER: usize = 11;
const LENGTHS: usize = 8;
const CRC: usize = 4;
const LONG_KEY: u8 = u8::MAX;
const LONG_VALUE: u16 = u16::MAX;

/// A record where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainRecord<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The sequence.
    pub seq: Seq,
    /// The kind.
    pub kind: Kind,
    /// The value.
    pub value: &'a [u8],
}

/// Whether lengths have room in the header.
fn are_short(key_len: usize, value_len: usize) -> bool {
    key_len < usize::from(LONG_KEY) && value_len < usize::from(LONG_VALUE)
}

/// Bytes that a record takes. Lengths are below 4 GiB.
pub fn record_len(key_len: usize, value_len: usize) -> usize {
    (key_at(key_len, value_len) + key_len + value_len + CRC).next_multiple_of(UNIT as usize)
}

/// Where the key lies behind a record's beginning; the value follows it.
pub fn key_at(key_len: usize, value_len: usize) -> usize {
    if are_short(key_len, value_len) { HEADER } else { HEADER + LENGTHS }
}

/// Appends a record, of a key and a value below 4 GiB each.
pub fn write_record(out: &mut Vec<u8>, r: &ChainRecord<'_>) {
    let from = out.len();
    let (key_len, value_len) = (r.key.len(), r.value.len());
    // It grows once.
    let len = record_len(key_len, value_len);
    out.reserve(len);
    let is_short = are_short(key_len, value_len);
    let (short_value, short_key) =
        if is_short { (value_len as u16, key_len as u8) } else { (LONG_VALUE, LONG_KEY) };
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&(r.seq << 8 | r.kind as u64).to_le_bytes());
    header[8..10].copy_from_slice(&short_value.to_le_bytes());
    header[10] = short_key;
    out.extend_from_slice(&header);
    if !is_short {
        out.extend_from_slice(&(value_len as u32).to_le_bytes());
        out.extend_from_slice(&(key_len as u32).to_le_bytes());
    }
    out.extend_from_slice(r.key);
    out.extend_from_slice(r.value);
    let crc = checksum::crc(&out[from..]);
    // With the zeros that pad it: fewer than a unit.
    let mut last = [0; CRC + UNIT as usize];
    last[..CRC].copy_from_slice(&crc.to_le_bytes());
    let rest = from + len - out.len();
    out.extend_from_slice(&last[..rest]);
}

/// The record that `bytes` begin with, and how many bytes it takes.
///
/// # Errors
/// [`terrane_base::ErrorKind::Corruption`] for damage; [`terrane_base::ErrorKind::NewerFormat`] for an unknown kind.
pub fn read_record(bytes: &[u8]) -> Result<(ChainRecord<'_>, usize)> {
    let mut r = Reader::new(bytes);
    let (seq_and_kind, value_len, key_len) = (r.u64()?, r.u16()?, r.u8()?);
    let (value_len, key_len) = match (value_len, key_len) {
        (LONG_VALUE, LONG_KEY) => (r.u32()? as usize, r.u32()? as usize),
        (LONG_VALUE, _) | (_, LONG_KEY) => {
            return Err(Error::corruption(
                "a record of a chain log has one length too long and one that is not",
            ));
        }
        (value, key) => (value.into(), key.into()),
    };
    let (key, value) = (r.bytes(key_len)?, r.bytes(value_len)?);
    let end = r.position();
    if r.u32()? != checksum::crc(&bytes[..end]) {
        return Err(Error::corruption("a record of a chain log does not match its checksum"));
    }
    let len = record_len(key_len, value_len);
    if bytes.get(r.position()..len).is_none_or(|padding| padding.iter().any(|b| *b != 0)) {
        return Err(Error::corruption("a record of a chain log is cut short"));
    }
    let kind = Kind::from_u8(seq_and_kind as u8)?;
    Ok((ChainRecord { key, seq: seq_and_kind >> 8, kind, value }, len))
}
