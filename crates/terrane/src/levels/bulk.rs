//! Reading many blocks of many extents at once: what a merge takes in.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use terrane_base::Result;
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

/// Blocks that lie side by side.
struct Read<'a> {
    /// Which of those wanted they belong to.
    of: usize,
    blocks: &'a [BlockHandle],
    /// The whole sectors that are read for them.
    at: u64,
    whole: usize,
    /// Where in the buffer they lie.
    place: Range<usize>,
}

/// All of `wanted`, verified and decompressed. Blocks that lie side by side are read in one go, all reads overlap, and
/// bring what they bring into one buffer of `buffers`. Blocks that are stored as they are stay there, and keep it.
pub(crate) fn load(media: &dyn Media, wanted: &[Wanted], buffers: &Arc<Buffers>) -> Result<Vec<Vec<Bytes>>> {
    let adjacent = |a: &BlockHandle, b: &BlockHandle| a.offset.checked_add(a.stored_len) == Some(b.offset);
    let mut reads = Vec::new();
    let mut total = 0;
    for (of, w) in wanted.iter().enumerate() {
        for blocks in w.blocks.chunk_by(adjacent) {
            let (offset, len) = w.extent.locate_adjacent(blocks)?;
            let (at, whole, skip) = io::sectors(offset, len);
            reads.push(Read { of, blocks, at, whole, place: total + skip..total + skip + len });
            total += whole;
        }
    }
    let mut buf = buffers.take(total);
    let mut rest = &mut buf[..];
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
    let mut all: Vec<Vec<Bytes>> = wanted.iter().map(|w| Vec::with_capacity(w.blocks.len())).collect();
    for read in reads {
        for block in wanted[read.of].extent.unpack_adjacent(read.blocks, buf.slice(read.place)) {
            all[read.of].push(block?);
        }
    }
    Ok(all)
}
