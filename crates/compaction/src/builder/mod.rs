//! The builder's decisions: how a key range is cut into pieces, and what becomes of each.
//!
//! A *copy* is a stretch of blocks of one way that meets no block of another way and no range tombstone: it needs no
//! merging and is taken over as bytes. A *merge* is everything else; it becomes a [`crate::Task`] with its blocks read
//! and clipped.
//!
//! # Algorithm
//! The ways' blocks are known by their first keys only. Block `i` of a way holds keys from its own first key up to
//! *and including* that of block `i + 1`, since the versions of one key may go on in the next block. So:
//! * The blocks of a merge over `[lo, hi)` begin with the last one whose first key is below `lo`; clipping takes care of
//!   the rest of it.
//! * A copy may begin or end between two blocks of its way only if no key lies in both, which takes a look at the last
//!   key of the block in front. That block is read anyway.
//!
//! Merges are cut at first keys so that no way holds more blocks, and all together no more bytes, than a task may have,
//! and so that the pieces come out even.

mod copy;

use std::ops::Range;

use terrane_base::Result;
use terrane_format::tombstone::RangeTombstones;

/// What the index of an extent knows about a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span<'a> {
    /// Its first key.
    pub first_key: &'a [u8],
    /// Its bytes, uncompressed.
    pub bytes: u64,
    /// Its records.
    pub rows: u32,
    /// How many of them are deletes.
    pub deletes: u32,
}

/// One sorted input: the blocks of a run that may hold keys of the range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source<'a> {
    /// The blocks in the run's order.
    pub blocks: Vec<Span<'a>>,
    /// First key behind the last block's; `None` if not known.
    pub end: Option<&'a [u8]>,
}

/// What a plan covers.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// First key of the range.
    pub lo: &'a [u8],
    /// First key behind it; `None` means no bound.
    pub hi: Option<&'a [u8]>,
    /// The inputs, newest first.
    pub sources: &'a [Source<'a>],
    /// Range tombstones of all of them.
    pub tombstones: &'a RangeTombstones,
    /// Most blocks of one way in a merge, at least 2.
    pub blocks_per_way: usize,
    /// Most bytes of a merge, give or take a block.
    pub bytes: u64,
    /// Fewest blocks that are worth a copy of their own; `usize::MAX` for no copies.
    pub copy_blocks: usize,
}

/// What becomes of a piece of the range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// The records of these blocks of each source are merged; a range is empty where a source has none.
    Merge(Vec<Range<usize>>),
    /// These blocks are taken over as they are.
    Copy {
        /// The source.
        source: usize,
        /// Its blocks.
        blocks: Range<usize>,
    },
}

/// A piece of the range. Pieces come in key order; between them and around them nothing is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// First key.
    pub lo: Vec<u8>,
    /// First key behind it; `None` means no bound.
    pub hi: Option<Vec<u8>>,
    /// What becomes of it.
    pub work: Work,
}

/// Cuts a plan into pieces. `last_key` reads the last key of a block of a source; it is asked only where a copy might
/// begin or end.
///
/// # Errors
/// Those of `last_key`.
pub fn cut(plan: &Plan<'_>, last_key: impl FnMut(usize, usize) -> Result<Vec<u8>>) -> Result<Vec<Piece>> {
    let mut pieces = Vec::new();
    let mut lo = plan.lo;
    // Where the source of the last copy goes on: its blocks before are done with.
    let mut done = None;
    for (source, blocks) in copy::stretches(plan, last_key)? {
        let spans = &plan.sources[source].blocks;
        let start = spans[blocks.start].first_key;
        if lo < start {
            cut_merges(plan, lo, Some(start), done, &mut pieces);
        }
        let hi = plan.end_of(source, blocks.end - 1);
        done = Some((source, blocks.end));
        pieces.push(Piece {
            lo: start.to_vec(),
            hi: hi.map(<[u8]>::to_vec),
            work: Work::Copy { source, blocks },
        });
        match hi {
            Some(hi) => lo = hi,
            None => return Ok(pieces),
        }
    }
    if plan.hi.is_none_or(|hi| lo < hi) {
        cut_merges(plan, lo, plan.hi, done, &mut pieces);
    }
    Ok(pieces)
}

