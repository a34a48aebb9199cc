//! An extent's blocks that memory holds: by swizzled pointer, or else by search, and swizzled then.
//!
//! Nothing here reads the medium. What is not in memory is for the caller to name.

use terrane_base::{Error, Result, Seq};
use terrane_cache::{Cache, Children, Hold, Seen, Swizzling};
use terrane_format::extent::{Index, IndexApproach};

use crate::levels::{Extent, Known, KnownIndex};
use crate::read::blocks::Part;

/// Bytes at a block's end that a search looks at first: the trailer and the root of the directory.
const SEARCHED_FIRST: u32 = 24 + 128;
/// In front of these: the offsets of leaves that have no other nodes above them.
const OFFSETS: u32 = 64;

/// An extent whose index is in memory, for as long as the hold.
#[derive(Clone, Copy)]
pub(crate) struct Near<'h> {
    hold: &'h Hold<'h>,
    cache: &'h Cache,
    extent: &'h Extent,
    index: Seen<'h>,
    blocks: Children<'h, KnownIndex, Known>,
}

impl<'h> Near<'h> {
    /// `None` if the index is not in memory, or cannot be swizzled: memory for that may be short, and damage is for those to report who
    /// search the index itself.
    #[inline]
    pub(crate) fn of(extent: &'h Extent, cache: &'h Cache, hold: &'h Hold<'h>) -> Option<Self> {
        let slots = extent.slots(cache);
        let (index, blocks) = match hold.parent(slots) {
            Some(both) => both,
            None => {
                swizzle_index(extent, cache, hold)?;
                hold.parent(slots)?
            }
        };
        Some(Near { hold, cache, extent, index, blocks })
    }

    /// As [`Index::position`].
    #[inline]
    pub(crate) fn position(&self, key: &[u8], seq: Seq) -> Result<Option<(u32, bool)>> {
        self.position_from(&self.approach(key)?, key, seq)
    }

    /// As [`Index::approach`].
    #[inline]
    pub(crate) fn approach(&self, key: &[u8]) -> Result<IndexApproach> {
        let approach = self.index().map_err(|e| self.in_index(e))?.approach(key);
        // While the search finds out which one it is, the slots come near.
        self.hold.prefetch_slots(self.blocks, approach.among());
        Ok(approach)
    }

    /// As [`Index::position_from`].
    #[inline]
    pub(crate) fn position_from(
        &self,
        approach: &IndexApproach,
        key: &[u8],
        seq: Seq,
    ) -> Result<Option<(u32, bool)>> {
        self.index().and_then(|index| index.position_from(approach, key, seq)).map_err(|e| self.in_index(e))
    }

    /// As [`Near::position_from`] for a key within the extent's bounds.
    #[inline]
    pub(crate) fn own_position_from(
        &self,
        approach: &IndexApproach,
        key: &[u8],
        seq: Seq,
    ) -> Result<Option<(u32, bool)>> {
        if !self.blocks.parent().owns_bounds {
            return self.position_from(approach, key, seq);
        }
        let found = self.index().and_then(|index| index.own_position_from(approach, key, seq));
        found.map_err(|e| self.in_index(e))
    }

    /// An error of the index, which says where that lies.
    #[cold]
    fn in_index(&self, e: Error) -> Error {
        self.extent.place(e, self.extent.meta.index.offset)
    }

    /// An error of block `number`, which says where that lies.
    #[cold]
    pub(crate) fn in_block(&self, number: u32, e: Error) -> Error {
        match self.known(number) {
            Some(known) => self.extent.place(e, known.offset),
            None => e,
        }
    }

