//! Moving through a block's records, both ways.
//!
//! Forward, a step decodes one record and replaces the end of the key buffer. Prefix coding cannot be read backwards, so
//! the first step back into a leaf walks it once from its start and writes down, for each record left, what the step
//! took from the key (*the trail*); further steps back only undo that. Both buffers are reused: a warm cursor does not
//! allocate.

use std::ops::Range;

use terrane_base::{Error, Result, Seq};

use super::Block;
use super::below::Below;
use super::errors::bad;
use super::key_buffer::{KeyBuffer, WIDE};
use super::lookup::{LeafProbe, LeafWalk, Probe};
use super::view::{BlockShape, PlainRecord, Record, Spot};
use crate::Kind;

/// A position in a block. Detached from the block's lifetime: every method that moves takes the block again, so that an
/// iterator may keep the bytes pinned beside its cursor. All calls between two seeks must pass the same block.
///
/// When a method fails, the cursor is at no record.
#[derive(Clone, Debug)]
pub struct BlockCursor {
    key: KeyBuffer,
    seq: Seq,
    at: Place,
    position: u32,
    valid: bool,
    /// See [`BlockCursor::repeats`].
    repeats: bool,
    trail: Vec<Step>,
    cut: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    kind: Kind,
    value: u32,
    next: u32,
}

/// How to get back to the record before.
#[derive(Clone, Copy, Debug)]
struct Step {
    to: Place,
    /// How much of the key the two have in common; the rest of the earlier key is at `cut_start` of the cut bytes.
    shared: u32,
    cut_start: usize,
}

const NOWHERE: Place = Place { kind: Kind::Put, value: 0, next: 0 };

impl Default for BlockCursor {
    fn default() -> Self {
        Self::new()
    }
}

impl BlockCursor {
    /// A cursor at no record.
    pub fn new() -> Self {
        BlockCursor {
            key: KeyBuffer::default(),
            seq: 0,
            at: NOWHERE,
            position: 0,
            valid: false,
            repeats: false,
            trail: Vec::new(),
            cut: Vec::new(),
        }
    }

    /// Whether the cursor is at a record.
    #[inline]
    pub fn valid(&self) -> bool {
        self.valid
    }

    /// Leaves the record; buffers are kept.
    pub fn clear(&mut self) {
        self.valid = false;
        self.forget_trail();
    }

    /// Leaves the record, and gives back memory of buffers that have grown larger than `bytes` each.
    pub fn rest(&mut self, bytes: usize) {
        self.clear();
        self.key.rest(bytes);
        self.trail.shrink_to(bytes / size_of::<Step>());
        self.cut.shrink_to(bytes);
    }

    /// Moves to the first record at or after `(key, seq)`.
    ///
    /// # Errors
    /// Damaged bytes or a kind that this version does not know; so for all methods that move.
    pub fn seek(&mut self, block: Block<'_>, key: &[u8], seq: Seq) -> Result<()> {
        self.seek_probed(&Probe::new(block, key, seq).to_leaf())
    }

    /// [`BlockCursor::seek`] from where a probe for the key and sequence has come to.
    ///
    /// # Errors
    /// As [`BlockCursor::seek`].
    pub fn seek_probed(&mut self, probe: &LeafProbe<'_, '_>) -> Result<()> {
        let LeafProbe { block, key, seq, .. } = *probe;
        self.clear();
        if block.rows() == 0 {
            return Ok(());
        }
        let mut behind = match probe.spot()? {
            Spot::Head(leaf) => return self.enter_leaf(block, leaf),
            Spot::Behind(behind) => behind,
        };
        let leaf = behind.saturating_sub(1);
        let mut walk = LeafWalk::new(block, leaf, key)?;
        let mut step = walk.step()?;
        if !walk.begins_as_all_do() {
            // What the directory said does not hold for such a key.
            behind = block.leaves_before(key, seq, false)?;
            walk = LeafWalk::new(block, behind.saturating_sub(1), key)?;
            step = walk.step()?;
        }
        while let Some((order, at)) = step {
            let position = walk.position - 1;
            if order.is_gt() || order.is_eq() && block.seq_at(position)? <= seq {
                let record = block.record_at(at)?;
                // It is the first one that does not sort before the key, so what it shares with the one before it, it
                // shares with the key.
                self.key.replace(0, key.get(..record.shared as usize).unwrap_or_default());
                return self.take_up(block, record, position);
            }
            step = walk.step()?;
        }
        // All records of the leaf are before it, so it is the head of the next one.
        if (1..block.leaves()).contains(&behind) { self.enter_leaf(block, behind) } else { Ok(()) }
    }

