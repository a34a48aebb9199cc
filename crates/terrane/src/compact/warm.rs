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
        Some(true) => Heir::Yes { below: true },
        // It would come there when the cache evicts it.
        Some(false) if cache.has_below() => Heir::Below { index: false },
        None if cache.is_used_below(replaced) => Heir::Below { index: false },
        _ => Heir::No,
    }
}

/// A block of a task's input.
#[derive(Debug)]
pub(crate) struct SeenBlock<'a> {
    /// What [`heir_of`] says of it.
    pub(crate) heir: Heir,
    pub(crate) span: Span<'a>,
    pub(crate) bytes: u32,
    /// It lies in the level that is merged into.
    pub(crate) in_target: bool,
}

/// What readers have of a task's input.
#[derive(Debug)]
pub(crate) struct Seen<'a> {
    cached: Warm<'a>,
    /// Of the level that is merged into, whose blocks are replaced about one for one, and of those above.
    below: [Below<'a>; 2],
}

/// What lies below the cache, or would come there from it. As much may go there in its place, about: a block of a level above
/// meets many of the level that it is merged with, and were all of these to follow it, they would push out what others have
/// there.
#[derive(Debug)]
struct Below<'a> {
    spans: Warm<'a>,
    allowance: usize,
}

impl<'a> Seen<'a> {
    pub(crate) fn new(blocks: impl IntoIterator<Item = SeenBlock<'a>>) -> Self {
        let (mut cached, mut below) = (Vec::new(), [(Vec::new(), 0), (Vec::new(), 0)]);
        for block in blocks {
            match block.heir {
                Heir::Yes { .. } => cached.push(block.span),
                Heir::Below { .. } => {
                    let (spans, allowance) = &mut below[usize::from(!block.in_target)];
                    spans.push(block.span);
                    *allowance += block.bytes as usize;
                }
                Heir::Index | Heir::No => {}
            }
        }
        let below = below.map(|(spans, allowance)| Below { spans: Warm::new(spans), allowance });
        Seen { cached: Warm::new(cached), below }
    }

    /// What becomes of a block of so many bytes from `first` to `last`. Blocks come in ascending order.
    pub(crate) fn heir(&mut self, first: &[u8], last: &[u8], bytes: usize) -> Heir {
        let is_cached = self.cached.meets(first, last);
        let mut goes_below = false;
        for below in &mut self.below {
            if below.spans.meets(first, last) && !goes_below && below.allowance > 0 {
                below.allowance = below.allowance.saturating_sub(bytes);
                goes_below = true;
            }
        }
        match (is_cached, goes_below) {
            (true, below) => Heir::Yes { below },
            (false, true) => Heir::Below { index: false },
            (false, false) => Heir::No,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BELOW: Heir = Heir::Below { index: false };

    fn block<'a>(heir: Heir, span: Span<'a>, bytes: u32, in_target: bool) -> SeenBlock<'a> {
        SeenBlock { heir, span, bytes, in_target }
    }

    #[test]
    fn as_much_goes_below_as_lay_there() {
        let blocks = [
            block(Heir::Yes { below: true }, (b"c", b"e"), 1000, true),
            block(BELOW, (b"a", b"d"), 100, true),
            block(BELOW, (b"k", b"p"), 150, true),
        ];
        let mut seen = Seen::new(blocks);
        let mut heir = |first: &str, last: &str| seen.heir(first.as_bytes(), last.as_bytes(), 100);
        assert_eq!(heir("a", "b"), BELOW);
        assert_eq!(heir("b", "c"), Heir::Yes { below: true }, "the cache comes first");
        assert_eq!(heir("d", "e"), Heir::Yes { below: false }, "nothing of it lay below");
        assert_eq!(heir("f", "g"), Heir::No);
        assert_eq!([heir("k", "l"), heir("l", "m")], [BELOW, Heir::No]);
    }

    #[test]
    fn a_wide_block_from_above_takes_nothing_from_those_that_it_is_merged_with() {
        let blocks = [block(BELOW, (b"a", b"z"), 200, false), block(BELOW, (b"x", b"y"), 100, true)];
        let mut seen = Seen::new(blocks);
        let mut heir = |key: &str| seen.heir(key.as_bytes(), key.as_bytes(), 100);
        assert_eq!([heir("b"), heir("c"), heir("d")], [BELOW, BELOW, Heir::No]);
        assert_eq!([heir("x"), heir("y")], [BELOW, Heir::No]);
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
