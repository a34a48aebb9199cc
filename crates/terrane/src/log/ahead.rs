//! Reads segments ahead of whoever verifies them: while one window is looked at, a background task fills the next.
//!
//! Reading ahead is a help and decides nothing. What it did not bring (the read failed, or the machine drops its tasks)
//! is read when it is needed, in small steps; so a place that cannot be read is an error to who needs it, and to nobody
//! else.
//!
//! # Concurrency
//! One reader asks for windows in the order of the log and takes them in that order. Tasks fill them, each its own, and
//! have all ended when the reader is dropped. A task that is dropped unrun, or panics, ends its window too.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use terrane_base::Result;
use terrane_format::log::LOG_SECTOR;
use terrane_media::{File, Media, Pool, Signal};

use super::plan::Planned;
use crate::buffers::Buffers;

/// What one task reads.
const WINDOW: u64 = 1 << 20;
/// What is read at once where no task has read.
const STEP: u64 = 256 << 10;
/// Windows asked for and not taken.
const AHEAD: usize = 4;
/// Buffers kept for the next windows. Those asked for, the one looked at and those that a replay inserts from are about
/// as many.
const KEPT: usize = 12;

/// Reads a row of segments. See the module's head.
#[derive(Debug)]
pub(super) struct Ahead<'a> {
    media: &'a Arc<dyn Media>,
    segments: &'a [Planned],
    /// Segment and offset of the first window not asked for.
    next: (usize, u64),
    asked: VecDeque<Asked>,
    shared: Arc<Shared>,
}

/// A window that was asked for, by segment and offset.
#[derive(Debug)]
struct Asked {
    place: (usize, u64),
    slot: Arc<Mutex<Slot>>,
}

#[derive(Debug)]
enum Slot {
    Waiting,
    /// With what was read, unless it could not be.
    Ended(Option<Bytes>),
}

/// What reader and tasks share.
#[derive(Debug)]
struct Shared {
    /// Tasks that have not ended.
    unended: AtomicUsize,
    /// The reader wants nothing more.
    over: AtomicBool,
    signal: Signal,
    buffers: Arc<Buffers>,
}

/// The `len` bytes from `at` on, in memory of `buffers`.
fn load(buffers: &Arc<Buffers>, file: &dyn File, at: u64, len: u64) -> Result<Bytes> {
    let len = len as usize;
    let mut loan = buffers.take(len);
    file.read_at(&mut loan[..len], at)?;
    Ok(Bytes::from_owner(loan).slice(..len))
}

impl<'a> Ahead<'a> {
    pub(super) fn new(media: &'a Arc<dyn Media>, segments: &'a [Planned]) -> Self {
        let next = (0, LOG_SECTOR as u64);
        let shared = Shared {
            unended: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            signal: Signal::new(),
            buffers: Buffers::new(KEPT),
        };
        Ahead { media, segments, next, asked: VecDeque::new(), shared: Arc::new(shared) }
    }

    /// Bytes of segment `index` from `at` on, which lies within it: some whole sectors. Never asked for places that lie
    /// before what was read last.
    pub(super) fn read(&mut self, index: usize, at: u64) -> Result<Bytes> {
        let place = (index, at);
        // The stream may go on in another segment before it comes to the end of one.
        while self.asked.front().is_some_and(|a| a.place < place) {
            self.asked.pop_front();
        }
        self.next = self.next.max(place);
        self.ask();
        if let Some(asked) = self.asked.pop_front_if(|a| a.place == place) {
            self.ask();
            if let Some(window) = self.wait(&asked) {
                return Ok(window);
            }
        }
        let segment = &self.segments[index];
        let until = match self.asked.front() {
            Some(a) if a.place.0 == index => a.place.1,
            _ => segment.end(),
        };
        let len = (until - at).min(STEP);
        load(&self.shared.buffers, &*segment.file, at, len).map_err(|e| e.with_offset(at))
    }

    /// Keeps tasks busy.
    fn ask(&mut self) {
        while self.asked.len() < AHEAD
            && let Some(segment) = self.segments.get(self.next.0)
        {
            let place @ (index, at) = self.next;
            let len = segment.end().saturating_sub(at).min(WINDOW);
            if len == 0 {
                self.next = (index + 1, LOG_SECTOR as u64);
                continue;
            }
            self.next = (index, at + len);
            let slot = Arc::new(Mutex::new(Slot::Waiting));
            self.asked.push_back(Asked { place, slot: slot.clone() });
            self.shared.unended.fetch_add(1, Ordering::Relaxed);
            let (order, file) = (Order { slot, shared: self.shared.clone() }, segment.file.clone());
            self.media.spawn(Pool::Io, "read the log ahead", Box::new(move || order.read(at, len, file)));
        }
    }

    fn wait(&self, asked: &Asked) -> Option<Bytes> {
        let ended = || matches!(*asked.slot.lock(), Slot::Ended(_));
        // If nobody is left to read it, nobody has.
        self.shared.signal.wait_until(&**self.media, ended).ok()?;
        match std::mem::replace(&mut *asked.slot.lock(), Slot::Ended(None)) {
            Slot::Ended(window) => window,
            Slot::Waiting => None,
        }
    }
}

impl Drop for Ahead<'_> {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        let none = || self.shared.unended.load(Ordering::Acquire) == 0;
        // An error says that no task is left either.
        let _none_left = self.shared.signal.wait_until(&**self.media, none);
    }
}

/// A task's side of a window.
struct Order {
    slot: Arc<Mutex<Slot>>,
    shared: Arc<Shared>,
}

impl Order {
    // The file is let go of before the order is, by which the task counts as ended.
    fn read(self, at: u64, len: u64, file: Arc<dyn File>) {
        if self.shared.over.load(Ordering::Relaxed) {
            return;
        }
        // Whoever needs it finds the error again.
        let window = load(&self.shared.buffers, &*file, at, len).ok();
        *self.slot.lock() = Slot::Ended(window);
    }
}

impl Drop for Order {
    fn drop(&mut self) {
        {
            let mut slot = self.slot.lock();
            if matches!(*slot, Slot::Waiting) {
                *slot = Slot::Ended(None);
            }
        }
        // Release: whoever sees that the task has ended sees all that it did.
        self.shared.unended.fetch_sub(1, Ordering::Release);
        self.shared.signal.notify_all();
    }
}
