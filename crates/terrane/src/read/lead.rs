//! A stretch of one block that a cursor walks by itself.
//!
//! Where one run alone has all the keys that come next, nothing has to be merged. The merge then lends the position of that
//! run to the cursor, with the key at which another source (or the part of the extent, or the caller's bound) has a say
//! again. Until there a step decodes a record and compares what is new of its key: no look at other sources, no exchange
//! with the seat. Whatever is out of the ordinary (a deletion, a second version, one that the snapshot does not see, the end
//! of the block) is left to the merge, which takes the position back and goes on from there.
//!
//! # Invariants
//! While it is on, `record` stands in `block` on the cursor's key, which is below the end. The scan that lent the position may be
//! taken away meanwhile: the block is pinned here, and the key is all that another scan needs.

use std::ops::ControlFlow;

use terrane_base::{Result, Seq};
use terrane_cache::bring_near;
use terrane_format::Kind;
use terrane_format::block::{Below, BlockCursor, BlockShape};

use crate::read::blocks::Opened;
use crate::read::scan::RESTING_BYTES;

/// Records ahead of the current one that the processor is asked to load, as far apart as the last two.
const RECORDS_AHEAD: usize = 4;
/// Steps with which a lead has paid for being lent and taken back.
const PAYS: u32 = 2;

/// Where a walk has come.
pub(crate) enum Walked<B> {
    /// It was broken off at the record on which the lead stands.
    Broken(B),
    /// To the last record that the lead has; it was told of.
    AllTold,
    /// To where the lead does not tell: it is off, or the record's value lies elsewhere.
    Untold,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Lead {
    /// None while it is off.
    block: Option<Opened>,
    record: BlockCursor,
    below: Below,
    /// Number of the first record of the block that it leaves to the merge.
    stop: u32,
    /// Steps of this lead or, while it is off, of the last one.
    steps: u32,
}

impl Lead {
    /// One that is off.
    pub(crate) fn new() -> Self {
        Lead { block: None, record: BlockCursor::new(), below: Below::default(), stop: 0, steps: 0 }
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.block.is_some()
    }

    /// Whether it was worth its while.
    pub(crate) fn has_paid(&self) -> bool {
        self.steps >= PAYS
    }

    /// Where the lead will end, if anywhere; to be set before it begins.
    pub(crate) fn set_end(&mut self, end: Option<&[u8]>) {
        self.below.set_key(end);
    }

    /// Begins at `record`, a position in `block`, which the lender is without from now on; to go no further than before record
    /// number `stop`, and to show what `snapshot` sees. The block has nothing newer than `newest`.
    pub(crate) fn begin(
        &mut self,
        block: &mut Option<Opened>,
        record: &mut BlockCursor,
        stop: u32,
        (snapshot, newest): (Seq, Seq),
    ) {
        std::mem::swap(&mut self.record, record);
        self.block = block.take();
        self.below.begin(self.record.key(), snapshot, newest);
        (self.stop, self.steps) = (stop, 0);
        if let Some(b) = &self.block {
            let value = self.record.value_range();
            (0..RECORDS_AHEAD)
                .for_each(|n| b.pin.prefetch(value.end + n * (value.len() + self.record.key().len())));
        }
    }

    /// Ends; the lender gets its position back.
    pub(crate) fn give_back(&mut self, block: &mut Option<Opened>, record: &mut BlockCursor) -> Result<()> {
        std::mem::swap(&mut self.record, record);
        *block = self.block.take();
        block.as_ref().map_or(Ok(()), |opened| record.read_seq(opened.block()?))
    }

    /// Ends, if it is on; the lender is gone, or will seek.
    pub(crate) fn end(&mut self) {
        if self.is_on() {
            self.block = None;
            self.record.clear();
        }
    }

    /// Ends, and keeps but little memory.
    pub(crate) fn rest(&mut self) {
        self.block = None;
        self.record.rest(RESTING_BYTES);
        self.below.rest(RESTING_BYTES);
        self.steps = 0;
    }

    /// The key; only while it is on.
    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        self.record.key()
    }

    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        self.record.kind()
    }

    /// The stored value.
    #[inline]
    pub(crate) fn value(&self) -> &[u8] {
        self.block.as_ref().and_then(|b| b.pin.get(self.record.value_range())).unwrap_or_default()
    }

    /// To the next record; false, and no step is made, where the merge has to go on.
    #[inline]
    pub(crate) fn step(&mut self) -> Result<bool> {
        let Some(opened) = &self.block else { return Ok(false) };
        let stepped = forward(&mut self.record, opened.parts(), self.stop, &mut self.below)?;
        self.steps = self.steps.saturating_add(stepped.into());
        Ok(stepped)
    }

    /// Tells `f` of the record on which it stands, steps, and so on, as long as it is on and `f` does not break.
    #[inline]
    pub(crate) fn walk<B>(
        &mut self,
        f: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Result<Walked<B>> {
        let Some(opened) = &self.block else { return Ok(Walked::Untold) };
        let (bytes, shape) = opened.parts();
        loop {
            if self.record.kind() == Kind::ValueRef {
                return Ok(Walked::Untold);
            }
            let value = bytes.get(self.record.value_range()).unwrap_or_default();
            if let ControlFlow::Break(b) = f(self.record.key(), value) {
                return Ok(Walked::Broken(b));
            }
            if !forward(&mut self.record, (bytes, shape), self.stop, &mut self.below)? {
                return Ok(Walked::AllTold);
            }
            self.steps = self.steps.saturating_add(1);
        }
    }

    /// Steps that were made since it began last.
    #[inline]
    pub(crate) fn steps(&self) -> u32 {
        self.steps
    }
}

/// To the next record of a block, if that has a number less than `stop` and [`BlockCursor::next_below`] goes there.
#[inline]
fn forward(
    record: &mut BlockCursor,
    (bytes, shape): (&[u8], &BlockShape),
    stop: u32,
    below: &mut Below,
) -> Result<bool> {
    let before = record.value_range().end;
    if record.position() + 1 >= stop || !record.next_below(bytes, shape, below)? {
        return Ok(false);
    }
    let end = record.value_range().end;
    if let Some(ahead) = bytes.get(end + (RECORDS_AHEAD - 1) * (end - before)) {
        bring_near(ahead);
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
