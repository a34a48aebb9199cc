//! Keys and values: made from numbers, the same for every engine.
//!
//! Record `i` has the key `2 i`, big-endian, so that order of numbers is order of keys; odd keys are never written and serve as
//! the ones that are missing. Or keys are *scattered*: hashes of these numbers, in no order. Values are windows into a pool of
//! which half compresses.

use terrane_cache::bring_near;

use crate::choice::mix;
use crate::settings::Settings;

/// Bytes that values are cut from.
const POOL: usize = 1 << 20;

pub(crate) struct Data {
    key_bytes: usize,
    scattered: bool,
    value_bytes: usize,
    pool: Vec<u8>,
}

impl Data {
    pub(crate) fn of(settings: &Settings) -> Self {
        let Settings { key_bytes, value_bytes, scattered, .. } = *settings;
        Data { scattered, ..Data::new(key_bytes, value_bytes) }
    }

    pub(crate) fn new(key_bytes: usize, value_bytes: usize) -> Self {
        // Stretches of random bytes and of one byte, alternating, 50 bytes each: any window is half of either kind.
        let mut pool = Vec::with_capacity(POOL + value_bytes + 64);
        let mut n = 0u64;
        while pool.len() < POOL + value_bytes {
            for _ in 0..7 {
                n += 1;
                pool.extend_from_slice(&mix(n).to_le_bytes());
            }
            pool.truncate(pool.len() - 6);
            pool.resize(pool.len() + 50, (n % 251) as u8);
        }
        Data { key_bytes, scattered: false, value_bytes, pool }
    }

    /// Writes the key of record `i` into `key`.
    pub(crate) fn key(&self, i: u64, key: &mut Vec<u8>) {
        self.number(2 * i, key);
    }

    /// A key that no record has, among those that records have.
    pub(crate) fn missing(&self, i: u64, key: &mut Vec<u8>) {
        self.number(2 * i + 1, key);
    }

    fn number(&self, n: u64, key: &mut Vec<u8>) {
        // (Which maps them one to one.)
        let n = if self.scattered { mix(n) } else { n };
        key.clear();
        key.extend_from_slice(&n.to_be_bytes());
        key.resize(self.key_bytes, b'0');
    }

    /// The value of record `i` as of its `version`-th write.
    pub(crate) fn value(&self, i: u64, version: u64) -> &[u8] {
        let at = mix(i.wrapping_mul(31).wrapping_add(version)) as usize % POOL;
        &self.pool[at..at + self.value_bytes]
    }

    /// Asks the processor for the value of record `i` as of its `version`-th write: whoever writes it next is to time the engine, not how
    /// long the pool takes to come into the caches.
    pub(crate) fn bring_near(&self, i: u64, version: u64) {
        const LINE: usize = 64;
        let value = self.value(i, version);
        value.iter().step_by(LINE).chain(value.last()).for_each(bring_near);
    }
}

/// The table of a key, where records are dealt out to several.
pub(crate) fn table_of(key: &[u8], tables: usize) -> usize {
    if tables == 1 {
        return 0;
    }
    let number = key.first_chunk().map_or(0, |n| u64::from_be_bytes(*n));
    (number / 2) as usize % tables
}

/// Who, of so many, has a table for itself.
pub(crate) fn owner_of(table: u64, owners: u64) -> u64 {
    table % owners
}

/// A one-to-one mapping of `0..n` to itself that looks random: fills visit every record once, in no order.
pub(crate) struct Shuffle {
    n: u64,
    /// Of the numbers that it maps among themselves.
    bits: u32,
    /// Added to them at first: else zero would stay where it is.
    start: u64,
    /// By which they are multiplied, one after the other.
    factors: [u64; 3],
}

impl Shuffle {
    pub(crate) fn new(n: u64, seed: u64) -> Self {
        let bits = 64 - n.saturating_sub(1).max(1).leading_zeros();
        let factors = std::array::from_fn(|round| mix(seed << 8 | round as u64) | 1);
        Shuffle { n, bits, start: mix(seed), factors }
    }

    /// Where `i` goes: multiplied by odd numbers, and folded in between, within the next power of two, which maps one to one each. What falls
    /// outside goes round again.
    #[inline]
    pub(crate) fn at(&self, mut i: u64) -> u64 {
        let (mask, fold) = (u64::MAX >> (64 - self.bits), self.bits.div_ceil(2));
        loop {
            i = i.wrapping_add(self.start) & mask;
            for factor in self.factors {
                i = i.wrapping_mul(factor) & mask;
                i ^= i >> fold;
            }
            if i < self.n {
                return i;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_visits_everything_once() {
        for n in [1, 2, 3, 64, 100, 1000, 1024, 4096, 4097] {
            let s = Shuffle::new(n, 7);
            let mut seen: Vec<u64> = (0..n).map(|i| s.at(i)).collect();
            let ascents = seen.windows(2).filter(|w| w[0] < w[1]).count() as u64;
            assert!(n < 1000 || (n * 45..n * 55).contains(&(ascents * 100)), "{ascents} of {n} in order");
            seen.sort_unstable();
            assert!(seen.iter().copied().eq(0..n), "of {n}");
        }
        assert!(Shuffle::new(u64::MAX, 7).at(0) < u64::MAX);
    }

    #[test]
    fn keys_are_in_order_and_missing_ones_between() {
        let d = Data::new(16, 10);
        let (mut a, mut b, mut c) = (vec![], vec![], vec![]);
        d.key(255, &mut a);
        d.missing(255, &mut b);
        d.key(256, &mut c);
        assert!(a < b && b < c);
        assert_eq!(a.len(), 16);
        assert_eq!(d.value(3, 1), d.value(3, 1));
        assert_ne!(d.value(3, 1), d.value(3, 2));
    }

    #[test]
    fn scattered_keys_are_as_many() {
        let d = Data { scattered: true, ..Data::new(16, 10) };
        let key = |i: u64| {
            let mut key = vec![];
            if i.is_multiple_of(2) {
                d.key(i / 2, &mut key)
            } else {
                d.missing(i / 2, &mut key)
            }
            key
        };
        let keys: Vec<_> = (0..2000).map(key).collect();
        let mut sorted = keys.clone();
        sorted.sort_unstable();
        assert_ne!(keys, sorted);
        sorted.dedup();
        assert_eq!(sorted.len(), keys.len());
    }
}
