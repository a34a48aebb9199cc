//! The beginning of a file of persistent memory: what it is ([`PmHeader`]), and in what state it was left ([`PmState`]).
//!
//! ```text
//!     0  header       as below; written once, before the file has its name
//!  4096  state        slot 0   | the same twice, written one after the other:
//!  8192  state        slot 1   | the valid one of the higher opening counts
//! 12288  pools, each at the places that the header names: its words, then its objects
//!
//! header
//!  0  magic "TERRAPM\0"      8
//!  8  length of all          4   crc included
//! 12  format version         4
//! 16  incompatible features  8   unknown ones forbid opening
//! 24  database uuid         16
//! 40  device                 4   which of the database's memories this is
//! 44  number of pools        4
//! 48  length of the file     8
//! 56  pools, each           40   kind 4, nothing 4, bytes of an object 8, objects 8, place of the words 8, of the objects 8
//! -4  CRC-32C of all before  4
//!
//! state
//!  0  opening                8   from 1, each higher than the one before
//!  8  boot id               16   of the machine's boot in which the file was opened
//! 24  flags                  4   1: closed in order; 2: a flush of the file has failed; 4: opened as a device
//! 28  CRC-32C of all before  4
//!
//! word of an object ([`PmWord`])
//!  bits 62, 63   both set: somebody has it; neither: nobody
//!  of one that somebody has: bits 16 ..= 61 its owner's tag, bits 0 ..= 15 those of the CRC-32C of its number (4) and tag (8)
//!  of one that nobody has: bits 32 ..= 61 zero, the rest means nothing to who opens the file
//! ```

use terrane_base::{Error, ErrorKind, Result};

use crate::checksum;
use crate::codec::Reader;

/// The format version that this code writes.
pub const PM_VERSION: u32 = 1;
/// Where the state's slots lie.
pub const STATE_SLOTS: [u64; 2] = [4096, 8192];
/// Where the first pool may begin.
pub const POOLS_AT: u64 = 12288;
/// Bytes of a [`PmState`].
pub const STATE_BYTES: usize = 32;
/// Longest header in bytes.
pub const MAX_HEADER: usize = 4096;
/// The most objects of a pool: their numbers, and one more, fit 32 bits.
pub const MAX_OBJECTS: u64 = u32::MAX as u64 - 1;

const MAGIC: &[u8; 8] = b"TERRAPM\0";
const PREFIX: usize = 56;
const POOL: usize = 40;
const MAX_POOLS: usize = 16;
const CLEAN: u32 = 1;
const LOST: u32 = 2;
const ON_DEVICE: u32 = 4;
/// More than any file comes to; so counting up overflows nowhere.
const MAX_OPENING: u64 = 1 << 62;
const TAKEN: u64 = 3 << 62;
const CHECK_BITS: u32 = 16;
const WORD: u64 = 8;
/// Pools and their objects begin at a multiple of this.
const PAGE: u64 = 4096;

/// The largest tag of an object.
pub const MAX_TAG: u64 = (1 << (62 - CHECK_BITS)) - 1;

/// What the objects of a pool are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolKind {
    /// What is known of a subtable.
    Subtables,
    /// What is known of a memtable. Which zones it has they say themselves.
    Memtables,
    /// Room for records.
    Zones,
}

impl PoolKind {
    fn code(self) -> u32 {
        match self {
            PoolKind::Subtables => 1,
            PoolKind::Memtables => 2,
            PoolKind::Zones => 3,
        }
    }

    fn of(code: u32) -> Option<Self> {
        [PoolKind::Subtables, PoolKind::Memtables, PoolKind::Zones].into_iter().find(|k| k.code() == code)
    }
}

/// Objects of one size, and a word for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolShape {
    /// What they are.
    pub kind: PoolKind,
    /// Bytes of each, a positive multiple of eight.
    pub object_bytes: u64,
    /// How many there are: 1 to [`MAX_OBJECTS`].
    pub objects: u64,
    /// Where their words lie, a multiple of 4096.
    pub words_at: u64,
    /// Where they lie themselves, a multiple of 4096.
    pub objects_at: u64,
}

