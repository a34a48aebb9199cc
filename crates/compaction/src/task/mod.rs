//! What a device gets: the raw blocks of one key range, and what to make of them.

mod dump;

use bytes::Bytes;
use terrane_base::{Error, Result, Seq};
use terrane_format::block::{Block, BlockForm};
use terrane_format::checksum::{crc, crc_append};
use terrane_format::tombstone::RangeTombstones;

use crate::device::Limits;
use crate::way::WayCursor;

/// One block of input, uncompressed, with the CRC-32C of exactly these bytes. The CRC travels with the block: whoever
/// receives a copy checks it before use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputBlock {
    bytes: Bytes,
    crc: u32,
}

impl InputBlock {
    /// A block whose CRC is not known yet.
    pub fn new(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        let crc = crc(&bytes);
        InputBlock { bytes, crc }
    }

    /// A block that was stored uncompressed: the CRC that its parent holds covers the same bytes.
    pub fn with_crc(bytes: impl Into<Bytes>, crc: u32) -> Self {
        InputBlock { bytes: bytes.into(), crc }
    }

    /// The block's bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The CRC-32C that the bytes must have.
    pub fn crc(&self) -> u32 {
        self.crc
    }
}

/// One sorted input of a merge: consecutive blocks of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// The blocks, in the run's order. The outer ones may hold records outside the task's range; they are clipped.
    pub blocks: Vec<InputBlock>,
}

impl Way {
    /// A way of these blocks.
    pub fn new(blocks: Vec<InputBlock>) -> Self {
        Way { blocks }
    }

    /// Bytes of all blocks.
    pub fn bytes(&self) -> u64 {
        self.blocks.iter().map(|b| b.bytes.len() as u64).sum()
    }
}

/// A merge of the records of one key range.
///
/// A task is self-contained: no device reads anything else, so it may run anywhere, more than once, and later again
/// from its dump ([`Task::encode`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Names the task in its output, in errors and in dumps. Unique among the tasks alive.
    pub id: u64,
    /// First key of the range.
    pub lo: Vec<u8>,
    /// First key behind the range; `None` means no bound.
    pub hi: Option<Vec<u8>>,
    /// The inputs, newest first: no record of a way is older than one of the same key in a later way.
    pub ways: Vec<Way>,
    /// Range tombstones of all ways; what lies outside the range is ignored.
    pub tombstones: RangeTombstones,
    /// Sequences of the registered snapshots, ascending, without duplicates. Taken after the inputs were fixed, so that
    /// every snapshot still to come sees all of them.
    pub snapshots: Vec<Seq>,
    /// Whether nothing older than the inputs exists in the range: deletes that no snapshot needs vanish, and sequences
    /// that every snapshot sees become zero.
    pub bottom: bool,
    /// Form of the blocks to build.
    pub form: BlockForm,
}

impl Task {
    /// Bytes of all input blocks.
    pub fn bytes(&self) -> u64 {
        self.ways.iter().map(Way::bytes).sum()
    }

    /// Ways that hold a block.
    pub fn live_ways(&self) -> usize {
        self.ways.iter().filter(|w| !w.blocks.is_empty()).count()
    }

    /// Refuses what no device could make sense of.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::InvalidArgument`].
    pub fn check(&self) -> Result<()> {
        let what = if self.hi.as_ref().is_some_and(|hi| *hi <= self.lo) {
            "the range is empty"
        } else if !self.snapshots.is_sorted_by(|a, b| a < b) {
            "the snapshots are not ascending"
        } else {
            return Ok(());
        };
        Err(Error::invalid(format!("compaction task {}: {what}", self.id)))
    }

    /// Whether a device with these limits can take the task. A task with one way is a copy, which pays on no device.
    pub fn suits(&self, limits: &Limits) -> bool {
        let live = self.live_ways();
        live >= 2
            && live <= limits.ways
            && self.ways.iter().all(|w| {
                w.blocks.len() <= limits.blocks_per_way
                    && w.blocks.iter().all(|b| b.bytes.len() <= limits.block_bytes)
            })
    }

    /// Whether a record of this key belongs to the task.
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= self.lo.as_slice() && self.hi.as_ref().is_none_or(|hi| key < hi.as_slice())
    }

    /// Identifies everything that the result depends on. A device computes it from the input that it worked on, so an
    /// answer to another version of the input shows.
    pub fn digest(&self) -> u32 {
        let mut head = Vec::new();
        self.encode_head(&mut head);
        let mut digest = crc(&head);
        for way in &self.ways {
            digest = crc_append(digest, &(way.blocks.len() as u64).to_le_bytes());
            for block in &way.blocks {
                digest = crc_append(digest, &(block.bytes.len() as u64).to_le_bytes());
                digest = crc_append(digest, &block.crc.to_le_bytes());
            }
        }
        digest
    }

    /// Checks every input block against its CRC.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::Corruption`] that names way and block.
    pub fn check_input(&self) -> Result<()> {
        for (w, way) in self.ways.iter().enumerate() {
            for (b, block) in way.blocks.iter().enumerate() {
                if crc(&block.bytes) != block.crc {
                    return Err(Error::corruption(format!(
                        "compaction task {}: block {b} of way {w} does not match its checksum",
                        self.id
                    )));
                }
            }
        }
        Ok(())
    }

    /// Records of the input that lie in the range. Opens only the blocks at its edges.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::Corruption`] for a block that cannot be read.
    pub fn records(&self) -> Result<u64> {
        let mut records = 0;
        for way in &self.ways {
            for block in &way.blocks {
                records += u64::from(Block::parse(&block.bytes)?.rows());
            }
            records -= WayCursor::clipped(way, &self.lo, self.hi.as_deref())?;
        }
        Ok(records)
    }
}

#[cfg(test)]
mod tests;
