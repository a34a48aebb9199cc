//! The operating system as a [`crate::Media`].

use std::sync::Arc;

use terrane_base::Result;

/// How many threads run background tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RealOptions {
    /// Threads of [`crate::Pool::Log`]. Default 1.
    pub log_threads: usize,
    /// Threads of [`crate::Pool::Flush`]. Default 2.
    pub flush_threads: usize,
    /// Threads of [`crate::Pool::Compaction`]. Default: half the processors, 1 to 8.
    pub compaction_threads: usize,
}

impl Default for RealOptions {
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(2, |n| n.get());
        RealOptions { log_threads: 1, flush_threads: 2, compaction_threads: (cores / 2).clamp(1, 8) }
    }
}

/// Files, maps, clock and threads of the operating system.
#[derive(Debug)]
pub struct RealMedia;

impl RealMedia {
    /// Starts with the given options.
    pub fn new(options: RealOptions) -> Result<Arc<RealMedia>> {
        let _ = options;
        todo!()
    }
}
