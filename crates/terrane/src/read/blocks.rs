//! Blocks through the cache: the one place where reads meet the medium.

use std::collections::HashMap;

use terrane_base::Result;
use terrane_cache::{Cache, FrameKey, Pin, Priority};
use terrane_format::extent::BlockHandle;

use crate::db::engine::Engine;
use crate::levels::Extent;
use crate::levels::Window;
use crate::read::lookup::Need;

/// A block that a read needs and memory does not hold.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    Index,
    Filter,
    Data(BlockHandle),
}

impl Part {
    pub(crate) fn key(&self, extent: &Extent) -> FrameKey {
        let offset = match self {
            Part::Index => extent.meta.index.offset,
            Part::Filter => extent.meta.filter.offset,
            Part::Data(h) => h.offset,
        };
        FrameKey { extent: extent.meta.id.0, offset }
    }

    fn priority(&self) -> Priority {
        match self {
            Part::Index => Priority::Index,
            Part::Filter => Priority::Filter,
            Part::Data(_) => Priority::Data,
        }
    }

    /// Reads it from the medium, verified and decompressed.
    pub(crate) fn read(&self, extent: &Extent) -> Result<Vec<u8>> {
        match self {
            Part::Index => extent.load_index(),
            Part::Filter => extent.load_filter(),
            Part::Data(h) => extent.load_block(h),
        }
    }

    /// The read that brings it.
    fn window(&self, extent: &Extent) -> Result<Window> {
        match self {
            Part::Index => extent.prepare(extent.meta.index.offset, extent.meta.index.len),
            Part::Filter => extent.prepare(extent.meta.filter.offset, extent.meta.filter.len),
            Part::Data(h) => extent.prepare(h.offset, h.stored_len),
        }
    }

    /// What the read has brought, verified and decompressed.
    fn finish(&self, extent: &Extent, bytes: &[u8]) -> Result<Vec<u8>> {
        match self {
            Part::Index => extent.accept_section(&extent.meta.index, bytes),
            Part::Filter => extent.accept_section(&extent.meta.filter, bytes),
            Part::Data(h) => extent.unpack(h, bytes),
        }
    }
}

/// The part, from the cache or else from the medium (once, however many ask at the same time).
pub(crate) fn load(cache: &Cache, extent: &Extent, part: &Part) -> Result<Pin> {
    cache.get_or_load(part.key(extent), part.priority(), || part.read(extent))
}

/// Loads many blocks, overlapping the reads of those that the cache lacks.
pub(crate) fn load_many(engine: &Engine, needs: HashMap<FrameKey, Need>) -> Result<HashMap<FrameKey, Pin>> {
    let mut pins = HashMap::with_capacity(needs.len());
    let mut missing = Vec::new();
    for (key, need) in needs {
        match engine.cache.get(key) {
            Some(pin) => {
                pins.insert(key, pin);
            }
            None => missing.push((key, need)),
        }
    }
    let mut raws = Vec::with_capacity(missing.len());
    for (_, need) in &missing {
        raws.push(need.part.window(&need.extent)?);
    }
    {
        let mut requests = Vec::with_capacity(missing.len());
        for ((_, need), raw) in missing.iter().zip(&mut raws) {
            requests.push(raw.request(need.extent.file()));
        }
        engine.media.read_many(&mut requests)?;
    }
    for ((key, need), raw) in missing.into_iter().zip(raws) {
        let bytes = need.part.finish(&need.extent, raw.bytes())?;
        pins.insert(key, engine.cache.insert(key, bytes, need.part.priority()));
    }
    Ok(pins)
}
