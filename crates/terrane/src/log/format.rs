//! Headers of the log's files: segments, the frames in them, and the mapped tail.
//!
//! The log is one stream of bytes, addressed by LSN, that consists of batch entries (`batch`). Segments hold it
//! in *frames*: slices cut anywhere, each written once in sectors of its own, so that a sector that holds flushed bytes
//! is never written again.
//!
//! ```text
//! segment   := header in the first 4096 bytes, then frames back to back
//! header    := "TRNLOG\0\0" 8 | version 4 | generation 4 | uuid 16 | number 8 | salt 8 | first LSN 8 | bytes 8
//!              | seal 1 | reserved 7 | CRC 4
//! frame     := header (48 bytes) payload, zeros to a multiple of 4096
//! header    := "TFRM" 4 | generation 4 | payload bytes 4 | seal 1 | reserved 3 | LSN 8 | durable LSN 8
//!              | CRC of the payload 4 | reserved 8 | CRC of the 44 bytes before 4; both CRCs salted with the segment's
//! tail      := header in the first 4096 bytes, then a ring in which LSN x stands at x modulo the ring's size
//! header    := "TRNTAIL\0" 8 | version 4 | generation 4 | uuid 16 | boot id 16 | ring bytes 8 | CRC 4
//! ```

use terrane_base::{Error, ErrorKind, Lsn, Result};

use terrane_format::checksum::{crc, salted_crc};
use terrane_format::codec::Reader;
use terrane_format::superblock::FORMAT_VERSION;

/// Bytes of a header that is padded to a sector, and the unit in which frames are laid out.
pub const LOG_SECTOR: usize = 4096;
/// Bytes of a frame's header.
pub const FRAME_HEADER: usize = 48;

const SEGMENT_MAGIC: &[u8; 8] = b"TRNLOG\0\0";
const SEGMENT_FIELDS: usize = 72;
const FRAME_MAGIC: &[u8; 4] = b"TFRM";
const TAIL_MAGIC: &[u8; 8] = b"TRNTAIL\0";
const TAIL_FIELDS: usize = 56;

/// The head of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Log generation of its frames.
    pub generation: u32,
    /// The database.
    pub uuid: [u8; 16],
    /// Segments are numbered in the order of their use; a recycled file gets a new number.
    pub number: u64,
    /// Random, new for each use: frames of an earlier use of the file do not verify.
    pub salt: u64,
    /// LSN of the first frame.
    pub first_lsn: Lsn,
    /// Bytes of the file.
    pub bytes: u64,
}

impl SegmentHeader {
    /// The first sector of the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(LOG_SECTOR);
        out.extend_from_slice(SEGMENT_MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&self.uuid);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.salt.to_le_bytes());
        out.extend_from_slice(&self.first_lsn.to_le_bytes());
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.extend_from_slice(&[0; 8]);
        let sum = crc(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out.resize(LOG_SECTOR, 0);
        out
    }

    /// Reads and verifies a header; `None` if these bytes are no segment header (a file that was only prepared).
    ///
    /// # Errors
    /// [`ErrorKind::NewerFormat`].
    pub fn decode(sector: &[u8]) -> Result<Option<Self>> {
        let Some(version) = verified(sector, SEGMENT_MAGIC, SEGMENT_FIELDS)? else { return Ok(None) };
        newer(version, "log segment")?;
        let mut r = Reader::new(&sector[12..SEGMENT_FIELDS]);
        let generation = r.u32()?;
        let mut uuid = [0; 16];
        uuid.copy_from_slice(r.bytes(16)?);
        let (number, salt, first_lsn, bytes) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
        if r.u8()? != 0 {
            return Err(sealed("log segment"));
        }
        Ok(Some(SegmentHeader { generation, uuid, number, salt, first_lsn, bytes }))
    }
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Log generation.
    pub generation: u32,
    /// Bytes of the payload, a multiple of 8.
    pub payload_len: u32,
    /// LSN of its first byte.
    pub lsn: Lsn,
    /// The log was durable up to here when the frame was written.
    pub durable_lsn: Lsn,
    /// Salted CRC of the payload.
    pub payload_crc: u32,
}

impl FrameHeader {
    /// Bytes that a frame takes in its segment.
    pub fn stored_len(&self) -> usize {
        (FRAME_HEADER + self.payload_len as usize).next_multiple_of(LOG_SECTOR)
    }

