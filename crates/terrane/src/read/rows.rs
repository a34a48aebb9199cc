//! The row cache: single rows in front of the block cache. Off by default.
//!
//! A row is keyed by its extent's birth id and its key. Both never change what they name, so nothing is ever invalidated:
//! rows of extents that are merged away are simply not asked for again and age out. Only the newest version of a key in
//! an extent is kept, and only lookups that see everything in the extent use it.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use quick_cache::sync::Cache;
use quick_cache::{Equivalent, Weighter};
use terrane_base::Seq;
use terrane_format::Kind;

/// Bytes that a row costs beside key and value.
const OVERHEAD: u64 = 96;

#[derive(Debug, PartialEq, Eq)]
struct RowKey {
    extent: u64,
    key: Box<[u8]>,
}

impl Hash for RowKey {
    fn hash<H: Hasher>(&self, h: &mut H) {
        RowRef { extent: self.extent, key: &self.key }.hash(h);
    }
}

#[derive(Hash)]
struct RowRef<'a> {
    extent: u64,
    key: &'a [u8],
}

impl Equivalent<RowKey> for RowRef<'_> {
    fn equivalent(&self, other: &RowKey) -> bool {
        self.extent == other.extent && *self.key == *other.key
    }
}

/// The newest version of a key in an extent.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) seq: Seq,
    pub(crate) kind: Kind,
    pub(crate) value: Box<[u8]>,
}

#[derive(Clone, Debug)]
struct ByBytes;

impl Weighter<RowKey, Arc<Row>> for ByBytes {
    fn weight(&self, key: &RowKey, row: &Arc<Row>) -> u64 {
        OVERHEAD + (key.key.len() + row.value.len()) as u64
    }
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct RowCache(Cache<RowKey, Arc<Row>, ByBytes>);

impl RowCache {
    /// A cache of about `bytes`; `None` for zero.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        (bytes > 0).then(|| RowCache(Cache::with_weighter(bytes / 256 + 16, bytes as u64, ByBytes)))
    }

    pub(crate) fn get(&self, extent: u64, key: &[u8]) -> Option<Arc<Row>> {
        self.0.get(&RowRef { extent, key })
    }

    pub(crate) fn insert(&self, extent: u64, key: &[u8], row: Row) {
        self.0.insert(RowKey { extent, key: key.into() }, Arc::new(row));
    }

    /// Bytes in use.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.weight()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_told_apart_by_extent_and_key_and_stay_within_the_budget() {
        let c = RowCache::new(64 << 10).unwrap();
        for extent in 0..4u64 {
            for k in 0..1000u32 {
                let value = [extent as u8; 50].into();
                c.insert(extent, &k.to_be_bytes(), Row { seq: 1, kind: Kind::Put, value });
            }
        }
        assert!(c.bytes() <= 64 << 10);
        let hits: Vec<_> = (0..1000u32).filter_map(|k| c.get(3, &k.to_be_bytes())).collect();
        assert!(!hits.is_empty() && hits.iter().all(|r| r.value[0] == 3));
        assert!(RowCache::new(0).is_none());
    }
}
