//! What a user may set. Few things, each a contract: meaning, range, default, cost.

mod pmem;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use terrane_base::{Error, Result};
pub use terrane_cache::Swizzling;
use terrane_compaction::Device;
use terrane_format::batch::{ENTRY_ALIGN, entry_len};
pub use terrane_format::block::{DirectoryKind, Simd};
pub use terrane_media::PmemMode;

use crate::compact::pick::MAX_L0_RUNS;
pub use pmem::PmemOptions;

/// Smallest legal memtable budget.
const MIN_MEMTABLE_BYTES: usize = 64 << 10;
/// Smallest legal cache.
const MIN_CACHE_BYTES: usize = 64 << 10;
/// Values of a database in persistent memory are stored apart from this share of the largest batch on, whatever is asked for.
const INLINE_SHARE: u64 = 2;

/// How a database is opened. The defaults work; `memtable_bytes` and `cache_bytes` are the two that matter.
///
/// ```
/// let options = terrane::Options::new().memtable_bytes(256 << 20).cache_bytes(1 << 30);
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    pub(crate) create_if_missing: bool,
    pub(crate) error_if_exists: bool,
    pub(crate) memtable_bytes: usize,
    pub(crate) cache_bytes: usize,
    pub(crate) row_cache_bytes: usize,
    pub(crate) background_threads: usize,
    pub(crate) compaction_mode: CompactionMode,
    pub(crate) compaction_devices: Vec<Arc<dyn Device>>,
    pub(crate) medium: Option<Medium>,
    pub(crate) renew_pmem: bool,
    pub(crate) pmem_path: Option<PathBuf>,
    /// What persistent memory allows a batch, where that is the medium.
    pub(crate) batch_in_memory: Option<u64>,
    pub(crate) tuning: Tuning,
    #[cfg(feature = "reference-counts")]
    pub(crate) counts_references: bool,
}

/// Which device executes compaction tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CompactionMode {
    /// The processor.
    #[default]
    Cpu,
    /// Every task is executed twice and the results are compared. Where they differ the second one counts, and
    /// [`crate::Stats::tasks_redone`] grows. Costs twice the processor time of merging.
    Check,
}

/// Where commits go. Chosen when a database is created, and kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Medium {
    /// A write-ahead log in the database's directory, with memtables in ordinary memory.
    #[default]
    Log,
    /// A file of persistent memory, where memtables keep their records. What that promises goes by [`PmemOptions::mode`]:
    ///
    /// * [`PmemMode::Dax`]: there is no log, unless [`PmemOptions::trailing_log`] asks for one. A commit survives a power failure when it
    ///   returns, with [`Durability::Buffered`] too. Opening replays nothing; it builds the indexes of memtables again.
    /// * [`PmemMode::PageCache`]: as [`Medium::Log`], by a log that trails behind.
    /// * [`PmemMode::StandIn`]: for development. All commits survive the process, and none a power failure but by a trailing log.
    Pmem(PmemOptions),
}

/// Sizes that follow from the format and from measurements. Tests shrink them, benches hold compactions back; users need
/// not touch them.
#[doc(hidden)]
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Bytes of one log segment.
    pub segment_bytes: u64,
    /// Bytes of the mapped tail ring.
    pub tail_bytes: usize,
    /// Unflushed tail bytes that start a background drain.
    pub drain_bytes: usize,
    /// The longest that a commit waits until a flush of the log begins when nobody asks for one; `None`: until enough has gathered.
    pub flush_after: Option<Duration>,
    /// Log bytes kept before old memtables are flushed to release them; 0 = twice the memtable budget.
    pub log_budget: u64,
    /// Bytes of one data file.
    pub data_file_bytes: u64,
    /// An extent closes at this many stored bytes.
    pub extent_bytes: usize,
    /// A compaction job rewrites about this much before it installs and looks again; one of L0's pass an eighth of L0 and L1 if that is
    /// less, and an eighth of this at least.
    pub piece_bytes: u64,
    /// A compaction task carries about this much raw input.
    pub task_bytes: usize,
    /// Bytes of its own writes that a transaction keeps in memory; 0 = an eighth of the memtable budget.
    pub transaction_bytes: usize,
    /// Compactions start by themselves, and not only where a flush waits for one or [`crate::Subtable::compact`] asks.
    pub compact: bool,
    /// Runs of L0 from which on flushes wait for a place.
    pub l0_runs: usize,
    /// What commits do not need of persistent memory holds blocks that the cache has no room for.
    pub pmem_cache: bool,
    /// Which cached blocks are found by direct pointer.
    pub swizzling: Swizzling,
    /// Blocks that flushes and merges write enter the cache where they take the place of some, or where there is room.
    pub warm: bool,
    /// The best instructions that directories of blocks are searched with, in all databases of the process.
    pub simd: Option<Simd>,
}

