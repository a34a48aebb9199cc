//! The two hash functions that the format pins: CRC-32C against damage, XXH3-64 for filters. Golden values below keep a
//! crate update from changing the format.

use crc_fast::{CrcAlgorithm, Digest, crc32_iscsi};

/// CRC-32C (Castagnoli), which RFC 3720 specifies for iSCSI.
const CRC_32C: CrcAlgorithm = CrcAlgorithm::Crc32Iscsi;

/// CRC-32C of `bytes`.
#[inline]
pub fn crc(bytes: &[u8]) -> u32 {
    crc32_iscsi(bytes)
}

/// Continues `crc` over more bytes: `crc_append(crc(a), b) == crc(a ++ b)`.
#[inline]
pub fn crc_append(crc: u32, bytes: &[u8]) -> u32 {
    // The state between two parts is the complement of the sum so far.
    let mut digest = Digest::new_with_init_state(CRC_32C, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

/// CRC of `bytes` as if they stood behind the eight bytes of `salt`: equal bytes written under another salt do not
/// verify.
#[inline]
pub fn salted_crc(salt: u64, bytes: &[u8]) -> u32 {
    const SALT: usize = size_of::<u64>();
    // Each call takes some ten nanoseconds, however few bytes there are: headers are put together first.
    let mut both = [0; 64];
    both[..SALT].copy_from_slice(&salt.to_le_bytes());
    match both.get_mut(SALT..SALT + bytes.len()) {
        Some(behind) => {
            behind.copy_from_slice(bytes);
            crc(&both[..SALT + bytes.len()])
        }
        None => crc_append(crc(&both[..SALT]), bytes),
    }
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
        // From RFC 3720, appendix B.4.
        assert_eq!(crc(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc(&std::array::from_fn::<u8, 32, _>(|i| i as u8)), 0x46dd_794e);
    }

    /// Bit by bit, as the polynomial says.
    fn slow(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0, |sum, &byte| {
            (0..8).fold(sum ^ u32::from(byte), |s, _| (s >> 1) ^ if s & 1 == 1 { 0x82f6_3b78 } else { 0 })
        })
    }

    #[test]
    fn a_salt_counts_as_eight_bytes_in_front() {
        let bytes: [u8; 80] = std::array::from_fn(|i| i as u8 * 3);
        for len in 0..bytes.len() {
            let whole = [&7u64.to_le_bytes(), &bytes[..len]].concat();
            assert_eq!(salted_crc(7, &bytes[..len]), slow(&whole), "{len} bytes");
        }
    }

    #[test]
    fn every_length_and_every_cut_gives_the_polynomials_sum() {
        let bytes: Vec<u8> = (0..5007u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        // Processors have several ways to compute it, which begin at other lengths.
        for len in (0..600).chain([1023, 1024, 1025, 2049, 4095, 4096, 4097, 5000]) {
            // Neither begin nor end stand at a word's start as a rule.
            let part = &bytes[len % 7..][..len];
            let sum = slow(part);
            assert_eq!(crc(part), sum, "{len} bytes");
            for cut in [0, 1, len / 3, len / 2, len.saturating_sub(1), len].map(|c| c.min(len)) {
                let (a, b) = part.split_at(cut);
                assert_eq!(crc_append(crc(a), b), sum, "{len} bytes, cut at {cut}");
            }
        }
    }
}
