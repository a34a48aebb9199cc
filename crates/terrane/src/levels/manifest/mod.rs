//! The durable log of the database's structure, and the superblock that names its current file.
//!
//! Appending writes one frame into prewritten space and flushes it. When the file has grown to a multiple of its
//! checkpoint, a new one is written, and the superblock is replaced to name it; every open does the same, so that what
//! recovery read is durable before anything is built on it.
//!
//! # Concurrency
//! One mutex; appenders queue, each for the time of a flush.
//!
//! # After a crash
//! * The group that was being appended has happened or it has not. Its frame is bad: not happened. Its frame is bad and
//!   a later frame, or the seal behind it, proves that it was durable: corruption.
//! * The superblock names the old manifest or the new one; both say the same, for nothing is appended to the new one
//!   before the superblock that names it is durable. The other one is removed at the next open.
//!
//! # After a failed call
//! A failed write leaves a frame that might be whole. It is overwritten with zeros and flushed, so that the group has
//! not happened and can be tried again. If that fails too, or if a flush fails, the poison is set.

mod file;
mod superblock;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use terrane_base::{Error, ErrorKind, Result};
use terrane_format::manifest::Edit;
use terrane_format::superblock::{Features, Superblock};
use terrane_media::Media;

use super::state::DbState;
use super::{Poison, names};
use file::{ManifestFile, ManifestReader};

/// A manifest below this size is not replaced.
const MIN_ROLL_BYTES: u64 = 1 << 20;
/// A replacement that failed (for want of space, say) is tried again after this much growth.
const RETRY_BYTES: u64 = 256 << 10;

/// The manifest of an open database.
#[derive(Debug)]
pub(crate) struct ManifestStore {
    media: Arc<dyn Media>,
    dir: PathBuf,
    poison: Arc<Poison>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    superblock: Superblock,
    state: DbState,
    file: ManifestFile,
    /// The file is replaced when it reaches this size.
    roll_at: u64,
    min_roll: u64,
}

impl ManifestStore {
    /// Whether `dir` holds a database.
    pub(crate) fn exists(media: &dyn Media, dir: &Path) -> Result<bool> {
        media.exists(&dir.join(names::SUPER))
    }

    /// Makes a new database in the existing, durable directory `dir`: an empty state and the superblock.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if there is a superblock already; [`ErrorKind::Corruption`] if there is none but data
    /// files are there, which no interrupted creation leaves behind.
    pub(crate) fn create(
        media: Arc<dyn Media>,
        dir: &Path,
        uuid: [u8; 16],
        poison: Arc<Poison>,
    ) -> Result<Self> {
        if Self::exists(&*media, dir)? {
            return Err(Error::new(ErrorKind::AlreadyExists, "there is a database already").with_file(dir));
        }
        if media.list(dir)?.iter().any(|e| names::data_number(&e.name).is_some()) {
            return Err(Error::corruption("there are data files, but no superblock")
                .with_file(dir)
                .with_hint("restore the file SUPER from a backup; nothing was changed"));
        }
        let superblock = Superblock {
            features: Features::default(),
            uuid,
            manifest: 0,
            created: media.wall_time(),
            later: Vec::new(),
        };
        Self::start(media, dir, poison, superblock, DbState::default())
    }

    /// Opens a database: reads the state, and makes what was read durable, as a fresh manifest, before returning, so
    /// that space which it does not refer to may be reused.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no superblock.
    pub(crate) fn open(media: Arc<dyn Media>, dir: &Path, poison: Arc<Poison>) -> Result<Self> {
        let superblock = superblock::read(&*media, dir)?;
        superblock.check_writable().map_err(|e| e.with_file(dir.join(names::SUPER)))?;
        let state = read(&*media, dir, &superblock)?;
        Self::start(media, dir, poison, superblock, state)
    }

    /// Makes `state` durable as the next manifest and removes what earlier ones left.
    fn start(
        media: Arc<dyn Media>,
        dir: &Path,
        poison: Arc<Poison>,
        superblock: Superblock,
        state: DbState,
    ) -> Result<Self> {
        let (superblock, file) = replace(&*media, dir, &poison, &superblock, &state)?;
        for entry in media.list(dir)? {
            let stale = names::manifest_number(&entry.name).is_some_and(|n| n != superblock.manifest);
            if stale || entry.name == names::SUPER_NEXT {
                media.remove_file(&dir.join(&entry.name))?;
            }
        }
        let roll_at = roll_at(MIN_ROLL_BYTES, &file);
        let inner = Mutex::new(Inner { superblock, state, file, roll_at, min_roll: MIN_ROLL_BYTES });
        Ok(ManifestStore { media, dir: dir.to_owned(), poison, inner })
    }

