//! Which part of the cache has what, after the cores of executors: each core has a part of its own, and there are the frames of what it
//! owns.
//!
//! An extent belongs where its first key lies. It is made with its home, which is where what a flush or a merge leaves in the cache goes
//! too. When owners change, a background task goes through the extents and moves the frames of those that belong elsewhere now: one such
//! task at a time, which goes on until nobody has asked since it last began.
//!
//! # Concurrency
//! A home is a hint, and so is what is said here: frames that entered a part after their extent had left it are missed, and leave it
//! unread. No extent stays behind: who has put one in place looks whether its home is still right, after that, and asks if not; and who
//! changes owners asks after that. Both take the lock of the estates in between: the one who comes second sees what the other one has done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use terrane_base::{Current, SubtableId};
use terrane_media::Pool;

use crate::db::engine::Engine;
use crate::exec::Placement;
use crate::levels::{Homes, VersionEdit};

/// What the cores of an executor own, and the parts of the cache that they have.
#[derive(Debug)]
pub(crate) struct Estate {
    pub(crate) placement: Arc<Current<Placement>>,
    /// By core.
    pub(crate) parts: Box<[u16]>,
}

/// The estates of all executors. Each of them owns everything, so the latest one's holds.
#[derive(Debug, Default)]
pub(crate) struct Estates {
    all: Mutex<Vec<Arc<Estate>>>,
    /// One was added: its parts may have the numbers of some that were closed, whose frames are in the common part.
    fresh: AtomicBool,
    /// How often somebody asked since the task last found nothing left to do. It runs, or is queued, while this is not zero.
    asked: AtomicU64,
}

impl Estates {
    /// Adds one, which holds from now on.
    pub(crate) fn add(&self, estate: Arc<Estate>) {
        self.all.lock().push(estate);
        self.fresh.store(true, Ordering::Release);
    }

    /// Takes one away.
    pub(crate) fn remove(&self, estate: &Arc<Estate>) {
        self.all.lock().retain(|e| !Arc::ptr_eq(e, estate));
    }

    /// Where the extents of a subtable belong now.
    pub(crate) fn homes(&self, table: SubtableId) -> Homes {
        let Some(estate) = self.all.lock().last().cloned() else { return Homes::default() };
        let pieces = estate.placement.load_full().pieces(table);
        let part = |core: usize| estate.parts.get(core).copied().unwrap_or(0);
        Homes::new(pieces.into_iter().map(|piece| (piece.start, part(piece.core))))
    }
}

impl Engine {
    /// Owners have changed: has frames moved to where they belong.
    pub(crate) fn settle_homes(&self) {
        if !self.closing.load(Ordering::Acquire) && self.estates.asked.fetch_add(1, Ordering::AcqRel) == 0 {
            self.spawn_on(Pool::Compaction, "frames to their cores' parts", |engine| engine.move_home());
        }
    }

    /// Extents have been put in place: if owners have changed since they were made, they are settled.
    pub(crate) fn check_homes(&self, table: SubtableId, edit: &VersionEdit) {
        let homes = self.estates.homes(table);
        if edit.added.iter().any(|(_, _, part)| part.extent.home() != homes.of(&part.extent.meta.lo)) {
            self.settle_homes();
        }
    }

    fn move_home(&self) {
        loop {
            let asked = self.estates.asked.load(Ordering::Acquire);
            let fresh = self.estates.fresh.swap(false, Ordering::AcqRel);
            for table in self.tables.load_full().all() {
                // In this order: see the module's head.
                let homes = self.estates.homes(table.id);
                let version = table.state().version.clone();
                for part in version.runs().flat_map(|(_, run)| run.refs()) {
                    if self.closing.load(Ordering::Acquire) {
                        return;
                    }
                    let extent = &part.extent;
                    let to = homes.of(&extent.meta.lo);
                    let from = extent.set_home(to);
                    if from != to || (fresh && to != 0) {
                        self.cache.rehome(extent.meta.id.0, from, to);
                    }
                }
            }
            let done = self.estates.asked.compare_exchange(asked, 0, Ordering::AcqRel, Ordering::Relaxed);
            if done.is_ok() {
                return;
            }
        }
    }
}
