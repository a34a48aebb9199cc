//! Blocks through the cache: the one place where reads meet the medium.

use bytes::Bytes;
use terrane_base::{Error, Result};
use terrane_cache::{Cache, FrameKey, Pin, Priority};
use terrane_format::block::{Block, BlockShape};
use terrane_format::extent::BlockHandle;
use terrane_media::ReadRequest;

use crate::db::engine::Engine;
use crate::levels::{Extent, Loaded, Window};
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
        extent.frame(offset)
    }

    /// Bytes that it takes in memory, or on the way there if that is more.
    pub(crate) fn bytes(&self, extent: &Extent) -> usize {
        let bytes = match self {
            Part::Index => extent.meta.index.len,
            Part::Filter => extent.meta.filter.len,
            Part::Data(h) => h.raw_len.max(h.stored_len),
        };
        bytes as usize
    }

    fn priority(&self) -> Priority {
        match self {
            Part::Index => Priority::Index,
            Part::Filter => Priority::Filter,
            Part::Data(_) => Priority::Data,
        }
    }

    /// Reads it from the medium, verified and decompressed.
    pub(crate) fn read(&self, extent: &Extent) -> Result<Loaded> {
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
    fn finish(&self, extent: &Extent, read: Window) -> Result<Loaded> {
        match self {
            Part::Index => extent.accept_index(read),
            Part::Filter => extent.accept_section(&extent.meta.filter, read),
            Part::Data(h) => extent.unpack(h, read),
        }
    }
}

/// A block of records, pinned, and its trailer read once for all looks at it.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) pin: Pin,
    shape: BlockShape,
}

impl Opened {
    pub(crate) fn new(pin: Pin) -> Result<Self> {
        let shape = Block::parse(&pin)?.shape();
        Ok(Opened { pin, shape })
    }

    /// One whose trailer was read before.
    #[inline]
    pub(crate) fn again(pin: Pin, shape: BlockShape) -> Self {
        Opened { pin, shape }
    }

    #[inline]
    pub(crate) fn block(&self) -> Result<Block<'_>> {
        self.shape.over(&self.pin)
    }

    /// What [`Opened::block`] is made of.
    #[inline]
    pub(crate) fn parts(&self) -> (&[u8], &BlockShape) {
        (&self.pin, &self.shape)
    }
}

/// The part, from the cache or else from the medium (once, however many ask at the same time).
pub(crate) fn load(cache: &Cache, extent: &Extent, part: &Part) -> Result<Pin> {
    cache.get_or_load(part.key(extent), part.priority(), || part.read(extent))
}

/// The first of `blocks`, which are adjacent, from the cache or else from the medium; in that case the others are read along
/// and enter the cache. What is wrong with these is for those to find who need them. Says whether all are read, if it was
/// this call that read them.
pub(crate) fn load_along(
    cache: &Cache,
    extent: &Extent,
    blocks: &[BlockHandle],
) -> Result<(Pin, Option<bool>)> {
    let [first, others @ ..] = blocks else {
        return Err(Error::invalid("no block to load"));
    };
    let part = Part::Data(*first);
    if others.is_empty() {
        return Ok((load(cache, extent, &part)?, Some(true)));
    }
    let mut all = None;
    let pin = cache.get_or_load(part.key(extent), part.priority(), || {
        all = Some(false);
        // A place further on that cannot be read is no reason to fail here.
        let Ok(mut read) = extent.load_adjacent(blocks) else {
            return part.read(extent).map(|loaded| Bytes::copy_from_slice(&loaded));
        };
        let wanted = read.next().unwrap_or_else(|| Err(Error::invalid("no block to load")));
        for (handle, block) in others.iter().zip(read) {
            let Ok(bytes) = block else { return wanted };
            let part = Part::Data(*handle);
            drop(cache.insert(part.key(extent), bytes, part.priority()));
        }
        all = Some(true);
        wanted
    })?;
    Ok((pin, all))
}

/// Loads blocks (one that is named twice is read twice), overlapping the reads of those that the cache lacks; in the order
/// of `needs`. All of them are in memory together: the caller bounds their number.
pub(crate) fn load_many(engine: &Engine, needs: &[&Need]) -> Result<Vec<Pin>> {
    let mut pins: Vec<Option<Pin>> = needs.iter().map(|n| engine.cache.get(n.part.key(&n.extent))).collect();
    for (pin, need) in pins.iter_mut().zip(needs).filter(|(pin, _)| pin.is_none()) {
        *pin = engine.cache.recall(need.part.key(&need.extent), need.part.priority());
    }
    let missing: Vec<usize> = (0..needs.len()).filter(|&at| pins[at].is_none()).collect();
    engine.cache.missed(missing.len());
    let mut raws: Vec<Window> =
        missing.iter().map(|&at| needs[at].part.window(&needs[at].extent)).collect::<Result<_>>()?;
    let mut requests: Vec<ReadRequest<'_>> =
        missing.iter().zip(&mut raws).map(|(&at, raw)| raw.request(needs[at].extent.file())).collect();
    engine.media.read_many(&mut requests)?;
    drop(requests);
    for (at, raw) in missing.into_iter().zip(raws) {
        let Need { extent, part } = needs[at];
        let bytes = part.finish(extent, raw)?;
        pins[at] = Some(engine.cache.insert(part.key(extent), bytes, part.priority()));
    }
    Ok(pins.into_iter().flatten().collect())
}
