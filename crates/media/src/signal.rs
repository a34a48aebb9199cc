//! Waiting for background work, on real and on simulated machines alike.
//!
//! The state that is waited for lives elsewhere, in atomics or under a lock; a [`Signal`] only says "look again".
//! Whoever changes the state calls [`Signal::notify_all`] afterwards; whoever waits passes a condition that reads it.
//!
//! # Concurrency
//! No wake-up is lost: the waiter counts itself in before it looks at its condition, the notifier looks at the count
//! after it changed the state, and a SeqCst fence stands between the two steps on either side, so at least one of them
//! sees the other. A notifier that sees a waiter moves the round on under the mutex; a waiter sleeps only while the
//! round that it read before its last look still lasts. With nobody waiting, notifying is a fence and a load.

use terrane_base::sync::atomic::{AtomicUsize, Ordering, fence};
use terrane_base::sync::{Condvar, Mutex, MutexGuard};
use terrane_base::{Error, ErrorKind, Result};

use crate::{Help, Media};

/// Something to wait at until a condition holds.
#[derive(Debug)]
pub struct Signal {
    waiters: AtomicUsize,
    round: Mutex<u64>,
    wake: Condvar,
}

impl Signal {
    /// A signal that nobody waits at.
    pub fn new() -> Self {
        Signal { waiters: AtomicUsize::new(0), round: Mutex::new(0), wake: Condvar::new() }
    }

    /// Makes every waiter look at its condition again. Call it after the change, not before, and not while holding a
    /// lock that a condition takes. It begins with a SeqCst fence, whether or not somebody waits: callers rely on that.
    pub fn notify_all(&self) {
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::Relaxed) > 0 {
            *self.lock() += 1;
            self.wake.notify_all();
        }
    }

    /// Returns when `condition` holds. On a simulated machine, waiting runs pending background tasks on this thread.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the condition does not hold and no background work is left that could make it hold:
    /// on a real machine that would be waiting for ever.
    pub fn wait_until(&self, media: &dyn Media, mut condition: impl FnMut() -> bool) -> Result<()> {
        if condition() {
            return Ok(());
        }
        let _counted = Counted::new(&self.waiters);
        loop {
            let seen = *self.lock();
            if condition() {
                return Ok(());
            }
            match media.help() {
                Help::Ran => {}
                Help::Threads => {
                    let mut round = self.lock();
                    while *round == seen {
                        round = match self.wake.wait(round) {
                            Ok(g) => g,
                            Err(poisoned) => poisoned.into_inner(),
                        };
                    }
                }
                Help::Idle => {
                    // Another thread may have run the last task between the look and the question.
                    return if condition() { Ok(()) } else { Err(nothing_left()) };
                }
            }
        }
    }

    /// The mutex guards one counter, which is valid whatever a panicking holder did.
    fn lock(&self) -> MutexGuard<'_, u64> {
        match self.round.lock() {
            Ok(g) => g,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

impl Default for Signal {
    fn default() -> Self {
        Signal::new()
    }
}

fn nothing_left() -> Error {
    Error::new(ErrorKind::Closed, "waiting for background work, but none is left to wait for")
}

/// Counts a waiter in, and out again however it leaves.
struct Counted<'a>(&'a AtomicUsize);

impl<'a> Counted<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Counted(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        // A model that has failed, here in a deadlock, can do nothing more.
        #[cfg(loom)]
        if std::thread::panicking() {
            return;
        }
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod models {
    use std::sync::atomic::Ordering;

    use super::*;
    use crate::real::RealOptions;
    use crate::sim::SimMedia;
    use terrane_base::sync::atomic::AtomicUsize;
    use terrane_base::sync::{Arc, thread};

    /// `threads` threads each do `steps` parts of the work and say so after each; the waiter must come through. A lost
    /// wake-up shows as a deadlock.
    fn wait_for(threads: usize, steps: usize) {
        // Its tasks run on threads, so waiting blocks; none is started, since none is queued.
        let media = SimMedia::with_threads(0, &RealOptions::default());
        let (signal, done) = (Arc::new(Signal::new()), Arc::new(AtomicUsize::new(0)));
        let work = |_| {
            let (signal, done) = (signal.clone(), done.clone());
            thread::spawn(move || {
                for _ in 0..steps {
                    done.fetch_add(1, Ordering::Relaxed);
                    signal.notify_all();
                }
            })
        };
        let workers: Vec<_> = (0..threads).map(work).collect();
        let waited = signal.wait_until(&*media, || done.load(Ordering::Relaxed) == threads * steps);
        assert!(waited.is_ok());
        for w in workers {
            assert!(w.join().is_ok());
        }
    }

    #[test]
    fn no_wake_up_of_one_notifier_is_lost() {
        loom::model(|| wait_for(1, 2));
    }

    #[test]
    fn no_wake_up_of_two_notifiers_is_lost() {
        terrane_base::sync::bounded(2).check(|| wait_for(2, 1));
    }
}
