//! Shims for what lock-free code builds on. Under `--cfg loom` they are loom's, so that models explore every
//! interleaving; otherwise they are the standard library's and cost nothing.
//!
//! Rooms that hold a lock-free protocol import atomics, cells and parking from here and from nowhere else.

#[cfg(not(loom))]
pub use std::{
    cell,
    sync::{Arc, Condvar, Mutex, MutexGuard, atomic},
    thread,
};

#[cfg(loom)]
pub use loom::{
    cell,
    sync::{Arc, Condvar, Mutex, MutexGuard, atomic},
    thread,
};

/// A model that is explored up to so many preemptions an execution, or up to the bound that `LOOM_MAX_PREEMPTIONS` sets for all.
#[cfg(loom)]
pub fn bounded(preemptions: usize) -> loom::model::Builder {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
    builder
}

/// Spin-wait hint; under loom it yields, so that the other thread can make progress.
#[inline]
pub fn spin_loop() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// A cell reached through closures that get a raw pointer, as loom wants it: it then checks that no two threads are in
/// at once unless both only read. Otherwise it is the standard library's.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct UnsafeCell<T>(cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    /// A cell with a value.
    pub fn new(value: T) -> Self {
        UnsafeCell(cell::UnsafeCell::new(value))
    }

    /// Reads: nobody may write meanwhile.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        #[cfg(not(loom))]
        return f(self.0.get());
        #[cfg(loom)]
        self.0.with(f)
    }

    /// Writes: nobody else may be in.
    #[inline]
    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        #[cfg(not(loom))]
        return f(self.0.get());
        #[cfg(loom)]
        self.0.with_mut(f)
    }
}
