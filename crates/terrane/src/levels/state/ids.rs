//! Ids for what is about to be made.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use terrane_base::{ExtentId, SubtableId};
use terrane_format::manifest::NextIds;

/// Hands out ids; starts where the manifest's edits end. An id becomes used up for good by the edit that names it: one
/// whose edit never became durable may come again after a restart, when nothing else remembers it.
#[derive(Debug)]
pub(crate) struct Ids {
    extent: AtomicU64,
    value: AtomicU64,
    run: AtomicU64,
    subtable: AtomicU32,
}

impl Ids {
    /// Starts at `next`; zero is never handed out.
    pub(crate) fn new(next: &NextIds) -> Self {
        Ids {
            extent: AtomicU64::new(next.extent.max(1)),
            value: AtomicU64::new(next.value.max(1)),
            run: AtomicU64::new(next.run.max(1)),
            subtable: AtomicU32::new(next.subtable.max(1)),
        }
    }

    /// For an extent.
    pub(crate) fn extent(&self) -> ExtentId {
        ExtentId(self.extent.fetch_add(1, Ordering::Relaxed))
    }

    /// For a value in units of its own.
    pub(crate) fn value(&self) -> u64 {
        self.value.fetch_add(1, Ordering::Relaxed)
    }

    /// For an L0 run: larger than all before.
    pub(crate) fn run(&self) -> u64 {
        self.run.fetch_add(1, Ordering::Relaxed)
    }

    /// For a subtable.
    pub(crate) fn subtable(&self) -> SubtableId {
        SubtableId(self.subtable.fetch_add(1, Ordering::Relaxed))
    }

    /// The log names a value that the manifest may not know yet: its id is used up.
    pub(crate) fn saw_value(&self, id: u64) {
        self.value.fetch_max(id.saturating_add(1), Ordering::Relaxed);
    }
}
