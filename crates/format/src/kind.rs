//! What a record is. One byte in every log operation and every stored record; kinds that are reserved for later
//! versions have their numbers already, so that an old program recognises a newer database instead of misreading it.

use terrane_base::{Error, ErrorKind, Result};

/// The kind of a record.
///
/// Kinds marked *reserved* are not written by this version; meeting one is [`ErrorKind::NewerFormat`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The key has this value.
    Put = 1,
    /// The key has no value.
    Delete = 2,
    /// Reserved: deletes exactly one earlier put.
    SingleDelete = 3,
    /// All keys from the record's key up to (excluding) the key in its value have no value.
    RangeDelete = 4,
    /// Reserved: an operand for a merge operator.
    Merge = 5,
    /// The value is stored in runs of its own; the record's value is an encoded [`crate::value_ref::ValueRef`].
    ValueRef = 6,
    /// Reserved: a put with an expiry time.
    ExpiringPut = 7,
    /// Reserved: a prepared transaction.
    Prepare = 8,
    /// Reserved: commit of a prepared transaction.
    Commit = 9,
    /// Reserved: rollback of a prepared transaction.
    Rollback = 10,
    /// Reserved: attaches sorted runs written outside the log.
    Attach = 11,
}

impl Kind {
    /// Decodes a kind that this version reads and writes.
    ///
    /// # Errors
    /// [`ErrorKind::NewerFormat`] for reserved and unknown kinds.
    #[inline]
    pub fn from_u8(byte: u8) -> Result<Kind> {
        match byte {
            1 => Ok(Kind::Put),
            2 => Ok(Kind::Delete),
            4 => Ok(Kind::RangeDelete),
            6 => Ok(Kind::ValueRef),
            other => Err(unknown(other)),
        }
    }

    /// Whether the record says that there is no value.
    #[inline]
    pub fn is_delete(self) -> bool {
        matches!(self, Kind::Delete | Kind::SingleDelete | Kind::RangeDelete)
    }
}

#[cold]
fn unknown(byte: u8) -> Error {
    Error::new(ErrorKind::NewerFormat, format!("record kind {byte} is not known to this version"))
        .with_hint("open the database with the version that wrote it, or a later one")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_kinds_round_trip_and_all_others_are_newer() {
        for b in 0..=255u8 {
            match Kind::from_u8(b) {
                Ok(k) => assert_eq!(k as u8, b),
                Err(e) => assert_eq!(e.kind(), ErrorKind::NewerFormat),
            }
        }
        assert!(Kind::from_u8(Kind::Put as u8).is_ok());
        assert!(Kind::from_u8(Kind::Attach as u8).is_err());
    }
}
