//! Which keys of a task's input readers have in memory, in the cache or in the store below it: what is written in their place goes there too.

use terrane_cache::{Cache, FrameKey};

use crate::levels::Heir;

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

/// What becomes of a block that takes the place of that one alone.
pub(crate) fn heir_of(cache: &Cache, replaced: FrameKey) -> Heir {
    match cache.is_read(replaced) {
        Some(true) => Heir::Yes,
        // It would come there when the cache evicts it.
        Some(false) if cache.has_below() => Heir::Below { index: false },
        None if cache.is_used_below(replaced) => Heir::Below { index: false },
        _ => Heir::No,
    }
}

/// What readers have of a task's input.
#[derive(Debug)]
pub(crate) struct Seen<'a> {
    cached: Warm<'a>,
    below: Warm<'a>,
    /// As much as lies below may go there, about. A block of a level above meets many of the level that it is merged with: were all of these to follow it, they
    /// would push out what others have there.
    allowance: usize,
}

impl<'a> Seen<'a> {
    /// From what [`heir_of`] says of each block, its range, and its bytes.
    pub(crate) fn new(blocks: impl IntoIterator<Item = (Heir, Span<'a>, u32)>) -> Self {
        let (mut cached, mut below, mut allowance) = (Vec::new(), Vec::new(), 0);
        for (heir, span, bytes) in blocks {
            match heir {
                Heir::Yes => cached.push(span),
                Heir::Below { .. } => {
                    below.push(span);
                    allowance += bytes as usize;
                }
                Heir::Index | Heir::No => {}
            }
        }
        Seen { cached: Warm::new(cached), below: Warm::new(below), allowance }
    }

    /// What becomes of a block of so many bytes from `first` to `last`. Blocks come in ascending order.
    pub(crate) fn heir(&mut self, first: &[u8], last: &[u8], bytes: usize) -> Heir {
        let (is_cached, lies_below) = (self.cached.meets(first, last), self.below.meets(first, last));
        if is_cached {
            return Heir::Yes;
        }
        if lies_below && self.allowance > 0 {
            self.allowance = self.allowance.saturating_sub(bytes);
            return Heir::Below { index: false };
        }
        Heir::No
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BELOW: Heir = Heir::Below { index: false };

    #[test]
    fn as_much_goes_below_as_lay_there() {
        let blocks: [(Heir, Span<'_>, u32); 4] = [
            (Heir::Yes, (b"c", b"e"), 1000),
            (BELOW, (b"a", b"d"), 100),
            (BELOW, (b"k", b"p"), 150),
            (Heir::No, (b"f", b"k"), 1000),
        ];
        let mut seen = Seen::new(blocks);
        let mut heir = |first: &str, last: &str| seen.heir(first.as_bytes(), last.as_bytes(), 100);
        assert_eq!(heir("a", "b"), BELOW);
        assert_eq!(
            heir("b", "c"),
            Heir::Yes,
            "the cache comes first, and takes nothing of what may go below"
        );
        assert_eq!(heir("f", "g"), Heir::No);
        assert_eq!([heir("k", "l"), heir("l", "m"), heir("n", "o")], [BELOW, BELOW, Heir::No]);
    }

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
