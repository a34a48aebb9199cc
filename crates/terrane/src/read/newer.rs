//! Whether somebody has changed a key, or anything in a range, after a sequence: what first-updater-wins and validation ask.
//!
//! Only memtables and extents that hold something newer than the sequence are looked at, which for a short transaction is the active
//! memtable alone. The caller holds a lock on what it asks about, so nobody changes it meanwhile.

use std::sync::Arc;

use terrane_base::{MAX_SEQ, Result, Seq};
use terrane_cache::Cache;
use terrane_format::block::{self, Block};
use terrane_format::extent::Index;
use terrane_format::{Kind, checksum, filter};

use crate::db::engine::Engine;
use crate::db::table::{Super, Table};
use crate::levels::ExtentRef;
use crate::read::blocks::{Part, load};
use crate::read::source::Source;

impl Engine {
    /// Whether `key` has a version, or a range deletion that covers it, newer than `seq`.
    pub(crate) fn key_changed_since(&self, table: &Table, key: &[u8], seq: Seq) -> Result<bool> {
        let state = table.state();
        table.check_alive()?;
        let mut hash = None;
        for m in &state.memtables {
            if m.end().is_some_and(|end| end <= seq) {
                // Nor does any older one.
                break;
            }
            // A commit that failed may have left what nobody will ever see: no further than what is published.
            let (now, cover) = loop {
                let now = self.visible();
                // Else others have deleted ranges meanwhile, and the picture of that moment is gone.
                if let Some(cover) = m.tombstones.covering(key, now) {
                    break (now, cover);
                }
            };
            if cover > seq {
                return Ok(true);
            }
            if m.may_have(|| *hash.get_or_insert_with(|| checksum::key_hash(key))) {
                let found = m.index().get(key, now);
                m.verify_read(key, now, found.as_ref()).map_err(|e| e.with_subtable(&*table.name))?;
                if let Some(record) = found {
                    return Ok(record.seq > seq);
                }
            }
        }
        for (_, run) in state.version.runs() {
            let Some(part) = run.find(key).filter(|p| p.extent.meta.max_seq > seq) else { continue };
            let (cover, newest) = newest_in(&self.cache, part, key, |seq, _, _| seq)
                .map_err(|e| e.with_subtable(&*table.name))?;
            if cover > seq || newest.is_some_and(|newest| newest > seq) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether any key in `[lo, hi)` was changed after `seq`; no `hi` means to the end.
    pub(crate) fn range_changed_since(
        &self,
        table: &Table,
        lo: &[u8],
        hi: Option<&[u8]>,
        seq: Seq,
    ) -> Result<bool> {
        // Registered, so that no picture of range deletions is dropped below us.
        let now = self.register();
        let state = table.state_full();
        table.check_alive()?;
        let place = |e: terrane_base::Error| e.with_subtable(&*table.name);
        for source in self.newer_sources(&state, lo, hi, seq, now.seq) {
            if newer_key(source, lo, hi, seq).map_err(place)? {
                return Ok(true);
            }
        }
        for m in state.memtables.iter().filter(|m| m.end().is_none_or(|end| end > seq)) {
            if let Some(picture) = m.tombstones.picture(now.seq).map_err(place)?
                && picture.newer_than(seq, lo, hi)
            {
                return Ok(true);
            }
        }
        for (_, run) in state.version.runs() {
            for part in run.overlapping(lo, hi) {
                let meta = &part.extent.meta;
                if meta.has_tombstones && meta.max_seq > seq {
                    let inside = part.tombstones().map_err(place)?.clip(lo, hi);
                    if inside.seq_range().is_some_and(|(_, newest)| newest > seq) {
                        return Ok(true);
                    }
                }
            }
        }
        Ok(false)
    }

    fn newer_sources(&self, state: &Super, lo: &[u8], hi: Option<&[u8]>, seq: Seq, now: Seq) -> Vec<Source> {
        let memtables = state.memtables.iter().filter(|m| m.end().is_none_or(|end| end > seq));
        let memtables = memtables.filter(|m| !m.is_empty()).map(|m| Source::memtable(m.clone(), now));
        let is_newer = |p: &Arc<ExtentRef>| p.extent.meta.max_seq > seq;
        let runs = state.version.runs().filter(|(_, run)| run.overlapping(lo, hi).iter().any(is_newer));
        let runs = runs.map(|(_, run)| Source::run(run.clone(), self.cache.clone(), now));
        memtables.chain(runs).collect()
    }
}

/// The sequence of the newest range deletion that covers `key` in `part`, 0 if none does, and what `see` makes of the newest record: its
/// sequence, kind and value. Reads through the cache.
pub(crate) fn newest_in<R>(
    cache: &Cache,
    part: &ExtentRef,
    key: &[u8],
    see: impl FnOnce(Seq, Kind, &[u8]) -> R,
) -> Result<(Seq, Option<R>)> {
    let extent = &part.extent;
    let cover = part.covering(key, MAX_SEQ)?;
    if extent.meta.blocks == 0 {
        return Ok((cover, None));
    }
    let index = load(cache, extent, &Part::Index)?;
    let found = Index::parse(&index).and_then(|index| index.find(key, MAX_SEQ));
    let found = found.map_err(|e| extent.place(e, extent.meta.index.offset))?;
    for handle in found.iter().flat_map(|f| [Some(f.handle), f.then]).flatten() {
        if handle.filter_len > 0 {
            let filters = load(cache, extent, &Part::Filter)?;
            let own = handle.filter(&filters).map_err(|e| extent.place(e, extent.meta.filter.offset))?;
            if !filter::may_contain(own, checksum::key_hash(key)) {
                continue;
            }
        }
        let block = load(cache, extent, &Part::Data(handle))?;
        let hit = Block::parse(&block).and_then(|b| block::get(b, key, MAX_SEQ));
        if let Some((seq, kind, value)) = hit.map_err(|e| extent.place(e, handle.offset))? {
            return Ok((cover, Some(see(seq, kind, value))));
        }
    }
    Ok((cover, None))
}

/// Whether `source` has a version newer than `seq` of a key in `[lo, hi)`.
fn newer_key(mut source: Source, lo: &[u8], hi: Option<&[u8]>, seq: Seq) -> Result<bool> {
    source.seek(lo)?;
    while source.valid() && hi.is_none_or(|hi| source.key() < hi) {
        if source.seq() > seq {
            return Ok(true);
        }
        let key = source.key().to_vec();
        source.next(&key)?;
    }
    Ok(false)
}
