//! From the tail to the segments: draining in the background, flushing for those who wait, making room in the ring.
//!
//! # Concurrency
//! `writer` is locked for as long as frames are written or flushed, so there is one writer per byte path (design rule 4);
//! who waits for a flush and gets the lock finds, more often than not, that the last holder's flush covered it.
//! `advanced`, `written` and `durable` only grow, in this order of size. Nobody waits at a signal while holding the lock:
//! on a simulated machine the waiter runs the very tasks that take it.
//!
//! What is durable ends with an entry, for so does what is advanced, and a flush comes after all of that was written. A log that ends
//! below where it was durable is damaged, and of an entry half of which is durable a power failure leaves nothing.
//!
//! Two segments' worth of stream at most waits unflushed, give or take what is written meanwhile: a recovery writes again
//! all that was not proved durable, and nobody need ever have asked for a flush. Memtables that are written out have the
//! log flushed more often than that, unless they are large.
//!
//! And no commit waits longer than some seconds ([`LogOptions::flush_after`](super::LogOptions)), however little is written: a task that is
//! queued with the first of them flushes all there are by then: it says that it is through before it looks how far the log is.
//!
//! Advancing costs two stores, a fence and a load. At most one task is queued to drain, and one to flush ([`terrane_media::Queued`]).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrane_base::{Error, Lsn, Result};
use terrane_media::Pool as Threads;

use super::writer::Writer;
use super::{Log, Shared};

impl Shared {
    /// Says that all entries below `end` are whole in the ring.
    pub(super) fn advance(self: &Arc<Self>, end: Lsn) {
        debug_assert!(end >= self.advanced.load(Ordering::Relaxed), "the orderer goes forwards");
        // Release: whoever sees the LSN sees the bytes below it in the ring.
        self.advanced.store(end, Ordering::Release);
        if !self.is_poisoned() {
            if let Err(e) = self.tail.mark(end) {
                self.poison(&e);
            } else if self.is_poisoned() {
                // Someone withdrew the mark between the look and this one.
                let _mapped = self.tail.unmark();
            }
        }
        // A full fence: after it, `closed` is read (see `Log::close`), and whether a drain is queued.
        self.signal.notify_all();
        self.drain_ahead();
        self.flush_in_a_while();
    }

    /// Has all of it flushed before long, unless somebody will. The caller has a SeqCst fence behind what it advanced.
    fn flush_in_a_while(self: &Arc<Self>) {
        let Some(delay) = self.options.flush_after else { return };
        if !self.drained.flush_queued.ask() {
            return;
        }
        let shared = Arc::downgrade(self);
        let job = move || {
            let Some(shared) = shared.upgrade() else { return };
            shared.drained.flush_queued.through();
            // Failing poisons, or is a full device: who writes next hears of it.
            let _later = shared.sync_to(shared.advanced.load(Ordering::Acquire));
        };
        self.media.spawn_after(Threads::Log, delay, "flush what waits", Box::new(job));
    }

    /// Queues a drain if one is due and none is queued. The caller has a SeqCst fence behind what it changed.
    fn drain_ahead(self: &Arc<Self>) {
        if self.drain_is_due() && self.drained.queued.ask() {
            // Weak: a log that is dropped needs no draining, and its tasks must not keep it, and so the machine, alive.
            let shared = Arc::downgrade(self);
            let job = move || shared.upgrade().map_or((), |s| s.drain_task());
            self.media.spawn(Threads::Log, "drain the log's tail", Box::new(job));
        }
    }

    fn drain_is_due(&self) -> bool {
        // The smaller one first: both grow.
        let written = self.drained.written.load(Ordering::Acquire);
        let behind = self.advanced.load(Ordering::Acquire) - written;
        behind >= self.options.full_payload() as u64
    }

    fn drain_task(self: &Arc<Self>) {
        let drained = self.drain_full_frames().and_then(|()| self.flush_if_due());
        self.drained.queued.through();
        // After an error nothing is gained by trying again at once: who needs it drained will, and hear of it.
        if drained.is_ok() {
            self.drain_ahead();
        }
    }

    /// Writes out what fills whole frames, and leaves the rest to gather.
    fn drain_full_frames(self: &Arc<Self>) -> Result<()> {
        let mut writer = self.writer.lock();
        let full = self.options.full_payload() as u64;
        let behind = self.advanced.load(Ordering::Acquire) - writer.written();
        self.write_out(&mut writer, behind / full * full)
    }

    /// Flushes everything, if much of it is written and not flushed. Not what full frames hold alone: they end within an entry.
    fn flush_if_due(self: &Arc<Self>) -> Result<()> {
        let durable = self.drained.durable.load(Ordering::Acquire);
        if self.drained.written.load(Ordering::Acquire) - durable < 2 * self.options.segment_bytes {
            return Ok(());
        }
        self.sync_to(self.advanced.load(Ordering::Acquire))
    }

