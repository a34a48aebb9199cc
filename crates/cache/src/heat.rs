//! Heat: which extents are read, by sample.
//!
//! Of the accesses of each thread one in [`HeatSampler::STRIDE`] is recorded, at random distances, so that a regular
//! pattern of accesses cannot fall in step with the sampling. Recording goes to a buffer that the thread has for
//! itself; the background folds all buffers together now and then. An access that is not recorded costs a decrement in
//! the thread's own memory, and no access writes to memory shared with other readers.
//!
//! # Concurrency
//! A buffer is a ring that its thread alone writes: the sample first, then, with release, how many there are. A fold
//! reads that number with acquire, and with it the samples; folds are one at a time, under a mutex that no access takes.
//! A ring that goes round between folds forgets its oldest samples: heat is about what is read now. A thread that goes
//! round while a fold reads can have it count a sample that the next fold counts again; every word is a sample all the
//! same. A thread that ends leaves its buffer to the next fold, and then to another thread (`thread_local` sees to it that
//! the two know of each other).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::PoisonError;

use crossbeam_utils::CachePadded;
use terrane_base::sync::Mutex;
use terrane_base::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use thread_local::ThreadLocal;

/// Samples that a thread holds at most.
const BUFFER: usize = if cfg!(loom) { 2 } else { 512 };

/// Records which extents are read. One per database; see the module's head.
#[derive(Default)]
pub struct HeatSampler {
    threads: ThreadLocal<CachePadded<Own>>,
    /// Called when a buffer is full.
    full: Option<Box<dyn Fn() + Send + Sync>>,
    folding: Mutex<()>,
}

/// One thread's part. Nobody else writes any of it but `folded`.
struct Own {
    /// Accesses until the next sample.
    gap: AtomicU32,
    random: AtomicU32,
    /// Samples so far. The last [`BUFFER`] of them lie in the ring.
    recorded: AtomicU64,
    /// How many of them there were at the last fold, which wrote it.
    folded: AtomicU64,
    /// One more than that, when the ring was told to be full.
    told: AtomicU64,
    ring: Box<[AtomicU64]>,
}

impl Default for Own {
    fn default() -> Self {
        Own {
            gap: AtomicU32::new(0),
            random: AtomicU32::new(0),
            recorded: AtomicU64::new(0),
            folded: AtomicU64::new(0),
            told: AtomicU64::new(0),
            ring: (0..BUFFER).map(|_| AtomicU64::new(0)).collect(),
        }
    }
}

impl HeatSampler {
    /// Accesses per recorded sample, on average.
    pub const STRIDE: u32 = 32;

    /// A sampler that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// One that has seen nothing, and calls `full` whenever a thread's buffer fills: after some [`HeatSampler::STRIDE`] times 512 accesses of
    /// it since the last fold. It is called by that thread in the middle of its access, and must be quick.
    pub fn telling(full: impl Fn() + Send + Sync + 'static) -> Self {
        HeatSampler { full: Some(Box::new(full)), ..Self::default() }
    }

    /// Notes an access to `extent`.
    #[inline]
    pub fn touch(&self, extent: u64) {
        let own = self.threads.get_or_default();
        let gap = own.gap.load(Relaxed);
        if gap > 1 {
            // Only this thread writes the word, so no read-modify-write is needed.
            own.gap.store(gap - 1, Relaxed);
        } else if own.record(extent, gap == 1)
            && let Some(full) = &self.full
        {
            full();
        }
    }

    /// Hands over what was recorded since the last fold: each extent once, with its number of samples, in the order of
    /// extents (replays of a seeded run see the same order).
    pub fn fold(&self, mut each: impl FnMut(u64, u32)) {
        let mut heat = BTreeMap::<u64, u32>::new();
        {
            let _one = self.folding.lock().unwrap_or_else(PoisonError::into_inner);
            for own in self.threads.iter() {
                own.fold(|extent| *heat.entry(extent).or_default() += 1);
            }
        }
        heat.into_iter().for_each(|(extent, samples)| each(extent, samples));
    }
}

impl Own {
    /// Draws the next gap, and records `extent` unless this is the thread's first access, which only starts the count. Says whether the
    /// ring has become full by that.
    #[cold]
    fn record(&self, extent: u64, sample: bool) -> bool {
        self.gap.store(self.next_gap(), Relaxed);
        sample && self.push(extent)
    }

    /// Only this thread writes these words, so no read-modify-write is needed here either.
    fn push(&self, extent: u64) -> bool {
        let recorded = self.recorded.load(Relaxed);
        self.ring[recorded as usize % BUFFER].store(extent, Relaxed);
        self.recorded.store(recorded + 1, Release);
        let folded = self.folded.load(Relaxed);
        let is_full = recorded + 1 - folded >= BUFFER as u64 && self.told.load(Relaxed) != folded + 1;
        if is_full {
            self.told.store(folded + 1, Relaxed);
        }
        is_full
    }

