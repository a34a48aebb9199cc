//! A cursor over the raw records of a run: all versions, in internal order (key ascending, sequence descending), across
//! blocks and extents, within the bounds of trimmed references.
//!
//! # Invariants
//! While valid: `block` is the pinned block that `record` stands in; `handle` stands on that block's index entry;
//! `at` is the extent's place in the run. Versions of a key never straddle two references of a run.

use std::sync::Arc;

use terrane_base::{MAX_SEQ, Result, Seq};
use terrane_cache::{Cache, Pin};
use terrane_format::Kind;
use terrane_format::block::{Block, BlockCursor};
use terrane_format::extent::{Index, IndexCursor};

use crate::levels::{ExtentRef, Run};
use crate::read::blocks::{Part, load};
use crate::read::entry::Place;
use crate::read::lookup::Need;

/// Where to seek to within a part: not before its first key.
fn within<'a>(part: &'a ExtentRef, key: &'a [u8], seq: Seq) -> (&'a [u8], Seq) {
    if *part.lo > *key { (&part.lo, MAX_SEQ) } else { (key, seq) }
}

#[derive(Debug)]
pub(crate) struct RunCursor {
    run: Arc<Run>,
    cache: Arc<Cache>,
    at: usize,
    index: Option<Pin>,
    entry: IndexCursor,
    block: Option<Pin>,
    record: BlockCursor,
}

impl RunCursor {
    pub(crate) fn new(run: Arc<Run>, cache: Arc<Cache>) -> Self {
        RunCursor {
            run,
            cache,
            at: usize::MAX,
            index: None,
            entry: IndexCursor::new(),
            block: None,
            record: BlockCursor::new(),
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
            Some(b) => Place::Block(b, self.record.value_range()),
            None => Place::Memory(&[]),
        }
    }

    pub(crate) fn run(&self) -> &Arc<Run> {
        &self.run
    }

    pub(crate) fn clear(&mut self) {
        self.record.clear();
        self.block = None;
    }

    /// To the first record at or after (`key`, `seq`).
    pub(crate) fn seek(&mut self, key: &[u8], seq: Seq) -> Result<()> {
        let need = self.begin_seek(key, seq)?;
        let block = need.map(|n| load(&self.cache, &n.extent, &n.part)).transpose()?;
        self.end_seek(key, seq, block)
    }

    /// The first half of [`RunCursor::seek`], up to the block: gives it if memory does not hold it. So several cursors'
    /// blocks can be read at once.
    pub(crate) fn begin_seek(&mut self, key: &[u8], seq: Seq) -> Result<Option<Need>> {
        let run = self.run.clone();
        let at = run.position(key);
        let Some(r) = run.refs().get(at) else {
            self.at = at;
            self.index = None;
            self.entry.clear();
            self.clear();
            return Ok(None);
        };
        let (key, seq) = within(r, key, seq);
        self.enter(at)?;
        let Some(index) = &self.index else { return Ok(None) };
        self.entry.seek(Index::parse(index)?, key, seq)?;
        let Some(handle) = self.entry.handle().copied() else { return Ok(None) };
        let part = Part::Data(handle);
        self.block = self.cache.get(part.key(&r.extent));
        Ok(self.block.is_none().then(|| Need { extent: r.extent.clone(), part }))
    }

