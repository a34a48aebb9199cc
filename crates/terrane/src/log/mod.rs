//! The log: a stream of entries, each at its LSN, that survives what it promises to survive.
//!
//! The stream is addressed by byte. An entry passes through two places on its way: the *tail* ([`tail`]), a mapped file
//! used as a ring, where leaders store it in parallel; and *segments* ([`segment`]), where frames of the stream are
//! written by aligned direct I/O, by a background task or by whoever needs them flushed ([`drain`]). An entry in the tail
//! survives the death of the process; one in a flushed segment survives that of the machine. Neither costs a system call
//! on an unsynced commit.
//!
//! ```text
//!            durable      written        advanced     reserved
//!   ------------+------------+--------------+------------+---->  LSN
//!    segments,  | segments,  | tail only,   | tail, some |
//!    flushed    | unflushed  | all whole    | unfinished |
//! ```
//!
//! Life of a commit: [`Log::admit`] (whatever can fail, fails here), reservation of an LSN by the commit room,
//! [`Log::write`] by its leader, [`Log::advance`] by the orderer, and for a synced commit [`Log::sync_to`]. Once the
//! manifest no longer needs the oldest part, [`Log::release_before`] takes its segments for new use. At open,
//! [`Log::recover`] reads it all back ([`ahead`], [`stream`]) and [`Log::start`] goes on.
//!
//! # What it upholds (rules of the design, by number)
//! * 1, *boot id*. The tail's header has the boot id; under another one the ring is not looked at ([`tail`]).
//! * 2, *log before manifest, free after manifest*. [`Log::release_before`] is called once the edit is durable, and never
//!   lets go of anything at or above the durable LSN. The other half is the engine's: it calls [`Log::sync_to`] first.
//! * 3, *log end*. Frames carry LSN, generation and the LSN known durable, under checksums salted per use of the segment;
//!   [`recover`] tells damage from the end. A recovery makes its generation valid, with everything that was there, by
//!   one header sector before anything is appended; what older generations have from its start on is void ([`start`]).
//!   A commit is acknowledged when all earlier bytes are written: the orderer advances in order, and flushing writes
//!   everything up to the advanced LSN, in order, first.
//! * 4, *one writer per byte path*. Tail and segments are different files; frames are written under a mutex, to fresh
//!   sectors, or over what stands, flushed, in another one ([`writer`]); the tail is allocated and prewritten by the
//!   media room; recovery reads it with `read`.
//! * 16, *poison*. After a failed write or flush [`Log::admit`], [`Log::sync_to`] and everything that writes segments
//!   fail with [`ErrorKind::Poisoned`] until the log is recovered anew. A device that is full is no such failure:
//!   preparing segments ahead finds it out before anything is reserved ([`pool`]).
//!
//! # Concurrency
//! Everything is `&self`. Leaders write disjoint ranges in parallel; one orderer at a time advances; draining, flushing
//! and segment changes happen under one mutex. The lock order is writer, then pool or live list.
//!
//! # After a crash
//! At every point the segments hold a good stream up to some LSN at or above the durable one. What lies between that and
//! the advanced LSN is in the ring, which is taken again only after its bytes are in segments.

mod ahead;
mod drain;
mod gap;
mod options;
mod piece;
mod plan;
mod pool;
mod recover;
mod segment;
mod start;
mod stream;
mod tail;
#[cfg(test)]
mod tests;
mod writer;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use terrane_base::{Error, ErrorKind, Lsn, Result};
use terrane_format::manifest::LogPosition;
use terrane_media::{Media, Queued, Signal};

pub(crate) use gap::joined;
pub(crate) use options::LogOptions;
pub(crate) use piece::Piece;
use pool::Pool;
use recover::Basis;
use tail::Tail;
use writer::{Used, Writer};

/// Where the log of a new database begins: zero stays free to mean "before everything".
pub(crate) const FIRST_LSN: Lsn = 4096;

/// Where recovery starts and what the manifest knows about the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecoverFrom {
    /// Oldest LSN needed; an entry starts there, or the log ends there.
    pub(crate) lsn: Lsn,
    /// The manifest proves the log durable up to here.
    pub(crate) durable: Lsn,
    /// The newest open-generation that the manifest knows; none in the log may be newer.
    pub(crate) generation: u32,
    /// The manifest says that the database was closed: everything is in the segments, the tail is not looked at.
    pub(crate) clean: bool,
}

