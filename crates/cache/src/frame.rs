//! Frames.

use std::ops::Deref;

/// What a frame holds, which decides how long it stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A data block.
    Data,
    /// An index block.
    Index,
    /// A filter section.
    Filter,
}

/// Keeps one frame's bytes alive. Cloning is one atomic increment.
#[derive(Clone)]
pub struct Pin {}

impl Deref for Pin {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        todo!()
    }
}
