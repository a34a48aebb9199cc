//! One immutable extent on a device. No byte of it is handed out before the checksum that its parent holds has verified
//! it: the manifest's for index block, filters and footer, the index's for blocks. An extent that was written before its sequence
//! was known (an attached one) gets it here, after that: nobody else meets the one it is stored with.
//!
//! # Concurrency
//! Immutable but for two things that only grow, the heat, and the range tombstones, which are read once when somebody
//! asks; the ways to its frames in the cache, which that keeps; and the part of the cache in which they are, a hint. Shared by all versions
//! that refer to it; when it is obsolete and the last of them is gone, its space is queued at the [`Reclaimer`].

mod reclaim;
#[cfg(test)]
mod tests;

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use terrane_base::{Error, Result};
use terrane_cache::{Cache, FrameKey, Pin, Slots};
use terrane_format::block::{
    Block, BlockShape, Compression, Foresight, common_prefix, decompress, set_sequence,
};
use terrane_format::checksum::crc;
use terrane_format::extent::{BlockHandle, ExtentMeta, Footer, Section};
use terrane_format::filter::BUCKET;
use terrane_format::tombstone::RangeTombstones;
use terrane_media::File;

use super::io::Window;
use super::space::Alloc;
use crate::txn::big::run::FIRST_OWN;
pub(crate) use reclaim::Reclaimer;

/// One immutable extent.
#[derive(Debug)]
pub(crate) struct Extent {
    /// What the manifest knows about it.
    pub(crate) meta: Arc<ExtentMeta>,
    /// What its frames are named by in the cache.
    frames: u64,
    /// Sampled accesses.
    pub(crate) heat: AtomicU32,
    file: Arc<dyn File>,
    subtable: Arc<str>,
    tombstones: OnceLock<Arc<RangeTombstones>>,
    reclaimer: Arc<Reclaimer>,
    obsolete: AtomicBool,
    /// The part of the cache that has its frames. A wrong one costs misses and nothing else.
    home: AtomicU16,
    slots: OnceLock<Slots<KnownIndex, Known>>,
}

/// What a search needs to know of an index that memory holds.
#[derive(Debug)]
pub(crate) struct KnownIndex {
    pub(crate) shape: BlockShape,
    /// Whether every key within the extent's bounds begins as all of the index do.
    pub(crate) owns_bounds: bool,
}

impl KnownIndex {
    /// Of the index of that shape. Its keys lie within the bounds, so they share what these share.
    pub(crate) fn of(shape: BlockShape, meta: &ExtentMeta) -> Self {
        KnownIndex { shape, owns_bounds: shape.prefix() <= common_prefix(&meta.lo, &meta.hi) }
    }
}

/// What a search needs to know of a block that memory holds, from its index entry. Small: with the way to its frame 24 bytes, and a
/// search reads those of one block.
#[derive(Debug)]
pub(crate) struct Known {
    /// First byte within the extent.
    pub(crate) offset: u32,
    /// Length in memory.
    pub(crate) raw_len: u32,
    pub(crate) filter_offset: u32,
    /// Length of its filter, in [`BUCKET`]s.
    buckets: u16,
    /// What [`Foresight::to_bits`] says of it, once somebody has seen the block; the same whoever says it.
    foresight: AtomicU16,
}

const _: () = assert!(size_of::<Known>() == 16);

impl Known {
    /// `None` where no filter has such a length.
    pub(crate) fn of(handle: BlockHandle) -> Option<Self> {
        let BlockHandle { offset, raw_len, filter_offset, filter_len, .. } = handle;
        let buckets = u16::try_from(filter_len / BUCKET as u32).ok()?;
        let foresight = AtomicU16::new(0);
        (u32::from(buckets) * BUCKET as u32 == filter_len).then_some(Known {
            offset,
            raw_len,
            filter_offset,
            buckets,
            foresight,
        })
    }

    /// Length of its filter; 0 if it has none.
    #[inline]
    pub(crate) fn filter_len(&self) -> u32 {
        u32::from(self.buckets) * BUCKET as u32
    }

