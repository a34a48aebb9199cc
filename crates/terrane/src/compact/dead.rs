//! Dead space: blocks of trimmed extents that no reference shows any more. They take space until the last reference to
//! their extent goes. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::levels::{ExtentRef, Version};

/// What the trimmed extents of a version show, and what they do not.
#[derive(Debug, Default)]
pub(crate) struct Dead {
    /// By extent: stored bytes of all its blocks, and of those that some reference shows.
    extents: BTreeMap<u64, (u64, u64)>,
}

impl Dead {
    /// Looks at the trimmed parts of all runs. (Of an extent that is referred to whole, nothing is dead.)
    pub(crate) fn of(version: &Version) -> Self {
        let mut extents = BTreeMap::new();
        for part in version.runs().flat_map(|(_, run)| run.trimmed()) {
            let meta = &part.extent.meta;
            extents.entry(meta.id.0).or_insert((u64::from(meta.data_bytes), 0)).1 += part.bytes();
        }
        Dead { extents }
    }

    /// Dead bytes of all extents.
    pub(crate) fn bytes(&self) -> u64 {
        self.extents.values().map(|(all, shown)| all.saturating_sub(*shown)).sum()
    }

    /// Dead bytes of the extents that these parts belong to.
    pub(crate) fn bytes_of<'a>(&self, parts: impl Iterator<Item = &'a Arc<ExtentRef>>) -> u64 {
        let extents: BTreeMap<u64, u64> = parts.map(|p| (p.extent.meta.id.0, self.bytes_beside(p))).collect();
        extents.values().sum()
    }

    /// Dead bytes of the extent that `part` belongs to.
    pub(crate) fn bytes_beside(&self, part: &ExtentRef) -> u64 {
        self.extents.get(&part.extent.meta.id.0).map_or(0, |(all, shown)| all.saturating_sub(*shown))
    }

    /// Whether at least `1 / denominator` of the extent that `part` belongs to is dead.
    pub(crate) fn is_sparse(&self, part: &ExtentRef, denominator: u64) -> bool {
        let dead = self.bytes_beside(part);
        dead > 0 && dead * denominator >= u64::from(part.extent.meta.data_bytes)
    }
}
