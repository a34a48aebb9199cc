//! Accounts: what the cache may hold and what it holds, in bytes, and the memory that frames are made of.
//!
//! Three sums are kept. *Resident* frames can be found. *Alive* frames are resident ones plus those that were evicted but
//! are not freed yet, because a pin or an epoch guard may still reach them. *Bookkeeping* is tables, queues and ghosts.
//!
//! ```text
//! 0 ........................ goal ......... capacity .. limit
//!   resident + bookkeeping <= |                           |       eviction keeps it
//!   alive + bookkeeping <=                                |       admission keeps it: beyond, misses are served privately
//! ```
//!
//! The limit is a little under capacity + 5 %; the room between it and 5 % pays for tables that grow. The goal leaves
//! at least 5 % of room for frames awaiting reclamation, more in a small cache, where one frame is a large part of that.
//!
//! # Concurrency
//! The sums steer and order nothing, hence relaxed; [`Accounts::charge`] is a compare-and-swap, so that the limit holds
//! however many threads miss at once.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crossbeam_utils::CachePadded;

use crate::share::WHOLE;
use crate::slab::Slab;

/// Room for frames awaiting reclamation that even a small cache keeps.
const MIN_SLACK: usize = 128 << 10;
/// Room for a table or queue that grows, beyond a share of the capacity.
const MIN_GROWTH: usize = 4 << 10;

#[derive(Debug)]
pub(crate) struct Accounts {
    capacity: AtomicUsize,
    alive: CachePadded<AtomicUsize>,
    resident: CachePadded<AtomicUsize>,
    bookkeeping: CachePadded<AtomicUsize>,
    /// Here because every frame has its accounts: memory outlives the frames that are made of it.
    pub(crate) slab: Slab,
}

impl Accounts {
    pub(crate) fn new(capacity: usize) -> Accounts {
        Accounts {
            slab: Slab::new(capacity),
            capacity: AtomicUsize::new(capacity),
            alive: CachePadded::default(),
            resident: CachePadded::default(),
            bookkeeping: CachePadded::default(),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity.load(Relaxed)
    }

    pub(crate) fn set_capacity(&self, bytes: usize) {
        self.capacity.store(bytes, Relaxed);
    }

    /// Most bytes that may be alive, bookkeeping included.
    fn limit(&self) -> usize {
        let capacity = self.capacity();
        let growth = capacity / 128 + MIN_GROWTH;
        capacity.saturating_add(capacity / 20).saturating_sub(growth)
    }

    /// Room between what may be resident and what may be alive.
    pub(crate) fn slack(&self) -> usize {
        let capacity = self.capacity();
        (capacity / 20).max(MIN_SLACK.min(capacity / 2))
    }

    /// Most bytes that may be resident, bookkeeping included.
    pub(crate) fn goal(&self) -> usize {
        self.limit().saturating_sub(self.slack())
    }

    /// What so many points of the room for resident frames come to, bytes.
    pub(crate) fn worth(&self, points: usize) -> usize {
        let room = self.goal().saturating_sub(self.bookkeeping());
        (room as u128 * points as u128 / WHOLE as u128) as usize
    }

    /// Whether a frame of `charge` bytes may enter at all. A larger one would push the rest of the cache out, and its
    /// eviction alone would use up the slack.
    pub(crate) fn fits(&self, charge: usize) -> bool {
        charge <= self.slack() / 2
    }

    /// What a frame of `len` bytes takes.
    pub(crate) fn charge_of(&self, len: usize) -> usize {
        self.slab.charge_of(len)
    }

    /// Charges a frame about to be made, unless that would pass the limit.
    pub(crate) fn charge(&self, charge: usize) -> bool {
        let limit = self.limit().saturating_sub(self.bookkeeping());
        self.alive
            .fetch_update(Relaxed, Relaxed, |alive| alive.checked_add(charge).filter(|&sum| sum <= limit))
            .is_ok()
    }

    /// A frame was freed (or was not made after all).
    pub(crate) fn discharge(&self, charge: usize) {
        let before = self.alive.fetch_sub(charge, Relaxed);
        debug_assert!(before >= charge, "freed {charge} of {before} bytes");
    }

    pub(crate) fn entered(&self, charge: usize) {
        self.resident.fetch_add(charge, Relaxed);
    }

    pub(crate) fn left(&self, charge: usize) {
        let before = self.resident.fetch_sub(charge, Relaxed);
        debug_assert!(before >= charge, "evicted {charge} of {before} bytes");
    }

    /// Bookkeeping went from `before` to `after` bytes.
    pub(crate) fn rebook(&self, before: usize, after: usize) {
        // Wrapping: the difference may be negative.
        self.bookkeeping.fetch_add(after.wrapping_sub(before), Relaxed);
    }

    /// Books bookkeeping that can be done without, unless that would pass the limit.
    pub(crate) fn book(&self, bytes: usize) -> bool {
        let fits = self.alive() + self.bookkeeping() + bytes <= self.limit();
        if fits {
            self.rebook(0, bytes);
        }
        fits
    }

    pub(crate) fn alive(&self) -> usize {
        self.alive.load(Relaxed)
    }

    pub(crate) fn resident(&self) -> usize {
        self.resident.load(Relaxed)
    }

    pub(crate) fn bookkeeping(&self) -> usize {
        self.bookkeeping.load(Relaxed)
    }

    /// Evicted but not freed yet.
    pub(crate) fn awaiting(&self) -> usize {
        self.held().1
    }

    /// Resident, and evicted but not freed yet: of one look, so that what is evicted meanwhile is not in both.
    pub(crate) fn held(&self) -> (usize, usize) {
        let resident = self.resident();
        (resident, self.alive().saturating_sub(resident))
    }

    /// Whether frames have to leave.
    pub(crate) fn over(&self) -> bool {
        self.resident() + self.bookkeeping() > self.goal()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn limit_and_goal_stay_within_five_percent_at_every_size() {
        for capacity in [0, 1, 100, 4096, 1 << 20, 64 << 20, 1 << 40] {
            let a = Accounts::new(capacity);
            assert!(a.limit() <= capacity + capacity / 20, "{capacity}");
            assert!(a.goal() <= a.limit(), "{capacity}");
            assert!(a.goal() >= capacity / 2 || capacity < 64 << 10, "{capacity}");
        }
    }

    #[test]
    fn a_charge_beyond_the_limit_is_refused_and_leaves_no_trace() {
        let a = Accounts::new(1 << 20);
        assert!(a.charge(1 << 20));
        assert!(!a.charge(1 << 20));
        assert_eq!(a.alive(), 1 << 20);
        a.rebook(0, 1 << 20);
        assert!(!a.charge(1), "bookkeeping counts");
    }
}
