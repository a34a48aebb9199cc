//! Which record an operation takes: uniform, skewed, or among the latest. Seeded: every engine sees the same choices.

/// Spreads the bits of `x` (splitmix64).
pub(crate) fn mix(x: u64) -> u64 {
    let mut x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A sequence of numbers that look random.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(mix(seed))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    /// Below `n`, which must not be 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// In `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Ranks with a Zipf distribution, by the method of Gray et al., "Quickly generating billion-record synthetic databases"
/// (1994), as YCSB uses it.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    n: u64,
    theta: f64,
    alpha: f64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    /// Over `n` ranks; `theta` in `[0, 1)`, 0 being uniform.
    pub(crate) fn new(n: u64, theta: f64) -> Self {
        let zeta = zeta(n, theta);
        let eta = (1.0 - (2.0 / n as f64).powf(1.0 - theta)) / (1.0 - zeta_two(theta) / zeta);
        Zipf { n, theta, alpha: 1.0 / (1.0 - theta), zeta, eta }
    }

    /// A rank: 0 comes most often.
    pub(crate) fn rank(&self, random: &mut Random) -> u64 {
        let u = random.unit();
        let uz = u * self.zeta;
        if uz < 1.0 || self.n == 1 {
            return 0;
        }
        if uz < zeta_two(self.theta) {
            return 1;
        }
        let r = (self.n as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha)) as u64;
        r.min(self.n - 1)
    }

    /// A record: the frequent ones lie anywhere.
    pub(crate) fn record(&self, random: &mut Random) -> u64 {
        mix(self.rank(random)) % self.n
    }
}

fn zeta_two(theta: f64) -> f64 {
    1.0 + 0.5f64.powf(theta)
}

/// The sum of `i^-theta` up to `n`: exactly for the first million, then by its integral.
fn zeta(n: u64, theta: f64) -> f64 {
    let exact = n.min(1_000_000);
    let head: f64 = (1..=exact).map(|i| (i as f64).powf(-theta)).sum();
    let tail = ((n as f64).powf(1.0 - theta) - (exact as f64).powf(1.0 - theta)) / (1.0 - theta);
    head + tail.max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skew_is_as_stated() {
        let z = Zipf::new(1_000_000, 0.99);
        let mut r = Random::new(1);
        let n = 200_000;
        let first = (0..n).filter(|_| z.rank(&mut r) == 0).count() as f64 / f64::from(n);
        let want = 1.0 / z.zeta;
        assert!((first / want - 1.0).abs() < 0.1, "rank 0 came with {first}, not {want}");
    }

    #[test]
    fn without_skew_ranks_are_uniform() {
        let z = Zipf::new(10, 0.0);
        let mut r = Random::new(2);
        let mut seen = [0u32; 10];
        for _ in 0..100_000 {
            seen[z.rank(&mut r) as usize] += 1;
        }
        assert!(seen.iter().all(|&n| (9_000..11_000).contains(&n)), "{seen:?}");
    }
}