    /// Moves to the last record at or before `(key, seq)`.
    ///
    /// # Errors
    /// As [`BlockCursor::seek`].
    pub fn seek_for_prev(&mut self, block: Block<'_>, key: &[u8], seq: Seq) -> Result<()> {
        self.clear();
        let Some(leaf) = block.leaves_before(key, seq, true)?.checked_sub(1) else {
            return Ok(());
        };
        self.key.clear();
        let walked = self.walk_up_to(block, LeafWalk::new(block, leaf, key)?, seq);
        self.valid &= walked.is_ok();
        walked
    }

    /// Moves to the first record.
    ///
    /// # Errors
    /// As [`BlockCursor::seek`].
    pub fn seek_first(&mut self, block: Block<'_>) -> Result<()> {
        self.clear();
        if block.rows() > 0 {
            self.enter_leaf(block, 0)?;
        }
        Ok(())
    }

    /// Moves to the last record.
    ///
    /// # Errors
    /// As [`BlockCursor::seek`].
    pub fn seek_last(&mut self, block: Block<'_>) -> Result<()> {
        self.clear();
        match block.rows().checked_sub(1) {
            Some(last) => self.walk_to(block, last),
            None => Ok(()),
        }
    }

    /// Moves to the next record; at the last one the cursor becomes invalid.
    ///
    /// # Errors
    /// As [`BlockCursor::seek`].
    #[inline]
    pub fn next(&mut self, block: Block<'_>) -> Result<()> {
        if !self.valid {
            return Ok(());
        }
        if !self.trail.is_empty() {
            self.forget_trail();
        }
        if self.position + 1 >= block.rows() {
            self.valid = false;
            return Ok(());
        }
        self.load(block, self.at.next, self.position + 1)
    }

    /// Moves to the next record, if there is nothing to think about: it is not a deletion, has another key, which is `below`, and is not
    /// newer than that shows. False otherwise, and the cursor stays. The block is given as its bytes and what was found out about them.
    ///
    /// If `below` shows all of the block, [`BlockCursor::seq`] may be any from now on, until [`BlockCursor::read_seq`].
    ///
    /// # Errors
    /// As [`BlockCursor::seek`].
    #[inline]
    pub fn next_below(&mut self, bytes: &[u8], shape: &BlockShape, below: &mut Below) -> Result<bool> {
        if self.next_plain(bytes, shape, below) {
            return Ok(true);
        }
        self.next_any_below(shape.over(bytes)?, below)
    }

    /// Reads the sequence again: see [`BlockCursor::next_below`].
    ///
    /// # Errors
    /// As [`BlockCursor::seek`].
    pub fn read_seq(&mut self, block: Block<'_>) -> Result<()> {
        if std::mem::take(&mut self.valid) {
            self.seq = block.seq_at(self.position)?;
            self.valid = true;
        }
        Ok(())
    }