    /// Notes what the block with these bytes is like. (Whoever searches one that is damaged finds out.)
    pub(crate) fn note(&self, bytes: &[u8]) {
        if self.foresight().is_none()
            && let Ok(block) = Block::parse(bytes)
            && let Some(foresight) = Foresight::of(block)
        {
            self.foresight.store(foresight.to_bits(), Ordering::Relaxed);
        }
    }

    /// Where a search of it will look, if that can be foreseen.
    #[inline]
    pub(crate) fn foresight(&self) -> Option<Foresight> {
        Foresight::from_bits(self.foresight.load(Ordering::Relaxed))
    }
}

/// Frames of an extent that a transaction reads for itself have names apart: once it is attached its records have other sequences, and what is
/// still on its way from the cache to a store below must not pass for them.
const OWN: u64 = 1 << 63;

/// What frames of an extent are named by in the cache.
pub(crate) fn frames_of(meta: &ExtentMeta) -> u64 {
    match meta.global_seq {
        Some(seq) if seq >= FIRST_OWN => meta.id.0 | OWN,
        _ => meta.id.0,
    }
}

/// All names that frames of an extent may have.
pub(crate) fn names_of_frames(meta: &ExtentMeta) -> [u64; 2] {
    [meta.id.0, meta.id.0 | OWN]
}

impl Extent {
    /// The extent that `meta` describes; `file` is its data file, `subtable` the name for errors.
    pub(crate) fn new(
        meta: Arc<ExtentMeta>,
        file: Arc<dyn File>,
        subtable: Arc<str>,
        reclaimer: Arc<Reclaimer>,
    ) -> Arc<Self> {
        let tombstones = OnceLock::new();
        if !meta.has_tombstones {
            let _ = tombstones.set(Arc::default());
        }
        Arc::new(Extent {
            frames: frames_of(&meta),
            meta,
            heat: AtomicU32::new(0),
            file,
            subtable,
            tombstones,
            reclaimer,
            obsolete: AtomicBool::new(false),
            home: AtomicU16::new(0),
            slots: OnceLock::new(),
        })
    }

    /// The ways to its frames in `cache`, which is always the same one. Of its index the shape is known.
    #[inline]
    pub(crate) fn slots(&self, cache: &Cache) -> &Slots<KnownIndex, Known> {
        self.slots.get_or_init(|| cache.slots())
    }

    /// What the block at `offset` is found by in the cache.
    #[inline]
    pub(crate) fn frame(&self, offset: u32) -> FrameKey {
        FrameKey::new(self.frames, offset).part(self.home())
    }

    /// The part of the cache in which its frames are looked for.
    pub(crate) fn home(&self) -> u16 {
        self.home.load(Ordering::Relaxed)
    }

    /// From now on its frames are looked for in that part of the cache; gives the one in which they are.
    pub(crate) fn set_home(&self, part: u16) -> u16 {
        // (Cores read it: it is written only where it changes.)
        match self.home() {
            same if same == part => same,
            _ => self.home.swap(part, Ordering::Relaxed),
        }
    }

    /// The index block.
    pub(crate) fn load_index(&self) -> Result<Loaded> {
        self.sequenced(self.load_section(&self.meta.index, "the index")?, self.meta.index.offset)
    }

    /// The filters of all blocks, one behind the other.
    pub(crate) fn load_filter(&self) -> Result<Loaded> {
        self.load_section(&self.meta.filter, "the filter section")
    }

    /// The footer; what it says about the extent agrees with the manifest.
    pub(crate) fn load_footer(&self) -> Result<Footer> {
        let at = self.meta.footer.offset;
        let bytes = self.load_section(&self.meta.footer, "the footer")?;
        let footer = Footer::decode(&bytes).map_err(|e| self.place(e, at))?;
        let (p, m) = (&footer.properties, &self.meta);
        if (p.id, p.blocks, p.rows, p.deletes) != (m.id, m.blocks, m.rows, m.deletes) {
            return Err(self.wrong(at, "the footer disagrees with the manifest"));
        }
        Ok(footer)
    }

    /// A block, decompressed.
    pub(crate) fn load_block(&self, handle: &BlockHandle) -> Result<Loaded> {
        self.unpack(handle, self.window(handle.offset, handle.stored_len)?)
    }