/// Less than Linux lets pass before it writes pages of a mapped file back by itself (30 seconds), and long enough for many commits to share
/// a flush.
const FLUSH_AFTER: Duration = Duration::from_secs(10);

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            segment_bytes: 32 << 20,
            tail_bytes: 16 << 20,
            drain_bytes: 256 << 10,
            flush_after: Some(FLUSH_AFTER),
            log_budget: 0,
            data_file_bytes: 1 << 30,
            extent_bytes: 2 << 20,
            piece_bytes: 64 << 20,
            task_bytes: 2 << 20,
            transaction_bytes: 0,
            compact: true,
            l0_runs: MAX_L0_RUNS,
            pmem_cache: true,
            swizzling: Swizzling::default(),
            warm: true,
            simd: None,
        }
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            create_if_missing: true,
            error_if_exists: false,
            memtable_bytes: 128 << 20,
            cache_bytes: 256 << 20,
            row_cache_bytes: 0,
            background_threads: 0,
            compaction_mode: CompactionMode::Cpu,
            compaction_devices: Vec::new(),
            medium: None,
            renew_pmem: false,
            pmem_path: None,
            batch_in_memory: None,
            tuning: Tuning::default(),
            #[cfg(feature = "reference-counts")]
            counts_references: false,
        }
    }
}

impl Options {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Create the database if the directory holds none. Default: yes.
    #[must_use]
    pub fn create_if_missing(mut self, yes: bool) -> Self {
        self.create_if_missing = yes;
        self
    }

    /// Refuse to open a database that exists already. Default: no.
    #[must_use]
    pub fn error_if_exists(mut self, yes: bool) -> Self {
        self.error_if_exists = yes;
        self
    }

    /// Memory for all memtables of all subtables together, in bytes; at least 64 KiB, default 128 MiB. More of it means
    /// fewer, larger merges and a longer log to replay after a crash. Writers are slowed down smoothly as it fills. Of no effect in
    /// persistent memory: see [`PmemOptions::memtable_bytes`].
    #[must_use]
    pub fn memtable_bytes(mut self, bytes: usize) -> Self {
        self.memtable_bytes = bytes;
        self
    }

    /// Memory for cached blocks, indexes and filters, in bytes; at least 64 KiB, default 256 MiB. Data files are read
    /// with direct I/O: what is not in this cache is on the device. With persistent memory on a device up to an eighth of it besides, a MiB
    /// at least, goes to what is known of the blocks that lie there.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: usize) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Memory for a cache of single rows in front of the block cache, in bytes; default 0 = off. Worth its memory where
    /// a few rows of many blocks are hot.
    #[must_use]
    pub fn row_cache_bytes(mut self, bytes: usize) -> Self {
        self.row_cache_bytes = bytes;
        self
    }

    /// Threads that execute compactions, 1 to 256; default 0 = half the cores, at least one, at most eight. So many and one more write memtables out.
    /// (At opening all processors build those of persistent memory again.)
    #[must_use]
    pub fn background_threads(mut self, threads: usize) -> Self {
        self.background_threads = threads;
        self
    }

    /// Which device executes compaction tasks. Default: the processor.
    #[must_use]
    pub fn compaction_mode(mut self, mode: CompactionMode) -> Self {
        self.compaction_mode = mode;
        self
    }

    /// Adds a device that executes compaction tasks in the processor's stead, or, in check mode, beside it. For tests:
    /// there is no device yet that is faster than the processor.
    #[doc(hidden)]
    #[must_use]
    pub fn compaction_device(mut self, device: Arc<dyn Device>) -> Self {
        self.compaction_devices.push(device);
        self
    }

    /// Where commits go. Default: where the database was created to have them go, and for a new one a log.
    ///
    /// Of a database that there is it must be the medium that it has, else opening fails with [`crate::ErrorKind::InvalidArgument`]; so it does
    /// where [`Options::pmem_path`] is set as well. [`PmemOptions::path`] says where the memory of such a database is now, which is noted; what
    /// the size is for then is said at [`PmemOptions::new`].
    #[must_use]
    pub fn medium(mut self, medium: Medium) -> Self {
        self.medium = Some(medium);
        self
    }

    /// Whether a persistent memory that is gone or damaged, or is not of the same time as the database's directory, is given up, and a new one
    /// made in its place, with what the log behind it has ([`PmemOptions::trailing_log`]). Default: no. On a device that may lose the newest
    /// commits: all those are there for which a [`Durability::Sync`] commit or [`crate::Db::sync`] returned, and what there is behind them is a
    /// prefix. A memory that is whole and belongs to the directory stays as it is. In the page cache, where one that is gone or of another time
    /// is made anew without being asked, one that cannot be read for now is given up as well. [`crate::Stats::pmem_renewed`] says whether one
    /// was made.
    ///
    /// What lay at its place is put aside, as `NAME.lost-N`, and not removed. Opening fails all the same, and changes nothing, where
    /// there is no log; where the log lacks what the memory had ([`crate::Stats::log_gap`]); where the memory is another database's; and
    /// where the memory still lies at its former place, and is looked for elsewhere.
    #[must_use]
    pub fn renew_pmem(mut self, yes: bool) -> Self {
        self.renew_pmem = yes;
        self
    }