    /// As [`BlockCursor::next_below`] to a record that is as most are; changes nothing where it says no. Every step of most scans passes
    /// here, so what is checked for certain is little: `plain_record` says where the records end, `below` what has another key.
    #[inline]
    fn next_plain(&mut self, bytes: &[u8], shape: &BlockShape, below: &mut Below) -> bool {
        let Some(record) = shape.plain_record(bytes, self.at.next) else { return false };
        if !self.valid || !self.trail.is_empty() {
            return false;
        }
        let mut seq = self.seq;
        if !below.shows_all() {
            match shape.seq_of(bytes, self.position + 1) {
                Some(shown) if shown <= below.seq() => seq = shown,
                _ => return false,
            }
        }
        if !below.certainly_has(record.shared, record.suffix[0])
            && !self.is_other_below(shape, &record, below)
        {
            return false;
        }
        if !self.key.replace_by_some(record.shared, record.suffix, record.suffix_len) {
            return false;
        }
        self.seq = seq;
        self.at = Place { kind: Kind::Put, value: record.value, next: record.next };
        self.position += 1;
        true
    }

    /// Whether the record, which comes next, has another key, and that is `below`.
    fn is_other_below(&self, shape: &BlockShape, record: &PlainRecord<'_>, below: &mut Below) -> bool {
        let Some(suffix) = record.suffix.get(..record.suffix_len) else { return false };
        // What it shares is said exactly, so it has another key, but for a leaf's first record.
        let may_repeat = record.shared == 0 && !shape.is_undivided();
        !(may_repeat && is_same(self.key.as_slice(), suffix)) && below.admits(record.shared, suffix)
    }

    /// [`BlockCursor::next_below`], whatever the record is.
    #[inline(never)]
    fn next_any_below(&mut self, block: Block<'_>, below: &mut Below) -> Result<bool> {
        let position = self.position + 1;
        if !self.valid || position >= block.rows() {
            return Ok(false);
        }
        self.valid = false;
        let record = block.record_at(self.at.next)?;
        let (seq, kind) = (block.seq_at(position)?, Kind::from_u8(record.kind)?);
        let (shared, suffix) = (record.shared as usize, block.slice(record.suffix, record.value));
        let Some(own) = self.key.as_slice().get(shared..) else { return Err(shares_too_much(record)) };
        self.valid = true;
        if seq > below.seq() || kind.is_delete() || is_same(own, suffix) || !below.admits(shared, suffix) {
            return Ok(false);
        }
        if !self.trail.is_empty() {
            self.forget_trail();
        }
        self.take_suffix(block, record, suffix);
        self.seq = seq;
        self.at = Place { kind, value: record.value, next: record.next };
        self.position = position;
        Ok(true)
    }

    /// Whether the last [`BlockCursor::next`] has come to an older version of the key before.
    #[inline]
    pub fn repeats(&self) -> bool {
        self.repeats
    }

    /// Moves to the previous record; at the first one the cursor becomes invalid.
    ///
    /// # Errors
    /// As [`BlockCursor::seek`].
    pub fn prev(&mut self, block: Block<'_>) -> Result<()> {
        if !self.valid {
            return Ok(());
        }
        let Some(target) = self.position.checked_sub(1) else {
            self.valid = false;
            return Ok(());
        };
        let Some(step) = self.trail.pop() else {
            self.valid = false;
            return self.walk_to(block, target);
        };
        self.key.replace(step.shared as usize, self.cut.get(step.cut_start..).unwrap_or_default());
        self.cut.truncate(step.cut_start);
        self.at = step.to;
        self.position = target;
        self.valid = false;
        self.seq = block.seq_at(target)?;
        self.valid = true;
        Ok(())
    }

    /// The record's key.
    #[inline]
    pub fn key(&self) -> &[u8] {
        debug_assert!(self.valid);
        self.key.as_slice()
    }

    /// The record's sequence.
    #[inline]
    pub fn seq(&self) -> Seq {
        debug_assert!(self.valid);
        self.seq
    }

    /// The record's kind.
    #[inline]
    pub fn kind(&self) -> Kind {
        debug_assert!(self.valid);
        self.at.kind
    }

    /// The record's number within the block, from 0.
    #[inline]
    pub fn position(&self) -> u32 {
        debug_assert!(self.valid);
        self.position
    }

    /// Where the value lies in the block's bytes.
    #[inline]
    pub fn value_range(&self) -> Range<usize> {
        debug_assert!(self.valid);
        self.at.value as usize..self.at.next as usize
    }

