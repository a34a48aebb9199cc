//! Epoch-based reclamation: what was taken out of a structure that others read without a lock is dropped after everybody who
//! might still read it has gone.
//!
//! A reader holds a [`Guard`] while it reads. Who takes a thing out makes it unreachable first, and then hands it over
//! ([`Guard::retire`]). Readers write nothing that others write: entering costs an atomic read-modify-write on a line of the
//! thread's own, one guard within another not even that. All else is done by threads that retire.
//!
//! After K. Fraser, "Practical lock-freedom" (2004), section 5.2.3, but that only who retires moves the epoch.
//!
//! # Concurrency
//! *Epoch.* A number that grows, written under `ripening`'s lock alone. A thread's slot says in which epoch it entered, or that it is
//! outside. The epoch moves on from `e` when no slot says other than outside or `e`.
//!
//! *When a thing may go.* A thing that is handed over in epoch `e` goes once the epoch is `e + 2`, hence after two looks over all
//! slots, both begun after it was unreachable. Take a reader that may have come by the thing:
//! * It wrote its slot, and then passed a full barrier, before it read anything (`Slot::enter`); a look begins with one. If the
//!   reader's barrier is the later one, it reads what had been written before the look, so the thing was out of its reach. If it is
//!   the earlier one, the look sees the slot.
//! * A slot that says less than the present epoch (its reader had loaded the epoch, and was slow to say so) stops the epoch.
//! * One that says `e` lets the first look pass and stops the second. One that says `e + 1` loaded what was written after the first
//!   look had begun, and then passed its barrier: the thing was out of its reach.
//!
//! *Leaving* releases, and so does entering, which is why a look that finds a thread outside, or in a later stay, need only acquire: what
//! the thread read before it has read before the thing is dropped.
//!
//! *A slot* is a thread's own while that lives; the next thread with its number takes it over, with what it has retired. Only its owner
//! writes `depth`, and only its owner locks `retired` but for the end of the domain.
//!
//! Loom model in `reclaim/model.rs`.

use std::collections::VecDeque;
#[cfg(not(loom))]
use std::{fmt, marker::PhantomData};

use crossbeam_utils::CachePadded;
#[cfg(not(loom))]
use thread_local::ThreadLocal;

use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
use crate::sync::{Mutex, MutexGuard};

/// Things that a thread gathers before it hands them to all. So many may wait in each thread for as long as it retires no more.
#[cfg(not(loom))]
const BAG: usize = 64;
/// What a slot says whose thread is outside. Epochs begin above.
const OUTSIDE: u64 = 0;

/// Where guards come from: one for each structure, or for all that are to share it. When it goes, so does what it holds.
#[cfg(not(loom))]
pub struct Domain<G: Send> {
    epochs: Epochs<G>,
    threads: ThreadLocal<CachePadded<Slot<G>>>,
}

/// A thread's place in a domain.
struct Slot<G> {
    /// The epoch in which the thread entered.
    entered: AtomicU64,
    /// Guards that it holds.
    depth: AtomicUsize,
    retired: Mutex<Vec<G>>,
}

struct Epochs<G> {
    now: CachePadded<AtomicU64>,
    ripening: Mutex<Ripening<G>>,
}

/// What was handed over, in the order of the epochs in which it was.
type Ripening<G> = VecDeque<(u64, Vec<G>)>;

/// Keeps what can be reached now from being dropped. It stays with its thread.
#[cfg(not(loom))]
pub struct Guard<'d, G: Send> {
    domain: &'d Domain<G>,
    slot: &'d Slot<G>,
    _of_one_thread: PhantomData<*const ()>,
}

#[cfg(not(loom))]
impl<G: Send> Domain<G> {
    /// One that holds nothing.
    pub fn new() -> Self {
        Domain { epochs: Epochs::new(), threads: ThreadLocal::new() }
    }

    /// A guard for the calling thread. Never blocks. While it is held nothing is dropped that is retired meanwhile: it should be held
    /// shortly.
    #[inline]
    pub fn pin(&self) -> Guard<'_, G> {
        let slot = self.threads.get_or(|| CachePadded::new(Slot::new()));
        slot.pin(&self.epochs);
        Guard { domain: self, slot, _of_one_thread: PhantomData }
    }
}

#[cfg(not(loom))]
impl<G: Send> Guard<'_, G> {
    /// Drops `thing` once nobody can reach it any more, which nobody who takes a guard from now on may. Now and then also drops what others
    /// retired.
    pub fn retire(&self, thing: G) {
        let mut retired = lock(&self.slot.retired);
        retired.push(thing);
        if retired.len() < BAG {
            return;
        }
        let bag = std::mem::take(&mut *retired);
        drop(retired);
        self.hand_over(bag);
    }

    /// Hands over what this thread has retired, and drops what may be dropped by now.
    pub fn flush(&self) {
        let bag = std::mem::take(&mut *lock(&self.slot.retired));
        self.hand_over(bag);
    }

    fn hand_over(&self, bag: Vec<G>) {
        // Dropped here, without a lock: it may take a while, and retire more.
        drop(self.domain.epochs.hand_over(bag, || self.domain.threads.iter().map(|slot| &**slot)));
    }
}

#[cfg(not(loom))]
impl<G: Send> Default for Domain<G> {
    fn default() -> Self {
        Domain::new()
    }
}