    /// A block that is stored as readers see it, if `cache` has it so. Does not count as an access. Verified, for
    /// what has been in memory for long would be written with new checksums; what has changed there is not given.
    pub(super) fn peek(&self, cache: &Cache, handle: &BlockHandle) -> Option<Pin> {
        let is_same = is_plain(handle) && self.meta.global_seq.is_none();
        let pin = is_same.then(|| cache.peek(self.frame(handle.offset)))??;
        (pin.len() == handle.stored_len as usize && crc(&pin) == handle.crc).then_some(pin)
    }

    /// A block as it is stored.
    pub(crate) fn load_stored(&self, handle: &BlockHandle) -> Result<Vec<u8>> {
        let read = self.window(handle.offset, handle.stored_len)?;
        self.verify(handle, read.bytes())?;
        Ok(read.bytes().to_vec())
    }

    /// Where adjacent blocks lie in [`Extent::file`]: offset and length.
    pub(super) fn locate_adjacent(&self, blocks: &[BlockHandle]) -> Result<(u64, usize)> {
        let (first, len) = stretch(blocks);
        let space = self.bounds(first, len)?;
        Ok((space.offset() + u64::from(first), len as usize))
    }

    /// What was read where [`Extent::locate_adjacent`] said, each block verified and decompressed.
    pub(super) fn unpack_adjacent(
        &self,
        blocks: &[BlockHandle],
        mut read: Bytes,
    ) -> impl Iterator<Item = Result<Bytes>> {
        blocks.iter().map(move |handle| {
            let stored = read.split_to(handle.stored_len as usize);
            self.verify(handle, &stored)?;
            if self.meta.global_seq.is_some() {
                let raw = self.decompress(handle, &stored)?;
                return Ok(Bytes::from_owner(self.sequenced(Loaded::Made(raw), handle.offset)?));
            }
            // What is stored as it is stays where it was read.
            Ok(if is_plain(handle) { stored } else { self.decompress(handle, &stored)?.into() })
        })
    }

    /// Adjacent blocks, read in one piece, each verified and decompressed.
    pub(crate) fn load_adjacent(
        &self,
        blocks: &[BlockHandle],
    ) -> Result<impl Iterator<Item = Result<Bytes>>> {
        let (first, len) = stretch(blocks);
        Ok(self.unpack_adjacent(blocks, Bytes::from_owner(self.window(first, len)?)))
    }

    /// The range tombstones; read once, and without I/O where there are none.
    pub(crate) fn tombstones(&self) -> Result<&Arc<RangeTombstones>> {
        if let Some(t) = self.tombstones.get() {
            return Ok(t);
        }
        // Two threads may both read: they read the same.
        let stored = self.load_footer()?.tombstones;
        let read = Arc::new(self.meta.global_seq.map_or(stored.clone(), |seq| stored.with_seq(seq)));
        Ok(self.tombstones.get_or_init(|| read))
    }

    /// The extent's name for errors and counters.
    pub(crate) fn subtable(&self) -> &Arc<str> {
        &self.subtable
    }

    /// Nothing durable refers to the extent any more: its space is free once the last reader is gone.
    pub(super) fn retire(&self) {
        self.obsolete.store(true, Ordering::Release);
    }

    fn load_section(&self, section: &Section, what: &str) -> Result<Loaded> {
        if section.len == 0 {
            return Ok(Loaded::Made(Vec::new()));
        }
        let read = self.window(section.offset, section.len)?;
        self.verify_section(section, read.bytes(), what)?;
        Ok(Loaded::Read(read))
    }

    fn verify_section(&self, section: &Section, bytes: &[u8], what: &str) -> Result<()> {
        if crc(bytes) == section.crc {
            return Ok(());
        }
        Err(self.wrong(section.offset, &format!("{what} does not match its checksum")))
    }

    /// What a read of a section of this extent brought, if it is what the manifest says.
    pub(crate) fn accept_section(&self, section: &Section, read: Window) -> Result<Loaded> {
        self.verify_section(section, read.bytes(), "a section")?;
        Ok(Loaded::Read(read))
    }

