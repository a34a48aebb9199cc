//! The beginnings of zones and of items.

use terrane_base::{Error, ErrorKind, Lsn, MAX_SEQ, Result};

use super::{MAX_SLOTS, MAX_ZONE_BYTES, Position, UNIT};
use crate::checksum;
use crate::codec::Reader;

/// Where the items of a zone begin.
pub const ZONE_HEADER: usize = 64;
/// Bytes of an item's header.
pub const ITEM_HEADER: usize = 24;
/// The most items of a commit.
pub const MAX_ITEMS: u32 = (1 << ITEMS_BITS) - 1;

const ITEMS_BITS: u32 = 24;
/// The kind of an item that holds records.
const RECORDS: u32 = 1;

/// Whose a zone is, and where the one before ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZoneHeader {
    /// The memtable's number.
    pub memtable: u32,
    /// Which of its zones this is.
    pub slot: u32,
    /// Where the items of the zone before end, in bytes; 0 in the first one.
    pub before: u64,
}

impl ZoneHeader {
    /// The beginning of a zone.
    pub fn encode(&self) -> [u8; ZONE_HEADER] {
        let mut out = [0; ZONE_HEADER];
        let before = (self.before / UNIT) as u32;
        for (at, field) in [self.memtable, self.slot, before].into_iter().enumerate() {
            out[at * 4..][..4].copy_from_slice(&field.to_le_bytes());
        }
        let crc = checksum::crc(&out[..12]);
        out[12..16].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// What the beginning of a zone says.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] for damage.
    pub fn decode(bytes: &[u8; ZONE_HEADER]) -> Result<Self> {
        let fail = |what: &str| Err(Error::corruption(format!("the beginning of a zone {what}")));
        let mut r = Reader::new(bytes);
        let [memtable, slot, before, crc] = [r.u32()?, r.u32()?, r.u32()?, r.u32()?];
        if crc != checksum::crc(&bytes[..12]) {
            return fail("does not match its checksum");
        }
        let before = u64::from(before) * UNIT;
        let possible = match slot {
            0 => before == 0,
            _ => (ZONE_HEADER as u64..=MAX_ZONE_BYTES).contains(&before),
        };
        if slot >= MAX_SLOTS || !possible {
            return fail("says what cannot be");
        }
        Ok(ZoneHeader { memtable, slot, before })
    }
}

/// What precedes an item's records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemHeader {
    /// Where the commit stands in the order.
    pub lsn: Lsn,
    /// Bytes of the records.
    pub len: u32,
    /// Of how many items the commit is one: 1 to [`MAX_ITEMS`].
    pub items: u32,
    /// How much of the order the commit takes: the next one's LSN is at least this much further.
    pub units: u32,
}

impl ItemHeader {
    /// Bytes of the item, with this header.
    pub fn total(&self) -> usize {
        ITEM_HEADER + self.len as usize
    }

    /// Where the commits behind it begin.
    pub fn end_lsn(&self) -> Lsn {
        self.lsn + u64::from(self.units)
    }

    /// Whether there can be such an item.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if not.
    pub fn check(&self) -> Result<()> {
        let len = u64::from(self.len);
        let possible = (1..=MAX_ITEMS).contains(&self.items)
            && self.units > 0
            && self.lsn.checked_add(self.units.into()).is_some_and(|end| end <= MAX_SEQ)
            && len.is_multiple_of(UNIT)
            && len <= MAX_ZONE_BYTES;
        match possible {
            true => Ok(()),
            false => Err(Error::invalid(format!("an item of a chain log says what cannot be: {self:?}"))),
        }
    }

    /// The header of an item at `position` of the memtable with this [salt](super::ChainMemtable::salt). There must be such an item
    /// ([`ItemHeader::check`]).
    pub fn encode(&self, salt: u64, position: Position) -> [u8; ITEM_HEADER] {
        let mut out = [0; ITEM_HEADER];
        out[..8].copy_from_slice(&self.lsn.to_le_bytes());
        out[8..12].copy_from_slice(&self.len.to_le_bytes());
        out[12..16].copy_from_slice(&(self.items | RECORDS << ITEMS_BITS).to_le_bytes());
        out[16..20].copy_from_slice(&self.units.to_le_bytes());
        let crc = checksum::salted_crc(position.salted(salt), &out[..20]);
        out[20..24].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// What the header of an item at `position` of the memtable with this salt says.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] for damage and for the header of another place; [`ErrorKind::NewerFormat`] for an item that holds something
    /// else.
    pub fn decode(bytes: &[u8; ITEM_HEADER], salt: u64, position: Position) -> Result<Self> {
        let fail = |what: &str| Err(Error::corruption(format!("an item of a chain log {what}")));
        let mut r = Reader::new(bytes);
        let (lsn, len, items_and_kind, units, crc) = (r.u64()?, r.u32()?, r.u32()?, r.u32()?, r.u32()?);
        if crc != checksum::salted_crc(position.salted(salt), &bytes[..20]) {
            return fail("does not match its checksum");
        }
        let (items, kind) = (items_and_kind & MAX_ITEMS, items_and_kind >> ITEMS_BITS);
        if kind != RECORDS {
            let what = format!("a chain log has an item of kind {kind}, which this version does not know");
            return Err(Error::new(ErrorKind::NewerFormat, what)
                .with_hint("open the database with the version that wrote it, or a later one"));
        }
        let header = ItemHeader { lsn, len, items, units };
        match header.check() {
            Ok(()) => Ok(header),
            Err(_) => fail("says what cannot be"),
        }
    }
}
