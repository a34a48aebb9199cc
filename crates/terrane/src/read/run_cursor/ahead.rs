//! What a cursor that goes forwards reads along with the block that it needs.

use smallvec::SmallVec;
use terrane_base::MAX_SEQ;
use terrane_cache::Cache;
use terrane_format::extent::{BlockHandle, Index, IndexPlace};

use crate::levels::ExtentRef;

/// Bytes (stored, or in memory if that is more) that are read when a cursor first goes on to a block that memory does not
/// hold, the block included, and at most: each time twice as many, so that what is read in vain is bounded by what was of
/// use.
const FIRST_AHEAD: usize = 16 << 10;
pub(super) const MOST_AHEAD: usize = 256 << 10;
/// With how many it begins anew once some had left memory before the cursor came to them.
pub(super) const LEAST_AHEAD: usize = 4 << 10;
/// One run's cursor reads at most this part of the cache ahead.
const AHEAD_SHARE: usize = 256;

/// What a cursor that goes forwards reads along with the next block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ahead {
    /// Bytes of the next read.
    pub(super) bytes: usize,
    /// Blocks of the current extent up to this offset have been read along.
    pub(super) until: u32,
}

impl Ahead {
    pub(super) const NONE: Ahead = Ahead { bytes: FIRST_AHEAD, until: 0 };
}

/// The block at `place`, which is `first`, and those behind it that are to be read along with it.
pub(super) fn along(
    cache: &Cache,
    part: &ExtentRef,
    index: Index<'_>,
    place: IndexPlace,
    first: BlockHandle,
    bytes: usize,
) -> SmallVec<[BlockHandle; 8]> {
    let most = bytes.min(cache.capacity() / AHEAD_SHARE);
    let size = |handle: &BlockHandle| handle.stored_len.max(handle.raw_len) as usize;
    let (mut blocks, mut sum) = (SmallVec::from_buf_and_len([first; 8], 1), size(&first));
    if sum >= most {
        return blocks;
    }
    // What lies behind the part's end is nobody's.
    let mut last = IndexPlace::new();
    // (Damage elsewhere in the index is for those to find who come there.)
    if *part.hi != *part.extent.meta.hi && last.seek(index, &part.hi, MAX_SEQ).is_err() {
        return blocks;
    }
    let last = last.span(index).ok().flatten().map_or(u32::MAX, |span| span.offset);
    let (mut next, mut end) = (place, first.end());
    while next.next(index).is_ok()
        && let Ok(Some(handle)) = next.handle(index)
    {
        sum += size(&handle);
        let key = part.extent.frame(handle.offset);
        if handle.offset != end || handle.offset > last || sum > most || cache.contains(key) {
            break;
        }
        end = handle.end();
        blocks.push(handle);
    }
    blocks
}
