//! Write batches as they stand in the log stream: *entries* of a 32-byte header and a body of operations, padded with
//! zeros to a multiple of eight bytes.
//!
//! ```text
//! header   0  u32  body length in bytes, without padding
//!          4  u32  number of operations
//!          8  u64  LSN at which the entry starts
//!         16  u32  open-generation of the log that the entry was written under
//!         20  u32  entry kind: 0 batch, 1 no-op, 2 prepare, 3 commit, 4 rollback, 5 gap (others: a newer version)
//!         24  u32  CRC of the body
//!         28  u32  CRC of bytes 0..28
//! body        operations, one behind the other (of kinds 2 to 4: see [`crate::prepared`])
//! op          u8 kind | varint subtable | varint length, key | by kind:
//!             put, value reference: varint length, value
//!             range delete:         varint length, end key
//!             delete:               nothing
//! ```
//!
//! Because the header checksum covers LSN and generation, a whole entry that an earlier lap of the ring, or an earlier
//! life of the database, left at some place never passes for a current one. A *no-op* entry fills a place that was
//! reserved for a batch which then could not be written; its body is skipped unread.

use terrane_base::{Error, ErrorKind, Lsn, Result, SubtableId};

use crate::checksum::{crc, crc_append, salted_crc};
use crate::codec::{Reader, put_bytes, put_varint};
use crate::kind::Kind;
use crate::limits::{MAX_KEY, MAX_VALUE};

/// Bytes of an entry's header.
pub const ENTRY_HEADER: usize = 32;

/// Entries start and end at multiples of this.
pub const ENTRY_ALIGN: usize = 8;

/// Salts the header checksum, so that zeros are not a header.
const HEADER_SALT: u64 = 0x5465_7272_4265_6e74;

/// One operation of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op<'a> {
    /// What it does.
    pub kind: Kind,
    /// The subtable it concerns.
    pub subtable: SubtableId,
    /// The key; for a range delete, the first key deleted.
    pub key: &'a [u8],
    /// The value; for a range delete, the first key *not* deleted; empty for a delete.
    pub value: &'a [u8],
}

/// Appends `op`. Lengths are the caller's to check (`limits`): an operation above them does not decode.
#[inline]
pub fn put_op(out: &mut Vec<u8>, op: &Op<'_>) {
    out.push(op.kind as u8);
    put_varint(out, u64::from(op.subtable.0));
    put_bytes(out, op.key);
    if op.kind != Kind::Delete {
        put_bytes(out, op.value);
    }
}

/// Iterates over the operations of a body. After an error it yields nothing more.
#[derive(Clone, Debug)]
pub struct Ops<'a> {
    reader: Reader<'a>,
    failed: bool,
}

impl<'a> Ops<'a> {
    /// The operations in `body`, which must hold nothing else.
    pub fn new(body: &'a [u8]) -> Self {
        Ops { reader: Reader::new(body), failed: false }
    }

    fn read(&mut self) -> Result<Op<'a>> {
        let r = &mut self.reader;
        let kind = Kind::from_u8(r.u8()?)?;
        let subtable = SubtableId(r.varint_max(u64::from(u32::MAX), "subtable id")? as u32);
        let key = r.prefixed(MAX_KEY, "key length")?;
        let value = match kind {
            Kind::Delete => &[][..],
            Kind::RangeDelete => r.prefixed(MAX_KEY, "end key length")?,
            _ => r.prefixed(MAX_VALUE, "value length")?,
        };
        Ok(Op { kind, subtable, key, value })
    }
}

impl<'a> Iterator for Ops<'a> {
    type Item = Result<Op<'a>>;

    #[inline]
    fn next(&mut self) -> Option<Result<Op<'a>>> {
        if self.failed || self.reader.is_at_end() {
            return None;
        }
        let op = self.read();
        self.failed = op.is_err();
        Some(op.map_err(|e| e.context("operation of a batch")))
    }
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum EntryKind {
    /// A batch of operations.
    Batch = 0,
    /// Nothing: the body is not checked and not read.
    NoOp = 1,
    /// A transaction that may still be committed or rolled back, whatever happens.
    Prepare = 2,
    /// The operations of a prepared transaction: from here on they count.
    Commit = 3,
    /// The end of a prepared transaction that comes to nothing.
    Rollback = 4,
    /// Commits that the log lacks, for a crash took them from its tail: the persistent memory in front of it has them. The body is not
    /// checked and not read.
    Gap = 5,
}

