//! Waiting for one outcome, as a thread, a waker or a callback.
//!
//! A [`Completion`] is shared between the one who will settle it and the one who waits. It is settled once; the waiter
//! may register before or after. Blocking callers park, async callers leave a waker, hosts (a SQL server's group commit)
//! leave a callback. A thread that blocks may offer to work meanwhile ([`Completion::wait_helping`]): whoever wants to
//! pass work on *elects* it.
//!
//! # Concurrency
//! One word decides. It holds the flags below and, once settled, the number itself, so that an outcome nobody blocked
//! for is passed on without a lock:
//!
//! * settling: one compare-and-swap; looking: one load; [`Completion::renew`] makes a used one pending again without
//!   an allocation and without an atomic read-modify-write;
//! * the mutex guards what is rare: errors, numbers beyond 60 bits, registered waiters, sleep.
//!
//! No wake-up is lost: a waiter sets its flag with an RMW on the word *while it holds the mutex*, and looks at what the
//! word held. If the settler's RMW came first, the waiter sees `SETTLED` and does not sleep. If it came second, the
//! settler sees the flag and takes the mutex before it notifies, which it cannot until the waiter sleeps. The same
//! argument holds for electing. Every RMW on the word is AcqRel, so whoever sees `SETTLED` sees all that was done before.
//!
//! Settling and waking may be apart ([`Settler::settle_later`]): a thread that is woken often takes the processor from the one that
//! wakes it. So that one should have nothing then that others need, unless it has waited itself just before or is about to.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use crate::error::{Error, ErrorKind, Result};
use crate::sync::atomic::{AtomicU64, Ordering, fence};
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, spin_loop};

/// The outcome is known.
const SETTLED: u64 = 1;
/// The outcome is in [`Slow`], not in the word.
const ELSEWHERE: u64 = 1 << 1;
/// A thread sleeps, or is about to.
const SLEEPING: u64 = 1 << 2;
/// That thread takes work while it waits.
const WILLING: u64 = 1 << 3;
/// It has been elected and has not yet begun.
const ELECTED: u64 = 1 << 4;
/// A waker or callback is in [`Slow`].
const REGISTERED: u64 = 1 << 5;
/// A settled number stands above the flags.
const VALUE_SHIFT: u32 = 6;
/// Numbers from here on do not fit beside the flags.
const INLINE_LIMIT: u64 = 1 << (64 - VALUE_SHIFT);

/// How often a blocking waiter looks before it goes to sleep: most commits settle within a microsecond.
#[cfg(not(loom))]
const SPINS: usize = 128;
#[cfg(loom)]
const SPINS: usize = 0;

/// Who is told when an outcome is known.
pub enum Waiter {
    /// Wakes an async task. Is called on a thread that settles outcomes: it must be quick, and must not run the task there and then.
    Waker(Waker),
    /// Is called on the thread that settles the outcome; must be quick and must not block.
    Callback(Box<dyn FnOnce(Result<u64>) + Send>),
}

impl Waiter {
    fn tell(self, outcome: Result<u64>, wakes: &mut Wakes) {
        match self {
            Waiter::Waker(waker) => wakes.0.push(Wake::Task(waker)),
            Waiter::Callback(f) => drop(unharmed(|| f(outcome))),
        }
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Waiter::Waker(_) => "Waiter::Waker",
            Waiter::Callback(_) => "Waiter::Callback",
        })
    }
}

/// Threads and tasks that wait for outcomes which are settled already: woken by [`Wakes::wake`], at the latest when this is dropped.
#[derive(Debug, Default)]
#[must_use = "they wait until it is dropped"]
pub struct Wakes(Vec<Wake>);

#[derive(Debug)]
enum Wake {
    Thread(Completion),
    Task(Waker),
}

impl Wakes {
    /// Nobody.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes them all.
    pub fn wake(&mut self) {
        for wake in self.0.drain(..) {
            match wake {
                Wake::Thread(completion) => completion.rouse(),
                Wake::Task(waker) => drop(unharmed(|| waker.wake())),
            }
        }
    }
}

impl Drop for Wakes {
    #[inline]
    fn drop(&mut self) {
        // Mostly nobody waits.
        if !self.0.is_empty() {
            self.wake();
        }
    }
}

/// Runs foreign code on a thread that has more to do; `None` if it panics, which the panic hook has reported then.
pub fn unharmed<R>(foreign: impl FnOnce() -> R) -> Option<R> {
    match catch_unwind(AssertUnwindSafe(foreign)) {
        Ok(r) => Some(r),
        Err(payload) => {
            // What a panic carries is foreign too.
            if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(again);
            }
            None
        }
    }
}

