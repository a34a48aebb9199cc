//! The header of a data file: its first unit. Extents and values follow it in units of 64 KiB.
//!
//! ```text
//! 0 magic "TRNDATA\0" 8 | format version 4 | uuid 16 | file number 4 | bytes of a unit 4 | CRC-32C 4 | zeros
//! ```

use terrane_base::{Error, ErrorKind, Result};

use crate::checksum::crc;
use crate::codec::Reader;
use crate::extent::UNIT_BYTES;
use crate::superblock::FORMAT_VERSION;

/// Bytes of the header that are written and checked; the rest of the unit stays empty.
pub const DATA_HEADER: usize = 4096;

const MAGIC: &[u8; 8] = b"TRNDATA\0";
const FIELDS: usize = 36;

/// What a data file says about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataFileHeader {
    /// Identity of the database.
    pub uuid: [u8; 16],
    /// The file's number.
    pub number: u32,
}

impl DataFileHeader {
    /// The first page of the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(DATA_HEADER);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&self.uuid);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&(UNIT_BYTES as u32).to_le_bytes());
        let sum = crc(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out.resize(DATA_HEADER, 0);
        out
    }

    /// Decodes the first page of a file.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] for damage, [`ErrorKind::NewerFormat`] for another version or size of units.
    pub fn decode(page: &[u8]) -> Result<Self> {
        let mut r = Reader::new(page);
        let (magic, version) = (r.bytes(8)?, r.u32()?);
        let mut uuid = [0; 16];
        uuid.copy_from_slice(r.bytes(16)?);
        let (number, unit) = (r.u32()?, r.u32()?);
        if magic != MAGIC || r.u32()? != crc(&page[..FIELDS]) {
            return Err(Error::corruption("the data file's header does not match its checksum"));
        }
        if version != FORMAT_VERSION || unit as usize != UNIT_BYTES {
            return Err(Error::new(
                ErrorKind::NewerFormat,
                format!("the data file has format version {version} and units of {unit} bytes"),
            ));
        }
        Ok(DataFileHeader { uuid, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_round_trips_and_is_pinned() {
        let h = DataFileHeader { uuid: *b"0123456789abcdef", number: 0x0102_0304 };
        let page = h.encode();
        assert_eq!(DataFileHeader::decode(&page).unwrap(), h);
        assert_eq!(&page[..12], b"TRNDATA\0\x01\0\0\0");
        assert_eq!(&page[12..28], b"0123456789abcdef");
        assert_eq!(page[28..36], [4, 3, 2, 1, 0, 0, 1, 0]);
        assert!(page[40..].iter().all(|b| *b == 0));
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_corruption() {
        let page = DataFileHeader { uuid: [7; 16], number: 1 }.encode();
        for bit in 0..(FIELDS + 4) * 8 {
            let mut b = page.clone();
            b[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(DataFileHeader::decode(&b).unwrap_err().kind(), ErrorKind::Corruption, "bit {bit}");
        }
        for len in 0..FIELDS + 4 {
            assert_eq!(DataFileHeader::decode(&page[..len]).unwrap_err().kind(), ErrorKind::Corruption);
        }
    }
}
