use super::*;
use crate::sync::Arc;
use crate::sync::atomic::{AtomicU64, Ordering};

/// A thing is the age at which it was made; all of lower ages are stale.
struct Rig {
    age: AtomicU64,
    seat: Seat<u64>,
}

impl Rig {
    fn new() -> Arc<Rig> {
        let rig = Rig { age: AtomicU64::new(0), seat: Seat::new() };
        rig.seat.put(Box::new(0), || false);
        Arc::new(rig)
    }

    /// What the owner does in one use.
    fn used(&self) {
        let thing = self.seat.take().unwrap_or_else(|| Box::new(self.age.load(Ordering::Acquire)));
        let made = *thing;
        self.seat.put(thing, || self.age.load(Ordering::Acquire) > made);
    }

    /// What makes things stale.
    fn aged(&self, age: u64) {
        self.age.store(age, Ordering::Release);
        drop(self.seat.take());
    }

    fn nothing_stale_is_left(&self) {
        if let Some(left) = self.seat.take() {
            assert_eq!(*left, self.age.load(Ordering::Acquire));
        }
    }
}

#[test]
fn no_stale_thing_stays() {
    loom::model(|| {
        let rig = Rig::new();
        let other = rig.clone();
        let t = loom::thread::spawn(move || other.aged(1));
        rig.used();
        t.join().unwrap();
        rig.nothing_stale_is_left();
    });
}

#[test]
fn no_stale_thing_stays_over_two_uses_and_two_ages() {
    loom::model(|| {
        let rig = Rig::new();
        let other = rig.clone();
        let t = loom::thread::spawn(move || {
            other.aged(1);
            other.aged(2);
        });
        rig.used();
        rig.used();
        t.join().unwrap();
        rig.nothing_stale_is_left();
    });
}
