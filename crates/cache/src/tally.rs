//! A count that each thread keeps for itself.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crossbeam_utils::CachePadded;
use thread_local::ThreadLocal;

/// Counts events too frequent for a shared counter: each thread adds to a word of its own, with a plain load and store.
#[derive(Default)]
pub(crate) struct Tally(ThreadLocal<CachePadded<AtomicU64>>);

impl Tally {
    #[inline]
    pub(crate) fn bump(&self) {
        self.add(1);
    }

    #[inline]
    pub(crate) fn add(&self, count: u64) {
        let own = self.0.get_or_default();
        // Only this thread writes the word, so no read-modify-write is needed.
        own.store(own.load(Relaxed) + count, Relaxed);
    }

    /// The sum over all threads, those that ended included.
    pub(crate) fn get(&self) -> u64 {
        self.0.iter().map(|own| own.load(Relaxed)).sum()
    }
}
