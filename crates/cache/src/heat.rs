//! Sampled heat of extents.

/// Records which extents are read, by sample.
#[derive(Default)]
pub struct HeatSampler {}

impl HeatSampler {
    /// A sampler that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes an access to `extent` (one in [`HeatSampler::STRIDE`] on average is recorded).
    pub fn touch(&self, _extent: u64) {
        todo!()
    }

    /// Accesses per recorded sample, on average.
    pub const STRIDE: u32 = 32;

    /// Hands over what was recorded since the last fold: each extent once, with its number of samples.
    pub fn fold(&self, _each: impl FnMut(u64, u32)) {
        todo!()
    }
}
