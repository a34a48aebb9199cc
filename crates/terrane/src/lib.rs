//! Terrane: a key-value storage engine for fast storage and many cores.
//!
//! A *database* is a directory that holds *subtables*: ordered maps from byte strings to byte strings. Batches change
//! several subtables atomically; snapshots see all of them at one moment; commits survive the death of the process, or a
//! power failure if asked for.
//!
//! ```
//! use terrane::{Db, Options, ReadOptions, SubtableOptions};
//!
//! # fn main() -> terrane::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! let db = Db::open(dir.path(), Options::new())?;
//! let planets = db.create_subtable("planets", SubtableOptions::new())?;
//! planets.put(b"mars", b"red")?;
//! planets.put(b"neptune", b"blue")?;
//!
//! for record in planets.range(ReadOptions::new().prefix(b"m"))? {
//!     let (key, value) = record?;
//!     assert_eq!((&key[..], &value[..]), (&b"mars"[..], &b"red"[..]));
//! }
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod batch;
mod buffers;
mod chains;
mod check;
mod compact;
mod db;
mod exec;
mod levels;
mod log;
mod memtable;
mod options;
mod read;
mod recovery;
#[cfg(test)]
mod testkit;
mod tombstone;
mod txn;

pub use batch::WriteBatch;
pub use check::{CheckReport, Progress};
pub use db::Db;
pub use db::commit::PendingCommit;
pub use db::snapshot::Snapshot;
pub use db::stats::{LevelStats, Stats, SubtableStats};
pub use db::subtable::Subtable;
pub use exec::{Core, Executor, ExecutorOptions, Lane, Polled, Taken};
pub use options::{
    CompactionMode, Compression, DirectoryKind, Durability, IndexKind, Medium, Options, PmemMode,
    PmemOptions, SubtableOptions,
};
#[doc(hidden)]
pub use options::{Simd, Swizzling, Tuning};
pub use read::iter::{Cursor, KeyValue, Range, ReadOptions};
pub use read::reader::Reader;
pub use read::resume::{BlockRequest, FetchedBlock, Lookup, LookupStep};
pub use txn::big::ingest::Ingest;
pub use txn::cursor::TransactionCursor;
pub use txn::cursor::rows::RowLocks;
pub use txn::options::{Isolation, LockWait, TransactionOptions};
pub use txn::savepoint::Savepoint;
pub use txn::transaction::{Locked, Transaction};

pub use terrane_base::{Error, ErrorKind, Lsn, Result, Seq, Waiter, metrics};
pub use terrane_cache::PartStats as CachePartStats;
pub use terrane_compaction::DeviceStats;
pub use terrane_format::tuple;
pub use terrane_media as media;

/// Compiles and runs the example in the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
