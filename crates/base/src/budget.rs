//! One memory budget, shared by everything that it pays for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

/// A number of bytes that several owners draw from. Cloning shares the budget.
///
/// The count is kept with relaxed atomics: it steers pacing and eviction, it orders nothing. Charging never fails and
/// never blocks; whoever charges looks at [`MemoryBudget::fullness`] and slows down or evicts.
#[derive(Clone, Debug)]
pub struct MemoryBudget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit: AtomicUsize,
    used: CachePadded<AtomicUsize>,
}

impl MemoryBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        MemoryBudget(Arc::new(Inner {
            limit: AtomicUsize::new(limit),
            used: CachePadded::new(AtomicUsize::new(0)),
        }))
    }

    /// Takes `bytes`, beyond the limit if need be.
    pub fn charge(&self, bytes: usize) {
        self.0.used.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Gives `bytes` back. Must not exceed what was charged.
    pub fn release(&self, bytes: usize) {
        let before = self.0.used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "released {bytes} of {before} bytes charged");
    }

    /// Bytes charged now.
    pub fn used(&self) -> usize {
        self.0.used.load(Ordering::Relaxed)
    }

    /// The limit in bytes.
    pub fn limit(&self) -> usize {
        self.0.limit.load(Ordering::Relaxed)
    }

    /// Whether more than so many hundredths of the limit are used: sooner said than [how full](MemoryBudget::fullness) it is.
    #[inline]
    pub fn is_over(&self, percent: usize) -> bool {
        self.used().saturating_mul(100) > self.limit().saturating_mul(percent)
    }

    /// Used over limit: 1.0 means exhausted.
    pub fn fullness(&self) -> f64 {
        self.used() as f64 / self.limit().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_one_count() {
        let a = MemoryBudget::new(100);
        let b = a.clone();
        a.charge(30);
        b.charge(90);
        assert_eq!(a.used(), 120);
        assert!(a.fullness() > 1.0);
        assert!(a.is_over(119) && !a.is_over(120));
        b.release(120);
        assert_eq!(a.used(), 0);
    }
}
