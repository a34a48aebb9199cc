//! How far a piece is merged before that is installed, where readers have much of it in the cache.
//!
//! What replaces the blocks that readers have there enters as it is written, while the blocks that it replaces leave when it is installed.
//! So both are there for a while, and others would have to leave for that. A piece with more such blocks than merges may take room for
//! is therefore merged in parts.

use std::sync::Arc;

use terrane_base::Result;
use terrane_cache::Cache;

use crate::compact::busy::KeyRange;
use crate::compact::inputs::{self, Input};
use crate::compact::pick::Pick;
use crate::db::engine::Engine;
use crate::db::table::Table;
use crate::levels::{Heirs, Version};
use crate::read::blocks::Part;

/// Extents that a merge has room for, if that is not too much of the cache for one.
const LEAST_EXTENTS: usize = 2;

impl Engine {
    /// Merges one piece of `version`, in which it was claimed, and installs the outcome, in parts if the module's head says so. False if
    /// somebody else changed the inputs meanwhile; nothing is changed from there on.
    ///
    /// # Errors
    /// Whatever reading, merging, writing or installing fails with; nothing is changed then, but by parts before.
    pub(crate) fn compact_piece(
        self: &Arc<Self>,
        table: &Arc<Table>,
        pick: &Pick,
        mut version: Arc<Version>,
    ) -> Result<bool> {
        let mut part = pick.clone();
        loop {
            let end = match self.options.tuning.warm {
                // Half of them: a block that was read is replaced by two, mostly, and what was above goes into these.
                true => end(&self.cache, &inputs::of_piece(&version, &part), &part, self.heirs_share() / 2)?,
                false => None,
            };
            part.range.hi = end.clone().or_else(|| pick.range.hi.clone());
            if !self.compact_at_once(table, &part, &version)? {
                return Ok(false);
            }
            let Some(end) = end else { return Ok(true) };
            // What lies behind is as it was, but for extents that were cut there, and for runs of L0 that have come: these go along, and
            // whoever has claimed an extent of them finds that out when it installs. (The version before goes: its blocks are to leave.)
            version = table.state().version.clone();
            self.reclaim();
            part.range = KeyRange { lo: end, hi: pick.range.hi.clone() };
        }
    }

    /// Bytes of the cache that a merge may have others leave for.
    pub(super) fn heirs_share(&self) -> usize {
        let least = LEAST_EXTENTS * self.options.tuning.extent_bytes;
        Heirs::share(&self.cache, self.options.compaction_jobs(), least)
    }
}

/// Where the first part of the piece ends if there are more than `most` bytes of blocks in it that are read in the cache: at such a block,
/// or where an extent of the target level begins, if one does not far before that. `None` if it is merged as a whole.
fn end(cache: &Cache, inputs: &[Input], pick: &Pick, most: usize) -> Result<Option<Vec<u8>>> {
    let is_read = |part: Part, extent: &_| cache.is_read(part.key(extent)) == Some(true);
    let mut hot: Vec<(Vec<u8>, usize)> = Vec::new();
    // (An index that nobody reads has no blocks that anybody reads.)
    for part in inputs.iter().flat_map(|i| &i.parts).filter(|p| is_read(Part::Index, &p.extent)) {
        let blocks = inputs::blocks(cache, std::slice::from_ref(part), &pick.range)?;
        let read = blocks.into_iter().filter(|b| is_read(Part::Data(b.handle), &part.extent));
        hot.extend(read.map(|b| (b.first_key, b.handle.raw_len as usize)));
    }
    hot.sort_unstable();
    let mut before = 0;
    let Some(over) = hot.iter().position(|(key, bytes)| {
        before += bytes;
        before > most && *key > pick.range.lo
    }) else {
        return Ok(None);
    };
    let (cut, _) = hot.swap_remove(over);
    let targets = inputs.iter().filter(|i| i.level == pick.to).flat_map(|i| &i.parts);
    let start = targets.map(|part| &part.lo[..]).take_while(|lo| *lo <= &cut[..]).last();
    let bytes_before =
        |key: &[u8]| hot[..over].iter().filter(|(k, _)| **k < *key).map(|(_, n)| n).sum::<usize>();
    Ok(Some(match start {
        Some(lo) if bytes_before(lo) >= most / 2 && *lo > *pick.range.lo => lo.to_vec(),
        _ => cut,
    }))
}