impl<'a> Plan<'a> {
    /// Where a block's keys end: the first key of the next block, which may be among them, or the end of its source.
    fn end_of(&self, source: usize, block: usize) -> Option<&'a [u8]> {
        let source = &self.sources[source];
        match source.blocks.get(block + 1) {
            Some(next) => Some(next.first_key),
            None => source.end.or(self.hi),
        }
    }

    /// The blocks of a source that may hold keys of `[lo, hi)`.
    fn blocks_of(&self, source: usize, lo: &[u8], hi: Option<&[u8]>, done: Done) -> Range<usize> {
        let Source { blocks, end } = &self.sources[source];
        let below = blocks.partition_point(|b| b.first_key < lo);
        let stop = hi.map_or(blocks.len(), |hi| blocks.partition_point(|b| b.first_key < hi));
        let mut start = below.saturating_sub(1);
        if below == blocks.len() && end.is_some_and(|end| end <= lo) {
            start = below;
        }
        if let Some((of, block)) = done
            && of == source
        {
            start = start.max(block);
        }
        start..stop.max(start)
    }
}

/// A source, and its first block that no copy has taken yet.
type Done = Option<(usize, usize)>;

/// Cuts a range without copies into even merges.
fn cut_merges(plan: &Plan<'_>, lo: &[u8], hi: Option<&[u8]>, done: Done, pieces: &mut Vec<Piece>) {
    let ranges: Vec<_> = (0..plan.sources.len()).map(|s| plan.blocks_of(s, lo, hi, done)).collect();
    let spans = |s: usize| plan.sources[s].blocks.get(ranges[s].clone()).unwrap_or_default();
    if ranges.iter().all(Range::is_empty) && plan.tombstones.clip(lo, hi).is_empty() {
        return;
    }
    let total: u64 = (0..ranges.len()).flat_map(spans).map(|b| b.bytes).sum();
    let most_blocks = ranges.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
    let per_way = plan.blocks_per_way.max(2);
    // Each merge but the first opens its ways with a block that the one before had too.
    let by_blocks = most_blocks.saturating_sub(1).div_ceil(per_way - 1) as u64;
    let even = u128::from(total.div_ceil(plan.bytes.max(1)).max(by_blocks).max(1));

    let mut candidates: Vec<(&[u8], usize, usize)> = Vec::new();
    for (source, range) in ranges.iter().enumerate() {
        candidates.extend(range.clone().map(|b| (plan.sources[source].blocks[b].first_key, source, b)));
    }
    candidates.sort_unstable();
    let mut start = lo;
    let mut first: Vec<usize> = ranges.iter().map(|r| r.start).collect();
    let (mut seen, mut cuts) = (0, 1);
    for (key, source, block) in candidates {
        let share_is_full = u128::from(seen) * even >= u128::from(total) * cuts;
        if key > start && (share_is_full || block - first[source] >= per_way) {
            pieces.push(merge_piece(plan, start, Some(key), done));
            first = (0..ranges.len()).map(|s| plan.blocks_of(s, key, hi, done).start).collect();
            start = key;
            cuts += 1;
        }
        seen += plan.sources[source].blocks[block].bytes;
    }
    pieces.push(merge_piece(plan, start, hi, done));
}

fn merge_piece(plan: &Plan<'_>, lo: &[u8], hi: Option<&[u8]>, done: Done) -> Piece {
    let ways = (0..plan.sources.len()).map(|s| plan.blocks_of(s, lo, hi, done)).collect();
    Piece { lo: lo.to_vec(), hi: hi.map(<[u8]>::to_vec), work: Work::Merge(ways) }
}

#[cfg(test)]
mod tests;
