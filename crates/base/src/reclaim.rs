//! Epoch-based reclamation: what was taken out of a structure that others read without a lock is dropped after everybody who
//! might still read it has gone.
//!
//! A reader holds a [`Guard`] while it reads. Who takes a thing out makes it unreachable first, and then hands it over
//! ([`Guard::retire`]). Readers write nothing that others write: entering costs an atomic read-modify-write on a line of the
//! thread's own, one guard within another not even that. All else is done by threads that retire.
//!
//! Several domains may go by one [`Clock`]: entering one of them enters all. A thread that reads all the time can *stay* inside ([`Stay`])
//! and say now and then that it holds nothing of what it has read so far: then its guards cost no atomic read-modify-write and no fence.
//!
//! After K. Fraser, "Practical lock-freedom" (2004), section 5.2.3, but that only who retires moves the epoch; staying is what is known as
//! quiescent-state-based reclamation (T. Hart, P. McKenney, A. Demke Brown, J. Walpole, "Performance of memory reclamation for lockless
//! synchronization", 2007).
//!
//! # Concurrency
//! *Epoch.* A number that grows, written under `moving` alone. A thread's slot says in which epoch it entered, or that it is
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
//! *Renewing a stay* stores the present epoch `n`, which was loaded with acquire, into the slot, with release, and needs no barrier. What
//! the reader comes by after that was handed over in epoch `n` or later: the hand-over in an earlier one happened before `n` was
//! stored. So it goes after a look in an epoch above `n`, and that look has to see that the slot says so, or that the thread is outside:
//! * if it sees what the reader stored after `n`, it has acquired the end of that use;
//! * what the reader stored before `n` says less, or that it was outside before it entered; and if the look came too early to see the
//!   entering, then by the barriers the reader read what had been written before that look, so the thing was out of its reach.
//!
//! *Leaving* releases, and so does entering, which is why a look that finds a thread outside, or in a later stay, need only acquire: what
//! the thread read before it has read before the thing is dropped.
//!
//! *A slot* is a thread's own while that lives; the next thread with its number takes it over. Only its owner writes `depth` and `stays`; and what a
//! thread has retired only that locks, but for the end of the domain.
//!
//! *Locks.* `ripening` of a domain, then `moving` of its clock. Nothing is dropped under either.
//!
//! Loom model in `reclaim/model.rs`.

use std::collections::VecDeque;
#[cfg(not(loom))]
use std::{fmt, marker::PhantomData, sync::Arc};

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

/// Which threads are inside, and since when. Domains that go by one clock wait for each other's readers, and for nothing else of each other.
#[cfg(not(loom))]
#[derive(Default)]
pub struct Clock {
    hands: Hands,
    threads: ThreadLocal<CachePadded<Slot>>,
}

/// Stands in where models have no epochs.
#[cfg(loom)]
#[derive(Default)]
pub struct Clock;

/// Where guards come from: one for each structure, or for all that are to share it. When it goes, so does what it holds.
#[cfg(not(loom))]
pub struct Domain<G: Send> {
    clock: Arc<Clock>,
    ripening: Mutex<Ripening<G>>,
    /// What each thread has retired and not handed over.
    retired: ThreadLocal<CachePadded<Mutex<Vec<G>>>>,
}

/// A thread's place on a clock.
#[derive(Default)]
struct Slot {
    /// The epoch in which the thread entered.
    entered: AtomicU64,
    /// Guards and stays that it holds.
    depth: AtomicUsize,
    /// The stays among them.
    stays: AtomicUsize,
}

/// The epoch.
struct Hands {
    now: CachePadded<AtomicU64>,
    moving: Mutex<()>,
}

/// What was handed over, in the order of the epochs in which it was.
type Ripening<G> = VecDeque<(u64, Vec<G>)>;

/// Keeps what can be reached now from being dropped. It stays with its thread.
#[cfg(not(loom))]
pub struct Guard<'d, G: Send> {
    domain: &'d Domain<G>,
    slot: &'d Slot,
    _of_one_thread: PhantomData<*const ()>,
}

/// Keeps its thread inside, so that the guards that it takes cost next to nothing. Nothing is dropped that is retired since the stay was
/// last renewed: whoever stays renews it all the time, and leaves when there is nothing to do. It stays with its thread.
#[cfg(not(loom))]
pub struct Stay<'c> {
    clock: &'c Clock,
    slot: &'c Slot,
    _of_one_thread: PhantomData<*const ()>,
}

#[cfg(not(loom))]
impl Clock {
    /// One on which nobody is inside.
    pub fn new() -> Self {
        Self::default()
    }

    /// Has the calling thread stay inside.
    pub fn stay(&self) -> Stay<'_> {
        let slot = self.enter();
        slot.stays(1);
        Stay { clock: self, slot, _of_one_thread: PhantomData }
    }

    #[inline]
    fn enter(&self) -> &Slot {
        let slot = self.threads.get_or_default();
        slot.pin(&self.hands);
        slot
    }
}

#[cfg(not(loom))]
impl Stay<'_> {
    /// Says that the thread holds nothing of what it has read so far. Does nothing as long as it holds a guard, since what was read by that
    /// may be in use; other stays of the thread are renewed along.
    #[inline]
    pub fn renew(&self) {
        self.slot.renew(&self.clock.hands);
    }
}

#[cfg(not(loom))]
impl<G: Send> Domain<G> {
    /// One that holds nothing, with a clock of its own.
    pub fn new() -> Self {
        Domain::on(Arc::default())
    }

