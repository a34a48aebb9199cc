//! A cursor over the raw records of a run: all versions, in internal order (key ascending, sequence descending), across
//! blocks and extents, within the bounds of trimmed references.
//!
//! # Invariants
//! While valid: `block` is the block that `record` stands in; `number` is that block's in its extent; `at` is the extent's place
//! in the run. Versions of a key never straddle two references of a run. While its position is lent, the cursor is not valid,
//! and all but `block` and `record` stays as it is.
//!
//! Blocks that are in memory are found by direct pointer (`read::near`). The index is opened only where something has to be read.

mod ahead;
mod seek;

use std::sync::Arc;

use terrane_base::{MAX_SEQ, Result, Seq};
use terrane_cache::{Cache, Hold, Pin};
use terrane_format::Kind;
use terrane_format::block::BlockCursor;
use terrane_format::extent::{BlockHandle, Index, IndexPlace};

use self::ahead::{Ahead, LEAST_AHEAD, MOST_AHEAD, along};
pub(crate) use self::seek::RunSeek;
use crate::levels::{ExtentRef, Run};
use crate::read::blocks::{Opened, Part, load, load_along};
use crate::read::entry::Place;
use crate::read::lead::Lead;
use crate::read::lookup::Need;
use crate::read::near::Near;
use crate::read::scan::RESTING_BYTES;

/// Records before the end of a block at which the next one is brought near: enough to do until it is.
const NEAR: u32 = 8;

/// Where to seek to within a part: not before its first key. (In a whole extent there is nothing before that.)
#[inline]
fn within<'a>(part: &'a ExtentRef, trimmed: bool, key: &'a [u8], seq: Seq) -> (&'a [u8], Seq) {
    if trimmed && *part.lo > *key { (&part.lo, MAX_SEQ) } else { (key, seq) }
}

#[derive(Debug)]
pub(crate) struct RunCursor {
    run: Arc<Run>,
    cache: Arc<Cache>,
    at: usize,
    /// The index of the current extent, once it was needed.
    index: Option<Opened>,
    number: Option<u32>,
    /// What a seek in memory has left to do, until its end.
    left: Left,
    /// The block that a seek goes on in, if memory had it after all.
    found: Option<Pin>,
    block: Option<Opened>,
    record: BlockCursor,
    /// The part is not the whole extent: a block may have keys that are not the part's.
    trimmed: bool,
    /// The block behind `block` was brought near.
    expected: bool,
    /// See [`RunCursor::has_led_far`].
    led_far: bool,
    ahead: Ahead,
}

/// What a seek in memory has left to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Left {
    Nothing,
    /// To find the block by an index that has to be read.
    Index,
    /// To look into the block of this number, if there is one.
    Block,
}

impl RunCursor {
    pub(crate) fn new(run: Arc<Run>, cache: Arc<Cache>) -> Self {
        RunCursor {
            run,
            cache,
            at: usize::MAX,
            index: None,
            number: None,
            left: Left::Nothing,
            found: None,
            block: None,
            record: BlockCursor::new(),
            trimmed: false,
            expected: false,
            led_far: true,
            ahead: Ahead::NONE,
        }
    }

