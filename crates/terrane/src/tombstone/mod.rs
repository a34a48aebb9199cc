//! Range tombstones of a memtable: a copy-on-write interval map.
//!
//! A `delete_range` writes a [start, end) interval with its sequence. Readers ask "the newest tombstone at or below my
//! snapshot that covers this key"; a record is hidden when that sequence is above its own.
//!
//! # Invariants
//! Fragments are sorted, do not overlap, and each carries all sequences that cover it, newest first. They are held in
//! chunks so that an insert copies one chunk and a list of pointers, not every fragment.
//!
//! # Concurrency
//! Readers load one pointer (null: there are none, the usual case) and never block. Writers take a mutex, build the
//! next map and swap it in. An interval is visible to whoever loads the map after [`MemTombstones::insert`] returned,
//! which happens before the sequence is published.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use terrane_base::Seq;
use terrane_format::tombstone::{Fragment, RangeTombstones};

/// Fragments per chunk before it is split.
const CHUNK: usize = 64;

/// An immutable map of fragments.
#[derive(Debug, Default)]
pub(crate) struct TombstoneMap {
    chunks: Vec<Arc<Vec<Fragment>>>,
}

impl TombstoneMap {
    /// The largest tombstone sequence at or below `snapshot` that covers `key`; 0 if none does.
    pub(crate) fn covering(&self, key: &[u8], snapshot: Seq) -> Seq {
        self.fragment(key).and_then(|f| f.seqs.iter().copied().find(|&s| s <= snapshot)).unwrap_or(0)
    }

    /// The fragment that covers `key`.
    pub(crate) fn fragment(&self, key: &[u8]) -> Option<&Fragment> {
        let chunk = self.chunks.partition_point(|c| *c[0].start <= *key).checked_sub(1)?;
        let chunk = &self.chunks[chunk];
        let at = chunk.partition_point(|f| *f.start <= *key).checked_sub(1)?;
        let f = &chunk[at];
        (*key < *f.end).then_some(f)
    }

    /// All fragments in order.
    pub(crate) fn fragments(&self) -> impl Iterator<Item = &Fragment> {
        self.chunks.iter().flat_map(|c| c.iter())
    }

    /// The map with [start, end) at `seq` added.
    fn with(&self, start: &[u8], end: &[u8], seq: Seq) -> TombstoneMap {
        // The chunks that the new interval may touch: from the one that holds `start` to the last that begins below `end`.
        let from = self.chunks.partition_point(|c| *c[0].start <= *start).saturating_sub(1);
        let to = self.chunks.partition_point(|c| *c[0].start < *end).max(from);
        let old = self.chunks[from..to].iter().flat_map(|c| c.iter());
        let merged = overlay(old, start, end, seq);
        let mut chunks = Vec::with_capacity(self.chunks.len() + 2);
        chunks.extend_from_slice(&self.chunks[..from]);
        chunks.extend(merged.chunks(CHUNK).map(|c| Arc::new(c.to_vec())));
        chunks.extend_from_slice(&self.chunks[to..]);
        TombstoneMap { chunks }
    }
}

/// Lays [start, end) at `seq` over sorted fragments: splits those it cuts, fills the gaps between them.
fn overlay<'a>(old: impl Iterator<Item = &'a Fragment>, start: &[u8], end: &[u8], seq: Seq) -> Vec<Fragment> {
    let piece = |s: &[u8], e: &[u8], seqs: Vec<Seq>| Fragment { start: s.into(), end: e.into(), seqs };
    let mut out = Vec::new();
    let mut pos: Vec<u8> = start.to_vec(); // up to here the new interval is laid
    for f in old {
        if *f.end <= *start {
            out.push(f.clone());
            continue;
        }
        if *f.start >= *end {
            if *pos < *end {
                out.push(piece(&pos, end, vec![seq]));
                pos = end.to_vec();
            }
            out.push(f.clone());
            continue;
        }
        if *f.start < *start {
            out.push(piece(&f.start, start, f.seqs.clone()));
        } else if *pos < *f.start {
            out.push(piece(&pos, &f.start, vec![seq]));
        }
        let (s, e) = (f.start.as_slice().max(start), f.end.as_slice().min(end));
        let mut seqs = f.seqs.clone();
        let at = seqs.partition_point(|&x| x > seq);
        if seqs.get(at) != Some(&seq) {
            seqs.insert(at, seq);
        }
        out.push(piece(s, e, seqs));
        if *f.end > *end {
            out.push(piece(end, &f.end, f.seqs.clone()));
        }
        pos = e.to_vec();
    }
    if *pos < *end {
        out.push(piece(&pos, end, vec![seq]));
    }
    out
}

/// The range tombstones of one memtable.
#[derive(Debug, Default)]
pub(crate) struct MemTombstones {
    map: ArcSwapOption<TombstoneMap>,
    writer: Mutex<()>,
}

impl MemTombstones {
    /// Adds [start, end) at `seq`. Empty and inverted intervals cover nothing and are ignored.
    pub(crate) fn insert(&self, start: &[u8], end: &[u8], seq: Seq) {
        if start >= end {
            return;
        }
        let _writer = self.writer.lock();
        let next = match &*self.map.load() {
            Some(m) => m.with(start, end, seq),
            None => TombstoneMap::default().with(start, end, seq),
        };
        self.map.store(Some(Arc::new(next)));
    }

    /// The largest tombstone sequence at or below `snapshot` that covers `key`; 0 if none does.
    #[inline]
    pub(crate) fn covering(&self, key: &[u8], snapshot: Seq) -> Seq {
        match &*self.map.load() {
            None => 0,
            Some(m) => m.covering(key, snapshot),
        }
    }

    /// The map as it is now.
    pub(crate) fn load(&self) -> Option<Arc<TombstoneMap>> {
        self.map.load_full()
    }

    /// All of it, in the form that extents store.
    pub(crate) fn to_ranges(&self) -> RangeTombstones {
        let map = self.map.load();
        let ranges = map
            .iter()
            .flat_map(|m| m.fragments())
            .flat_map(|f| f.seqs.iter().map(move |&s| (f.start.to_vec(), f.end.to_vec(), s)));
        RangeTombstones::from_ranges(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn covers_exactly_what_a_list_of_intervals_covers(
            ranges in prop::collection::vec((0u8..60, 0u8..60), 0..200),
            probes in prop::collection::vec((0u8..60, 0u64..220), 50),
        ) {
            let t = MemTombstones::default();
            for (i, (a, b)) in ranges.iter().enumerate() {
                t.insert(&[*a], &[*b], i as u64 + 1);
            }
            for (k, snap) in probes {
                let want = ranges.iter().enumerate()
                    .filter(|(i, (a, b))| *a <= k && k < *b && (*i as u64) < snap)
                    .map(|(i, _)| i as u64 + 1).max().unwrap_or(0);
                prop_assert_eq!(t.covering(&[k], snap), want);
            }
            if let Some(m) = t.load() {
                let f: Vec<_> = m.fragments().collect();
                prop_assert!(f.windows(2).all(|w| w[0].end <= w[1].start));
                prop_assert!(f.iter().all(|f| f.start < f.end && f.seqs.windows(2).all(|w| w[0] > w[1])));
            }
        }
    }
}
