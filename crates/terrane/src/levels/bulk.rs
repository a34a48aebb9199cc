//! Reading many blocks of many extents at once: what a merge takes in.

use std::sync::Arc;

use bytes::Bytes;
use terrane_base::Result;
use terrane_format::extent::BlockHandle;
use terrane_media::{Media, ReadRequest};

use super::{Buffers, Extent};

/// Blocks of one extent, in ascending order.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) extent: Arc<Extent>,
    pub(crate) blocks: Vec<BlockHandle>,
}

/// All of `wanted`, verified and decompressed. Blocks that lie side by side are read in one go, all reads overlap, and the
/// bytes stay in memory of `buffers` until the last block of a read is dropped.
pub(crate) fn load(media: &dyn Media, wanted: &[Wanted], buffers: &Arc<Buffers>) -> Result<Vec<Vec<Bytes>>> {
    let adjacent = |a: &BlockHandle, b: &BlockHandle| a.offset.checked_add(a.stored_len) == Some(b.offset);
    let mut windows = Vec::new();
    for w in wanted {
        for blocks in w.blocks.chunk_by(adjacent) {
            windows.push(w.extent.prepare_adjacent(blocks, buffers)?);
        }
    }
    let files = wanted.iter().flat_map(|w| w.blocks.chunk_by(adjacent).map(|_| w.extent.file()));
    let mut requests: Vec<ReadRequest<'_>> =
        windows.iter_mut().zip(files).map(|(window, file)| window.request(file)).collect();
    media.read_many(&mut requests).map_err(|e| match wanted.first() {
        Some(w) => e.with_subtable(&**w.extent.subtable()),
        None => e,
    })?;
    let mut windows = windows.into_iter();
    let mut all = Vec::with_capacity(wanted.len());
    for w in wanted {
        let mut loaded = Vec::with_capacity(w.blocks.len());
        for (blocks, window) in w.blocks.chunk_by(adjacent).zip(&mut windows) {
            for block in w.extent.unpack_adjacent(blocks, window) {
                loaded.push(block?);
            }
        }
        all.push(loaded);
    }
    Ok(all)
}
