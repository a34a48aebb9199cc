//! Searching an extent's index block.
//!
//! An entry is the first record of its block, so in internal order the wanted record is in the last block that starts at
//! or before `(key, seq)`, or is the very first record of the block behind it. The latter happens where the versions of
//! one key straddle two blocks, and where a lookup at a large sequence names a key with which a block starts; [`Found`]
//! therefore names both blocks when, and only when, the second starts with the searched key.

use std::ops::Range;

use terrane_base::{Error, Result, Seq};

use super::{BlockHandle, BlockSpan, ExtentMeta};
use crate::block::{Approach, Block, BlockCursor, Floor, floor, floor_position};

/// An extent's index over borrowed bytes.
#[derive(Clone, Copy, Debug)]
pub struct Index<'a> {
    block: Block<'a>,
}

/// Where a record must be if the extent has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The entry's number, from 0.
    pub position: u32,
    /// The block to look in first.
    pub handle: BlockHandle,
    /// The block behind it (entry `position + 1`), where that starts with an older version of the very key: a lookup
    /// that finds nothing in `handle` goes on there.
    pub then: Option<BlockHandle>,
}

/// A search for an entry, halfway.
#[derive(Clone, Debug)]
pub struct IndexApproach(Approach);

impl IndexApproach {
    /// A few entries among which it will be, mostly: for whoever can have what belongs to them brought near meanwhile. There need not be so
    /// many.
    #[inline]
    pub fn among(&self) -> Range<u32> {
        self.0.leaves.clone()
    }
}

impl<'a> Index<'a> {
    /// Reads the index block's trailer, in constant time.
    ///
    /// # Errors
    /// As [`Block::parse`].
    pub fn parse(bytes: &'a [u8]) -> Result<Index<'a>> {
        Ok(Index { block: Block::parse(bytes)? })
    }

    /// The index over a block that was parsed before (see [`crate::block::BlockShape`]).
    #[inline]
    pub fn over(block: Block<'a>) -> Index<'a> {
        Index { block }
    }

    /// The index block itself.
    pub fn block(&self) -> Block<'a> {
        self.block
    }

    /// Number of entries.
    pub fn len(&self) -> u32 {
        self.block.rows()
    }

    /// Whether there is no entry (an extent of range tombstones alone).
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The last entry whose first record is at or before `(key, seq)`, or the first entry if all are behind it. `None`
    /// only if the index is empty. Allocates nothing.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::Corruption`] for damaged bytes; so for everything here.
    pub fn find(&self, key: &[u8], seq: Seq) -> Result<Option<Found>> {
        let Some(Floor { position, value, next, .. }) = floor(self.block, key, seq)? else {
            return Ok(None);
        };
        let then = next.map(BlockHandle::decode).transpose()?;
        Ok(Some(Found { position, handle: BlockHandle::decode(value)?, then }))
    }

    /// The number of the entry that [`Index::find`] finds, and whether that names the block behind it too. Mostly looks at no entry.
    ///
    /// # Errors
    /// As [`Index::find`].
    #[inline]
    pub fn position(&self, key: &[u8], seq: Seq) -> Result<Option<(u32, bool)>> {
        self.position_from(&self.approach(key), key, seq)
    }

    /// The first half of [`Index::position`]: asks the processor for what the second half looks at. For whoever has something else to do
    /// until that is near.
    #[inline]
    pub fn approach(&self, key: &[u8]) -> IndexApproach {
        IndexApproach(self.block.approach(key))
    }

    /// The second half, from where this index's [`Index::approach`] of the key has come to.
    ///
    /// # Errors
    /// As [`Index::find`].
    #[inline]
    pub fn position_from(
        &self,
        approach: &IndexApproach,
        key: &[u8],
        seq: Seq,
    ) -> Result<Option<(u32, bool)>> {
        floor_position(self.block, key, seq, &approach.0, false)
    }

    /// As [`Index::position_from`] for a key that begins as all of the index do: a key of the extent, if its bounds have as long a prefix
    /// in common as [`crate::block::BlockShape::prefix`] says of the index. For another key the answer is any.
    ///
    /// # Errors
    /// As [`Index::find`].
    #[inline]
    pub fn own_position_from(
        &self,
        approach: &IndexApproach,
        key: &[u8],
        seq: Seq,
    ) -> Result<Option<(u32, bool)>> {
        floor_position(self.block, key, seq, &approach.0, true)
    }

    /// How far between the first keys of entry `position`, which [`Index::position_from`] has found, and of the next one the key lies,
    /// from 0 to 1; `None` if the directory does not tell.
    #[inline]
    pub fn share(&self, approach: &IndexApproach, position: u32) -> Option<f32> {
        if self.block.leaf_records() > 1 {
            return None;
        }
        self.block.share(&approach.0, position)
    }

    /// All entries' blocks, in order.
    ///
    /// # Errors
    /// As [`Index::find`].
    pub fn handles(&self) -> Result<Vec<BlockHandle>> {
        let mut handles = Vec::with_capacity(self.len() as usize);
        let mut place = IndexPlace::new();
        place.take_up(*self, 0, 0)?;
        while let Some(handle) = place.handle(*self)? {
            handles.push(handle);
            place.next(*self)?;
        }
        Ok(handles)
    }

    /// Checks the whole index, and that it is the one that `meta` describes: order, counts, and blocks and filters that
    /// lie one behind the other and fill their sections.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::Corruption`] naming the first thing that is wrong.
    pub fn verify(&self, meta: &ExtentMeta) -> Result<()> {
        self.block.verify()?;
        let wrong = |what: &str| Err(Error::corruption(format!("extent {}: {what}", meta.id)));
        let (mut data, mut filters, mut rows, mut deletes, mut raw) = (0u64, 0u64, 0u64, 0u64, 0u64);
        let (min_seq, max_seq) = meta.stored_seqs();
        let mut cursor = IndexCursor::new();
        cursor.seek_first(*self)?;
        while let Some(h) = cursor.handle() {
            if u64::from(h.offset) != data || u64::from(h.filter_offset) != filters {
                return wrong("a block or filter is not where its predecessor ends");
            }
            if cursor.key() < meta.lo.as_slice() || cursor.key() >= meta.hi.as_slice() {
                return wrong("a block starts outside the extent's bounds");
            }
            if h.min_seq < min_seq || h.max_seq > max_seq {
                return wrong("a block's sequences are outside the extent's");
            }
            data += u64::from(h.stored_len);
            filters += u64::from(h.filter_len);
            rows += u64::from(h.rows);
            deletes += u64::from(h.deletes);
            raw += u64::from(h.raw_len);
            cursor.next(*self)?;
        }
        if data != meta.data_bytes.into() || filters != meta.filter.len.into() {
            return wrong("blocks or filters do not fill their sections");
        }
        if (rows, deletes, raw, self.len()) != (meta.rows, meta.deletes, meta.raw_bytes, meta.blocks) {
            return wrong("the totals are not those of its blocks");
        }
        Ok(())
    }
}

/// A position in an index that does without the entry's key, for whoever wants blocks and nothing else of it. Detached from
/// the index's lifetime like [`BlockCursor`]; allocates nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct IndexPlace {
    at: Option<At>,
}

