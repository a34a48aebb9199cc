//! What a frame is found by.

/// Names the bytes of a frame: an extent by birth id, and where in it the bytes begin. Neither is ever reused for other
/// bytes, so a frame never goes stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FrameKey {
    /// The extent's birth id.
    pub extent: u64,
    /// Byte offset of the block (or index block, or filter section) in the extent.
    pub offset: u32,
}
