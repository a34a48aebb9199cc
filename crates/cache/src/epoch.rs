//! When an unlinked frame or table may be freed: after every guard that could have reached it is gone.
//!
//! A guard costs an atomic read-modify-write on a line that its thread alone writes; one taken within another costs nothing of
//! the kind. Every 128th of a thread looks whether the epoch can be advanced: it reads the lines of all threads, and then
//! stores to the one that all of them read. A lookup therefore takes one guard for all of its blocks ([`crate::Cache::hold`]).
//!
//! The real thing is a crossbeam collector of the cache's own. On the process-wide one a reader elsewhere (a long scan of
//! a memtable, another database) would keep this cache from freeing anything; and seeded single-threaded runs, which
//! have to repeat exactly, would depend on what other threads of the process do. It also ends with the cache: nothing
//! is left behind. Under loom a small stand-in takes its place: it frees when no guard is left at all, which is a legal,
//! if lazy, epoch scheme, and loom then checks that nobody reads what was freed.

#[cfg(not(loom))]
mod imp {
    use std::marker::PhantomData;

    use crossbeam_epoch::{Collector, LocalHandle};
    use thread_local::ThreadLocal;

    /// Where guards come from.
    pub(crate) struct Domain {
        threads: ThreadLocal<Registration>,
        collector: Collector,
    }

    /// A thread's place in the collector. When the thread ends, the next one that gets its slot takes it over.
    struct Registration(LocalHandle);

    // SAFETY: a handle must not be used by two threads at once. `ThreadLocal` gives a slot to one thread at a time, and
    // to another one only after the first has ended, synchronised by its own lock. Guards, which also use the handle's
    // state, cannot leave their thread, and borrow the domain, so that none is left when it is dropped.
    unsafe impl Send for Registration {}

    /// Keeps what can be reached now from being freed.
    pub(crate) struct Guard<'d>(crossbeam_epoch::Guard, PhantomData<&'d Domain>);

    impl Domain {
        pub(crate) fn new() -> Domain {
            Domain { threads: ThreadLocal::new(), collector: Collector::new() }
        }

        #[inline]
        pub(crate) fn pin(&self) -> Guard<'_> {
            let own = self.threads.get_or(|| Registration(self.collector.register()));
            Guard(own.0.pin(), PhantomData)
        }
    }

    impl Guard<'_> {
        /// Drops `garbage` once nobody can reach it. It must be unlinked already.
        pub(crate) fn retire<T: Send + 'static>(&self, garbage: T) {
            self.0.defer(move || drop(garbage));
        }

        /// Hands this thread's garbage to all threads and frees what is ripe.
        pub(crate) fn flush(&self) {
            self.0.flush();
        }
    }
}

#[cfg(loom)]
mod imp {
    use loom::sync::Mutex;

    pub(crate) struct Domain(Mutex<State>);

    #[derive(Default)]
    struct State {
        guards: usize,
        garbage: Vec<Box<dyn Send>>,
    }

    pub(crate) struct Guard<'d>(&'d Domain);

    impl Domain {
        pub(crate) fn new() -> Domain {
            Domain(Mutex::new(State::default()))
        }

        pub(crate) fn pin(&self) -> Guard<'_> {
            self.0.lock().unwrap().guards += 1;
            Guard(self)
        }
    }

    impl Guard<'_> {
        pub(crate) fn retire<T: Send + 'static>(&self, garbage: T) {
            self.0.0.lock().unwrap().garbage.push(Box::new(garbage));
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
