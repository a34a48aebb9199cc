//! Counters that many threads bump without sharing a cache line.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;

/// How many stripes there are; threads are dealt over them in the order of their first use.
pub const STRIPES: usize = 16;

static NEXT_STRIPE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The stripe of the calling thread, in `0..STRIPES`. Also a good hint for any other per-thread spreading.
#[inline]
pub fn stripe() -> usize {
    STRIPE.with(|s| {
        let mut v = s.get();
        if v == usize::MAX {
            v = NEXT_STRIPE.fetch_add(1, Ordering::Relaxed) % STRIPES;
            s.set(v);
        }
        v
    })
}

/// A monotone count. Adding touches only the calling thread's stripe (with relaxed ordering); reading sums all stripes
/// and is meant for reports.
#[derive(Debug, Default)]
pub struct Counter {
    stripes: [CachePadded<AtomicU64>; STRIPES],
}

impl Counter {
    /// A counter at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `n`.
    #[inline]
    pub fn add(&self, n: u64) {
        self.stripes[stripe()].fetch_add(n, Ordering::Relaxed);
    }

    /// The sum over all threads.
    pub fn get(&self) -> u64 {
        self.stripes.iter().map(|s| s.load(Ordering::Relaxed)).sum()
    }
}

/// Latencies or sizes in buckets that grow by a quarter of a power of two: quantiles are right within 25 %.
#[derive(Debug)]
pub struct Histogram {
    buckets: Box<[AtomicU64]>,
}

const SUB_BITS: u32 = 2;
const BUCKETS: usize = 64 << SUB_BITS;

impl Default for Histogram {
    fn default() -> Self {
        Histogram { buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Histogram {
    /// An empty histogram.
    pub fn new() -> Self {
        Self::default()
    }

    fn bucket(value: u64) -> usize {
        if value < (1 << SUB_BITS) {
            return value as usize;
        }
        let log = 63 - value.leading_zeros();
        let sub = (value >> (log - SUB_BITS)) & ((1 << SUB_BITS) - 1);
        (((log - SUB_BITS + 1) << SUB_BITS) as usize) + sub as usize
    }

    /// The largest value that falls in bucket `i`.
    fn upper(i: usize) -> u64 {
        if i < (1 << SUB_BITS) {
            return i as u64;
        }
        let log = (i >> SUB_BITS) as u32 + SUB_BITS - 1;
        let sub = (i & ((1 << SUB_BITS) - 1)) as u64;
        let base = (1u64 << log) + (sub << (log - SUB_BITS));
        base + ((1u64 << (log - SUB_BITS)) - 1)
    }

    /// Counts `value`.
    pub fn record(&self, value: u64) {
        self.buckets[Self::bucket(value)].fetch_add(1, Ordering::Relaxed);
    }

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|b| b.load(Ordering::Relaxed)).sum()
    }

    /// The value at quantile `q` (0..=1), zero if nothing was counted.
    pub fn quantile(&self, q: f64) -> u64 {
        let total = self.count();
        let rank = ((total as f64 * q).ceil() as u64).max(1);
        let mut seen = 0;
        for (i, b) in self.buckets.iter().enumerate() {
            seen += b.load(Ordering::Relaxed);
            if seen >= rank {
                return Self::upper(i);
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counter_sums_over_threads() {
        let c = Counter::new();
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| (0..1000).for_each(|_| c.add(2)));
            }
        });
        assert_eq!(c.get(), 8000);
    }

    #[test]
    fn quantiles_are_within_a_quarter() {
        let h = Histogram::new();
        (1..=10_000u64).for_each(|v| h.record(v));
        for (q, exact) in [(0.5, 5_000.0), (0.99, 9_900.0)] {
            let got = h.quantile(q) as f64;
            assert!(got >= exact && got <= exact * 1.25, "{q}: {got}");
        }
    }

    #[test]
    fn every_value_falls_under_its_buckets_bound() {
        for v in (0..2000).chain([u64::MAX, u64::MAX / 3, 1 << 40]) {
            let b = Histogram::bucket(v);
            assert!(v <= Histogram::upper(b), "{v}");
            assert!(b == 0 || v > Histogram::upper(b - 1), "{v}");
        }
    }
}
