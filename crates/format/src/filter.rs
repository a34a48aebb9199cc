//! Split-block Bloom filters.

/// The filter of these key hashes: a multiple of 32 bytes, empty if there is no hash or `bits_per_key` is 0.
pub fn build(_hashes: &[u64], _bits_per_key: usize) -> Vec<u8> {
    todo!()
}

/// Whether a key of this hash may be among those that the filter was built from. An empty filter says yes.
pub fn may_contain(_filter: &[u8], _hash: u64) -> bool {
    todo!()
}
