//! The cache.

use terrane_base::Result;

use crate::{FrameKey, Pin, Priority};

/// How to set up a [`Cache`].
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Bytes that the cache may hold, bookkeeping included (5 % more while frames await reclamation).
    pub capacity_bytes: usize,
    /// Number of shards, rounded up to a power of two; zero chooses by capacity and machine.
    pub shards: usize,
}

/// What a cache did and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Accesses that found their frame.
    pub hits: u64,
    /// Accesses by `get_or_load` that did not.
    pub misses: u64,
}

/// A cache of immutable byte strings.
pub struct Cache {}

impl Cache {
    /// An empty cache.
    pub fn new(_options: CacheOptions) -> Cache {
        todo!()
    }

    /// Calls `f` with the bytes of `key`, if they are here.
    pub fn with<R>(&self, _key: FrameKey, _f: impl FnOnce(&[u8]) -> R) -> Option<R> {
        todo!()
    }

    /// A pin on the frame of `key`, if it is here.
    pub fn get(&self, _key: FrameKey) -> Option<Pin> {
        todo!()
    }

    /// Puts `bytes` in, unless `key` is here already; the pin is on what is here.
    pub fn insert(&self, _key: FrameKey, _bytes: impl AsRef<[u8]>, _priority: Priority) -> Pin {
        todo!()
    }

    /// The frame of `key`; if it is not here, `load` is called for its bytes, by one of the threads that miss it.
    ///
    /// # Errors
    /// That of `load`, given to every thread that waited for it. Nothing is kept of it: the next call loads again.
    pub fn get_or_load(
        &self,
        _key: FrameKey,
        _priority: Priority,
        _load: impl FnOnce() -> Result<Vec<u8>>,
    ) -> Result<Pin> {
        todo!()
    }

    /// Whether `key` is here. Does not count as an access.
    pub fn contains(&self, _key: FrameKey) -> bool {
        todo!()
    }

    /// Drops the frame of `key`.
    pub fn remove(&self, _key: FrameKey) {
        todo!()
    }

    /// Drops every frame of `extent`.
    pub fn remove_extent(&self, _extent: u64) {
        todo!()
    }

    /// Changes the capacity; shrinking evicts before it returns.
    pub fn set_capacity(&self, _bytes: usize) {
        todo!()
    }

    /// Counts and sizes.
    pub fn stats(&self) -> CacheStats {
        todo!()
    }
}
