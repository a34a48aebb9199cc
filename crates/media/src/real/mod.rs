//! The operating system as a [`Media`].
//!
//! # After a crash
//! What the traits promise rests on these calls: `fdatasync` for files, `fsync` for directories, `flock` for the lock
//! (the kernel releases it with the process), and the kernel's boot id, which no two boots share.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::BuildHasher;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use terrane_base::{Error, ErrorKind, Result};

use crate::error::{check_map_len, io_error};
use crate::pool::Pools;
use crate::{
    CostlyPmem, DirEntry, File, Help, Job, LockGuard, Media, OpenMode, Pmem, PmemCost, PmemMode, Pool,
    ReadRequest, Region, Thread,
};

mod dirs;
mod file;
mod lock;
mod mapped;
mod pmem;
mod region;
mod ring;
#[cfg(test)]
mod tests;

use dirs::Dirs;
use file::RealFile;
use ring::Rings;

/// How many threads run background tasks. A zero means one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RealOptions {
    /// Threads of [`Pool::Log`]. Default 1.
    pub log_threads: usize,
    /// Threads of [`Pool::Io`]. Default 2: one that reads and one that writes.
    pub io_threads: usize,
    /// Threads of [`Pool::Read`]. Default 2: each has many reads on their way.
    pub read_threads: usize,
    /// Threads of [`Pool::Flush`]. Default 2.
    pub flush_threads: usize,
    /// Threads of [`Pool::Compaction`]. Default: half the processors, 1 to 8.
    pub compaction_threads: usize,
}

impl Default for RealOptions {
    fn default() -> Self {
        let cores = crate::processors();
        RealOptions {
            log_threads: 1,
            io_threads: 2,
            read_threads: 2,
            flush_threads: 2,
            compaction_threads: (cores / 2).clamp(1, 8),
        }
    }
}

/// Files, maps, clock and threads of the operating system.
#[derive(Debug)]
pub struct RealMedia {
    pools: Pools,
    rings: Rings,
    dirs: Dirs,
    boot_id: [u8; 16],
    start: Instant,
    pmem_cost: Option<PmemCost>,
}

impl RealMedia {
    /// A machine of its own threads; they start when there is work for them and end with it.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if the kernel does not tell its boot id: without it nobody could know whether a mapped
    /// file is to be trusted.
    pub fn new(options: RealOptions) -> Result<Arc<RealMedia>> {
        RealMedia::with_pmem_cost(options, None)
    }

    /// As [`RealMedia::new`], where whatever stands for persistent memory ([`PmemMode::StandIn`]) costs that, if anything, beside what ordinary
    /// memory does: for measuring where there is no device. Whoever reports what was measured says so.
    ///
    /// # Errors
    /// As [`RealMedia::new`].
    pub fn with_pmem_cost(options: RealOptions, pmem_cost: Option<PmemCost>) -> Result<Arc<RealMedia>> {
        Ok(Arc::new(RealMedia {
            pools: Pools::new(&options),
            rings: Rings::new(),
            dirs: Dirs::default(),
            boot_id: read_boot_id()?,
            start: Instant::now(),
            pmem_cost,
        }))
    }
}

impl Media for RealMedia {
    fn create_dir_all(&self, dir: &Path) -> Result<()> {
        fs::create_dir_all(dir).map_err(|e| io_error(e, "create directory", dir))
    }

    fn sync_dir(&self, dir: &Path) -> Result<()> {
        self.dirs.sync(named(dir)).map_err(|e| io_error(e.into(), "sync directory", dir))
    }

    fn list(&self, dir: &Path) -> Result<Vec<DirEntry>> {
        let failed = |e| io_error(e, "list", dir);
        let mut entries = Vec::new();
        for entry in fs::read_dir(named(dir)).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let meta = match entry.metadata() {
                Ok(meta) => meta,
                // Removed since the directory was read.
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(failed(e)),
            };
            let len = if meta.is_dir() { 0 } else { meta.len() };
            entries.push(DirEntry { name, len, is_dir: meta.is_dir() });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        fs::exists(path).map_err(|e| io_error(e, "look-up", path))
    }

    fn open(&self, path: &Path, mode: OpenMode) -> Result<Arc<dyn File>> {
        Ok(Arc::new(RealFile::open(path, mode)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        fs::rename(from, to).map_err(|e| io_error(e, "rename", from))
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        fs::remove_file(path).map_err(|e| io_error(e, "remove", path))
    }

    fn remove_dir(&self, path: &Path) -> Result<()> {
        fs::remove_dir(path).map_err(|e| io_error(e, "remove", path))
    }

    fn map(&self, path: &Path, len: usize) -> Result<Arc<dyn Region>> {
        check_map_len(path, len)?;
        Ok(Arc::new(region::RealRegion::map(path, len)?))
    }

    fn map_pmem(&self, path: &Path, mode: PmemMode) -> Result<Arc<dyn Pmem>> {
        let pmem = Arc::new(pmem::RealPmem::map(path, mode)?);
        Ok(match self.pmem_cost {
            Some(cost) if mode == PmemMode::StandIn => Arc::new(CostlyPmem::new(pmem, cost)),
            _ => pmem,
        })
    }

    fn lock(&self, path: &Path) -> Result<Box<dyn LockGuard>> {
        Ok(Box::new(lock::RealLock::take(path)?))
    }

    fn free_space(&self, dir: &Path) -> Result<u64> {
        let s = rustix::fs::statvfs(named(dir)).map_err(|e| io_error(e.into(), "statvfs", dir))?;
        // One without a bound says that it has no blocks at all.
        Ok(if s.f_blocks == 0 { u64::MAX } else { s.f_bavail.saturating_mul(s.f_frsize) })
    }

    fn boot_id(&self) -> [u8; 16] {
        self.boot_id
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn wall_time(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
    }

    fn entropy(&self) -> u64 {
        let mut bits = [0; 8];
        match rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::empty()) {
            Ok(8) => u64::from_le_bytes(bits),
            // The standard library seeds its hashers from whatever the system has.
            _ => RandomState::new().hash_one(self.now()),
        }
    }

    fn sleep(&self, time: Duration) {
        thread::sleep(time);
    }

    fn spawn(&self, pool: Pool, _name: &'static str, job: Job) {
        self.pools.push(pool, job);
    }

    fn spawn_after(&self, pool: Pool, delay: Duration, _name: &'static str, job: Job) {
        self.pools.push_after(pool, delay, job);
    }

    fn help(&self) -> Help {
        Help::Threads
    }

    fn cores(&self) -> Vec<usize> {
        crate::thread::cores()
    }

    fn processors(&self) -> usize {
        crate::processors()
    }

    fn start_thread(&self, name: &str, core: Option<usize>, job: Job) -> Result<Thread> {
        Thread::start(name, core, job)
    }

    fn shutdown(&self) {
        self.pools.close();
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<()> {
        self.rings.read_many(requests)
    }
}

/// The directory itself, for a path of no names such as the parent of `LOCK`.
fn named(dir: &Path) -> &Path {
    if dir.as_os_str().is_empty() { Path::new(".") } else { dir }
}

fn read_boot_id() -> Result<[u8; 16]> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let refused = |what: String| {
        Error::new(ErrorKind::Unsupported, format!("the kernel's boot id cannot be read: {what}"))
            .with_file(path)
            .with_hint("mount /proc")
    };
    let text = fs::read_to_string(path).map_err(|e| refused(e.to_string()))?;
    parse_boot_id(&text).ok_or_else(|| refused(format!("{text:?} is no UUID")))
}

fn parse_boot_id(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    // `from_str_radix` would take a sign.
    if digits.len() != 32 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}
