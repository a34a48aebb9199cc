//! A place where one thread sleeps, and where many wake it.
//!
//! At a [`Signal`] whoever notifies takes a lock and makes a system call as long as somebody waits, hence until the waiter has come round.
//! That is too much for a thread to which many bring work all the time. Telling a [`Sleeper`] costs a fence and a load while it is awake, and
//! of many who find it asleep one makes the system call.
//!
//! # Concurrency
//! *Who touches what.* One thread at a time is the sleeper: [`Sleeper::sleep`] and [`Sleeper::heed`] are its own. Any thread may
//! [`Sleeper::wake`] and [`Sleeper::call`] it. `asleep` is set by the sleeper before each look at what there is to do, and taken back by whoever
//! wakes it, or by itself when it is up. `called` is set by those who call, and taken by the sleeper.
//!
//! *No wake-up is lost.* The sleeper says that it sleeps, and then looks. Others put their work there, and then look whether it sleeps. On
//! either side a SeqCst fence stands between the two, and one of these two fences is the first:
//!
//! * If that is the one of who brings work, the look sees the work.
//! * If it is the sleeper's, who brings work finds that it sleeps, and notifies it; or finds that this was taken back since. The sleeper looks
//!   again then before it sleeps on: it is up, or a third has taken it back and notifies it. That look sees the work, for its fence is behind
//!   that of who brought it, who would have found it said again otherwise. So it has to be said before *each* look.
//!
//! The third's notification is not lost either. The look that decides comes when the sleeper is counted at the signal: who takes back what was
//! said before it finds it counted ([`Signal`]).
//!
//! As the fences decide, `asleep` is read and written relaxed, and carries nothing: what a look reads is written with release by those who
//! bring it, and read with acquire. Swaps alone write it, each of which reads the one before. For the sleeper a store would do; but loom does
//! not know that nothing comes between a swap and what it has read, and finds wake-ups lost that are not.
//!
//! *No call is lost.* A call is for work that no look can see, as it lies behind a lock, or where foreign code alone looks; the look sees
//! the mark in its place. It is set after the work was put there, with release, and taken before the sleeper goes to the work, with acquire, so
//! that it finds the work. Both have to be swaps. A store that takes a mark has not read it: if it was set once more since the sleeper looked,
//! work is neither found nor announced any more. And a store that sets one hides what a mark that is there already has released: the sleeper
//! takes both, and may miss the work of the first.
//!
//! Loom models, and what they find if one of these things is left out: `sleeper/model.rs`.

use std::fmt;

use terrane_base::Result;
use terrane_base::sync::atomic::{AtomicBool, Ordering, fence};

use crate::{Media, Signal};

/// See the module's head.
pub struct Sleeper {
    /// Notified if there is something to do while it sleeps.
    signal: Signal,
    /// It sleeps, or is about to, and nobody has woken it yet.
    asleep: AtomicBool,
    /// It was called and has not heeded that yet.
    called: AtomicBool,
}

impl Sleeper {
    /// One that is awake and was not called.
    pub fn new() -> Self {
        Sleeper { signal: Signal::new(), asleep: AtomicBool::new(false), called: AtomicBool::new(false) }
    }

    /// Wakes it if it sleeps. Called after what its look is to see.
    #[inline]
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.take_back() {
            self.signal.notify_all();
        }
    }

    /// Wakes it if it sleeps, and has it [`Sleeper::heed`] in any case. Called after the work that no look can see.
    pub fn call(&self) {
        self.called.swap(true, Ordering::Release);
        self.wake();
    }

    /// For the sleeper: whether it was called since it heeded the last call. It finds all that was done before those calls.
    #[inline]
    pub fn heed(&self) -> bool {
        self.called.load(Ordering::Relaxed) && self.called.swap(false, Ordering::Acquire)
    }

    /// For the sleeper: sleeps until it was called or `awake`, which is asked before it sleeps and whenever it is woken.
    ///
    /// # Errors
    /// As for [`Signal::wait_until`].
    pub fn sleep(&self, media: &dyn Media, mut awake: impl FnMut() -> bool) -> Result<()> {
        let slept = self.signal.wait_until(media, || {
            self.say();
            self.was_called() || awake()
        });
        self.asleep.swap(false, Ordering::Relaxed);
        slept
    }

    /// Says that it sleeps. Before each look: who wakes it takes that back.
    fn say(&self) {
        self.asleep.swap(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    fn was_called(&self) -> bool {
        self.called.load(Ordering::Relaxed)
    }

    /// Whether it sleeps, and the caller is the one to notify it. The load is for those who find it awake: they write nothing.
    #[inline]
    fn take_back(&self) -> bool {
        self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed)
    }
}

impl Default for Sleeper {
    fn default() -> Self {
        Sleeper::new()
    }
}

impl fmt::Debug for Sleeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sleeper").field("called", &self.was_called()).finish_non_exhaustive()
    }
}

#[cfg(all(test, loom))]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sim::SimMedia;
    use terrane_base::ErrorKind;

    #[test]
    fn who_was_called_does_not_sleep_and_heeds_it_once() {
        let (media, sleeper) = (SimMedia::new(1), Sleeper::new());
        assert!(!sleeper.heed());
        sleeper.call();
        sleeper.call();
        sleeper.sleep(&*media, || false).unwrap();
        assert!(sleeper.heed());
        assert!(!sleeper.heed());
        sleeper.sleep(&*media, || true).unwrap();
    }

    #[test]
    fn whom_nothing_can_wake_any_more_is_told() {
        let (media, sleeper) = (SimMedia::new(1), Sleeper::new());
        let lost = sleeper.sleep(&*media, || false).unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::Closed);
        // It is up: nobody needs to notify it.
        assert!(!sleeper.take_back());
    }
}
