//! Ordering: whoever finds the ring's head filled settles what is there, in order.
//!
//! The role of orderer is a word that counts the arrivals since it was last free: who raises it from zero is the
//! orderer. The orderer takes consecutive filled slots off the head, empties them, settles them as one group, and
//! begins again. It leaves by setting the count from what it last saw back to zero, and only with the head not filled.
//!
//! # Why this is right
//! *No filled slot is left behind.* A filler first marks its slot and then raises the count, both with release. If its
//! raise comes before the orderer's leaving, the orderer's compare-and-swap fails and acquires the raise: it looks
//! again and sees the slot. If it comes after, the filler finds zero and is the orderer itself. Both are
//! read-modify-writes of one word, which have a single order, so there is no third case. (Release and re-check in one
//! RMW: nothing here rests on sequentially consistent accesses, which loom would not model faithfully.)
//!
//! *One at a time.* The count leaves zero, and the mark of a hand-over is cleared, by one thread each; leaving and
//! handing over are the last that an orderer does. The next one's RMW acquires the last one's, and with it `order`.
//!
//! *Nobody orders for ever.* After its own entry and one group more the orderer hands over: it asks
//! [`Orderer::heir`] for the completion of somebody who waits for the entry now at the head, marks the role as handed
//! over, and elects a thread blocked there ([`Completion::elect`]), which calls [`Ring::resume`]. Whoever comes first,
//! the elected thread, the next filler or the old orderer (if nobody was elected), clears the mark and has the role:
//! that clearing, not the election, decides, so a call of `resume` out of turn does nothing. If nobody can take over,
//! the orderer goes on.
//!
//! It would be wrong to leave filled slots to whoever fills a slot that is reserved further on: that thread may be
//! waiting for log space that only ordering gives back.
//!
//! *Who waits for an outcome is woken behind it*, when the role is another's: a thread that is woken takes the processor from the one that
//! wakes it, if there are more threads than processors; with the role in its hands that one would stop all others, which would go to
//! sleep, and have to be woken in their turn. (With 32 threads on two processors that took a third of the commits, and a hundred times the
//! 99th percentile.) Who has blocked in [`Orderer::settle`] wakes those for whom it did before it returns: what they commit next is then in
//! the next group, which else would have the commits of half of the threads.
//!
//! *Who waits for a slot is woken.* Waiting (the ring is full) takes the mutex, raises the `CROWD` flag in the role's
//! word, looks at the slot once more, and sleeps. The orderer empties slots before it next changes that word. If the
//! flag came first, the change sees it, and the orderer takes the mutex (so the other sleeps by now) and notifies. If
//! it came second, the look sees the emptied slot.

use std::mem;

use smallvec::SmallVec;
use terrane_base::sync::UnsafeCell;
use terrane_base::sync::atomic::{AtomicU64, Ordering};
use terrane_base::{Completion, Wakes};

use crate::ring::{Cell, FILLED, Ring};
use crate::word::TICKETS;

/// How far the reference position may stay behind before it is moved up.
const NEAR_LAG: u64 = 1 << 39;

/// In `role`, above the count: somebody waits for a slot.
const CROWD: u64 = 1 << 63;
/// In `role`, above the count: the orderer has left, and whoever clears this takes over.
const HANDED: u64 = 1 << 62;
/// In `role`: the arrivals.
const COUNT: u64 = HANDED - 1;

/// Of a group, as many as need no memory of their own. A group lies on its orderer's stack: in memory that orderers hand on, each had to
/// get the last one's lines from another core.
const FEW: usize = 16;

/// After so many groups those who wait are woken although the order is still the same thread's.
const PATIENCE: usize = 4;

/// A filled place, as the orderer sees it.
#[derive(Debug)]
pub struct Filled<E> {
    /// First unit of the place.
    pub pos: u64,
    /// Its length in units.
    pub units: u64,
    /// What it was filled with. `None` if its reservation was dropped instead (its thread panicked): its bytes may not
    /// have been written, so nothing from here on can count as committed.
    pub entry: Option<E>,
}

