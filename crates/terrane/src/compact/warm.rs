//! Which keys of a task's input readers have in the cache: what is written in their place goes there too.

/// The range of a block: from its first key to the first one behind it.
pub(crate) type Span<'a> = (&'a [u8], &'a [u8]);

/// Disjoint ranges in order. Asked about blocks in key order.
#[derive(Debug)]
pub(crate) struct Warm<'a> {
    spans: Vec<Span<'a>>,
    at: usize,
}

impl<'a> Warm<'a> {
    /// From the ranges, in any order, of cached blocks that were read, or of extents whose indexes are.
    pub(crate) fn new(mut spans: Vec<Span<'a>>) -> Self {
        spans.sort_unstable();
        spans.dedup_by(|next, before| {
            let joins = next.0 <= before.1;
            if joins {
                before.1 = before.1.max(next.1);
            }
            joins
        });
        Warm { spans, at: 0 }
    }

    /// Whether a range has to do with a block from `first` to `last`. Blocks come in ascending order.
    pub(crate) fn meets(&mut self, first: &[u8], last: &[u8]) -> bool {
        while self.spans.get(self.at).is_some_and(|(_, hi)| *hi <= first) {
            self.at += 1;
        }
        self.spans.get(self.at).is_some_and(|(lo, _)| *lo <= last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_become_one() {
        let w = Warm::new(vec![
            (b"m", b"p"),
            (b"a", b"c"),
            (b"b", b"d"),
            (b"d", b"e"),
            (b"n", b"o"),
            (b"x", b"z"),
        ]);
        assert_eq!(w.spans, [(&b"a"[..], &b"e"[..]), (b"m", b"p"), (b"x", b"z")]);
    }

    #[test]
    fn blocks_take_after_what_they_overlap() {
        let mut w = Warm::new(vec![(b"c", b"e"), (b"k", b"m")]);
        let mut meets = |first: &str, last: &str| w.meets(first.as_bytes(), last.as_bytes());
        assert!(!meets("a", "b"));
        assert!(meets("b", "c"), "the first key of a range is in it");
        assert!(meets("d", "f"));
        assert!(!meets("e", "j"), "its end is not");
        assert!(meets("l", "z"));
        assert!(!meets("zz", "zzz"));
        let mut none = Warm::new(Vec::new());
        assert!(!none.meets(b"a", b"z"));
    }
}