/// The header of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryHeader {
    /// What the entry is.
    pub kind: EntryKind,
    /// Bytes of the body, without padding.
    pub body_len: u32,
    /// Operations in the body. Operation `i` has sequence `lsn + 1 + i`.
    pub count: u32,
    /// Where in the log stream the entry starts.
    pub lsn: Lsn,
    /// The log's open-generation when the entry was written.
    pub generation: u32,
    /// CRC of the body.
    pub body_crc: u32,
}

/// Bytes that an entry with a body of `body_len` bytes takes in the log: a multiple of [`ENTRY_ALIGN`].
#[inline]
pub fn entry_len(body_len: usize) -> u64 {
    (ENTRY_HEADER as u64 + body_len as u64).next_multiple_of(ENTRY_ALIGN as u64)
}

/// CRC of a body that lies in pieces, for [`EntryHeader::body_crc`].
pub fn body_crc(parts: &[&[u8]]) -> u32 {
    parts.iter().fold(crc(&[]), |c, part| crc_append(c, part))
}

impl EntryHeader {
    /// The header of a no-op that takes `len` bytes (a result of [`entry_len`]) at `lsn`.
    pub fn no_op(lsn: Lsn, len: u64, generation: u32) -> Self {
        debug_assert!(len >= ENTRY_HEADER as u64 && len.is_multiple_of(ENTRY_ALIGN as u64));
        let body_len = (len - ENTRY_HEADER as u64) as u32;
        EntryHeader { kind: EntryKind::NoOp, body_len, count: 0, lsn, generation, body_crc: 0 }
    }

    /// Bytes that the whole entry takes.
    #[inline]
    pub fn entry_len(&self) -> u64 {
        entry_len(self.body_len as usize)
    }

    /// The LSN behind the entry.
    #[inline]
    pub fn end(&self) -> Lsn {
        self.lsn.saturating_add(self.entry_len())
    }

