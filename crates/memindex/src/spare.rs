//! Chunks of huge pages that indexes of this process gave back, for the next ones. The system clears what it gives: a thread that fills one
//! memtable after the other spent a seventh of its time on that.
//!
//! They are the process's, for as long as there is any index; the last one that goes takes them along. There are at most [`MOST`]. What is
//! spare is not charged; but who gives one back, and who takes a chunk of any length, sees to it that with what is spare its budget is still
//! kept. A budget without a limit keeps none.

use std::alloc::{Layout, dealloc};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use terrane_base::MemoryBudget;

use crate::memory::HUGE_PAGE;

/// 64 MiB.
const MOST: usize = 32;

static SPARE: Mutex<Spare> = Mutex::new(Spare { users: 0, chunks: Vec::new() });

struct Spare {
    users: usize,
    chunks: Vec<Chunk>,
}

struct Chunk(NonNull<u8>);

// SAFETY: it owns memory that nobody else has a pointer to.
unsafe impl Send for Chunk {}

/// What a huge page's chunk is allocated with.
pub(crate) const LAYOUT: Layout = match Layout::from_size_align(HUGE_PAGE, HUGE_PAGE) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

/// Somebody who may have use for them.
#[derive(Debug)]
pub(crate) struct User(());

impl User {
    pub(crate) fn new() -> Self {
        lock().users += 1;
        User(())
    }

    /// One of them, with whatever it holds.
    pub(crate) fn take(&self) -> Option<NonNull<u8>> {
        lock().chunks.pop().map(|chunk| chunk.0)
    }

    /// Keeps no more than a budget has left.
    pub(crate) fn trim(&self, budget: &MemoryBudget) {
        lock().keep(budget.limit().saturating_sub(budget.used()) / HUGE_PAGE);
    }

    /// Keeps one, or gives it back to the allocator.
    ///
    /// # Safety
    /// It was allocated with [`LAYOUT`], and nobody reads or writes it any more.
    pub(crate) unsafe fn give(&self, chunk: NonNull<u8>, budget: &MemoryBudget) {
        let mut spare = lock();
        let with_it = (spare.chunks.len() + 1) * HUGE_PAGE;
        if spare.chunks.len() < MOST && budget.used().saturating_add(with_it) <= budget.limit() {
            spare.chunks.push(Chunk(chunk));
            return;
        }
        drop(spare);
        // SAFETY: as the caller says.
        unsafe { dealloc(chunk.as_ptr(), LAYOUT) };
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let mut spare = lock();
        spare.users -= 1;
        if spare.users == 0 {
            spare.keep(0);
        }
    }
}

impl Spare {
    /// Gives all but so many back to the allocator.
    fn keep(&mut self, most: usize) {
        for chunk in self.chunks.drain(most.min(self.chunks.len())..) {
            // SAFETY: allocated so, by whoever gave it, and nobody else has it.
            unsafe { dealloc(chunk.0.as_ptr(), LAYOUT) };
        }
    }
}

fn lock() -> MutexGuard<'static, Spare> {
    // Nothing under it panics.
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}