    #[inline]
    fn index(&self) -> Result<Index<'h>> {
        Ok(Index::over(self.blocks.parent().shape.over(self.index.bytes())?))
    }

    /// What is known of block `number`.
    #[inline]
    pub(crate) fn known(&self, number: u32) -> Option<&'h Known> {
        self.blocks.known(number)
    }

    /// Has what a search of block `number` looks at first brought near.
    #[inline]
    pub(crate) fn announce(&self, number: u32, known: &Known) {
        let len = known.raw_len;
        // There is foresight for blocks with inner nodes: what precedes the root is looked at later, and elsewhere mostly.
        let offsets = if known.foresight().is_some() { 0 } else { OFFSETS };
        let end = len.saturating_sub(SEARCHED_FIRST + offsets)..len;
        self.hold.prefetch_child(self.blocks, number, len, [end]);
    }

    /// Has what a search of block `number` looks at next brought near too, as far as that can be foreseen. The approach has led to that
    /// block, or to the one before it.
    #[inline]
    pub(crate) fn announce_next(&self, number: u32, known: &Known, approach: &IndexApproach) {
        if let Some(foresight) = known.foresight()
            && let Ok(index) = self.index()
            && let Some(share) = index.share(approach, number)
        {
            let of = known.raw_len;
            self.hold.prefetch_child(self.blocks, number, of, foresight.expects(of, share));
        }
    }

    /// Has the ends of block `number` brought near, for whoever is to go through it soon.
    pub(crate) fn announce_ends(&self, number: u32) {
        if let Some(known) = self.known(number) {
            self.hold.prefetch_ends(self.blocks, number, known.raw_len);
        }
    }

    /// The filter of a block, empty if it has none; `None` if it is not in memory.
    ///
    /// # Errors
    /// Corruption if it lies outside of the filters.
    #[inline]
    pub(crate) fn filter_of(&self, known: &Known) -> Result<Option<&'h [u8]>> {
        if known.filter_len() == 0 {
            return Ok(Some(&[]));
        }
        let Some(filters) = self.filters() else { return Ok(None) };
        filter_at(filters.bytes(), (known.filter_offset, known.filter_len()), self.extent).map(Some)
    }

    /// The filters, if they are in memory.
    #[inline]
    pub(crate) fn filters(&self) -> Option<Seen<'h>> {
        let slots = self.extent.slots(self.cache);
        self.hold.section(slots).or_else(|| {
            let key = Part::Filter.key(self.extent);
            let found = self.hold.find(key)?;
            self.hold.swizzle_section(slots, key);
            Some(found)
        })
    }

    /// Has these bytes of a frame that was found brought near.
    #[inline]
    pub(crate) fn announce_bytes(&self, bytes: &[u8]) {
        self.hold.prefetch_bytes(bytes);
    }

    /// Block `number`, if it is in memory.
    #[inline]
    pub(crate) fn block(&self, number: u32, known: &Known) -> Option<Seen<'h>> {
        self.hold.child(self.blocks, number).or_else(|| self.find_block(number, known))
    }

    #[cold]
    fn find_block(&self, number: u32, known: &Known) -> Option<Seen<'h>> {
        let key = self.extent.frame(known.offset);
        let found = self.hold.find(key)?;
        if self.cache.swizzling() >= Swizzling::Children {
            known.note(found.bytes());
        }
        self.hold.swizzle_child(self.extent.slots(self.cache), number, key);
        Some(found)
    }
}

#[cold]
fn swizzle_index(extent: &Extent, cache: &Cache, hold: &Hold<'_>) -> Option<()> {
    if cache.swizzling() == Swizzling::Nothing {
        return None;
    }
    let key = Part::Index.key(extent);
    let index = hold.find(key)?;
    let index = Index::parse(index.bytes()).ok()?;
    hold.swizzle_parent(extent.slots(cache), key, index.len() as usize, || {
        let known: Option<Vec<_>> = index.handles().ok()?.into_iter().map(Known::of).collect();
        Some((KnownIndex::of(index.block().shape(), &extent.meta), known?.into_iter()))
    });
    Some(())
}

/// The filter that lies there in the section of filters.
#[inline]
pub(crate) fn filter_at<'f>(filters: &'f [u8], (from, len): (u32, u32), extent: &Extent) -> Result<&'f [u8]> {
    let own = filters.get(from as usize..).and_then(|f| f.get(..len as usize));
    own.ok_or_else(|| {
        let damage = Error::corruption("a filter lies outside the filter section");
        extent.place(damage, extent.meta.filter.offset)
    })
}
