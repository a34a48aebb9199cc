//! The superblock: the small file `SUPER` that says what this directory is, which features it needs, and which manifest
//! is current. It is replaced as a whole (written under another name, synced, renamed), so it is never torn.
//!
//! ```text
//!  0  magic "TERRANE\0"      8
//!  8  length of all          4   crc included, at most 4096
//! 12  format version         4
//! 16  compatible features    8   unknown ones are kept and ignored
//! 24  read-only features     8   unknown ones forbid writing
//! 32  incompatible features  8   unknown ones forbid opening
//! 40  database uuid         16
//! 56  manifest number        8
//! 64  created, Unix seconds  8
//! 72  comparator            varint length + bytes
//!  .  later fields, kept as they are
//!  -4 CRC-32C of all before  4
//! ```
//! Magic, length and checksum keep their places in every future version, so that a newer file is told from a damaged
//! one: the checksum is looked at first, then the version.

use terrane_base::{Error, ErrorKind, Result};

use crate::checksum;
use crate::codec::{Reader, put_bytes};

/// The format version that this code writes.
pub const FORMAT_VERSION: u32 = 1;
/// The name of the only key order: bytewise.
pub const COMPARATOR: &str = "bytewise-1";
/// Longest superblock in bytes.
pub const MAX_SUPERBLOCK: usize = 4096;

const MAGIC: &[u8; 8] = b"TERRANE\0";
const PREFIX: usize = 12;

/// Feature bits of a database. A bit that this version does not know means what its word says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Unknown ones may be ignored.
    pub compatible: u64,
    /// Unknown ones allow reading only.
    pub read_only: u64,
    /// Unknown ones forbid opening.
    pub incompatible: u64,
}

/// The features that this version knows: none so far.
pub const KNOWN_FEATURES: Features = Features { compatible: 0, read_only: 0, incompatible: 0 };

/// What `SUPER` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// What the database needs from its reader.
    pub features: Features,
    /// Identity of the database.
    pub uuid: [u8; 16],
    /// Number of the current manifest file.
    pub manifest: u64,
    /// When the database was created, in seconds since the Unix epoch.
    pub created: u64,
    /// Fields that a compatible later version added; kept when the superblock is rewritten.
    pub later: Vec<u8>,
}

impl Superblock {
    /// The bytes of the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.extend_from_slice(&self.features.compatible.to_le_bytes());
        out.extend_from_slice(&self.features.read_only.to_le_bytes());
        out.extend_from_slice(&self.features.incompatible.to_le_bytes());
        out.extend_from_slice(&self.uuid);
        out.extend_from_slice(&self.manifest.to_le_bytes());
        out.extend_from_slice(&self.created.to_le_bytes());
        put_bytes(&mut out, COMPARATOR.as_bytes());
        out.extend_from_slice(&self.later);
        let len = out.len() as u32 + 4;
        out[8..PREFIX].copy_from_slice(&len.to_le_bytes());
        let crc = checksum::crc(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes the file and checks that this version can read the database.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] for damage; [`ErrorKind::NewerFormat`] for another version, comparator or an unknown
    /// incompatible feature.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let fail = |what: &str| Err(Error::corruption(format!("the superblock {what}")));
        if bytes.len() > MAX_SUPERBLOCK || bytes.len() < PREFIX + 4 || !bytes.starts_with(MAGIC) {
            return fail("is not one of Terrane's");
        }
        let (body, crc) = bytes.split_at(bytes.len() - 4);
        if Reader::new(&bytes[8..]).u32()? as usize != bytes.len() {
            return fail("has the wrong length");
        }
        if Reader::new(crc).u32()? != checksum::crc(body) {
            return fail("does not match its checksum");
        }
        let mut r = Reader::new(&body[PREFIX..]);
        let version = r.u32()?;
        if version != FORMAT_VERSION {
            return Err(newer(format!(
                "the database has format version {version}, this program knows version {FORMAT_VERSION}"
            )));
        }
        let features = Features { compatible: r.u64()?, read_only: r.u64()?, incompatible: r.u64()? };
        let unknown = features.incompatible & !KNOWN_FEATURES.incompatible;
        if unknown != 0 {
            return Err(newer(format!(
                "the database uses features {unknown:#x} that this version does not know"
            )));
        }
        let mut uuid = [0; 16];
        uuid.copy_from_slice(r.bytes(16)?);
        let manifest = r.u64()?;
        let created = r.u64()?;
        let comparator = r.prefixed(MAX_SUPERBLOCK, "comparator name")?;
        if comparator != COMPARATOR.as_bytes() {
            let name = String::from_utf8_lossy(comparator);
            return Err(newer(format!("keys are ordered by {name:?}, which this version does not know")));
        }
        let later = r.bytes(r.remaining())?.to_vec();
        Ok(Superblock { features, uuid, manifest, created, later })
    }

    /// Checks that this version may write to the database.
    ///
    /// # Errors
    /// [`ErrorKind::NewerFormat`] for an unknown read-only feature.
    pub fn check_writable(&self) -> Result<()> {
        let unknown = self.features.read_only & !KNOWN_FEATURES.read_only;
        if unknown == 0 {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::NewerFormat,
            format!("the database uses features {unknown:#x} that allow this version to read it only"),
        )
        .with_hint(
            "this version opens for writing only: open it with the version that wrote it, or a later one",
        ))
    }
}

