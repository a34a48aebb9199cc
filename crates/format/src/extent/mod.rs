//! Extents: blocks, their filters, an index block and a footer in up to 2 MiB of space.
//!
//! ```text
//! extent = stored block* | filter section | index block | footer | zeros up to a multiple of 4096
//! filter section = the blocks' filters, one behind the other
//! index block    = a block (see `crate::block`) of one record per stored block: its first key and the sequence of its
//!                  first record, so that the index has the internal order too; the value is a `BlockHandle`
//! handle = offset varint | stored length varint | raw length varint | crc u32 | compression u8
//!        | flags u8 (bit 0: refers to large values) | rows varint | deletes varint | smallest sequence varint
//!        | largest less smallest varint | filter offset varint | filter length varint
//! footer = "TXF1" | sections u16 | (tag u16 | offset u32 | length u32 | crc u32)* | the sections' bytes
//! ```
//!
//! Every checksum stands elsewhere than what it covers: the blocks' in the index, those of the index, the filter section
//! and the footer in the manifest ([`ExtentMeta`]). An extent whose space was recycled can so never pass for another.
//! The footer repeats the extent's birth id and totals ([`Properties`]) for `check` to compare.
//!
//! A footer section whose tag has the high bit set must be understood by who reads it; others may be skipped.

mod builder;
mod footer;
mod handle;
mod image;
mod index;
mod meta;
#[cfg(test)]
mod tests;

pub use builder::{ExtentBuilder, ExtentForm, FinishedExtent};
pub use footer::{Footer, Properties};
pub use handle::{BlockHandle, BlockSpan};
pub use image::Image;
pub use index::{Found, Index, IndexApproach, IndexCursor, IndexPlace};
pub use meta::{ExtentMeta, STAGED_SEQ, Section};

/// Space is allocated in units of this many bytes.
pub const UNIT_BYTES: usize = 64 << 10;
/// Extents are padded to a multiple of this, the unit of direct I/O.
pub const PAD_BYTES: usize = 4096;
