//! Creating and destroying a database's directory.

use std::path::Path;
use std::sync::Arc;

use terrane_base::{Error, Result};
use terrane_media::{DirEntry, LockGuard, Media};

use crate::levels::{ManifestStore, Poison};
use crate::options::Options;
use crate::recovery::not_a_database;

/// Name of the lock file.
const LOCK: &str = "LOCK";
/// Name of the persistent memory, unless another one is asked for.
pub(crate) const MEMORY: &str = "pmem";
/// What a database's files are called, besides the lock: exact names, and prefixes followed by digits.
const NAMES: [&str; 6] = ["SUPER", "SUPER.tmp", "tail", MEMORY, "pmem.new", "pmem.try"];
const PREFIXES: [&str; 4] = ["data-", "log-", "manifest-", "pmem.lost-"];

fn is_ours(name: &str) -> bool {
    NAMES.contains(&name) || PREFIXES.iter().any(|p| is_numbered(p, name))
}

fn is_numbered(prefix: &str, name: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Makes sure that `dir` holds a database, or one that was never open, takes its lock and returns it.
pub(crate) fn prepare(shared: &Arc<dyn Media>, dir: &Path, options: &Options) -> Result<Box<dyn LockGuard>> {
    let media = &**shared;
    if !media.exists(dir)? {
        if !options.makes_one() {
            return Err(not_a_database(dir));
        }
        make_dir(media, dir)?;
    }
    let exists = ManifestStore::exists(media, dir)?;
    if !exists && !options.makes_one() {
        return Err(not_a_database(dir));
    }
    let lock = media.lock(&dir.join(LOCK))?;
    if ManifestStore::exists(media, dir)? {
        return Ok(lock);
    }
    // No creation that was cut short leaves log files or a memory behind, and they may hold all there is.
    let has_commits = |e: &DirEntry| is_numbered("log-", &e.name) || e.name == MEMORY;
    if let Some(left) = media.list(dir)?.into_iter().find(has_commits) {
        return Err(Error::corruption(format!("there is {}, but no superblock", left.name))
            .with_file(dir.join("SUPER"))
            .with_hint("restore the file SUPER from a backup; nothing was changed"));
    }
    // Even a directory that was there: an attempt before this one may have made it and failed here.
    media.sync_dir(parent(dir))?;
    let uuid = uuid(media);
    drop(ManifestStore::create(shared.clone(), dir, uuid, Arc::new(Poison::new()))?);
    Ok(lock)
}

/// Makes a directory, and those above it that are missing; all of them durable.
fn make_dir(media: &dyn Media, dir: &Path) -> Result<()> {
    let mut missing = Vec::new();
    for d in dir.ancestors().filter(|d| !d.as_os_str().is_empty()) {
        if media.exists(d)? {
            break;
        }
        missing.push(d);
    }
    media.create_dir_all(dir)?;
    missing.into_iter().rev().try_for_each(|d| media.sync_dir(parent(d)))
}

/// The directory that holds the name of `dir`.
fn parent(dir: &Path) -> &Path {
    match dir.parent() {
        Some(p) if p.as_os_str().is_empty() => Path::new("."),
        Some(p) => p,
        None => dir,
    }
}

/// A random identity.
fn uuid(media: &dyn Media) -> [u8; 16] {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&media.entropy().to_le_bytes());
    id[8..].copy_from_slice(&media.entropy().to_le_bytes());
    id
}

/// Removes the database in `dir`.
pub(crate) fn destroy(media: &dyn Media, dir: &Path) -> Result<()> {
    if !media.exists(dir)? || !ManifestStore::exists(media, dir)? {
        return Err(not_a_database(dir));
    }
    let lock = media.lock(&dir.join(LOCK))?;
    // The manifest goes first: half a destroyed database must not open. The superblock goes last: it must be possible to
    // destroy the rest.
    let ours = |e: &&DirEntry| is_ours(&e.name) && !e.is_dir && e.name != "SUPER";
    let (manifests, others): (Vec<_>, Vec<_>) =
        media.list(dir)?.into_iter().filter(|e| ours(&e)).partition(|e| e.name.starts_with("manifest-"));
    for group in [manifests, others] {
        for entry in group {
            media.remove_file(&dir.join(&entry.name))?;
        }
        media.sync_dir(dir)?;
    }
    media.remove_file(&dir.join("SUPER"))?;
    media.remove_file(&dir.join(LOCK))?;
    drop(lock);
    media.sync_dir(dir)?;
    if media.list(dir)?.is_empty() {
        media.remove_dir(dir)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_databases_own_names_are_recognised() {
        for ours in ["SUPER", "data-000001", "log-12", "manifest-000003", "tail"] {
            assert!(is_ours(ours), "{ours}");
        }
        for other in ["data-", "data-x", "notes.txt", "log", "SUPER2", "LOCK"] {
            assert!(!is_ours(other), "{other}");
        }
    }
}