    /// The header's bytes.
    pub fn encode(&self) -> [u8; ENTRY_HEADER] {
        let mut out = [0; ENTRY_HEADER];
        out[0..4].copy_from_slice(&self.body_len.to_le_bytes());
        out[4..8].copy_from_slice(&self.count.to_le_bytes());
        out[8..16].copy_from_slice(&self.lsn.to_le_bytes());
        out[16..20].copy_from_slice(&self.generation.to_le_bytes());
        out[20..24].copy_from_slice(&(self.kind as u32).to_le_bytes());
        out[24..28].copy_from_slice(&self.body_crc.to_le_bytes());
        let sum = salted_crc(HEADER_SALT, &out[..28]);
        out[28..32].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Checks that `body` is the body this header was written with.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`].
    pub fn check_body(&self, body: &[u8]) -> Result<()> {
        let whole = body.len() == self.body_len as usize;
        if matches!(self.kind, EntryKind::NoOp | EntryKind::Gap) || (whole && crc(body) == self.body_crc) {
            return Ok(());
        }
        Err(Error::corruption(format!("checksum mismatch in the batch at LSN {}", self.lsn)))
    }
}

/// Decodes the header at the front of `bytes`.
///
/// # Errors
/// [`ErrorKind::Corruption`] if it is none, [`ErrorKind::NewerFormat`] if its entry kind is unknown to this version.
pub fn decode_header(bytes: &[u8]) -> Result<EntryHeader> {
    let mut r = Reader::new(bytes);
    let covered = Reader::new(bytes).bytes(ENTRY_HEADER - 4)?;
    let (body_len, count, lsn, generation) = (r.u32()?, r.u32()?, r.u64()?, r.u32()?);
    let (kind, body_crc, sum) = (r.u32()?, r.u32()?, r.u32()?);
    if sum != salted_crc(HEADER_SALT, covered) {
        return Err(Error::corruption("checksum mismatch in a log entry's header"));
    }
    let kind = match kind {
        0 => EntryKind::Batch,
        1 => EntryKind::NoOp,
        2 => EntryKind::Prepare,
        3 => EntryKind::Commit,
        4 => EntryKind::Rollback,
        5 => EntryKind::Gap,
        other => {
            return Err(Error::new(
                ErrorKind::NewerFormat,
                format!("log entry kind {other} is not known to this version"),
            )
            .with_hint("open the database with the version that wrote it, or a later one"));
        }
    };
    Ok(EntryHeader { kind, body_len, count, lsn, generation, body_crc })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(body: &[u8]) -> EntryHeader {
        EntryHeader {
            kind: EntryKind::Batch,
            body_len: body.len() as u32,
            count: 3,
            lsn: 4096,
            generation: 7,
            body_crc: body_crc(&[body]),
        }
    }

    #[test]
    fn golden_entry() {
        let mut body = Vec::new();
        for (kind, key, value) in
            [(Kind::Put, "k", "v"), (Kind::Delete, "", ""), (Kind::RangeDelete, "a", "b\0")]
        {
            let (key, value) = (key.as_bytes(), value.as_bytes());
            put_op(&mut body, &Op { kind, subtable: SubtableId(300), key, value });
        }
        let hex = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(hex(&body), "01ac02016b017602ac020004ac020161026200");
        assert_eq!(
            hex(&header(&body).encode()),
            "13000000030000000010000000000000070000000000000035751b86c7059f74"
        );
    }

    #[test]
    fn every_flipped_bit_of_a_header_or_body_is_found() {
        let body = b"some operations".to_vec();
        let bytes = header(&body).encode();
        assert_eq!(decode_header(&bytes).unwrap(), header(&body));
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_header(&bad).is_err(), "bit {bit}");
        }
        for bit in 0..body.len() * 8 {
            let mut bad = body.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(header(&body).check_body(&bad).is_err(), "bit {bit}");
        }
        assert!(decode_header(&bytes[..31]).is_err());
        assert!(decode_header(&[0; 64]).is_err(), "zeros are no header");
        assert!(header(&body).check_body(&body[1..]).is_err());
    }

    #[test]
    fn a_no_op_fills_any_place_and_its_body_is_not_looked_at() {
        for len in [32, 40, 4096] {
            let h = EntryHeader::no_op(8192, len, 1);
            assert_eq!(decode_header(&h.encode()).unwrap(), h);
            assert_eq!((h.entry_len(), h.end()), (len, 8192 + len));
            assert!(h.check_body(b"whatever was there").is_ok());
        }
    }

    #[test]
    fn an_unknown_entry_kind_is_a_newer_format() {
        let mut bytes = header(b"").encode();
        bytes[20] = 9;
        let sum = salted_crc(HEADER_SALT, &bytes[..28]);
        bytes[28..].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(decode_header(&bytes).unwrap_err().kind(), ErrorKind::NewerFormat);
    }

    proptest! {
        #[test]
        fn operations_round_trip(
            ops in prop::collection::vec((0..4usize, any::<u32>(), prop::collection::vec(any::<u8>(), 0..40),
                prop::collection::vec(any::<u8>(), 0..300)), 0..20)
        ) {
            const KINDS: [Kind; 4] = [Kind::Put, Kind::Delete, Kind::RangeDelete, Kind::ValueRef];
            let ops: Vec<Op<'_>> = ops.iter().map(|(k, subtable, key, value)| Op {
                kind: KINDS[*k],
                subtable: SubtableId(*subtable),
                key,
                value: if KINDS[*k] == Kind::Delete { &[] } else { value },
            }).collect();
            let mut body = Vec::new();
            ops.iter().for_each(|op| put_op(&mut body, op));
            let back: Vec<Op<'_>> = Ops::new(&body).collect::<Result<_>>().unwrap();
            prop_assert_eq!(back, ops);
            if !body.is_empty() {
                let cut: Vec<_> = Ops::new(&body[..body.len() - 1]).collect();
                prop_assert!(cut.last().is_some_and(|last| last.is_err()), "a body cut short is an error");
            }
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode_header(&bytes);
            prop_assert!(Ops::new(&bytes).count() <= bytes.len());
        }
    }
}
