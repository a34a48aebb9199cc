//! Reading many blocks of many extents at once: what a merge takes in.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use terrane_base::Result;
use terrane_cache::{Cache, Pin};
use terrane_format::extent::BlockHandle;
use terrane_media::{Media, ReadRequest};

use super::{Extent, io};
use crate::buffers::Buffers;

/// Blocks of one extent, in ascending order.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) extent: Arc<Extent>,
    pub(crate) blocks: Vec<BlockHandle>,
}

/// Blocks that are in memory, between others that are not, are read with those if they are fewer bytes than this, which a device brings in
/// about the time that a read more takes it.
const LEAST_SPARED: u64 = 128 << 10;

/// Blocks that lie side by side.
struct Read<'a> {
    /// Which of those wanted they belong to.
    of: usize,
    /// How many of its blocks come before them.
    before: usize,
    blocks: &'a [BlockHandle],
    /// The whole sectors that are read for them.
    at: u64,
    whole: usize,
    /// Where in the buffer they lie.
    place: Range<usize>,
}

/// All of `wanted`, verified and decompressed, in one buffer of `buffers`. Blocks that `cache` has as they are stored are copied from there, which
/// does not count as an access (their frames are not kept for the merge: what is in use cannot leave the cache, and is taken to be worth
/// keeping). Of the others those that lie side by side are read in one go, and all reads overlap. Blocks that are stored as they are stay in
/// the buffer, and keep it.
pub(crate) fn load(
    media: &dyn Media,
    cache: &Cache,
    wanted: &[Wanted],
    buffers: &Arc<Buffers>,
) -> Result<Vec<Vec<Bytes>>> {
    let (mut reads, mut copies) = (Vec::new(), Vec::new());
    let mut total = 0;
    let mut all: Vec<Vec<Bytes>> = Vec::with_capacity(wanted.len());
    for (of, w) in wanted.iter().enumerate() {
        let pins = cached(cache, w);
        for run in runs(&w.blocks, |at| pins[at].is_none()) {
            let (before, blocks) = (run.start, &w.blocks[run]);
            let (offset, len) = w.extent.locate_adjacent(blocks)?;
            let (at, whole, skip) = io::sectors(offset, len);
            reads.push(Read { of, before, blocks, at, whole, place: total + skip..total + skip + len });
            total += whole;
        }
        all.push(vec![Bytes::new(); w.blocks.len()]);
        copies.extend(pins.into_iter().enumerate().filter_map(|(at, pin)| Some((of, at, pin?))));
    }
    let to_copy: usize = copies.iter().map(|(_, _, pin)| pin.len()).sum();
    let mut buf = buffers.take(total + to_copy);
    // What is read comes first, where it is aligned.
    let (mut rest, mut behind) = buf.split_at_mut(total);
    let mut copied = Vec::with_capacity(copies.len());
    for (of, at, pin) in copies {
        let (mine, free) = behind.split_at_mut(pin.len());
        mine.copy_from_slice(&pin);
        copied.push((of, at, total..total + pin.len()));
        (behind, total) = (free, total + pin.len());
    }
    let mut requests = Vec::with_capacity(reads.len());
    for read in &reads {
        let (mine, behind) = rest.split_at_mut(read.whole);
        requests.push(ReadRequest { file: wanted[read.of].extent.file(), offset: read.at, buf: mine });
        rest = behind;
    }
    media.read_many(&mut requests).map_err(|e| match wanted.first() {
        Some(w) => e.with_subtable(&**w.extent.subtable()),
        None => e,
    })?;
    let buf = Bytes::from_owner(buf);
    for (of, at, place) in copied {
        all[of][at] = buf.slice(place);
    }
    for read in reads {
        let places = &mut all[read.of][read.before..];
        let blocks = wanted[read.of].extent.unpack_adjacent(read.blocks, buf.slice(read.place));
        for (place, block) in places.iter_mut().zip(blocks) {
            *place = block?;
        }
    }
    Ok(all)
}

/// Those that need not be read, for each of the blocks.
fn cached(cache: &Cache, wanted: &Wanted) -> Vec<Option<Pin>> {
    let blocks = &wanted.blocks;
    let mut pins: Vec<_> = blocks.iter().map(|h| wanted.extent.peek(cache, h)).collect();
    for run in runs(blocks, |at| pins[at].is_some()) {
        let is_read = |at: usize| pins.get(at).is_some_and(Option::is_none);
        let is_between = run.start.checked_sub(1).is_some_and(is_read) && is_read(run.end);
        let is_inside = is_between && are_adjacent(&blocks[run.start - 1..run.end + 1]);
        let bytes: u64 = blocks[run.clone()].iter().map(|h| u64::from(h.stored_len)).sum();
        if is_inside && bytes < LEAST_SPARED {
            pins[run].fill_with(|| None);
        }
    }
    pins
}

/// The longest runs of blocks that are chosen and lie side by side.
fn runs(blocks: &[BlockHandle], is_chosen: impl Fn(usize) -> bool) -> Vec<Range<usize>> {
    let chosen: Vec<usize> = (0..blocks.len()).filter(|at| is_chosen(*at)).collect();
    let joins = |a: &usize, b: &usize| a + 1 == *b && are_adjacent(&blocks[*a..=*b]);
    chosen.chunk_by(joins).map(|run| run[0]..run[0] + run.len()).collect()
}

/// Whether blocks lie side by side, in this order.
fn are_adjacent(blocks: &[BlockHandle]) -> bool {
    blocks.is_sorted_by(|a, b| a.offset.checked_add(a.stored_len) == Some(b.offset))
}
