//! Reading the inputs: one way, and all ways in merge order.
//!
//! # Algorithm
//! The ways stand in an array sorted by their current records. After the first way has moved, one comparison with the
//! second usually shows that it is still first; otherwise a binary search finds its new place. That is at most
//! `1 + log2(k)` comparisons for `k` ways, and none where one way runs alone: once a way has been first for a while, its
//! block's last key tells whether the rest of the block comes before every other way.
//!
//! Nothing is allocated per record: keys live in the cursors' own buffers, values stay in the blocks.

use std::cmp::Ordering;

use terrane_base::{MAX_SEQ, Result, Seq};
use terrane_format::Kind;
use terrane_format::block::{Block, BlockCursor, order};

use crate::task::{InputBlock, Task, Way};

/// Records that a way must have come first in a row before it is worth asking whether it runs alone.
const STREAK: u32 = 8;

/// A position in one way, clipped to the task's range.
pub(crate) struct WayCursor<'t> {
    rest: &'t [InputBlock],
    block: Block<'t>,
    cursor: BlockCursor,
    last_key: Vec<u8>,
    hi: Option<&'t [u8]>,
    /// Whether the current block reaches up to `hi`, so that each key has to be compared with it.
    reaches_hi: bool,
}

impl<'t> WayCursor<'t> {
    /// At the way's first record in `[lo, hi)`; `None` if there is none.
    pub(crate) fn open(way: &'t Way, lo: &[u8], hi: Option<&'t [u8]>) -> Result<Option<Self>> {
        let mut rest = way.blocks.as_slice();
        while let Some((first, behind)) = rest.split_first() {
            rest = behind;
            let mut at = WayCursor {
                rest,
                block: Block::parse(first.bytes())?,
                cursor: BlockCursor::new(),
                last_key: Vec::new(),
                hi,
                reaches_hi: false,
            };
            at.learn_end()?;
            at.cursor.seek(at.block, lo, MAX_SEQ)?;
            if at.cursor.valid() {
                return Ok(at.inside().then_some(at));
            }
        }
        Ok(None)
    }

    /// Moves to the next record; false at the end of the range.
    #[inline]
    pub(crate) fn advance(&mut self) -> Result<bool> {
        self.cursor.next(self.block)?;
        if !self.cursor.valid() && !self.next_block()? {
            return Ok(false);
        }
        Ok(self.inside())
    }

    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        self.cursor.key()
    }

    #[inline]
    pub(crate) fn seq(&self) -> Seq {
        self.cursor.seq()
    }

    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        self.cursor.kind()
    }

    #[inline]
    pub(crate) fn value(&self) -> &'t [u8] {
        self.cursor.value(self.block)
    }

    /// Records of `way` outside `[lo, hi)`. Opens only the blocks at the edges.
    pub(crate) fn clipped(way: &Way, lo: &[u8], hi: Option<&[u8]>) -> Result<u64> {
        let mut cursor = BlockCursor::new();
        let mut clipped = 0;
        for block in &way.blocks {
            let block = Block::parse(block.bytes())?;
            cursor.seek(block, lo, MAX_SEQ)?;
            if cursor.valid() {
                clipped += u64::from(cursor.position());
                break;
            }
            clipped += u64::from(block.rows());
        }
        let Some(hi) = hi else { return Ok(clipped) };
        for block in way.blocks.iter().rev() {
            let block = Block::parse(block.bytes())?;
            cursor.seek(block, hi, MAX_SEQ)?;
            if !cursor.valid() {
                break;
            }
            clipped += u64::from(block.rows().saturating_sub(cursor.position()));
            if cursor.position() > 0 {
                break;
            }
        }
        Ok(clipped)
    }

    #[cold]
    fn next_block(&mut self) -> Result<bool> {
        while let Some((next, behind)) = self.rest.split_first() {
            self.rest = behind;
            self.block = Block::parse(next.bytes())?;
            self.learn_end()?;
            self.cursor.seek_first(self.block)?;
            if self.cursor.valid() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Learns the current block's last key. One leaf is read for it, which the comparisons that it saves repay.
    fn learn_end(&mut self) -> Result<()> {
        self.cursor.seek_last(self.block)?;
        self.last_key.clear();
        if self.cursor.valid() {
            self.last_key.extend_from_slice(self.cursor.key());
        }
        self.reaches_hi = self.hi.is_some_and(|hi| self.last_key.as_slice() >= hi);
        Ok(())
    }

    #[inline]
    fn inside(&self) -> bool {
        !self.reaches_hi || self.hi.is_none_or(|hi| self.cursor.key() < hi)
    }
}

/// All ways of a task in merge order: key ascending, then sequence descending, then newer way first.
pub(crate) struct Ways<'t> {
    ways: Vec<WayCursor<'t>>,
    /// Indices of the ways that are not at their end, sorted by their records. A smaller index is a newer way.
    order: Vec<usize>,
    /// How often in a row the first way came first.
    streak: u32,
    /// The rest of the first way's block comes before the second way's record.
    alone: bool,
}

impl<'t> Ways<'t> {
    /// At the first record of the task's range.
    pub(crate) fn open(task: &'t Task) -> Result<Self> {
        let mut ways = Vec::with_capacity(task.ways.len());
        for way in &task.ways {
            ways.extend(WayCursor::open(way, &task.lo, task.hi.as_deref())?);
        }
        let mut all = Ways { order: Vec::with_capacity(ways.len()), ways, streak: 0, alone: false };
        for i in 0..all.ways.len() {
            let at = all.order.partition_point(|&o| all.precedes(o, i));
            all.order.insert(at, i);
        }
        Ok(all)
    }

    /// The way whose record comes next; `None` at the end.
    #[inline]
    pub(crate) fn head(&self) -> Option<&WayCursor<'t>> {
        self.order.first().map(|&i| &self.ways[i])
    }

    /// Moves behind the record at the head.
    #[inline]
    pub(crate) fn advance(&mut self) -> Result<()> {
        let Some(&first) = self.order.first() else { return Ok(()) };
        let way = &mut self.ways[first];
        let blocks_left = way.rest.len();
        if !way.advance()? {
            self.order.remove(0);
            self.end_streak();
            return Ok(());
        }
        let same_block = way.rest.len() == blocks_left;
        if self.alone && same_block {
            return Ok(());
        }
        let Some(&second) = self.order.get(1) else { return Ok(()) };
        if !self.precedes(first, second) {
            let behind = self.order[2..].partition_point(|&o| self.precedes(o, first));
            self.order[..behind + 2].rotate_left(1);
            self.end_streak();
            return Ok(());
        }
        self.streak += 1;
        if self.streak == STREAK || (self.streak > STREAK && !same_block) {
            // Strictly below: on a tie the sequences decide, record by record.
            self.alone = self.ways[first].last_key.as_slice() < self.ways[second].key();
        }
        Ok(())
    }

    fn end_streak(&mut self) {
        self.streak = 0;
        self.alone = false;
    }

    #[inline]
    fn precedes(&self, a: usize, b: usize) -> bool {
        let (x, y) = (&self.ways[a], &self.ways[b]);
        match order(x.key(), y.key()) {
            Ordering::Less => true,
            Ordering::Greater => false,
            Ordering::Equal => (y.seq(), a) < (x.seq(), b),
        }
    }
}
