//! What one part of the cache holds, and how much of the room it is sure of.
//!
//! The room is one for all parts, and shares of it are soft: a part may hold whatever the others do not use, and only when the
//! cache as a whole has to evict, what a part holds beyond its share leaves first ([`crate::parts`]).
//!
//! # Concurrency
//! The sums lie on lines of their own, written under the locks of the part's shards; they steer and order nothing, hence
//! relaxed. The points are read by every eviction, and written seldom, by who changes all parts' together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crossbeam_utils::CachePadded;

use crate::accounts::Accounts;

/// All points together.
pub(crate) const WHOLE: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) accounts: Arc<Accounts>,
    /// How many of the [`WHOLE`] are this part's.
    points: AtomicUsize,
    sums: CachePadded<Sums>,
}

#[derive(Debug, Default)]
struct Sums {
    resident: AtomicUsize,
    inserts: AtomicU64,
    evictions: AtomicU64,
    returns: AtomicU64,
    /// Bytes that came back since shares were last looked at.
    missed: AtomicUsize,
}

impl Share {
    pub(crate) fn new(accounts: Arc<Accounts>, points: usize) -> Share {
        Share { accounts, points: AtomicUsize::new(points), sums: CachePadded::default() }
    }

    pub(crate) fn points(&self) -> usize {
        self.points.load(Relaxed)
    }

    /// Whether there is no other part to share with.
    pub(crate) fn is_whole(&self) -> bool {
        self.points() == WHOLE
    }

    pub(crate) fn set_points(&self, points: usize) {
        self.points.store(points, Relaxed);
    }

    /// Bytes that the part is sure of.
    pub(crate) fn bytes(&self) -> usize {
        self.accounts.worth(self.points())
    }

    pub(crate) fn resident(&self) -> usize {
        self.sums.resident.load(Relaxed)
    }

    /// Bytes that it holds beyond its share.
    pub(crate) fn excess(&self) -> usize {
        self.resident().saturating_sub(self.bytes())
    }

    /// A frame is here from now on.
    pub(crate) fn entered(&self, charge: usize) {
        self.sums.resident.fetch_add(charge, Relaxed);
        self.accounts.entered(charge);
    }

    pub(crate) fn left(&self, charge: usize) {
        self.sums.resident.fetch_sub(charge, Relaxed);
        self.accounts.left(charge);
    }

    /// The frame that has entered was loaded, not moved; `returned` if with a little more room it would have been there still.
    pub(crate) fn inserted(&self, charge: usize, returned: bool) {
        self.sums.inserts.fetch_add(1, Relaxed);
        if returned {
            self.sums.returns.fetch_add(1, Relaxed);
            self.sums.missed.fetch_add(charge, Relaxed);
        }
    }

    pub(crate) fn evicted(&self, frames: usize) {
        self.sums.evictions.fetch_add(frames as u64, Relaxed);
    }

    pub(crate) fn inserts(&self) -> u64 {
        self.sums.inserts.load(Relaxed)
    }

    pub(crate) fn evictions(&self) -> u64 {
        self.sums.evictions.load(Relaxed)
    }

    pub(crate) fn returns(&self) -> u64 {
        self.sums.returns.load(Relaxed)
    }

    /// Bytes that came back since [`Share::forget`].
    pub(crate) fn missed(&self) -> usize {
        self.sums.missed.load(Relaxed)
    }

    pub(crate) fn forget(&self) {
        self.sums.missed.store(0, Relaxed);
    }
}
