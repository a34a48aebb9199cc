//! Files, by descriptor.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use terrane_base::{Error, ErrorKind, Result};

use crate::error::{check_alignment, io_error, short_file};
use crate::{AlignedBuf, File, OpenMode, SECTOR};

/// How much one write of zeros fills.
pub(super) const PREWRITE: usize = 1 << 20;

pub(super) struct RealFile {
    fd: OwnedFd,
    path: PathBuf,
    direct: bool,
}

impl RealFile {
    pub(super) fn open(path: &Path, mode: OpenMode) -> Result<Self> {
        let mut flags = OFlags::CLOEXEC | if mode.write { OFlags::RDWR } else { OFlags::RDONLY };
        if mode.create_new {
            flags |= OFlags::CREATE | OFlags::EXCL;
        }
        let fd = match open(path, if mode.direct { flags | OFlags::DIRECT } else { flags }) {
            // The file system has no direct I/O. It may have created the file before it found out, so a second
            // exclusive creation would fail; had the file been there already, the error would be another.
            Err(Errno::INVAL) if mode.direct => open(path, flags.difference(OFlags::EXCL)),
            other => other,
        };
        let doing = if mode.create_new { "create" } else { "open" };
        let fd = fd.map_err(|e| io_error(e.into(), doing, path))?;
        if mode.direct {
            accept_our_alignment(&fd).map_err(|e| io_error(e.into(), doing, path))?;
        }
        Ok(RealFile { fd, path: path.to_owned(), direct: mode.direct })
    }

    /// Creates the file if need be, and opens it for reading and writing through the page cache.
    pub(super) fn open_or_create(path: &Path) -> Result<Self> {
        let fd = open(path, OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC)
            .map_err(|e| io_error(e.into(), "create", path))?;
        Ok(RealFile { fd, path: path.to_owned(), direct: false })
    }

    /// Fills a range with zeros that occupy space.
    pub(super) fn write_zeros(&self, from: u64, to: u64) -> Result<()> {
        let zeros =
            AlignedBuf::zeroed(PREWRITE.min(usize::try_from(to.saturating_sub(from)).unwrap_or(PREWRITE)));
        let mut at = from;
        while at < to {
            let n = (to - at).min(zeros.len() as u64);
            self.write_at(&zeros[..n as usize], at)?;
            at += n;
        }
        Ok(())
    }

    fn fallocate(&self, flags: FallocateFlags, offset: u64, len: u64, doing: &str) -> Result<Supported> {
        fallocate(&self.fd, flags, offset, len).map_err(|e| self.failed(e, doing).with_offset(offset))
    }

    fn failed(&self, e: Errno, doing: &str) -> Error {
        io_error(e.into(), doing, &self.path)
    }
}

/// Whether the file system can do it at all; if not, nothing was done.
#[derive(PartialEq, Eq)]
pub(super) enum Supported {
    Yes,
    No,
}

impl File for RealFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        check_alignment(&self.path, self.align(), buf, offset)?;
        let mut done = 0;
        while done < buf.len() {
            let at = offset.saturating_add(done as u64);
            let n = uninterrupted(|| rustix::io::pread(&self.fd, &mut buf[done..], at))
                .map_err(|e| self.failed(e, "read").with_offset(at))?;
            // What a device transfers beyond a whole sector is the end of the file.
            let whole = n - n % self.align();
            done += whole;
            if n == 0 || whole < n {
                return Err(short_file(&self.path, offset, buf.len(), self.len()?));
            }
        }
        Ok(())
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        check_alignment(&self.path, self.align(), buf, offset)?;
        let mut done = 0;
        while done < buf.len() {
            let at = offset.saturating_add(done as u64);
            let n = uninterrupted(|| rustix::io::pwrite(&self.fd, &buf[done..], at))
                .map_err(|e| self.failed(e, "write").with_offset(at))?;
            let whole = n - n % self.align();
            if whole == 0 {
                let what = format!("write failed: the system took {n} of {} bytes", buf.len() - done);
                return Err(Error::new(ErrorKind::Io, what).with_file(&self.path).with_offset(at));
            }
            done += whole;
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        uninterrupted(|| rustix::fs::fdatasync(&self.fd)).map_err(|e| self.failed(e, "sync"))
    }

    fn len(&self) -> Result<u64> {
        let stat = rustix::fs::fstat(&self.fd).map_err(|e| self.failed(e, "stat"))?;
        Ok(u64::try_from(stat.st_size).unwrap_or(0))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        uninterrupted(|| rustix::fs::ftruncate(&self.fd, len)).map_err(|e| self.failed(e, "set length"))
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        if len == 0 || self.fallocate(FallocateFlags::empty(), offset, len, "allocate")? == Supported::Yes {
            return Ok(());
        }
        // Zeros behind the end take space as well; only a hole inside the file stays one.
        let (old, new) = (self.len()?, offset.saturating_add(len));
        if new > old {
            self.set_len(new)?;
            let align = self.align() as u64;
            self.write_zeros(old.next_multiple_of(align), new - new % align)?;
        }
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        if len > 0 {
            // Never past the end: a length beyond what the file system can have is an error to it.
            let len = len.min(self.len()?.saturating_sub(offset));
            if len > 0 {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let _space_only = self.fallocate(flags, offset, len, "punch hole")?;
            }
        }
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn align(&self) -> usize {
        if self.direct { SECTOR } else { 1 }
    }
}

impl AsFd for RealFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl fmt::Debug for RealFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RealFile({})", self.path.display())
    }
}

fn open(path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    uninterrupted(|| rustix::fs::open(path, flags, Mode::from_raw_mode(0o644)))
}

/// Goes back to the page cache where direct I/O wants more alignment than [`SECTOR`] gives.
fn accept_our_alignment(fd: &OwnedFd) -> rustix::io::Result<()> {
    // Kernels before 6.1 do not tell; there the block size rules, which no device we know has above 4 KiB.
    let Ok(s) = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else { return Ok(()) };
    let known = s.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    let fits = |align: u32| align != 0 && SECTOR.is_multiple_of(align as usize);
    if known && !(fits(s.stx_dio_mem_align) && fits(s.stx_dio_offset_align)) {
        rustix::fs::fcntl_setfl(fd, OFlags::empty())?;
    }
    Ok(())
}

/// As the system call, and what a file system cannot do is no error.
pub(super) fn fallocate(
    file: impl AsFd,
    flags: FallocateFlags,
    offset: u64,
    len: u64,
) -> rustix::io::Result<Supported> {
    match uninterrupted(|| rustix::fs::fallocate(&file, flags, offset, len)) {
        Ok(()) => Ok(Supported::Yes),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(Supported::No),
        Err(e) => Err(e),
    }
}

/// Repeats a call that a signal interrupted.
pub(super) fn uninterrupted<T>(call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    rustix::io::retry_on_intr(call)
}
