//! Whether a background task is queued that will see to what has changed: at most one is.
//!
//! Whoever changes something asks for the task; the task sees to all there is, says that it is through, and looks once more. So a
//! change is never left alone, and where changes are many they do not even write to the line that says that one is queued.
//!
//! # Concurrency
//! One word. Asking comes behind a SeqCst fence that stands behind the change ([`crate::Signal::notify_all`] has one), and the task has one
//! between saying that it is through and its look. So either the look sees the change, or who made it sees that nobody is queued.
//! Of several who see that, the swap picks one; who comes too late for it comes before the swap by which the task is through, which
//! acquires what he changed. A task sees what was done under the last one: its own swap comes behind that.
//!
//! A loom model, and what it finds if one of the fences is left out: `queued/model.rs`.

use terrane_base::sync::atomic::{AtomicBool, Ordering, fence};

/// See the module's head.
#[derive(Debug, Default)]
pub struct Queued(AtomicBool);

impl Queued {
    /// Nobody is queued.
    pub fn new() -> Self {
        Queued(AtomicBool::new(false))
    }

    /// For who has changed something, behind a SeqCst fence: whether a task is to be queued, by the caller.
    pub fn ask(&self) -> bool {
        !self.0.load(Ordering::Relaxed) && !self.0.swap(true, Ordering::AcqRel)
    }

    /// For the task: it is through, and must look once more behind this, and [ask](Self::ask) if there is something.
    pub fn through(&self) {
        self.0.swap(false, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(test, loom))]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_is_queued_at_a_time() {
        let queued = Queued::new();
        assert!(queued.ask() && !queued.ask());
        queued.through();
        assert!(queued.ask() && !queued.ask());
    }
}
