//! Merging sources into the keys and values that a snapshot shows.
//!
//! # Invariants
//! Going forward, every source stands on its first key above the last one shown; going backward, on its last key below
//! it. The current entry is the smallest (largest) key among them, from the newest source that has it. Sources are kept
//! newest first; a snapshot sees at most a dozen, so a linear choice beats a heap.
//!
//! # Range tombstones
//! A tombstone hides older records only: those of its own source with lower sequences, and all records of older
//! sources. A key found under one is skipped, and after a few in a row the older sources are moved past the tombstone in
//! one seek, whichever way the scan goes, so that a deleted range costs nothing per deleted key.

use std::cmp::Ordering;

use smallvec::SmallVec;
use terrane_base::{Result, Seq};
use terrane_cache::{Cache, Pin};
use terrane_format::block::order as order_of;

use crate::read::entry::Entry;
use crate::read::lead::Lead;
use crate::read::lookup::Need;
use crate::read::scan::{SOURCES, empty};
use crate::read::skipped::Skipped;
use crate::read::source::{Seeking, Source};
use crate::tombstone::Fragment;

/// Keys skipped one by one under a range tombstone before seeking past it.
const SKIPS_BEFORE_SEEK: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// Sources, by their numbers; of those from [`Ties::TOLD_APART`] on it says only whether there may be any.
#[derive(Clone, Copy, Debug, Default)]
struct Ties(u64);

impl Ties {
    const TOLD_APART: usize = 63;
    /// Whoever it may be.
    const UNKNOWN: Ties = Ties(u64::MAX);

    fn bit(source: usize) -> u64 {
        1 << source.min(Ties::TOLD_APART)
    }

    fn add(&mut self, source: usize) {
        self.0 |= Ties::bit(source);
    }

    fn any(self) -> bool {
        self.0 != 0
    }

    fn may_have(self, source: usize) -> bool {
        self.0 & Ties::bit(source) != 0
    }
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Merge {
    /// Newest first.
    sources: Vec<Source>,
    direction: Direction,
    /// The source that has the current entry.
    current: Option<usize>,
    /// Older ones that stand on the same key.
    ties: Ties,
    /// The current entry came from the source that had the one before, or by a seek.
    again: bool,
    any_tombstones: bool,
    /// A deleted key being left; kept for its memory.
    key: Vec<u8>,
    /// Deletions stepped over since the last positioning.
    pub(crate) skipped: Skipped,
}

impl Merge {
    pub(crate) fn new(sources: Vec<Source>) -> Self {
        let any_tombstones = sources.iter().any(Source::has_tombstones);
        Merge {
            sources,
            direction: Direction::Forward,
            current: None,
            ties: Ties::default(),
            again: false,
            any_tombstones,
            key: Vec::new(),
            skipped: Skipped::default(),
        }
    }

    /// Pins no block and no picture, and keeps but little memory, until [`Merge::show_as_of`].
    pub(crate) fn rest(&mut self) {
        self.sources.iter_mut().for_each(Source::rest);
        self.current = None;
        empty(&mut self.key);
        self.skipped = Skipped::default();
    }

    /// Shows from now on what `snapshot` sees; to be followed by a seek.
    pub(crate) fn show_as_of(&mut self, snapshot: Seq) {
        self.sources.iter_mut().for_each(|s| s.show_as_of(snapshot));
        self.any_tombstones = self.sources.iter().any(Source::has_tombstones);
    }

    pub(crate) fn valid(&self) -> bool {
        self.current.is_some()
    }

    /// Where the deletions lie that were stepped over: see [`Skipped::range`].
    pub(crate) fn stepped_over(&self) -> (Vec<u8>, Option<Vec<u8>>) {
        let here = self.valid().then(|| self.key());
        self.skipped.range(here, self.direction == Direction::Forward)
    }

    fn source(&self) -> Option<&Source> {
        self.current.map(|at| &self.sources[at])
    }

    /// The current key; empty when not valid.
    pub(crate) fn key(&self) -> &[u8] {
        self.source().map_or(&[], Source::key)
    }

    /// Makes `entry` the current one.
    #[inline]
    pub(crate) fn show(&self, entry: &mut Entry) {
        if let Some(source) = self.source() {
            entry.set(source.key(), source.kind(), source.value());
        }
    }

    /// Lends the current source's position to `lead`, if no other source has a say in what comes next and that seems to last.
    /// The key is below `upper`.
    #[inline]
    pub(crate) fn lend(&mut self, lead: &mut Lead, upper: Option<&[u8]>) -> Result<()> {
        let forward = self.direction == Direction::Forward;
        let Some(at) = self.current.filter(|_| forward && !self.any_tombstones) else { return Ok(()) };
        let (newer, rest) = self.sources.split_at_mut(at);
        match rest.split_first_mut() {
            Some((leader, older)) if self.again || leader.has_led_far() => {
                leader.lend(lead, newer.iter().chain(older.iter()), upper)
            }
            _ => Ok(()),
        }
    }

