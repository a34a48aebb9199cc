//! The durable log of the database's structure.

use std::path::Path;
use std::sync::Arc;

use terrane_base::Result;
use terrane_format::manifest::Edit;
use terrane_format::superblock::Superblock;
use terrane_media::Media;

use super::{DbState, Poison};

/// The manifest of an open database.
#[derive(Debug)]
pub(crate) struct ManifestStore {}

impl ManifestStore {
    /// Makes a new database in the existing, durable directory `dir`: an empty state and the superblock.
    ///
    /// # Errors
    /// `AlreadyExists` if there is a superblock already.
    pub(crate) fn create(
        _media: Arc<dyn Media>,
        _dir: &Path,
        _uuid: [u8; 16],
        _poison: Arc<Poison>,
    ) -> Result<Self> {
        todo!()
    }

    /// Opens a database: reads the state, and makes what was read durable (as a fresh manifest) before returning, so
    /// that space which it does not refer to may be reused.
    ///
    /// # Errors
    /// `NotFound` if there is no superblock.
    pub(crate) fn open(_media: Arc<dyn Media>, _dir: &Path, _poison: Arc<Poison>) -> Result<Self> {
        todo!()
    }

    /// Whether `dir` holds a database.
    pub(crate) fn exists(_media: &dyn Media, _dir: &Path) -> Result<bool> {
        todo!()
    }

    /// Makes an edit group durable. On an error it has not happened, unless the error is `Poisoned`: then it is in doubt.
    pub(crate) fn append(&self, _edits: &[Edit]) -> Result<()> {
        todo!()
    }

    /// Looks at the state (holding the manifest's lock).
    pub(crate) fn with_state<R>(&self, _f: impl FnOnce(&DbState) -> R) -> R {
        todo!()
    }

    /// The superblock as it was when the database was opened.
    pub(crate) fn superblock(&self) -> Superblock {
        todo!()
    }

    /// Bytes of the current manifest file.
    pub(crate) fn bytes(&self) -> u64 {
        todo!()
    }
}
