//! Directories whose names are made durable: their descriptors stay open. A process that has none to spare for a moment could not say
//! otherwise whether a name is durable, and nothing could be written any more, though nothing has failed.
//!
//! An error of the device is told to who had the directory open before it, too.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::file::uninterrupted;

/// So many are kept. A database has one, and its parents while it is made.
const MOST: usize = 16;

#[derive(Debug, Default)]
pub(super) struct Dirs(Mutex<HashMap<PathBuf, Arc<Dir>>>);

#[derive(Debug)]
struct Dir {
    fd: OwnedFd,
    /// Device and inode: there may be another one of its name by now.
    id: (u64, u64),
}

impl Dirs {
    pub(super) fn sync(&self, path: &Path) -> Result<(), Errno> {
        let stat = rustix::fs::stat(path)?;
        let id = (stat.st_dev, stat.st_ino);
        let known = self.0.lock().get(path).filter(|dir| dir.id == id).cloned();
        let dir = match known {
            Some(dir) => dir,
            None => self.open(path)?,
        };
        uninterrupted(|| rustix::fs::fsync(&dir.fd))
    }

    fn open(&self, path: &Path) -> Result<Arc<Dir>, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&fd)?;
        let dir = Arc::new(Dir { fd, id: (stat.st_dev, stat.st_ino) });
        let mut known = self.0.lock();
        if known.len() >= MOST
            && let Some(another) = known.keys().next().cloned()
        {
            known.remove(&another);
        }
        known.insert(path.to_owned(), dir.clone());
        Ok(dir)
    }
}
