//! One sorted source of a read: a memtable or a run, seen through a snapshot.
//!
//! A source yields each key at most once, with the newest version at or below the snapshot (a deletion counts as a
//! version). That makes merging sources symmetrical in both directions: among sources that stand on the same key, the
//! newest source wins, because newer sources hold newer versions of a key.

use std::sync::Arc;

use terrane_base::{Result, Seq};
use terrane_cache::{Cache, Hold, Pin};
use terrane_format::Kind;
use terrane_format::block::order;
use terrane_memindex::{Cursor as MemCursor, Record, Seeking as MemSeek};

use crate::levels::Run;
use crate::memtable::Memtable;
use crate::read::entry::Place;
use crate::read::lead::Lead;
use crate::read::lookup::Need;
use crate::read::run_cursor::{RunCursor, RunSeek};
use crate::read::scan::{RESTING_BYTES, empty};
use crate::tombstone::{Fragment, Picture};

/// See the module's head.
#[derive(Debug)]
pub(crate) enum Source {
    Mem(MemSource),
    Run(Box<RunSource>),
}

macro_rules! each {
    ($self:expr, $s:ident => $e:expr) => {
        match $self {
            Source::Mem($s) => $e,
            Source::Run($s) => $e,
        }
    };
}

impl Source {
    pub(crate) fn memtable(memtable: Arc<Memtable>, snapshot: Seq) -> Self {
        let tombstones = memtable.tombstones.picture(snapshot);
        Source::Mem(MemSource { memtable, cursor: MemCursor::new(), snapshot, tombstones, kind: Kind::Put })
    }

    pub(crate) fn run(run: Arc<Run>, cache: Arc<Cache>, snapshot: Seq) -> Self {
        Source::Run(Box::new(RunSource { cursor: RunCursor::new(run, cache), snapshot, skip: Vec::new() }))
    }

    /// Pins no block and no picture, and keeps but little memory, until [`Source::show_as_of`].
    pub(crate) fn rest(&mut self) {
        match self {
            Source::Mem(s) => {
                s.tombstones = Ok(None);
                s.cursor.rest(RESTING_BYTES);
            }
            Source::Run(s) => {
                s.cursor.rest();
                empty(&mut s.skip);
            }
        }
    }

    /// Shows from now on what `snapshot` sees; to be followed by a seek.
    pub(crate) fn show_as_of(&mut self, snapshot: Seq) {
        match self {
            Source::Mem(s) => {
                s.snapshot = snapshot;
                s.tombstones = s.memtable.tombstones.picture(snapshot);
            }
            Source::Run(s) => s.snapshot = snapshot,
        }
    }

    pub(crate) fn valid(&self) -> bool {
        each!(self, s => s.valid())
    }

    pub(crate) fn key(&self) -> &[u8] {
        each!(self, s => s.key())
    }

    pub(crate) fn seq(&self) -> Seq {
        each!(self, s => s.seq())
    }

    pub(crate) fn kind(&self) -> Kind {
        each!(self, s => s.kind())
    }