    /// The record's value; `block` is the one that the cursor was moved over.
    #[inline]
    pub fn value<'a>(&self, block: Block<'a>) -> &'a [u8] {
        debug_assert!(self.valid);
        block.slice(self.at.value, self.at.next)
    }

    fn forget_trail(&mut self) {
        self.trail.clear();
        self.cut.clear();
    }

    fn enter_leaf(&mut self, block: Block<'_>, leaf: u32) -> Result<()> {
        self.forget_trail();
        self.key.clear();
        self.load(block, block.leaf_start(leaf)?, leaf * block.leaf_records())
    }

    /// Walks to the last record of a leaf that is at or before the searched key and `seq`.
    fn walk_up_to(&mut self, block: Block<'_>, mut walk: LeafWalk<'_, '_>, seq: Seq) -> Result<()> {
        while let Some((order, record)) = walk.next()? {
            let position = walk.position - 1;
            if order.is_gt() || order.is_eq() && block.seq_at(position)? < seq {
                break;
            }
            self.take_up(block, record, position)?;
        }
        Ok(())
    }

    /// Walks to record `target` from the start of its leaf, leaving a trail.
    fn walk_to(&mut self, block: Block<'_>, target: u32) -> Result<()> {
        self.enter_leaf(block, target / block.leaf_records())?;
        while self.position < target {
            self.step_on_trail(block)?;
        }
        Ok(())
    }

    fn step_on_trail(&mut self, block: Block<'_>) -> Result<()> {
        self.valid = false;
        let record = block.record_at(self.at.next)?;
        let shared = record.shared;
        let cut_start = self.cut.len();
        self.cut.extend_from_slice(self.key.as_slice().get(shared as usize..).unwrap_or_default());
        self.trail.push(Step { to: self.at, shared, cut_start });
        self.take_up(block, record, self.position + 1)
    }

    #[inline]
    fn load(&mut self, block: Block<'_>, offset: u32, position: u32) -> Result<()> {
        self.valid = false;
        // (Not `record_at`: what that returns is stored in pieces and loaded as a whole, which waits until the pieces have left the store buffer.)
        let Some(record) = block.short_record(offset) else { return self.load_long(block, offset, position) };
        self.take_up(block, record, position)
    }

    #[cold]
    #[inline(never)]
    fn load_long(&mut self, block: Block<'_>, offset: u32, position: u32) -> Result<()> {
        self.take_up(block, block.any_record(offset)?, position)
    }

    /// Makes the cursor valid at `record`; the key buffer holds the key of the record before it.
    #[inline]
    fn take_up(&mut self, block: Block<'_>, record: Record, position: u32) -> Result<()> {
        self.valid = false;
        let shared = record.shared as usize;
        if shared > self.key.len() {
            return Err(shares_too_much(record));
        }
        let suffix = block.slice(record.suffix, record.value);
        self.repeats = self.key.as_slice().get(shared..).is_some_and(|own| is_same(own, suffix));
        self.take_suffix(block, record, suffix);
        self.seq = block.seq_at(position)?;
        self.at = Place { kind: Kind::from_u8(record.kind)?, value: record.value, next: record.next };
        self.position = position;
        self.valid = true;
        Ok(())
    }

    /// Replaces the end of the key.
    #[inline]
    fn take_suffix(&mut self, block: Block<'_>, record: Record, suffix: &[u8]) {
        let shared = record.shared as usize;
        match block.chunk::<WIDE>(record.suffix) {
            Some(wide) if self.key.replace_by_some(shared, wide, suffix.len()) => {}
            _ => self.key.replace(shared, suffix),
        }
    }
}

/// Whether what is left of two keys behind what they share is the same.
#[inline]
fn is_same(own: &[u8], suffix: &[u8]) -> bool {
    // Keys beside one another mostly differ where they begin to be their own, or at their ends.
    own.first() == suffix.first() && own.last() == suffix.last() && own == suffix
}

#[cold]
fn shares_too_much(record: Record) -> Error {
    bad("has a key that shares more than there is", record.suffix as usize)
}
