//! The log of a database.
#![allow(dead_code, unused_variables)]

mod options;

use std::sync::Arc;

use terrane_base::{Error, Lsn, Result};
use terrane_format::batch::EntryHeader;
use terrane_media::Media;

pub(crate) use options::LogOptions;

/// Where the log of a new database begins: zero stays free to mean "before everything".
pub(crate) const FIRST_LSN: Lsn = 4096;

/// Where recovery starts and what the manifest knows about the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecoverFrom {
    /// Oldest LSN needed; an entry starts there, or the log ends there.
    pub(crate) lsn: Lsn,
    /// The manifest proves the log durable up to here.
    pub(crate) durable: Lsn,
    /// The newest open-generation that the manifest knows.
    pub(crate) generation: u32,
    /// The manifest says that the database was closed: everything is in the segments, the tail is not looked at.
    pub(crate) clean: bool,
}

/// What [`Log::recover`] found, and what [`Log::resume`] needs to go on.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// Where the log ends: the next entry starts here.
    pub(crate) end: Lsn,
    /// The open-generation that the log goes on under: higher than every one seen.
    pub(crate) generation: u32,
    /// Whether entries came from the tail.
    pub(crate) tail_used: bool,
    /// Entries given to the sink.
    pub(crate) entries: u64,
}

/// The log of an open database. All methods may be called from many threads. Cloning shares it.
#[derive(Clone, Debug)]
pub(crate) struct Log;

impl Log {
    /// Reads the log: calls `sink` with every entry from `from.lsn` on, in order (no-ops excepted). Changes nothing on
    /// disk, so it may be repeated, and serves `check` and read-only opens too. A directory without a log gives an
    /// empty one that ends at `from.lsn` (at least [`FIRST_LSN`]).
    pub(crate) fn recover(
        media: &Arc<dyn Media>,
        options: &LogOptions,
        from: RecoverFrom,
        sink: &mut dyn FnMut(Lsn, &EntryHeader, &[u8]) -> Result<()>,
    ) -> Result<Recovered> {
        todo!()
    }

    /// Opens the log for writing where recovery found its end. On return everything that was replayed is durable in
    /// segments (`durable_lsn() == recovered.end`), and only then may the manifest be told so. The log goes on under
    /// `generation`, or `recovered.generation` if that is higher; see [`Log::generation`]. Can be cut off at any point
    /// and done again from [`Log::recover`].
    pub(crate) fn start(
        media: Arc<dyn Media>,
        options: LogOptions,
        generation: u32,
        recovered: Recovered,
    ) -> Result<Log> {
        todo!()
    }

    /// The open-generation: every [`EntryHeader`] written must bear it.
    pub(crate) fn generation(&self) -> u32 {
        todo!()
    }

    /// Largest entry that [`Log::admit`] lets in, in bytes with header and padding.
    pub(crate) fn max_entry(&self) -> u64 {
        todo!()
    }

    /// Asks, before anything is reserved, whether an entry of `bytes` can be written.
    pub(crate) fn admit(&self, bytes: u64) -> Result<()> {
        todo!()
    }

    /// Stores the bytes of the entry at `lsn` into the tail (the parts one behind the other, zeros up to a multiple of
    /// 8). Waits, helping to write out, while the ring has no room.
    pub(crate) fn write(&self, lsn: Lsn, parts: &[&[u8]]) -> Result<()> {
        todo!()
    }

    /// Says that all entries below `end` are written. Called by the orderer alone, with growing `end`.
    pub(crate) fn advance(&self, end: Lsn) {
        todo!()
    }

    /// Makes the log durable up to `lsn` at least (`lsn` at most [`Log::advanced_lsn`]).
    pub(crate) fn sync_to(&self, lsn: Lsn) -> Result<()> {
        todo!()
    }

    /// Below this, the log survives a power failure.
    pub(crate) fn durable_lsn(&self) -> Lsn {
        todo!()
    }

    /// Below this, the log is written to segments, if not flushed.
    pub(crate) fn written_lsn(&self) -> Lsn {
        todo!()
    }

    /// Below this, all entries are whole in the tail or in segments.
    pub(crate) fn advanced_lsn(&self) -> Lsn {
        todo!()
    }

    /// Refuses all further writes because of `cause` (design rule 16).
    pub(crate) fn poison(&self, cause: &Error) {
        todo!()
    }

    /// Whether a write or flush failed (design rule 16).
    pub(crate) fn is_poisoned(&self) -> bool {
        todo!()
    }

    /// Lets go of segments that hold nothing at or above `lsn`. The manifest's edit that makes them unneeded must be
    /// durable.
    pub(crate) fn release_before(&self, lsn: Lsn) -> Result<()> {
        todo!()
    }

    /// The first LSN still held in segments.
    pub(crate) fn oldest_lsn(&self) -> Lsn {
        todo!()
    }

    /// Bytes of log from the oldest held to the newest.
    pub(crate) fn live_bytes(&self) -> u64 {
        todo!()
    }

    /// Writes out and flushes everything, and refuses further writes.
    pub(crate) fn close(&self) -> Result<()> {
        todo!()
    }
}
