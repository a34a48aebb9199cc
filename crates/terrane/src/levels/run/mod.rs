//! Runs: sorted, non-overlapping parts of extents. Immutable.
//!
//! Searching compares eight bytes of each lower bound, taken behind the prefix that all of them share and kept side by
//! side, and of the upper bound that follows; only bounds that agree in those are compared whole.

mod part;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use terrane_base::{Error, Result};
use terrane_format::block::significant;

pub(crate) use part::ExtentRef;

/// A sorted run.
#[derive(Debug)]
pub(crate) struct Run {
    /// L0 runs are ordered by id, newest largest; 0 from L1 on.
    pub(crate) id: u64,
    refs: Vec<Arc<ExtentRef>>,
    /// Bytes that all lower bounds begin with.
    shared: usize,
    /// [`significant`] of each lower bound.
    heads: Vec<u64>,
    /// The same of each upper bound that begins so too; of the others, which are behind all keys that do, the largest number.
    ends: Vec<u64>,
    totals: Totals,
    /// What [`Run::bytes`] was when the run came to be, or was opened.
    birth: u64,
    /// Places of the parts that are not whole extents.
    trimmed: Vec<u32>,
    has_tombstones: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    bytes: u64,
    rows: u64,
    deletes: u64,
}

impl Run {
    /// A run of these parts, in key order.
    ///
    /// # Errors
    /// Corruption if they are not sorted, or two of them overlap.
    pub(crate) fn new(id: u64, refs: Vec<Arc<ExtentRef>>) -> Result<Self> {
        for pair in refs.windows(2) {
            if pair[0].hi > pair[1].lo {
                let (a, b) = (pair[0].extent.meta.id, pair[1].extent.meta.id);
                return Err(Error::corruption(format!("extents {a} and {b} of run {id} overlap"))
                    .with_subtable(&**pair[0].extent.subtable()));
            }
        }
        let shared = match (refs.first(), refs.last()) {
            // In sorted order whatever the first and the last share, all share.
            (Some(a), Some(b)) => a.lo.iter().zip(&b.lo).take_while(|(x, y)| x == y).count(),
            _ => 0,
        };
        let heads = refs.iter().map(|r| significant(&r.lo, shared)).collect();
        let prefix = refs.first().map_or(&[][..], |r| &r.lo[..shared]);
        let end = |r: &Arc<ExtentRef>| match r.hi.starts_with(prefix) {
            true => significant(&r.hi, shared),
            false => u64::MAX,
        };
        let ends = refs.iter().map(end).collect();
        let totals = Totals::of(&refs);
        let trimmed = (0..).zip(&refs).filter(|(_, r)| r.is_trimmed()).map(|(at, _)| at).collect();
        let has_tombstones = refs.iter().any(|r| r.extent.meta.has_tombstones);
        Ok(Run { id, refs, shared, heads, ends, totals, birth: totals.bytes, trimmed, has_tombstones })
    }

    /// The parts in key order.
    pub(crate) fn refs(&self) -> &[Arc<ExtentRef>] {
        &self.refs
    }

    /// Whether any of its extents holds range tombstones.
    pub(crate) fn has_tombstones(&self) -> bool {
        self.has_tombstones
    }

    /// Whether there is no part.
    pub(crate) fn is_empty(&self) -> bool {
        self.refs.is_empty()
    }

    /// How many parts begin at or before `key`, and whether the last of these ends behind it.
    #[inline]
    fn place(&self, key: &[u8]) -> (usize, bool) {
        let Some(first) = self.refs.first() else { return (0, false) };
        let prefix = &first.lo[..self.shared];
        if !key.starts_with(prefix) {
            let begun = if key < prefix { 0 } else { self.refs.len() };
            return (begun, self.refs[..begun].last().is_some_and(|r| *key < *r.hi));
        }
        let wanted = significant(key, self.shared);
        let mut begun = self.heads.partition_point(|h| *h < wanted);
        // Mostly none is the same.
        if self.heads.get(begun) == Some(&wanted) {
            let same = self.heads[begun..].partition_point(|h| *h == wanted);
            begun += self.refs[begun..begun + same].partition_point(|r| *r.lo <= *key);
        }
        let Some(last) = begun.checked_sub(1) else { return (0, false) };
        (begun, wanted < self.ends[last] || *key < *self.refs[last].hi)
    }

    /// How many parts begin at or before `key`.
    fn begun(&self, key: &[u8]) -> usize {
        self.place(key).0
    }

    /// The part whose bounds contain `key`.
    #[inline]
    pub(crate) fn find(&self, key: &[u8]) -> Option<&Arc<ExtentRef>> {
        let (begun, inside) = self.place(key);
        inside.then(|| &self.refs[begun - 1])
    }

    /// Position of the first part that ends behind `key`: it contains `key` or is the next one to its right. The number
    /// of parts if there is none.
    pub(crate) fn position(&self, key: &[u8]) -> usize {
        let (begun, inside) = self.place(key);
        begun - usize::from(inside)
    }

    /// The parts that meet `[lo, hi)`; no `hi` means no upper bound.
    pub(crate) fn overlapping(&self, lo: &[u8], hi: Option<&[u8]>) -> &[Arc<ExtentRef>] {
        let from = self.position(lo);
        let to = match hi {
            None => self.refs.len(),
            Some(hi) if hi <= lo => from,
            Some(hi) => {
                let begun = self.begun(hi);
                // One that begins at `hi` itself does not meet the range.
                match self.refs[..begun].last() {
                    Some(r) if *r.lo == *hi => begun - 1,
                    _ => begun,
                }
            }
        };
        self.refs.get(from..to).unwrap_or_default()
    }

    /// Stored bytes of the blocks that the parts show.
    pub(crate) fn bytes(&self) -> u64 {
        self.totals.bytes
    }

    /// This run, as what became of `before`.
    pub(crate) fn after(mut self, before: &Run) -> Self {
        self.birth = self.birth.max(before.birth);
        self
    }

    /// What [`Run::bytes`] was when the run came to be, or was opened. Pieces take away from it.
    pub(crate) fn birth_bytes(&self) -> u64 {
        self.birth
    }

    /// Records of those blocks.
    pub(crate) fn rows(&self) -> u64 {
        self.totals.rows
    }

    /// Those of the records that are deletions.
    pub(crate) fn deletes(&self) -> u64 {
        self.totals.deletes
    }

    /// Whether there is a part at this place, and it is not a whole extent.
    #[inline]
    pub(crate) fn is_trimmed_at(&self, at: usize) -> bool {
        // Mostly there are none.
        !self.trimmed.is_empty() && self.trimmed.binary_search(&(at as u32)).is_ok()
    }

    /// The parts that are not whole extents.
    pub(crate) fn trimmed(&self) -> impl Iterator<Item = &Arc<ExtentRef>> {
        self.trimmed.iter().filter_map(|&at| self.refs.get(at as usize))
    }
}

impl Totals {
    fn of(refs: &[Arc<ExtentRef>]) -> Self {
        refs.iter().fold(Totals::default(), |t, r| Totals {
            bytes: t.bytes + r.bytes(),
            rows: t.rows + r.size.rows,
            deletes: t.deletes + r.size.deletes,
        })
    }
}