    /// Flushes what is written, which is everything that was advanced at some moment. Failing poisons.
    fn flush(&self, writer: &mut Writer) -> Result<()> {
        self.check_poison()?;
        writer.sync().inspect_err(|e| self.poison(e))?;
        self.drained.durable.store(writer.written(), Ordering::Release);
        Ok(())
    }

    /// Writes out everything.
    pub(super) fn drain(self: &Arc<Self>) -> Result<()> {
        let mut writer = self.writer.lock();
        let behind = self.advanced.load(Ordering::Acquire) - writer.written();
        self.write_out(&mut writer, behind)
    }

    /// Writes the next `len` bytes of the stream into segments. A failed write poisons; failing to get a segment does not.
    fn write_out(self: &Arc<Self>, writer: &mut Writer, len: u64) -> Result<()> {
        self.check_poison()?;
        if len == 0 {
            return Ok(());
        }
        let poisoned = |e: Error| {
            self.poison(&e);
            e
        };
        let to = writer.written() + len;
        let mut done = (self.options.before_write)().map_err(poisoned);
        while done.is_ok() && writer.written() < to {
            done = writer.reserve(&self.pool, to - writer.written());
            if done.is_ok() {
                done = self.write_frame(writer, to).map_err(poisoned);
            }
        }
        self.signal.notify_all();
        self.prepare_ahead();
        done
    }

    fn write_frame(&self, writer: &mut Writer, to: Lsn) -> Result<()> {
        let durable = self.drained.durable.load(Ordering::Relaxed);
        let (left, most) = (to - writer.written(), self.options.full_payload());
        let new = writer.frame(&self.pool, durable, left, most, |lsn, out| self.tail.load(lsn, out))?;
        if new.is_some() {
            let mut live = self.live.lock();
            live.extend(new);
            self.note_oldest(&live);
        }
        // Release: whoever sees the LSN may store over the ring's bytes below it.
        self.drained.written.store(writer.written(), Ordering::Release);
        Ok(())
    }

    pub(super) fn sync_to(self: &Arc<Self>, lsn: Lsn) -> Result<()> {
        if self.drained.durable.load(Ordering::Acquire) >= lsn {
            return Ok(());
        }
        if lsn > self.advanced.load(Ordering::Acquire) {
            return Err(Error::invalid(format!("LSN {lsn} is not written yet and cannot be flushed")));
        }
        let mut writer = self.writer.lock();
        if self.drained.durable.load(Ordering::Acquire) >= lsn {
            return Ok(());
        }
        let behind = self.advanced.load(Ordering::Acquire) - writer.written();
        self.write_out(&mut writer, behind)?;
        self.flush(&mut writer)
    }

    /// Waits until the ring has a place for everything below `end`.
    pub(super) fn make_room(self: &Arc<Self>, end: Lsn) -> Result<()> {
        loop {
            if self.has_room(end) {
                return Ok(());
            }
            self.check_poison()?;
            if self.advanced.load(Ordering::Acquire) > self.drained.written.load(Ordering::Relaxed) {
                self.drain()?;
                continue;
            }
            // What fills the ring belongs to other leaders, who have yet to fill their places.
            self.signal.wait_until(&*self.media, || {
                self.has_room(end)
                    || self.is_poisoned()
                    || self.advanced.load(Ordering::Acquire) > self.drained.written.load(Ordering::Relaxed)
            })?;
        }
    }

    fn has_room(&self, end: Lsn) -> bool {
        // Acquire: what the drainer read from the place lies before what is stored there next.
        end <= self.drained.written.load(Ordering::Acquire) + self.options.tail_bytes as u64
    }

    /// Has a spare segment prepared in the background if few are left.
    pub(super) fn prepare_ahead(self: &Arc<Self>) {
        if self.pool.wants_more() && !self.preparing.swap(true, Ordering::AcqRel) {
            let shared = Arc::downgrade(self);
            let job = move || {
                let Some(shared) = shared.upgrade() else { return };
                // On failure writers try for themselves once the reserve is used up, and say why.
                let _later = shared.pool.fill();
                shared.preparing.store(false, Ordering::Release);
            };
            self.media.spawn(Threads::Log, "prepare a log segment", Box::new(job));
        }
    }
}

impl Log {
    /// Lets go of segments that hold nothing at or above `lsn`. The manifest's edit that makes them unneeded must be
    /// durable (design rule 2).
    pub(crate) fn release_before(&self, lsn: Lsn) -> Result<()> {
        let bound = lsn.min(self.durable_lsn());
        loop {
            let released = {
                let mut live = self.0.live.lock();
                let first = match live.get(1) {
                    Some(next) if next.first_lsn <= bound => live.pop_front(),
                    _ => return Ok(()),
                };
                self.0.note_oldest(&live);
                first
            };
            if let Some(used) = released {
                self.0.pool.give_back(used.segment)?;
            }
        }
    }
}
