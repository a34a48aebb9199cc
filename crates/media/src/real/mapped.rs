//! A mapping of a file: where persistent memory and regions lie.
//!
//! # Concurrency
//! Who stores to it and loads from it, and how, is its owners' business: it hands out addresses.

use std::fmt;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MsyncFlags, ProtFlags};
use terrane_base::{Error, ErrorKind, Result};

use super::file::fallocate;
use crate::error::{check_region, io_error};
use crate::mapping::{HUGE_PAGE, Mapping};
use crate::pmem::not_dax;

/// What a thread brings in at a time of a mapping. In pages of 4 KiB it takes 3 ms or so.
pub(super) const PART: usize = 32 << 20;
/// So many threads bring in a large mapping at most, and no more than there are processors.
const MOST_THREADS: usize = 16;

/// What `st_blocks` counts in, whatever the file system's own blocks are.
const STAT_BLOCK: u64 = 512;

/// Gives a file that is to be mapped all of its space: it may have been copied sparsely, and a store to a hole on a full device would be a
/// fault, not an error. Changes no byte.
pub(super) fn fill_holes(file: impl AsFd, len: u64, path: &Path) -> Result<()> {
    if has_all_space(&file, len) {
        return Ok(());
    }
    let _whatever_the_file_system_can = fallocate(&file, FallocateFlags::empty(), 0, len)
        .map_err(|e| io_error(e.into(), "allocate", path))?;
    Ok(())
}

/// Whether a file is known to have no holes, which is found out in a fraction of the time that tmpfs takes to allocate what is there.
/// Space that was allocated and never written may be called a hole all the same; and a file system that knows of no holes calls everything
/// data, so the space in use has a say too.
pub(super) fn has_all_space(file: impl AsFd, len: u64) -> bool {
    let used = rustix::fs::fstat(&file)
        .map_or(0, |s| u64::try_from(s.st_blocks).unwrap_or(0).saturating_mul(STAT_BLOCK));
    used >= len && rustix::fs::seek(&file, SeekFrom::Hole(0)) == Ok(len)
}

/// Mapped for reading and writing until it is dropped.
pub(super) struct Mapped {
    /// The addresses: those of the file, and those behind it.
    room: Mapping,
    len: usize,
    synced: bool,
    path: PathBuf,
}

impl Mapped {
    /// The first `len` bytes of a file, shared and brought in, and `behind` them as many that may be read; `synced` if what reaches the
    /// memory is to need nothing of the file system to be durable.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] where that cannot be; [`ErrorKind::Corruption`] if the memory is damaged; [`ErrorKind::Io`] if
    /// the process may not have as many addresses, or some of it cannot be brought in: the file is shorter, its device cannot be
    /// read, or there is no memory for it.
    pub(super) fn new(file: impl AsFd, path: &Path, len: usize, behind: usize, synced: bool) -> Result<Self> {
        let room =
            len.checked_add(behind).and_then(|len| Mapping::readable(len, HUGE_PAGE)).ok_or_else(|| {
                let what =
                    format!("map failed: the process cannot have {len} bytes and {behind} behind them");
                Error::new(ErrorKind::Io, what)
                    .with_file(path)
                    .with_hint("allow it more addresses (ulimit -v); no memory is taken by those behind")
            })?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let shared = if synced { MapFlags::SHARED_VALIDATE | MapFlags::SYNC } else { MapFlags::SHARED };
        let (at, shared) = (room.base().as_ptr().cast(), shared | MapFlags::FIXED);
        // SAFETY: all that it overlaps is the room, which was mapped for it a moment ago, and which nobody knows of.
        let mapped = unsafe { rustix::mm::mmap(at, len, access, shared, file, 0) };
        if let Err(e) = mapped {
            room.leave_beginning(len);
            return Err(match e {
                Errno::OPNOTSUPP | Errno::INVAL if synced => {
                    not_dax(path, "its file system goes through the page cache")
                }
                e => io_error(e.into(), "map", path),
            });
        }
        let mapped = Mapped { room, len, synced, path: path.to_owned() };
        mapped.bring_in()?;
        Ok(mapped)
    }

    /// Has all pages there, so that who touches one first does not wait for it to be read. (A file system may still want to hear of the
    /// first store to each.) By several threads: that of a GiB takes one of them a tenth of a second. (They are no pool's, as
    /// [`crate::in_shares`] would have it: nothing here knows of the machine whose pools those are.)
    fn bring_in(&self) -> Result<()> {
        if self.len <= PART {
            return self.bring_in_part(0);
        }
        let (next, failed) = (AtomicUsize::new(0), OnceLock::new());
        let work = || {
            while failed.get().is_none() {
                let at = next.fetch_add(PART, Ordering::Relaxed);
                if at >= self.len {
                    break;
                }
                if let Err(e) = self.bring_in_part(at) {
                    let _another_was_first = failed.set(e);
                }
            }
        };
        let processors = crate::processors();
        let helpers = self.len.div_ceil(PART).min(processors).min(MOST_THREADS) - 1;
        thread::scope(|scope| {
            for _ in 0..helpers {
                let helper = thread::Builder::new().name("terrane-map".into());
                if helper.spawn_scoped(scope, work).is_err() {
                    // Those that there are do it all.
                    break;
                }
            }
            work();
        });
        failed.into_inner().map_or(Ok(()), Err)
    }

    fn bring_in_part(&self, at: usize) -> Result<()> {
        let len = PART.min(self.len - at);
        // SAFETY: the range lies within this value's mapping, whose contents stay as they are.
        let done = unsafe {
            rustix::mm::madvise(self.base().as_ptr().add(at).cast(), len, Advice::LinuxPopulateRead)
        };
        match done {
            // Linux has it since 5.14. Before, pages come in when they are first touched.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(e @ (Errno::FAULT | Errno::HWPOISON)) => {
                let what = format!("the file ends, or cannot be read, within {len} bytes of the offset");
                Err(Error::new(unreadable(e, self.synced), what).with_file(&self.path).with_offset(at as u64))
            }
            Err(e) => Err(io_error(e.into(), "bring in", &self.path).with_offset(at as u64)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.room.base()
    }

    /// Where `len` bytes from `offset` lie, padded to whole words: `offset` is a multiple of eight, and so is the address.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for what does not lie in it.
    pub(super) fn place(&self, offset: usize, len: usize) -> Result<*mut u8> {
        check_region(&self.path, self.len, offset, len)?;
        // SAFETY: the offset lies within the mapping.
        Ok(unsafe { self.base().as_ptr().add(offset) })
    }

    /// Waits until the file's device has all that was stored.
    pub(super) fn sync(&self) -> Result<()> {
        // SAFETY: the range is this value's mapping.
        unsafe { rustix::mm::msync(self.base().as_ptr().cast(), self.len, MsyncFlags::SYNC) }
            .map_err(|e| io_error(e.into(), "sync", &self.path))
    }
}

/// What a page is that cannot be brought in. Behind the page cache there is a device, which another time may answer; else the page is the device.
pub(super) fn unreadable(e: Errno, synced: bool) -> ErrorKind {
    if synced || e == Errno::HWPOISON { ErrorKind::Corruption } else { ErrorKind::Io }
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} bytes", self.path.display(), self.len)
    }
}
