//! Where a thread waits for what becomes of its request.
//!
//! # Concurrency
//! The verdict is given once, by whoever holds the mutex of the graph ([`crate::graph`]): it is granted, or the owner is the victim
//! of a deadlock. That a time-out has come the waiter finds by itself, and it counts only if the waiter then finds, under the same
//! mutex, that there is still no verdict.
//!
//! Under loom no time passes: a wait with a limit is over at once, and as the threads may be anywhere by then, that explores what a
//! limit that runs out can meet.

use std::time::Duration;

use terrane_base::sync::{Condvar, Mutex};

use crate::lock;
use crate::patience::Patience;
use crate::refusal::Step;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Cell {
    verdict: Mutex<Verdict>,
    wake: Condvar,
}

/// What became of a request.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// It waits.
    Waiting,
    /// The lock has been entered.
    Granted,
    /// Its owner is to give way.
    Victim(Vec<Step>),
}

impl Cell {
    pub(crate) fn new() -> Cell {
        Cell { verdict: Mutex::new(Verdict::Waiting), wake: Condvar::new() }
    }

    /// Gives the verdict and wakes the waiter; `false` if it had been given before.
    pub(crate) fn decide(&self, verdict: Verdict) -> bool {
        let mut here = lock(&self.verdict);
        if !matches!(*here, Verdict::Waiting) {
            return false;
        }
        *here = verdict;
        drop(here);
        self.wake.notify_all();
        true
    }

    pub(crate) fn verdict(&self) -> Verdict {
        lock(&self.verdict).clone()
    }

    /// Waits for the verdict, or until patience is over. What of it was used up, in whole slices, is taken off.
    pub(crate) fn wait(&self, patience: &mut Patience, slice: Duration) -> Verdict {
        match patience {
            Patience::Never => {}
            Patience::Forever => {
                let mut verdict = lock(&self.verdict);
                while matches!(*verdict, Verdict::Waiting) {
                    verdict = self.wake.wait(verdict).unwrap_or_else(|poisoned| poisoned.into_inner());
                }
            }
            Patience::For(left) => {
                while !left.is_zero() && !self.wait_slice(slice.min(*left)) {
                    *left = left.saturating_sub(slice);
                }
            }
        }
        self.verdict()
    }

    /// Whether there is a verdict now.
    #[cfg(not(loom))]
    fn wait_slice(&self, slice: Duration) -> bool {
        let verdict = lock(&self.verdict);
        let waited =
            self.wake.wait_timeout_while(verdict, slice, |verdict| matches!(verdict, Verdict::Waiting));
        !waited.unwrap_or_else(|poisoned| poisoned.into_inner()).1.timed_out()
    }

    #[cfg(loom)]
    fn wait_slice(&self, _: Duration) -> bool {
        !matches!(*lock(&self.verdict), Verdict::Waiting)
    }
}
