//! What the cores of an executor and its clients share.
//!
//! # Concurrency
//! A core sleeps in its [`Seat`], and how it is woken is argued and modelled where that is kept ([`terrane_media::Sleeper`]). Its look sees the
//! rings of lanes and the end of the executor: who adds to these wakes it. All else is behind a lock, or known to foreign code alone: for
//! that it is called. `ending` is set with release before the cores are woken, and read with acquire: who sees it sees what was done
//! before. `lanes` hands out numbers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use terrane_base::{Current, Result};
use terrane_media::Sleeper;

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
    /// Called when something has arrived.
    pub(super) sleeper: Sleeper,
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
        self.cores[core].sleeper.call();
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
        self.cores.iter().for_each(|seat| seat.sleeper.wake());
    }
}

impl Seat {
    /// What has arrived. To be taken after the call was heeded: whatever comes later calls again.
    pub(super) fn take(&self) -> Vec<Arrival> {
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
