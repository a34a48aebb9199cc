//! Building of extents.

use terrane_base::{Error, ExtentId, Result, Seq};

use super::{BlockHandle, ExtentMeta, Footer, Image, PAD_BYTES, Properties, Section, UNIT_BYTES};
use crate::block::{
    Block, BlockBuilder, BlockCursor, BlockForm, Compression, Compressor, DirectoryKind, FinishedBlock,
    MAX_LEAVES,
};
use crate::checksum::crc;
use crate::tombstone::RangeTombstones;
use crate::{Kind, filter};

/// How extents of a subtable are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentForm {
    /// The form of its blocks.
    pub block: BlockForm,
    /// How blocks are stored.
    pub compression: Compression,
    /// Zstandard level.
    pub zstd_level: i32,
    /// Filter bits per distinct key; 0 means no filters.
    pub filter_bits_per_key: usize,
    /// Bytes at which an extent closes.
    pub max_bytes: usize,
    /// Blocks at which an extent closes.
    pub max_blocks: usize,
}

impl Default for ExtentForm {
    fn default() -> Self {
        ExtentForm {
            block: BlockForm::default(),
            compression: Compression::None,
            zstd_level: 3,
            filter_bits_per_key: 10,
            max_bytes: 2 << 20,
            max_blocks: 1024,
        }
    }
}

/// An extent ready to be written.
#[derive(Clone, Debug)]
pub struct FinishedExtent {
    /// The bytes to write, a multiple of 4096.
    pub bytes: Image,
    /// What the manifest must know; `file` and `unit` are 0 until the writer has placed it.
    pub meta: ExtentMeta,
}

/// Records per leaf of an index block: index entries differ much, so that short leaves cost little and save steps. With nodes
/// above the leaves that tell where to look, the fewest.
const INDEX_LEAF_RECORDS: usize = 4;
/// Room kept for the footer's table and properties, and for the index block's trailer and the nodes of its directory.
const FIXED_BYTES: usize = 160 + (20 << 6);
/// Room kept for the index entry of a block still to come, its key left aside.
const ENTRY_BYTES: usize = 80;

/// Builds one extent after another from blocks in key order.
#[derive(Debug)]
pub struct ExtentBuilder {
    form: ExtentForm,
    compressor: Compressor,
    data: Image,
    filters: Vec<u8>,
    index: BlockBuilder,
    handle: Vec<u8>,
    largest_filter: usize,
    tombstones: RangeTombstones,
    tombstone_bytes: usize,
    first_key: Vec<u8>,
    last_key: Vec<u8>,
    totals: Properties,
    value_refs: bool,
}

impl ExtentBuilder {
    /// A builder of extents of this form.
    ///
    /// # Errors
    /// As [`Compressor::new`].
    pub fn new(form: ExtentForm) -> Result<Self> {
        Ok(ExtentBuilder {
            form,
            compressor: Compressor::new(form.compression, form.zstd_level)?,
            data: Image::default(),
            filters: Vec::new(),
            index: index_builder(form.block.directory, 1),
            handle: Vec::new(),
            largest_filter: 0,
            tombstones: RangeTombstones::default(),
            tombstone_bytes: 0,
            first_key: Vec::new(),
            last_key: Vec::new(),
            totals: Properties::default(),
            value_refs: false,
        })
    }

    /// Adds a block: compresses it and builds its filter. `raw_crc` is the CRC-32C of its bytes, if it is known.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::LimitExceeded`] if the extent would outgrow its 32-bit offsets.
    pub fn add_block(&mut self, block: FinishedBlock, raw_crc: Option<u32>) -> Result<()> {
        let compressed = self.compressor.compress(&block.bytes);
        let (compression, stored) = match &compressed {
            Some(stored) => (self.form.compression, stored),
            None => (Compression::None, &block.bytes),
        };
        let crc = raw_crc.filter(|_| compressed.is_none()).unwrap_or_else(|| crc(stored));
        let filter = filter::build(&block.hashes, self.form.filter_bits_per_key);
        let handle = BlockHandle {
            offset: 0,
            stored_len: stored.len() as u32,
            raw_len: block.bytes.len() as u32,
            crc,
            compression,
            rows: block.rows,
            deletes: block.deletes,
            min_seq: block.min_seq,
            max_seq: block.max_seq,
            value_refs: block.value_refs,
            filter_offset: 0,
            filter_len: filter.len() as u32,
        };
        self.add_stored_block((&block.first_key, block.first_seq), &block.last_key, &handle, stored, &filter)
    }

