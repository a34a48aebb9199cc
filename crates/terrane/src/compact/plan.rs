//! Planning: how a piece is merged with the least rewriting. Pure; works on key ranges and counts alone.
//!
//! Where only one way has anything, its extents go down by reference. Where ways meet, the compaction room's builder goes
//! on with blocks: stretches that meet nothing are copied as bytes, the rest is merged. Reuse is refused where at least
//! half of the rows are deletions, so that these go away.

use crate::compact::busy::KeyRange;
use crate::compact::dead::Dead;
use crate::compact::pick::is_mostly_deletes;
use crate::levels::ExtentRef;

/// A stretch of a piece, in key order.
#[derive(Debug)]
pub(crate) enum Stretch {
    /// One extent reference that meets nothing: goes down as it is.
    Move { way: usize, at: ExtentRef },
    /// References that meet others, per way (newest first), to be opened.
    Merge { range: KeyRange, ways: Vec<Vec<ExtentRef>> },
}

/// What decides about moving by reference.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MoveRules<'a> {
    /// The target level is compressed: extents that are not must be rewritten.
    pub(crate) compressed_below: bool,
    /// Nothing older lies below: tombstones can go, so extents that have any are rewritten.
    pub(crate) bottom: bool,
    /// A rewrite in place: moving would achieve nothing.
    pub(crate) in_place: bool,
    /// Extents of which at least half is dead are rewritten: moving would keep their space.
    pub(crate) dead: &'a Dead,
}

impl MoveRules<'_> {
    fn may_move(&self, r: &ExtentRef) -> bool {
        let m = &r.extent.meta;
        let uncompressed = u64::from(m.data_bytes) >= m.raw_bytes;
        !(self.in_place
            || is_mostly_deletes(r)
            || self.dead.is_sparse(r, 2)
            || (self.compressed_below && uncompressed)
            || (self.bottom && (m.has_tombstones || m.deletes > 0)))
    }
}

/// Cuts the inputs of a piece (per way, clipped to the piece, in key order) into stretches.
pub(crate) fn stretches(ways: &[Vec<ExtentRef>], rules: MoveRules<'_>) -> Vec<Stretch> {
    let mut all: Vec<(usize, &ExtentRef)> =
        ways.iter().enumerate().flat_map(|(w, refs)| refs.iter().map(move |r| (w, r))).collect();
    all.sort_by(|a, b| a.1.lo.cmp(&b.1.lo).then(a.0.cmp(&b.0)));
    let mut out: Vec<Stretch> = Vec::new();
    let mut at = 0;
    while at < all.len() {
        // The group of references that overlap each other, directly or in a chain.
        let mut end = at + 1;
        let mut hi = all[at].1.hi.clone();
        while end < all.len() && all[end].1.lo < hi {
            if all[end].1.hi > hi {
                hi = all[end].1.hi.clone();
            }
            end += 1;
        }
        let group = &all[at..end];
        if let [(way, r)] = group
            && rules.may_move(r)
        {
            out.push(Stretch::Move { way: *way, at: (*r).clone() });
        } else {
            let range = KeyRange { lo: group[0].1.lo.to_vec(), hi: Some(hi.to_vec()) };
            match out.last_mut() {
                // Neighbouring groups are merged in one go: fewer, fuller extents come out.
                Some(Stretch::Merge { range: before, ways }) => {
                    before.hi = range.hi;
                    add(ways, group);
                }
                _ => {
                    let mut merge = vec![Vec::new(); ways.len()];
                    add(&mut merge, group);
                    out.push(Stretch::Merge { range, ways: merge });
                }
            }
        }
        at = end;
    }
    out
}

fn add(ways: &mut [Vec<ExtentRef>], group: &[(usize, &ExtentRef)]) {
    for (way, r) in group {
        ways[*way].push((*r).clone());
    }
}

/// Cuts `range` wherever a part of a way was trimmed: on the far side of such an edge its blocks hold records that are not
/// part of the run any more, and no merge may span both sides.
pub(crate) fn between_trimmed_edges(range: &KeyRange, ways: &[Vec<ExtentRef>]) -> Vec<KeyRange> {
    let mut edges: Vec<&[u8]> = ways
        .iter()
        .flatten()
        .filter(|p| p.is_trimmed())
        .flat_map(|p| [&*p.lo, &*p.hi])
        .filter(|e| **e > *range.lo && range.hi.as_ref().is_none_or(|hi| **e < **hi))
        .collect();
    edges.sort_unstable();
    edges.dedup();
    let mut out = Vec::with_capacity(edges.len() + 1);
    let mut lo = range.lo.clone();
    for edge in edges {
        out.push(KeyRange { lo, hi: Some(edge.to_vec()) });
        lo = edge.to_vec();
    }
    out.push(KeyRange { lo, hi: range.hi.clone() });
    out
}
