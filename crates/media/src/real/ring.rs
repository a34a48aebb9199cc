//! Many reads at once, by io_uring where the kernel lets us have one, else one after the other.
//!
//! A ring is borrowed for a call, filled with as many reads as it has entries, and waited for until it is empty. A read
//! that did not come back whole is made again by the ordinary call, which also finds the right error for it.
//!
//! # Concurrency
//! Rings are kept in a list under a mutex, held only to take one out or put it back.

use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::{IoUring, opcode, types};
use parking_lot::Mutex;
use terrane_base::Result;

use crate::ReadRequest;
use crate::error::check_alignment;

/// Reads under way at once in one ring. Beyond this devices gain little.
const ENTRIES: u32 = 64;

/// Rings kept for later calls; more are made and dropped as concurrent calls need them.
const KEPT: usize = 32;

pub(super) struct Rings {
    idle: Mutex<Vec<IoUring>>,
    /// The kernel has refused one: it is too old, or forbids it.
    pub(super) refused: AtomicBool,
}

impl Rings {
    pub(super) fn new() -> Self {
        Rings { idle: Mutex::new(Vec::new()), refused: AtomicBool::new(false) }
    }

    pub(super) fn read_many(&self, requests: &mut [ReadRequest<'_>]) -> Result<()> {
        let mut whole = vec![false; requests.len()];
        // A single read gains nothing from a ring.
        if requests.len() > 1
            && let Some(mut ring) = self.take()
        {
            let mut sound = true;
            for (requests, whole) in
                requests.chunks_mut(ENTRIES as usize).zip(whole.chunks_mut(ENTRIES as usize))
            {
                sound = sound && read_batch(&mut ring, requests, whole);
            }
            if sound {
                self.put_back(ring);
            }
        }
        let mut first = Ok(());
        for (request, whole) in requests.iter_mut().zip(whole) {
            if !whole {
                let read = request.file.read_at(request.buf, request.offset);
                first = first.and(read);
            }
        }
        first
    }

    fn take(&self) -> Option<IoUring> {
        if self.refused.load(Ordering::Relaxed) {
            return None;
        }
        let kept = self.idle.lock().pop();
        kept.or_else(|| match IoUring::new(ENTRIES) {
            Ok(ring) => Some(ring),
            Err(_) => {
                self.refused.store(true, Ordering::Relaxed);
                None
            }
        })
    }

    fn put_back(&self, ring: IoUring) {
        let mut idle = self.idle.lock();
        if idle.len() < KEPT {
            idle.push(ring);
        }
    }
}

impl fmt::Debug for Rings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rings({} idle)", self.idle.lock().len())
    }
}

/// Makes up to [`ENTRIES`] reads, marking those that came back whole. False if the ring must not be used again.
fn read_batch(ring: &mut IoUring, requests: &mut [ReadRequest<'_>], whole: &mut [bool]) -> bool {
    let mut queued = 0;
    for (i, r) in requests.iter_mut().enumerate() {
        let Some(fd) = r.file.descriptor() else { continue };
        let Ok(len) = u32::try_from(r.buf.len()) else { continue };
        if len == 0 || check_alignment(r.file.path(), r.file.align(), r.buf, r.offset).is_err() {
            continue;
        }
        let entry = opcode::Read::new(types::Fd(fd.as_raw_fd()), r.buf.as_mut_ptr(), len)
            .offset(r.offset)
            .build()
            .user_data(i as u64);
        // SAFETY: the buffer and the descriptor are borrowed by the request, which outlives this function, and the
        // function does not return before the kernel is done with every entry it has taken.
        if unsafe { ring.submission().push(&entry) }.is_err() {
            break;
        }
        queued += 1;
    }
    let (mut done, mut sound) = (0, true);
    while done < queued {
        if !sound {
            // Completions arrive by themselves.
            std::thread::yield_now();
        } else if let Err(e) = ring.submit_and_wait(1)
            && e.kind() != io::ErrorKind::Interrupted
        {
            // What the kernel has taken it will finish; what it has not taken dies with the ring.
            sound = false;
            queued -= ring.submission().len();
        }
        for entry in ring.completion() {
            let i = entry.user_data() as usize;
            if let (Some(whole), Some(r)) = (whole.get_mut(i), requests.get(i)) {
                *whole = usize::try_from(entry.result()).is_ok_and(|n| n == r.buf.len());
            }
            done += 1;
        }
    }
    sound
}
