//! The two hash functions that the format pins: CRC-32C against damage, XXH3-64 for filters. Golden values below keep a
//! crate update from changing the format.

/// CRC-32C (Castagnoli) of `bytes`.
#[inline]
pub fn crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Continues `crc` over more bytes: `crc_append(crc(a), b) == crc(a ++ b)`.
#[inline]
pub fn crc_append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// CRC of `bytes` as if they stood behind the eight bytes of `salt`: equal bytes written under another salt do not
/// verify.
#[inline]
pub fn salted_crc(salt: u64, bytes: &[u8]) -> u32 {
    crc_append(crc(&salt.to_le_bytes()), bytes)
}

/// XXH3-64 of a key, seed 0: the hash under which filters know it.
#[inline]
pub fn key_hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_values() {
        assert_eq!(crc(b"123456789"), 0xe306_9283);
        assert_eq!(crc_append(crc(b"1234"), b"56789"), crc(b"123456789"));
        assert_ne!(salted_crc(1, b"x"), salted_crc(2, b"x"));
        assert_eq!(key_hash(b""), 0x2d06_8005_38d3_94c2);
    }
}
