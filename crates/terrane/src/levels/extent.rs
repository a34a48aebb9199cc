//! One immutable extent on a device, and what happens to its space when nobody needs it any more.

use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};

use terrane_base::{Result, SubtableId};
use terrane_format::extent::{BlockHandle, ExtentMeta};
use terrane_format::tombstone::RangeTombstones;
use terrane_media::File;

use super::Alloc;

/// Space that nobody needs any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reclaimed {
    /// The extent that it held, whose frames leave the cache; `None` for a value.
    pub(crate) extent: Option<terrane_base::ExtentId>,
    /// The space.
    pub(crate) space: Alloc,
}

/// Where space is queued between the death of its last reader and [`super::Space::free`].
pub(crate) struct Reclaimer {}

impl std::fmt::Debug for Reclaimer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reclaimer")
    }
}

impl Reclaimer {
    /// `wake` is called, on whatever thread dropped the last reader, when the queue is no longer empty: it schedules
    /// a task that calls [`Reclaimer::take`].
    pub(crate) fn new(_wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        todo!()
    }
    /// Takes all that is queued.
    pub(crate) fn take(&self) -> Vec<Reclaimed> {
        todo!()
    }
}

/// One immutable extent.
#[derive(Debug)]
pub(crate) struct Extent {
    /// What the manifest knows about it.
    pub(crate) meta: Arc<ExtentMeta>,
    /// Sampled accesses.
    pub(crate) heat: AtomicU32,
    file: Arc<dyn File>,
    subtable: Arc<str>,
    tombstones: OnceLock<Arc<RangeTombstones>>,
}

impl Extent {
    /// `subtable` is the name for errors.
    pub(crate) fn new(
        meta: Arc<ExtentMeta>,
        file: Arc<dyn File>,
        subtable: Arc<str>,
        _reclaimer: Arc<Reclaimer>,
    ) -> Arc<Self> {
        Arc::new(Extent { meta, heat: AtomicU32::new(0), file, subtable, tombstones: OnceLock::new() })
    }
    /// The index block, raw and verified.
    pub(crate) fn load_index(&self) -> Result<Vec<u8>> {
        todo!()
    }
    /// The filters of all blocks, verified.
    pub(crate) fn load_filter(&self) -> Result<Vec<u8>> {
        todo!()
    }
    /// A block, verified and decompressed.
    pub(crate) fn load_block(&self, _handle: &BlockHandle) -> Result<Vec<u8>> {
        todo!()
    }
    /// A block as it is stored, verified.
    pub(crate) fn load_stored(&self, _handle: &BlockHandle) -> Result<Vec<u8>> {
        todo!()
    }
    /// Blocks, verified and decompressed; neighbours are read in one go.
    pub(crate) fn load_blocks(&self, _handles: &[BlockHandle]) -> Result<Vec<Vec<u8>>> {
        todo!()
    }
    /// The range tombstones; read once, without I/O where there are none.
    pub(crate) fn tombstones(&self) -> Result<Arc<RangeTombstones>> {
        todo!()
    }
}
