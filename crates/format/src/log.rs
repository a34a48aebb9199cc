//! Segments, frames and the tail's header: how the log stream lies on disk.
//!
//! A *segment* is a file of fixed size. Its first sector (4096 bytes) holds the segment's header, twice, so that one
//! damaged copy does not take the segment along. The rest is *frames*, each starting at a sector boundary: a header, a
//! slice of the log stream, and zeros up to the next sector. A frame of one sector may stand in the next one as well,
//! with more payload or with less: the longer one that is good counts. All checksums in a segment are salted with a
//! number drawn anew for every use of the file: what an earlier use left behind never verifies.
//!
//! ```text
//! segment header (128 bytes, at 0 and at 2048)
//!     0  8    magic "TRNLGSEG"
//!     8  u32  format version            12  u32  open-generation
//!    16  16   database uuid             32  u64  segment number (that of the file's name)
//!    40  u64  salt                      48  u64  first LSN
//!    56  u64  LSN known durable         64  u64  bytes of the segment
//!    72  u64  LSN at which the generation started
//!    80  u8   seal (0: plain)           81  43   reserved, zero
//!   124  u32  CRC of bytes 0..124
//!
//! frame header (80 bytes)
//!     0  u32  magic "FRAM"               4  u32  payload length
//!     8  u64  LSN of the payload        16  u64  LSN known durable when this was written
//!    24  u32  open-generation           28  u32  salted CRC of the payload
//!    32  u8   seal (0: plain)           33  43   reserved, zero (key id, nonce and tag of a sealed payload)
//!    76  u32  salted CRC of bytes 0..76
//!
//! tail header (128 bytes)
//!     0  8    magic "TRNLTAIL"
//!     8  u32  format version            12  u32  open-generation
//!    16  16   database uuid             32  16   boot id
//!    48  u64  ring bytes                56  u64  base LSN: everything below is durable in segments
//!    64  60   reserved, zero           124  u32  CRC of bytes 0..124
//!
//! watermark (16 bytes): u64 LSN, u32 open-generation, u32 CRC of the first 12
//! ```

use terrane_base::{Error, ErrorKind, Lsn, Result};

use crate::checksum::{crc, crc_append, salted_crc};
use crate::codec::Reader;

/// Frames and headers start at multiples of this, and a device is assumed to damage no more than this around a write.
pub const LOG_SECTOR: usize = 4096;

/// The version of everything in this module.
pub const LOG_VERSION: u32 = 1;

/// Bytes of an encoded [`SegmentHeader`], one copy.
pub const SEGMENT_HEADER: usize = 128;

/// Where the copies of a segment's header lie in its first sector.
pub const SEGMENT_HEADER_COPIES: [usize; 2] = [0, 2048];

/// Bytes of an encoded [`FrameHeader`].
pub const FRAME_HEADER: usize = 80;

/// Bytes of an encoded [`TailHeader`].
pub const TAIL_HEADER: usize = 128;

/// Bytes of an encoded [`Watermark`].
pub const WATERMARK: usize = 16;

const SEGMENT_MAGIC: &[u8; 8] = b"TRNLGSEG";
const TAIL_MAGIC: &[u8; 8] = b"TRNLTAIL";
const FRAME_MAGIC: u32 = u32::from_le_bytes(*b"FRAM");

/// What a segment's first sector says about this use of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// The database that the segment belongs to.
    pub uuid: [u8; 16],
    /// The number in the file's name.
    pub number: u64,
    /// Salt of all frames.
    pub salt: u64,
    /// The log's open-generation.
    pub generation: u32,
    /// LSN of the first frame.
    pub first_lsn: Lsn,
    /// LSN that was known to be durable when the header was written.
    pub durable_lsn: Lsn,
    /// Length of the segment.
    pub segment_bytes: u64,
    /// Where this generation's first segment starts. Whatever older generations wrote from there on is void.
    pub generation_start: Lsn,
}