impl RecoverFrom {
    /// What the manifest says.
    pub(crate) fn of(log: &LogPosition) -> Self {
        let LogPosition { generation, first_lsn, durable_lsn, clean } = *log;
        RecoverFrom { lsn: first_lsn, durable: durable_lsn, generation, clean }
    }
}

/// What [`Log::recover`] found, and what [`Log::start`] needs to go on.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// Where the log ends: the next entry starts here.
    pub(crate) end: Lsn,
    basis: Basis,
}

impl Recovered {
    /// Entries that end at or below are in segments; those behind, in the tail alone.
    pub(crate) fn segments_end(&self) -> Lsn {
        self.basis.segments_end
    }

    /// Entries that end at or below are durable. What stands behind may be lost with the power until the log is started.
    pub(crate) fn proved(&self) -> Lsn {
        self.basis.durable
    }
}

/// The log of an open database. All methods may be called from many threads. Cloning shares it.
#[derive(Clone, Debug)]
pub(crate) struct Log(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    media: Arc<dyn Media>,
    options: LogOptions,
    tail: Tail,
    pool: Pool,
    writer: Mutex<Writer>,
    /// Segments that hold part of the log, oldest first; the last is being written.
    live: Mutex<VecDeque<Used>>,
    /// The first LSN of the first of them, for readers without the lock.
    oldest: AtomicU64,
    /// Bytes of large entries that were let in and are not in the ring yet.
    admitted: AtomicU64,
    /// Apart from all else: each commit changes it, and each looks at what is here.
    advanced: CachePadded<AtomicU64>,
    /// Likewise, what draining changes.
    drained: CachePadded<Drained>,
    /// A preparation is queued or running.
    preparing: AtomicBool,
    /// Notified whenever `advanced` or `written` grows, and on poison.
    signal: Signal,
    closed: AtomicBool,
    poisoned: AtomicBool,
    cause: Mutex<Option<Error>>,
}

/// How far the segments are.
#[derive(Debug)]
struct Drained {
    written: AtomicU64,
    durable: AtomicU64,
    /// Of drains in the background.
    queued: Queued,
    /// Of a flush that nobody waits for.
    flush_queued: Queued,
}

impl Shared {
    fn new(
        media: Arc<dyn Media>,
        options: LogOptions,
        end: Lsn,
        tail: Tail,
        pool: Pool,
        writer: Writer,
        live: VecDeque<Used>,
    ) -> Self {
        Shared {
            media,
            options,
            tail,
            pool,
            writer: Mutex::new(writer),
            oldest: AtomicU64::new(live.front().map_or(end, |s| s.first_lsn)),
            live: Mutex::new(live),
            admitted: AtomicU64::new(0),
            advanced: CachePadded::new(AtomicU64::new(end)),
            drained: CachePadded::new(Drained {
                written: AtomicU64::new(end),
                durable: AtomicU64::new(end),
                queued: Queued::new(),
                flush_queued: Queued::new(),
            }),
            preparing: AtomicBool::new(false),
            signal: Signal::new(),
            closed: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
            cause: Mutex::new(None),
        }
    }

    fn poison(&self, cause: &Error) {
        self.cause.lock().get_or_insert_with(|| cause.clone());
        if !self.poisoned.swap(true, Ordering::AcqRel) {
            // What the device did to unflushed bytes is unknown: a later recovery takes what it can read.
            let _mapped = self.tail.unmark();
        }
        self.signal.notify_all();
    }

    fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    fn note_oldest(&self, live: &VecDeque<Used>) {
        if let Some(first) = live.front() {
            self.oldest.store(first.first_lsn, Ordering::Release);
        }
    }

    fn check_poison(&self) -> Result<()> {
        if !self.is_poisoned() {
            return Ok(());
        }
        let cause = self.cause.lock().as_ref().map_or_else(String::new, |c| format!(": {c}"));
        Err(Error::new(ErrorKind::Poisoned, format!("an earlier write or flush of the log failed{cause}"))
            .with_hint("close the database, see to the device, and open it again"))
    }
}

impl Log {
    /// Largest entry that [`Log::admit`] lets in, in bytes with header and padding.
    pub(crate) fn max_entry(&self) -> u64 {
        self.0.options.max_entry()
    }

