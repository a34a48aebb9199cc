//! Reading and replacing the file `SUPER`.

use std::path::Path;

use terrane_base::{Error, ErrorKind, Result};
use terrane_format::superblock::{MAX_SUPERBLOCK, Superblock};
use terrane_media::{Media, OpenMode};

use crate::levels::{Poison, names};

const CREATE: OpenMode = OpenMode { write: true, create_new: true, direct: false };

/// Reads `SUPER`.
pub(super) fn read(media: &dyn Media, dir: &Path) -> Result<Superblock> {
    let path = dir.join(names::SUPER);
    let file = media.open(&path, OpenMode::READ).map_err(|e| match e.kind() {
        ErrorKind::NotFound => Error::new(ErrorKind::NotFound, "there is no database").with_file(dir),
        _ => e,
    })?;
    let len = file.len()?;
    if len > MAX_SUPERBLOCK as u64 {
        return Err(Error::corruption(format!("the superblock has {len} bytes")).with_file(path));
    }
    let mut bytes = vec![0; len as usize];
    file.read_at(&mut bytes, 0)?;
    Superblock::decode(&bytes).map_err(|e| e.with_file(path))
}

/// Replaces `SUPER`; durable on return.
pub(super) fn write(media: &dyn Media, dir: &Path, superblock: &Superblock, poison: &Poison) -> Result<()> {
    let (next, path) = (dir.join(names::SUPER_NEXT), dir.join(names::SUPER));
    if media.exists(&next)? {
        media.remove_file(&next)?;
    }
    let file = media.open(&next, CREATE)?;
    file.write_at(&superblock.encode(), 0)?;
    file.sync().map_err(|e| poison.set(&e))?;
    // A rename that the file system had no room for has not happened. After any other failure it is in doubt which
    // manifest the next open will read.
    media.rename(&next, &path).map_err(|e| match e.kind() {
        ErrorKind::OutOfSpace => e,
        _ => poison.set(&e),
    })?;
    media.sync_dir(dir).map_err(|e| poison.set(&e))
}