/// One outcome (a sequence number or an error) that will be known later. Cloning shares it.
#[derive(Clone)]
pub struct Completion(Arc<Inner>);

struct Inner {
    word: AtomicU64,
    slow: Mutex<Slow>,
    wake: Condvar,
}

#[derive(Default)]
struct Slow {
    outcome: Option<Result<u64>>,
    waiter: Option<Waiter>,
}

impl Completion {
    /// A pending outcome.
    #[allow(clippy::new_without_default, reason = "a default outcome would read as a settled one")]
    pub fn new() -> Self {
        Completion(Arc::new(Inner {
            word: AtomicU64::new(0),
            slow: Mutex::new(Slow::default()),
            wake: Condvar::new(),
        }))
    }

    /// Makes this handle pending again, for a thread that commits time after time. Reuses the memory if every other
    /// handle is gone, else allocates; other handles keep their outcome.
    pub fn renew(&mut self) {
        if Arc::strong_count(&self.0) != 1 {
            *self = Completion::new();
            return;
        }
        // The count was read relaxed: this pairs with the release by which the last other handle was dropped.
        fence(Ordering::Acquire);
        let word = self.0.word.load(Ordering::Relaxed);
        if word & (ELSEWHERE | REGISTERED) != 0 {
            *self.lock() = Slow::default();
        }
        self.0.word.store(0, Ordering::Relaxed);
    }

    /// A handle that settles this outcome, if only by being dropped.
    pub fn settler(&self) -> Settler {
        Settler(Some(self.clone()))
    }

    /// Settles the outcome and tells the waiter. A second call changes nothing.
    pub fn settle(&self, outcome: Result<u64>) {
        self.settle_later(outcome, &mut Wakes::new());
    }

    /// As [`Completion::settle`], but that a thread or task that waits is left to be woken. Callbacks are called at once.
    pub fn settle_later(&self, outcome: Result<u64>, wakes: &mut Wakes) {
        let before = match &outcome {
            Ok(n) if *n < INLINE_LIMIT => self.decide(SETTLED | n << VALUE_SHIFT),
            _ => {
                let mut slow = self.lock();
                if slow.outcome.is_some() {
                    return;
                }
                slow.outcome = Some(outcome.clone());
                let before = self.decide(SETTLED | ELSEWHERE);
                if before.is_none() {
                    slow.outcome = None;
                }
                before
            }
        };
        if let Some(word) = before
            && word & (SLEEPING | REGISTERED) != 0
        {
            self.notify(word, outcome, wakes);
        }
    }

    /// Puts the outcome into the word; gives what the word was, or `None` if another outcome is there already.
    #[inline]
    fn decide(&self, settled: u64) -> Option<u64> {
        let mut word = self.0.word.load(Ordering::Relaxed);
        while word & SETTLED == 0 {
            match self.0.word.compare_exchange_weak(word, word | settled, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return Some(word),
                Err(now) => word = now,
            }
        }
        None
    }

    #[cold]
    fn notify(&self, before: u64, outcome: Result<u64>, wakes: &mut Wakes) {
        if before & SLEEPING != 0 {
            wakes.0.push(Wake::Thread(self.clone()));
        }
        if before & REGISTERED != 0 {
            let waiter = self.lock().waiter.take();
            if let Some(waiter) = waiter {
                waiter.tell(outcome, wakes);
            }
        }
    }

    /// Whether the outcome is known.
    pub fn is_settled(&self) -> bool {
        self.0.word.load(Ordering::Acquire) & SETTLED != 0
    }

    /// The outcome, if known.
    pub fn outcome(&self) -> Option<Result<u64>> {
        let word = self.0.word.load(Ordering::Acquire);
        (word & SETTLED != 0).then(|| self.read(word))
    }

    /// Registers who is to be told; replaces an earlier registration. If the outcome is known already, a callback is
    /// called and a waker woken at once, on this thread.
    pub fn register(&self, waiter: Waiter) {
        let mut slow = self.lock();
        slow.waiter = Some(waiter);
        let word = self.0.word.fetch_or(REGISTERED, Ordering::AcqRel);
        if word & SETTLED == 0 {
            return;
        }
        let waiter = slow.waiter.take();
        drop(slow);
        if let Some(waiter) = waiter {
            waiter.tell(self.read(word), &mut Wakes::new());
        }
    }

