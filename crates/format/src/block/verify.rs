//! The complete check of one block.

use terrane_base::{MAX_SEQ, Result};

use super::errors::bad;
use super::{Block, BlockCursor, common_prefix};

impl Block<'_> {
    /// Walks the whole block and checks what searching relies on: internal order, exact prefix lengths, known kinds,
    /// counts, sequences in range, that the directory is that of the leaves, and that leaves begin where the trailer says they do.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::Corruption`] naming the first thing that is wrong, `NewerFormat` for an unknown kind.
    pub fn verify(&self) -> Result<()> {
        self.verify_each(|_, _| true).map(drop)
    }

    /// As [`Block::verify`], showing each record to `see`, and whether its key is that of the record before it. Stops where that says
    /// no, and returns what it said last.
    ///
    /// # Errors
    /// As [`Block::verify`].
    pub fn verify_each(&self, mut see: impl FnMut(&BlockCursor, bool) -> bool) -> Result<bool> {
        let mut cursor = BlockCursor::new();
        let mut last_key = Vec::new();
        let mut last_seq = 0;
        let mut deletes = 0;
        let mut leaves = 0;
        let mut offset = 0;
        cursor.seek_first(*self)?;
        while cursor.valid() {
            let position = cursor.position();
            // (Not `record_at`, as where the cursor loads one.)
            let record = match self.short_record(offset) {
                Some(record) => record,
                None => self.any_record(offset)?,
            };
            let starts_leaf = u64::from(position) == u64::from(leaves) * u64::from(self.leaf_records());
            if starts_leaf {
                if self.leaf_start(leaves)? != offset {
                    return Err(bad("has a leaf that is not where its directory says", offset as usize));
                }
                leaves += 1;
            }
            let common = common_prefix(&last_key, cursor.key());
            if record.shared as usize != if starts_leaf { 0 } else { common } {
                return Err(bad("has a wrong prefix length", offset as usize));
            }
            let order = last_key.get(common).cmp(&cursor.key().get(common));
            if position > 0 && (order.is_gt() || order.is_eq() && cursor.seq() >= last_seq) {
                return Err(bad("has records out of order", offset as usize));
            }
            if starts_leaf && position > 0 && self.is_undivided() && order.is_eq() {
                return Err(bad("has a leaf that begins between versions of a key", offset as usize));
            }
            if cursor.seq() > MAX_SEQ {
                return Err(bad("has a sequence out of range", offset as usize));
            }
            deletes += u32::from(cursor.kind().is_delete());
            if !see(&cursor, position > 0 && order.is_eq()) {
                return Ok(false);
            }
            last_key.clear();
            last_key.extend_from_slice(cursor.key());
            last_seq = cursor.seq();
            offset = record.next;
            cursor.next(*self)?;
        }
        if !self.nodes_are_right()? {
            return Err(bad("has a directory that is not that of its keys", offset as usize));
        }
        if offset != self.records_end() {
            return Err(bad("has bytes behind its last record", offset as usize));
        }
        if deletes != self.deletes() {
            return Err(bad("has a wrong count of deletes", offset as usize));
        }
        Ok(true)
    }
}