    /// The second half, with the block that the first one asked for.
    pub(crate) fn end_seek(&mut self, key: &[u8], seq: Seq, block: Option<Pin>) -> Result<()> {
        if block.is_some() {
            self.block = block;
        }
        let run = self.run.clone();
        if let (Some(pin), Some(r)) = (&self.block, run.refs().get(self.at)) {
            let (key, seq) = within(r, key, seq);
            self.record.seek(Block::parse(pin)?, key, seq)?;
            if !self.record.valid() {
                self.next_block()?;
            }
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
        self.enter(at)?;
        self.seek_entry(key, seq)?;
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
        if let Some(pin) = &self.block {
            self.record.next(Block::parse(pin)?)?;
        }
        self.settle_forward()
    }

    /// To the record before.
    pub(crate) fn prev(&mut self) -> Result<()> {
        self.step_back()?;
        self.settle_backward()
    }

    /// Makes `at` the current extent and loads its index.
    fn enter(&mut self, at: usize) -> Result<()> {
        if self.at != at || self.index.is_none() {
            self.index = None;
            self.at = at;
            let extent = &self.run.refs()[at].extent;
            if extent.meta.blocks > 0 {
                self.index = Some(load(&self.cache, extent, &Part::Index)?);
            }
        }
        self.entry.clear();
        self.clear();
        Ok(())
    }

    /// Within the current extent, to the first record at or after the target; not valid if there is none.
    fn seek_entry(&mut self, key: &[u8], seq: Seq) -> Result<()> {
        let Some(index) = &self.index else { return Ok(()) };
        self.entry.seek(Index::parse(index)?, key, seq)?;
        if !self.entry.valid() {
            return Ok(());
        }
        self.load_block()?;
        if let Some(pin) = &self.block {
            self.record.seek(Block::parse(pin)?, key, seq)?;
        }
        if !self.record.valid() {
            self.next_block()?;
        }
        Ok(())
    }

    fn load_block(&mut self) -> Result<()> {
        let Some(handle) = self.entry.handle().copied() else { return Ok(()) };
        self.block = Some(load(&self.cache, &self.run.refs()[self.at].extent, &Part::Data(handle))?);
        self.record.clear();
        Ok(())
    }

    /// To the first record of the next block of this extent; not valid if there is none.
    fn next_block(&mut self) -> Result<()> {
        if let Some(index) = &self.index
            && self.entry.valid()
        {
            self.entry.next(Index::parse(index)?)?;
            if self.entry.valid() {
                self.load_block()?;
                if let Some(pin) = &self.block {
                    self.record.seek_first(Block::parse(pin)?)?;
                }
                return Ok(());
            }
        }
        self.clear();
        Ok(())
    }

    /// To the last record of the previous block of this extent; not valid if there is none.
    fn prev_block(&mut self) -> Result<()> {
        if let Some(index) = &self.index
            && self.entry.valid()
        {
            self.entry.prev(Index::parse(index)?)?;
            if self.entry.valid() {
                self.load_block()?;
                if let Some(pin) = &self.block {
                    self.record.seek_last(Block::parse(pin)?)?;
                }
                return Ok(());
            }
        }
        self.clear();
        Ok(())
    }

    fn last_of_extent(&mut self) -> Result<bool> {
        let Some(index) = &self.index else { return Ok(false) };
        self.entry.seek_last(Index::parse(index)?)?;
        if !self.entry.valid() {
            return Ok(false);
        }
        self.load_block()?;
        if let Some(pin) = &self.block {
            self.record.seek_last(Block::parse(pin)?)?;
        }
        Ok(self.record.valid())
    }

    /// One record back within the extent.
    fn step_back(&mut self) -> Result<()> {
        if let Some(pin) = &self.block {
            self.record.prev(Block::parse(pin)?)?;
        }
        if !self.record.valid() {
            self.prev_block()?;
        }
        Ok(())
    }

    /// Moves on until the record is inside the reference's bounds or the run ends.
    fn settle_forward(&mut self) -> Result<()> {
        loop {
            if self.block.is_some() && !self.record.valid() {
                self.next_block()?;
            }
            match self.run.refs().get(self.at) {
                Some(r) if self.record.valid() && self.record.key() < &*r.hi => return Ok(()),
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
            self.enter(next)?;
            self.seek_entry(&lo, MAX_SEQ)?;
        }
    }

    /// Moves back until the record is inside the reference's bounds or the run begins.
    fn settle_backward(&mut self) -> Result<()> {
        match self.run.refs().get(self.at) {
            Some(r) if self.record.valid() && self.record.key() >= &*r.lo => Ok(()),
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
            self.enter(at)?;
            let (lo, hi) = (self.run.refs()[at].lo.clone(), self.run.refs()[at].hi.clone());
            // The first record at or after the exclusive bound, then one back.
            self.seek_entry(&hi, MAX_SEQ)?;
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
