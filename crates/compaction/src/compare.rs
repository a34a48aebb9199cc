//! The oracle of check mode: two outputs of one task, record by record.

use std::fmt;

use terrane_base::{Error, Result};
use terrane_format::block::{Block, BlockCursor};

use crate::output::Output;

/// The first difference between two outputs.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Difference {
    /// The record with this number, counted over all blocks, differs, or one output ends before it.
    Record(u64),
    /// The accounting differs.
    Totals,
    /// The range tombstones kept differ.
    Tombstones,
    /// The values reported as dropped differ.
    Values,
    /// One of the outputs cannot be read.
    Unreadable(Error),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::Record(n) => write!(f, "record {n} differs"),
            Difference::Totals => f.write_str("the counts differ"),
            Difference::Tombstones => f.write_str("the range tombstones differ"),
            Difference::Values => f.write_str("the dropped values differ"),
            Difference::Unreadable(e) => write!(f, "an output cannot be read: {e}"),
        }
    }
}

impl From<Error> for Difference {
    fn from(e: Error) -> Self {
        Difference::Unreadable(e)
    }
}

/// Compares what two outputs say. They may cut their blocks differently.
///
/// # Errors
/// The first difference.
pub fn compare(a: &Output, b: &Output) -> Result<(), Difference> {
    let mut x = Records::open(a)?;
    let mut y = Records::open(b)?;
    let mut number = 0;
    loop {
        match (x.get(), y.get()) {
            (None, None) => break,
            (one, other) if one != other => return Err(Difference::Record(number)),
            _ => {}
        }
        number += 1;
        x.advance()?;
        y.advance()?;
    }
    if a.totals != b.totals {
        return Err(Difference::Totals);
    }
    if a.tombstones != b.tombstones {
        return Err(Difference::Tombstones);
    }
    if a.dropped_values != b.dropped_values {
        return Err(Difference::Values);
    }
    Ok(())
}

/// The records of an output, one after another.
pub(crate) struct Records<'o> {
    output: &'o Output,
    next: usize,
    block: Option<Block<'o>>,
    cursor: BlockCursor,
}

/// One record: key, sequence, kind byte, value.
pub(crate) type Record<'r> = (&'r [u8], u64, u8, &'r [u8]);

impl<'o> Records<'o> {
    /// At the first record.
    pub(crate) fn open(output: &'o Output) -> Result<Self> {
        let mut at = Records { output, next: 0, block: None, cursor: BlockCursor::new() };
        at.next_block()?;
        Ok(at)
    }

    /// The current record.
    pub(crate) fn get(&self) -> Option<Record<'_>> {
        let block = self.block?;
        let c = &self.cursor;
        Some((c.key(), c.seq(), c.kind() as u8, c.value(block)))
    }

    /// Moves on.
    pub(crate) fn advance(&mut self) -> Result<()> {
        let Some(block) = self.block else { return Ok(()) };
        self.cursor.next(block)?;
        if self.cursor.valid() { Ok(()) } else { self.next_block() }
    }

    fn next_block(&mut self) -> Result<()> {
        self.block = None;
        while let Some(b) = self.output.blocks.get(self.next) {
            self.next += 1;
            let block = Block::parse(&b.bytes)?;
            self.cursor.seek_first(block)?;
            if self.cursor.valid() {
                self.block = Some(block);
                break;
            }
        }
        Ok(())
    }
}