    /// Where the next block will lie in the extent.
    pub fn next_offset(&self) -> u32 {
        self.data.len() as u32
    }

    /// Adds a block of another extent as its stored bytes, which the caller has verified against `handle`; the handle's
    /// offsets are replaced. `first` is the block's first key and sequence, as its index entry has them.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::InvalidArgument`] if lengths differ from the handle's, and as
    /// [`ExtentBuilder::add_block`].
    pub fn add_stored_block(
        &mut self,
        first: (&[u8], Seq),
        last_key: &[u8],
        handle: &BlockHandle,
        stored: &[u8],
        filter: &[u8],
    ) -> Result<()> {
        if stored.len() != handle.stored_len as usize || filter.len() != handle.filter_len as usize {
            return Err(Error::invalid("a stored block and its handle differ in length"));
        }
        let grown = self.stored_len() + stored.len() + filter.len() + first.0.len() + ENTRY_BYTES;
        if grown > u32::MAX as usize {
            return Err(Error::limit("extent length in bytes", grown as u64, u32::MAX.into()));
        }
        let handle = BlockHandle {
            offset: self.data.len() as u32,
            filter_offset: self.filters.len() as u32,
            ..*handle
        };
        if self.blocks() == 0 {
            self.first_key.clear();
            self.first_key.extend_from_slice(first.0);
        }
        self.last_key.clear();
        self.last_key.extend_from_slice(last_key);
        self.handle.clear();
        handle.encode(&mut self.handle);
        self.index.add(first.0, first.1, Kind::Put, &self.handle);
        if self.data.room() == 0 {
            self.data = Image::with_room(self.form.max_bytes.next_multiple_of(PAD_BYTES));
        }
        self.data.extend_from_slice(stored);
        self.filters.extend_from_slice(filter);
        self.largest_filter = self.largest_filter.max(filter.len());
        self.value_refs |= handle.value_refs;
        self.totals.rows += u64::from(handle.rows);
        self.totals.deletes += u64::from(handle.deletes);
        self.totals.raw_bytes += u64::from(handle.raw_len);
        if self.blocks() == 1 {
            self.totals.min_seq = handle.min_seq;
        }
        self.totals.min_seq = self.totals.min_seq.min(handle.min_seq);
        self.totals.max_seq = self.totals.max_seq.max(handle.max_seq);
        Ok(())
    }

    /// Sets the range tombstones, already clipped to the extent's bounds.
    pub fn set_tombstones(&mut self, tombstones: &RangeTombstones) {
        let mut bytes = Vec::new();
        tombstones.encode(&mut bytes);
        self.tombstone_bytes = bytes.len();
        self.tombstones = tombstones.clone();
    }

    /// Bytes that the extent would take if finished now: an upper bound, without padding.
    pub fn stored_len(&self) -> usize {
        self.data.len() + self.filters.len() + self.index.len() + self.tombstone_bytes + FIXED_BYTES
    }

    /// Blocks added since the last extent was finished.
    pub fn blocks(&self) -> usize {
        self.index.rows() as usize
    }

    /// Has the extent, of which there is no block yet, be built in the memory of one that is written: fresh memory costs a page fault every
    /// 4 KiB.
    pub fn reuse(&mut self, mut image: Image) {
        debug_assert!(self.data.is_empty(), "a block is there already");
        image.clear();
        self.data = image;
    }

