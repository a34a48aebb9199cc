//! Writers replace a value and retire the one that was there, while readers look at what is there. A value that goes writes its
//! cell, a reader reads the cell of the value that it came by, and loom fails a run in which the two can meet. With what the
//! protocol rests on left out ([`Flaw`]), it does.

use super::*;
use crate::sync::{Arc, UnsafeCell, thread};

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// A reader does not say that it has entered.
    Silent,
    /// Things go one epoch too early.
    Hasty,
    /// A thing is retired while it can be reached.
    Reachable,
    /// A stay is renewed while what was read is in use.
    Early,
}

/// A value that goes when this is dropped.
struct Gone(Arc<Values>, usize);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.cells[self.1].with_mut(|_| ());
    }
}

struct Values {
    /// Which one is there.
    now: AtomicUsize,
    cells: [UnsafeCell<()>; 3],
}

struct Rig {
    flaw: Flaw,
    values: Arc<Values>,
    hands: Hands,
    ripening: Mutex<Ripening<Gone>>,
    slots: [Slot; 3],
}

impl Rig {
    fn new(flaw: Flaw) -> Arc<Rig> {
        let values = Values { now: AtomicUsize::new(0), cells: [(); 3].map(UnsafeCell::new) };
        Arc::new(Rig {
            flaw,
            values: Arc::new(values),
            hands: Hands::default(),
            ripening: Mutex::default(),
            slots: Default::default(),
        })
    }

    fn look(&self, slot: usize) {
        let slot = &self.slots[slot];
        if self.flaw != Flaw::Silent {
            slot.pin(&self.hands);
        }
        let now = self.values.now.load(Ordering::Acquire);
        self.values.cells[now].with(|_| ());
        if self.flaw != Flaw::Silent {
            slot.unpin();
        }
    }

    /// Stays inside for two looks, with guards of its own within.
    fn stay(&self, slot: usize) {
        self.slots[slot].pin(&self.hands);
        self.slots[slot].stays(1);
        for _ in 0..2 {
            self.slots[slot].pin(&self.hands);
            let now = self.values.now.load(Ordering::Acquire);
            // Does nothing: there is a guard.
            self.slots[slot].renew(&self.hands);
            self.slots[slot].unpin();
            if self.flaw == Flaw::Early {
                self.slots[slot].renew(&self.hands);
            }
            self.values.cells[now].with(|_| ());
            self.slots[slot].renew(&self.hands);
        }
        self.slots[slot].stays(-1);
        self.slots[slot].unpin();
    }

    /// Puts value `next` in the place of the one before it.
    fn replace(&self, slot: usize, next: usize) {
        self.slots[slot].pin(&self.hands);
        let old = Gone(self.values.clone(), next - 1);
        let replace = || self.values.now.store(next, Ordering::Release);
        if self.flaw == Flaw::Reachable {
            self.hand_over(vec![old]);
            replace();
        } else {
            replace();
            self.hand_over(vec![old]);
        }
        self.slots[slot].unpin();
    }

    fn hand_over(&self, bag: Vec<Gone>) {
        drop(self.hands.hand_over(&self.ripening, bag, || self.slots.iter()));
        if self.flaw == Flaw::Hasty {
            lock(&self.ripening).iter_mut().for_each(|(epoch, _)| *epoch = epoch.saturating_sub(1));
        }
    }

    fn flush(&self) {
        (0..2).for_each(|_| self.hand_over(Vec::new()));
    }
}

fn explore(flaw: Flaw, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = crate::sync::bounded(3);
    if flaw != Flaw::None {
        // One of them does not show with fewer.
        builder.preemption_bound = builder.preemption_bound.max(Some(3));
    }
    builder.check(model);
}

fn explore_looks(flaw: Flaw, second_reader: bool) {
    explore(flaw, move || {
        let rig = Rig::new(flaw);
        let other = rig.clone();
        let reader = thread::spawn(move || {
            other.look(0);
            other.look(0);
        });
        let second = second_reader.then(|| {
            let other = rig.clone();
            thread::spawn(move || other.look(2))
        });
        rig.replace(1, 1);
        rig.flush();
        if !second_reader {
            rig.replace(1, 2);
            rig.flush();
        }
        reader.join().unwrap();
        second.into_iter().for_each(|t| t.join().unwrap());
        rig.flush();
        assert!(lock(&rig.ripening).is_empty(), "something is kept though nobody reads");
    });
}

#[test]
fn no_reader_meets_a_value_that_goes() {
    explore_looks(Flaw::None, false);
}

#[test]
fn nor_does_one_of_two() {
    explore_looks(Flaw::None, true);
}

#[test]
fn two_who_retire_do_not_hurry_each_other() {
    explore(Flaw::None, || {
        let rig = Rig::new(Flaw::None);
        let (reader, flusher) = (rig.clone(), rig.clone());
        let reader = thread::spawn(move || reader.look(0));
        let flusher = thread::spawn(move || flusher.flush());
        rig.replace(1, 1);
        rig.flush();
        reader.join().unwrap();
        flusher.join().unwrap();
    });
}

fn explore_stay(flaw: Flaw) {
    explore(flaw, move || {
        let rig = Rig::new(flaw);
        let other = rig.clone();
        let reader = thread::spawn(move || other.stay(0));
        rig.replace(1, 1);
        rig.flush();
        rig.replace(1, 2);
        rig.flush();
        reader.join().unwrap();
        rig.flush();
        assert!(lock(&rig.ripening).is_empty(), "something is kept though nobody reads");
    });
}

#[test]
fn no_reader_that_stays_meets_a_value_that_goes() {
    explore_stay(Flaw::None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_stay_must_not_be_renewed_while_what_was_read_is_in_use() {
    explore_stay(Flaw::Early);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_reader_that_does_not_say_that_it_entered_is_met() {
    explore_looks(Flaw::Silent, false);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn one_epoch_is_too_few() {
    explore_looks(Flaw::Hasty, false);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn what_can_be_reached_must_not_be_retired() {
    explore_looks(Flaw::Reachable, false);
}
