//! Heat: which extents are read, by sample.
//!
//! Of the accesses of each thread one in [`HeatSampler::STRIDE`] is recorded, at random distances, so that a regular
//! pattern of accesses cannot fall in step with the sampling. Recording goes to a buffer that the thread has for
//! itself; the background folds all buffers together now and then. An access that is not recorded costs a decrement in
//! the thread's own memory, and no access writes to memory shared with other readers.
//!
//! # Concurrency
//! A buffer is behind a mutex that its thread takes once per sample, and that only a fold ever contends for. A buffer
//! that fills up between folds forgets its oldest samples: heat is about what is read now. A thread that ends leaves its
//! buffer to the next fold.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

use crossbeam_utils::CachePadded;
use thread_local::ThreadLocal;

/// Samples that a thread holds at most.
const BUFFER: usize = 512;

/// Records which extents are read. One per database; see the module's head.
#[derive(Default)]
pub struct HeatSampler {
    threads: ThreadLocal<CachePadded<Own>>,
    /// Called when a buffer is full.
    full: Option<Box<dyn Fn() + Send + Sync>>,
}

/// One thread's part.
#[derive(Default)]
struct Own {
    /// Accesses until the next sample. Only this thread touches it.
    gap: AtomicU32,
    samples: Mutex<Samples>,
}

#[derive(Default)]
struct Samples {
    extents: Vec<u64>,
    /// The oldest sample, once the buffer is full.
    oldest: usize,
    random: u32,
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
        HeatSampler { threads: ThreadLocal::new(), full: Some(Box::new(full)) }
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
        for own in self.threads.iter() {
            let extents = {
                let mut samples = own.lock();
                samples.oldest = 0;
                std::mem::take(&mut samples.extents)
            };
            for extent in extents {
                *heat.entry(extent).or_default() += 1;
            }
        }
        heat.into_iter().for_each(|(extent, samples)| each(extent, samples));
    }
}

impl Own {
    /// Draws the next gap, and records `extent` unless this is the thread's first access, which only starts the count. Says whether the
    /// buffer has become full by that.
    #[cold]
    fn record(&self, extent: u64, sample: bool) -> bool {
        let mut samples = self.lock();
        self.gap.store(samples.next_gap(), Relaxed);
        sample && samples.push(extent)
    }

    fn lock(&self) -> MutexGuard<'_, Samples> {
        match self.samples.lock() {
            Ok(samples) => samples,
            // Nothing unwinds under this lock but running out of memory, which ends the process.
            Err(poison) => poison.into_inner(),
        }
    }
}

impl Samples {
    /// Whether it has become full.
    fn push(&mut self, extent: u64) -> bool {
        if self.extents.len() < BUFFER {
            self.extents.push(extent);
            return self.extents.len() == BUFFER;
        }
        self.extents[self.oldest] = extent;
        self.oldest = (self.oldest + 1) % BUFFER;
        false
    }

    /// A gap in `1..2 * STRIDE`, all equally likely.
    fn next_gap(&mut self) -> u32 {
        // A Weyl step and a mixing round: a fixed sequence per thread, so that seeded runs repeat.
        self.random = self.random.wrapping_add(0x9e37_79b9);
        let mixed = (self.random ^ (self.random >> 16)).wrapping_mul(0x85eb_ca6b);
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
