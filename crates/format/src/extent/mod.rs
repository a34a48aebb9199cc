//! Extents: blocks, their filters, an index block and a footer in up to 2 MiB of space.

mod builder;
mod footer;
mod handle;
mod index;
mod meta;

pub use builder::{ExtentBuilder, ExtentForm, FinishedExtent};
pub use footer::{Footer, Properties};
pub use handle::BlockHandle;
pub use index::{Found, Index, IndexCursor};
pub use meta::{ExtentMeta, Section};

/// Space is allocated in units of this many bytes.
pub const UNIT_BYTES: usize = 64 << 10;
