//! What the cores of an executor and its clients share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use terrane_base::{Current, Result};
use terrane_media::{Media, Signal};

use crate::db::engine::Engine;
use crate::exec::balance::Balance;
use crate::exec::core::Poller;
use crate::exec::lane::{CoreEnd, ended};
use crate::exec::placement::Placement;
use crate::exec::request::Answer;

/// See the module's head.
pub(super) struct Shared {
    pub(super) engine: Arc<Engine>,
    pub(super) cores: Box<[CachePadded<Seat>]>,
    pub(super) placement: Arc<Current<Placement>>,
    pub(super) balance: Balance,
    /// No core takes anything new; each ends when it has answered what is under way.
    pub(super) ending: AtomicBool,
    /// Lanes made so far.
    pub(super) lanes: AtomicU64,
}

/// Where a core is reached from outside.
#[derive(Default)]
pub(super) struct Seat {
    /// Raised when there is something to do, if it sleeps.
    signal: Signal,
    /// It sleeps, or is about to, and nobody has woken it yet.
    asleep: AtomicBool,
    /// Something has arrived. Set after that was put there.
    pub(super) arrived: AtomicBool,
    arrivals: Mutex<Arrivals>,
}

#[derive(Default)]
struct Arrivals {
    some: Vec<Arrival>,
    /// The core has left.
    closed: bool,
}

/// What comes to a core seldom.
pub(super) enum Arrival {
    Lane(CoreEnd),
    Poller(Poller),
    /// Answers to requests of a lane that had to wait for the medium.
    Late(Vec<(u64, Answer)>),
}

impl Shared {
    /// Hands something to a core, and wakes it.
    pub(super) fn arrive(&self, core: usize, arrival: Arrival) -> Result<()> {
        {
            let mut arrivals = self.cores[core].arrivals.lock();
            if arrivals.closed {
                return Err(ended());
            }
            arrivals.some.push(arrival);
        }
        self.wake(core);
        Ok(())
    }

    /// Has a core take a turn.
    pub(super) fn wake(&self, core: usize) {
        let seat = &self.cores[core];
        seat.arrived.store(true, Ordering::Release);
        seat.wake();
    }

    /// Has what goes by owners follow.
    pub(super) fn owners_changed(&self) {
        self.forget_dropped();
        self.engine.settle_homes();
    }

    /// Drops what the placement knows of subtables that were dropped, if that is much.
    pub(super) fn forget_dropped(&self) {
        let tables = self.engine.tables.load();
        if self.placement.load().len() > tables.len() {
            self.placement.replace(|p| p.only(|id| tables.by_id(id).is_some()));
        }
    }

    /// Has every core end.
    pub(super) fn end(&self) {
        self.ending.store(true, Ordering::Release);
        self.cores.iter().for_each(|seat| seat.wake());
    }
}

impl Seat {
    /// Wakes the core if it sleeps. Called after what it is to see: of many who call, one makes the system call.
    #[inline]
    pub(super) fn wake(&self) {
        // Between the change and the look, as on the other side: one of the two sees the other.
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            self.signal.notify_all();
        }
    }

    /// Sleeps until `awake`, unless it is so already.
    pub(super) fn sleep(&self, media: &dyn Media, mut awake: impl FnMut() -> bool) -> Result<()> {
        let slept = self.signal.wait_until(media, || {
            // Said before each look: who wakes it takes that back.
            self.asleep.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            awake()
        });
        self.asleep.store(false, Ordering::Relaxed);
        slept
    }

    /// What has arrived.
    pub(super) fn take(&self) -> Vec<Arrival> {
        // Before the look: what comes after it sets the flag again.
        self.arrived.store(false, Ordering::Relaxed);
        std::mem::take(&mut self.arrivals.lock().some)
    }

    /// Takes nothing from now on; gives what was there.
    pub(super) fn close(&self) -> Vec<Arrival> {
        let mut arrivals = self.arrivals.lock();
        arrivals.closed = true;
        std::mem::take(&mut arrivals.some)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("cores", &self.cores.len()).finish_non_exhaustive()
    }
}
