//! Writing sorted blocks as the extents of a run.
//!
//! Extents are cut where the next block would no longer fit, but never between versions of one key; a key with more
//! versions than an extent holds makes a larger extent. Range tombstones belong to the extent between whose cut and the
//! next they lie; where they are too many for one, extents without blocks take the rest.
//!
//! While one extent is being built those before it are being written, in the background; every few of them are made durable there.
//!
//! # After a crash
//! Nothing refers to what was written, so its units are free.

mod heirs;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use terrane_base::{Result, Seq};
use terrane_cache::Cache;
use terrane_format::block::{Compression, FinishedBlock};
use terrane_format::extent::{BlockHandle, ExtentBuilder, ExtentForm, ExtentMeta};
use terrane_format::tombstone::RangeTombstones;
use terrane_media::Errand;

use super::Homes;
use super::extent::names_of_frames;
use super::space::{Alloc, Space};
use super::state::Ids;
pub(crate) use heirs::{Heir, Heirs};

/// Most fragments of range tombstones that an extent takes beyond the last of its keys.
const MAX_FRAGMENTS: usize = 4096;

/// After so many extents what was written is made durable, in the background. A device takes its time for that, by the byte: if all of a run
/// came at the end, whoever writes it would wait for the device then, and not use it before.
const SYNCED_TOGETHER: usize = 4;

/// So many extents are on their way to the device while the next is built; each keeps its memory. One of them may be among those that
/// are made durable, which takes as long as several are written in. (With one on its way, a merge waited for it two fifths
/// of the time while 10 M records of 100 bytes were written by one thread.)
const MOST_UNDER_WAY: usize = 3;

// Else a flush would come before anything was waited for that it covers.
const _: () = assert!(MOST_UNDER_WAY < SYNCED_TOGETHER);

/// Cuts a sorted stream of blocks into extents and writes them.
#[derive(Debug)]
pub(crate) struct RunWriter {
    ids: Arc<Ids>,
    builder: ExtentBuilder,
    /// Blocks are stored as readers see them.
    plain: bool,
    /// Those behind the last cut.
    tombstones: RangeTombstones,
    last_key: Vec<u8>,
    heirs: Heirs,
    written: WrittenRun,
}

impl RunWriter {
    /// `tombstones` are all range tombstones of the output.
    pub(crate) fn new(
        space: Arc<Space>,
        ids: Arc<Ids>,
        form: ExtentForm,
        tombstones: RangeTombstones,
        heirs: Heirs,
    ) -> Result<Self> {
        Ok(RunWriter {
            ids,
            plain: form.compression == Compression::None,
            builder: ExtentBuilder::new(form)?,
            tombstones,
            last_key: Vec::new(),
            written: WrittenRun {
                space,
                extents: Vec::new(),
                under_way: VecDeque::new(),
                cache: heirs.cache(),
                homes: heirs.homes().clone(),
                unsynced: BTreeSet::new(),
                claimed: 0,
            },
            heirs,
        })
    }

    /// Adds a block, in key order; `raw_crc` is the CRC of its bytes, if it is known. `heir` says
    /// where else it goes.
    pub(crate) fn add_block(&mut self, block: FinishedBlock, raw_crc: Option<u32>, heir: Heir) -> Result<()> {
        self.cut_before(&block.first_key, block.bytes.len())?;
        self.prepare();
        self.last_key.clone_from(&block.last_key);
        self.heirs.consider(heir, self.builder.next_offset(), &block.bytes, self.plain);
        self.builder.add_block(block, raw_crc)
    }

    /// Adds a block of another extent as it is stored; the caller has verified it. `raw` is what a reader would see.
    pub(crate) fn add_stored_block(
        &mut self,
        first: (&[u8], Seq),
        last_key: &[u8],
        handle: &BlockHandle,
        stored: &[u8],
        filter: &[u8],
        (heir, raw): (Heir, &[u8]),
    ) -> Result<()> {
        self.cut_before(first.0, stored.len())?;
        self.prepare();
        self.heirs.consider(heir, self.builder.next_offset(), raw, handle.compression == Compression::None);
        last_key.clone_into(&mut self.last_key);
        self.builder.add_stored_block(first, last_key, handle, stored, filter)
    }

    /// Closes the last extent and makes all of them durable.
    ///
    /// # Errors
    /// Those of the medium; everything allocated is free again.
    pub(crate) fn finish(self) -> Result<WrittenRun> {
        let written = self.finish_unsynced()?;
        written.sync()?;
        Ok(written)
    }

    /// Closes the last extent; all of them are written, but not durable.
    ///
    /// # Errors
    /// As for [`RunWriter::finish`].
    pub(crate) fn finish_unsynced(mut self) -> Result<WrittenRun> {
        let rest = std::mem::take(&mut self.tombstones);
        self.close(rest)?;
        while !self.written.under_way.is_empty() {
            self.written.catch_up()?;
        }
        Ok(self.written)
    }

    /// To be called before a block is added: the first of an extent goes into memory of one that is written.
    fn prepare(&mut self) {
        if self.builder.blocks() == 0
            && let Some(image) = self.written.space.take_image()
        {
            self.builder.reuse(image);
        }
    }