impl SegmentHeader {
    /// The segment's first sector: both copies and zeros.
    pub fn encode_sector(&self) -> [u8; LOG_SECTOR] {
        let mut copy = [0u8; SEGMENT_HEADER];
        copy[0..8].copy_from_slice(SEGMENT_MAGIC);
        copy[8..12].copy_from_slice(&LOG_VERSION.to_le_bytes());
        copy[12..16].copy_from_slice(&self.generation.to_le_bytes());
        copy[16..32].copy_from_slice(&self.uuid);
        copy[32..40].copy_from_slice(&self.number.to_le_bytes());
        copy[40..48].copy_from_slice(&self.salt.to_le_bytes());
        copy[48..56].copy_from_slice(&self.first_lsn.to_le_bytes());
        copy[56..64].copy_from_slice(&self.durable_lsn.to_le_bytes());
        copy[64..72].copy_from_slice(&self.segment_bytes.to_le_bytes());
        copy[72..80].copy_from_slice(&self.generation_start.to_le_bytes());
        seal_crc(&mut copy);
        let mut sector = [0; LOG_SECTOR];
        for at in SEGMENT_HEADER_COPIES {
            sector[at..at + SEGMENT_HEADER].copy_from_slice(&copy);
        }
        sector
    }

    /// Reads a segment's first sector; one good copy suffices.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] if no copy is good (a file that was prepared but never used gives this too),
    /// [`ErrorKind::NewerFormat`] if a good one is of a later version.
    pub fn decode_sector(sector: &[u8]) -> Result<Self> {
        let mut first = None;
        for at in SEGMENT_HEADER_COPIES {
            match Self::decode(sector.get(at..).unwrap_or_default()) {
                Err(e) if e.kind() == ErrorKind::Corruption => {
                    first.get_or_insert(e);
                }
                other => return other,
            }
        }
        Err(first.unwrap_or_else(|| Error::corruption("no log segment header")))
    }

    fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = checked(bytes, SEGMENT_MAGIC, "log segment header")?;
        let generation = r.u32()?;
        let uuid = array16(&mut r)?;
        let (number, salt, first_lsn, durable_lsn) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
        let (segment_bytes, generation_start) = (r.u64()?, r.u64()?);
        refuse_seal(r.u8()?)?;
        Ok(SegmentHeader {
            uuid,
            number,
            salt,
            generation,
            first_lsn,
            durable_lsn,
            segment_bytes,
            generation_start,
        })
    }
}

/// What stands in front of each slice of the log stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The log's open-generation.
    pub generation: u32,
    /// LSN of the payload's first byte.
    pub lsn: Lsn,
    /// Bytes of payload.
    pub payload_len: u32,
    /// LSN that was known to be durable when the frame was written: proof, to whoever reads this frame, that a bad frame
    /// below it is damage and not the end of the log.
    pub durable_lsn: Lsn,
    /// CRC of the payload, salted.
    pub payload_crc: u32,
}

impl FrameHeader {
    /// The header of a frame that holds `payload`, in a segment with this `salt`.
    pub fn new(salt: u64, generation: u32, lsn: Lsn, durable_lsn: Lsn, payload: &[u8]) -> Self {
        let payload_crc = salted_crc(salt, payload);
        FrameHeader { generation, lsn, payload_len: payload.len() as u32, durable_lsn, payload_crc }
    }