#[derive(Clone, Copy, Debug)]
struct At {
    position: u32,
    /// Where the encoded handle lies.
    value: u32,
    /// Where it ends, and the next entry begins.
    end: u32,
}

impl IndexPlace {
    /// At no entry.
    pub fn new() -> Self {
        Self::default()
    }

    /// At entry `number`, or at none if there are not so many.
    ///
    /// # Errors
    /// As [`IndexPlace::seek`].
    pub fn to(index: Index<'_>, number: u32) -> Result<Self> {
        let mut place = Self::new();
        if number < index.len() {
            place.walk_to(index, Some(number))?;
        }
        Ok(place)
    }

    /// Whether it is at an entry.
    #[inline]
    pub fn valid(&self) -> bool {
        self.at.is_some()
    }

    /// The entry's block; `None` where it is at no entry.
    ///
    /// # Errors
    /// As [`IndexPlace::seek`].
    pub fn handle(&self, index: Index<'_>) -> Result<Option<BlockHandle>> {
        self.at.map(|at| BlockHandle::decode(index.block.slice(at.value, at.end))).transpose()
    }

    /// Where the entry's block lies; `None` where it is at no entry.
    ///
    /// # Errors
    /// As [`IndexPlace::seek`].
    pub fn span(&self, index: Index<'_>) -> Result<Option<BlockSpan>> {
        self.at.map(|at| BlockSpan::decode(index.block.slice(at.value, at.end))).transpose()
    }

    /// Leaves the entry.
    pub fn clear(&mut self) {
        self.at = None;
    }

    /// Moves to where [`Index::find`] would.
    ///
    /// # Errors
    /// Damaged bytes, or what this version does not know; it is then at no entry. So for all methods that move.
    pub fn seek(&mut self, index: Index<'_>, key: &[u8], seq: Seq) -> Result<()> {
        self.at = None;
        let floor = floor(index.block, key, seq)?;
        self.at = floor.map(|Floor { position, value, end, .. }| At {
            position,
            value: end - value.len() as u32,
            end,
        });
        Ok(())
    }

