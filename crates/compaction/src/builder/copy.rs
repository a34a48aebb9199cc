//! Finding what needs no merging.

use std::ops::Range;

use terrane_base::Result;

use super::Plan;

/// Stretches of blocks that can be copied, with their sources, in key order. They meet nothing, so they do not meet
/// each other either.
pub(super) fn stretches(
    plan: &Plan<'_>,
    mut last_key: impl FnMut(usize, usize) -> Result<Vec<u8>>,
) -> Result<Vec<(usize, Range<usize>)>> {
    let mut found = Vec::new();
    if plan.copy_blocks == usize::MAX {
        return Ok(found);
    }
    let worth = plan.copy_blocks.max(1);
    for (s, source) in plan.sources.iter().enumerate() {
        let count = source.blocks.len();
        // Whether no key lies both in the block before `b` and in `b`.
        let mut clean = |b: usize| -> Result<bool> {
            Ok(b == 0 || b == count || last_key(s, b - 1)?.as_slice() < source.blocks[b].first_key)
        };
        let mut next = 0;
        while next < count {
            let from = next;
            while next < count && is_alone(plan, s, next) {
                next += 1;
            }
            let (mut start, mut end) = (from, next);
            while start + worth <= end && !clean(start)? {
                start += 1;
            }
            while start + worth <= end && !clean(end)? {
                end -= 1;
            }
            if start + worth <= end {
                found.push((s, start..end));
            }
            next = next.max(from + 1);
        }
    }
    found.sort_unstable_by_key(|(s, blocks)| plan.sources[*s].blocks[blocks.start].first_key);
    Ok(found)
}

/// Whether a block lies within the plan's range, meets no block of another source and no tombstone, and is worth
/// keeping as it is.
fn is_alone(plan: &Plan<'_>, source: usize, block: usize) -> bool {
    let span = plan.sources[source].blocks[block];
    if u64::from(span.deletes) * 2 >= u64::from(span.rows) {
        return false;
    }
    let lo = span.first_key;
    let is_last = block + 1 == plan.sources[source].blocks.len();
    // A last block whose end is not known might reach beyond the plan's.
    if lo < plan.lo || (is_last && plan.sources[source].end.is_none() && plan.hi.is_some()) {
        return false;
    }
    let hi = plan.end_of(source, block);
    if plan.hi.is_some_and(|end| hi.is_none_or(|hi| hi > end)) {
        return false;
    }
    if plan.tombstones.next_covered(lo).is_some_and(|f| hi.is_none_or(|hi| f.start.as_slice() <= hi)) {
        return false;
    }
    (0..plan.sources.len()).filter(|&s| s != source).all(|s| {
        let blocks = &plan.sources[s].blocks;
        // The last block that begins at or before this one's end: those in front end where it begins, and the next one
        // begins too far on, so only the end of a source can keep it out of the way.
        let up_to = hi.map_or(blocks.len(), |hi| blocks.partition_point(|b| b.first_key <= hi));
        let Some(last) = up_to.checked_sub(1) else { return true };
        blocks[last].first_key < lo && plan.end_of(s, last).is_some_and(|end| end <= lo)
    })
}