    /// Where the persistent memory of a database that has one is now, if it was moved: absolute, or in the database's directory. Opening
    /// notes it for the next time. For who leaves [`Options::medium`] as it is, since [`PmemOptions::path`] says it too.
    ///
    /// Opening fails with [`crate::ErrorKind::InvalidArgument`] where the database has no such memory, and where a medium is set as well;
    /// and with [`crate::ErrorKind::NotFound`] where there is no database, which is not made then, and where the memory does not lie there
    /// (in the page cache too, where another one is made otherwise), unless [`Options::renew_pmem`] has one made there.
    #[must_use]
    pub fn pmem_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.pmem_path = Some(path.into());
        self
    }

    /// Replaces internal sizes; for tests and benches.
    #[doc(hidden)]
    #[must_use]
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// For comparisons alone: lookups hold the frames that they read by reference counts, beside the epoch that protects them.
    #[cfg(feature = "reference-counts")]
    #[doc(hidden)]
    pub fn count_references(mut self, counts: bool) -> Self {
        self.counts_references = counts;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.memtable_bytes < MIN_MEMTABLE_BYTES {
            return Err(Error::invalid(format!(
                "memtable_bytes is {}, the least is {MIN_MEMTABLE_BYTES}",
                self.memtable_bytes
            )));
        }
        if self.cache_bytes < MIN_CACHE_BYTES {
            return Err(Error::invalid(format!(
                "cache_bytes is {}, the least is {MIN_CACHE_BYTES}",
                self.cache_bytes
            )));
        }
        if self.background_threads > 256 {
            return Err(Error::invalid(format!(
                "background_threads is {}, the most is 256",
                self.background_threads
            )));
        }
        if let Some(Medium::Pmem(memory)) = &self.medium {
            memory.check()?;
        }
        if self.medium.is_some() && self.pmem_path.is_some() {
            return Err(Error::invalid("both Options::medium and Options::pmem_path are set")
                .with_hint("a medium says where its memory is: PmemOptions::path"));
        }
        if self.memtable_bytes > (1 << 44) || self.cache_bytes > (1 << 44) {
            return Err(Error::invalid("memtable_bytes and cache_bytes must be below 16 TiB"));
        }
        Ok(())
    }

    /// Whether a database is made where there is none. One whose memory was moved is there.
    pub(crate) fn makes_one(&self) -> bool {
        self.create_if_missing && self.pmem_path.is_none()
    }

    /// With as many background threads as there are on such a machine, if nobody chose.
    #[must_use]
    pub(crate) fn on_processors(mut self, processors: usize) -> Self {
        if self.background_threads == 0 {
            self.background_threads = (processors / 2).clamp(1, 8);
        }
        self
    }

    /// Compactions (and their tasks) that run at a time.
    pub(crate) fn compaction_jobs(&self) -> usize {
        self.background_threads
    }

    /// Threads among which a memtable is divided that is written out.
    pub(crate) fn flush_threads(&self) -> usize {
        self.compaction_jobs() + 1
    }

    /// A memtable freezes at this many bytes, if it can be written out then. Half of the budget: the larger the runs, the less
    /// is rewritten for each record; the other half takes what comes while one is written out.
    pub(crate) fn memtable_freeze_bytes(&self) -> usize {
        self.memtable_bytes / 2
    }

    /// Memory that a transaction's own writes take before they are spilled.
    pub(crate) fn transaction_bytes(&self) -> usize {
        match self.tuning.transaction_bytes {
            0 => (self.memtable_bytes / 8).max(64 << 10),
            n => n,
        }
    }

    pub(crate) fn log_budget(&self) -> u64 {
        match self.tuning.log_budget {
            0 => (self.memtable_bytes as u64 * 2).max(4 * self.tuning.segment_bytes),
            n => n,
        }
    }

    /// The most bytes of encoded operations that a commit has: an entry of the largest size.
    pub(crate) fn max_operations(&self) -> u64 {
        self.max_batch_bytes() / ENTRY_ALIGN as u64 * ENTRY_ALIGN as u64 - entry_len(0)
    }

    /// The largest commit: in a log a quarter of a segment, and what fits the tail twice.
    pub(crate) fn max_batch_bytes(&self) -> u64 {
        self.batch_in_memory.unwrap_or_else(|| self.max_logged_bytes())
    }

    /// As [`Options::max_batch_bytes`], of a log: what options are checked against, since in persistent memory a threshold is cut.
    pub(crate) fn max_logged_bytes(&self) -> u64 {
        (self.tuning.segment_bytes / 4).min(self.tuning.tail_bytes as u64 / 4)
    }
}

