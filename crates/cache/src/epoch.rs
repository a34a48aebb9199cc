//! When an unlinked frame or table may be freed: after every guard that could have reached it is gone
//! ([`terrane_base::reclaim`]).
//!
//! Each cache has a domain of its own, which goes by a clock of its own or by its database's. On one for the whole process a reader of
//! another database would keep this cache from freeing anything; and seeded single-threaded runs, which have to repeat exactly, would
//! depend on what other threads of the process do. It also ends with the cache: nothing is left behind.
//!
//! Under loom a small stand-in takes its place: it frees when no guard is left at all, which is a legal, if lazy, epoch
//! scheme, and loom then checks that nobody reads what was freed. The real one has models of its own.

use crate::frame::Pin;
use crate::shard::Retired;
use crate::swizzle::Detached;

/// What is freed late.
#[expect(dead_code, reason = "held until it may be freed, not used")]
pub(crate) enum Garbage {
    Frame(Pin),
    Table(Retired),
    Slots(Detached),
}

impl From<Pin> for Garbage {
    fn from(frame: Pin) -> Self {
        Garbage::Frame(frame)
    }
}

impl From<Retired> for Garbage {
    fn from(table: Retired) -> Self {
        Garbage::Table(table)
    }
}

impl From<Detached> for Garbage {
    fn from(slots: Detached) -> Self {
        Garbage::Slots(slots)
    }
}

#[cfg(not(loom))]
mod imp {
    use super::Garbage;

    pub(crate) type Domain = terrane_base::reclaim::Domain<Garbage>;
    pub(crate) type Guard<'d> = terrane_base::reclaim::Guard<'d, Garbage>;
}

#[cfg(loom)]
mod imp {
    use loom::sync::Mutex;

    use super::Garbage;

    pub(crate) struct Domain(Mutex<State>);

    #[derive(Default)]
    struct State {
        guards: usize,
        garbage: Vec<Garbage>,
    }

    pub(crate) struct Guard<'d>(&'d Domain);

    impl Domain {
        pub(crate) fn on(_: std::sync::Arc<terrane_base::reclaim::Clock>) -> Domain {
            Domain(Mutex::new(State::default()))
        }

        pub(crate) fn pin(&self) -> Guard<'_> {
            self.0.lock().unwrap().guards += 1;
            Guard(self)
        }
    }

    impl Guard<'_> {
        pub(crate) fn retire(&self, garbage: Garbage) {
            self.0.0.lock().unwrap().garbage.push(garbage);
        }

        pub(crate) fn flush(&self) {}
    }

    impl Drop for Guard<'_> {
        fn drop(&mut self) {
            let mut state = self.0.0.lock().unwrap();
            state.guards -= 1;
            let ripe = if state.guards == 0 { std::mem::take(&mut state.garbage) } else { Vec::new() };
            drop(state);
            drop(ripe);
        }
    }
}

pub(crate) use imp::{Domain, Guard};
