//! Blocks that enter the cache as they are written.
//!
//! A merge replaces blocks that readers found in the cache by others that they would have to fetch from the device, so
//! those that take the place of cached ones enter at once: see [`Heir`]. So do the index and the filters of an extent that
//! will be asked by every lookup of its range.

use std::sync::Arc;

use terrane_cache::{Cache, FrameKey, Priority};
use terrane_format::extent::FinishedExtent;

/// A place that a block may take when others would have to leave for it: one in this many of the cache's bytes, for all
/// blocks of a merge together. What they replace leaves only when the merge is installed.
const SHARE: usize = 8;

/// Whether a block that is written enters the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heir {
    /// Nobody asked for what it replaces.
    No,
    /// Only where nothing has to leave for it: newly written records.
    IfRoom,
    /// It replaces blocks that are cached.
    Yes,
}

/// What of an extent being built enters the cache once it is written.
#[derive(Debug)]
pub(crate) struct Heirs {
    cache: Arc<Cache>,
    /// Bytes for which others may have to leave.
    allowance: usize,
    /// Whether index and filters enter even where no block does.
    sections: bool,
    /// Offsets in the extent, and raw bytes.
    blocks: Vec<(u32, Vec<u8>, Priority)>,
    /// Bytes of `blocks`.
    bytes: usize,
}

impl Heirs {
    pub(crate) fn new(cache: Arc<Cache>, sections: bool, used: usize) -> Self {
        let allowance = (cache.stats().capacity_bytes / SHARE).saturating_sub(used);
        Heirs { cache, allowance, sections, blocks: Vec::new(), bytes: 0 }
    }

    /// Keeps the raw bytes of the block that will lie at `offset`, if it is to enter.
    pub(super) fn consider(&mut self, heir: Heir, offset: u32, raw: &[u8]) {
        let priority = match heir {
            Heir::Yes if raw.len() <= self.allowance => Priority::Heir,
            Heir::IfRoom if self.bytes + raw.len() <= self.cache.room() => Priority::Data,
            _ => return,
        };
        if priority == Priority::Heir {
            self.allowance -= raw.len();
        }
        self.bytes += raw.len();
        self.blocks.push((offset, raw.to_vec(), priority));
    }

    /// Lets in what was kept of `extent`, which is written. Says how many bytes others may have had to leave for.
    pub(super) fn enter(&mut self, extent: &FinishedExtent) -> usize {
        let id = extent.meta.id;
        let key = |offset| FrameKey { extent: id.0, offset };
        if self.sections || !self.blocks.is_empty() {
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
        for (offset, raw, priority) in self.blocks.drain(..) {
            if priority == Priority::Heir {
                claimed += raw.len();
            }
            self.cache.insert(key(offset), raw, priority);
        }
        claimed
    }

    pub(super) fn cache(&self) -> Arc<Cache> {
        self.cache.clone()
    }
}