/// When a commit is safe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Returns when the commit survives the death of the process; a power failure may take the newest commits, those of some ten seconds
    /// at most, but always a suffix of them. Costs no system call while the log's tail has room. In persistent memory itself
    /// ([`PmemMode::Dax`]) a power failure takes none, and this is as `Sync`, unless a log trails behind
    /// ([`PmemOptions::trailing_log`]): then `Sync` waits for that too.
    #[default]
    Buffered,
    /// Returns when the commit, and every earlier one, survives a power failure. Costs a share of a device flush. (With a
    /// [stand-in](PmemMode::StandIn) for persistent memory only what a log behind it has survives one.)
    Sync,
}

/// Which in-memory index a subtable's memtables use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IndexKind {
    /// Adaptive radix tree.
    #[default]
    Art,
    /// Skiplist.
    Skiplist,
}

/// Compression of cold levels. L0 and L1 are never compressed: they are hot and short-lived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Store blocks as they are.
    None,
    /// Zstandard at this level, 1 to 19.
    Zstd(i32),
}

impl Default for Compression {
    fn default() -> Self {
        Compression::Zstd(1)
    }
}

/// How a subtable stores its records. Persisted; can be changed later for data written from then on.
#[derive(Clone, Debug, PartialEq)]
pub struct SubtableOptions {
    pub(crate) block_bytes: usize,
    pub(crate) compression: Compression,
    pub(crate) filter_bits: usize,
    pub(crate) value_threshold: usize,
    pub(crate) index: IndexKind,
    pub(crate) directory: DirectoryKind,
}

impl Default for SubtableOptions {
    fn default() -> Self {
        SubtableOptions {
            block_bytes: 16 << 10,
            compression: Compression::default(),
            filter_bits: 10,
            value_threshold: 128 << 10,
            index: IndexKind::Art,
            directory: DirectoryKind::TwoLayer,
        }
    }
}

impl SubtableOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uncompressed size of a block, 4 KiB to 64 KiB; default 16 KiB. Small blocks cost memory for their index, large
    /// ones cost I/O per point read.
    #[must_use]
    pub fn block_bytes(mut self, bytes: usize) -> Self {
        self.block_bytes = bytes;
        self
    }

    /// Compression of L2 and below; default Zstandard, level 1.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// Filter bits per key, 0 (none) to 32; default 10, which answers 99 % of the lookups of absent keys without
    /// touching a block.
    #[must_use]
    pub fn filter_bits(mut self, bits: usize) -> Self {
        self.filter_bits = bits;
        self
    }

    /// Values of at least this many bytes are stored apart and are never rewritten; 1 KiB to 2 MiB, default 128 KiB; in persistent memory half of
    /// [`crate::Db::max_batch_bytes`] is taken where that is less. They take space in steps of 64 KiB, so a low threshold wastes
    /// space. Applies to values written from now on.
    #[must_use]
    pub fn value_threshold(mut self, bytes: usize) -> Self {
        self.value_threshold = bytes;
        self
    }

    /// Which in-memory index the memtables use; default the radix tree.
    #[must_use]
    pub fn index(mut self, index: IndexKind) -> Self {
        self.index = index;
        self
    }

    /// The search structure of blocks that are written from now on; default [`DirectoryKind::TwoLayer`], which finds a record in
    /// memory with fewer loads and takes a little more space. With [`DirectoryKind::RestartArray`] leaves are larger.
    #[must_use]
    pub fn directory(mut self, directory: DirectoryKind) -> Self {
        self.directory = directory;
        self
    }

    /// The size from which on values are stored apart, where the largest batch is this.
    pub(crate) fn effective_threshold(&self, max_batch: u64) -> usize {
        self.value_threshold.min((max_batch / INLINE_SHARE) as usize)
    }

    pub(crate) fn check(&self, max_batch: u64) -> Result<()> {
        let range = |what: &str, got: usize, least: usize, most: usize| {
            if (least..=most).contains(&got) {
                return Ok(());
            }
            Err(Error::invalid(format!("{what} is {got}, allowed are {least} to {most}")))
        };
        range("block_bytes", self.block_bytes, 4 << 10, 64 << 10)?;
        range("filter_bits", self.filter_bits, 0, 32)?;
        range("value_threshold", self.value_threshold, 1 << 10, (8 << 20).min(max_batch as usize / 2))?;
        if let Compression::Zstd(level) = self.compression {
            range("zstd level", usize::try_from(level).unwrap_or(usize::MAX), 1, 19)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