    /// The header's bytes, for a segment with this `salt`.
    pub fn encode(&self, salt: u64) -> [u8; FRAME_HEADER] {
        let mut out = [0; FRAME_HEADER];
        out[0..4].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
        out[4..8].copy_from_slice(&self.payload_len.to_le_bytes());
        out[8..16].copy_from_slice(&self.lsn.to_le_bytes());
        out[16..24].copy_from_slice(&self.durable_lsn.to_le_bytes());
        out[24..28].copy_from_slice(&self.generation.to_le_bytes());
        out[28..32].copy_from_slice(&self.payload_crc.to_le_bytes());
        let sum = salted_crc(salt, &out[..FRAME_HEADER - 4]);
        out[FRAME_HEADER - 4..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Decodes the header at the front of `bytes`.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] if it is none of a segment with this salt, [`ErrorKind::NewerFormat`] if sealed.
    pub fn decode(bytes: &[u8], salt: u64) -> Result<Self> {
        let covered = Reader::new(bytes).bytes(FRAME_HEADER - 4)?;
        let mut r = Reader::new(bytes);
        let (magic, payload_len, lsn, durable_lsn) = (r.u32()?, r.u32()?, r.u64()?, r.u64()?);
        let (generation, payload_crc, seal) = (r.u32()?, r.u32()?, r.u8()?);
        r.bytes(FRAME_HEADER - 4 - r.position())?;
        if magic != FRAME_MAGIC || r.u32()? != salted_crc(salt, covered) {
            return Err(Error::corruption("checksum mismatch in a log frame's header"));
        }
        refuse_seal(seal)?;
        Ok(FrameHeader { generation, lsn, payload_len, durable_lsn, payload_crc })
    }

    /// Whether `payload` is what the frame was written with.
    pub fn verifies(&self, salt: u64, payload: &[u8]) -> bool {
        self.verifies_pieces(salt, [payload])
    }

    /// As [`FrameHeader::verifies`], for a payload that lies in pieces.
    pub fn verifies_pieces<'a>(&self, salt: u64, payload: impl IntoIterator<Item = &'a [u8]>) -> bool {
        let empty = (0, salted_crc(salt, &[]));
        let (len, crc) = payload.into_iter().fold(empty, |(len, crc), p| (len + p.len(), crc_append(crc, p)));
        len == self.payload_len as usize && crc == self.payload_crc
    }

    /// Bytes that the frame takes in its segment: whole sectors.
    pub fn frame_len(&self) -> u64 {
        frame_len(self.payload_len as usize)
    }

    /// The LSN behind the payload.
    pub fn end(&self) -> Lsn {
        self.lsn.saturating_add(u64::from(self.payload_len))
    }
}

/// Bytes that a frame with a payload of `payload_len` bytes takes in its segment: whole sectors.
pub fn frame_len(payload_len: usize) -> u64 {
    (FRAME_HEADER as u64 + payload_len as u64).next_multiple_of(LOG_SECTOR as u64)
}

/// What the tail says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailHeader {
    /// The database that the tail belongs to.
    pub uuid: [u8; 16],
    /// The boot of the machine under which the tail is written: under another one its ring is untrusted.
    pub boot_id: [u8; 16],
    /// The log's open-generation; entries in the ring must bear it.
    pub generation: u32,
    /// Bytes of the ring.
    pub ring_bytes: u64,
    /// The first LSN written through this ring: everything below was durable in segments before this was stored.
    pub base_lsn: Lsn,
}

impl TailHeader {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; TAIL_HEADER] {
        let mut out = [0; TAIL_HEADER];
        out[0..8].copy_from_slice(TAIL_MAGIC);
        out[8..12].copy_from_slice(&LOG_VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&self.generation.to_le_bytes());
        out[16..32].copy_from_slice(&self.uuid);
        out[32..48].copy_from_slice(&self.boot_id);
        out[48..56].copy_from_slice(&self.ring_bytes.to_le_bytes());
        out[56..64].copy_from_slice(&self.base_lsn.to_le_bytes());
        seal_crc(&mut out);
        out
    }

    /// Decodes the header at the front of `bytes`.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] if it is none, [`ErrorKind::NewerFormat`] if of a later version.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = checked(bytes, TAIL_MAGIC, "log tail header")?;
        let generation = r.u32()?;
        let (uuid, boot_id) = (array16(&mut r)?, array16(&mut r)?);
        let (ring_bytes, base_lsn) = (r.u64()?, r.u64()?);
        Ok(TailHeader { uuid, boot_id, generation, ring_bytes, base_lsn })
    }
}