fn newer(message: String) -> Error {
    Error::new(ErrorKind::NewerFormat, message)
        .with_hint("open the database with the version that wrote it, or a later one")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            features: Features { compatible: 1 << 63, ..Features::default() },
            uuid: *b"0123456789abcdef",
            manifest: 7,
            created: 1_700_000_000,
            later: b"added later".to_vec(),
        }
    }

    #[test]
    fn unknown_compatible_features_and_fields_survive_a_rewrite() {
        let s = sample();
        assert_eq!(Superblock::decode(&s.encode()).unwrap(), s);
        assert!(s.check_writable().is_ok());
    }

    #[test]
    fn the_first_version_is_pinned() {
        let s = Superblock { features: Features::default(), later: Vec::new(), ..sample() };
        let golden: Vec<u8> = [
            b"TERRANE\0".as_slice(),
            &[87, 0, 0, 0],
            &[1, 0, 0, 0],
            &[0; 24],
            b"0123456789abcdef",
            &[7, 0, 0, 0, 0, 0, 0, 0],
            &[0x00, 0xf1, 0x53, 0x65, 0, 0, 0, 0],
            &[10],
            b"bytewise-1",
        ]
        .concat();
        let bytes = s.encode();
        assert_eq!(bytes[..bytes.len() - 4], golden);
        assert_eq!(bytes[bytes.len() - 4..], checksum::crc(&golden).to_le_bytes());
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_corruption() {
        let bytes = sample().encode();
        for bit in 0..bytes.len() * 8 {
            let mut b = bytes.clone();
            b[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Superblock::decode(&b).unwrap_err().kind(), ErrorKind::Corruption, "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert_eq!(Superblock::decode(&bytes[..len]).unwrap_err().kind(), ErrorKind::Corruption);
        }
    }

    fn resealed(mut body: Vec<u8>) -> Vec<u8> {
        body.truncate(body.len() - 4);
        let crc = checksum::crc(&body);
        body.extend_from_slice(&crc.to_le_bytes());
        body
    }

    #[test]
    fn newer_databases_are_told_from_damaged_ones() {
        let mut version = sample().encode();
        version[12] = 2;
        let mut comparator = sample().encode();
        comparator[74] = b'x';
        let incompatible =
            Superblock { features: Features { incompatible: 4, ..Features::default() }, ..sample() };
        for bytes in [resealed(version), resealed(comparator), incompatible.encode()] {
            assert_eq!(Superblock::decode(&bytes).unwrap_err().kind(), ErrorKind::NewerFormat);
        }
        let read_only = Superblock { features: Features { read_only: 2, ..Features::default() }, ..sample() };
        let read = Superblock::decode(&read_only.encode()).unwrap();
        let e = read.check_writable().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NewerFormat);
        assert!(e.hint().unwrap().contains("for writing only"));
    }
}
