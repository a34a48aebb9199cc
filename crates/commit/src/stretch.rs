//! The stretch of the order that a memtable holds: which commits write to it, and when it has all of them.
//!
//! # The protocol
//! A commit reserves its place, takes the stretch of the epoch that its reservation tells it ([`of_epoch`]), writes there and
//! notes itself ([`Stretch::note`]); only then it fills its place. Freezing puts the next stretch, of the next epoch, in front of
//! the others *before* it bumps the epoch ([`crate::Ring::bump_epoch`]), and then tells the old one where the bump was
//! ([`Stretch::close`]). So what is reserved before that boundary goes to the old one, and what is reserved behind it finds the
//! new one there. The old one is whole once everything before the boundary is settled ([`Stretch::is_whole`]).
//!
//! # Concurrency
//! Any number of writers note themselves, one freezer closes. The models are those of [`crate::Pins`]. Who has acquired the
//! settling of an entry sees it noted.

use terrane_base::sync::atomic::{AtomicU64, Ordering};

/// See the module's head. Positions are in whatever unit its user counts.
#[derive(Debug)]
pub struct Stretch {
    epoch: u64,
    /// Of the first entry noted; `u64::MAX` while there is none.
    first: AtomicU64,
    /// The first position that is *not* in it; `u64::MAX` while it is open.
    end: AtomicU64,
}

impl Stretch {
    /// The one for entries of `epoch` and later ones, until the next one's.
    pub fn new(epoch: u64) -> Self {
        Stretch { epoch, first: AtomicU64::new(u64::MAX), end: AtomicU64::new(u64::MAX) }
    }

    /// The epoch that it begins with.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The entry at `pos` has something here. To be called before its place is filled.
    #[inline]
    pub fn note(&self, pos: u64) {
        // Only the first ones pay for the read-modify-write: positions grow.
        if pos < self.first.load(Ordering::Relaxed) {
            self.first.fetch_min(pos, Ordering::AcqRel);
        }
    }

    /// Where the first entry stands, if there is one.
    pub fn first(&self) -> Option<u64> {
        Some(self.first.load(Ordering::Acquire)).filter(|&pos| pos != u64::MAX)
    }

    /// Nothing at or behind `boundary` will be noted.
    pub fn close(&self, boundary: u64) {
        self.end.store(boundary, Ordering::Release);
    }

    /// The boundary, once it is closed.
    pub fn end(&self) -> Option<u64> {
        Some(self.end.load(Ordering::Acquire)).filter(|&pos| pos != u64::MAX)
    }

    /// Whether it has everything that it will ever have, with everything before `settled` settled.
    pub fn is_whole(&self, settled: u64) -> bool {
        self.end().is_some_and(|end| end <= settled)
    }
}

/// Of `all`, newest first, the one that entries of `epoch` write to.
pub fn of_epoch<T>(all: &[T], epoch: u64, stretch: impl Fn(&T) -> &Stretch) -> Option<&T> {
    all.iter().find(|t| stretch(t).epoch <= epoch)
}
