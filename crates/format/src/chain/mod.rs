//! Chain logs: what a commit leaves in persistent memory, where there is no log beside it.
//!
//! A commit that touches n subtables is n *items*, each in the zones of one memtable. An item says how many there are and at which
//! position of the order (LSN) the commit stands. It is committed once the word of each of the n memtables ([`Gidx`]) points at it; a
//! crash may come when only some do, but the words of a commit are durable before the first of the next one is stored, so only the last
//! position can be incomplete, and each word says where it pointed before.
//!
//! ```text
//! memtable  (an object of persistent memory)
//!     0  description    32   which subtable's it is ([`ChainMemtable`])
//!    64  gidx            8   on a line of its own; 0 at first
//!
//! gidx      high half: the position that was current before; low half: that of the last committed item; 0 is none
//! position  bits 20 ..= 31 the slot: which of the memtable's zones; bits 0 ..= 19 where in it, in units of 8 bytes
//!
//! zone      description 16, from where on it is zeros up to 64; items from 64 on, one behind the other
//!     0  memtable        4   its number
//!     4  slot            4
//!     8  before          4   where the items of the zone before end, in units of 8 bytes; 0 in the first zone
//!    12  CRC-32C of all before  4
//!
//! item
//!     0  LSN             8
//!     8  length          4   of the records behind it, a multiple of 8
//!    12  items and kind  4   bits 0 ..= 23: of how many items the commit is one; above: what it holds, 1 is records
//!    16  units           4   how much of the order the commit takes
//!    20  CRC-32C         4   of all before, salted with whose it is and where it lies
//!    24  records
//!
//! record    zeros behind it up to a multiple of 8
//!     0  sequence and kind  8   the sequence times 256, and the kind
//!     8  value length    2   65535: both lengths follow
//!    10  key length      1   255: both lengths follow
//!    11  value length 4, key length 4, where they follow
//!        key, value
//!        CRC-32C of all before  4
//! ```
//!
//! Zones are used again, so behind the last item of one lies what was there before. It is never looked at: a word or the next zone says
//! where items end.
//!
//! Source: the commit protocol is that of "Revisiting the Design of LSM-tree Based OLTP Storage Engine with Persistent Memory" (VLDB
//! 2021), "ROR".

mod item;
mod record;
#[cfg(test)]
mod tests;

use terrane_base::{Error, MAX_SEQ, Result};

pub use item::{ITEM_HEADER, ItemHeader, MAX_ITEMS, ZONE_HEADER, ZoneHeader};
pub use record::{ChainRecord, key_at, read_record, record_len, write_record};

use crate::checksum;
use crate::codec::Reader;

/// Where a memtable's object has its word.
pub const GIDX_AT: usize = 64;
/// Bytes of a [`ChainMemtable`].
pub const MEMTABLE_BYTES: usize = 32;
/// The most zones of a memtable.
pub const MAX_SLOTS: u32 = 1 << SLOT_BITS;
/// The most bytes of a zone: what a position can tell apart.
pub const MAX_ZONE_BYTES: u64 = UNIT << OFFSET_BITS;

/// Bytes that a position counts by.
const UNIT: u64 = 8;
const OFFSET_BITS: u32 = 20;
const SLOT_BITS: u32 = 12;

/// Where an item begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(u32);

impl Position {
    /// `offset` bytes from the beginning of the zone in `slot`; `None` where no item can begin.
    pub fn new(slot: u32, offset: u64) -> Option<Position> {
        let within = (ZONE_HEADER as u64..MAX_ZONE_BYTES).contains(&offset) && offset.is_multiple_of(UNIT);
        (slot < MAX_SLOTS && within).then_some(Position(slot << OFFSET_BITS | (offset / UNIT) as u32))
    }

    fn from_bits(bits: u32) -> Option<Position> {
        Position::new(bits >> OFFSET_BITS, u64::from(bits & ((1 << OFFSET_BITS) - 1)) * UNIT)
    }