    /// Whether there is neither a block nor a range tombstone.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty() && self.tombstones.is_empty()
    }

    /// Whether a block of `next_raw` bytes, the length of its first key included, no longer belongs in this extent. Never
    /// for the first block: an oversize one gets an extent of its own. The room for its filter is estimated.
    pub fn would_overflow(&self, next_raw: usize) -> bool {
        let filter =
            if self.form.filter_bits_per_key == 0 { 0 } else { self.largest_filter.max(next_raw / 8) };
        self.blocks() > 0
            && (self.blocks() >= self.form.max_blocks
                || self.stored_len() + next_raw + filter + ENTRY_BYTES > self.form.max_bytes)
    }

    /// Closes the extent and starts the next.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::InvalidArgument`] if it is empty.
    pub fn finish(&mut self, id: ExtentId) -> Result<FinishedExtent> {
        let (lo, hi) = self.bounds()?;
        let mut totals = std::mem::take(&mut self.totals);
        totals.id = id;
        totals.blocks = self.index.rows();
        let tombstones = std::mem::take(&mut self.tombstones);
        if let Some((smallest, largest)) = tombstones.seq_range() {
            totals.min_seq = if totals.blocks == 0 { smallest } else { totals.min_seq.min(smallest) };
            totals.max_seq = totals.max_seq.max(largest);
        }
        let has_tombstones = !tombstones.is_empty();
        let footer = Footer { tombstones, properties: totals.clone() };
        let mut footer_bytes = Vec::new();
        footer.encode(&mut footer_bytes);

        let mut bytes = std::mem::take(&mut self.data);
        let data_bytes = bytes.len() as u32;
        let filter = append(&mut bytes, &self.filters);
        let index = append(&mut bytes, &self.finish_index()?);
        let footer = append(&mut bytes, &footer_bytes);
        bytes.pad_to(PAD_BYTES);
        let meta = ExtentMeta {
            id,
            file: 0,
            unit: 0,
            units: bytes.len().div_ceil(UNIT_BYTES) as u32,
            index,
            filter,
            footer,
            rows: totals.rows,
            deletes: totals.deletes,
            blocks: totals.blocks,
            data_bytes,
            raw_bytes: totals.raw_bytes,
            min_seq: totals.min_seq,
            max_seq: totals.max_seq,
            global_seq: None,
            lo,
            hi,
            has_tombstones,
            value_refs: self.value_refs,
        };
        self.filters.clear();
        self.largest_filter = 0;
        self.tombstone_bytes = 0;
        self.value_refs = false;
        Ok(FinishedExtent { bytes, meta })
    }

    /// The index block, its leaves as large as they have to be for a directory with nodes.
    fn finish_index(&mut self) -> Result<Vec<u8>> {
        let directory = self.form.block.directory;
        let rows = self.index.rows() as usize;
        let mut index = std::mem::replace(&mut self.index, index_builder(directory, 1)).finish().bytes;
        if directory == DirectoryKind::TwoLayer && rows > MAX_LEAVES {
            let block = Block::parse(&index)?;
            let mut larger = index_builder(directory, rows.div_ceil(MAX_LEAVES));
            let mut entry = BlockCursor::new();
            entry.seek_first(block)?;
            while entry.valid() {
                larger.add(entry.key(), entry.seq(), Kind::Put, entry.value(block));
                entry.next(block)?;
            }
            index = larger.finish().bytes;
        }
        Ok(index)
    }

    /// The smallest `[lo, hi)` that holds all keys and range tombstones.
    fn bounds(&self) -> Result<(Vec<u8>, Vec<u8>)> {
        let keys = (self.blocks() > 0).then(|| {
            let mut hi = self.last_key.clone();
            hi.push(0);
            (self.first_key.clone(), hi)
        });
        let ranges = self.tombstones.bounds().map(|(lo, hi)| (lo.to_vec(), hi.to_vec()));
        match (keys, ranges) {
            (Some(a), Some(b)) => Ok((a.0.min(b.0), a.1.max(b.1))),
            (Some(one), None) | (None, Some(one)) => Ok(one),
            (None, None) => Err(Error::invalid("an extent needs a block or a range tombstone")),
        }
    }
}

fn index_builder(directory: DirectoryKind, leaf_records: usize) -> BlockBuilder {
    let leaf_records = match directory {
        DirectoryKind::RestartArray => INDEX_LEAF_RECORDS,
        DirectoryKind::TwoLayer => leaf_records,
    };
    BlockBuilder::new(BlockForm { leaf_records, directory, ..BlockForm::default() })
}

fn append(extent: &mut Image, section: &[u8]) -> Section {
    let offset = extent.len() as u32;
    extent.extend_from_slice(section);
    Section { offset, len: section.len() as u32, crc: crc(section) }
}
