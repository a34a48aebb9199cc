//! The log: commits on their way to the device.
//!
//! Two files' worth of state. The *tail* is a mapped ring into which leaders copy their entries: that is all an unsynced
//! commit costs, and it survives the death of the process. *Segments* are prewritten files to which the tail is drained,
//! by aligned direct writes of *frames*, in the background or by a synced commit, which also flushes.
//!
//! # Rules (design section 9)
//! 1. The tail carries the boot id. In another boot, or after a clean close, its content is ignored.
//! 2. Nothing here releases a segment before the caller says so, which it does after the manifest edit.
//! 3. A frame carries LSN, generation, the LSN known durable when it was written, and a CRC salted per use of its file. A
//!    bad frame is corruption if a later frame, the manifest or the tail proves that it was durable; otherwise the log
//!    ends there.
//! 4. Tail and segments are different files, and a sector once written in a segment is not written again in that use.
//! 16. After a failed write or flush the log is poisoned: everything later fails until the database is reopened.
//!
//! # Concurrency
//! `write` is called by any number of leaders on disjoint ranges. `advance` is called by the ring's orderer alone. The
//! writer's state is behind one mutex, taken by drains, flushes and releases, never by an unsynced commit with room.
//!
//! # Order of LSNs
//! `durable <= written <= advanced`: flushed, written to segments, completely in the tail.

mod format;
mod options;
mod recover;
mod segment;
mod tail;
mod writer;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use terrane_base::{Error, ErrorKind, Lsn, Result};
use terrane_media::{Media, Pool, Signal};

pub(crate) use options::LogOptions;
pub(crate) use recover::{RecoverFrom, Recovered};
use tail::Tail;
use writer::Writer;

/// LSN of the first byte of a new database's log.
pub(crate) const FIRST_LSN: Lsn = 4096;

/// See the module's head. Cloning shares it.
#[derive(Clone, Debug)]
pub(crate) struct Log(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    media: Arc<dyn Media>,
    options: LogOptions,
    tail: Tail,
    advanced: AtomicU64,
    written: AtomicU64,
    durable: AtomicU64,
    /// First LSN of the oldest segment that is kept.
    oldest: AtomicU64,
    writer: Mutex<Writer>,
    /// A drain is queued.
    draining: AtomicBool,
    /// A spare segment is being prepared.
    preparing: AtomicBool,
    /// Spare room may be short: writers ask before they reserve.
    short: AtomicBool,
    /// Raised when `advanced` or `written` moves.
    moved: Signal,
    poison: OnceLock<Error>,
}

impl Log {
    /// Opens the log for writing after [`Log::recover`]. What only the tail held is made durable in a fresh segment of
    /// the new generation before the tail is reused.
    ///
    /// # Errors
    /// I/O errors, a full device.
    pub(crate) fn start(
        media: Arc<dyn Media>,
        options: LogOptions,
        generation: u32,
        recovered: Recovered,
    ) -> Result<Log> {
        let (end, oldest) = (recovered.end, recovered.oldest());
        let writer = Writer::start(&*media, &options, generation, recovered)?;
        let tail = Tail::open(&*media, &options, generation)?;
        let log = Log(Arc::new(Inner {
            media,
            options,
            tail,
            advanced: AtomicU64::new(end),
            written: AtomicU64::new(end),
            durable: AtomicU64::new(end),
            oldest: AtomicU64::new(oldest),
            writer: Mutex::new(writer),
            draining: AtomicBool::new(false),
            preparing: AtomicBool::new(false),
            short: AtomicBool::new(true),
            moved: Signal::new(),
            poison: OnceLock::new(),
        }));
        log.admit(0)?;
        Ok(log)
    }

    /// Stores an entry's bytes in the tail; waits, helping to drain, while there is no room. Everything in front of `lsn`
    /// must be stored by others without waiting for this call.
    ///
    /// # Errors
    /// [`ErrorKind::Poisoned`].
    pub(crate) fn write(&self, lsn: Lsn, parts: &[&[u8]]) -> Result<()> {
        let len: usize = parts.iter().map(|p| p.len()).sum();
        let end = lsn + len.next_multiple_of(8) as u64;
        let inner = &*self.0;
        let fits = || end - inner.written.load(Ordering::Acquire) <= inner.options.tail_bytes as u64;
        while !fits() {
            inner.check_poison()?;
            let more = || inner.advanced.load(Ordering::Acquire) > inner.written.load(Ordering::Acquire);
            inner.moved.wait_until(&*inner.media, || fits() || more() || inner.poison.get().is_some())?;
            if more() && !fits() {
                inner.drain(&mut inner.writer.lock())?;
            }
        }
        inner.tail.store(lsn, parts)
    }

    /// Checks what can fail before anything is reserved.
    ///
    /// # Errors
    /// [`ErrorKind::Poisoned`], [`ErrorKind::OutOfSpace`] while no spare segment can be prepared.
    pub(crate) fn admit(&self, _bytes: u64) -> Result<()> {
        let inner = &*self.0;
        inner.check_poison()?;
        if !inner.short.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut writer = inner.writer.lock();
        writer.prepare_spares(&*inner.media, &inner.options)?;
        inner.short.store(false, Ordering::Release);
        Ok(())
    }

