//! Range tombstones as sorted, non-overlapping fragments.

use terrane_base::{Result, Seq};

use crate::codec::Reader;

/// A key range in which the same range tombstones hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// First key covered.
    pub start: Vec<u8>,
    /// First key no longer covered.
    pub end: Vec<u8>,
    /// Sequences of the tombstones, strictly descending, at least one.
    pub seqs: Vec<Seq>,
}

/// Range tombstones as sorted, non-overlapping fragments. A record is deleted for snapshot `s` iff
/// `covering(key, s) > record.seq`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeTombstones {
    fragments: Vec<Fragment>,
}

impl RangeTombstones {
    /// Fragments the ranges `[start, end)`, in any order; empty and inverted ones are ignored.
    pub fn from_ranges<S, E>(_ranges: impl IntoIterator<Item = (S, E, Seq)>) -> Self
    where
        S: AsRef<[u8]>,
        E: AsRef<[u8]>,
    {
        todo!()
    }

    /// The union of several sets.
    pub fn merge(_sets: &[&RangeTombstones]) -> Self {
        todo!()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }

    /// The fragments in key order.
    pub fn fragments(&self) -> &[Fragment] {
        &self.fragments
    }

    /// The largest sequence of at most `snapshot` whose tombstone covers `key`; 0 if none does.
    pub fn covering(&self, _key: &[u8], _snapshot: Seq) -> Seq {
        todo!()
    }

    /// The first fragment that ends behind `key`: it covers `key`, or is the next one to its right.
    pub fn next_covered(&self, _key: &[u8]) -> Option<&Fragment> {
        todo!()
    }

    /// What lies in `[lo, hi)`; no `hi` means no upper bound.
    pub fn clip(&self, _lo: &[u8], _hi: Option<&[u8]>) -> Self {
        todo!()
    }

    /// Drops the tombstones whose sequence `keep` refuses.
    pub fn retain_seqs(&mut self, _keep: impl FnMut(Seq) -> bool) {
        todo!()
    }

    /// First start and last end.
    pub fn bounds(&self) -> Option<(&[u8], &[u8])> {
        todo!()
    }

    /// Smallest and largest sequence.
    pub fn seq_range(&self) -> Option<(Seq, Seq)> {
        todo!()
    }

    /// Appends the encoded form.
    pub fn encode(&self, _out: &mut Vec<u8>) {
        todo!()
    }

    /// Reads one set and checks its order.
    pub fn decode(_reader: &mut Reader<'_>) -> Result<Self> {
        todo!()
    }
}
