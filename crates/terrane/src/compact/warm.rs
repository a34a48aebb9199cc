//! Which keys of a task's input are in the cache: what is written in their place goes there too.

use crate::levels::Heir;

/// The range of a block: from its first key to the first one behind it.
pub(crate) type Span<'a> = (&'a [u8], &'a [u8]);

/// See the module's head. Asked about blocks in key order.
#[derive(Debug)]
pub(crate) struct Warm<'a> {
    read: Spans<'a>,
    unread: Spans<'a>,
}

/// Disjoint ranges in order.
#[derive(Debug)]
struct Spans<'a> {
    spans: Vec<Span<'a>>,
    at: usize,
}

impl<'a> Warm<'a> {
    /// From the ranges of cached blocks, those that were read and those that were not, in any order.
    pub(crate) fn new(read: Vec<Span<'a>>, unread: Vec<Span<'a>>) -> Self {
        Warm { read: Spans::new(read), unread: Spans::new(unread) }
    }

    /// What becomes of a block from `first` to `last`. Blocks come in ascending order.
    pub(crate) fn heir(&mut self, first: &[u8], last: &[u8]) -> Heir {
        match (self.read.meets(first, last), self.unread.meets(first, last)) {
            (true, _) => Heir::Yes,
            (false, true) => Heir::IfRoom,
            (false, false) => Heir::No,
        }
    }
}

impl<'a> Spans<'a> {
    fn new(mut spans: Vec<Span<'a>>) -> Self {
        spans.sort_unstable();
        spans.dedup_by(|next, before| {
            let joins = next.0 <= before.1;
            if joins {
                before.1 = before.1.max(next.1);
            }
            joins
        });
        Spans { spans, at: 0 }
    }

    fn meets(&mut self, first: &[u8], last: &[u8]) -> bool {
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
        let s = Spans::new(vec![
            (b"m", b"p"),
            (b"a", b"c"),
            (b"b", b"d"),
            (b"d", b"e"),
            (b"n", b"o"),
            (b"x", b"z"),
        ]);
        assert_eq!(s.spans, [(&b"a"[..], &b"e"[..]), (b"m", b"p"), (b"x", b"z")]);
    }

    #[test]
    fn blocks_take_after_what_they_overlap() {
        let mut w = Warm::new(vec![(b"c", b"e")], vec![(b"d", b"g"), (b"k", b"m")]);
        let mut heir = |first: &str, last: &str| w.heir(first.as_bytes(), last.as_bytes());
        assert_eq!(heir("a", "b"), Heir::No);
        assert_eq!(heir("b", "c"), Heir::Yes, "the first key of a range is in it");
        assert_eq!(heir("d", "f"), Heir::Yes, "what was read counts more");
        assert_eq!(heir("e", "j"), Heir::IfRoom, "the end of a range is not in it");
        assert_eq!(heir("l", "z"), Heir::IfRoom);
        assert_eq!(heir("zz", "zzz"), Heir::No);
        let mut none = Warm::new(Vec::new(), Vec::new());
        assert_eq!(none.heir(b"a", b"z"), Heir::No);
    }
}
