//! What an optimistic transaction has read, until it is looked at ([`super::validate`]).
//!
//! Spans that touch become one, so a scan is one range however many windows it took, and a key that is read again costs nothing.
//!
//! # Memory
//! The set has a limit in bytes, and one in ranges, which is what locking them costs. Beyond it the set gets coarser: neighbours
//! that lie close to each other become one range with what is between them, until half of the limit is free again. That is always
//! right: a coarser set means that more is locked, and that more changes count as conflicts, but none is missed. How close two keys
//! are is the difference of the two as binary fractions, so what was read here and what was read there stay apart as long as they can.
//! A thinning costs a sort, and halves the set: for each key that is read, a logarithm.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::db::table::Table;

#[cfg(test)]
mod tests;

/// What a span costs in memory beside its bytes, about, with what thinning takes.
const OVERHEAD: usize = 160;
/// More ranges than that are not kept: each is locked in all parts of the lock table.
const MOST_RANGES: usize = 1024;

/// Keys and ranges that were read.
#[derive(Debug)]
pub(crate) struct ReadSet {
    tables: SmallVec<[(Arc<Table>, Spans); 2]>,
    bytes: usize,
    ranges: usize,
    limit: usize,
}

/// By where they begin; no two of them touch.
type Spans = BTreeMap<Box<[u8]>, End>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    /// A key by itself.
    Key,
    /// A range.
    Before(Box<[u8]>),
    /// A range, to the end.
    All,
}

impl End {
    fn bytes(&self) -> usize {
        if let End::Before(end) = self { end.len() } else { 0 }
    }

    /// Whether a span that begins at `start` and ends so goes on to `key`, which is not before it, or to right before it.
    fn touches(&self, start: &[u8], key: &[u8]) -> bool {
        match self {
            End::Key => key == start || key.strip_prefix(start) == Some(&[0]),
            End::Before(end) => key <= &**end,
            End::All => true,
        }
    }

    /// The end of a span that begins at `start` and ends so, as the end of a range.
    fn of_range(self, start: &[u8]) -> End {
        match self {
            End::Key => End::Before([start, &[0]].concat().into()),
            end => end,
        }
    }

    /// The farther one of two ends of ranges.
    fn farther(self, other: End) -> End {
        match (self, other) {
            (End::Before(a), End::Before(b)) => End::Before(a.max(b)),
            _ => End::All,
        }
    }
}

/// A key, or a range from there to its end.
pub(crate) type Read<'r> = (&'r Arc<Table>, &'r [u8], Option<Option<&'r [u8]>>);

impl ReadSet {
    /// One that takes about `limit` bytes of memory at most.
    pub(crate) fn new(limit: usize) -> ReadSet {
        ReadSet { tables: SmallVec::new(), bytes: 0, ranges: 0, limit }
    }

    /// Memory that it takes, about.
    pub(crate) fn memory(&self) -> usize {
        self.bytes
    }