    /// Says that everything below `end` is in the tail. Called by the orderer alone; no system call.
    pub(crate) fn advance(&self, end: Lsn) {
        let inner = &*self.0;
        inner.advanced.store(end, Ordering::Release);
        inner.moved.notify_all();
        let waiting = end - inner.written.load(Ordering::Relaxed);
        if waiting >= inner.options.drain_bytes as u64 && !inner.draining.swap(true, Ordering::AcqRel) {
            let weak = Arc::downgrade(&self.0);
            let job = move || {
                if let Some(inner) = weak.upgrade() {
                    inner.draining.store(false, Ordering::Release);
                    // A failure has poisoned the log: the next commit hears of it.
                    let _ = inner.drain(&mut inner.writer.lock());
                }
            };
            inner.media.spawn(Pool::Log, "log drain", Box::new(job));
        }
    }

    /// Makes the log durable up to `lsn`, which must have been advanced to. Callers that come together share a flush.
    ///
    /// # Errors
    /// What writing or flushing fails with; the log is poisoned then.
    pub(crate) fn sync_to(&self, lsn: Lsn) -> Result<()> {
        let inner = &*self.0;
        if inner.durable.load(Ordering::Acquire) >= lsn {
            return Ok(());
        }
        let mut writer = inner.writer.lock();
        if inner.durable.load(Ordering::Acquire) >= lsn {
            return Ok(());
        }
        inner.drain(&mut writer)?;
        let upto = inner.written.load(Ordering::Acquire);
        if upto < lsn {
            return Err(Error::invalid(format!("log flush to {lsn}, but only {upto} is written")));
        }
        writer.flush().map_err(|e| inner.poisoned_by(e))?;
        inner.durable.fetch_max(upto, Ordering::AcqRel);
        Ok(())
    }

    /// Flushed up to here.
    pub(crate) fn durable_lsn(&self) -> Lsn {
        self.0.durable.load(Ordering::Acquire)
    }

    /// In the tail up to here.
    pub(crate) fn advanced_lsn(&self) -> Lsn {
        self.0.advanced.load(Ordering::Acquire)
    }

    /// Bytes from the oldest segment that is kept to the end.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.advanced_lsn() - self.0.oldest.load(Ordering::Acquire).min(self.advanced_lsn())
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.0.poison.get().is_some()
    }

    /// Refuses all later writes because of `e`.
    pub(crate) fn poison(&self, e: &Error) {
        let _ = self.0.poison.set(e.clone());
        self.0.moved.notify_all();
    }

    /// Recycles segments that hold nothing at or above `lsn`. Only after the manifest edit that says so is durable.
    ///
    /// # Errors
    /// I/O errors when removing a file; nothing is lost then but space.
    pub(crate) fn release_before(&self, lsn: Lsn) -> Result<()> {
        let inner = &*self.0;
        let mut writer = inner.writer.lock();
        writer.release_before(&*inner.media, lsn)?;
        inner.oldest.store(writer.oldest_lsn(), Ordering::Release);
        Ok(())
    }

    /// Drains and flushes everything.
    ///
    /// # Errors
    /// As for [`Log::sync_to`].
    pub(crate) fn close(&self) -> Result<()> {
        self.0.check_poison()?;
        self.sync_to(self.advanced_lsn())
    }
}

impl Inner {
    fn check_poison(&self) -> Result<()> {
        match self.poison.get() {
            None => Ok(()),
            Some(cause) => Err(Error::new(
                ErrorKind::Poisoned,
                format!("the log takes no writes after a failure: {}", cause.message()),
            )
            .with_hint("find the cause, then close and reopen the database")),
        }
    }

    fn poisoned_by(&self, e: Error) -> Error {
        let _ = self.poison.set(e.clone());
        self.moved.notify_all();
        e
    }

    /// Writes what the tail holds to segments.
    fn drain(&self, writer: &mut Writer) -> Result<()> {
        self.check_poison()?;
        let upto = self.advanced.load(Ordering::Acquire);
        let from = self.written.load(Ordering::Acquire);
        if upto == from {
            return Ok(());
        }
        let durable = self.durable.load(Ordering::Acquire);
        let done = (self.options.before_write)().and_then(|()| {
            writer
                .write(&*self.media, &self.options, durable, from, upto, |lsn, buf| self.tail.load(lsn, buf))
        });
        done.map_err(|e| self.poisoned_by(e))?;
        self.written.store(upto, Ordering::Release);
        self.moved.notify_all();
        if writer.is_short(&self.options) {
            self.prepare_later();
        }
        Ok(())
    }

    /// Has a spare segment prepared in the background; until then writers look before they reserve.
    fn prepare_later(&self) {
        self.short.store(true, Ordering::Release);
    }
}
