//! Split-block Bloom filters: one per data block, so that a lookup of an absent key rarely reads the block.
//!
//! A filter is a number of 32-byte buckets. The upper half of a key's hash ([`crate::checksum::key_hash`]) picks the
//! bucket; the lower half, multiplied by eight odd constants, sets one bit in each of the bucket's eight little-endian
//! words. A probe touches one cache line and its eight tests are independent of each other. About one absent key in a
//! hundred passes at ten bits per key.
//!
//! The constants and the hash are part of the format and pinned by a golden file.

/// Bytes of a bucket.
pub const BUCKET: usize = 32;

/// The first 32 bits of the fractional parts of the square roots of the first eight primes, made odd.
const MULTIPLIERS: [u32; 8] =
    [0x6a09_e667, 0xbb67_ae85, 0x3c6e_f373, 0xa54f_f53b, 0x510e_527f, 0x9b05_688d, 0x1f83_d9ab, 0x5be0_cd19];

/// The filter of these key hashes: a multiple of 32 bytes, empty if there is no hash or `bits_per_key` is 0.
pub fn build(hashes: &[u64], bits_per_key: usize) -> Vec<u8> {
    let buckets = (hashes.len() * bits_per_key).div_ceil(8 * BUCKET);
    let mut filter = vec![0; buckets * BUCKET];
    if buckets == 0 {
        return filter;
    }
    for &hash in hashes {
        let bucket = &mut filter.as_chunks_mut::<BUCKET>().0[bucket_of(hash, buckets)];
        for (word, bit) in bucket.as_chunks_mut::<4>().0.iter_mut().zip(bits_of(hash)) {
            *word = (u32::from_le_bytes(*word) | bit).to_le_bytes();
        }
    }
    filter
}

/// Whether a key of this hash may be among those that the filter was built from. An empty filter says yes.
#[inline]
pub fn may_contain(filter: &[u8], hash: u64) -> bool {
    let mut missing = 0;
    for (word, bit) in probed(filter, hash).as_chunks::<4>().0.iter().zip(bits_of(hash)) {
        missing |= bit & !u32::from_le_bytes(*word);
    }
    missing == 0
}

/// The bytes that [`may_contain`] looks at: for whoever has something else to do until they are near.
#[inline]
pub fn probed(filter: &[u8], hash: u64) -> &[u8] {
    let buckets = filter.as_chunks::<BUCKET>().0;
    buckets.get(bucket_of(hash, buckets.len())).map_or(&[], |bucket| bucket)
}

#[inline]
fn bucket_of(hash: u64, buckets: usize) -> usize {
    (((hash >> 32) * buckets as u64) >> 32) as usize
}

#[inline]
fn bits_of(hash: u64) -> [u32; 8] {
    MULTIPLIERS.map(|m| 1 << ((hash as u32).wrapping_mul(m) >> 27))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::key_hash;

    fn hashes(range: std::ops::Range<u32>) -> Vec<u64> {
        range.map(|i| key_hash(format!("key{i:08}").as_bytes())).collect()
    }

    #[test]
    fn golden_filter() {
        assert_eq!(build(&hashes(0..30), 10), include_bytes!("../tests/golden/filter.bin"));
    }

    #[test]
    fn every_member_passes() {
        for n in [1, 2, 25, 26, 160, 1000] {
            for bits in [1, 4, 10, 20] {
                let members = hashes(0..n);
                let filter = build(&members, bits);
                assert_eq!(filter.len() % BUCKET, 0);
                assert!(members.iter().all(|h| may_contain(&filter, *h)), "{n} keys, {bits} bits");
            }
        }
    }

    #[test]
    fn few_strangers_pass_a_block_sized_filter() {
        let filter = build(&hashes(0..160), 10);
        let strangers = hashes(1_000_000..1_100_000);
        let passed = strangers.iter().filter(|h| may_contain(&filter, **h)).count();
        assert!(passed < strangers.len() / 50, "{passed} of {}", strangers.len());
    }

    #[test]
    fn no_filter_lets_everything_pass_and_odd_lengths_never_panic() {
        assert_eq!(build(&[], 10), []);
        assert_eq!(build(&hashes(0..9), 0), []);
        for len in 0..100 {
            assert_eq!(may_contain(&vec![0; len], 7), len < BUCKET);
            assert!(may_contain(&vec![0xff; len], u64::MAX));
        }
    }
}
