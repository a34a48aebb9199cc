//! The block cache and the heat sampler.

pub mod cache;
pub mod frame;
pub mod heat;
pub mod key;

pub use cache::{Cache, CacheOptions, CacheStats};
pub use frame::{Pin, Priority};
pub use heat::HeatSampler;
pub use key::FrameKey;
