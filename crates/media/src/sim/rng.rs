//! Seeded bits: the same seed gives the same machine, history and crash on every run and platform.

/// SplitMix64: small, fast, and good enough to choose faults.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// An independent stream named by `parts`, so that a decision about one thing (a sector, a name) does not depend on
    /// how many decisions came before it.
    pub(super) fn of(seed: u64, parts: &[u64]) -> Self {
        let mut state = mix(seed);
        for p in parts {
            state = mix(state ^ mix(*p));
        }
        Rng(state)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Uniform in `0..n`; 0 for `n = 0`.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        // The bias of the multiplication is below n / 2^64.
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// True with this probability.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }
}

fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