    pub(crate) fn value(&self) -> Place<'_> {
        each!(self, s => s.value())
    }

    /// To the first key at or after `key`.
    pub(crate) fn seek(&mut self, key: &[u8]) -> Result<()> {
        each!(self, s => s.seek(key))
    }

    /// The first part of a seek, in steps and as far as memory has what it looks at.
    #[inline]
    pub(crate) fn begin_seek<'a>(&'a mut self, hold: &'a Hold<'a>, key: &'a [u8]) -> Seeking<'a> {
        match self {
            Source::Mem(s) => Seeking::Mem(s.cursor.seek_in_steps(s.memtable.index(), key)),
            Source::Run(s) => Seeking::Run(s.cursor.begin_seek(hold, key, s.snapshot)),
        }
    }

    /// The second part: names the block that it needs, if memory does not hold it.
    pub(crate) fn go_on_seeking(&mut self, key: &[u8]) -> Result<Option<Need>> {
        match self {
            Source::Mem(s) => s.settle(true).map(|()| None),
            Source::Run(s) => s.cursor.go_on_seeking(key, s.snapshot),
        }
    }

    /// The last part, with the block that was named.
    pub(crate) fn end_seek(&mut self, key: &[u8], block: Option<Pin>) -> Result<()> {
        match self {
            Source::Mem(_) => Ok(()),
            Source::Run(s) => {
                s.cursor.end_seek(key, s.snapshot, block)?;
                s.settle_forward()
            }
        }
    }

    /// To the last key at or before `key`.
    pub(crate) fn seek_for_prev(&mut self, key: &[u8]) -> Result<()> {
        each!(self, s => s.seek_for_prev(key))
    }

    pub(crate) fn seek_first(&mut self) -> Result<()> {
        each!(self, s => s.seek_first())
    }

    pub(crate) fn seek_last(&mut self) -> Result<()> {
        each!(self, s => s.seek_last())
    }

    /// To the next key. `key` is the one that it leaves.
    pub(crate) fn next(&mut self, key: &[u8]) -> Result<()> {
        match self {
            Source::Mem(s) => s.next(),
            Source::Run(s) => s.next(key),
        }
    }

    /// To the key before. `key` is the one that it leaves.
    pub(crate) fn prev(&mut self, key: &[u8]) -> Result<()> {
        match self {
            Source::Mem(s) => s.prev(),
            Source::Run(s) => s.prev(key),
        }
    }

    /// Whether lending its position was worth its while the last time.
    #[inline]
    pub(crate) fn has_led_far(&self) -> bool {
        matches!(self, Source::Run(s) if s.cursor.has_led_far())
    }

    /// Lends its position to `lead`, if it is a run, up to the first key of `others`, the sources beside it, or `upper`,
    /// whichever is less.
    pub(crate) fn lend<'a>(
        &mut self,
        lead: &mut Lead,
        others: impl Iterator<Item = &'a Source>,
        upper: Option<&'a [u8]>,
    ) -> Result<()> {
        let Source::Run(s) = self else { return Ok(()) };
        let mut end = s.cursor.part_end();
        for key in others.filter(|o| o.valid()).map(Source::key).chain(upper) {
            if end.is_none_or(|end| order(key, end).is_lt()) {
                end = Some(key);
            }
        }
        if !s.valid() || end.is_some_and(|end| order(end, s.key()).is_le()) {
            return Ok(());
        }
        lead.set_end(end);
        s.cursor.lend(lead, s.snapshot)
    }

    /// Takes back the position that it has lent.
    pub(crate) fn take_back(&mut self, lead: &mut Lead) -> Result<()> {
        match self {
            Source::Run(s) => s.cursor.take_back(lead),
            Source::Mem(_) => Ok(()),
        }
    }

    /// Whether any range tombstone may live here.
    pub(crate) fn has_tombstones(&self) -> bool {
        each!(self, s => s.has_tombstones())
    }

    /// The newest range tombstone of this source that covers `key` for the snapshot; `None` if none does.
    pub(crate) fn covering(&self, key: &[u8]) -> Result<Option<Fragment<'_>>> {
        each!(self, s => s.covering(key))
    }
}

/// A seek under way: see [`Source::begin_seek`].
pub(crate) enum Seeking<'a> {
    Mem(MemSeek<'a>),
    Run(RunSeek<'a>),
}

impl Seeking<'_> {
    /// Takes a step. Whether it is worth giving what that has asked for the time to come near.
    #[inline]
    pub(crate) fn step(&mut self) -> Result<bool> {
        match self {
            Seeking::Mem(s) => Ok(s.step()),
            Seeking::Run(s) => s.step(),
        }
    }

    /// Takes what steps there may be left, and leaves the source to [`Source::go_on_seeking`].
    #[inline]
    pub(crate) fn finish(self) -> Result<()> {
        match self {
            Seeking::Mem(s) => {
                s.finish();
                Ok(())
            }
            Seeking::Run(s) => s.finish(),
        }
    }
}

#[derive(Debug)]
pub(crate) struct MemSource {
    memtable: Arc<Memtable>,
    cursor: MemCursor,
    snapshot: Seq,
    /// As the snapshot sees them; the error is for who asks.
    tombstones: Result<Option<Picture>>,
    kind: Kind,
}

impl MemSource {
    fn valid(&self) -> bool {
        self.cursor.valid()
    }

