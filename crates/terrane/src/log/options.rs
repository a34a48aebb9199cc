//! How the log is laid out, and what the layout implies.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use terrane_base::{Error, Result};
use terrane_format::log::{FRAME_HEADER, LOG_SECTOR};

/// Where the log lies and how large its parts are. All sizes may differ from one open to the next.
#[derive(Clone)]
pub(crate) struct LogOptions {
    /// The database's directory; it exists.
    pub(crate) dir: PathBuf,
    /// The database.
    pub(crate) uuid: [u8; 16],
    /// Length of a segment file. Default 32 MiB. A multiple of 4096, at least 16 KiB.
    pub(crate) segment_bytes: u64,
    /// Length of the tail's ring: what unsynced commits may run ahead of the disk. Default 16 MiB. A multiple of 4096,
    /// at least 8 KiB.
    pub(crate) tail_bytes: usize,
    /// How much gathers in the tail before a background task writes it out, and the most that one write call carries.
    /// Default 256 KiB; a quarter of the ring if that is less.
    pub(crate) drain_bytes: usize,
    /// The longest that an entry waits for its flush when nobody asks for one; `None` for ever.
    pub(crate) flush_after: Option<Duration>,
    /// Called before frames are written to a segment: makes durable what the entries in them refer to (large values).
    /// If it fails, so does the write, and the log is poisoned. Called with the log locked: it must not call back.
    pub(crate) before_write: BeforeWrite,
}

/// See [`LogOptions::before_write`].
pub(crate) type BeforeWrite = Arc<dyn Fn() -> Result<()> + Send + Sync>;

impl fmt::Debug for LogOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogOptions")
            .field("dir", &self.dir)
            .field("segment_bytes", &self.segment_bytes)
            .field("tail_bytes", &self.tail_bytes)
            .field("drain_bytes", &self.drain_bytes)
            .finish_non_exhaustive()
    }
}

impl LogOptions {
    /// The defaults, for a database in `dir`.
    pub(crate) fn new(dir: impl Into<PathBuf>, uuid: [u8; 16]) -> Self {
        LogOptions {
            dir: dir.into(),
            uuid,
            segment_bytes: 32 << 20,
            tail_bytes: 16 << 20,
            drain_bytes: 256 << 10,
            flush_after: None,
            before_write: Arc::new(|| Ok(())),
        }
    }

    /// Checks the sizes.
    pub(super) fn check(&self) -> Result<()> {
        let sector = LOG_SECTOR as u64;
        if !self.segment_bytes.is_multiple_of(sector) || !(4 * sector..=1 << 40).contains(&self.segment_bytes)
        {
            return Err(Error::invalid(format!(
                "log segments of {} bytes: want a multiple of 4096, 16 KiB to 1 TiB",
                self.segment_bytes
            )));
        }
        if !self.tail_bytes.is_multiple_of(LOG_SECTOR)
            || !(2 * LOG_SECTOR..=1 << 34).contains(&self.tail_bytes)
        {
            return Err(Error::invalid(format!(
                "a log tail of {} bytes: want a multiple of 4096, 8 KiB to 16 GiB",
                self.tail_bytes
            )));
        }
        Ok(())
    }

    /// Largest entry the log takes: it must pass through the ring beside others, and stay a small part of a segment.
    pub(crate) fn max_entry(&self) -> u64 {
        (self.tail_bytes as u64 / 2).min(self.segment_bytes / 4)
    }

    /// Bytes of a segment that frames can take.
    pub(super) fn segment_room(&self) -> u64 {
        self.segment_bytes - LOG_SECTOR as u64
    }

    /// Payload of a frame that fills one write call to the last byte.
    pub(super) fn full_payload(&self) -> usize {
        let bytes = self.drain_bytes.min(self.tail_bytes / 4) / LOG_SECTOR * LOG_SECTOR;
        bytes.max(LOG_SECTOR) - FRAME_HEADER
    }

    /// Entries of so many bytes are counted one by one while they are on their way to the ring; for smaller ones the
    /// reserve has room for [`UNCOUNTED`] at once.
    pub(super) fn counted_bytes(&self) -> u64 {
        (self.tail_bytes as u64 / 4096).min(4096)
    }

    /// Segment bytes that must lie ready before a writer is let in: enough to take the whole ring and half of it again, so
    /// that what was let in can be written out, padding included, however full the device is; and the small entries that
    /// are let in without being counted.
    pub(super) fn reserve_bytes(&self) -> u64 {
        self.tail_bytes as u64 / 2 * 3 + UNCOUNTED * self.counted_bytes()
    }
}

/// Small entries that may be on their way to the ring at once: as many as the commit ring has slots.
const UNCOUNTED: u64 = 1024;
