//! A seek in one run, in steps and as far as memory has what it looks at: each ends by asking the processor for what the next one looks
//! at, so that the seeks of several sources wait for memory at the same time. (As the lookups of `read::turns`, whose steps these are.)
//!
//! What a step finds stays where it was put until the end: none of them moves much about.

use terrane_base::{Error, Result, Seq};
use terrane_cache::{Hold, Seen};
use terrane_format::block::{Block, BlockCursor, LeafProbe, Probe};
use terrane_format::extent::IndexApproach;

use super::{Left, RunCursor, within};
use crate::read::blocks::Opened;
use crate::read::near::Near;

/// See the module's head. It changes the cursor's place alone; [`RunCursor::go_on_seeking`] does what it leaves to do.
pub(crate) struct RunSeek<'a> {
    key: &'a [u8],
    seq: Seq,
    /// The extent, if memory has its index.
    near: Option<Near<'a>>,
    stage: Stage<'a>,
    number: &'a mut Option<u32>,
    block: &'a mut Option<Opened>,
    record: &'a mut BlockCursor,
    left: &'a mut Left,
}

/// How far it has come.
enum Stage<'a> {
    /// Nowhere yet.
    Begun,
    /// The index's root has been searched.
    Index(IndexApproach),
    /// The block's number is known.
    Block(u32),
    /// The root of the block's directory has been searched.
    Directory(Seen<'a>, Probe<'a, 'a>),
    /// The block's leaf is known.
    Leaf(Seen<'a>, LeafProbe<'a, 'a>),
}

impl<'a> RunSeek<'a> {
    /// In the extent that the cursor has entered.
    #[inline]
    pub(super) fn new(cursor: &'a mut RunCursor, hold: &'a Hold<'a>, key: &'a [u8], seq: Seq) -> Self {
        let RunCursor { run, cache, at, trimmed, number, block, record, left, .. } = cursor;
        *left = Left::Nothing;
        let part = run.refs().get(*at).filter(|r| r.extent.meta.blocks > 0);
        let (key, seq) = part.map_or((key, seq), |part| within(part, *trimmed, key, seq));
        let near = part.and_then(|part| Near::of(&part.extent, cache, hold));
        if part.is_some() && near.is_none() {
            *left = Left::Index;
        }
        RunSeek { key, seq, near, stage: Stage::Begun, number, block, record, left }
    }

    /// Takes a step. Whether it is worth giving what that has asked for the time to come near.
    #[inline]
    pub(crate) fn step(&mut self) -> Result<bool> {
        let Some(near) = &self.near else { return Ok(false) };
        match &self.stage {
            Stage::Begun => self.stage = Stage::Index(near.approach(self.key)?),
            Stage::Index(approach) => {
                let found = near.position_from(approach, self.key, self.seq)?;
                *self.number = found.map(|(number, _)| number);
                let Some(number) = *self.number else { return Ok(self.end()) };
                *self.left = Left::Block;
                if let Some(known) = near.known(number) {
                    near.announce(number, known);
                    near.announce_next(number, known, approach);
                }
                self.stage = Stage::Block(number);
            }
            &Stage::Block(number) => {
                let Some(seen) = near.known(number).and_then(|known| near.block(number, known)) else {
                    return Ok(self.end());
                };
                let block = Block::parse(seen.bytes()).map_err(|e| near.in_block(number, e))?;
                self.stage = Stage::Directory(seen, Probe::new(block, self.key, self.seq));
            }
            Stage::Directory(seen, probe) => {
                let leaf = probe.to_leaf();
                self.stage = Stage::Leaf(*seen, leaf);
            }
            Stage::Leaf(..) => return Ok(false),
        }
        Ok(true)
    }

    /// Memory has not what comes next, or there is none.
    fn end(&mut self) -> bool {
        self.near = None;
        false
    }

    #[cold]
    fn in_block(&self, e: Error) -> Error {
        match (&self.near, *self.number) {
            (Some(near), Some(number)) => near.in_block(number, e),
            _ => e,
        }
    }

    /// Takes what steps are left. Then the cursor is at the record, or past the block, or has something left to do.
    #[inline]
    pub(crate) fn finish(mut self) -> Result<()> {
        while self.step()? {}
        if let Stage::Leaf(seen, leaf) = &self.stage {
            *self.left = Left::Nothing;
            *self.block = Some(Opened::again(seen.pin(), leaf.shape()));
            self.record.seek_probed(leaf).map_err(|e| self.in_block(e))?;
        }
        Ok(())
    }
}
