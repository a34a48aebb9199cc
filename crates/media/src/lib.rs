//! Where Terrane's bytes live: files with direct I/O, mapped regions, directories, the clock and background tasks; and
//! their simulated twins that crash, tear, fail, slow down and step background work by seed.
//!
//! Everything above this room reaches the outside world through [`Media`] alone, and memory for it in [`AlignedBuf`] and
//! [`Mapping`]. [`real::RealMedia`] is the operating system; [`sim::SimMedia`] is a whole machine in memory whose every
//! I/O call is a crash point.
//!
//! # Rules
//! * Reads and writes are exact: a short one is an error, never a surprise.
//! * Files opened with [`OpenMode::direct`] want offsets, lengths and buffer addresses in multiples of
//!   [`File::align`]; [`AlignedBuf`] gives such buffers.
//! * A created, renamed or removed name is durable only after [`Media::sync_dir`] on its directory.
//! * `write_at` is durable only after [`File::sync`] returned `Ok`. After a failed sync the content is unknown.

#![allow(
    clippy::disallowed_methods,
    reason = "this is the one room that files, clocks and threads are reached by"
)]

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use terrane_base::{Error, ErrorKind, Result};

mod aligned;
mod errand;
mod error;
mod mapping;
mod pmem;
mod pool;
mod queued;
pub mod real;
mod shares;
mod signal;
pub mod sim;
mod sleeper;
mod thread;

pub use aligned::AlignedBuf;
pub use errand::Errand;
pub use mapping::{HUGE_PAGE, Mapping};
pub use pmem::{
    CostlyPmem, LINE, PM_BLOCK, Pmem, PmemCost, PmemMode, READABLE_BEHIND, create_pmem, try_pmem,
};
pub use queued::Queued;
pub use shares::{in_shares, in_shares_of_all};
pub use signal::Signal;
pub use sleeper::Sleeper;
pub use thread::{Thread, processors};

/// See [`Media::processors`].
const SIMULATED_PROCESSORS: usize = 2;

/// Alignment that satisfies direct I/O on every device we know: offsets, lengths and addresses in the log and in data
/// files are multiples of it. Also the unit in which a device is assumed to rewrite a neighbour of a written byte.
pub const SECTOR: usize = 4096;

/// How to open a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenMode {
    /// Open for writing as well as reading.
    pub write: bool,
    /// Create the file; an error if it is there already.
    pub create_new: bool,
    /// Bypass the page cache where the file system can (falls back to buffered I/O where it cannot, as on tmpfs).
    pub direct: bool,
}

impl OpenMode {
    /// Read-only, through the page cache.
    pub const READ: OpenMode = OpenMode { write: false, create_new: false, direct: false };
    /// Read and write an existing file, direct.
    pub const DIRECT: OpenMode = OpenMode { write: true, create_new: false, direct: true };
    /// Create a file, direct.
    pub const CREATE_DIRECT: OpenMode = OpenMode { write: true, create_new: true, direct: true };
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The file's name within its directory. Names that are not UTF-8 are not ours and are not listed.
    pub name: String,
    /// Its length in bytes.
    pub len: u64,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// Which threads run a background task. In order of urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pool {
    /// Draining the log tail and preparing segments: short, and writers wait for it.
    Log,
    /// Reading ahead and writing behind for the tasks of the other pools: these wait for the device, if only for somebody
    /// else's flush of it, and for nothing else, so that every task may wait for them.
    Io,
    /// Looking up for executors what memory does not hold: waits for the device, and a client for it.
    Read,
    /// Writing frozen memtables out, picking and planning compactions, installing versions.
    Flush,
    /// Executing compaction tasks: long, CPU-bound.
    Compaction,
}

/// A background task.
pub type Job = Box<dyn FnOnce() + Send + 'static>;

/// What [`Media::help`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Help {
    /// Real threads run the tasks: the caller may block.
    Threads,
    /// One pending task was run to its end on the calling thread.
    Ran,
    /// Tasks are simulated and none is pending: blocking now would be for ever.
    Idle,
}

/// One read of [`Media::read_many`]: fills `buf` from `offset` of `file`.
#[derive(Debug)]
pub struct ReadRequest<'a> {
    /// The file to read from.
    pub file: &'a dyn File,
    /// Where, in bytes.
    pub offset: u64,
    /// What to fill, whole.
    pub buf: &'a mut [u8],
}

