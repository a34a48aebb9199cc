//! The inputs of a piece: which parts of extents take part, and what blocks they consist of.

use std::sync::Arc;

use terrane_base::{MAX_SEQ, Result};
use terrane_cache::Cache;
use terrane_format::extent::{BlockHandle, Index, IndexCursor};
use terrane_format::tombstone::RangeTombstones;

use crate::compact::busy::KeyRange;
use crate::compact::pick::Pick;
use crate::levels::{ExtentRef, Run, Version};
use crate::read::blocks::{Part, load};

/// One way of a piece: parts of one run, clipped to the piece's range, in key order.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) level: u8,
    pub(crate) run: u64,
    /// The parts as the run has them.
    pub(crate) whole: Vec<Arc<ExtentRef>>,
    /// The same, clipped.
    pub(crate) parts: Vec<ExtentRef>,
}

/// The ways of a piece, newest first.
pub(crate) fn of_piece(version: &Version, pick: &Pick) -> Vec<Input> {
    let (lo, hi) = (&pick.range.lo[..], pick.range.hi.as_deref());
    let input = |level: u8, run: &Run| {
        let whole = run.overlapping(lo, hi).to_vec();
        let parts = whole.iter().filter_map(|r| r.trim(lo, hi)).collect();
        Input { level, run: run.id, whole, parts }
    };
    let takes_part = |level: u8| level == pick.from || level == pick.to;
    version.runs().filter(|(level, _)| takes_part(*level)).map(|(level, run)| input(level, run)).collect()
}

/// Whether `version` still has what a piece was made of, and nothing else there. (Further L0 runs lie on top of all that.)
pub(crate) fn are_current(inputs: &[Input], version: &Version, pick: &Pick) -> bool {
    let (lo, hi) = (&pick.range.lo[..], pick.range.hi.as_deref());
    let now = |level: u8, id: u64| {
        let run = version.runs().find(|(l, run)| (*l, run.id) == (level, id));
        run.map_or(&[][..], |(_, run)| run.overlapping(lo, hi))
    };
    let target_is_new = !inputs.iter().any(|i| i.level == pick.to);
    inputs.iter().all(|i| {
        let now = now(i.level, i.run);
        now.len() == i.whole.len() && now.iter().zip(&i.whole).all(|(a, b)| Arc::ptr_eq(a, b))
    }) && (!target_is_new || now(pick.to, 0).is_empty())
}

/// Sets the size of a part that was trimmed, by its extent's index.
pub(crate) fn measure(cache: &Cache, mut part: ExtentRef) -> Result<ExtentRef> {
    let extent = part.extent.clone();
    if part.is_trimmed() && extent.meta.blocks > 0 {
        let pin = load(cache, &extent, &Part::Index)?;
        let place = |e| extent.place(e, extent.meta.index.offset);
        part.measure(Index::parse(&pin).map_err(place)?).map_err(place)?;
    }
    Ok(part)
}

/// What of `part` lies outside `range`: before it, after it. Not measured.
pub(crate) fn remnants(part: &ExtentRef, range: &KeyRange) -> impl Iterator<Item = ExtentRef> {
    let before = (*part.lo < *range.lo).then(|| part.trim(&[], Some(&range.lo))).flatten();
    let after = range.hi.as_ref().filter(|hi| *part.hi > ***hi).and_then(|hi| part.trim(hi, None));
    before.into_iter().chain(after)
}

/// A block of a way: the part it belongs to (by place in the way), its first key, and where it is.
#[derive(Clone, Debug)]
pub(crate) struct BlockOf {
    pub(crate) part: usize,
    pub(crate) first_key: Vec<u8>,
    pub(crate) handle: BlockHandle,
}

/// The blocks of `parts` that may hold keys of `range`.
pub(crate) fn blocks(cache: &Cache, parts: &[ExtentRef], range: &KeyRange) -> Result<Vec<BlockOf>> {
    let mut out = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let Some(part) = part.trim(&range.lo, range.hi.as_deref()) else { continue };
        let extent = &part.extent;
        if extent.meta.blocks == 0 {
            continue;
        }
        let pin = load(cache, extent, &Part::Index)?;
        let place = |e| extent.place(e, extent.meta.index.offset);
        let index = Index::parse(&pin).map_err(place)?;
        let mut cursor = IndexCursor::new();
        cursor.seek(index, &part.lo, MAX_SEQ).map_err(place)?;
        if !cursor.valid() {
            cursor.seek_first(index).map_err(place)?;
        }
        while let Some(handle) = cursor.handle().copied() {
            if *cursor.key() >= *part.hi {
                break;
            }
            out.push(BlockOf { part: at, first_key: cursor.key().to_vec(), handle });
            cursor.next(index).map_err(place)?;
        }
    }
    Ok(out)
}

/// The range tombstones of all ways within `range`.
pub(crate) fn tombstones(ways: &[Vec<ExtentRef>], range: &KeyRange) -> Result<RangeTombstones> {
    let mut sets = Vec::new();
    for part in ways.iter().flatten().filter(|p| p.extent.meta.has_tombstones) {
        sets.push(part.tombstones()?.clip(&range.lo, range.hi.as_deref()));
    }
    Ok(RangeTombstones::merge(&sets.iter().collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compact::pick::Reason;
    use crate::levels::testkit::{extent, meta};
    use crate::levels::{Reclaimer, RefKey, VersionEdit};

    #[test]
    fn inputs_that_somebody_else_changed_are_noticed() {
        let r = Reclaimer::new(|| {});
        let part = |id, lo, hi| ExtentRef::whole(extent(meta(id, lo, hi), &r));
        let edited = |v: &Version, removed: Vec<RefKey>, added: Vec<(u8, u64, ExtentRef)>| {
            v.apply(&VersionEdit { removed, added }).unwrap().version
        };
        let (above, below) = (part(1, "a", "m"), part(2, "k", "p"));
        let v = Version::empty(r.clone());
        let v = edited(&v, Vec::new(), vec![(0, 1, above.clone()), (1, 0, below.clone())]);
        let range = KeyRange { lo: b"a".to_vec(), hi: Some(b"m".to_vec()) };
        let mut pick = Pick { from: 0, to: 1, range, reason: Reason::L0, urgency: 1.0 };
        let inputs = of_piece(&v, &pick);
        assert!(are_current(&inputs, &v, &pick));
        let on_top = edited(&v, Vec::new(), vec![(0, 2, part(3, "a", "z")), (1, 0, part(4, "x", "z"))]);
        assert!(are_current(&inputs, &on_top, &pick), "a newer run of L0, and what lies beside");
        let rest = below.trim(b"", Some(b"n")).unwrap();
        let trimmed = edited(&v, vec![RefKey::of(1, 0, &below)], vec![(1, 0, rest)]);
        assert!(!are_current(&inputs, &trimmed, &pick), "trimmed on its other side");
        assert!(!are_current(&inputs, &edited(&v, Vec::new(), vec![(1, 0, part(5, "c", "d"))]), &pick));
        assert!(!are_current(&inputs, &edited(&v, vec![RefKey::of(0, 1, &above)], Vec::new()), &pick));
        // A level that was not there.
        (pick.from, pick.to) = (1, 2);
        let inputs = of_piece(&v, &pick);
        assert!(are_current(&inputs, &v, &pick));
        assert!(!are_current(&inputs, &edited(&v, Vec::new(), vec![(2, 0, part(6, "b", "c"))]), &pick));
    }
}