    /// Asks a thread that blocks in [`Completion::wait_helping`] to do its work now. True if it will, even if the
    /// outcome is settled in the meantime; false if nobody blocks there, or the outcome is known.
    pub fn elect(&self) -> bool {
        let mut word = self.0.word.load(Ordering::Relaxed);
        loop {
            if !can_elect(word) {
                return false;
            }
            match self.0.word.compare_exchange_weak(word, word | ELECTED, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        self.rouse();
        true
    }

    /// Wakes whoever sleeps, or is about to.
    fn rouse(&self) {
        // Taking the lock waits until it sleeps, so that it cannot miss this.
        drop(self.lock());
        self.0.wake.notify_all();
    }

    /// Blocks until the outcome is known.
    ///
    /// # Errors
    /// The error that the outcome was settled with.
    pub fn wait(&self) -> Result<u64> {
        match self.spin() {
            Some(outcome) => outcome,
            None => self.sleep(SLEEPING, || {}),
        }
    }

    /// Blocks until the outcome is known, and calls `work` each time [`Completion::elect`] asks for it.
    ///
    /// # Errors
    /// The error that the outcome was settled with.
    pub fn wait_helping(&self, work: impl FnMut()) -> Result<u64> {
        match self.spin() {
            Some(outcome) => outcome,
            None => self.sleep(SLEEPING | WILLING, work),
        }
    }

    #[inline]
    fn spin(&self) -> Option<Result<u64>> {
        if let Some(outcome) = self.outcome() {
            return Some(outcome);
        }
        for _ in 0..SPINS {
            spin_loop();
            if let Some(outcome) = self.outcome() {
                return Some(outcome);
            }
        }
        None
    }

    #[cold]
    fn sleep(&self, flags: u64, mut work: impl FnMut()) -> Result<u64> {
        let mut slow = self.lock();
        loop {
            let word = self.0.word.fetch_or(flags, Ordering::AcqRel);
            // Before the outcome: an election that was promised to the elector is honoured though it is settled.
            if flags & WILLING != 0 && word & ELECTED != 0 {
                if self.0.word.fetch_and(!ELECTED, Ordering::AcqRel) & ELECTED != 0 {
                    drop(slow);
                    work();
                    slow = self.lock();
                }
                continue;
            }
            if word & SETTLED != 0 {
                drop(slow);
                return self.read(word);
            }
            slow = match self.0.wake.wait(slow) {
                Ok(s) => s,
                Err(poison) => poison.into_inner(),
            };
        }
    }

    /// The outcome that the settled `word` stands for.
    fn read(&self, word: u64) -> Result<u64> {
        if word & ELSEWHERE == 0 {
            return Ok(word >> VALUE_SHIFT);
        }
        // It was stored before the word said so.
        self.lock().outcome.clone().unwrap_or_else(|| Err(unsettled()))
    }

    fn lock(&self) -> MutexGuard<'_, Slow> {
        // Nothing that can panic runs under the lock, so a poisoned mutex still holds a whole state.
        match self.0.slow.lock() {
            Ok(s) => s,
            Err(poison) => poison.into_inner(),
        }
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion").field("settled", &self.is_settled()).finish()
    }
}

/// The settling end of a [`Completion`]. Dropped before it has settled, on whatever path of errors, it settles with a
/// [`ErrorKind::Closed`] error, so that no waiter is left behind.
#[derive(Debug)]
pub struct Settler(Option<Completion>);

impl Settler {
    /// One of no outcome: whatever it settles nobody hears of.
    pub fn nobody() -> Self {
        Settler(None)
    }

    /// Settles the outcome and tells the waiter.
    pub fn settle(mut self, outcome: Result<u64>) {
        if let Some(c) = self.0.take() {
            c.settle(outcome);
        }
    }

    /// As [`Settler::settle`], but that a thread or task that waits is left to be woken: see [`Completion::settle_later`].
    pub fn settle_later(mut self, outcome: Result<u64>, wakes: &mut Wakes) {
        if let Some(c) = self.0.take() {
            c.settle_later(outcome, wakes);
        }
    }

    /// The waiting end, if a thread blocks there that would take work ([`Completion::wait_helping`]).
    pub fn willing(&self) -> Option<Completion> {
        self.0.as_ref().filter(|c| can_elect(c.0.word.load(Ordering::Relaxed))).cloned()
    }
}

impl Drop for Settler {
    fn drop(&mut self) {
        if let Some(c) = self.0.take() {
            c.settle(Err(unsettled()));
        }
    }
}

fn can_elect(word: u64) -> bool {
    word & (WILLING | SETTLED | ELECTED) == WILLING
}

fn unsettled() -> Error {
    Error::new(ErrorKind::Closed, "the operation was given up before its outcome was known")
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod model;
