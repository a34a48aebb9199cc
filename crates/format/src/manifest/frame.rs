//! Frames: how edit groups lie in a manifest file.
//!
//! ```text
//! header page   0 magic "TRNMANI\0" 8 | format version 4 | uuid 16 | manifest number 8 | salt 8 | CRC-32C 4 | zeros
//! frame         0 magic "TMFG" 4 | kind 1 | reserved, zero 3 | group number 8 | payload length 4 | edits 4
//!              24 salted CRC-32C of the 24 bytes before and of the payload 4
//!              28 payload: edits one behind the other; zeros up to a multiple of 4096
//! ```
//! A *seal* is a frame without edits. It is written behind a group when that is durable, carries the number of the group
//! to come, and is overwritten by it: it proves that the group before it was durable, so that damage to the last group
//! is told from a write that never ended.

use terrane_base::{Error, ErrorKind, Result};

use super::Edit;
use crate::checksum::{crc, crc_append, salted_crc};
use crate::codec::Reader;
use crate::superblock::FORMAT_VERSION;

/// Frames start on multiples of this.
pub const PAGE: usize = 4096;
/// Most bytes of edits in one group.
pub const MAX_GROUP: usize = 256 << 20;

const FILE_MAGIC: &[u8; 8] = b"TRNMANI\0";
const FILE_HEADER: usize = 48;
const FRAME_MAGIC: &[u8; 4] = b"TMFG";
const FRAME_HEADER: usize = 28;
const GROUP: u8 = 1;
const SEAL: u8 = 2;

/// The first page of a manifest file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestHeader {
    /// Identity of the database.
    pub uuid: [u8; 16],
    /// The file's number.
    pub number: u64,
    /// Salt of the frames' checksums.
    pub salt: u64,
}

impl ManifestHeader {
    /// The page.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(PAGE);
        out.extend_from_slice(FILE_MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&self.uuid);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.salt.to_le_bytes());
        let sum = crc(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out.resize(PAGE, 0);
        out
    }

    /// Decodes a page.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] for damage, [`ErrorKind::NewerFormat`] for another version.
    pub fn decode(page: &[u8]) -> Result<Self> {
        let mut r = Reader::new(page);
        let magic = r.bytes(8)?;
        let version = r.u32()?;
        let mut uuid = [0; 16];
        uuid.copy_from_slice(r.bytes(16)?);
        let header = ManifestHeader { uuid, number: r.u64()?, salt: r.u64()? };
        if magic != FILE_MAGIC || r.u32()? != crc(&page[..FILE_HEADER - 4]) {
            return Err(Error::corruption("the manifest's header does not match its checksum"));
        }
        if version != FORMAT_VERSION {
            return Err(Error::new(
                ErrorKind::NewerFormat,
                format!("the manifest has format version {version}, this is {FORMAT_VERSION}"),
            ));
        }
        Ok(header)
    }
}

/// What lies at a page of a manifest file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// An edit group.
    Group {
        /// Its number.
        number: u64,
        /// Its encoded edits.
        edits: Edits<'a>,
        /// Bytes from this frame to the next, a multiple of [`PAGE`].
        len: usize,
    },
    /// All groups below this number are durable.
    Seal {
        /// The number of the next group.
        number: u64,
    },
}

/// The edits of a verified frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Edits<'a> {
    payload: &'a [u8],
    count: u32,
}

impl Edits<'_> {
    /// Decodes all of them.
    ///
    /// # Errors
    /// As [`Edit::decode`].
    pub fn decode(&self) -> Result<Vec<Edit>> {
        let mut r = Reader::new(self.payload);
        let mut edits = Vec::new();
        for _ in 0..self.count {
            edits.push(Edit::decode(&mut r)?);
        }
        r.finish("an edit group")?;
        Ok(edits)
    }
}

/// The frame of an edit group.
///
/// # Errors
/// [`ErrorKind::LimitExceeded`] above [`MAX_GROUP`] bytes.
pub fn encode_group(salt: u64, number: u64, edits: &[Edit]) -> Result<Vec<u8>> {
    let mut out = vec![0; FRAME_HEADER];
    for e in edits {
        e.encode(&mut out);
        let payload = out.len() - FRAME_HEADER;
        if payload > MAX_GROUP {
            return Err(Error::limit("manifest edit group in bytes", payload as u64, MAX_GROUP as u64));
        }
    }
    Ok(close(out, GROUP, salt, number, edits.len()))
}

/// The seal behind the groups below `number`.
pub fn encode_seal(salt: u64, number: u64) -> Vec<u8> {
    close(vec![0; FRAME_HEADER], SEAL, salt, number, 0)
}

fn close(mut out: Vec<u8>, kind: u8, salt: u64, number: u64, edits: usize) -> Vec<u8> {
    let payload = (out.len() - FRAME_HEADER) as u32;
    out[..4].copy_from_slice(FRAME_MAGIC);
    out[4] = kind;
    out[8..16].copy_from_slice(&number.to_le_bytes());
    out[16..20].copy_from_slice(&payload.to_le_bytes());
    out[20..24].copy_from_slice(&(edits as u32).to_le_bytes());
    let sum = crc_append(salted_crc(salt, &out[..24]), &out[FRAME_HEADER..]);
    out[24..28].copy_from_slice(&sum.to_le_bytes());
    out.resize(out.len().next_multiple_of(PAGE), 0);
    out
}

/// How many bytes the frame takes that seems to start `page`, [`PAGE`] included; `None` if none does. Says nothing about
/// whether it is whole.
pub fn frame_span(page: &[u8]) -> Option<usize> {
    let mut r = Reader::new(page.get(..FRAME_HEADER)?);
    let len = if r.bytes(16).ok()?.starts_with(FRAME_MAGIC) { r.u32().ok()? as usize } else { return None };
    (len <= MAX_GROUP).then(|| (FRAME_HEADER + len).next_multiple_of(PAGE))
}

/// The frame at the front of `bytes`, which are at least its span. `None` if there is no whole one: a frame that
/// was never written, not written to its end, or damaged since.
///
/// # Errors
/// [`ErrorKind::NewerFormat`] for a frame whose checksum is right and whose kind is unknown.
pub fn read_frame(salt: u64, bytes: &[u8]) -> Result<Option<Frame<'_>>> {
    let Some(header) = bytes.get(..FRAME_HEADER) else { return Ok(None) };
    let mut r = Reader::new(header);
    let (magic, kind, _reserved) = (r.bytes(4)?, r.u8()?, r.bytes(3)?);
    let (number, len, count, sum) = (r.u64()?, r.u32()? as usize, r.u32()?, r.u32()?);
    if magic != FRAME_MAGIC || len > MAX_GROUP {
        return Ok(None);
    }
    let Some(payload) = bytes.get(FRAME_HEADER..FRAME_HEADER + len) else { return Ok(None) };
    if crc_append(salted_crc(salt, &header[..24]), payload) != sum {
        return Ok(None);
    }
    match kind {
        GROUP => {
            let len = (FRAME_HEADER + len).next_multiple_of(PAGE);
            Ok(Some(Frame::Group { number, edits: Edits { payload, count }, len }))
        }
        SEAL => Ok(Some(Frame::Seal { number })),
        other => Err(Error::new(
            ErrorKind::NewerFormat,
            format!("manifest frame kind {other} is not known to this version"),
        )),
    }
}
