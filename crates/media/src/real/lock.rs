//! One owner per database: an advisory lock on a file, held by the process and released by the kernel with it.
//!
//! Where `flock` is made of record locks (NFS), it does not exclude the process itself, and closing any descriptor of the
//! file releases it. So this process keeps a list of the files it has locked and looks there before it opens one.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use terrane_base::{Error, ErrorKind, Result};

use super::file::{RealFile, uninterrupted};
use crate::LockGuard;
use crate::error::io_error;

/// Device and inode of each file that this process has locked.
static HELD: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

pub(super) struct RealLock {
    /// `None` only while it is being dropped.
    file: Option<RealFile>,
    id: (u64, u64),
    path: PathBuf,
}

impl RealLock {
    pub(super) fn take(path: &Path) -> Result<Self> {
        let mut held = HELD.lock();
        if let Ok(stat) = rustix::fs::stat(path)
            && held.contains(&(stat.st_dev, stat.st_ino))
        {
            return Err(locked("it is open in this process already", path));
        }
        loop {
            let file = RealFile::open_or_create(path)?;
            match uninterrupted(|| rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(locked("another process has it open", path)),
                Err(e) => return Err(io_error(e.into(), "lock", path)),
            }
            let stat = rustix::fs::fstat(&file).map_err(|e| io_error(e.into(), "stat", path))?;
            let id = (stat.st_dev, stat.st_ino);
            // Its last owner may have removed the file between our opening and locking it: then the lock is on a file that
            // nobody else will find.
            match rustix::fs::stat(path) {
                Ok(now) if (now.st_dev, now.st_ino) == id => {
                    held.insert(id);
                    return Ok(RealLock { file: Some(file), id, path: path.to_owned() });
                }
                Ok(_) | Err(Errno::NOENT) => {}
                Err(e) => return Err(io_error(e.into(), "stat", path)),
            }
        }
    }
}

impl LockGuard for RealLock {}

impl Drop for RealLock {
    fn drop(&mut self) {
        let mut held = HELD.lock();
        // Closing releases the lock.
        self.file = None;
        held.remove(&self.id);
    }
}

impl fmt::Debug for RealLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RealLock({})", self.path.display())
    }
}

fn locked(why: &str, path: &Path) -> Error {
    Error::new(ErrorKind::Locked, why)
        .with_file(path)
        .with_hint("a database has one owner: close it there first (`fuser` on this file names the process)")
}