impl PoolShape {
    /// Where the pool ends, if that is a place at all.
    pub fn end(&self) -> Option<u64> {
        self.objects_at.checked_add(self.objects.checked_mul(self.object_bytes)?)
    }

    /// Checks all that does not depend on other pools.
    fn check(&self) -> Result<()> {
        let words = self.objects.checked_mul(WORD).and_then(|n| n.checked_add(self.words_at));
        let in_order = words.is_some_and(|end| end <= self.objects_at) && self.end().is_some();
        let aligned = self.words_at.is_multiple_of(PAGE) && self.objects_at.is_multiple_of(PAGE);
        let sized = self.object_bytes > 0 && self.object_bytes.is_multiple_of(WORD);
        let counted = (1..=MAX_OBJECTS).contains(&self.objects);
        if in_order && aligned && sized && counted {
            return Ok(());
        }
        Err(Error::corruption(format!("a pool of persistent memory has an impossible shape: {self:?}")))
    }
}

/// What a file of persistent memory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PmHeader {
    /// The database that it belongs to.
    pub uuid: [u8; 16],
    /// Which of the database's memories it is.
    pub device: u32,
    /// Its length in bytes.
    pub file_bytes: u64,
    /// In the order in which they lie.
    pub pools: Vec<PoolShape>,
}

impl PmHeader {
    /// The bytes at the beginning of the file.
    pub fn encode(&self) -> Vec<u8> {
        let len = PREFIX + self.pools.len() * POOL + 4;
        let mut out = Vec::with_capacity(len);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&(len as u32).to_le_bytes());
        out.extend_from_slice(&PM_VERSION.to_le_bytes());
        out.extend_from_slice(&0u64.to_le_bytes());
        out.extend_from_slice(&self.uuid);
        out.extend_from_slice(&self.device.to_le_bytes());
        out.extend_from_slice(&(self.pools.len() as u32).to_le_bytes());
        out.extend_from_slice(&self.file_bytes.to_le_bytes());
        for p in &self.pools {
            out.extend_from_slice(&p.kind.code().to_le_bytes());
            out.extend_from_slice(&[0; 4]);
            for field in [p.object_bytes, p.objects, p.words_at, p.objects_at] {
                out.extend_from_slice(&field.to_le_bytes());
            }
        }
        let crc = checksum::crc(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes the beginning of a file, of which there may be more than the header takes.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] for damage; [`ErrorKind::NewerFormat`] for another version, feature or kind of pool.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let fail = |what: &str| Err(Error::corruption(format!("the header of persistent memory {what}")));
        if !bytes.starts_with(MAGIC) {
            return fail("is not one of Terrane's");
        }
        let mut r = Reader::new(&bytes[MAGIC.len()..]);
        let len = r.u32()? as usize;
        if !(PREFIX + 4..=MAX_HEADER).contains(&len) || len > bytes.len() {
            return fail("has an impossible length");
        }
        let (body, crc) = bytes[..len].split_at(len - 4);
        if Reader::new(crc).u32()? != checksum::crc(body) {
            return fail("does not match its checksum");
        }
        let mut r = Reader::new(&body[MAGIC.len() + 4..]);
        let version = r.u32()?;
        if version != PM_VERSION {
            return Err(newer(format!("format version {version}; this program knows version {PM_VERSION}")));
        }
        let features = r.u64()?;
        if features != 0 {
            return Err(newer(format!("features {features:#x}, which this version does not know")));
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(r.bytes(16)?);
        let (device, pools, file_bytes) = (r.u32()?, r.u32()? as usize, r.u64()?);
        if pools > MAX_POOLS || r.remaining() != pools * POOL {
            return fail("has not the length that its pools take");
        }
        let mut header = PmHeader { uuid, device, file_bytes, pools: Vec::with_capacity(pools) };
        let mut free_from = POOLS_AT;
        for _ in 0..pools {
            let (code, _) = (r.u32()?, r.u32()?);
            let kind = PoolKind::of(code)
                .ok_or_else(|| newer(format!("a pool of kind {code}, which this version does not know")))?;
            let [object_bytes, objects, words_at, objects_at] = [r.u64()?, r.u64()?, r.u64()?, r.u64()?];
            let pool = PoolShape { kind, object_bytes, objects, words_at, objects_at };
            pool.check()?;
            if words_at < free_from {
                return fail("has pools that overlap");
            }
            free_from = pool.end().unwrap_or(u64::MAX);
            header.pools.push(pool);
        }
        if free_from > file_bytes {
            return fail("has pools beyond the file's end");
        }
        Ok(header)
    }
}