/// How far the tail's entries are known to be whole. Stored by the orderer after every group, so that a damaged entry in
/// the ring is told apart from one that was never finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermark {
    /// All entries below this LSN are whole.
    pub lsn: Lsn,
    /// The open-generation of the tail.
    pub generation: u32,
}

impl Watermark {
    /// The watermark's bytes.
    #[inline]
    pub fn encode(&self) -> [u8; WATERMARK] {
        let mut out = [0; WATERMARK];
        out[0..8].copy_from_slice(&self.lsn.to_le_bytes());
        out[8..12].copy_from_slice(&self.generation.to_le_bytes());
        let sum = crc(&out[..12]);
        out[12..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Decodes a watermark; `None` if it was torn or never written.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let covered = Reader::new(bytes).bytes(12).ok()?;
        let mut r = Reader::new(bytes);
        let (lsn, generation, sum) = (r.u64().ok()?, r.u32().ok()?, r.u32().ok()?);
        (sum == crc(covered)).then_some(Watermark { lsn, generation })
    }
}

/// Puts the CRC of all before it into the last four bytes of a header.
fn seal_crc(header: &mut [u8; 128]) {
    let sum = crc(&header[..124]);
    header[124..].copy_from_slice(&sum.to_le_bytes());
}

/// Checks magic, CRC and version of a 128-byte header; the reader returned stands behind the version.
fn checked<'a>(bytes: &'a [u8], magic: &[u8; 8], what: &str) -> Result<Reader<'a>> {
    let mut r = Reader::new(bytes);
    let covered = r.bytes(124)?;
    if !covered.starts_with(magic) || r.u32()? != crc(covered) {
        return Err(Error::corruption(format!("no good {what}")));
    }
    let mut r = Reader::new(covered);
    r.bytes(magic.len())?;
    let version = r.u32()?;
    if version != LOG_VERSION {
        return Err(Error::new(
            ErrorKind::NewerFormat,
            format!("{what} has format version {version}, this program knows version {LOG_VERSION}"),
        )
        .with_hint("open the database with the version that wrote it, or a later one"));
    }
    Ok(r)
}

fn array16(r: &mut Reader<'_>) -> Result<[u8; 16]> {
    let mut out = [0; 16];
    out.copy_from_slice(r.bytes(16)?);
    Ok(out)
}

