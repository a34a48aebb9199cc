//! When memory that left the tree may serve again: after every thread that might still read it has unpinned.
//!
//! Epochs are those of `crossbeam-epoch`. Memory that is retired stays with its index and returns to a free list; it is
//! never given back before the index goes. A model run under loom retires nothing, for loom cannot see into the epochs:
//! there the memory is simply left.

#[cfg(not(loom))]
pub(crate) use crossbeam_epoch::{Guard, pin};

/// Runs `reuse` once no pinned thread can have come by what it frees.
///
/// # Safety
/// What `reuse` frees must be out of reach for threads that pin from now on, and `reuse` must be sound on any thread at
/// any later time.
#[cfg(not(loom))]
pub(crate) unsafe fn retire(guard: &Guard, reuse: impl FnOnce() + Send + 'static) {
    // SAFETY: the caller's contract is the one asked for here.
    unsafe { guard.defer_unchecked(reuse) };
}

#[cfg(loom)]
pub(crate) struct Guard(());

#[cfg(loom)]
pub(crate) fn pin() -> Guard {
    Guard(())
}

/// Leaves the memory.
///
/// # Safety
/// None needed.
#[cfg(loom)]
pub(crate) unsafe fn retire(_guard: &Guard, _reuse: impl FnOnce() + Send + 'static) {}