impl<E> Filled<E> {
    /// The unit after the place.
    pub fn end(&self) -> u64 {
        self.pos + self.units
    }
}

/// What becomes of filled entries, in ring order.
pub trait Orderer<E> {
    /// Makes the group durable if any of it asks, publishes it, tells those who wait. Called by one thread at a time,
    /// each entry exactly once, in order and without gaps. What is left in the group afterwards is dropped. Must not
    /// wait for a commit: none is settled before this returns. Threads that wait are best left in `wakes`
    /// ([`terrane_base::Settler::settle_later`]): they are woken when ordering is another's, or has gone on for some groups.
    /// Before it blocks it should [wake](Wakes::wake) them, and those for whom it has blocked after that: with what they commit next the
    /// next group is larger.
    fn settle(&self, group: &mut [Filled<E>], wakes: &mut Wakes);

    /// The completion of somebody who waits for `next` and is willing to go on as orderer: who blocks in
    /// [`Completion::wait_helping`] with [`Ring::resume`] as the work. `None` if nobody is known to.
    fn heir(&self, next: &E) -> Option<Completion> {
        let _ = next;
        None
    }
}

/// Where the order is made.
pub(crate) struct Head {
    /// Arrivals, `CROWD` and `HANDED`.
    role: AtomicU64,
    pub(crate) settled: AtomicU64,
    order: UnsafeCell<Order>,
}

/// The orderer's own.
struct Order {
    ticket: u32,
    pos: u64,
}

impl Head {
    pub(crate) fn new(ticket: u32, pos: u64) -> Self {
        Head {
            role: AtomicU64::new(0),
            settled: AtomicU64::new(pos),
            order: UnsafeCell::new(Order { ticket, pos }),
        }
    }

    /// Says that somebody waits for a slot, before it looks at the slot once more.
    pub(crate) fn crowd(&self) {
        self.role.fetch_or(CROWD, Ordering::AcqRel);
    }
}

impl<E: Send> Ring<E> {
    /// To be called after a slot is marked filled, of an entry that ends at `end`: orders, unless another is at it.
    #[inline]
    pub(crate) fn arrive(&self, end: u64, orderer: &impl Orderer<E>) {
        let before = self.head.role.fetch_add(1, Ordering::AcqRel);
        if before & COUNT == 0 {
            self.order(1, end, orderer);
        } else if before & HANDED != 0 {
            self.resume(orderer);
        }
    }

    /// Goes on as orderer if the last one handed over; otherwise does nothing. For those who wait for an entry:
    /// `completion.wait_helping(|| ring.resume(&orderer))`.
    pub fn resume(&self, orderer: &impl Orderer<E>) {
        if let Some(seen) = self.take_over() {
            self.order(seen, 0, orderer);
        }
    }

    /// Takes a role that was handed over, unless another was faster. Gives the arrivals up to then.
    fn take_over(&self) -> Option<u64> {
        let before = self.head.role.fetch_and(!HANDED, Ordering::AcqRel);
        (before & HANDED != 0).then_some(before & COUNT)
    }

    fn order(&self, seen: u64, own_end: u64, orderer: &impl Orderer<E>) {
        // Declared first, so woken when the role is another's.
        let mut wakes = Wakes::new();
        let unwinding = Abandon(&self.head.role);
        self.order_until_free(seen, own_end, orderer, &mut wakes);
        mem::forget(unwinding);
    }