    /// The stored form under the segment's salt.
    pub fn encode(&self, salt: u64) -> [u8; FRAME_HEADER] {
        let mut out = [0; FRAME_HEADER];
        out[0..4].copy_from_slice(FRAME_MAGIC);
        out[4..8].copy_from_slice(&self.generation.to_le_bytes());
        out[8..12].copy_from_slice(&self.payload_len.to_le_bytes());
        out[16..24].copy_from_slice(&self.lsn.to_le_bytes());
        out[24..32].copy_from_slice(&self.durable_lsn.to_le_bytes());
        out[32..36].copy_from_slice(&self.payload_crc.to_le_bytes());
        let sum = salted_crc(salt, &out[..44]);
        out[44..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads and verifies a header; `None` if these bytes are no frame of this use of the segment.
    ///
    /// # Errors
    /// [`ErrorKind::NewerFormat`] for a sealed frame.
    pub fn decode(bytes: &[u8], salt: u64) -> Result<Option<Self>> {
        let Some(bytes) = bytes.get(..FRAME_HEADER) else { return Ok(None) };
        let mut r = Reader::new(bytes);
        if r.bytes(4)? != FRAME_MAGIC {
            return Ok(None);
        }
        let (generation, payload_len, seal) = (r.u32()?, r.u32()?, r.u8()?);
        r.bytes(3)?;
        let (lsn, durable_lsn, payload_crc) = (r.u64()?, r.u64()?, r.u32()?);
        r.u64()?;
        if r.u32()? != salted_crc(salt, &bytes[..44]) {
            return Ok(None);
        }
        if seal != 0 {
            return Err(sealed("log frame"));
        }
        Ok(Some(FrameHeader { generation, payload_len, lsn, durable_lsn, payload_crc }))
    }

    /// Whether `payload` is this frame's.
    pub fn verifies(&self, payload: &[u8], salt: u64) -> bool {
        payload.len() == self.payload_len as usize && salted_crc(salt, payload) == self.payload_crc
    }
}

/// The head of the mapped tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailHeader {
    /// Log generation of the entries in it.
    pub generation: u32,
    /// The database.
    pub uuid: [u8; 16],
    /// The boot in which it was mapped: its content means nothing in another one.
    pub boot: [u8; 16],
    /// Bytes of the ring.
    pub ring_bytes: u64,
}

impl TailHeader {
    /// The first sector of the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(LOG_SECTOR);
        out.extend_from_slice(TAIL_MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&self.uuid);
        out.extend_from_slice(&self.boot);
        out.extend_from_slice(&self.ring_bytes.to_le_bytes());
        let sum = crc(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out.resize(LOG_SECTOR, 0);
        out
    }

    /// Reads and verifies a header; `None` if these bytes are no tail header.
    ///
    /// # Errors
    /// [`ErrorKind::NewerFormat`].
    pub fn decode(sector: &[u8]) -> Result<Option<Self>> {
        let Some(version) = verified(sector, TAIL_MAGIC, TAIL_FIELDS)? else { return Ok(None) };
        newer(version, "log tail")?;
        let mut r = Reader::new(&sector[12..TAIL_FIELDS]);
        let generation = r.u32()?;
        let (mut uuid, mut boot) = ([0; 16], [0; 16]);
        uuid.copy_from_slice(r.bytes(16)?);
        boot.copy_from_slice(r.bytes(16)?);
        Ok(Some(TailHeader { generation, uuid, boot, ring_bytes: r.u64()? }))
    }
}

/// The version of a header whose magic and CRC are right.
fn verified(sector: &[u8], magic: &[u8; 8], fields: usize) -> Result<Option<u32>> {
    let Some(bytes) = sector.get(..fields + 4) else { return Ok(None) };
    let mut r = Reader::new(&bytes[fields..]);
    if bytes[..8] != *magic || r.u32()? != crc(&bytes[..fields]) {
        return Ok(None);
    }
    Ok(Some(Reader::new(&bytes[8..]).u32()?))
}

fn newer(version: u32, what: &str) -> Result<()> {
    if version != FORMAT_VERSION {
        return Err(Error::new(ErrorKind::NewerFormat, format!("the {what} has format version {version}")));
    }
    Ok(())
}

fn sealed(what: &str) -> Error {
    Error::new(ErrorKind::NewerFormat, format!("the {what} is sealed, which this version cannot open"))
}