    /// Makes an edit group durable.
    ///
    /// # Errors
    /// As [`DbState::apply`] for edits that make no sense, and those of the medium. The group has then not happened and
    /// may be tried again; but with [`ErrorKind::Poisoned`] it is in doubt until the database is reopened.
    pub(crate) fn append(&self, edits: &[Edit]) -> Result<()> {
        let mut inner = self.inner.lock();
        self.poison.check()?;
        if inner.file.bytes() >= inner.roll_at {
            self.roll(&mut inner)?;
        }
        let applied = inner.state.apply_undoable(edits)?;
        let appended = inner.file.append(edits, &self.poison);
        if appended.is_err() {
            inner.state.undo(applied);
        }
        appended
    }

    /// Replaces the file by a fresh checkpoint. Where that cannot be done now the old one goes on.
    fn roll(&self, inner: &mut Inner) -> Result<()> {
        match replace(&*self.media, &self.dir, &self.poison, &inner.superblock, &inner.state) {
            Ok((superblock, file)) => {
                let old = self.dir.join(names::manifest(inner.superblock.manifest));
                inner.roll_at = roll_at(inner.min_roll, &file);
                inner.superblock = superblock;
                inner.file = file;
                // If this fails, the next open removes it.
                let _ = self.media.remove_file(&old);
                Ok(())
            }
            Err(e) if self.poison.is_set() => Err(e),
            Err(_) => {
                inner.roll_at = inner.file.bytes() + RETRY_BYTES;
                Ok(())
            }
        }
    }

    /// Looks at the state, holding the manifest's lock: `f` must not append.
    pub(crate) fn with_state<R>(&self, f: impl FnOnce(&DbState) -> R) -> R {
        f(&self.inner.lock().state)
    }

    /// The superblock.
    pub(crate) fn superblock(&self) -> Superblock {
        self.inner.lock().superblock.clone()
    }

    /// Bytes written to the current manifest file.
    pub(crate) fn bytes(&self) -> u64 {
        self.inner.lock().file.bytes()
    }
}

fn roll_at(min: u64, file: &ManifestFile) -> u64 {
    min.max(2 * file.bytes())
}

/// Writes `state` as the manifest behind that of `old` and makes it current.
fn replace(
    media: &dyn Media,
    dir: &Path,
    poison: &Poison,
    old: &Superblock,
    state: &DbState,
) -> Result<(Superblock, ManifestFile)> {
    let superblock = Superblock { manifest: old.manifest + 1, ..old.clone() };
    let path = dir.join(names::manifest(superblock.manifest));
    let made = ManifestFile::create(media, &path, &superblock, state, poison).and_then(|file| {
        // The name before the superblock that relies on it.
        media.sync_dir(dir).map_err(|e| poison.set(&e))?;
        superblock::write(media, dir, &superblock, poison)?;
        Ok(file)
    });
    if made.is_err() && !poison.is_set() {
        let _ = media.remove_file(&path);
    }
    Ok((superblock, made?))
}

/// The state that the current manifest describes.
fn read(media: &dyn Media, dir: &Path, superblock: &Superblock) -> Result<DbState> {
    let path = dir.join(names::manifest(superblock.manifest));
    let mut reader = ManifestReader::open(media, &path, superblock)?;
    let mut state = DbState::default();
    let mut complete = false;
    while let Some(edits) = reader.next_group()? {
        let damaged = |e: Error| {
            let e = if e.kind() == ErrorKind::NewerFormat { e } else { Error::corruption(e.to_string()) };
            e.context("reading the manifest").with_file(&path)
        };
        let edits = edits.map_err(damaged)?;
        state.apply(&edits).map_err(damaged)?;
        complete |= edits.last() == Some(&Edit::CheckpointEnd);
    }
    if !complete {
        return Err(Error::corruption("the manifest's checkpoint is cut short").with_file(path));
    }
    Ok(state)
}
