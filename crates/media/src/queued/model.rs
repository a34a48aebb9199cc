//! Two change something and see to what is due, if nobody else is queued to. In the end nothing is left. With one of the fences left out,
//! something is.

use std::sync::atomic::{AtomicU64 as Count, Ordering as CountOrdering};

use terrane_base::sync::atomic::AtomicU64;
use terrane_base::sync::{Arc, bounded, thread};

use super::*;

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// No fence between the change and asking.
    UnfencedChange,
    /// No fence between being through and the last look.
    UnfencedLook,
    /// No last look.
    NoLook,
}

struct Rig {
    flaw: Flaw,
    queued: Queued,
    changes: AtomicU64,
    seen: AtomicU64,
}

impl Rig {
    fn is_due(&self) -> bool {
        let seen = self.seen.load(Ordering::Acquire);
        self.changes.load(Ordering::Acquire) > seen
    }

    fn change(&self) {
        self.changes.fetch_add(1, Ordering::Release);
        if self.flaw != Flaw::UnfencedChange {
            fence(Ordering::SeqCst);
        }
        self.see_to();
    }

    /// The task, where it was queued.
    fn see_to(&self) {
        while self.is_due() && self.queued.ask() {
            self.seen.store(self.changes.load(Ordering::Acquire), Ordering::Release);
            if self.flaw == Flaw::UnfencedLook {
                self.queued.0.swap(false, Ordering::AcqRel);
            } else {
                self.queued.through();
            }
            if self.flaw == Flaw::NoLook {
                return;
            }
        }
    }
}

/// Whether something is left in any interleaving.
fn something_is_left(flaw: Flaw) -> bool {
    let left = std::sync::Arc::new(Count::new(0));
    let found = left.clone();
    bounded(3).check(move || {
        let (changes, seen) = (AtomicU64::new(0), AtomicU64::new(0));
        let rig = Arc::new(Rig { flaw, queued: Queued::new(), changes, seen });
        let other = thread::spawn({
            let rig = rig.clone();
            move || rig.change()
        });
        rig.change();
        other.join().unwrap();
        if rig.is_due() {
            found.fetch_add(1, CountOrdering::Relaxed);
        }
    });
    left.load(CountOrdering::Relaxed) > 0
}

#[test]
fn no_change_is_left() {
    assert!(!something_is_left(Flaw::None));
}

#[test]
fn without_a_fence_behind_the_change_one_is_left() {
    assert!(something_is_left(Flaw::UnfencedChange));
}

#[test]
fn without_a_fence_before_the_last_look_one_is_left() {
    assert!(something_is_left(Flaw::UnfencedLook));
}

#[test]
fn without_the_last_look_one_is_left() {
    assert!(something_is_left(Flaw::NoLook));
}
