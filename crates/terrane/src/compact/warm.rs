//! Which keys of a task's input readers have in the cache: what is written in their place goes there too.

use crate::levels::Heir;

/// Disjoint key ranges in order (no end: all keys from there on). Asked about blocks in key order.
#[derive(Debug)]
pub(crate) struct Warm<'a> {
    ranges: Vec<(&'a [u8], Option<&'a [u8]>)>,
    at: usize,
}

impl<'a> Warm<'a> {
    /// From the ranges of blocks, in any order.
    pub(crate) fn new(mut blocks: Vec<(&'a [u8], Option<&'a [u8]>)>) -> Self {
        blocks.sort_unstable_by_key(|(lo, _)| *lo);
        blocks.dedup_by(|next, before| {
            let joins = before.1.is_none_or(|hi| next.0 <= hi);
            if joins && before.1.is_some_and(|hi| next.1.is_none_or(|end| end > hi)) {
                before.1 = next.1;
            }
            joins
        });
        Warm { ranges: blocks, at: 0 }
    }

    /// Whether a block from `first` to `last` meets any of it. Blocks come in ascending order.
    pub(crate) fn meets(&mut self, first: &[u8], last: &[u8]) -> Heir {
        while self.ranges.get(self.at).is_some_and(|(_, hi)| hi.is_some_and(|hi| hi <= first)) {
            self.at += 1;
        }
        match self.ranges.get(self.at) {
            Some((lo, _)) if *lo <= last => Heir::Yes,
            _ => Heir::No,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_become_one() {
        let w = Warm::new(vec![
            (b"m", Some(b"p")),
            (b"a", Some(b"c")),
            (b"b", Some(b"d")),
            (b"d", Some(b"e")),
            (b"n", Some(b"o")),
        ]);
        assert_eq!(w.ranges, [(&b"a"[..], Some(&b"e"[..])), (b"m", Some(b"p"))]);
        let w = Warm::new(vec![(b"x", Some(b"z")), (b"k", None)]);
        assert_eq!(w.ranges, [(&b"k"[..], None)]);
    }

    #[test]
    fn blocks_meet_what_they_overlap() {
        let mut w = Warm::new(vec![(b"c", Some(b"e")), (b"k", None)]);
        let mut meets = |first: &str, last: &str| w.meets(first.as_bytes(), last.as_bytes()) == Heir::Yes;
        assert!(!meets("a", "b"));
        assert!(meets("b", "c"), "the first key of a range is in it");
        assert!(meets("d", "f"));
        assert!(!meets("e", "j"), "its end is not");
        assert!(meets("z", "zz"));
        let mut none = Warm::new(Vec::new());
        assert_eq!(none.meets(b"a", b"z"), Heir::No);
    }
}