    /// What the snapshot sees of the current key.
    fn record(&self) -> Option<Record<'_>> {
        self.cursor.shown(self.memtable.index())
    }

    fn key(&self) -> &[u8] {
        self.record().map(|r| r.key).unwrap_or_default()
    }

    fn seq(&self) -> Seq {
        self.record().map_or(0, |r| r.seq)
    }

    fn kind(&self) -> Kind {
        self.kind
    }

    fn value(&self) -> Place<'_> {
        Place::Memory(self.record().map(|r| r.value).unwrap_or_default())
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.cursor.seek(self.memtable.index(), key);
        self.settle(true)
    }

    fn seek_for_prev(&mut self, key: &[u8]) -> Result<()> {
        self.cursor.seek_for_prev(self.memtable.index(), key);
        self.settle(false)
    }

    fn seek_first(&mut self) -> Result<()> {
        self.cursor.seek_first(self.memtable.index());
        self.settle(true)
    }

    fn seek_last(&mut self) -> Result<()> {
        self.cursor.seek_last(self.memtable.index());
        self.settle(false)
    }

    fn next(&mut self) -> Result<()> {
        self.cursor.next(self.memtable.index());
        self.settle(true)
    }

    fn prev(&mut self) -> Result<()> {
        self.cursor.prev(self.memtable.index());
        self.settle(false)
    }

    /// Steps over keys whose versions are all newer than the snapshot.
    fn settle(&mut self, forward: bool) -> Result<()> {
        loop {
            self.memtable.verify_way(&self.cursor)?;
            if !self.cursor.valid() {
                return Ok(());
            }
            let shown = self.cursor.show(self.memtable.index(), self.snapshot);
            self.memtable.verify_place(&self.cursor, shown.as_ref())?;
            if let Some(r) = shown {
                self.kind = Kind::from_u8(r.kind)?;
                return Ok(());
            }
            if forward {
                self.cursor.next(self.memtable.index());
            } else {
                self.cursor.prev(self.memtable.index());
            }
        }
    }

    fn has_tombstones(&self) -> bool {
        !matches!(self.tombstones, Ok(None))
    }

    fn covering(&self, key: &[u8]) -> Result<Option<Fragment<'_>>> {
        let tombstones = self.tombstones.as_ref().map_err(Clone::clone)?;
        Ok(tombstones.as_ref().and_then(|t| t.fragment(key)))
    }
}

#[derive(Debug)]
pub(crate) struct RunSource {
    cursor: RunCursor,
    snapshot: Seq,
    /// An invisible key being stepped over; kept for its memory.
    skip: Vec<u8>,
}

impl RunSource {
    fn valid(&self) -> bool {
        self.cursor.valid()
    }

    fn key(&self) -> &[u8] {
        self.cursor.key()
    }

    fn seq(&self) -> Seq {
        self.cursor.seq()
    }

    fn kind(&self) -> Kind {
        self.cursor.kind()
    }

    fn value(&self) -> Place<'_> {
        self.cursor.value()
    }

    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.cursor.seek(key, self.snapshot)?;
        self.settle_forward()
    }

    fn seek_first(&mut self) -> Result<()> {
        self.cursor.seek_first()?;
        self.settle_forward()
    }

    fn next(&mut self, key: &[u8]) -> Result<()> {
        self.cursor.next_key(key)?;
        self.settle_forward()
    }

    /// Onto the newest visible version of the key under the cursor or of a later key.
    fn settle_forward(&mut self) -> Result<()> {
        while self.cursor.valid() && self.cursor.seq() > self.snapshot {
            self.cursor.next()?;
        }
        Ok(())
    }

    fn seek_for_prev(&mut self, key: &[u8]) -> Result<()> {
        // Sequence 0 comes last among the versions of a key.
        self.cursor.seek_for_prev(key, 0)?;
        self.settle_backward()
    }

    fn seek_last(&mut self) -> Result<()> {
        self.cursor.seek_last()?;
        self.settle_backward()
    }

    fn prev(&mut self, key: &[u8]) -> Result<()> {
        self.cursor.prev()?;
        while self.cursor.valid() && self.cursor.key() == key {
            self.cursor.prev()?;
        }
        self.settle_backward()
    }

    /// The cursor is on the oldest version of a key: onto its newest visible one, or on to an earlier key.
    fn settle_backward(&mut self) -> Result<()> {
        while self.cursor.valid() {
            if self.cursor.seq() <= self.snapshot {
                let key = self.cursor.key().to_vec();
                return self.cursor.seek(&key, self.snapshot);
            }
            // Even the oldest version is too new: the whole key is invisible.
            self.skip.clear();
            self.skip.extend_from_slice(self.cursor.key());
            while self.cursor.valid() && self.cursor.key() == self.skip {
                self.cursor.prev()?;
            }
        }
        Ok(())
    }

    fn has_tombstones(&self) -> bool {
        self.cursor.run().has_tombstones()
    }

    fn covering(&self, key: &[u8]) -> Result<Option<Fragment<'_>>> {
        let Some(r) = self.cursor.run().find(key) else { return Ok(None) };
        if !r.extent.meta.has_tombstones {
            return Ok(None);
        }
        let t = r.extent.tombstones()?;
        let Some(f) = t.next_covered(key).filter(|f| *f.start <= *key) else { return Ok(None) };
        let seq = f.newest(self.snapshot);
        // Beyond the reference's bounds other extents answer.
        let (start, end) = (f.start.as_slice().max(&r.lo), f.end.as_slice().min(&r.hi));
        Ok((seq > 0).then_some(Fragment { start, end, seq }))
    }
}
