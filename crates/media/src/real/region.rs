//! Mapped files.
//!
//! # Concurrency
//! Every access is made of relaxed atomic loads and stores of 8-byte words, so threads may race on a region without
//! undefined behaviour. Nothing here orders one word before another: whoever publishes a range does that by an atomic of
//! its own.

use std::ffi::c_void;
use std::fmt;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};
use terrane_base::{Error, ErrorKind, Result};

use super::file::RealFile;
use crate::error::{check_region, io_error};
use crate::pmem::copy;
use crate::pmem::writeback::WriteBack;
use crate::{File, Region};

/// Gives a file that is to be mapped all of its space: it may have been copied sparsely, and a store to a hole on a full device would be a
/// fault, not an error. Changes no byte.
pub(super) fn fill_holes(file: impl AsFd, len: u64, path: &Path) -> Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, len) {
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        Err(e) => Err(io_error(e.into(), "allocate", path)),
    }
}

pub(super) struct RealRegion {
    /// Start of `len` mapped bytes.
    base: NonNull<u8>,
    len: usize,
    path: PathBuf,
}

// SAFETY: the mapping belongs to this value alone, and is accessed through atomics only.
unsafe impl Send for RealRegion {}
// SAFETY: as above.
unsafe impl Sync for RealRegion {}

impl RealRegion {
    /// Maps a file of `len` bytes, a positive multiple of 8; makes it anew unless it has just this length.
    pub(super) fn map(path: &Path, len: usize) -> Result<Self> {
        let file = RealFile::open_or_create(path)?;
        if file.len()? == len as u64 {
            fill_holes(&file, len as u64, path)?;
        } else {
            // The length is right only when all zeros are there, so an interrupted preparation is done again.
            file.set_len(0)?;
            file.write_zeros(0, len as u64)?;
            file.sync()?;
        }
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let mapped = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                &file,
                0,
            )
        };
        let base = mapped.map_err(|e| io_error(e.into(), "map", path))?;
        let base = NonNull::new(base.cast())
            .ok_or_else(|| Error::new(ErrorKind::Io, "map failed: no address").with_file(path))?;
        Ok(RealRegion { base, len, path: path.to_owned() })
    }

    /// Where `len` bytes from `offset` lie, padded to whole words.
    fn place(&self, offset: usize, len: usize) -> Result<*mut u8> {
        check_region(&self.path, self.len, offset, len)?;
        // SAFETY: the offset lies within the mapping.
        Ok(unsafe { self.base.as_ptr().add(offset) })
    }
}

impl Region for RealRegion {
    fn len(&self) -> usize {
        self.len
    }

    fn store(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let at = self.place(offset, bytes.len())?;
        // SAFETY: the range lies within the mapping and begins at a word.
        unsafe { copy::copy_in(at, bytes, WriteBack::Nothing) };
        copy::ask_ahead(at, bytes.len());
        Ok(())
    }

    fn load(&self, offset: usize, buf: &mut [u8]) -> Result<()> {
        let at = self.place(offset, buf.len())?;
        // SAFETY: the range lies within the mapping and begins at a word.
        unsafe { copy::copy_out(at, buf) };
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        // SAFETY: the range is this value's mapping.
        unsafe { rustix::mm::msync(self.base.as_ptr().cast::<c_void>(), self.len, MsyncFlags::SYNC) }
            .map_err(|e| io_error(e.into(), "sync", &self.path))
    }
}

impl Drop for RealRegion {
    fn drop(&mut self) {
        // SAFETY: the range is this value's mapping, and nobody can reach it any more.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast::<c_void>(), self.len) };
        debug_assert!(unmapped.is_ok(), "unmapping {}: {unmapped:?}", self.path.display());
    }
}

impl fmt::Debug for RealRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RealRegion({}, {} bytes)", self.path.display(), self.len)
    }
}
