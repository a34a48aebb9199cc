//! Chunks of huge pages that indexes of this process gave back, for the next ones. The system clears what it gives: a thread that fills one
//! memtable after the other spent a seventh of its time on that.
//!
//! They are the process's, for as long as there is any index; the last one that goes takes them along. There are at most [`MOST`]. What is
//! spare is not charged; but who gives one back, and who takes a chunk of any length, sees to it that with what is spare its budget is still
//! kept. A budget without a limit keeps none.

use std::alloc::{Layout, dealloc};
use std::mem::ManuallyDrop;
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

/// What a chunk of a huge page is allocated with.
pub(crate) const LAYOUT: Layout = match Layout::from_size_align(HUGE_PAGE, HUGE_PAGE) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

/// One that nobody else has a pointer to, allocated with [`LAYOUT`].
struct Chunk(NonNull<u8>);

// SAFETY: it owns its memory.
unsafe impl Send for Chunk {}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: allocated so, and nobody else has it.
        unsafe { dealloc(self.0.as_ptr(), LAYOUT) };
    }
}

/// Somebody who may have use for them.
#[derive(Debug)]
pub(crate) struct User(());

impl User {
    pub(crate) fn new() -> Self {
        lock().users += 1;
        User(())
    }

    /// One of them, with whatever it holds, if that is their layout. Of the others as many stay as the budget has room
    /// for, which was charged for this one.
    pub(crate) fn take(&self, layout: Layout, budget: &MemoryBudget) -> Option<NonNull<u8>> {
        let mut spare = lock();
        let chunk = if layout == LAYOUT { spare.chunks.pop() } else { None };
        let excess = spare.excess(budget);
        drop(spare);
        drop(excess);
        chunk.map(|chunk| ManuallyDrop::new(chunk).0)
    }

    /// Keeps a chunk, if it is such a one and the budget, which is not charged for it any more, has room; else gives it
    /// back to the allocator.
    ///
    /// # Safety
    /// It was allocated with this layout, and nobody reads or writes it any more.
    pub(crate) unsafe fn give(&self, chunk: NonNull<u8>, layout: Layout, budget: &MemoryBudget) {
        if layout != LAYOUT {
            // SAFETY: as the caller says.
            unsafe { dealloc(chunk.as_ptr(), layout) };
            return;
        }
        let mut spare = lock();
        spare.chunks.push(Chunk(chunk));
        let excess = spare.excess(budget);
        drop(spare);
        drop(excess);
    }
}

impl Drop for User {
    fn drop(&mut self) {
        let mut spare = lock();
        spare.users -= 1;
        let rest = if spare.users == 0 { std::mem::take(&mut spare.chunks) } else { Vec::new() };
        drop(spare);
        drop(rest);
    }
}

impl Spare {
    /// Those that are not to be kept: to be dropped without the lock, since the system takes its time to take them back.
    #[must_use]
    fn excess(&mut self, budget: &MemoryBudget) -> Vec<Chunk> {
        let room = budget.limit().saturating_sub(budget.used()) / HUGE_PAGE;
        let kept = self.chunks.len().min(room).min(MOST);
        self.chunks.split_off(kept)
    }
}

fn lock() -> MutexGuard<'static, Spare> {
    // Nothing under it panics.
    SPARE.lock().unwrap_or_else(PoisonError::into_inner)
}
