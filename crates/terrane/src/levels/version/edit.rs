//! What changes from one version to the next, and the same as manifest edits.

use terrane_base::{ExtentId, SubtableId};
use terrane_format::manifest::Edit;

use crate::levels::ExtentRef;

/// Names a part of an extent in a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefKey {
    /// The level.
    pub(crate) level: u8,
    /// The run; 0 from L1 on.
    pub(crate) run: u64,
    /// The extent.
    pub(crate) extent: ExtentId,
    /// First key of the part.
    pub(crate) lo: Vec<u8>,
    /// First key behind it: an edit made before the part was trimmed at its end does not mean what is left.
    pub(crate) hi: Vec<u8>,
}

impl RefKey {
    /// The name of `part`.
    pub(crate) fn of(level: u8, run: u64, part: &ExtentRef) -> Self {
        RefKey { level, run, extent: part.extent.meta.id, lo: part.lo.to_vec(), hi: part.hi.to_vec() }
    }

    /// Whether it is the name of `part`, given that the run is the right one.
    pub(super) fn names(&self, part: &ExtentRef) -> bool {
        (&*self.lo, &*self.hi, self.extent) == (&*part.lo, &*part.hi, part.extent.meta.id)
    }
}

/// What changes from one version to the next. A part that is trimmed is removed and added with its new bounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct VersionEdit {
    /// Parts that go.
    pub(crate) removed: Vec<RefKey>,
    /// Parts that come: level, run, part.
    pub(crate) added: Vec<(u8, u64, ExtentRef)>,
}

impl VersionEdit {
    /// The same as manifest edits: all that goes, then all that comes, so that no two parts overlap in between.
    pub(crate) fn to_edits(&self, subtable: SubtableId) -> Vec<Edit> {
        let removed = self.removed.iter().map(|k| Edit::RemoveRef {
            subtable,
            level: k.level,
            run: k.run,
            extent: k.extent,
            lo: k.lo.clone(),
        });
        let added = self.added.iter().map(|(level, run, part)| Edit::AddRef {
            subtable,
            level: *level,
            run: *run,
            lo: part.lo.to_vec(),
            hi: part.hi.to_vec(),
            size: part.size,
            extent: part.extent.meta.clone(),
        });
        removed.chain(added).collect()
    }
}