    /// Orders until the head is not filled, or, with everything before `own_end` settled and one group more, until
    /// somebody takes over. The caller holds the role and has acquired `seen` arrivals; afterwards it is another's.
    fn order_until_free(&self, mut seen: u64, own_end: u64, orderer: &impl Orderer<E>, wakes: &mut Wakes) {
        let (mut own_settled, mut groups) = (false, 0);
        // Whether slots may have been emptied since those who wait for one were last told. At first that is so if the
        // last orderer panicked.
        let mut untold = true;
        let mut group = SmallVec::<[Filled<E>; FEW]>::new();
        loop {
            let end = self.take_filled(&mut group);
            if group.is_empty() {
                let leave = self.head.role.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire);
                let now = match leave {
                    Ok(_) => return,
                    Err(now) => now,
                };
                if now & COUNT != seen {
                    seen = now & COUNT;
                } else if untold {
                    self.tell_crowd();
                    untold = false;
                } else if self
                    .head
                    .role
                    .compare_exchange(now, CROWD, Ordering::AcqRel, Ordering::Relaxed)
                    .is_ok()
                {
                    // Those who wait for a slot go on waiting: none was emptied since they were last told.
                    return;
                }
                continue;
            }
            untold = true;
            if self.head.role.load(Ordering::Relaxed) & CROWD != 0 {
                self.tell_crowd();
                untold = false;
            }

            orderer.settle(&mut group, wakes);
            group.clear();
            self.head.settled.store(end, Ordering::Release);
            if end - self.near.pos.load(Ordering::Relaxed) > NEAR_LAG {
                self.near.pos.store(end, Ordering::Release);
            }

            if own_settled && self.hand_over(orderer) {
                return;
            }
            own_settled = end >= own_end;
            groups += 1;
            if groups == PATIENCE {
                // It goes on and on.
                wakes.wake();
                groups = 0;
            }
        }
    }

    /// Takes the consecutive filled entries at the head and empties their slots. Says where they end.
    fn take_filled(&self, group: &mut SmallVec<[Filled<E>; FEW]>) -> u64 {
        self.head.order.with_mut(|order| {
            // SAFETY: only the orderer gets here, and it has acquired the role.
            let order = unsafe { &mut *order };
            while group.len() < self.slots.len() {
                let slot = self.slot(order.ticket);
                if slot.turn.load(Ordering::Acquire) != order.ticket | FILLED {
                    break;
                }
                let Cell { units, entry } = slot.cell.with_mut(|cell| {
                    // SAFETY: a filled slot is the orderer's until `turn` says empty.
                    unsafe { mem::replace(&mut *cell, Cell { units: 0, entry: None }) }
                });
                let next_round = order.ticket + self.slots.len() as u32;
                slot.turn.store(next_round % TICKETS, Ordering::Release);
                group.push(Filled { pos: order.pos, units, entry });
                order.pos += units;
                order.ticket = (order.ticket + 1) % TICKETS;
            }
            order.pos
        })
    }

    /// Tells those who wait for a slot that some were emptied.
    #[cold]
    fn tell_crowd(&self) {
        self.head.role.fetch_and(!CROWD, Ordering::AcqRel);
        self.make_room();
    }

    /// Gives the role to somebody who waits for the entry at the head. False if the caller still has it.
    #[cold]
    fn hand_over(&self, orderer: &impl Orderer<E>) -> bool {
        let Some(heir) = self.heir(orderer) else { return false };
        // Releases `order` and the head to whoever clears the mark; from here on the entry is not ours to look at.
        self.head.role.fetch_or(HANDED, Ordering::AcqRel);
        heir.elect() || self.take_over().is_none()
    }

    fn heir(&self, orderer: &impl Orderer<E>) -> Option<Completion> {
        let ticket = self.head.order.with(|order| {
            // SAFETY: only the orderer gets here.
            unsafe { (*order).ticket }
        });
        let slot = self.slot(ticket);
        if slot.turn.load(Ordering::Acquire) != ticket | FILLED {
            return None;
        }
        slot.cell.with(|cell| {
            // SAFETY: a filled slot is the orderer's until `turn` says empty.
            unsafe { (*cell).entry.as_ref() }.and_then(|entry| orderer.heir(entry))
        })
    }

    /// As if an orderer had just handed over.
    #[cfg(all(test, loom))]
    pub(crate) fn mark_handed_over(&self) {
        self.head.role.store(HANDED | 1, Ordering::Release);
    }
}

/// Frees the role when the orderer's code panics, so that commits after it do not wait for ever. The entries of the
/// group at hand are dropped; those filled meanwhile are taken up with the next commit.
struct Abandon<'r>(&'r AtomicU64);

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        self.0.fetch_and(CROWD, Ordering::AcqRel);
    }
}
