//! Zones as memory of this process: for the nodes of an index where ordinary memory is short. They are nobody's after a crash or a close
//! ([`Space::seal`]), and what is in them vanishes. One of 32 zones is left to commits.
//!
//! # Concurrency
//! One mutex, taken once a zone.

use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use terrane_base::MemoryBudget;
use terrane_halloc::Lent;
use terrane_memindex::ChunkSource;

use crate::space::Space;

/// Of each chunk; a memory begins at a multiple of 4096.
const ALIGNMENT: usize = 64;

/// Has whoever can do without zones give some back.
type MakeRoom = Box<dyn Fn() + Send + Sync>;

/// See the module's head.
pub struct VolatileZones {
    space: Arc<Space>,
    /// By address.
    lent: Mutex<BTreeMap<usize, Lent>>,
    budget: MemoryBudget,
    /// Bytes that an index has elsewhere first.
    elsewhere_first: usize,
    make_room: MakeRoom,
}

impl fmt::Debug for VolatileZones {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolatileZones").field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

impl VolatileZones {
    /// Of this memory, for whoever takes them from the beginning, and charged to nobody.
    pub fn new(space: Arc<Space>) -> Arc<Self> {
        VolatileZones::with(space, MemoryBudget::new(0), 0, Box::new(|| ()))
    }

    /// Of this memory, for many indexes: each begins with as much of ordinary memory as a quarter of a zone. Zones are charged to `budget`.
    /// When none is left that may be lent, `make_room` is called, and they are asked for once more; it must be quick.
    pub fn charged(space: Arc<Space>, budget: MemoryBudget, make_room: MakeRoom) -> Arc<Self> {
        let elsewhere_first = space.zone_bytes() / 4;
        VolatileZones::with(space, budget, elsewhere_first, make_room)
    }

    fn with(
        space: Arc<Space>,
        budget: MemoryBudget,
        elsewhere_first: usize,
        make_room: MakeRoom,
    ) -> Arc<Self> {
        Arc::new(VolatileZones { space, lent: Mutex::default(), budget, elsewhere_first, make_room })
    }

    fn lend(&self) -> Option<Lent> {
        self.space.lend().ok().or_else(|| {
            (self.make_room)();
            self.space.lend().ok()
        })
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

    fn allocated_first(&self) -> usize {
        self.elsewhere_first
    }

    fn take(&self) -> Option<NonNull<u8>> {
        let lent = self.lend()?;
        let (at, pmem) = (lent.place(), self.space.pmem());
        if at + self.chunk_bytes() > pmem.len() || !at.is_multiple_of(ALIGNMENT) {
            self.space.give_back(lent);
            return None;
        }
        // SAFETY: within the memory, which is mapped from its base on.
        let chunk = unsafe { pmem.base().add(at) };
        self.lent().insert(chunk.addr().get(), lent);
        self.budget.charge(self.chunk_bytes());
        Some(chunk)
    }

    // SAFETY: that nobody uses the chunk any more is the caller's contract; what was not taken here is not found, and left alone.
    unsafe fn give_back(&self, chunk: NonNull<u8>) {
        let lent = self.lent().remove(&chunk.addr().get());
        if let Some(lent) = lent {
            self.space.give_back(lent);
            self.budget.release(self.chunk_bytes());
        }
    }
}