/// A machine: its file system, clock, entropy and background threads.
///
/// Methods return the typed [`terrane_base::Error`] with the file's name in it.
pub trait Media: Send + Sync + Debug + 'static {
    /// Creates a directory and its parents. Not durable before [`Media::sync_dir`] on the parent.
    fn create_dir_all(&self, dir: &Path) -> Result<()>;
    /// Makes the names in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> Result<()>;
    /// Lists a directory in the order of names.
    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>>;
    /// Whether a file or directory of this name exists.
    fn exists(&self, path: &Path) -> Result<bool>;
    /// Opens a file.
    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>>;
    /// Renames a file over another, atomically.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;
    /// Removes a file's name.
    fn remove_file(&self, path: &Path) -> Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> Result<()>;
    /// Maps a file for reading and writing, shared. If it is missing or has another length it is created, fully
    /// allocated and prewritten with zeros first, so that no later store can fail for want of space. `len` is a
    /// positive multiple of 8; the file must not be truncated while it is mapped.
    fn map(&self, path: &Path, len: usize) -> Result<Arc<dyn Region>>;
    /// Maps all of a file as persistent memory; [`create_pmem`] makes one. It must not be truncated while it is mapped.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::Unsupported`] for [`PmemMode::Dax`] where the file system goes through the page cache, and where the
    /// processor's instructions are not known; [`terrane_base::ErrorKind::Corruption`] for a file whose length is none of persistent
    /// memory; [`terrane_base::ErrorKind::NotFound`] without a file.
    fn map_pmem(&self, path: &Path, mode: PmemMode) -> Result<Arc<dyn Pmem>>;
    /// Takes the lock file `path` for as long as the returned guard lives.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::Locked`] if another process, or another guard of this one, holds it.
    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>>;
    /// Bytes free on the device that holds `dir`; `u64::MAX` where there is no bound but main memory.
    fn free_space(&self, dir: &Path) -> Result<u64>;
    /// Identifies this boot of the machine: two opens with equal ids had no power failure between them.
    fn boot_id(&self) -> [u8; 16];
    /// Monotonic time since some fixed moment.
    fn now(&self) -> Duration;
    /// Seconds since the Unix epoch, for people.
    fn wall_time(&self) -> u64;
    /// Random bits, for identities and salts. Not for secrets.
    fn entropy(&self) -> u64;
    /// Pauses the calling thread (pacing only: never used to wait for an event).
    fn sleep(&self, time: Duration);
    /// Queues a background task. Tasks of one pool start in order. Tasks queued after [`Media::shutdown`] are dropped.
    fn spawn(&self, pool: Pool, name: &'static str, job: Job);
    /// As [`Media::spawn`], but the task is not started before `delay` has passed (later if all threads are at work).
    /// On a simulated machine that may be at once: nothing may rest on how much time went by, only on what happened
    /// meanwhile.
    fn spawn_after(&self, pool: Pool, delay: Duration, name: &'static str, job: Job);
    /// On a simulated machine, runs one pending task on this thread; on a real one does nothing. Whoever is about to
    /// block for background work asks first ([`Signal::wait_until`] does).
    fn help(&self) -> Help;
    /// The processors on which threads of this process may run, by their numbers. A simulated machine has none.
    fn cores(&self) -> Vec<usize> {
        Vec::new()
    }
    /// How many threads run at the same time: what is divided among threads goes by that. On a simulated machine always as many, so that a
    /// history does not depend on the machine it is simulated on.
    fn processors(&self) -> usize {
        SIMULATED_PROCESSORS
    }
    /// Starts a thread for `job` alone, bound to a processor if one is named.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::Unsupported`] on a simulated machine, whose threads are those of its tasks alone;
    /// [`terrane_base::ErrorKind::Io`] if the system gives no thread, or does not let it run on that processor.
    fn start_thread(&self, name: &str, core: Option<usize>, job: Job) -> Result<Thread> {
        let _ = (core, job);
        let what = format!("a simulated machine starts no thread of its own ({name})");
        Err(Error::new(ErrorKind::Unsupported, what).with_hint("open the database on the real one"))
    }
    /// Ends background work: tasks not yet started are dropped, running ones are waited for (but not by themselves).
    /// Dropping the last handle of a machine does the same.
    fn shutdown(&self);
    /// Fills all requests, overlapping them where the machine can. Returns the first error after all have ended.
    fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<()> {
        let mut first = Ok(());
        for r in requests {
            let one = r.file.read_at(r.buf, r.offset);
            if first.is_ok() {
                first = one;
            }
        }
        first
    }
}

/// An open file. All methods take `&self` and may be called from many threads; overlapping writes are the caller's
/// mistake.
pub trait File: Send + Sync + Debug {
    /// The name it was opened by.
    fn path(&self) -> &Path;
    /// Fills `buf` from `offset`. Reading past the end is an [`terrane_base::ErrorKind::Corruption`] error ("file ends at ...").
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()>;
    /// Writes all of `buf` at `offset`, extending the file if need be.
    fn write_at(&self, buf: &[u8], offset: u64) -> Result<()>;
    /// Makes content and length durable.
    fn sync(&self) -> Result<()>;
    /// The length in bytes.
    fn len(&self) -> Result<u64>;
    /// Whether the file is empty.
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Truncates or extends (with zeros).
    fn set_len(&self, len: u64) -> Result<()>;
    /// Reserves space for `len` bytes at `offset`, extending the file; the bytes read as zero.
    fn allocate(&self, offset: u64, len: u64) -> Result<()>;
    /// Gives the space of a range back to the file system; the bytes read as zero afterwards. Does nothing where the
    /// file system cannot.
    fn punch(&self, offset: u64, len: u64) -> Result<()>;
    /// The descriptor behind it, where there is one: [`Media::read_many`] reads many files in one call.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Required alignment of offsets, lengths and buffer addresses: 1 for buffered files.
    fn align(&self) -> usize;
}

/// A mapped file. Content survives the death of the process, not that of the machine (unless synced).
///
/// Loads and stores are made of relaxed 8-byte atomic accesses, so that concurrent use of overlapping ranges is defined
/// (and gives some mixture of words); offsets and lengths are multiples of 8 (a last partial word is padded).
/// Out-of-range access is a typed error, never a fault.
pub trait Region: Send + Sync + Debug {
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Whether the length is zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Copies `bytes` in at `offset`. A last partial word is padded with zeros.
    fn store(&self, offset: usize, bytes: &[u8]) -> Result<()>;
    /// Copies out into `buf` from `offset`.
    fn load(&self, offset: usize, buf: &mut [u8]) -> Result<()>;
    /// Writes the mapping back to the device and waits for it.
    fn sync(&self) -> Result<()>;
}

/// Holds a lock until dropped.
pub trait LockGuard: Send + Sync + Debug {}