    /// Which of the memtable's zones.
    pub fn slot(self) -> u32 {
        self.0 >> OFFSET_BITS
    }

    /// Where in the zone, in bytes.
    pub fn offset(self) -> u64 {
        u64::from(self.0 & ((1 << OFFSET_BITS) - 1)) * UNIT
    }

    /// What the checksum of an item here is salted with, in the memtable with this salt.
    fn salted(self, salt: u64) -> u64 {
        salt ^ u64::from(self.0)
    }
}

/// A memtable's word: its last committed item, and the one before that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gidx {
    /// What was current before.
    pub previous: Option<Position>,
    /// The last committed item; `None` if there is none.
    pub current: Option<Position>,
}

impl Gidx {
    /// The word.
    pub fn encode(self) -> u64 {
        let bits = |p: Option<Position>| u64::from(p.map_or(0, |p| p.0));
        bits(self.previous) << 32 | bits(self.current)
    }

    /// What a word says.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::Corruption`] if no item can lie where it points.
    pub fn decode(word: u64) -> Result<Gidx> {
        let position = |bits: u32| match Position::from_bits(bits) {
            None if bits != 0 => {
                Err(Error::corruption(format!("the word of a memtable points nowhere: {word:#x}")))
            }
            position => Ok(position),
        };
        let (previous, current) = (position((word >> 32) as u32)?, position(word as u32)?);
        if previous.is_some() && previous >= current {
            return Err(Error::corruption(format!("the word of a memtable goes backwards: {word:#x}")));
        }
        Ok(Gidx { previous, current })
    }

    /// The word that follows `word` with one more item committed; `None` if `to` does not lie behind the last one. `word` must be one that
    /// [`Gidx::encode`] gives, which is not looked at.
    #[inline]
    pub fn advance(word: u64, to: Position) -> Option<u64> {
        let current = word as u32;
        (current < to.0).then_some(u64::from(current) << 32 | u64::from(to.0))
    }

    /// With the last item taken back, which can be done once.
    #[must_use]
    pub fn undone(self) -> Gidx {
        Gidx { previous: None, current: self.previous }
    }
}

/// No memtable has a higher generation: there is one more each time one is frozen.
pub const MAX_GENERATION: u64 = 1 << 62;

/// Whose a memtable is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainMemtable {
    /// Number of the subtable.
    pub subtable: u64,
    /// Its generation: those of a subtable follow each other.
    pub generation: u64,
    /// No commit before this LSN is in it.
    pub from_lsn: u64,
}

impl ChainMemtable {
    /// The beginning of the object.
    pub fn encode(&self) -> [u8; MEMTABLE_BYTES] {
        let mut out = [0; MEMTABLE_BYTES];
        for (at, field) in [self.subtable, self.generation, self.from_lsn].into_iter().enumerate() {
            out[at * 8..][..8].copy_from_slice(&field.to_le_bytes());
        }
        let crc = checksum::crc(&out[..24]);
        out[24..28].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// What belongs to this memtable, which is object `number`, and to no other use of that object is salted with it.
    pub fn salt(&self, number: u32) -> u64 {
        checksum::key_hash(&[&self.encode()[..24], &number.to_le_bytes()].concat())
    }

    /// What the beginning of an object says.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::Corruption`] for damage.
    pub fn decode(bytes: &[u8; MEMTABLE_BYTES]) -> Result<Self> {
        let mut r = Reader::new(bytes);
        let [subtable, generation, from_lsn] = [r.u64()?, r.u64()?, r.u64()?];
        if (r.u32()?, r.u32()?) != (checksum::crc(&bytes[..24]), 0) {
            return Err(Error::corruption("the description of a memtable does not match its checksum"));
        }
        if generation > MAX_GENERATION || from_lsn > MAX_SEQ {
            return Err(Error::corruption("the description of a memtable says what cannot be"));
        }
        Ok(ChainMemtable { subtable, generation, from_lsn })
    }
}
