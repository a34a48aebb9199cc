//! What a device gives back.

use terrane_format::block::FinishedBlock;
use terrane_format::tombstone::RangeTombstones;

/// Where the records of the input went. Each in-range record is counted once:
/// `records_in = records_out + superseded + range_deleted + deletes_dropped`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Records of the input within the task's range.
    pub records_in: u64,
    /// Records in the output's blocks.
    pub records_out: u64,
    /// Dropped because a newer version of the key hides them from every snapshot.
    pub superseded: u64,
    /// Dropped because a range tombstone hides them from every snapshot.
    pub range_deleted: u64,
    /// Deletes dropped because nothing is left below that they could hide.
    pub deletes_dropped: u64,
}

impl Totals {
    /// Whether the parts add up.
    pub fn add_up(&self) -> bool {
        [self.superseded, self.range_deleted, self.deletes_dropped]
            .iter()
            .try_fold(self.records_out, |sum, &part| sum.checked_add(part))
            == Some(self.records_in)
    }
}

/// The result of a task. Nothing in it is believed before [`crate::verify`] has accepted it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// [`crate::Task::id`] of the task that this answers.
    pub task: u64,
    /// [`crate::Task::digest`], computed from the input that the device worked on.
    pub input_digest: u32,
    /// The blocks, in order.
    pub blocks: Vec<FinishedBlock>,
    /// CRC-32C of each block's bytes.
    pub block_crcs: Vec<u32>,
    /// The accounting.
    pub totals: Totals,
    /// Ids of the values in units of their own whose last record in this range was dropped, ascending.
    pub dropped_values: Vec<u64>,
    /// The range tombstones that are still needed, clipped to the task's range.
    pub tombstones: RangeTombstones,
}

impl Output {
    /// Bytes of all blocks.
    pub fn bytes(&self) -> u64 {
        self.blocks.iter().map(|b| b.bytes.len() as u64).sum()
    }
}
