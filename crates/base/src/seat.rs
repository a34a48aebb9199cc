//! A place where an owner leaves a thing between two uses, and from which others may take it away for good.
//!
//! Whoever comes first takes the thing whole; nobody waits. It costs the owner two swaps per use.
//!
//! # Concurrency
//! A thing that has become stale never stays. Others first make known that it is stale, and then take it; the owner first puts
//! it back, and then looks whether it is stale. Both swap the same word, and a swap that finds nothing writes all the same: so
//! either the others come second and find the thing, or the owner comes second and has read what they wrote, hence sees what
//! they had made known. Loom model in `model.rs`.

use std::fmt;

#[cfg(not(loom))]
use crossbeam_utils::atomic::AtomicCell;

/// See the module's head.
pub struct Seat<T> {
    /// A word: swapped without a lock, acquiring and releasing.
    #[cfg(not(loom))]
    thing: AtomicCell<Option<Box<T>>>,
    #[cfg(loom)]
    thing: crate::sync::Mutex<Option<Box<T>>>,
}

impl<T> Seat<T> {
    /// An empty one.
    pub fn new() -> Self {
        Seat { thing: None.into() }
    }

    /// The thing, unless somebody has taken it.
    #[inline]
    pub fn take(&self) -> Option<Box<T>> {
        self.swap(None)
    }

    /// For the owner, who has taken the thing or made a new one: leaves it here, unless it `is_stale` by now.
    #[inline]
    pub fn put(&self, thing: Box<T>, is_stale: impl FnOnce() -> bool) {
        let before = self.swap(Some(thing));
        debug_assert!(before.is_none(), "a seat has one owner");
        if is_stale() {
            drop(self.take());
        }
    }

    #[cfg(not(loom))]
    #[inline]
    fn swap(&self, thing: Option<Box<T>>) -> Option<Box<T>> {
        self.thing.swap(thing)
    }

    /// A lock orders as the swap does.
    #[cfg(loom)]
    fn swap(&self, thing: Option<Box<T>>) -> Option<Box<T>> {
        self.thing.lock().ok().and_then(|mut here| std::mem::replace(&mut *here, thing))
    }
}

impl<T> Default for Seat<T> {
    fn default() -> Self {
        Seat::new()
    }
}

impl<T> fmt::Debug for Seat<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seat").finish_non_exhaustive()
    }
}

#[cfg(all(test, loom))]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_seat_needs_no_lock() {
        assert!(AtomicCell::<Option<Box<String>>>::is_lock_free());
    }

    #[test]
    fn a_thing_is_taken_once_and_a_stale_one_not_left() {
        let s = Seat::new();
        assert!(s.take().is_none());
        s.put(Box::new(1), || false);
        assert_eq!(s.take(), Some(Box::new(1)));
        assert!(s.take().is_none());
        s.put(Box::new(2), || true);
        assert!(s.take().is_none());
    }
}
