//! One load of a frame under way, and those who wait for it.

use terrane_base::Result;
use terrane_base::sync::thread::{self, ThreadId};
use terrane_base::sync::{Condvar, Mutex, MutexGuard};

use crate::frame::Pin;

pub(crate) struct Flight {
    outcome: Mutex<Option<Result<Pin>>>,
    landed: Condvar,
    loader: ThreadId,
}

impl Flight {
    /// A load that the calling thread is about to do.
    pub(crate) fn new() -> Flight {
        Flight { outcome: Mutex::new(None), landed: Condvar::new(), loader: thread::current().id() }
    }

    /// Whether the calling thread is the one that loads, and so must not wait for it.
    pub(crate) fn is_own(&self) -> bool {
        self.loader == thread::current().id()
    }

    /// Tells all who wait.
    pub(crate) fn land(&self, outcome: Result<Pin>) {
        *self.lock() = Some(outcome);
        self.landed.notify_all();
    }

    /// Blocks until the load is done.
    pub(crate) fn wait(&self) -> Result<Pin> {
        let mut outcome = self.lock();
        loop {
            if let Some(outcome) = &*outcome {
                return outcome.clone();
            }
            outcome = match self.landed.wait(outcome) {
                Ok(o) => o,
                Err(poison) => poison.into_inner(),
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Result<Pin>>> {
        // Nothing under this lock can panic half-way: the outcome is whole.
        match self.outcome.lock() {
            Ok(o) => o,
            Err(poison) => poison.into_inner(),
        }
    }
}