#[cfg(not(loom))]
impl<G: Send> fmt::Debug for Domain<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain").field("epoch", &self.epochs.now).finish_non_exhaustive()
    }
}

#[cfg(not(loom))]
impl<G: Send> fmt::Debug for Guard<'_, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("entered", &self.slot.entered).finish_non_exhaustive()
    }
}

#[cfg(not(loom))]
impl<G: Send> Drop for Guard<'_, G> {
    #[inline]
    fn drop(&mut self) {
        self.slot.unpin();
    }
}

impl<G> Slot<G> {
    fn new() -> Self {
        Slot { entered: AtomicU64::new(OUTSIDE), depth: AtomicUsize::new(0), retired: Mutex::new(Vec::new()) }
    }

    #[inline]
    fn pin(&self, epochs: &Epochs<G>) {
        let depth = self.depth.load(Ordering::Relaxed);
        self.depth.store(depth + 1, Ordering::Relaxed);
        if depth == 0 {
            self.enter(epochs.now.load(Ordering::Relaxed));
        }
    }

    #[inline]
    fn unpin(&self) {
        let depth = self.depth.load(Ordering::Relaxed) - 1;
        self.depth.store(depth, Ordering::Relaxed);
        if depth == 0 {
            self.entered.store(OUTSIDE, Ordering::Release);
        }
    }

    /// Says in which epoch the thread enters, before anything that it does from now on.
    #[inline]
    fn enter(&self, epoch: u64) {
        // Every locked instruction of this processor is a full barrier, and a swap costs half of what `mfence` does.
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        {
            self.entered.swap(epoch, Ordering::SeqCst);
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        }
        #[cfg(not(all(target_arch = "x86_64", not(loom))))]
        {
            self.entered.store(epoch, Ordering::Release);
            fence(Ordering::SeqCst);
        }
    }

    /// Whether no reader of an epoch other than `epoch` is here.
    fn allows_leaving(&self, epoch: u64) -> bool {
        let entered = self.entered.load(Ordering::Acquire);
        entered == OUTSIDE || entered == epoch
    }
}

impl<G> Epochs<G> {
    fn new() -> Self {
        Epochs { now: CachePadded::new(AtomicU64::new(OUTSIDE + 1)), ripening: Mutex::new(Ripening::new()) }
    }

    /// Takes what was retired, moves the epoch on if it can be, and gives what may be dropped.
    #[must_use]
    fn hand_over<'s, I>(&self, bag: Vec<G>, slots: impl FnOnce() -> I) -> Vec<Vec<G>>
    where
        I: Iterator<Item = &'s Slot<G>>,
        G: 's,
    {
        let mut ripening = lock(&self.ripening);
        let mut now = self.now.load(Ordering::Relaxed);
        if !bag.is_empty() {
            ripening.push_back((now, bag));
        }
        if ripening.is_empty() {
            return Vec::new();
        }
        fence(Ordering::SeqCst);
        if slots().all(|slot| slot.allows_leaving(now)) {
            now += 1;
            self.now.store(now, Ordering::Release);
        }
        let ripe = ripening.partition_point(|&(epoch, _)| epoch + 2 <= now);
        ripening.drain(..ripe).map(|(_, bag)| bag).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics under it.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(all(test, loom))]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn domain() -> (Domain<Arc<()>>, Arc<()>) {
        (Domain::new(), Arc::new(()))
    }

    fn left(thing: &Arc<()>) -> usize {
        Arc::strong_count(thing) - 1
    }

    #[test]
    fn what_is_retired_goes_after_two_epochs() {
        let (domain, thing) = domain();
        domain.pin().retire(thing.clone());
        domain.pin().flush();
        assert_eq!(left(&thing), 1);
        domain.pin().flush();
        assert_eq!(left(&thing), 0);
    }

    #[test]
    fn a_reader_elsewhere_keeps_it() {
        let (domain, thing) = domain();
        std::thread::scope(|scope| {
            let (entered, has_entered) = std::sync::mpsc::channel();
            let (leave, may_leave) = std::sync::mpsc::channel::<()>();
            let domain = &domain;
            let reader = scope.spawn(move || {
                let _guard = domain.pin();
                let within = domain.pin();
                drop(within);
                entered.send(()).unwrap();
                may_leave.recv().unwrap();
            });
            has_entered.recv().unwrap();
            domain.pin().retire(thing.clone());
            (0..9).for_each(|_| domain.pin().flush());
            assert_eq!(left(&thing), 1);
            leave.send(()).unwrap();
            reader.join().unwrap();
        });
        domain.pin().flush();
        domain.pin().flush();
        assert_eq!(left(&thing), 0);
    }

    #[test]
    fn who_retires_much_waits_for_nobody_and_bounds_what_waits() {
        let (domain, thing) = domain();
        for _ in 0..100 * BAG {
            domain.pin().retire(thing.clone());
            assert!(left(&thing) <= 4 * BAG);
        }
    }

    #[test]
    fn a_domain_takes_what_waits_with_it() {
        let (domain, thing) = domain();
        (0..BAG + 3).for_each(|_| domain.pin().retire(thing.clone()));
        drop(domain);
        assert_eq!(left(&thing), 0);
    }
}
