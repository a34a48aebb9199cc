//! Reading many blocks of many extents at once: what a merge takes in.

use std::sync::Arc;

use bytes::Bytes;
use terrane_base::Result;
use terrane_format::extent::BlockHandle;
use terrane_media::{Media, ReadRequest};

use super::{Buffers, Extent, io};

/// Blocks of one extent, in ascending order.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) extent: Arc<Extent>,
    pub(crate) blocks: Vec<BlockHandle>,
}

/// All of `wanted`, verified and decompressed. Blocks that lie side by side are read in one go, all reads overlap, and
/// bring what they bring into one buffer of `buffers`. Blocks that are stored as they are stay there, and keep it.
pub(crate) fn load(media: &dyn Media, wanted: &[Wanted], buffers: &Arc<Buffers>) -> Result<Vec<Vec<Bytes>>> {
    let adjacent = |a: &BlockHandle, b: &BlockHandle| a.offset.checked_add(a.stored_len) == Some(b.offset);
    // Of each read: the whole sectors that it takes, and where the bytes lie in the buffer.
    let mut reads = Vec::new();
    let mut total = 0;
    for w in wanted {
        for blocks in w.blocks.chunk_by(adjacent) {
            let (offset, len) = w.extent.locate_adjacent(blocks)?;
            let (at, whole, skip) = io::sectors(offset, len);
            reads.push((w, at, whole, total + skip..total + skip + len));
            total += whole;
        }
    }
    let mut buf = buffers.take(total);
    let mut rest = &mut buf[..];
    let mut requests = Vec::with_capacity(reads.len());
    for (w, at, whole, _) in &reads {
        let (mine, behind) = rest.split_at_mut(*whole);
        requests.push(ReadRequest { file: w.extent.file(), offset: *at, buf: mine });
        rest = behind;
    }
    media.read_many(&mut requests).map_err(|e| match wanted.first() {
        Some(w) => e.with_subtable(&**w.extent.subtable()),
        None => e,
    })?;
    let buf = Bytes::from_owner(buf);
    let mut reads = reads.into_iter();
    let mut all = Vec::with_capacity(wanted.len());
    for w in wanted {
        let mut loaded = Vec::with_capacity(w.blocks.len());
        for (blocks, (.., place)) in w.blocks.chunk_by(adjacent).zip(&mut reads) {
            for block in w.extent.unpack_adjacent(blocks, buf.slice(place)) {
                loaded.push(block?);
            }
        }
        all.push(loaded);
    }
    Ok(all)
}
