//! Versions: immutable pictures of a subtable's runs.

use std::sync::Arc;

use terrane_base::{ExtentId, Result, SubtableId};
use terrane_format::extent::ExtentMeta;
use terrane_format::manifest::Edit;
use terrane_format::value_ref::ValueRef;

use super::{Extent, ExtentRef, Reclaimer, Run, SubtableState};

/// Names a part of an extent in a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefKey {
    /// 0 for L0.
    pub(crate) level: u8,
    /// 0 from L1 on.
    pub(crate) run: u64,
    /// The extent.
    pub(crate) extent: ExtentId,
    /// First key of the part.
    pub(crate) lo: Vec<u8>,
}

/// What changes from one version to the next.
#[derive(Clone, Debug, Default)]
pub(crate) struct VersionEdit {
    /// Parts that go.
    pub(crate) removed: Vec<RefKey>,
    /// Parts that come: level, run, part.
    pub(crate) added: Vec<(u8, u64, ExtentRef)>,
}

impl VersionEdit {
    /// The same as manifest edits.
    pub(crate) fn to_edits(&self, _subtable: SubtableId) -> Vec<Edit> {
        todo!()
    }
}

/// What [`Version::apply`] gives.
#[derive(Debug)]
pub(crate) struct Applied {
    /// The next version.
    pub(crate) version: Version,
    /// Extents that the next version no longer refers to.
    pub(crate) obsolete: Vec<Arc<Extent>>,
}

/// An immutable picture of a subtable's runs.
#[derive(Debug)]
pub(crate) struct Version {
    /// L0, newest first.
    pub(crate) l0: Vec<Arc<Run>>,
    /// L1 first. An empty level is an empty run.
    pub(crate) levels: Vec<Arc<Run>>,
}

impl Version {
    /// No records.
    pub(crate) fn empty(_reclaimer: Arc<Reclaimer>) -> Self {
        todo!()
    }
    /// The version that the manifest describes. `open` makes the extents, each once.
    pub(crate) fn from_state(
        _state: &SubtableState,
        _reclaimer: Arc<Reclaimer>,
        _open: impl FnMut(&Arc<ExtentMeta>) -> Result<Arc<Extent>>,
    ) -> Result<Self> {
        todo!()
    }
    /// The next version.
    ///
    /// # Errors
    /// `Corruption` if a removed part is not there, or added parts overlap.
    pub(crate) fn apply(&self, _edit: &VersionEdit) -> Result<Applied> {
        todo!()
    }
    /// After the edit that ends this version is durable and the next one is published: `obsolete` and `values` are no
    /// longer needed but by readers of this version and of older ones. Their space is queued when those are gone.
    pub(crate) fn retire(&self, _obsolete: Vec<Arc<Extent>>, _values: Vec<ValueRef>) {
        todo!()
    }
    /// All runs from newest to oldest, with their levels.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u8, &Arc<Run>)> {
        self.l0.iter().map(|r| (0, r)).chain(self.levels.iter().enumerate().map(|(i, r)| (i as u8 + 1, r)))
    }
}
