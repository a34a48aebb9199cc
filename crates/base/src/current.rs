//! One value that many read without a lock and that is replaced as a whole.
//!
//! A reader loads a pointer and works on what it points at, however long; who replaces builds the next value from the
//! present one and swaps it in. Whatever belongs together lies behind the one pointer, so nobody sees half of a change.
//! An old value is dropped with its last reader. Readers that hold one long and would rather move over compare *epochs*:
//! the value says in which one it is, and the newest one's can be looked at without loading it.
//!
//! # Concurrency
//! Loading takes no lock and writes no shared memory (arc-swap). Replacing is serialised by a mutex that is held for the
//! construction of the next value alone. The epoch is told after the swap: who sees a new epoch finds a value of it.
//!
//! Under loom the pointer is a lock around an `Arc`: what arc-swap promises, without what it does to keep it. What the
//! engine builds on it (memtables and levels behind one pointer, frozen, written out, replaced and freed while others
//! read) is modelled in `current/model.rs`.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard};

#[cfg(not(loom))]
use arc_swap::ArcSwap as Pointer;
#[cfg(loom)]
use modelled::Pointer;

/// A value for a short look.
#[cfg(not(loom))]
pub type Look<T> = arc_swap::Guard<Arc<T>>;
/// A value for a short look.
#[cfg(loom)]
pub type Look<T> = Arc<T>;

/// A value that says in which epoch it is.
pub trait Epoch {
    /// Grows from value to value, or stays.
    fn epoch(&self) -> u64;
}

/// See the module's head.
#[derive(Debug)]
pub struct Current<T> {
    now: Pointer<T>,
    /// How often it was replaced.
    changes: AtomicU64,
    epoch: AtomicU64,
    replacing: Mutex<()>,
}

/// A value that was loaded, and how often it had been replaced before; see [`Current::refresh`].
#[derive(Debug)]
pub struct Kept<T> {
    value: Arc<T>,
    changes: u64,
}

impl<T> Kept<T> {
    /// The value.
    #[inline]
    pub fn value(&self) -> &Arc<T> {
        &self.value
    }
}

impl<T: Epoch> Current<T> {
    /// With a first value.
    pub fn new(value: T) -> Self {
        let epoch = AtomicU64::new(value.epoch());
        Current {
            now: Pointer::new(Arc::new(value)),
            changes: AtomicU64::new(0),
            epoch,
            replacing: Mutex::new(()),
        }
    }

    /// The present value, for a short look: no shared counter is touched.
    #[inline]
    pub fn load(&self) -> Look<T> {
        self.now.load()
    }

    /// The present value, to keep.
    pub fn load_full(&self) -> Arc<T> {
        self.now.load_full()
    }

    /// The present value, to compare later.
    #[inline]
    pub fn keep(&self) -> Kept<T> {
        // Who sees a count finds the value of it, or a newer one.
        let changes = self.changes.load(Ordering::Acquire);
        Kept { value: self.load_full(), changes }
    }

    /// Brings `kept` up to date: it is the value from an earlier call, or none. As long as nobody replaces the value this reads one word and
    /// touches no reference count. What it keeps is kept from being dropped: whoever calls this seldom lets go of it.
    #[inline]
    pub fn refresh<'k>(&self, kept: &'k mut Option<Kept<T>>) -> &'k Arc<T> {
        kept.take_if(|kept| !self.is_present(kept));
        &kept.get_or_insert_with(|| self.keep()).value
    }

    /// Whether a value that was kept is the present one, or was a moment ago.
    #[inline]
    pub fn is_present(&self, kept: &Kept<T>) -> bool {
        kept.changes == self.changes.load(Ordering::Acquire)
    }

    /// Replaces the present value by what `next` makes of it.
    pub fn replace(&self, next: impl FnOnce(&T) -> T) {
        let _replacing = lock(&self.replacing);
        let value = next(&self.now.load_full());
        let epoch = value.epoch();
        self.now.store(Arc::new(value));
        // (Only who has the lock writes it.)
        self.changes.store(self.changes.load(Ordering::Relaxed) + 1, Ordering::Release);
        self.epoch.store(epoch, Ordering::Release);
    }

    /// The newest value's epoch, or one that it has just left.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What panics under it has not swapped anything yet.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(loom)]
mod modelled {
    use super::{Arc, Mutex, lock};

    #[derive(Debug)]
    pub(super) struct Pointer<T>(Mutex<Arc<T>>);

    impl<T> Pointer<T> {
        pub(super) fn new(value: Arc<T>) -> Self {
            Pointer(Mutex::new(value))
        }

        pub(super) fn load(&self) -> Arc<T> {
            lock(&self.0).clone()
        }

        pub(super) fn load_full(&self) -> Arc<T> {
            self.load()
        }

        pub(super) fn store(&self, value: Arc<T>) {
            // The old one is dropped without the lock.
            let _old = std::mem::replace(&mut *lock(&self.0), value);
        }
    }
}

#[cfg(all(test, loom))]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Value(u64);

    impl Epoch for Value {
        fn epoch(&self) -> u64 {
            self.0 / 2
        }
    }

    #[test]
    fn a_new_epoch_comes_with_a_value_of_it_and_the_old_one_stays_with_its_reader() {
        let current = Current::new(Value(0));
        let held = current.load_full();
        current.replace(|old| Value(old.0 + 1));
        assert_eq!((current.epoch(), current.load().0), (0, 1));
        current.replace(|old| Value(old.0 + 1));
        assert_eq!((current.epoch(), current.load().0, held.0), (1, 2, 0));
        let mut kept = None;
        assert_eq!(current.refresh(&mut kept).0, 2);
        let first = Arc::as_ptr(current.refresh(&mut kept));
        assert_eq!(Arc::as_ptr(current.refresh(&mut kept)), first);
        current.replace(|old| Value(old.0 + 2));
        assert!(kept.as_ref().is_some_and(|kept| !current.is_present(kept)));
        assert_eq!(current.refresh(&mut kept).0, 4);
        assert!(kept.is_some_and(|kept| current.is_present(&kept)));
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