fn refuse_seal(seal: u8) -> Result<()> {
    if seal == 0 {
        return Ok(());
    }
    Err(Error::new(ErrorKind::NewerFormat, format!("log sealed by method {seal}, unknown to this version"))
        .with_hint("open the database with the version that wrote it, or a later one"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::key_hash;
    use proptest::prelude::*;

    const SEGMENT: SegmentHeader = SegmentHeader {
        uuid: [3; 16],
        number: 9,
        salt: 0x1122_3344_5566_7788,
        generation: 2,
        first_lsn: 4096,
        durable_lsn: 4000,
        segment_bytes: 1 << 25,
        generation_start: 4000,
    };
    const TAIL: TailHeader =
        TailHeader { uuid: [3; 16], boot_id: [5; 16], generation: 2, ring_bytes: 1 << 24, base_lsn: 4096 };

    #[test]
    fn golden_hashes_pin_the_layout() {
        // XXH3, not the CRC: the CRC of anything that ends in its own CRC is a constant.
        let sector = SEGMENT.encode_sector();
        let frame = FrameHeader::new(SEGMENT.salt, 2, 4096, 4096, b"payload").encode(SEGMENT.salt);
        let mark = Watermark { lsn: 5000, generation: 2 }.encode();
        let hashes = [key_hash(&sector), key_hash(&frame), key_hash(&TAIL.encode()), key_hash(&mark)];
        assert_eq!(
            hashes,
            [0xa7d2_a4b3_e54a_8fce, 0xb015_3bdb_2a80_b808, 0xdc72_826b_61c3_e56d, 0xcc9e_bbfa_0678_8be5]
        );
    }

    #[test]
    fn a_segment_header_survives_damage_to_one_copy_but_not_to_both() {
        let sector = SEGMENT.encode_sector();
        for bit in 0..SEGMENT_HEADER * 8 {
            let mut bad = sector;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode_sector(&bad).unwrap(), SEGMENT);
            bad[SEGMENT_HEADER_COPIES[1] + bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode_sector(&bad).unwrap_err().kind(), ErrorKind::Corruption);
        }
        assert!(SegmentHeader::decode_sector(&[0; LOG_SECTOR]).is_err());
        assert!(SegmentHeader::decode_sector(&sector[..100]).is_err());
    }

    #[test]
    fn a_frame_verifies_under_its_own_salt_only() {
        let h = FrameHeader::new(1, 2, 4096, 4096, b"payload");
        let bytes = h.encode(1);
        assert_eq!(FrameHeader::decode(&bytes, 1).unwrap(), h);
        assert!(FrameHeader::decode(&bytes, 2).is_err());
        assert!(h.verifies(1, b"payload") && !h.verifies(2, b"payload") && !h.verifies(1, b"payloae"));
        assert!(
            h.verifies_pieces(1, [&b"pay"[..], b"", b"load"]) && !h.verifies_pieces(1, [&b"pay"[..], b"loa"])
        );
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(FrameHeader::decode(&bad, 1).is_err(), "bit {bit}");
        }
        assert_eq!((h.frame_len(), h.end()), (4096, 4103));
        assert_eq!(frame_len(LOG_SECTOR - FRAME_HEADER + 1), 8192);
    }

    #[test]
    fn later_versions_and_sealed_frames_are_a_newer_format() {
        let mut sector = SEGMENT.encode_sector();
        let mut tail = TAIL.encode();
        for bytes in [&mut sector[..SEGMENT_HEADER], &mut tail[..]] {
            bytes[8] = 2;
            let sum = crc(&bytes[..124]);
            bytes[124..128].copy_from_slice(&sum.to_le_bytes());
        }
        assert_eq!(SegmentHeader::decode_sector(&sector).unwrap_err().kind(), ErrorKind::NewerFormat);
        assert_eq!(TailHeader::decode(&tail).unwrap_err().kind(), ErrorKind::NewerFormat);

        let mut frame = FrameHeader::new(1, 2, 4096, 4096, b"x").encode(1);
        frame[32] = 1;
        let sum = salted_crc(1, &frame[..76]);
        frame[76..].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(FrameHeader::decode(&frame, 1).unwrap_err().kind(), ErrorKind::NewerFormat);
    }

    #[test]
    fn a_torn_watermark_is_none() {
        let old = Watermark { lsn: 4096, generation: 1 }.encode();
        let new = Watermark { lsn: 8192, generation: 1 }.encode();
        let mut torn = old;
        torn[..8].copy_from_slice(&new[..8]);
        assert_eq!(Watermark::decode(&new), Some(Watermark { lsn: 8192, generation: 1 }));
        assert_eq!(Watermark::decode(&torn), None);
        assert_eq!(Watermark::decode(&[0; WATERMARK]), None);
        assert_eq!(Watermark::decode(&new[..15]), None);
    }

    #[test]
    fn tail_headers_round_trip_and_damage_is_found() {
        let bytes = TAIL.encode();
        assert_eq!(TailHeader::decode(&bytes).unwrap(), TAIL);
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(TailHeader::decode(&bad).is_err(), "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), salt in any::<u64>()) {
            let _ = SegmentHeader::decode_sector(&bytes);
            let _ = FrameHeader::decode(&bytes, salt);
            let _ = TailHeader::decode(&bytes);
            let _ = Watermark::decode(&bytes);
        }
    }
}
