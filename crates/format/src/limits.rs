//! Limits of the format. Each is checked before anything is reserved or written, and named in the error.

use terrane_base::{Error, Result};

/// Longest key in bytes.
pub const MAX_KEY: usize = 64 << 10;
/// Longest bound of a key range in bytes: the bound right behind a longest key is one longer than it.
pub const MAX_BOUND: usize = MAX_KEY + 1;
/// Longest value in bytes.
pub const MAX_VALUE: usize = 1 << 30;
/// Longest subtable name in bytes.
pub const MAX_NAME: usize = 255;
/// Longest name of a prepared transaction in bytes.
pub const MAX_XID: usize = 255;
/// Most subtables alive at one time.
pub const MAX_SUBTABLES: usize = 1 << 20;

/// Checks a key's length.
///
/// # Errors
/// [`terrane_base::ErrorKind::LimitExceeded`].
#[inline]
pub fn check_key(key: &[u8]) -> Result<()> {
    if key.len() > MAX_KEY {
        return Err(Error::limit("key length in bytes", key.len() as u64, MAX_KEY as u64));
    }
    Ok(())
}

/// Checks a bound's length.
///
/// # Errors
/// [`terrane_base::ErrorKind::LimitExceeded`].
pub fn check_bound(bound: &[u8]) -> Result<()> {
    if bound.len() > MAX_BOUND {
        return Err(Error::limit("bound in bytes", bound.len() as u64, MAX_BOUND as u64));
    }
    Ok(())
}

/// Checks a value's length.
///
/// # Errors
/// [`terrane_base::ErrorKind::LimitExceeded`].
#[inline]
pub fn check_value(value: &[u8]) -> Result<()> {
    if value.len() > MAX_VALUE {
        return Err(Error::limit("value length in bytes", value.len() as u64, MAX_VALUE as u64));
    }
    Ok(())
}
