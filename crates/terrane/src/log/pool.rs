//! Segments that lie ready: prepared ahead, or let go of by the log and kept for their next use.
//!
//! The pool keeps *room* (bytes that frames can still take) ahead of what writers may bring, so that writing out never has
//! to ask the file system for space. A writer is let in only while [`Pool::room`] covers the ring and half of it again
//! (padding), and all entries that were let in and are not in the ring yet; when less than a segment more than that is left,
//! a background task prepares the next. On a full device preparing fails, writers are turned away with
//! [`terrane_base::ErrorKind::OutOfSpace`] one by one as each of them tries again, and the first try that succeeds lets them
//! in again.
//!
//! # Concurrency
//! `spares` is locked for moments only. `preparing` is held while a file is made, so that at most one is made at a time
//! and all who wait for it find it. The room is read without a lock: it is a sum of two atomics and may be short by one
//! segment for the moment in which a spare becomes the current one; the slow path then finds the spare, or prepares
//! one too many, which is harmless.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use terrane_base::Result;
use terrane_media::Media;

use super::LogOptions;
use super::segment::{self, Segment};

/// Spare segments kept at most, unless the room that writers need takes more.
const MOST_SPARES: usize = 4;

#[derive(Debug)]
pub(super) struct Pool {
    media: Arc<dyn Media>,
    options: LogOptions,
    spares: Mutex<VecDeque<Segment>>,
    /// How many there are, for readers without the lock.
    ready: AtomicUsize,
    /// Room left in the segment that is written now.
    current_room: AtomicU64,
    preparing: Mutex<()>,
    next_number: AtomicU64,
}

impl Pool {
    pub(super) fn new(media: Arc<dyn Media>, options: LogOptions, next_number: u64) -> Pool {
        Pool {
            media,
            options,
            spares: Mutex::default(),
            ready: AtomicUsize::new(0),
            current_room: AtomicU64::new(0),
            preparing: Mutex::new(()),
            next_number: AtomicU64::new(next_number),
        }
    }

    /// Bytes that frames can take without preparing anything.
    pub(super) fn room(&self) -> u64 {
        let spares = self.ready.load(Ordering::Relaxed) as u64;
        self.current_room.load(Ordering::Relaxed) + spares * self.options.segment_room()
    }

    /// Whether writers may be let in whose counted entries come to `bytes`.
    pub(super) fn has_room_for(&self, bytes: u64) -> bool {
        self.room() >= self.options.reserve_bytes() + bytes
    }

    /// Whether the next segment should be prepared before it is needed.
    pub(super) fn wants_more(&self) -> bool {
        self.room() < self.options.reserve_bytes() + self.options.segment_room()
    }

    /// Says how much room the segment being written has left.
    pub(super) fn set_current_room(&self, bytes: u64) {
        self.current_room.store(bytes, Ordering::Relaxed);
    }

    /// A segment for use: a spare, or one prepared on the spot.
    pub(super) fn take(&self) -> Result<Segment> {
        loop {
            {
                let mut spares = self.spares.lock();
                if let Some(s) = spares.pop_front() {
                    self.ready.store(spares.len(), Ordering::Relaxed);
                    return Ok(s);
                }
            }
            self.prepare_unless(|| self.ready.load(Ordering::Relaxed) > 0)?;
        }
    }

    /// Prepares segments until they may; mostly there is nothing to do.
    pub(super) fn ensure_room_for(&self, bytes: u64) -> Result<()> {
        while !self.has_room_for(bytes) {
            self.prepare_unless(|| self.has_room_for(bytes))?;
        }
        Ok(())
    }

    /// Prepares segments until there are enough for some time.
    pub(super) fn fill(&self) -> Result<()> {
        while self.wants_more() {
            self.prepare_unless(|| !self.wants_more())?;
        }
        Ok(())
    }

    /// Prepares one segment, unless `enough` holds once it is this caller's turn.
    fn prepare_unless(&self, enough: impl Fn() -> bool) -> Result<()> {
        let _turn = self.preparing.lock();
        if enough() {
            return Ok(());
        }
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let bytes = self.options.segment_bytes;
        let segment = Segment::prepare(&*self.media, &self.options.dir, number, bytes)?;
        self.add(segment);
        Ok(())
    }

    /// Adds a segment whose name and space are durable and whose content nobody needs.
    pub(super) fn add(&self, segment: Segment) {
        let mut spares = self.spares.lock();
        spares.push_back(segment);
        self.ready.store(spares.len(), Ordering::Relaxed);
    }

    /// Takes a segment back from the log, or removes the file if there are spares enough.
    pub(super) fn give_back(&self, segment: Segment) -> Result<()> {
        if self.ready.load(Ordering::Relaxed) < MOST_SPARES || self.wants_more() {
            self.add(segment);
            return Ok(());
        }
        // Should the name come back after a power failure, what it names is older than all that is needed.
        self.media.remove_file(&segment::path(&self.options.dir, segment.number))
    }
}
