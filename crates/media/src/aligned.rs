//! (being written)
/// Placeholder.
#[derive(Debug)]
pub struct AlignedBuf;
