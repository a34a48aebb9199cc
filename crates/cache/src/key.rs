//! What a frame is found by.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

/// Names the bytes of a frame: an extent by birth id, and where in it the bytes begin. An extent is immutable and its id
/// is never reused, so a frame never goes stale.
///
/// The part of the cache is no piece of the name, only where to look: keys that differ in it alone are equal.
#[derive(Clone, Copy, Debug)]
pub struct FrameKey {
    /// The extent's birth id.
    pub extent: u64,
    /// Byte offset of the block (or index block, or filter section) in the extent.
    pub offset: u32,
    /// The part of the cache in which it is looked for, and which it enters: see [`Cache::open_part`](crate::Cache::open_part).
    /// A wrong one costs a miss.
    pub part: u16,
}

impl FrameKey {
    /// In the common part.
    pub const fn new(extent: u64, offset: u32) -> FrameKey {
        FrameKey { extent, offset, part: 0 }
    }

    /// The same frame, in that part.
    #[must_use]
    pub const fn part(self, part: u16) -> FrameKey {
        FrameKey { part, ..self }
    }

    /// Places the key: bits 0.. choose the bucket, 32.. the ghost, 48..56 the shard, 56..64 are the tag. Lives in memory
    /// only; nothing on disk depends on it.
    pub(crate) fn hash(self) -> u64 {
        mix(mix(self.extent) ^ u64::from(self.offset).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

impl PartialEq for FrameKey {
    #[inline]
    fn eq(&self, other: &FrameKey) -> bool {
        self.extent == other.extent && self.offset == other.offset
    }
}

impl Eq for FrameKey {}

impl Hash for FrameKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.extent, self.offset).hash(state);
    }
}

impl PartialOrd for FrameKey {
    fn partial_cmp(&self, other: &FrameKey) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for FrameKey {
    fn cmp(&self, other: &FrameKey) -> Ordering {
        (self.extent, self.offset).cmp(&(other.extent, other.offset))
    }
}

/// Bijective finaliser: two multiplications, every input bit reaches every output bit.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ (x >> 32)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_neighbouring_extents_spread_over_all_bits() {
        let mut tags = [0u32; 256];
        let mut low = [0u32; 256];
        for extent in 1..=64u64 {
            for block in 0..128u32 {
                let h = FrameKey::new(extent, block * 16384).hash();
                tags[(h >> 56) as usize] += 1;
                low[(h & 255) as usize] += 1;
            }
        }
        // 8192 keys over 256 places: 32 each, and three times that only if the hash is lopsided.
        assert!(tags.iter().chain(&low).all(|&n| n < 96), "{tags:?} {low:?}");
    }
}