    /// Asks, before anything is reserved, whether an entry of `bytes` can be written. On a full device it tries, on
    /// behalf of the caller, to make room. The answer is to be kept until the entry is in the ring.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`], [`ErrorKind::Closed`], [`ErrorKind::Poisoned`], [`ErrorKind::OutOfSpace`], or what
    /// the device said when a segment was prepared.
    pub(crate) fn admit(&self, bytes: u64) -> Result<Admission> {
        if bytes > self.max_entry() {
            return Err(Error::limit("batch size in bytes", bytes, self.max_entry())
                .with_hint("write smaller batches, or open with a larger log tail and larger segments"));
        }
        if self.is_closed() {
            return Err(Error::new(ErrorKind::Closed, "the log is closed"));
        }
        self.0.check_poison()?;
        // Room for many small ones is part of the reserve.
        let (mut counted, mut admission) = (0, Admission(None));
        if bytes >= self.0.options.counted_bytes() {
            counted = self.0.admitted.fetch_add(bytes, Ordering::Relaxed) + bytes;
            admission = Admission(Some((self.0.clone(), bytes)));
        }
        self.0.pool.ensure_room_for(counted)?;
        Ok(admission)
    }

    /// Stores the bytes of the entry at `lsn` into the tail (the parts one behind the other, zeros up to a multiple of
    /// 8). Waits, helping to write out, while the ring has no room. Entries that were admitted and reserved always get
    /// their place in turn: all before them is filled by others, then advanced, then written out.
    ///
    /// # Errors
    /// Only if the log is poisoned, or is by this call, since a place that stays empty ends the log for good.
    pub(crate) fn write(&self, lsn: Lsn, parts: &[&[u8]]) -> Result<()> {
        let len: u64 = parts.iter().map(|p| p.len() as u64).sum();
        let end = lsn + len.next_multiple_of(8);
        let stored = self.0.make_room(end).and_then(|()| self.0.tail.store(lsn, parts));
        if let Err(e) = &stored {
            self.poison(e);
        }
        stored
    }

    /// Says that all entries below `end` are written. Called by the orderer alone, with growing `end`.
    pub(crate) fn advance(&self, end: Lsn) {
        self.0.advance(end);
    }

    /// Makes the log durable up to `lsn` at least (`lsn` at most [`Log::advanced_lsn`]).
    ///
    /// # Errors
    /// [`ErrorKind::Poisoned`], or what the device said. That poisons, unless it failed to give another segment, which
    /// [`Log::admit`] makes unlikely: the bytes stay in the tail then, and a later call may succeed.
    pub(crate) fn sync_to(&self, lsn: Lsn) -> Result<()> {
        self.0.sync_to(lsn)
    }

    /// Below this, the log survives a power failure. An entry ends there.
    pub(crate) fn durable_lsn(&self) -> Lsn {
        self.0.drained.durable.load(Ordering::Acquire)
    }

    /// Below this, all entries are whole in the tail or in segments.
    pub(crate) fn advanced_lsn(&self) -> Lsn {
        self.0.advanced.load(Ordering::Acquire)
    }

    /// Refuses all further writes because of `cause` (design rule 16).
    pub(crate) fn poison(&self, cause: &Error) {
        self.0.poison(cause);
    }

    /// Whether a write or flush failed (design rule 16).
    pub(crate) fn is_poisoned(&self) -> bool {
        self.0.is_poisoned()
    }

    /// The first LSN still held in segments.
    pub(crate) fn oldest_lsn(&self) -> Lsn {
        self.0.oldest.load(Ordering::Acquire)
    }

    /// Bytes of log from the oldest held to the newest.
    pub(crate) fn live_bytes(&self) -> u64 {
        // The smaller one first: both grow.
        let oldest = self.oldest_lsn();
        self.advanced_lsn() - oldest
    }

    /// Refuses further writes, then writes out and flushes everything. May be called again after an error.
    ///
    /// An entry that was let in before can still be on its way. Either this call sees it advanced and flushes it, or its
    /// orderer, who looks after advancing, sees the log closed ([`Log::is_closed`]) and flushes it before it is
    /// acknowledged: there is a SeqCst fence between the two steps on either side.
    pub(crate) fn close(&self) -> Result<()> {
        self.0.closed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.sync_to(self.advanced_lsn())
    }

    /// Whether closing has begun. Read after [`Log::advance`], it says whether [`Log::close`] may have missed what was
    /// advanced: then only [`Log::sync_to`] keeps it, for the tail of a log closed cleanly is not looked at.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::Relaxed)
    }
}

/// Leave to bring an entry: see [`Log::admit`].
#[derive(Debug)]
#[must_use = "an entry counts only as long as its admission lives"]
pub(crate) struct Admission(Option<(Arc<Shared>, u64)>);

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some((log, bytes)) = &self.0 {
            log.admitted.fetch_sub(*bytes, Ordering::Relaxed);
        }
    }
}
