//! Open files, mapped regions and locks of a simulated machine.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_base::{Error, Result};

use super::call::fault_error;
use super::disk::{self, Disk, Effect};
use super::fault::Fault;
use super::inode::{Change, flip};
use super::{OpKind, SimMedia};
use crate::error::{check_alignment, check_region, short_file};
use crate::{File, LockGuard, OpenMode, Region, SECTOR};

/// A file kept in existence by being open.
pub(super) struct Handle {
    pub(super) machine: Arc<SimMedia>,
    pub(super) inode: u64,
    pub(super) path: PathBuf,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.machine.close_file(self.inode);
    }
}

pub(super) struct SimFile {
    handle: Handle,
    mode: OpenMode,
}

impl SimFile {
    /// A handle that [`SimMedia`] has counted in.
    pub(super) fn new(machine: Arc<SimMedia>, inode: u64, path: &Path, mode: OpenMode) -> Self {
        SimFile { handle: Handle { machine, inode, path: path.to_owned() }, mode }
    }

    fn change(&self, kind: OpKind, change: Change) -> Result<()> {
        if !self.mode.write {
            return Err(Error::invalid("the file is open for reading only").with_file(self.path()));
        }
        let effect = Effect::Content(self.handle.inode, change);
        self.handle.machine.change(kind, self.path(), |_| Ok(effect.clone()))
    }
}

impl File for SimFile {
    fn path(&self) -> &Path {
        &self.handle.path
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        check_alignment(self.path(), self.align(), buf, offset)?;
        let (inode, path) = (self.handle.inode, self.path());
        self.handle.machine.read(inode, path, buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        check_alignment(self.path(), self.align(), buf, offset)?;
        self.change(OpKind::Write, disk::write(offset, buf)).map_err(|e| e.with_offset(offset))
    }

    fn sync(&self) -> Result<()> {
        let inode = self.handle.inode;
        self.handle.machine.change(OpKind::Sync, self.path(), |_| Ok(Effect::Sync(inode)))
    }

    fn len(&self) -> Result<u64> {
        self.handle.machine.file_len(self.handle.inode, self.path())
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.change(OpKind::SetLen, Change::SetLen(len))
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.change(OpKind::Allocate, Change::Allocate(offset, len))
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        let file_len = self.len()?;
        let len = len.min(file_len.saturating_sub(offset));
        self.change(OpKind::Punch, Change::Punch(offset, len))
    }

    fn align(&self) -> usize {
        if self.mode.direct { SECTOR } else { 1 }
    }
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimFile({})", self.path().display())
    }
}

/// A mapped file; its length is fixed while it is mapped.
pub(super) struct SimRegion {
    handle: Handle,
    len: usize,
}

impl SimRegion {
    /// A handle that [`SimMedia`] has counted in.
    pub(super) fn new(machine: Arc<SimMedia>, inode: u64, path: &Path, len: usize) -> Self {
        SimRegion { handle: Handle { machine, inode, path: path.to_owned() }, len }
    }
}

impl Region for SimRegion {
    fn len(&self) -> usize {
        self.len
    }

    fn store(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let h = &self.handle;
        check_region(&h.path, self.len, offset, bytes.len())?;
        let mut words = Vec::with_capacity(bytes.len().next_multiple_of(8));
        words.extend_from_slice(bytes);
        words.resize(bytes.len().next_multiple_of(8), 0);
        let words: Arc<[u8]> = words.into();
        let plan = |_: &Disk| Ok(Effect::Store(h.inode, offset as u64, words.clone()));
        h.machine.change(OpKind::Store, &h.path, plan)
    }

    fn load(&self, offset: usize, buf: &mut [u8]) -> Result<()> {
        let h = &self.handle;
        check_region(&h.path, self.len, offset, buf.len())?;
        h.machine.load(h.inode, buf, offset as u64);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        let h = &self.handle;
        h.machine.change(OpKind::Sync, &h.path, |_| Ok(Effect::Sync(h.inode)))
    }
}

impl fmt::Debug for SimRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimRegion({}, {} bytes)", self.handle.path.display(), self.len)
    }
}

pub(super) struct SimLock {
    machine: Arc<SimMedia>,
    path: PathBuf,
}

impl SimLock {
    /// A lock that is entered in the machine's table.
    pub(super) fn new(machine: Arc<SimMedia>, path: PathBuf) -> Self {
        SimLock { machine, path }
    }
}

impl LockGuard for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.machine.state.lock().locks.remove(&self.path);
    }
}

impl fmt::Debug for SimLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimLock({})", self.path.display())
    }
}

impl SimMedia {
    fn read(&self, inode: u64, path: &Path, buf: &mut [u8], offset: u64) -> Result<()> {
        let mut s = self.state.lock();
        s.reads += 1;
        s.tick();
        let fault = s.fault.as_mut().and_then(|f| f.check(OpKind::Read, path));
        let wanted = buf.len();
        let Some(file) = s.disk.inode(inode) else { return Err(short_file(path, offset, wanted, 0)) };
        let end = offset.checked_add(wanted as u64).filter(|end| *end <= file.len());
        if end.is_none() && matches!(fault, None | Some(Fault::BitFlip)) {
            return Err(short_file(path, offset, wanted, file.len()));
        }
        let part = match fault {
            None | Some(Fault::BitFlip) => wanted,
            Some(Fault::Short) => wanted / 2,
            Some(Fault::Io | Fault::NoSpace) => 0,
        };
        file.current().read(offset, &mut buf[..part]);
        match fault {
            None => Ok(()),
            Some(Fault::BitFlip) => {
                flip(buf, s.rng.below(wanted as u64 * 8));
                Ok(())
            }
            Some(fault) => Err(fault_error(fault, OpKind::Read, path).with_offset(offset)),
        }
    }

    pub(super) fn load(&self, inode: u64, buf: &mut [u8], offset: u64) {
        match self.state.lock().disk.inode(inode) {
            Some(file) => file.current().read(offset, buf),
            None => buf.fill(0),
        }
    }

    /// Tells the bytes of a file that are not zero, by pages.
    pub(super) fn load_written(&self, inode: u64, mut tell: impl FnMut(u64, &[u8])) {
        if let Some(file) = self.state.lock().disk.inode(inode) {
            file.current().written().for_each(|(offset, page)| tell(offset, page));
        }
    }

    fn file_len(&self, inode: u64, path: &Path) -> Result<u64> {
        self.look(OpKind::Look, path, |s| Ok(s.disk.inode(inode).map_or(0, |i| i.len())))
    }

    fn close_file(&self, inode: u64) {
        let mut s = self.state.lock();
        if let Some(count) = s.handles.get_mut(&inode) {
            *count -= 1;
            if *count == 0 {
                s.handles.remove(&inode);
                let open = s.open_files();
                // Unsharing the disk from its images for nothing would make every close cost a copy.
                if !s.disk.is_named(inode) {
                    Arc::make_mut(&mut s.disk).collect(&open);
                }
            }
        }
    }
}