    /// What was read, or more, in order by subtable; nothing twice.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Read<'_>> {
        self.tables.iter().flat_map(|(table, spans)| {
            spans.iter().map(move |(start, end)| {
                let range = match end {
                    End::Key => None,
                    End::Before(end) => Some(Some(&**end)),
                    End::All => Some(None),
                };
                (table, &**start, range)
            })
        })
    }

    /// A key was read.
    pub(crate) fn key(&mut self, table: &Arc<Table>, key: &[u8]) {
        self.add(table, key, End::Key);
    }

    /// A range was read.
    pub(crate) fn range(&mut self, table: &Arc<Table>, start: &[u8], end: Option<&[u8]>) {
        if end.is_none_or(|end| start < end) {
            self.add(table, start, end.map_or(End::All, |end| End::Before(end.into())));
        }
    }

    fn add(&mut self, table: &Arc<Table>, start: &[u8], end: End) {
        let found = self.tables.iter().position(|(t, _)| Arc::ptr_eq(t, table));
        let at = found.unwrap_or_else(|| {
            self.tables.push((table.clone(), Spans::new()));
            self.tables.len() - 1
        });
        self.join(at, start, end);
        if self.bytes > self.limit {
            self.thin_out(false);
        }
        if self.ranges > MOST_RANGES {
            self.thin_out(true);
        }
    }

    /// Makes it take about `limit` bytes at most, as far as one range for each subtable allows.
    pub(crate) fn shrink_to(&mut self, limit: usize) {
        while self.bytes > limit && self.tables.iter().any(|(_, spans)| spans.len() > 1) {
            self.thin_out(false);
        }
    }

    /// Adds a span, as one with all that it touches.
    fn join(&mut self, at: usize, start: &[u8], end: End) {
        let spans = &mut self.tables[at].1;
        let before = spans.range::<[u8], _>((Bound::Unbounded, Bound::Included(start))).next_back();
        let (start, mut end): (Box<[u8]>, End) = match before {
            Some((s, e)) if e.touches(s, start) => {
                let is_in = match (e, &end) {
                    (End::All, _) => true,
                    (End::Key, End::Key) => **s == *start,
                    (End::Before(e), End::Key) => *start < **e,
                    (End::Before(e), End::Before(end)) => end <= e,
                    (_, _) => false,
                };
                if is_in {
                    return;
                }
                let (s, e) = (s.clone(), e.clone());
                self.take_out(at, &s);
                let end = end.of_range(start).farther(e.of_range(&s));
                (s, end)
            }
            _ => (start.into(), end),
        };
        loop {
            let behind = (Bound::Excluded(&*start), Bound::Unbounded);
            let Some((s, e)) = self.tables[at].1.range::<[u8], _>(behind).next() else { break };
            if !end.touches(&start, s) {
                break;
            }
            let (s, e) = (s.clone(), e.clone());
            self.take_out(at, &s);
            end = end.of_range(&start).farther(e.of_range(&s));
        }
        self.count(&start, &end);
        self.tables[at].1.insert(start, end);
    }

    fn count(&mut self, start: &[u8], end: &End) {
        self.bytes += start.len() + end.bytes() + OVERHEAD;
        self.ranges += usize::from(*end != End::Key);
    }

    fn take_out(&mut self, at: usize, start: &[u8]) {
        if let Some(end) = self.tables[at].1.remove(start) {
            self.bytes -= start.len() + end.bytes() + OVERHEAD;
            self.ranges -= usize::from(end != End::Key);
        }
    }

    /// Joins neighbours: so many that of ranges at most half as many as there may be are left, and (unless `ranges_only`) half of the
    /// spans; those first between which there is least. If `ranges_only`, keys become part of a range only where they lie between two.
    fn thin_out(&mut self, ranges_only: bool) {
        let tables = std::mem::take(&mut self.tables);
        let (names, spans): (SmallVec<[_; 2]>, SmallVec<[_; 2]>) = tables.into_iter().unzip();
        let mut all: Vec<(usize, Box<[u8]>, End)> = Vec::new();
        for (at, spans) in spans.into_iter().enumerate() {
            all.extend(spans.into_iter().map(|(start, end)| (at, start, end)));
        }
        let mut gaps = gaps(&all, ranges_only);
        gaps.sort_unstable();
        let (mut ranges, mut left) = (self.ranges, all.len());
        // Whether a span is one with the one before it.
        let mut joined = vec![false; all.len()];
        let is_range = |joined: &[bool], i: usize| {
            all[i].2 != End::Key || joined[i] || joined.get(i + 1).is_some_and(|joined| *joined)
        };
        for Gap { first, last, .. } in gaps {
            if ranges <= MOST_RANGES / 2 && (ranges_only || left <= all.len() / 2) {
                break;
            }
            let both = usize::from(is_range(&joined, first)) + usize::from(is_range(&joined, last));
            ranges = ranges + 1 - both;
            left -= last - first;
            joined[first + 1..=last].fill(true);
        }
        (self.bytes, self.ranges) = (0, 0);
        self.tables = names.into_iter().map(|table| (table, Spans::new())).collect();
        let mut open: Option<(usize, Box<[u8]>, End)> = None;
        for ((at, start, end), joined) in all.into_iter().zip(joined) {
            open = Some(match open {
                Some((t, s, e)) if joined => {
                    let end = e.of_range(&s).farther(end.of_range(&start));
                    (t, s, end)
                }
                done => {
                    self.put_back(done);
                    (at, start, end)
                }
            });
        }
        self.put_back(open);
    }

    fn put_back(&mut self, span: Option<(usize, Box<[u8]>, End)>) {
        if let Some((at, start, end)) = span {
            self.count(&start, &end);
            self.tables[at].1.insert(start, end);
        }
    }
}

/// What lies between two spans of a subtable. The first in order is the smallest.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Gap {
    size: (i64, u64),
    first: usize,
    last: usize,
}

fn gaps(all: &[(usize, Box<[u8]>, End)], ranges_only: bool) -> Vec<Gap> {
    let mut gaps = Vec::new();
    let mut before: Option<usize> = None;
    for (last, (table, start, end)) in all.iter().enumerate() {
        if ranges_only && *end == End::Key {
            continue;
        }
        if let Some(first) = before
            && all[first].0 == *table
        {
            let from = if let End::Before(end) = &all[first].2 { end } else { &all[first].1 };
            gaps.push(Gap { size: distance(from, start), first, last });
        }
        before = Some(last);
    }
    gaps
}

/// How far `b` lies behind `a`, as something to compare: a binary exponent, and the digits behind it. Keys are taken as binary
/// fractions, of which the eight bytes count where they begin to differ.
fn distance(a: &[u8], b: &[u8]) -> (i64, u64) {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let digits = |key: &[u8]| {
        let mut eight = [0; 8];
        let tail = &key[same..key.len().min(same + 8)];
        eight[..tail.len()].copy_from_slice(tail);
        u64::from_be_bytes(eight)
    };
    let difference = digits(b).saturating_sub(digits(a));
    if difference == 0 {
        return (i64::MIN, 0);
    }
    let zeros = difference.leading_zeros();
    (-(8 * same as i64) - i64::from(zeros), difference << zeros)
}
