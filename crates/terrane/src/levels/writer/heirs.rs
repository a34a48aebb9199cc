//! Blocks that enter the cache, or the store below it, as they are written.
//!
//! A merge replaces blocks that readers found in the cache by others that they would have to fetch from the device, so
//! those that take the place of cached ones enter at once: see [`Heir`]. So do the index and the filters of an extent that
//! will be asked by every lookup of its range, or that takes the place of one whose index is asked; and whatever finds room: what
//! is written is in memory anyway. What takes the place of blocks in the store below the cache goes there.

use std::sync::Arc;

use terrane_cache::{Cache, FrameKey, Priority};
use terrane_format::extent::FinishedExtent;

use crate::levels::Homes;

/// One in this many of the cache's bytes may be taken by blocks for which others have to leave, for all merges that run
/// at a time together. What they replace leaves only when the merge is installed.
const SHARE: usize = 8;

/// Where a block that is written goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heir {
    /// Nobody asked for what it replaces, or it replaces nothing: it enters where there is room for it, and is the first to
    /// leave.
    No,
    /// As `No`; but readers have the index of what it replaces in the cache, so that of its extent enters.
    Index,
    /// It replaces blocks, or records, that readers have in memory but not in the cache: where there is no room for it, it goes to the store
    /// below, if there is one. `index`: readers have the index of what it replaces in the cache, as with `Index`.
    Below { index: bool },
    /// It replaces blocks that readers have in the cache: others may have to leave for it. Where no more may, it goes `below`, if that is said.
    Yes { below: bool },
}

/// What of an extent being built enters the cache once it is written.
#[derive(Debug)]
pub(crate) struct Heirs {
    cache: Arc<Cache>,
    homes: Homes,
    /// Bytes for which others may have to leave.
    allowance: usize,
    /// Whether index and filters enter even where no block does.
    sections: bool,
    /// As `sections`, of the extent being built alone.
    index: bool,
    /// Whether anything is kept.
    open: bool,
    blocks: Vec<Kept>,
    /// Bytes of those of `blocks` that enter the cache.
    bytes: usize,
}

/// A block that is kept.
#[derive(Debug)]
struct Kept {
    offset: u32,
    len: usize,
    /// Its bytes as readers see them, where they are not stored so.
    raw: Option<Vec<u8>>,
    place: Place,
}

/// Where it goes.
#[derive(Debug)]
enum Place {
    Cache {
        priority: Priority,
        /// Whether it may push others out.
        claims: bool,
    },
    Below,
}

impl Heirs {
    /// For a merge that others may have to leave for, by so many bytes.
    pub(crate) fn new(cache: Arc<Cache>, homes: Homes, sections: bool, allowance: usize) -> Self {
        Heirs { cache, homes, allowance, sections, index: false, open: true, blocks: Vec::new(), bytes: 0 }
    }

    /// Bytes for which others may have to leave, for a merge that is one of `jobs` at a time: enough for what is worth being written by
    /// itself, if that is `least` bytes, however many there are.
    pub(crate) fn share(cache: &Cache, jobs: usize, least: usize) -> usize {
        let all = cache.capacity() / SHARE;
        (all / jobs.max(1)).max(least.min(all))
    }

    /// Nothing enters: readers will not see what is written as it is stored.
    pub(crate) fn none(cache: Arc<Cache>, homes: Homes) -> Self {
        Heirs {
            cache,
            homes,
            allowance: 0,
            sections: false,
            index: false,
            open: false,
            blocks: Vec::new(),
            bytes: 0,
        }
    }

    /// Keeps the raw bytes of the block that will lie at `offset`, if it is to go anywhere; where it is `plain`, they will lie there.
    pub(super) fn consider(&mut self, heir: Heir, offset: u32, raw: &[u8], plain: bool) {
        if !self.open {
            return;
        }
        self.index |= matches!(heir, Heir::Index | Heir::Yes { .. } | Heir::Below { index: true });
        let claims = self.bytes + raw.len() > self.cache.room();
        let place = match heir {
            Heir::Yes { .. } if !claims || raw.len() <= self.allowance => {
                self.allowance -= if claims { raw.len() } else { 0 };
                Place::Cache { priority: Priority::Heir, claims }
            }
            Heir::Below { .. } | Heir::Yes { below: true } if claims && self.cache.has_below() => {
                Place::Below
            }
            _ if claims => return,
            _ => Place::Cache { priority: Priority::Data, claims },
        };
        if matches!(place, Place::Cache { .. }) {
            self.bytes += raw.len();
        }
        self.blocks.push(Kept { offset, len: raw.len(), raw: (!plain).then(|| raw.to_vec()), place });
    }

    /// Lets in what was kept of `extent`, which is written, or about to be. Says how many bytes others may have had to leave for.
    pub(super) fn enter(&mut self, extent: &FinishedExtent) -> usize {
        let (id, home) = (extent.meta.id, self.homes.of(&extent.meta.lo));
        let key = |offset| FrameKey::new(id.0, offset).part(home);
        let index = std::mem::take(&mut self.index);
        let enters = |block: &Kept| matches!(block.place, Place::Cache { .. });
        if extent.meta.blocks > 0 && (self.sections || index || self.blocks.iter().any(enters)) {
            let sections = [(extent.meta.index, Priority::Index), (extent.meta.filter, Priority::Filter)];
            for (section, priority) in sections.iter().filter(|(s, _)| s.len > 0) {
                let from = section.offset as usize;
                if let Some(bytes) = extent.bytes.get(from..from + section.len as usize) {
                    self.cache.insert(key(section.offset), bytes, *priority);
                }
            }
        }
        self.bytes = 0;
        let mut claimed = 0;
        for block in self.blocks.drain(..) {
            let from = block.offset as usize;
            let stored = extent.bytes.get(from..from + block.len);
            let Some(raw) = block.raw.as_deref().or(stored) else { continue };
            match block.place {
                Place::Below => self.cache.keep_below(key(block.offset), raw),
                Place::Cache { priority, claims } => {
                    claimed += if claims { block.len } else { 0 };
                    self.cache.insert(key(block.offset), raw, priority);
                }
            }
        }
        claimed
    }

    pub(super) fn cache(&self) -> Arc<Cache> {
        self.cache.clone()
    }

    /// Where the extents are at home.
    pub(super) fn homes(&self) -> &Homes {
        &self.homes
    }
}
