//! Levels: what a subtable's records become once they leave the memtables.
//!
//! | module | noun |
//! |---|---|
//! | [`space`] | units of data files: allocated, written, freed |
//! | [`extent`] | one immutable extent, read block by block, checksums verified against its parent |
//! | [`homes`] | the parts of the cache in which extents have their frames |
//! | [`run`] | a sorted sequence of references to extents |
//! | [`version`] | an immutable picture of a subtable's runs, and how one becomes the next |
//! | [`writer`] | sorted blocks become extents of a run |
//! | [`state`] | the database's structure, as the manifest's edits make it |
//! | [`manifest`] | the durable log of those edits |
//!
//! # How a change is installed
//! 1. [`writer::RunWriter`] allocates space, writes extents and syncs them: a [`writer::WrittenRun`].
//! 2. [`version::Version::apply`] makes the next version of an edit.
//! 3. [`manifest::ManifestStore::append`] makes the same edit durable. From here on the change has happened.
//! 4. The new version is published; [`version::Version::retire`] on the old one names what it no longer needs.
//! 5. When the last reader of the old versions is gone, the space of what they needed is queued at the
//!    [`extent::Reclaimer`], and only then may it be freed: *free after manifest*.
//!
//! After a failed flush the shared [`poison::Poison`] is set: nothing is allocated or appended any more, so that space
//! whose owner is in doubt is not written to again until the database is reopened.

pub(crate) mod bulk;
pub(crate) mod extent;
mod homes;
mod io;
pub(crate) mod manifest;
mod names;
pub(crate) mod poison;
pub(crate) mod run;
pub(crate) mod space;
pub(crate) mod state;
#[cfg(test)]
pub(crate) mod testkit;
#[cfg(test)]
mod tests;
pub(crate) mod version;
pub(crate) mod writer;

pub(crate) use extent::{Extent, Known, KnownIndex, Loaded, Reclaimer};
pub(crate) use homes::Homes;
pub(crate) use io::Window;
pub(crate) use manifest::ManifestStore;
pub(crate) use poison::Poison;
pub(crate) use run::{ExtentRef, Run};
pub(crate) use space::{Alloc, Space, SpaceOptions, Survey};
pub(crate) use state::{DbState, Ids, StageState};
pub(crate) use version::{RefKey, Version, VersionEdit};
pub(crate) use writer::{Heir, Heirs, RunWriter, WrittenRun};