    /// Moves to the last entry.
    ///
    /// # Errors
    /// As [`IndexPlace::seek`].
    pub fn seek_last(&mut self, index: Index<'_>) -> Result<()> {
        self.at = None;
        self.walk_to(index, index.len().checked_sub(1))
    }

    /// Moves to the next entry; at the last one it leaves it.
    ///
    /// # Errors
    /// As [`IndexPlace::seek`].
    pub fn next(&mut self, index: Index<'_>) -> Result<()> {
        let Some(At { position, end, .. }) = self.at.take() else { return Ok(()) };
        self.take_up(index, position + 1, end)
    }

    /// Moves to the previous entry; at the first one it leaves it.
    ///
    /// # Errors
    /// As [`IndexPlace::seek`].
    pub fn prev(&mut self, index: Index<'_>) -> Result<()> {
        let before = self.at.take().and_then(|at| at.position.checked_sub(1));
        self.walk_to(index, before)
    }

    /// To entry number `position`, from the start of its leaf.
    fn walk_to(&mut self, index: Index<'_>, position: Option<u32>) -> Result<()> {
        let Some(position) = position else { return Ok(()) };
        let block = index.block;
        let leaf = position / block.leaf_records();
        let mut at = block.leaf_start(leaf)?;
        for _ in leaf * block.leaf_records()..position {
            at = block.record_at(at)?.next;
        }
        self.take_up(index, position, at)
    }

    fn take_up(&mut self, index: Index<'_>, position: u32, at: u32) -> Result<()> {
        if position < index.len() {
            let record = index.block.record_at(at)?;
            self.at = Some(At { position, value: record.value, end: record.next });
        }
        Ok(())
    }
}

/// A position in an index, detached from its lifetime like [`BlockCursor`].
#[derive(Clone, Debug, Default)]
pub struct IndexCursor {
    cursor: BlockCursor,
    handle: Option<BlockHandle>,
}

impl IndexCursor {
    /// A cursor at no entry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether the cursor is at an entry.
    pub fn valid(&self) -> bool {
        self.handle.is_some()
    }

    /// Leaves the entry; buffers are kept.
    pub fn clear(&mut self) {
        self.cursor.clear();
        self.handle = None;
    }

    /// Moves to where [`Index::find`] would.
    ///
    /// # Errors
    /// Damaged bytes, or what this version does not know; the cursor is then at no entry.
    pub fn seek(&mut self, index: Index<'_>, key: &[u8], seq: Seq) -> Result<()> {
        self.cursor.seek_for_prev(index.block, key, seq)?;
        if !self.cursor.valid() {
            self.cursor.seek_first(index.block)?;
        }
        self.take_up(index)
    }

    /// Moves to the first entry.
    ///
    /// # Errors
    /// As [`IndexCursor::seek`].
    pub fn seek_first(&mut self, index: Index<'_>) -> Result<()> {
        self.cursor.seek_first(index.block)?;
        self.take_up(index)
    }

    /// Moves to the last entry.
    ///
    /// # Errors
    /// As [`IndexCursor::seek`].
    pub fn seek_last(&mut self, index: Index<'_>) -> Result<()> {
        self.cursor.seek_last(index.block)?;
        self.take_up(index)
    }

    /// Moves to the next entry; at the last one the cursor becomes invalid.
    ///
    /// # Errors
    /// As [`IndexCursor::seek`].
    pub fn next(&mut self, index: Index<'_>) -> Result<()> {
        self.cursor.next(index.block)?;
        self.take_up(index)
    }

    /// Moves to the previous entry; at the first one the cursor becomes invalid.
    ///
    /// # Errors
    /// As [`IndexCursor::seek`].
    pub fn prev(&mut self, index: Index<'_>) -> Result<()> {
        self.cursor.prev(index.block)?;
        self.take_up(index)
    }

    /// First key of the entry's block.
    pub fn key(&self) -> &[u8] {
        self.cursor.key()
    }

    /// Sequence of the first record of the entry's block.
    pub fn seq(&self) -> Seq {
        self.cursor.seq()
    }

    /// The entry's number, from 0.
    pub fn position(&self) -> u32 {
        self.cursor.position()
    }

    /// The entry's block; `None` where the cursor is not valid.
    pub fn handle(&self) -> Option<&BlockHandle> {
        self.handle.as_ref()
    }

    fn take_up(&mut self, index: Index<'_>) -> Result<()> {
        self.handle = None;
        if self.cursor.valid() {
            self.handle = Some(BlockHandle::decode(self.cursor.value(index.block))?);
        }
        Ok(())
    }
}
