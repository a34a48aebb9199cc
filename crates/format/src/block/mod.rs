//! Blocks: sorted records, prefix-coded within leaves, with a search directory.

mod builder;
mod compression;
mod cursor;
mod lookup;
mod view;

pub use builder::{BlockBuilder, FinishedBlock};
pub use compression::{Compression, Compressor, decompress};
pub use cursor::BlockCursor;
pub use lookup::get;
pub use view::{Block, BlockShape};

/// The search structure of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DirectoryKind {
    /// The offset of each leaf, searched by the leaves' first keys. (2 is reserved for a two-layer directory.)
    RestartArray = 1,
}

/// How blocks of a subtable are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockForm {
    /// Size at which a block closes, directory and trailer included: 4 to 64 KiB.
    pub target_bytes: usize,
    /// Records of a leaf, 1 to 128.
    pub leaf_records: usize,
    /// The directory.
    pub directory: DirectoryKind,
}

impl Default for BlockForm {
    fn default() -> Self {
        BlockForm { target_bytes: 16 << 10, leaf_records: 16, directory: DirectoryKind::RestartArray }
    }
}
