//! Zones as memory of this process: for the nodes of an index where ordinary memory is short. They are nobody's after a crash or a close,
//! and what is in them vanishes. An eighth of all zones is left to commits.
//!
//! # Concurrency
//! One mutex, taken once a zone.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use terrane_halloc::Lent;
use terrane_memindex::ChunkSource;

use crate::space::Space;

/// Of each chunk; a memory begins at a multiple of 4096.
const ALIGNMENT: usize = 64;

/// See the module's head.
#[derive(Debug)]
pub struct VolatileZones {
    space: Arc<Space>,
    /// By address.
    lent: Mutex<BTreeMap<usize, Lent>>,
}

impl VolatileZones {
    /// Of this memory.
    pub fn new(space: Arc<Space>) -> Arc<Self> {
        Arc::new(VolatileZones { space, lent: Mutex::default() })
    }

    /// Bytes that are in use.
    pub fn bytes(&self) -> u64 {
        self.lent().len() as u64 * self.chunk_bytes() as u64
    }

    fn lent(&self) -> MutexGuard<'_, BTreeMap<usize, Lent>> {
        // Each change is one call.
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// SAFETY: a zone that was lent is nobody else's until that is dropped; it lies mapped, whole, and at a multiple of 64, which is looked at.
// The memory, with it, is there as long as `space`.
unsafe impl ChunkSource for VolatileZones {
    fn chunk_bytes(&self) -> usize {
        self.space.zone_bytes()
    }

    fn take(&self) -> Option<NonNull<u8>> {
        let lent = self.space.lend().ok()?;
        let (at, pmem) = (lent.place(), self.space.pmem());
        if at + self.chunk_bytes() > pmem.len() || !at.is_multiple_of(ALIGNMENT) {
            self.space.give_back(lent);
            return None;
        }
        // SAFETY: within the memory, which is mapped from its base on.
        let chunk = unsafe { pmem.base().add(at) };
        self.lent().insert(chunk.addr().get(), lent);
        Some(chunk)
    }

    // SAFETY: that nobody uses the chunk any more is the caller's contract; what was not taken here is not found, and left alone.
    unsafe fn give_back(&self, chunk: NonNull<u8>) {
        let lent = self.lent().remove(&chunk.addr().get());
        if let Some(lent) = lent {
            self.space.give_back(lent);
        }
    }
}