    /// One that holds nothing and goes by `clock`.
    pub fn on(clock: Arc<Clock>) -> Self {
        Domain { clock, ripening: Mutex::default(), retired: ThreadLocal::new() }
    }

    /// A guard for the calling thread. Never blocks. While it is held nothing is dropped that is retired meanwhile, here or in another
    /// domain of the same clock: it should be held shortly.
    #[inline]
    pub fn pin(&self) -> Guard<'_, G> {
        Guard { domain: self, slot: self.clock.enter(), _of_one_thread: PhantomData }
    }
}

#[cfg(not(loom))]
impl<G: Send> Guard<'_, G> {
    /// Drops `thing` once nobody can reach it any more, which nobody who takes a guard from now on may. Now and then also drops what others
    /// retired.
    pub fn retire(&self, thing: G) {
        let mut retired = lock(self.domain.retired.get_or_default());
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
        let bag = std::mem::take(&mut *lock(self.domain.retired.get_or_default()));
        self.hand_over(bag);
    }

    fn hand_over(&self, bag: Vec<G>) {
        let clock = &self.domain.clock;
        let ripe =
            clock.hands.hand_over(&self.domain.ripening, bag, || clock.threads.iter().map(|slot| &**slot));
        // Here, without a lock: it may take a while, and retire more.
        drop(ripe);
    }
}

#[cfg(not(loom))]
impl<G: Send> Default for Domain<G> {
    fn default() -> Self {
        Domain::new()
    }
}

#[cfg(not(loom))]
impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Clock").field("epoch", &self.hands.now).finish_non_exhaustive()
    }
}

#[cfg(not(loom))]
impl<G: Send> fmt::Debug for Domain<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain").field("clock", &self.clock).finish_non_exhaustive()
    }
}

#[cfg(not(loom))]
impl<G: Send> fmt::Debug for Guard<'_, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("entered", &self.slot.entered).finish_non_exhaustive()
    }
}

#[cfg(not(loom))]
impl fmt::Debug for Stay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stay").field("entered", &self.slot.entered).finish_non_exhaustive()
    }
}

#[cfg(not(loom))]
impl<G: Send> Drop for Guard<'_, G> {
    #[inline]
    fn drop(&mut self) {
        self.slot.unpin();
    }
}

#[cfg(not(loom))]
impl Drop for Stay<'_> {
    fn drop(&mut self) {
        self.slot.stays(-1);
        self.slot.unpin();
    }
}

impl Slot {
    #[inline]
    fn pin(&self, hands: &Hands) {
        let depth = self.depth.load(Ordering::Relaxed);
        self.depth.store(depth + 1, Ordering::Relaxed);
        if depth == 0 {
            self.enter(hands.now.load(Ordering::Relaxed));
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

    /// One stay more, or less.
    fn stays(&self, change: isize) {
        self.stays.store(self.stays.load(Ordering::Relaxed).wrapping_add_signed(change), Ordering::Relaxed);
    }

    /// Says that the thread, which is inside by stays, holds nothing of what it has read before: things are read by guards alone. See the
    /// module's head.
    #[inline]
    fn renew(&self, hands: &Hands) {
        if self.depth.load(Ordering::Relaxed) != self.stays.load(Ordering::Relaxed) {
            return;
        }
        let now = hands.now.load(Ordering::Acquire);
        if self.entered.load(Ordering::Relaxed) != now {
            self.entered.store(now, Ordering::Release);
        }
    }

    /// Whether no reader of an epoch other than `epoch` is here.
    fn allows_leaving(&self, epoch: u64) -> bool {
        let entered = self.entered.load(Ordering::Acquire);
        entered == OUTSIDE || entered == epoch
    }
}

impl Default for Hands {
    fn default() -> Self {
        Hands { now: CachePadded::new(AtomicU64::new(OUTSIDE + 1)), moving: Mutex::default() }
    }
}

impl Hands {
    /// Takes what was retired, moves the epoch on if it can be, and gives what may be dropped.
    #[must_use]
    fn hand_over<'s, G, I>(
        &self,
        ripening: &Mutex<Ripening<G>>,
        bag: Vec<G>,
        slots: impl FnOnce() -> I,
    ) -> Vec<Vec<G>>
    where
        I: Iterator<Item = &'s Slot>,
    {
        let mut ripening = lock(ripening);
        let moving = lock(&self.moving);
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
        drop(moving);
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
    fn a_stay_keeps_what_it_may_have_seen_until_it_is_renewed() {
        let clock = Arc::new(Clock::new());
        let (one, other) = (Domain::on(clock.clone()), Domain::on(clock.clone()));
        let thing = Arc::new(());
        let flush = || {
            std::thread::scope(|scope| {
                scope.spawn(|| (0..4).for_each(|_| one.pin().flush()));
            });
        };
        let (stay, _another) = (clock.stay(), clock.stay());
        let guard: Guard<'_, ()> = other.pin();
        std::thread::scope(|scope| {
            // Handed over by the thread itself: another may have its number by the time of the flush below, and with it what waits.
            scope.spawn(|| {
                one.pin().retire(thing.clone());
                one.pin().flush();
            });
        });
        flush();
        assert_eq!(left(&thing), 1, "it may have been seen");
        stay.renew();
        flush();
        assert_eq!(left(&thing), 1, "a guard is held, if of another domain");
        drop(guard);
        stay.renew();
        flush();
        stay.renew();
        flush();
        assert_eq!(left(&thing), 0);
        drop(stay);
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