    /// As [`Extent::accept_section`], of the index block.
    pub(crate) fn accept_index(&self, read: Window) -> Result<Loaded> {
        self.sequenced(self.accept_section(&self.meta.index, read)?, self.meta.index.offset)
    }

    /// The block that was loaded, its records with the sequence at which the extent was attached, if it was.
    fn sequenced(&self, loaded: Loaded, offset: u32) -> Result<Loaded> {
        let Some(seq) = self.meta.global_seq.filter(|_| !loaded.is_empty()) else { return Ok(loaded) };
        let mut bytes = loaded.to_vec();
        set_sequence(&mut bytes, seq).map_err(|e| self.place(e, offset))?;
        Ok(Loaded::Made(bytes))
    }

    /// Room for `len` bytes at `offset`, to be read by the caller from [`Extent::file`].
    pub(crate) fn prepare(&self, offset: u32, len: u32) -> Result<Window> {
        let space = self.bounds(offset, len)?;
        Ok(Window::prepare(space.offset() + u64::from(offset), len as usize))
    }

    /// The data file.
    pub(crate) fn file(&self) -> &dyn File {
        &*self.file
    }

    fn verify(&self, handle: &BlockHandle, stored: &[u8]) -> Result<()> {
        if crc(stored) == handle.crc {
            return Ok(());
        }
        Err(self.wrong(handle.offset, "a block does not match its checksum"))
    }

    /// What a read of a block's stored bytes brought, verified and decompressed.
    pub(crate) fn unpack(&self, handle: &BlockHandle, read: Window) -> Result<Loaded> {
        self.verify(handle, read.bytes())?;
        let loaded = match is_plain(handle) {
            true => Loaded::Read(read),
            false => Loaded::Made(self.decompress(handle, read.bytes())?),
        };
        self.sequenced(loaded, handle.offset)
    }

    fn decompress(&self, handle: &BlockHandle, stored: &[u8]) -> Result<Vec<u8>> {
        decompress(handle.compression, stored, handle.raw_len as usize)
            .map_err(|e| self.place(e, handle.offset))
    }

    fn window(&self, offset: u32, len: u32) -> Result<Window> {
        let space = self.bounds(offset, len)?;
        Window::read(&*self.file, space.offset() + u64::from(offset), len as usize)
            .map_err(|e| e.with_subtable(&*self.subtable))
    }

    fn bounds(&self, offset: u32, len: u32) -> Result<Alloc> {
        let space = Alloc::of_extent(&self.meta);
        if u64::from(offset) + u64::from(len) > space.bytes() {
            return Err(self.wrong(offset, "a part lies outside of its extent"));
        }
        Ok(space)
    }

    fn wrong(&self, offset: u32, what: &str) -> Error {
        self.place(Error::corruption(format!("extent {}: {what}", self.meta.id)), offset)
    }

    /// Names the place in the file; `offset` is one within the extent.
    pub(crate) fn place(&self, e: Error, offset: u32) -> Error {
        let at = Alloc::of_extent(&self.meta).offset() + u64::from(offset);
        // A decoder's own offset counts within what it decoded, so it does not stand for a place in the file.
        Error::new(e.kind(), e.message())
            .with_file(self.file.path())
            .with_offset(at)
            .with_subtable(&*self.subtable)
            .with_hint("`terrane check` lists all damage; restore from a backup")
    }
}

/// Where adjacent blocks lie: offset within the extent, and length.
fn stretch(blocks: &[BlockHandle]) -> (u32, u32) {
    let first = blocks.first().map_or(0, |b| b.offset);
    let end = blocks.last().map_or(0, BlockHandle::end);
    (first, end.saturating_sub(first))
}

/// Whether a block is stored as it is.
fn is_plain(handle: &BlockHandle) -> bool {
    handle.compression == Compression::None && handle.stored_len == handle.raw_len
}

/// Verified bytes of an extent, where the read has put them, or made from that.
#[derive(Debug)]
pub(crate) enum Loaded {
    Read(Window),
    Made(Vec<u8>),
}

impl Deref for Loaded {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Loaded::Read(window) => window.bytes(),
            Loaded::Made(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Loaded {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        if self.obsolete.load(Ordering::Acquire) {
            self.reclaimer.queue_extent(&self.meta);
        }
    }
}
