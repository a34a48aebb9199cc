//! A sample of a memtable's keys, by which the work of writing it out is divided among threads.
//!
//! A key is in the sample if so many of its hash's lowest bits are zero; whenever many more were taken, one bit more has to be. So each key is as
//! likely as any other, however often it is written, and the sample takes some 60 KiB at most, whatever the memtable has.
//!
//! # Concurrency
//! Any number of writers. Those whose key is in the sample, fewer with every doubling, take a mutex, unless somebody has it: then the key is left
//! out. Whoever asks for cuts sees what was added before.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use terrane_base::MemoryBudget;

/// Keys that it has at most. Half as many are left when it was full: sixteen parts differ by a fifth or so then.
const MOST: usize = 512;
/// Of a key only so many bytes: a cut need not be a key.
const KEPT_BYTES: usize = 64;
/// What a key takes at most, with its place.
const KEY_BYTES: usize = KEPT_BYTES + 56;
/// One key in so many at first.
const FIRST: u64 = 16;

/// See the module's head. Its memory is charged to a budget until it is dropped.
#[derive(Debug)]
pub(crate) struct KeySample {
    /// Those of a hash's bits that are zero in the sample.
    mask: AtomicU64,
    keys: Mutex<Keys>,
    bytes: AtomicUsize,
    budget: MemoryBudget,
}

#[derive(Debug, Default)]
struct Keys {
    /// With their hashes.
    sorted: BTreeMap<Box<[u8]>, u64>,
    /// Those that were taken since the mask is as it is, and those that it was left with. More than there are, where they are
    /// alike as far as they are kept.
    taken: usize,
}

impl KeySample {
    pub(crate) fn new(budget: MemoryBudget) -> Self {
        KeySample {
            mask: AtomicU64::new(FIRST - 1),
            keys: Mutex::default(),
            bytes: AtomicUsize::new(0),
            budget,
        }
    }

    /// Whether the key with this hash would be in the sample.
    #[inline]
    pub(crate) fn wants(&self, hash: u64) -> bool {
        // Relaxed: a thread that has not heard of a larger mask is told so by `add`.
        hash & self.mask.load(Ordering::Relaxed) == 0
    }

    /// Takes a key that is wanted.
    #[cold]
    pub(crate) fn add(&self, key: &[u8], hash: u64) {
        let Some(mut keys) = self.keys.try_lock() else { return };
        let mut mask = self.mask.load(Ordering::Relaxed);
        if hash & mask != 0 || mask == u64::MAX {
            return;
        }
        let again = keys.sorted.insert(key[..key.len().min(KEPT_BYTES)].into(), hash).is_some();
        keys.taken += usize::from(!again || key.len() > KEPT_BYTES);
        while keys.taken > MOST {
            mask = mask << 1 | 1;
            self.mask.store(mask, Ordering::Relaxed);
            // (Somebody who chose keys by their hashes would have it empty in the end: then one thread does all of the work.)
            keys.sorted.retain(|_, hash| *hash & mask == 0 && mask != u64::MAX);
            keys.taken = keys.sorted.len();
        }
        // Its memory only grows: what was taken is taken again.
        let bytes = keys.sorted.len() * KEY_BYTES;
        let before = self.bytes.fetch_max(bytes, Ordering::Relaxed);
        self.budget.charge(bytes.saturating_sub(before));
    }

    /// Memory that it takes, at most.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Keys that divide all into `parts` of about the same number, ascending; fewer where the sample has not as many.
    pub(crate) fn cuts(&self, parts: usize) -> Vec<Box<[u8]>> {
        let keys = self.keys.lock();
        let parts = parts.min(keys.sorted.len() + 1);
        let mut sorted = keys.sorted.keys();
        let mut at = 0;
        let places = (1..parts).map(|n| n * keys.sorted.len() / parts);
        places
            .filter_map(|place| {
                let key = sorted.nth(place - at);
                at = place + 1;
                key.cloned()
            })
            .collect()
    }
}

impl Drop for KeySample {
    fn drop(&mut self) {
        self.budget.release(self.bytes());
    }
}

#[cfg(test)]
mod tests {
    use terrane_format::checksum::key_hash;

    use super::*;

    #[test]
    fn cuts_divide_the_keys_evenly_whatever_their_number_and_order() {
        for (all, parts) in [(0u64, 8), (40, 4), (1000, 4), (300_000, 8), (300_000, 1)] {
            let budget = MemoryBudget::new(1 << 30);
            let sample = KeySample::new(budget.clone());
            for n in (0..all).rev().chain(0..all) {
                // Dense below, sparse above.
                let key = (n * n).to_be_bytes();
                let hash = key_hash(&key);
                if sample.wants(hash) {
                    sample.add(&key, hash);
                }
            }
            assert!(sample.keys.lock().sorted.len() <= MOST);
            assert_eq!(budget.used(), sample.bytes());
            let cuts = sample.cuts(parts);
            assert!(cuts.is_sorted_by(|a, b| a < b), "{cuts:?}");
            if all < 1000 {
                assert!(cuts.len() < parts);
                continue;
            }
            assert_eq!(cuts.len(), parts - 1);
            let number = |key: &[u8]| u64::from_be_bytes(key.try_into().unwrap()).isqrt();
            let edges: Vec<u64> =
                [0].into_iter().chain(cuts.iter().map(|c| number(c))).chain([all]).collect();
            let even = all / parts as u64;
            for part in edges.windows(2).map(|e| e[1] - e[0]) {
                assert!((even / 2..=even * 2).contains(&part), "{part} of {all} in {parts}");
            }
        }
    }

    #[test]
    fn keys_that_are_long_or_alike_or_all_wanted_take_no_more() {
        let budget = MemoryBudget::new(1 << 30);
        let sample = KeySample::new(budget.clone());
        for n in 0..10_000u64 {
            let key = [&n.to_be_bytes()[..], &[7; 1000]].concat();
            assert!(sample.wants(0));
            sample.add(&key, 0);
        }
        assert!(sample.bytes() <= MOST * KEY_BYTES);
        let alike = KeySample::new(budget.clone());
        let mut wanted = 0;
        for n in 0..100_000u64 {
            let key = [&[7; KEPT_BYTES][..], &n.to_be_bytes()].concat();
            let hash = key_hash(&key);
            if alike.wants(hash) {
                wanted += 1;
                alike.add(&key, hash);
            }
        }
        assert!(wanted < 10 * MOST && alike.cuts(8).len() <= 1, "{wanted}");
        drop((sample, alike));
        assert_eq!(budget.used(), 0);
    }
}