/// In what state a file of persistent memory was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PmState {
    /// The number of the opening, or of the close behind it.
    pub opening: u64,
    /// The boot of the machine in which it was opened.
    pub boot_id: [u8; 16],
    /// Whether it was closed in order since.
    pub clean: bool,
    /// Whether a flush of the file has failed: what is on its device is not known then.
    pub lost: bool,
    /// Whether it was opened as a device, where what is fenced survives a power failure.
    pub on_device: bool,
}

impl PmState {
    /// The bytes of a slot.
    pub fn encode(&self) -> [u8; STATE_BYTES] {
        let mut out = [0; STATE_BYTES];
        out[..8].copy_from_slice(&self.opening.to_le_bytes());
        out[8..24].copy_from_slice(&self.boot_id);
        let flags = [(self.clean, CLEAN), (self.lost, LOST), (self.on_device, ON_DEVICE)];
        let flags: u32 = flags.into_iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum();
        out[24..28].copy_from_slice(&flags.to_le_bytes());
        let crc = checksum::crc(&out[..28]);
        out[28..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// What a slot says; `None` if it was never written, or not to the end.
    pub fn decode(slot: &[u8; STATE_BYTES]) -> Option<Self> {
        let mut r = Reader::new(slot);
        let opening = r.u64().ok()?;
        let mut boot_id = [0; 16];
        boot_id.copy_from_slice(r.bytes(16).ok()?);
        let (flags, crc) = (r.u32().ok()?, r.u32().ok()?);
        let known = flags & !(CLEAN | LOST | ON_DEVICE) == 0;
        if !(1..=MAX_OPENING).contains(&opening) || !known || crc != checksum::crc(&slot[..28]) {
            return None;
        }
        let has = |flag| flags & flag != 0;
        Some(PmState { opening, boot_id, clean: has(CLEAN), lost: has(LOST), on_device: has(ON_DEVICE) })
    }
}

/// Where a memory stands, as far as its owner knows: at an opening, or closed behind it; or, as long as it is not known to have got that far,
/// where it stood before. By default anywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The number of the last opening; 0 if none is known.
    pub opening: u64,
    /// Where it stood before that; `None` if it is known to have got there.
    pub before: Option<u64>,
}

/// What an object's word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PmWord {
    /// Nobody has it. The link is the allocator's.
    Free(u32),
    /// Somebody has it, under a tag of at most [`MAX_TAG`].
    Taken(u64),
}

impl PmWord {
    /// The word of object `number`. Of a larger tag the upper bits are lost.
    pub fn encode(self, number: u32) -> u64 {
        match self {
            PmWord::Free(link) => link.into(),
            PmWord::Taken(tag) => TAKEN | (tag & MAX_TAG) << CHECK_BITS | check(number, tag & MAX_TAG),
        }
    }

    /// What the word of object `number` says.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] if it is none: of one bit that is not as it was written that is always said.
    pub fn decode(number: u32, word: u64) -> Result<Self> {
        if word >> 32 == 0 {
            return Ok(PmWord::Free(word as u32));
        }
        let tag = (word & !TAKEN) >> CHECK_BITS;
        if word & TAKEN == TAKEN && word & ((1 << CHECK_BITS) - 1) == check(number, tag) {
            return Ok(PmWord::Taken(tag));
        }
        Err(Error::corruption(format!(
            "the word of object {number} of persistent memory is damaged: {word:#x}"
        )))
    }
}

fn check(number: u32, tag: u64) -> u64 {
    let sum = checksum::crc_append(checksum::crc(&number.to_le_bytes()), &tag.to_le_bytes());
    u64::from(sum) & ((1 << CHECK_BITS) - 1)
}

fn newer(what: String) -> Error {
    Error::new(ErrorKind::NewerFormat, format!("the persistent memory has {what}"))
        .with_hint("open the database with the version that wrote it, or a later one")
}

#[cfg(test)]
mod tests;
