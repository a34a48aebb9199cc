//! Waiting for one outcome, as a thread, a waker or a callback.
//!
//! A [`Completion`] is shared between the one who will settle it and the one who waits. It is settled once; the waiter
//! may register before or after. Blocking callers park, async callers leave a waker, hosts (a SQL server's group commit)
//! leave a callback.
//!
//! # Concurrency
//! The state word decides: `PENDING -> SETTLED` by the settler, and the waiter slot is guarded by a mutex that only
//! the two of them ever touch, once each. A blocking waiter spins briefly first, since most commits settle within a
//! microsecond, and takes the mutex only to sleep.

use std::fmt;
use std::task::Waker;

use crate::error::Result;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, spin_loop};

/// Who is told when an outcome is known.
pub enum Waiter {
    /// Wakes an async task.
    Waker(Waker),
    /// Is called on the thread that settles the outcome; must be quick and must not block.
    Callback(Box<dyn FnOnce(Result<u64>) + Send>),
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Waiter::Waker(_) => "Waiter::Waker",
            Waiter::Callback(_) => "Waiter::Callback",
        })
    }
}

/// One outcome (a sequence number or an error) that will be known later. Cloning shares it.
#[derive(Clone)]
pub struct Completion(Arc<Inner>);

struct Inner {
    settled: AtomicBool,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    outcome: Option<Result<u64>>,
    waiter: Option<Waiter>,
    sleeping: bool,
}

/// How often a blocking waiter looks before it goes to sleep.
#[cfg(not(loom))]
const SPINS: usize = 200;
#[cfg(loom)]
const SPINS: usize = 0;

impl Completion {
    /// A pending outcome.
    #[allow(clippy::new_without_default, reason = "a default outcome would read as a settled one")]
    pub fn new() -> Self {
        Completion(Arc::new(Inner {
            settled: AtomicBool::new(false),
            state: Mutex::new(State::default()),
            wake: Condvar::new(),
        }))
    }

    /// Settles the outcome and tells the waiter. A second call changes nothing.
    pub fn settle(&self, outcome: Result<u64>) {
        let mut state = self.lock();
        if state.outcome.is_some() {
            return;
        }
        state.outcome = Some(outcome.clone());
        // Release: whoever sees the flag sees everything done before the outcome was settled.
        self.0.settled.store(true, Ordering::Release);
        let waiter = state.waiter.take();
        let sleeping = state.sleeping;
        drop(state);
        if sleeping {
            self.0.wake.notify_all();
        }
        match waiter {
            Some(Waiter::Waker(w)) => w.wake(),
            Some(Waiter::Callback(f)) => f(outcome),
            None => {}
        }
    }

    /// Whether the outcome is known.
    pub fn is_settled(&self) -> bool {
        self.0.settled.load(Ordering::Acquire)
    }

    /// The outcome, if known.
    pub fn outcome(&self) -> Option<Result<u64>> {
        if !self.is_settled() {
            return None;
        }
        self.lock().outcome.clone()
    }

    /// Registers who is to be told; replaces an earlier registration. If the outcome is known already, a callback is
    /// called and a waker woken at once, on this thread.
    pub fn register(&self, waiter: Waiter) {
        let mut state = self.lock();
        match state.outcome.clone() {
            None => state.waiter = Some(waiter),
            Some(outcome) => {
                drop(state);
                match waiter {
                    Waiter::Waker(w) => w.wake(),
                    Waiter::Callback(f) => f(outcome),
                }
            }
        }
    }

    /// Blocks until the outcome is known.
    ///
    /// # Errors
    /// The error that the outcome was settled with.
    pub fn wait(&self) -> Result<u64> {
        for _ in 0..SPINS {
            if self.is_settled() {
                break;
            }
            spin_loop();
        }
        let mut state = self.lock();
        loop {
            if let Some(outcome) = &state.outcome {
                return outcome.clone();
            }
            state.sleeping = true;
            state = match self.0.wake.wait(state) {
                Ok(s) => s,
                Err(poison) => poison.into_inner(),
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panicking callback runs outside the lock, so a poisoned mutex still holds a whole state.
        match self.0.state.lock() {
            Ok(s) => s,
            Err(poison) => poison.into_inner(),
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").field("settled", &self.is_settled()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::error::Error;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_blocked_thread_is_woken() {
        let c = Completion::new();
        let d = c.clone();
        let t = std::thread::scope(|s| {
            #[allow(clippy::disallowed_methods)]
            let h = s.spawn(move || d.wait());
            c.settle(Ok(7));
            h.join().unwrap()
        });
        assert_eq!(t.unwrap(), 7);
    }

    #[test]
    fn a_callback_hears_of_the_outcome_whether_it_registers_before_or_after() {
        let hits = std::sync::Arc::new(AtomicUsize::new(0));
        for early in [true, false] {
            let c = Completion::new();
            let h = hits.clone();
            let cb = Waiter::Callback(Box::new(move |r| {
                assert!(r.is_err());
                h.fetch_add(1, Ordering::Relaxed);
            }));
            if early {
                c.register(cb);
                c.settle(Err(Error::invalid("no")));
            } else {
                c.settle(Err(Error::invalid("no")));
                c.register(cb);
            }
        }
        assert_eq!(hits.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn the_first_outcome_stays() {
        let c = Completion::new();
        c.settle(Ok(1));
        c.settle(Ok(2));
        assert_eq!(c.wait().unwrap(), 1);
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;

    #[test]
    fn no_wakeup_is_lost() {
        loom::model(|| {
            let c = Completion::new();
            let d = c.clone();
            let t = loom::thread::spawn(move || d.wait().unwrap());
            c.settle(Ok(3));
            assert_eq!(t.join().unwrap(), 3);
        });
    }
}
