//! The relay: what leaders do one after the other, in the order of their tickets.
//!
//! A reservation gives a position in one order, in one step. A commit whose bytes go to several places that grow each on its own, as
//! records of several memtables in persistent memory do, needs a place in each of them, and those must follow each other as the
//! positions do: else what lies before a place may belong to a later commit, which a crash may leave unwritten. So between reserving
//! and writing each leader has a *turn*, in which it does no more than add up lengths, and passes it on.
//!
//! # Concurrency
//! `turn` has the ticket whose turn it is, and a bit for each bed in which somebody sleeps. Only who has the turn changes the ticket, with
//! release; who waits for it acquires that, so all that was done in earlier turns happened before. Who sleeps sets its bed's bit while it
//! holds the bed's mutex, and looks at the ticket that the same read-modify-write gives it; who passes the turn on clears the bit of the
//! next one's bed in the read-modify-write that names the next one. If that came first the other sees its turn. If it came second it
//! sees the bit, takes the mutex (so the other sleeps by now) and wakes the bed. Others in that bed set the bit again.
//!
//! Models: every interleaving of two threads, and of three with at most three preemptions.
//!
//! No thread sleeps before it has looked for its turn for a while: a turn takes some ten nanoseconds, unless its thread is
//! preempted.

use terrane_base::sync::atomic::{AtomicU32, Ordering};
use terrane_base::sync::{Condvar, Mutex, spin_loop};

use crate::ring::{SPINS, lock};
use crate::word::TICKETS;

/// How many beds there are, of which each has a bit above the ticket. (In models so few that some share one.)
#[cfg(not(loom))]
const BEDS: u32 = 16;
#[cfg(loom)]
const BEDS: u32 = 2;
const BED_SHIFT: u32 = 16;

const _: () = assert!(TICKETS <= 1 << BED_SHIFT);

/// See the module's head.
pub(crate) struct Relay {
    turn: AtomicU32,
    beds: [Bed; BEDS as usize],
}

#[derive(Default)]
struct Bed {
    mutex: Mutex<()>,
    wake: Condvar,
}

/// The bit of the bed in which the holder of a ticket sleeps.
fn bit(ticket: u32) -> u32 {
    1 << (BED_SHIFT + ticket % BEDS)
}

impl Relay {
    /// One that begins with the turn of `ticket`.
    pub(crate) fn new(ticket: u32) -> Self {
        Relay { turn: AtomicU32::new(ticket), beds: Default::default() }
    }

    /// Does `f` in the turn of `ticket`, which comes once and for all tickets. Waits for the turns of those before, and for nothing else.
    /// The turn is passed on even if `f` panics.
    pub(crate) fn in_turn<T>(&self, ticket: u32, f: impl FnOnce() -> T) -> T {
        if !self.is_turn(ticket) {
            self.wait(ticket);
        }
        let _pass = Pass { relay: self, next: (ticket + 1) % TICKETS };
        f()
    }

    fn is_turn(&self, ticket: u32) -> bool {
        of(self.turn.load(Ordering::Acquire)) == ticket
    }

    #[cold]
    fn wait(&self, ticket: u32) {
        for _ in 0..SPINS {
            spin_loop();
            if self.is_turn(ticket) {
                return;
            }
        }
        let bed = self.bed(ticket);
        let mut asleep = lock(&bed.mutex);
        while of(self.turn.fetch_or(bit(ticket), Ordering::AcqRel)) != ticket {
            asleep = match bed.wake.wait(asleep) {
                Ok(guard) => guard,
                Err(poison) => poison.into_inner(),
            };
        }
    }

    fn pass_to(&self, next: u32) {
        let mut now = self.turn.load(Ordering::Relaxed);
        let passed = |now: u32| next | (now >> BED_SHIFT << BED_SHIFT) & !bit(next);
        while let Err(other) =
            self.turn.compare_exchange_weak(now, passed(now), Ordering::AcqRel, Ordering::Relaxed)
        {
            now = other;
        }
        if now & bit(next) != 0 {
            let bed = self.bed(next);
            // Taking the lock waits until they sleep.
            drop(lock(&bed.mutex));
            bed.wake.notify_all();
        }
    }

    fn bed(&self, ticket: u32) -> &Bed {
        &self.beds[(ticket % BEDS) as usize]
    }
}

/// The ticket in a value of [`Relay::turn`].
fn of(turn: u32) -> u32 {
    turn & ((1 << BED_SHIFT) - 1)
}

struct Pass<'r> {
    relay: &'r Relay,
    next: u32,
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.relay.pass_to(self.next);
    }
}

#[cfg(all(test, loom))]
mod model {
    use terrane_base::sync::{Arc, UnsafeCell, thread};

    use super::*;
    use crate::model::explore;

    /// Turns note their tickets in a cell that is not atomic, so loom reports two at a time.
    struct Turns {
        relay: Relay,
        order: UnsafeCell<Vec<u32>>,
    }

    // SAFETY: the relay lets one thread at a time into the cell; that it does is what the models check.
    unsafe impl Sync for Turns {}

    impl Turns {
        fn take(&self, ticket: u32) {
            self.relay.in_turn(ticket, || {
                self.order.with_mut(|order| {
                    // SAFETY: see above.
                    unsafe { (*order).push(ticket) }
                });
            });
        }
    }

    /// `first` on this thread, and each of `tickets`, which follow it, on one of its own.
    fn in_order<const N: usize>(preemptions: Option<usize>, first: u32, tickets: [u32; N]) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = preemptions;
        explore(&builder, move || {
            let order = UnsafeCell::new(Vec::new());
            let turns = Arc::new(Turns { relay: Relay::new(first), order });
            let others = tickets.map(|ticket| {
                let turns = turns.clone();
                thread::spawn(move || turns.take(ticket))
            });
            turns.take(first);
            others.into_iter().for_each(|t| t.join().unwrap());
            let order = turns.order.with(|order| {
                // SAFETY: the threads were joined.
                unsafe { (*order).clone() }
            });
            let next = |n: u32| (first + n) % TICKETS;
            assert_eq!(order, (0..=N as u32).map(next).collect::<Vec<_>>());
        });
    }

    #[test]
    fn two_have_their_turns_in_order() {
        in_order(None, 0, [1]);
    }

    #[test]
    fn three_that_share_beds_are_all_woken() {
        in_order(Some(3), 0, [2, 1]);
    }

    #[test]
    fn turns_go_on_behind_the_last_ticket() {
        in_order(None, TICKETS - 1, [0]);
    }
}