    /// What was recorded since the last fold and is still there.
    fn fold(&self, mut each: impl FnMut(u64)) {
        let to = self.recorded.load(Acquire);
        let from = self.folded.load(Relaxed).max(to.saturating_sub(BUFFER as u64));
        for number in from..to {
            each(self.ring[number as usize % BUFFER].load(Relaxed));
        }
        self.folded.store(to, Relaxed);
    }

    /// A gap in `1..2 * STRIDE`, all equally likely.
    fn next_gap(&self) -> u32 {
        // A Weyl step and a mixing round: a fixed sequence per thread, so that seeded runs repeat.
        let random = self.random.load(Relaxed).wrapping_add(0x9e37_79b9);
        self.random.store(random, Relaxed);
        let mixed = (random ^ (random >> 16)).wrapping_mul(0x85eb_ca6b);
        (mixed >> 13) % (2 * HeatSampler::STRIDE - 1) + 1
    }
}

impl fmt::Debug for HeatSampler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeatSampler").field("threads", &self.threads.iter().count()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;

    fn fold(sampler: &HeatSampler) -> BTreeMap<u64, u32> {
        let mut heat = BTreeMap::new();
        sampler.fold(|extent, samples| assert!(heat.insert(extent, samples).is_none(), "folded twice"));
        heat
    }

    #[test]
    fn samples_are_in_proportion_to_accesses_even_in_a_regular_pattern() {
        let sampler = HeatSampler::new();
        let mut heat = BTreeMap::<u64, u32>::new();
        // Extent 0 is read every second time, 1 to 3 share the rest: a pattern whose period divides the stride.
        for i in 0..64_000u64 {
            sampler.touch(if i % 2 == 0 { 0 } else { 1 + (i / 2) % 3 });
            if i % 8000 == 0 {
                fold(&sampler).into_iter().for_each(|(e, n)| *heat.entry(e).or_default() += n);
            }
        }
        fold(&sampler).into_iter().for_each(|(e, n)| *heat.entry(e).or_default() += n);
        let total: u32 = heat.values().sum();
        assert!((1800..2200).contains(&total), "{total} samples of 64000");
        assert!((900..1100).contains(&heat[&0]), "{heat:?}");
        assert!((1..=3).all(|e| (250..420).contains(&heat[&e])), "{heat:?}");
    }

    #[test]
    fn a_fold_takes_the_samples_of_threads_that_ended() {
        let sampler = HeatSampler::new();
        std::thread::scope(|s| {
            for t in 0..4 {
                let sampler = &sampler;
                s.spawn(move || (0..3200).for_each(|_| sampler.touch(t)));
            }
        });
        let heat = fold(&sampler);
        assert!((0..4).all(|t| (80..120).contains(&heat[&t])), "{heat:?}");
        assert!(fold(&sampler).is_empty());
    }

    #[test]
    fn without_folds_the_newest_samples_are_kept() {
        let sampler = HeatSampler::new();
        (0..100_000).for_each(|_| sampler.touch(1));
        (0..100_000).for_each(|_| sampler.touch(2));
        assert_eq!(fold(&sampler), BTreeMap::from([(2, BUFFER as u32)]));
    }

    #[test]
    fn a_full_buffer_is_told_of_once_until_it_is_folded() {
        let told = std::sync::Arc::new(AtomicU32::new(0));
        let count = told.clone();
        let sampler = HeatSampler::telling(move || _ = count.fetch_add(1, Relaxed));
        for round in 1..4 {
            (0..100_000).for_each(|_| sampler.touch(1));
            assert_eq!(told.load(Relaxed), round);
            fold(&sampler);
        }
    }

    #[test]
    fn samplers_do_not_see_each_others_accesses() {
        let (a, b) = (HeatSampler::new(), HeatSampler::new());
        for _ in 0..1000 {
            a.touch(1);
            b.touch(2);
        }
        assert_eq!(fold(&a).into_keys().collect::<Vec<_>>(), [1]);
        assert_eq!(fold(&b).into_keys().collect::<Vec<_>>(), [2]);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;

    #[test]
    fn model_a_fold_sees_samples_alone_and_misses_none_that_the_ring_still_has() {
        loom::model(|| {
            let own = loom::sync::Arc::new(Own::default());
            let o = own.clone();
            let thread = loom::thread::spawn(move || (1..=3).filter(|extent| o.push(*extent)).count());
            let mut seen = Vec::new();
            own.fold(|extent| seen.push(extent));
            let first = seen.len();
            let told = thread.join().unwrap();
            assert!(first > 0 || told == 1, "that the ring is full is told once until a fold: {told}");
            own.fold(|extent| seen.push(extent));
            assert!(seen.iter().all(|extent| (1..=3).contains(extent)), "{seen:?}");
            assert!(seen.contains(&3) && seen.contains(&2), "{seen:?}");
            assert!(first > 0 || seen == [2, 3], "{seen:?}");
            seen.clear();
            own.fold(|extent| seen.push(extent));
            assert!(seen.is_empty());
        });
    }
}
