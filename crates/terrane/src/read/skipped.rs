//! Deletions that a cursor steps over: how many, and where.

use terrane_format::limits::MAX_KEY;

/// More of them than this, with little else in between, are to be cleared away.
const MANY: u64 = 1000;
/// The one from which on it matters where they are.
const NOTED: u64 = 100;
/// A key that is shown makes up for so many.
const WORTH: u64 = 4;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Skipped {
    count: u64,
    /// Those of them that were in the newest source.
    newest: u64,
    /// Where one of the first was. No longer than a key, so that there is a bound right behind it.
    at: Vec<u8>,
}

impl Skipped {
    /// A cursor begins anew.
    #[inline]
    pub(crate) fn begin(&mut self) {
        (self.count, self.newest) = (0, 0);
    }

    /// One at `key` was stepped over.
    #[inline]
    pub(crate) fn add(&mut self, key: &[u8], in_newest: bool) {
        self.count += 1;
        self.newest += u64::from(in_newest);
        if self.count == NOTED {
            // A range's edge may be a bound; the longest key below it is near enough.
            key[..key.len().min(MAX_KEY)].clone_into(&mut self.at);
        }
    }

    /// So many keys were shown.
    #[inline]
    pub(crate) fn show(&mut self, keys: u32) {
        self.count = self.count.saturating_sub(WORTH * u64::from(keys));
        self.newest = self.newest.min(self.count);
    }

    /// Whether what was stepped over is to be cleared away.
    #[inline]
    pub(crate) fn are_many(&self) -> bool {
        self.count > MANY
    }

    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Whether many of them were in the newest source.
    pub(crate) fn mostly_newest(&self) -> bool {
        self.newest > MANY / 2
    }

    /// Where they are, all but the first few, when the cursor stands at `here` or has come to the end: at or above the first
    /// key, and below the second.
    pub(crate) fn range(&self, here: Option<&[u8]>, forwards: bool) -> (Vec<u8>, Option<Vec<u8>>) {
        let behind = |key: &[u8]| [key, &[0]].concat();
        match (here, forwards) {
            (None, true) => (self.at.clone(), None),
            (None, false) => (Vec::new(), Some(behind(&self.at))),
            // Whichever way the cursor went in between.
            (Some(here), _) => {
                (self.at.as_slice().min(here).to_vec(), Some(behind(self.at.as_slice().max(here))))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stretch_counts_and_deletions_among_what_is_shown_do_not() {
        let mut s = Skipped::default();
        for _ in 0..2000 {
            (0..10 * WORTH).for_each(|_| s.add(b"k", true));
            assert!(!s.are_many());
            s.show(10);
        }
        (0..MANY).for_each(|i| s.add(&i.to_be_bytes(), false));
        assert!(!s.are_many());
        s.add(b"k", false);
        assert!(s.are_many() && !s.mostly_newest());
        (0..MANY).for_each(|_| s.add(b"k", true));
        assert!(s.mostly_newest());
        s.begin();
        assert!(!s.are_many() && !s.mostly_newest());
    }

    #[test]
    fn bounds_are_such_as_may_be_written() {
        let edge = [vec![7; MAX_KEY], vec![0]].concat();
        let mut s = Skipped::default();
        (0..NOTED).for_each(|_| s.add(&edge, false));
        assert_eq!(s.range(None, false), (Vec::new(), Some(edge.clone())));
        assert_eq!(s.range(Some(&[1]), false), (vec![1], Some(edge)));
    }

    #[test]
    fn the_range_has_them_whichever_way_the_cursor_went() {
        let mut s = Skipped::default();
        (0..200u64).for_each(|i| s.add(&i.to_be_bytes(), false));
        let at = 99u64.to_be_bytes();
        let (low, high) = (1u64.to_be_bytes(), 300u64.to_be_bytes());
        let behind = |k: [u8; 8]| Some([&k[..], &[0]].concat());
        assert_eq!(s.range(Some(&high), true), (at.to_vec(), behind(high)));
        assert_eq!(s.range(Some(&low), false), (low.to_vec(), behind(at)));
        assert_eq!(s.range(None, true), (at.to_vec(), None));
        assert_eq!(s.range(None, false), (Vec::new(), behind(at)));
    }
}
