//! The durable log of the database's structure, and the superblock that names its current file.
//!
//! Appending writes one frame into prewritten space and flushes it. Groups that arrive while a flush is under way share
//! the next frame and its flush. When the file has grown to a multiple of its checkpoint, a new one is written, and the
//! superblock is replaced to name it; every open does the same, so that what recovery read is durable before anything is
//! built on it.
//!
//! # Concurrency
//! `waiting` holds the groups that nobody writes yet, in order of arrival, and is held for moments only; `inner` is held
//! across the write. Who gets `inner` and finds its group still waiting leads: it takes along what waits, in order, as far
//! as one frame goes, and tells each of them the outcome before it lets go of `inner`. So a group waits for at most the
//! flush under way and its own, and nobody is woken but by the lock. Order: `inner` before `waiting`.
//!
//! Groups that share a frame share its fate: a crash keeps all of them or none, and when the write or the flush fails all
//! of them get that error. A group that makes no sense fails alone and leaves nothing behind.
//!
//! # After a crash
//! * The groups that were being appended have all happened or none has. Their frame is bad: not happened. It is bad and a
//!   later frame, or the seal behind it, proves that it was durable: corruption.
//! * The superblock names the old manifest or the new one; both say the same, for nothing is appended to the new one
//!   before the superblock that names it is durable. The other one is removed at the next open.
//!
//! # After a failed call
//! A failed write leaves a frame that might be whole. It is overwritten with zeros and flushed, so that its groups have
//! not happened and can be tried again. If that fails too, or if a flush fails, the poison is set.

mod file;
mod superblock;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, MutexGuard};
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

/// Edits of groups that share a frame; a larger group has one of its own. Far below what a frame holds.
const SHARED_EDITS: usize = 512;

/// The manifest of an open database.
#[derive(Debug)]
pub(crate) struct ManifestStore {
    media: Arc<dyn Media>,
    dir: PathBuf,
    poison: Arc<Poison>,
    inner: Mutex<Inner>,
    waiting: Mutex<VecDeque<Arc<Group>>>,
}

/// Edits that happen together or not at all, and what became of them.
#[derive(Debug)]
struct Group {
    edits: Vec<Edit>,
    outcome: OnceLock<Result<()>>,
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
    /// that space which it does not refer to may be reused. One that was never open has no memory, whatever an attempt has noted: the
    /// next may want another medium.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no superblock.
    pub(crate) fn open(media: Arc<dyn Media>, dir: &Path, poison: Arc<Poison>) -> Result<Self> {
        let superblock = superblock::read(&*media, dir)?;
        superblock.check_writable().map_err(|e| e.with_file(dir.join(names::SUPER)))?;
        let mut state = read(&*media, dir, &superblock)?;
        if state.log.generation == 0 {
            state.memory = None;
        }
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
        Ok(ManifestStore { media, dir: dir.to_owned(), poison, inner, waiting: Mutex::default() })
    }

    /// Makes an edit group durable, with those of others that arrived meanwhile.
    ///
    /// # Errors
    /// As [`DbState::apply`] for edits that make no sense, and those of the medium. The group has then not happened and
    /// may be tried again; but with [`ErrorKind::Poisoned`] it is in doubt until the database is reopened.
    pub(crate) fn append(&self, edits: &[Edit]) -> Result<()> {
        let own = Arc::new(Group { edits: edits.to_vec(), outcome: OnceLock::new() });
        self.waiting.lock().push_back(own.clone());
        let inner = self.inner.lock();
        if own.outcome.get().is_none() {
            self.lead(inner, &own);
        }
        // Only a leader that panicked leaves its group without.
        own.outcome.get().cloned().unwrap_or_else(|| {
            Err(self
                .poison
                .set(&Error::new(ErrorKind::Poisoned, "a thread died while it wrote the manifest")))
        })
    }

    /// Writes what waits, frame by frame, until `own` is among it.
    fn lead(&self, mut inner: MutexGuard<'_, Inner>, own: &Group) {
        while own.outcome.get().is_none() {
            let groups = self.next_frame();
            if groups.is_empty() {
                return;
            }
            self.write(&mut inner, &groups);
        }
    }

    /// Takes the groups that come next and fit a frame.
    fn next_frame(&self) -> Vec<Arc<Group>> {
        let mut waiting = self.waiting.lock();
        let mut count = 0;
        let mut groups = Vec::new();
        while let Some(group) = waiting.front() {
            count += group.edits.len();
            if count > SHARED_EDITS && !groups.is_empty() {
                break;
            }
            groups.extend(waiting.pop_front());
        }
        groups
    }

    /// Makes the groups durable by one frame and tells each of them the outcome.
    fn write(&self, inner: &mut Inner, groups: &[Arc<Group>]) {
        let tell = |group: &Group, outcome: Result<()>| {
            let told = group.outcome.set(outcome).is_ok();
            debug_assert!(told, "a group of edits was written twice");
        };
        let ready = self.poison.check().and_then(|()| match inner.file.bytes() >= inner.roll_at {
            true => self.roll(inner),
            false => Ok(()),
        });
        if let Err(e) = ready {
            return groups.iter().for_each(|g| tell(g, Err(e.clone())));
        }
        let mut edits = Vec::new();
        let mut applied = Vec::with_capacity(groups.len());
        for group in groups {
            let sound = group.edits.iter().try_for_each(Edit::check_bounds);
            match sound.and_then(|()| inner.state.apply_undoable(&group.edits)) {
                Ok(undo) => {
                    edits.extend_from_slice(&group.edits);
                    applied.push((group, undo));
                }
                Err(e) => tell(group, Err(e)),
            }
        }
        if applied.is_empty() {
            return;
        }
        match inner.file.append(&edits, &self.poison) {
            Ok(()) => applied.into_iter().for_each(|(group, _)| tell(group, Ok(()))),
            // The newest first, as they were applied one on another.
            Err(e) => applied.into_iter().rev().for_each(|(group, undo)| {
                inner.state.undo(undo);
                tell(group, Err(e.clone()));
            }),
        }
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
