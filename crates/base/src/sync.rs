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

/// Spin-wait hint; under loom it yields, so that the other thread can make progress.
#[inline]
pub fn spin_loop() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}