    #[inline]
    pub(crate) fn valid(&self) -> bool {
        self.record.valid()
    }

    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        self.record.key()
    }

    #[inline]
    pub(crate) fn seq(&self) -> Seq {
        self.record.seq()
    }

    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        self.record.kind()
    }

    /// Where the value lies (an encoded reference for large values); empty when not valid.
    #[inline]
    pub(crate) fn value(&self) -> Place<'_> {
        match &self.block {
            Some(b) => Place::Block(&b.pin, self.record.value_range()),
            None => Place::Memory(&[]),
        }
    }

    pub(crate) fn run(&self) -> &Arc<Run> {
        &self.run
    }

    pub(crate) fn clear(&mut self) {
        self.record.clear();
        self.block = None;
        self.expected = false;
    }

    /// Pins no block, keeps but little memory, and stands nowhere.
    pub(crate) fn rest(&mut self) {
        self.clear();
        self.record.rest(RESTING_BYTES);
        self.at = usize::MAX;
        (self.index, self.number, self.found) = (None, None, None);
        self.ahead = Ahead::NONE;
        self.led_far = true;
    }

    /// No key at or above it belongs to the current part of an extent; `None` where all of the extent's do.
    #[inline]
    pub(crate) fn part_end(&self) -> Option<&[u8]> {
        self.run.refs().get(self.at).filter(|_| self.trimmed).map(|r| &*r.hi)
    }

    /// Lends the position, which must be valid: up to the end of the block or, if that is far, until it is near.
    pub(crate) fn lend(&mut self, lead: &mut Lead, snapshot: Seq) -> Result<()> {
        let (Some(b), Some(part)) = (&self.block, self.run.refs().get(self.at)) else { return Ok(()) };
        let (newest, rows) = (part.extent.meta.max_seq, b.block()?.rows());
        let (first, near) = (self.record.position() + 1, rows.saturating_sub(NEAR));
        if first >= rows {
            return Ok(());
        }
        if first >= near && !self.expected {
            self.expected = true;
            self.expect_next_block();
        }
        let stop = if first < near { near } else { rows };
        lead.begin(&mut self.block, &mut self.record, stop, (snapshot, newest));
        Ok(())
    }

    /// Has the next block of this extent brought near, if memory holds it.
    fn expect_next_block(&self) {
        let (Some(part), Some(number)) = (self.run.refs().get(self.at), self.number) else { return };
        let hold = self.cache.hold();
        if let Some(near) = Near::of(&part.extent, &self.cache, &hold) {
            near.announce_ends(number + 1);
        }
    }

    /// Whether the last lead from here was worth its while. Where one run has the most of the keys, its leads are, and the others' are not.
    #[inline]
    pub(crate) fn has_led_far(&self) -> bool {
        self.led_far
    }

    /// Takes back what was lent.
    pub(crate) fn take_back(&mut self, lead: &mut Lead) -> Result<()> {
        self.led_far = lead.has_paid();
        lead.give_back(&mut self.block, &mut self.record)
    }

    /// To the first record at or after (`key`, `seq`).
    pub(crate) fn seek(&mut self, key: &[u8], seq: Seq) -> Result<()> {
        self.ahead = Ahead::NONE;
        self.enter(self.run.position(key));
        self.load_target(key, seq, false)?;
        self.seek_record(key, seq)?;
        self.settle_forward()
    }

    /// The first part of [`RunCursor::seek`]: in steps, and as far as memory has what it looks at. So several sources can seek in turns.
    #[inline]
    pub(crate) fn begin_seek<'a>(&'a mut self, hold: &'a Hold<'a>, key: &'a [u8], seq: Seq) -> RunSeek<'a> {
        self.ahead = Ahead::NONE;
        self.enter(self.run.position(key));
        RunSeek::new(self, hold, key, seq)
    }

    /// The second part: names the block that it needs, if memory does not hold it. So all sources' blocks can be read at once.
    pub(crate) fn go_on_seeking(&mut self, key: &[u8], seq: Seq) -> Result<Option<Need>> {
        self.found = None;
        let left = std::mem::replace(&mut self.left, Left::Nothing);
        match left {
            Left::Nothing => return Ok(None),
            Left::Index => self.locate_by_index(key, seq)?,
            Left::Block => {}
        }
        let Some(handle) = self.handle()? else { return Ok(None) };
        let (extent, part) = (&self.run.refs()[self.at].extent, Part::Data(handle));
        self.found = self.cache.get(part.key(extent));
        Ok(self.found.is_none().then(|| Need { extent: extent.clone(), part }))
    }

    /// The last part, with the block that was named.
    pub(crate) fn end_seek(&mut self, key: &[u8], seq: Seq, block: Option<Pin>) -> Result<()> {
        if let Some(pin) = block.or(self.found.take()) {
            self.block = Some(Opened::new(pin)?);
            self.seek_record(key, seq)?;
        }
        self.settle_forward()
    }

    /// To the last record at or before (`key`, `seq`) in internal order.
    pub(crate) fn seek_for_prev(&mut self, key: &[u8], seq: Seq) -> Result<()> {
        let after = self.run.refs().partition_point(|r| *r.lo <= *key);
        let Some(at) = after.checked_sub(1) else {
            self.clear();
            return Ok(());
        };
        if *self.run.refs()[at].hi <= *key {
            self.at = at + 1;
            return self.retreat_extent();
        }
        self.enter(at);
        self.seek_block(key, seq, false)?;
        // The cursor is at the first record at or after the target, or past this extent's end.
        if !self.record.valid() {
            if !self.last_of_extent()? {
                return self.retreat_extent();
            }
        } else if self.record.key() == key && self.record.seq() == seq {
            // Exactly on it.
        } else {
            self.step_back()?;
        }
        self.settle_backward()
    }

    pub(crate) fn seek_first(&mut self) -> Result<()> {
        match self.run.refs().first() {
            Some(r) => {
                let lo = r.lo.clone();
                self.seek(&lo, MAX_SEQ)
            }
            None => {
                self.clear();
                Ok(())
            }
        }
    }

    pub(crate) fn seek_last(&mut self) -> Result<()> {
        self.at = self.run.refs().len();
        self.retreat_extent()
    }

    /// To the next record.
    pub(crate) fn next(&mut self) -> Result<()> {
        match self.next_in_block()? {
            true => Ok(()),
            false => self.settle_forward(),
        }
    }

    /// To the first record behind those of `key`, on one of which it stands.
    pub(crate) fn next_key(&mut self, key: &[u8]) -> Result<()> {
        loop {
            let repeats = if self.next_in_block()? {
                self.record.repeats()
            } else {
                self.settle_forward()?;
                self.valid() && self.key() == key
            };
            if !repeats {
                return Ok(());
            }
        }
    }

    /// A record further. Whether that is one of the same block, and of the part for certain; else it is for
    /// [`RunCursor::settle_forward`] to say.
    #[inline]
    fn next_in_block(&mut self) -> Result<bool> {
        let Some(b) = &self.block else { return Ok(false) };
        self.record.next(b.block()?)?;
        Ok(self.record.valid() && !self.trimmed)
    }

    /// To the record before.
    pub(crate) fn prev(&mut self) -> Result<()> {
        self.step_back()?;
        self.settle_backward()
    }

    /// Makes `at` the current extent.
    fn enter(&mut self, at: usize) {
        if self.at != at {
            self.index = None;
            self.at = at;
            self.trimmed = self.run.is_trimmed_at(at);
            self.ahead.until = 0;
            // If it was given up in the extent before.
            self.ahead.bytes = self.ahead.bytes.max(LEAST_AHEAD);
        }
        self.number = None;
        self.clear();
    }

    /// The current extent's index, which is read if need be; `None` if it has no blocks.
    fn index(&mut self) -> Result<Option<Index<'_>>> {
        let Some(part) = self.run.refs().get(self.at).filter(|r| r.extent.meta.blocks > 0) else {
            return Ok(None);
        };
        let opened = match &mut self.index {
            Some(opened) => opened,
            none => none.insert(Opened::new(load(&self.cache, &part.extent, &Part::Index)?)?),
        };
        Ok(Some(Index::over(opened.block()?)))
    }

    /// What the index says of the block that the cursor is in.
    fn handle(&mut self) -> Result<Option<BlockHandle>> {
        let Some(number) = self.number else { return Ok(None) };
        match self.index()? {
            Some(index) => IndexPlace::to(index, number)?.handle(index),
            None => Ok(None),
        }
    }

    /// Loads the block of the extent just entered in which the target must be, if there is one; not valid yet. A target before the part of
    /// the extent is where that begins; so for all methods that seek in it.
    fn load_target(&mut self, key: &[u8], seq: Seq, forwards: bool) -> Result<()> {
        let Some(part) = self.run.refs().get(self.at) else { return Ok(()) };
        let hold = self.cache.hold();
        let Some(near) = Near::of(&part.extent, &self.cache, &hold) else {
            drop(hold);
            self.locate_by_index(key, seq)?;
            return self.load_block(forwards);
        };
        let (key, seq) = within(part, self.trimmed, key, seq);
        self.number = near.position(key, seq)?.map(|(number, _)| number);
        let pin = self.number.and_then(|number| self.pin(near, number));
        drop(hold);
        self.open(pin, forwards)
    }

    /// To the block of the current extent in which the target must be, if it is there, by the index that is read if need be.
    fn locate_by_index(&mut self, key: &[u8], seq: Seq) -> Result<()> {
        let (part, trimmed) = (self.run.refs().get(self.at).cloned(), self.trimmed);
        self.number = match (self.index()?, &part) {
            (Some(index), Some(part)) => {
                let (key, seq) = within(part, trimmed, key, seq);
                index.position(key, seq)?.map(|(number, _)| number)
            }
            _ => None,
        };
        Ok(())
    }

    /// In the block that was loaded, if there is one.
    fn seek_record(&mut self, key: &[u8], seq: Seq) -> Result<()> {
        if let (Some(b), Some(part)) = (&self.block, self.run.refs().get(self.at)) {
            let (key, seq) = within(part, self.trimmed, key, seq);
            self.record.seek(b.block()?, key, seq)?;
        }
        Ok(())
    }

    /// Within the current extent, to the first record at or after the target; not valid if there is none.
    fn seek_block(&mut self, key: &[u8], seq: Seq, forwards: bool) -> Result<()> {
        self.load_target(key, seq, forwards)?;
        self.seek_record(key, seq)?;
        if !self.record.valid() {
            self.next_block(forwards)?;
        }
        Ok(())
    }

    /// Loads the block of this number, if there is one; not valid yet. On the way forwards, those behind it are read along with
    /// it if it has to be read.
    fn load_block(&mut self, forwards: bool) -> Result<()> {
        self.clear();
        let (Some(part), Some(number)) = (self.run.refs().get(self.at), self.number) else { return Ok(()) };
        let hold = self.cache.hold();
        let pin = Near::of(&part.extent, &self.cache, &hold).and_then(|near| self.pin(near, number));
        drop(hold);
        self.open(pin, forwards)
    }

    /// Pins a block of the current extent that memory has, unless it was read along with one before it: that is for
    /// [`RunCursor::find_or_read`] to count.
    fn pin(&self, near: Near<'_>, number: u32) -> Option<Pin> {
        let known = near.known(number).filter(|known| !self.was_brought(known.offset))?;
        Some(near.block(number, known)?.pin())
    }

    /// Opens the block of this number, which is the one that was pinned, if it was.
    fn open(&mut self, pin: Option<Pin>, forwards: bool) -> Result<()> {
        self.block = match pin {
            Some(pin) => Some(Opened::new(pin)?),
            None => self.find_or_read(forwards)?.map(Opened::new).transpose()?,
        };
        Ok(())
    }

    /// Whether the block at this offset was read along with one before it.
    fn was_brought(&self, offset: u32) -> bool {
        offset < self.ahead.until
    }

    /// The block of this number by search, or from the medium.
    fn find_or_read(&mut self, forwards: bool) -> Result<Option<Pin>> {
        let Some(handle) = self.handle()? else { return Ok(None) };
        let (part, block) = (&self.run.refs()[self.at], Part::Data(handle));
        let was_brought = self.was_brought(handle.offset);
        let key = block.key(&part.extent);
        let found = if was_brought { self.cache.take_up(key) } else { self.cache.get(key) };
        if found.is_some() {
            return Ok(found);
        }
        if !forwards {
            return load(&self.cache, &part.extent, &block).map(Some);
        }
        if was_brought {
            // It had to leave before it was used.
            self.ahead.bytes = LEAST_AHEAD;
        }
        let (Some(index), Some(number)) = (&self.index, self.number) else { return Ok(None) };
        let index = Index::over(index.block()?);
        let place = IndexPlace::to(index, number)?;
        let blocks = along(&self.cache, part, index, place, handle, self.ahead.bytes);
        let (first, all) = load_along(&self.cache, &part.extent, &blocks)?;
        let read = if all == Some(true) { blocks.last() } else { None };
        self.ahead.until = read.map_or(0, BlockHandle::end);
        self.ahead.bytes = match all {
            // A place further on cannot be read.
            Some(false) => 0,
            _ => (self.ahead.bytes * 2).min(MOST_AHEAD),
        };
        Ok(Some(first))
    }

    /// Blocks of the current extent.
    fn blocks(&self) -> u32 {
        self.run.refs().get(self.at).map_or(0, |r| r.extent.meta.blocks)
    }

    /// To the first record of the next block of this extent; not valid if there is none.
    fn next_block(&mut self, forwards: bool) -> Result<()> {
        self.number = self.number.map(|n| n + 1).filter(|n| *n < self.blocks());
        self.load_block(forwards)?;
        if let Some(b) = &self.block {
            self.record.seek_first(b.block()?)?;
        }
        Ok(())
    }

    /// To the last record of block `number` of this extent; not valid if there is none.
    fn end_of_block(&mut self, number: Option<u32>) -> Result<()> {
        self.number = number;
        self.load_block(false)?;
        if let Some(b) = &self.block {
            self.record.seek_last(b.block()?)?;
        }
        Ok(())
    }

    fn last_of_extent(&mut self) -> Result<bool> {
        self.end_of_block(self.blocks().checked_sub(1))?;
        Ok(self.record.valid())
    }

    /// One record back within the extent.
    fn step_back(&mut self) -> Result<()> {
        if let Some(b) = &self.block {
            self.record.prev(b.block()?)?;
        }
        if !self.record.valid() {
            self.end_of_block(self.number.and_then(|n| n.checked_sub(1)))?;
        }
        Ok(())
    }

    /// Moves on until the record is inside the reference's bounds or the run ends.
    fn settle_forward(&mut self) -> Result<()> {
        loop {
            if self.block.is_some() && !self.record.valid() {
                self.next_block(true)?;
            }
            match self.run.refs().get(self.at) {
                Some(r) if self.record.valid() && (!self.trimmed || self.record.key() < &*r.hi) => {
                    return Ok(());
                }
                Some(_) => {}
                None => {
                    self.clear();
                    return Ok(());
                }
            }
            let next = self.at + 1;
            let Some(r) = self.run.refs().get(next) else {
                self.clear();
                return Ok(());
            };
            let lo = r.lo.clone();
            self.enter(next);
            self.seek_block(&lo, MAX_SEQ, true)?;
        }
    }

    /// Moves back until the record is inside the reference's bounds or the run begins.
    fn settle_backward(&mut self) -> Result<()> {
        match self.run.refs().get(self.at) {
            Some(r) if self.record.valid() && (!self.trimmed || self.record.key() >= &*r.lo) => Ok(()),
            _ => self.retreat_extent(),
        }
    }

    /// To the last record, within bounds, of the nearest extent before this one that has any.
    fn retreat_extent(&mut self) -> Result<()> {
        loop {
            let Some(at) = self.at.min(self.run.refs().len()).checked_sub(1) else {
                self.clear();
                return Ok(());
            };
            self.enter(at);
            let (lo, hi) = (self.run.refs()[at].lo.clone(), self.run.refs()[at].hi.clone());
            // The first record at or after the exclusive bound, then one back.
            self.seek_block(&hi, MAX_SEQ, false)?;
            if self.record.valid() {
                self.step_back()?;
            } else {
                self.last_of_extent()?;
            }
            if self.record.valid() && self.record.key() >= &*lo {
                return Ok(());
            }
        }
    }
}