    /// Takes back what was lent, to go on from there.
    pub(crate) fn take_back(&mut self, lead: &mut Lead) -> Result<()> {
        self.current.map_or(Ok(()), |at| self.sources[at].take_back(lead))
    }

    /// To the first shown key at or after `key`. `fetch` brings the blocks that memory does not hold, of all sources at once.
    pub(crate) fn seek(
        &mut self,
        cache: &Cache,
        key: &[u8],
        fetch: impl FnOnce(&[&Need]) -> Result<Vec<Pin>>,
    ) -> Result<()> {
        self.skipped.begin();
        self.current = None;
        self.seek_in_turns(cache, key)?;
        let mut needs = Vec::new();
        for (at, s) in self.sources.iter_mut().enumerate() {
            needs.extend(s.go_on_seeking(key)?.map(|need| (at, need)));
        }
        let mut pins = Vec::new();
        if !needs.is_empty() {
            pins = fetch(&needs.iter().map(|(_, need)| need).collect::<Vec<_>>())?;
        }
        let mut fetched = needs.iter().map(|(at, _)| *at).zip(pins).peekable();
        for (at, s) in self.sources.iter_mut().enumerate() {
            let block = fetched.next_if(|(of, _)| *of == at).map(|(_, pin)| pin);
            s.end_seek(key, block)?;
        }
        self.direction = Direction::Forward;
        self.again = true;
        self.choose()
    }

