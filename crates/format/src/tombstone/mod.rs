//! Range tombstones as sorted, non-overlapping fragments.
//!
//! Ranges that overlap are cut at each other's ends; every fragment lists the sequences of all tombstones that cover it.
//! Finding what covers a key is then one binary search over the fragments and one within a fragment. Neighbours with
//! equal sequences are joined, so a set has exactly one form.
//!
//! ```text
//! set      = fragments varint | fragment*
//! fragment = start (varint len + bytes) | end (likewise) | sequences varint | largest varint | distance to the next varint*
//! ```

mod codec;
mod fragment;
#[cfg(test)]
mod tests;

use terrane_base::Seq;

/// A key range in which the same range tombstones hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// First key covered.
    pub start: Vec<u8>,
    /// First key no longer covered.
    pub end: Vec<u8>,
    /// Sequences of the tombstones, strictly descending, at least one, none 0.
    pub seqs: Vec<Seq>,
}

impl Fragment {
    /// The largest sequence of at most `snapshot`; 0 if there is none.
    pub fn newest(&self, snapshot: Seq) -> Seq {
        let newer = self.seqs.partition_point(|s| *s > snapshot);
        self.seqs.get(newer).copied().unwrap_or(0)
    }
}

/// Range tombstones as sorted, non-overlapping fragments. A record is deleted for snapshot `s` iff
/// `covering(key, s) > record.seq`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeTombstones {
    fragments: Vec<Fragment>,
}

impl RangeTombstones {
    /// Fragments the ranges `[start, end)`, in any order. Empty and inverted ranges, and sequence 0, are ignored: they
    /// delete nothing.
    pub fn from_ranges<S, E>(ranges: impl IntoIterator<Item = (S, E, Seq)>) -> Self
    where
        S: AsRef<[u8]>,
        E: AsRef<[u8]>,
    {
        let ranges: Vec<(S, E, Seq)> = ranges.into_iter().collect();
        let borrowed = ranges.iter().map(|(s, e, seq)| (s.as_ref(), e.as_ref(), *seq));
        RangeTombstones { fragments: fragment::fragment(borrowed) }
    }

    /// The union of several sets.
    pub fn merge(sets: &[&RangeTombstones]) -> Self {
        let ranges = sets
            .iter()
            .flat_map(|set| &set.fragments)
            .flat_map(|f| f.seqs.iter().map(|seq| (f.start.as_slice(), f.end.as_slice(), *seq)));
        RangeTombstones { fragments: fragment::fragment(ranges) }
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }

    /// The fragments in key order.
    pub fn fragments(&self) -> &[Fragment] {
        &self.fragments
    }

    /// The largest sequence of at most `snapshot` whose tombstone covers `key`; 0 if none does.
    #[inline]
    pub fn covering(&self, key: &[u8], snapshot: Seq) -> Seq {
        match self.next_covered(key) {
            Some(f) if f.start.as_slice() <= key => f.newest(snapshot),
            _ => 0,
        }
    }

    /// The first fragment that ends behind `key`: it covers `key`, or is the next one to its right.
    #[inline]
    pub fn next_covered(&self, key: &[u8]) -> Option<&Fragment> {
        self.fragments.get(self.fragments.partition_point(|f| f.end.as_slice() <= key))
    }

    /// The last fragment that starts at or before `key`: it covers `key`, or is the next one to its left.
    #[inline]
    pub fn prev_covered(&self, key: &[u8]) -> Option<&Fragment> {
        let behind = self.fragments.partition_point(|f| f.start.as_slice() <= key);
        self.fragments.get(behind.checked_sub(1)?)
    }

    /// What lies in `[lo, hi)`; no `hi` means no upper bound.
    pub fn clip(&self, lo: &[u8], hi: Option<&[u8]>) -> Self {
        let first = self.fragments.partition_point(|f| f.end.as_slice() <= lo);
        let inside =
            self.fragments[first..].iter().take_while(|f| hi.is_none_or(|hi| f.start.as_slice() < hi));
        let mut fragments: Vec<Fragment> = inside.cloned().collect();
        if let Some(f) = fragments.first_mut()
            && f.start.as_slice() < lo
        {
            f.start = lo.to_vec();
        }
        if let (Some(f), Some(hi)) = (fragments.last_mut(), hi)
            && f.end.as_slice() > hi
        {
            f.end = hi.to_vec();
        }
        // With `hi` at or before `lo` a fragment may have been turned inside out.
        fragments.retain(|f| f.start < f.end);
        RangeTombstones { fragments }
    }

    /// Drops the tombstones whose sequence `keep` refuses.
    pub fn retain_seqs(&mut self, mut keep: impl FnMut(Seq) -> bool) {
        let mut kept: Vec<Fragment> = Vec::new();
        for mut f in std::mem::take(&mut self.fragments) {
            f.seqs.retain(|s| keep(*s));
            if !f.seqs.is_empty() {
                fragment::push(&mut kept, f);
            }
        }
        self.fragments = kept;
    }

    /// The same ranges, all with one sequence.
    #[must_use]
    pub fn with_seq(&self, seq: Seq) -> Self {
        RangeTombstones::from_ranges(self.fragments.iter().map(|f| (&f.start, &f.end, seq)))
    }

    /// First start and last end.
    pub fn bounds(&self) -> Option<(&[u8], &[u8])> {
        Some((&self.fragments.first()?.start, &self.fragments.last()?.end))
    }

    /// Smallest and largest sequence.
    pub fn seq_range(&self) -> Option<(Seq, Seq)> {
        let smallest = self.fragments.iter().filter_map(|f| f.seqs.last()).min()?;
        let largest = self.fragments.iter().filter_map(|f| f.seqs.first()).max()?;
        Some((*smallest, *largest))
    }
}
