//! Two bring work to one that sleeps in between: a lost wake-up shows as a deadlock, for it waits for both. With what the protocol rests
//! on left out ([`Flaw`]), there is one.

// Not loom's, which cannot be dropped after a deadlock.
use std::sync::Arc;

use super::*;
use crate::real::RealOptions;
use crate::sim::SimMedia;
use terrane_base::sync::{bounded, thread};

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// Who wakes has no fence between the work and the look whether it sleeps.
    UnfencedWake,
    /// The sleeper has no fence between what it says and its look.
    UnfencedSleep,
    /// The sleeper looks before it says that it sleeps, and not after.
    EarlyLook,
    /// The sleeper says that it sleeps before its first look alone.
    SaidOnce,
    /// Who wakes takes back that it sleeps and leaves it to others to notify.
    Silent,
    /// The sleeper takes the mark of a call with a store.
    StoredHeed,
    /// A call is marked with a store.
    StoredCall,
}

/// How a piece of work gets to the sleeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Its look sees it.
    Seen,
    /// It is called.
    Called,
}

struct Rig {
    flaw: Flaw,
    sleeper: Sleeper,
    /// Work: it is there once its word is set.
    pieces: Vec<(Way, AtomicBool)>,
}

impl Rig {
    fn bring(&self, at: usize) {
        let (way, piece) = &self.pieces[at];
        match way {
            Way::Seen => {
                piece.store(true, Ordering::Release);
                self.wake();
            }
            Way::Called => {
                piece.store(true, Ordering::Relaxed);
                match self.flaw {
                    Flaw::StoredCall => {
                        self.sleeper.called.store(true, Ordering::Release);
                        self.sleeper.wake();
                    }
                    _ => self.sleeper.call(),
                }
            }
        }
    }

    fn wake(&self) {
        match self.flaw {
            Flaw::UnfencedWake if self.sleeper.take_back() => self.sleeper.signal.notify_all(),
            Flaw::UnfencedWake => {}
            Flaw::Silent => drop(self.sleeper.take_back()),
            _ => self.sleeper.wake(),
        }
    }

    /// Works until all is done, and sleeps whenever it has found nothing, as a core of an executor does.
    fn work(&self, media: &dyn Media) {
        let mut done = vec![false; self.pieces.len()];
        loop {
            // What comes by a call is looked for in each turn: foreign code is asked whether there was a call or not.
            self.heed();
            for ((way, piece), done) in self.pieces.iter().zip(&mut done) {
                let order = match way {
                    Way::Seen => Ordering::Acquire,
                    Way::Called => Ordering::Relaxed,
                };
                *done = *done || piece.load(order);
            }
            if done.iter().all(|done| *done) {
                return;
            }
            self.sleep(media, || {
                let mut open = self.pieces.iter().zip(&done).filter(|(_, done)| !**done);
                open.any(|((way, piece), _)| *way == Way::Seen && piece.load(Ordering::Acquire))
            });
        }
    }

    fn heed(&self) {
        if self.flaw != Flaw::StoredHeed {
            self.sleeper.heed();
        } else if self.sleeper.called.load(Ordering::Acquire) {
            self.sleeper.called.store(false, Ordering::Relaxed);
        }
    }

    fn sleep(&self, media: &dyn Media, mut awake: impl FnMut() -> bool) {
        let Sleeper { signal, asleep, .. } = &self.sleeper;
        let slept = match self.flaw {
            Flaw::UnfencedSleep => signal.wait_until(media, || {
                asleep.swap(true, Ordering::Relaxed);
                awake()
            }),
            Flaw::EarlyLook => signal.wait_until(media, || {
                let awake = awake();
                self.sleeper.say();
                awake
            }),
            Flaw::SaidOnce => {
                self.sleeper.say();
                signal.wait_until(media, awake)
            }
            _ => return assert!(self.sleeper.sleep(media, awake).is_ok()),
        };
        asleep.swap(false, Ordering::Relaxed);
        assert!(slept.is_ok());
    }
}

/// Explores threads that bring the pieces named, one after the other, beside the sleeper.
fn explore<const N: usize>(flaw: Flaw, threads: [&'static [Way]; N]) {
    let mut builder = bounded(3);
    if flaw != Flaw::None {
        // One of them does not show with fewer.
        builder.preemption_bound = builder.preemption_bound.max(Some(3));
    }
    builder.check(move || {
        // Its tasks run on threads, so waiting blocks; none is started, since none is queued.
        let media = SimMedia::with_threads(0, &RealOptions::default());
        let pieces = threads.iter().flat_map(|ways| ways.iter().map(|way| (*way, AtomicBool::new(false))));
        let rig = Arc::new(Rig { flaw, sleeper: Sleeper::new(), pieces: pieces.collect() });
        let mut from = 0;
        let brought = threads.map(|ways| {
            let (rig, first) = (rig.clone(), from);
            from += ways.len();
            thread::spawn(move || (first..first + ways.len()).for_each(|at| rig.bring(at)))
        });
        rig.work(&*media);
        brought.into_iter().for_each(|t| t.join().unwrap());
    });
}

const SEEN: &[Way] = &[Way::Seen];
const CALLED: &[Way] = &[Way::Called];

#[test]
fn no_wake_up_of_two_is_lost() {
    explore(Flaw::None, [SEEN, SEEN]);
}

#[test]
fn no_wake_up_of_one_who_comes_twice_is_lost() {
    explore(Flaw::None, [&[Way::Seen, Way::Seen]]);
}

#[test]
fn no_call_of_two_is_lost() {
    explore(Flaw::None, [CALLED, CALLED]);
}

#[test]
fn no_call_of_one_who_comes_twice_is_lost() {
    explore(Flaw::None, [&[Way::Called, Way::Called]]);
}

#[test]
fn neither_a_wake_up_nor_a_call_beside_it_is_lost() {
    explore(Flaw::None, [SEEN, CALLED]);
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_wakes_must_have_a_fence_before_it_looks() {
    explore(Flaw::UnfencedWake, [SEEN, SEEN]);
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_sleeps_must_have_a_fence_before_it_looks() {
    explore(Flaw::UnfencedSleep, [SEEN, SEEN]);
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_says_that_it_sleeps_must_look_once_more() {
    explore(Flaw::EarlyLook, [SEEN, SEEN]);
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_was_woken_in_vain_must_say_again_that_it_sleeps() {
    explore(Flaw::SaidOnce, [SEEN, SEEN]);
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_takes_back_that_it_sleeps_must_notify() {
    explore(Flaw::Silent, [SEEN, SEEN]);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_mark_must_not_be_taken_with_a_store() {
    explore(Flaw::StoredHeed, [CALLED, CALLED]);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_mark_must_not_be_set_with_a_store() {
    explore(Flaw::StoredCall, [CALLED, CALLED]);
}