    /// Has the sources seek in turns, as far as memory has what they look at: while one waits for what it has asked the processor for,
    /// the others go on.
    fn seek_in_turns(&mut self, cache: &Cache, key: &[u8]) -> Result<()> {
        let hold = cache.hold();
        if let [alone] = &mut self.sources[..] {
            return alone.begin_seek(&hold, key).finish();
        }
        let mut seeks: SmallVec<[Seeking<'_>; SOURCES]> = SmallVec::new();
        seeks.extend(self.sources.iter_mut().map(|s| s.begin_seek(&hold, key)));
        let mut under_way = true;
        while std::mem::take(&mut under_way) {
            for seek in &mut seeks {
                under_way |= seek.step()?;
            }
        }
        seeks.drain(..).try_for_each(Seeking::finish)
    }

    pub(crate) fn seek_for_prev(&mut self, key: &[u8]) -> Result<()> {
        self.skipped.begin();
        self.current = None;
        for s in &mut self.sources {
            s.seek_for_prev(key)?;
        }
        self.direction = Direction::Backward;
        self.choose()
    }

    pub(crate) fn seek_first(&mut self) -> Result<()> {
        self.skipped.begin();
        self.current = None;
        for s in &mut self.sources {
            s.seek_first()?;
        }
        self.direction = Direction::Forward;
        self.again = true;
        self.choose()
    }

    pub(crate) fn seek_last(&mut self) -> Result<()> {
        self.skipped.begin();
        self.current = None;
        for s in &mut self.sources {
            s.seek_last()?;
        }
        self.direction = Direction::Backward;
        self.choose()
    }

    /// To the next shown key; not valid at the end. `key` is the one that it leaves.
    pub(crate) fn next(&mut self, key: &[u8]) -> Result<()> {
        let Some(at) = self.current.take() else { return Ok(()) };
        if self.direction == Direction::Backward {
            for (i, s) in self.sources.iter_mut().enumerate() {
                if i != at {
                    s.seek(key)?;
                }
            }
            self.direction = Direction::Forward;
            self.ties = Ties::UNKNOWN;
        }
        self.leave(at, key)?;
        self.choose()?;
        self.again = self.current == Some(at);
        Ok(())
    }

    /// To the shown key before; not valid at the beginning. `key` is the one that it leaves.
    pub(crate) fn prev(&mut self, key: &[u8]) -> Result<()> {
        let Some(at) = self.current.take() else { return Ok(()) };
        if self.direction == Direction::Forward {
            for (i, s) in self.sources.iter_mut().enumerate() {
                if i != at {
                    s.seek_for_prev(key)?;
                }
            }
            self.direction = Direction::Backward;
            self.ties = Ties::UNKNOWN;
        }
        self.leave(at, key)?;
        self.choose()
    }

    /// Moves every source that stands on `key`, the key of source `at`, one key on.
    fn leave(&mut self, at: usize, key: &[u8]) -> Result<()> {
        let forward = self.direction == Direction::Forward;
        // Only older sources can stand on the same key with something to skip: `at` is the newest that has it.
        let ties = std::mem::take(&mut self.ties);
        if ties.any() {
            for (i, s) in self.sources.iter_mut().enumerate().skip(at + 1) {
                if ties.may_have(i) && s.valid() && s.key() == key {
                    if forward { s.next(key)? } else { s.prev(key)? }
                }
            }
        }
        if forward { self.sources[at].next(key) } else { self.sources[at].prev(key) }
    }

    /// Picks the current entry among the sources' positions, stepping over deleted keys.
    fn choose(&mut self) -> Result<()> {
        let mut skips = 0;
        loop {
            let Some(at) = self.nearest() else {
                self.current = None;
                return Ok(());
            };
            let deleted = if self.sources[at].kind().is_delete() {
                true
            } else if self.any_tombstones {
                match self.hidden_by(at)? {
                    None => false,
                    Some((by, tombstone)) => {
                        skips += 1;
                        if skips > SKIPS_BEFORE_SEEK && by < at {
                            // All that sources older than `by` have under the tombstone is hidden.
                            let forward = self.direction == Direction::Forward;
                            let edge = if forward { tombstone.end } else { tombstone.start }.to_vec();
                            self.leap(by + 1, &edge)?;
                            self.skipped.add(&edge, false);
                            continue;
                        }
                        true
                    }
                }
            } else {
                false
            };
            if !deleted {
                self.current = Some(at);
                return Ok(());
            }
            let mut key = std::mem::take(&mut self.key);
            key.clear();
            key.extend_from_slice(self.sources[at].key());
            self.skipped.add(&key, at == 0 && matches!(self.sources[0], Source::Mem(_)));
            self.leave(at, &key)?;
            self.key = key;
        }
    }

    /// Moves the sources from `first` on past what a tombstone hides: forward to its end `edge`, or backward to before
    /// its start `edge`.
    fn leap(&mut self, first: usize, edge: &[u8]) -> Result<()> {
        for s in &mut self.sources[first..] {
            match self.direction {
                Direction::Forward if s.valid() && s.key() < edge => s.seek(edge)?,
                Direction::Backward if s.valid() && s.key() >= edge => {
                    s.seek_for_prev(edge)?;
                    if s.valid() && s.key() == edge {
                        s.prev(edge)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The newest source among those that stand on the nearest key. Notes the others.
    fn nearest(&mut self) -> Option<usize> {
        let (mut best, mut ties): (Option<(usize, &[u8])>, _) = (None, Ties::default());
        for (i, s) in self.sources.iter().enumerate() {
            if !s.valid() {
                continue;
            }
            let key = s.key();
            let order = match best {
                None => Ordering::Less,
                Some((_, b)) if self.direction == Direction::Forward => order_of(key, b),
                Some((_, b)) => order_of(b, key),
            };
            match order {
                Ordering::Less => (best, ties) = (Some((i, key)), Ties::default()),
                Ordering::Equal => ties.add(i),
                Ordering::Greater => {}
            }
        }
        self.ties = ties;
        best.map(|(i, _)| i)
    }

    /// The source whose range tombstone hides the entry of source `at`, and that tombstone.
    fn hidden_by(&self, at: usize) -> Result<Option<(usize, Fragment<'_>)>> {
        let entry = &self.sources[at];
        let (key, seq): (&[u8], Seq) = (entry.key(), entry.seq());
        for (i, s) in self.sources[..=at].iter().enumerate() {
            if s.has_tombstones()
                && let Some(tombstone) = s.covering(key)?
                && tombstone.seq > seq
            {
                return Ok(Some((i, tombstone)));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use terrane_format::Kind;

    use super::*;
    use crate::memtable::{Memtable, MemtableBudget};
    use crate::options::IndexKind;
    use crate::tombstone::During;

    fn source(records: impl IntoIterator<Item = (Kind, Vec<u8>, Vec<u8>)>, first: Seq) -> Source {
        let m = Memtable::new(IndexKind::Art, 0, &MemtableBudget::shared(1 << 20), Arc::default());
        for (seq, (kind, key, value)) in (first..).zip(records) {
            m.insert(seq - 1, seq, kind, &key, &value, During::Replay).unwrap();
        }
        Source::memtable(Arc::new(m), 1 << 40)
    }

    #[test]
    fn a_deleted_range_is_leapt_over_in_both_directions() {
        let key = |n: u32| n.to_be_bytes().to_vec();
        let old = source((0..10_000).map(|n| (Kind::Put, key(n), Vec::new())), 1);
        // The first key of the range is gone, its end is not; one within was put again.
        let changes = [(Kind::RangeDelete, key(100), key(9900)), (Kind::Put, key(5000), Vec::new())];
        let new = source(changes, 20_000);
        let mut merge = Merge::new(vec![new, old]);
        let want: Vec<Vec<u8>> = (0..100).chain([5000]).chain(9900..10_000).map(key).collect();
        for forward in [true, false] {
            let mut seen: Vec<Vec<u8>> = Vec::new();
            if forward {
                merge.seek_first().unwrap()
            } else {
                merge.seek_last().unwrap()
            }
            while merge.valid() {
                let key = merge.key().to_vec();
                if forward {
                    merge.next(&key).unwrap()
                } else {
                    merge.prev(&key).unwrap()
                }
                seen.push(key);
            }
            if !forward {
                seen.reverse();
            }
            assert_eq!(seen, want);
            let steps = merge.skipped.count();
            assert!(steps < 20, "{steps} steps over 9800 deleted keys, forward: {forward}");
        }
    }
}