    /// Closes the extent if a block of `bytes` that begins with `key` no longer belongs in it.
    fn cut_before(&mut self, key: &[u8], bytes: usize) -> Result<()> {
        debug_assert!(self.builder.blocks() == 0 || self.last_key.as_slice() <= key, "blocks out of order");
        if self.builder.blocks() > 0 && self.last_key == key {
            return Ok(());
        }
        if self.builder.would_overflow(bytes + key.len()) {
            let left = self.tombstones.clip(&[], Some(key));
            self.tombstones = self.tombstones.clip(key, None);
            self.close(left)?;
        }
        Ok(())
    }

    /// Writes an extent of the blocks added and of `tombstones`, which may need further extents.
    fn close(&mut self, tombstones: RangeTombstones) -> Result<()> {
        let keys_end =
            if self.builder.blocks() > 0 { [&self.last_key, &[0][..]].concat() } else { Vec::new() };
        let (mut mine, mut rest) = (tombstones, RangeTombstones::default());
        if mine.fragments().len() > MAX_FRAGMENTS {
            rest = mine.clip(&keys_end, None);
            mine = mine.clip(&[], Some(&keys_end));
        }
        self.builder.set_tombstones(&mine);
        self.write()?;
        for fragments in rest.fragments().chunks(MAX_FRAGMENTS) {
            let (Some(first), Some(last)) = (fragments.first(), fragments.last()) else { continue };
            self.builder.set_tombstones(&rest.clip(&first.start, Some(&last.end)));
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        if self.builder.is_empty() {
            return Ok(());
        }
        let mut extent = self.builder.finish(self.ids.extent())?;
        let written = &mut self.written;
        let at = written.space.alloc(extent.meta.units)?;
        (extent.meta.file, extent.meta.unit) = (at.file, at.unit);
        written.extents.push(Arc::new(extent.meta.clone()));
        written.claimed += self.heirs.enter(&extent);
        if written.under_way.len() >= MOST_UNDER_WAY {
            written.catch_up()?;
        }
        let synced = match written.extents.len().is_multiple_of(SYNCED_TOGETHER) {
            true => std::mem::take(&mut written.unsynced),
            false => BTreeSet::new(),
        };
        let errand = written.space.write_behind(at, extent.bytes, synced);
        written.under_way.push_back((at.file, errand));
        Ok(())
    }
}

/// Extents that nothing refers to yet. Dropped without [`WrittenRun::keep`], their space is free again.
#[derive(Debug)]
pub(crate) struct WrittenRun {
    space: Arc<Space>,
    extents: Vec<Arc<ExtentMeta>>,
    /// The writes of the last of them, each with its file.
    under_way: VecDeque<(u32, Errand<()>)>,
    cache: Arc<Cache>,
    homes: Homes,
    /// The files with extents that are written, and not durable yet. (Of those under way nobody knows whether a flush comes before them.)
    unsynced: BTreeSet<u32>,
    /// Bytes that entered the cache though others may have had to leave.
    claimed: usize,
}

impl WrittenRun {
    /// Takes what was written for the range behind.
    pub(crate) fn append(&mut self, mut behind: WrittenRun) {
        debug_assert!(behind.under_way.is_empty(), "it is finished");
        self.extents.append(&mut behind.extents);
        self.unsynced.append(&mut behind.unsynced);
        self.claimed += behind.claimed;
    }

    /// Makes all of it durable.
    ///
    /// # Errors
    /// Those of [`Space::sync_files`].
    pub(crate) fn sync(&self) -> Result<()> {
        self.space.sync_files(self.unsynced.iter().copied())
    }

    pub(crate) fn claimed(&self) -> usize {
        self.claimed
    }

    /// The extents in key order; durable.
    pub(crate) fn extents(&self) -> &[Arc<ExtentMeta>] {
        &self.extents
    }

    /// Where in the cache their frames are.
    pub(crate) fn homes(&self) -> &Homes {
        &self.homes
    }

    /// Waits until the first extent under way is written, if there is any.
    fn catch_up(&mut self) -> Result<()> {
        let Some((file, errand)) = self.under_way.pop_front() else { return Ok(()) };
        self.space.written(errand)?;
        self.unsynced.insert(file);
        Ok(())
    }

    /// The edit that refers to them is durable, or in doubt: their space is theirs.
    pub(crate) fn keep(mut self) -> Vec<Arc<ExtentMeta>> {
        std::mem::take(&mut self.extents)
    }
}

impl Drop for WrittenRun {
    fn drop(&mut self) {
        // What is still being written must not be somebody else's by then. How it ends matters to nobody any more.
        while !self.under_way.is_empty() {
            let _ = self.catch_up();
        }
        for meta in self.extents.drain(..) {
            // A transaction may have read its own.
            names_of_frames(&meta).into_iter().for_each(|name| self.cache.remove_extent(name));
            let freed = self.space.free(Alloc::of_extent(&meta));
            debug_assert!(freed.is_ok(), "extent {} owned its space", meta.id);
        }
    }
}
