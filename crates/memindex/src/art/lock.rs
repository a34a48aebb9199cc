//! The lock word of a node: a version that optimistic writers check, a lock bit, and a mark for nodes that were replaced.
//!
//! A writer notes the version, reads what it needs, and takes the lock by exchanging exactly that version. The exchange
//! fails if anything changed in between, so a writer that holds the lock has read the present state. Every unlock moves
//! the version on, and the version of a piece of memory never goes back, not even when a replaced node's memory becomes
//! another node: one version names one state for ever.

use terrane_base::sync::atomic::{AtomicU64, Ordering};

const LOCKED: u64 = 1;
const REPLACED: u64 = 2;
const STEP: u64 = 4;

/// See the module's head.
pub(crate) struct VersionLock(AtomicU64);

impl VersionLock {
    pub(crate) fn new() -> Self {
        VersionLock(AtomicU64::new(0))
    }

    /// The word as it is. For comparing with an earlier [`VersionLock::peek`].
    #[inline]
    pub(crate) fn peek(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Whether a peeked word says that the node was in the tree and nobody was changing it.
    #[inline]
    pub(crate) fn is_settled(word: u64) -> bool {
        word & (LOCKED | REPLACED) == 0
    }

    /// The version of an unlocked node; waits for a holder, who is never long. `None` once the node was replaced.
    #[inline]
    pub(crate) fn read(&self) -> Option<u64> {
        let mut wait = Wait::new();
        loop {
            let word = self.peek();
            if word & REPLACED != 0 {
                return None;
            }
            if word & LOCKED == 0 {
                return Some(word);
            }
            wait.pause();
        }
    }

    /// Takes the lock if the version is still `version`.
    #[inline]
    pub(crate) fn try_lock(&self, version: u64) -> bool {
        // Acquire: the changes of the holder before us are ours to see, and none of our own moves ahead of the lock.
        self.0.compare_exchange(version, version | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Lets go after a change. `version` is what was locked.
    #[inline]
    pub(crate) fn unlock(&self, version: u64) {
        self.0.store(version + STEP, Ordering::Release);
    }

    /// Lets go of a node that was not changed.
    #[inline]
    pub(crate) fn unlock_unchanged(&self, version: u64) {
        self.0.store(version, Ordering::Release);
    }

    /// Lets go of a node that another has taken the place of.
    pub(crate) fn unlock_replaced(&self, version: u64) {
        self.0.store((version + STEP) | REPLACED, Ordering::Release);
    }

    /// Makes a replaced node's word that of a new node. Only for the node's sole owner.
    pub(crate) fn renew(&self) {
        self.0.store((self.peek() & !REPLACED) + STEP, Ordering::Release);
    }
}

/// Waiting for a lock holder: spins, then yields, for the holder may have been descheduled.
pub(crate) struct Wait(#[cfg(not(loom))] crossbeam_utils::Backoff);

impl Wait {
    pub(crate) fn new() -> Self {
        Wait(
            #[cfg(not(loom))]
            crossbeam_utils::Backoff::new(),
        )
    }

    #[cold]
    pub(crate) fn pause(&mut self) {
        #[cfg(not(loom))]
        self.0.snooze();
        #[cfg(loom)]
        terrane_base::sync::spin_loop();
    }
}
