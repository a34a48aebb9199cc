//! Blocks: sorted records, prefix-coded within leaves, with a search directory.
//!
//! ```text
//! block   = record* | sequence column | directory | trailer (24 bytes)
//! record  = kind u8 | shared varint | suffix length varint | value length varint | suffix | value
//! column  = one little-endian number of `width` bytes per record: its sequence less the base
//! directory (RestartArray) = offset of each leaf's first record, u16 each, or u32 where the flag says so
//! directory (TwoLayer) = the same | padding | nodes of keys, see `two_layer`
//! trailer = base sequence u64 | rows u32 | deletes u32 | records per leaf u16 | column width u8 | directory kind u8
//!         | flags u8 (bit 0: u32 offsets; bit 1: no leaf begins between versions of a key; bits 2 to 7: bytes of padding) | seal u8
//!         | length u16 of the prefix that all keys share, as far as the nodes leave it out
//! ```
//!
//! A leaf is a fixed number of records (the last leaf may have fewer); its first record stores its whole key. `shared` is
//! the *exact* length of the prefix that a key has in common with the one before it, never less: point lookup relies on
//! it to skip records without looking at their keys. Sequences stand apart from the records because a lookup rarely
//! needs one, because a fixed width needs no decoding, and because a block whose sequences are all equal (at the bottom
//! of the tree: all zero) then stores none.
//!
//! Records stand in *internal order*: key ascending bytewise, then sequence descending.
//!
//! A non-zero seal byte is reserved for encrypted blocks (nonce, tag and key id would stand in front of the trailer); that, like
//! an unknown directory or flag, is reported as a newer format.
//!
//! # Concurrency
//! Nothing here is shared. [`Block`] borrows its bytes; [`BlockCursor`] keeps offsets and its key, never a borrow.
//!
//! # Damage
//! Blocks are verified against their parent's checksum before they come here. Every access is checked all the same:
//! arbitrary bytes yield errors or wrong records, never a panic or an endless loop. [`Block::verify`] checks everything.

mod below;
mod builder;
mod compression;
mod cursor;
mod errors;
mod foresight;
mod key_buffer;
mod lookup;
#[allow(unsafe_code, reason = "vector instructions")]
mod simd;
#[cfg(test)]
mod tests;
mod two_layer;
mod verify;
mod view;

use std::cmp::Ordering;

use terrane_base::{Error, Result};

pub use below::Below;
pub use builder::{BlockBuilder, FinishedBlock};
pub use compression::{Compression, Compressor, decompress};
pub use cursor::BlockCursor;
pub use foresight::Foresight;
pub(crate) use lookup::{Floor, floor, floor_position};
pub use lookup::{LeafProbe, Probe, get};
pub use simd::Simd;
pub use two_layer::significant;
pub(crate) use view::Approach;
pub use view::{Block, BlockShape, set_sequence};

/// Most leaves of a block.
pub const MAX_LEAVES: usize = 128;
/// Most records of a leaf.
pub const MAX_LEAF_RECORDS: usize = 128;
/// Smallest and largest size at which a block may be set to close.
pub const TARGET_BYTES: std::ops::RangeInclusive<usize> = (4 << 10)..=(64 << 10);

/// The search structure of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DirectoryKind {
    /// The offset of each leaf, searched by the leaves' first keys. What devices make, and blocks of more than 128 leaves have.
    RestartArray = 1,
    /// Beside the offsets a tree of two levels that tells what leaf to look into. About 8 bytes more for each leaf.
    TwoLayer = 2,
}

impl DirectoryKind {
    /// Decodes a kind.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::NewerFormat`] for one that this version does not know.
    #[inline]
    pub fn from_u8(byte: u8) -> Result<DirectoryKind> {
        match byte {
            1 => Ok(DirectoryKind::RestartArray),
            2 => Ok(DirectoryKind::TwoLayer),
            other => Err(errors::newer("directory kind", other.into())),
        }
    }
}

/// How blocks of a subtable are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockForm {
    /// Size at which a block closes, directory and trailer included: 4 to 64 KiB.
    pub target_bytes: usize,
    /// Records of a leaf, 1 to 128. Fewer make lookups faster and blocks larger. With the two-layer directory, where a block would have
    /// more than 128 leaves, its leaves have more records. Where records are large they have fewer: two or more in about half a KiB, one
    /// where a block has no more than some 16.
    pub leaf_records: usize,
    /// The directory.
    pub directory: DirectoryKind,
}

impl Default for BlockForm {
    fn default() -> Self {
        BlockForm::with(DirectoryKind::TwoLayer)
    }
}

impl BlockForm {
    /// The usual form with that directory.
    pub fn with(directory: DirectoryKind) -> BlockForm {
        let leaf_records = match directory {
            DirectoryKind::RestartArray => 16,
            DirectoryKind::TwoLayer => 8,
        };
        BlockForm { target_bytes: 16 << 10, leaf_records, directory }
    }

    /// Checks the ranges.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::InvalidArgument`] naming the field and what is allowed.
    pub fn check(&self) -> Result<()> {
        if !TARGET_BYTES.contains(&self.target_bytes) {
            return Err(Error::invalid(format!(
                "block size is {} bytes, allowed are {} to {}",
                self.target_bytes,
                TARGET_BYTES.start(),
                TARGET_BYTES.end()
            )));
        }
        if !(1..=MAX_LEAF_RECORDS).contains(&self.leaf_records) {
            return Err(Error::invalid(format!(
                "records per leaf are {}, allowed are 1 to {MAX_LEAF_RECORDS}",
                self.leaf_records
            )));
        }
        Ok(())
    }
}

/// The order of two keys, which is that of their bytes. For keys, which are short mostly: without a call.
#[inline]
pub fn order(a: &[u8], b: &[u8]) -> Ordering {
    let common = common_prefix(a, b);
    a.get(common).cmp(&b.get(common))
}

/// Length of the prefix that two keys have in common.
#[inline]
pub fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    let len = a.len().min(b.len());
    let (a, b) = (&a[..len], &b[..len]);
    let mut n = 0;
    for (x, y) in a.as_chunks::<8>().0.iter().zip(b.as_chunks::<8>().0) {
        let diff = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        if diff != 0 {
            return n + diff.trailing_zeros() as usize / 8;
        }
        n += 8;
    }
    // What is left of a longer key is compared with some of what was compared already.
    if let (Some(x), Some(y)) = (a.last_chunk::<8>(), b.last_chunk::<8>()) {
        let diff = u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y);
        return if diff == 0 { len } else { len - 8 + diff.trailing_zeros() as usize / 8 };
    }
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}
