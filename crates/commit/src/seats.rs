//! Seats: how many threads may hold a ticket without a slot.
//!
//! Only so many tickets are told apart ([`crate::word::TICKETS`]), so those that are out must be fewer. A thread gets its
//! slot before it gets its next ticket, so what is out is at most one per slot and one per thread that waits. Slots are
//! bounded by [`crate::MAX_SLOTS`]; threads are bounded here: the first [`SEATS`] that reserve have a seat for as long as
//! they live, and all others together have one *standing place*, a mutex, which they hold from before they draw a ticket
//! until they have its slot. So at most `slots + SEATS + 1` tickets are out, whatever the number of threads; the others
//! wait for the mutex, for as long as it takes those before them to get their slots.
//!
//! # What it costs
//! A look at a thread's own variable. Seats are counted when a thread reserves for the first time and when it ends, over
//! all rings of the process together.
//!
//! # Concurrency
//! `TAKEN` is a count that orders nothing, so its accesses are relaxed; that it never exceeds the limit follows from its
//! changes being single steps. It is the standard library's under loom too: no model depends on it.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::ring::MAX_SLOTS;
use crate::word::TICKETS;

/// Threads with a seat. With the most slots there can be and the standing place, one ticket is left over.
pub(crate) const SEATS: usize = TICKETS as usize - MAX_SLOTS - 2;

const _: () = assert!(MAX_SLOTS + SEATS + 1 < TICKETS as usize);

static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// What a thread that reserves has.
struct Seat {
    has: bool,
}

impl Seat {
    fn take(taken: &AtomicUsize, most: usize) -> bool {
        taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| (n < most).then_some(n + 1)).is_ok()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.has {
            TAKEN.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

thread_local! {
    static SEAT: Seat = Seat { has: Seat::take(&TAKEN, SEATS) };
}

/// Whether this thread has a seat.
#[inline]
pub(crate) fn seated() -> bool {
    // A thread that is ending has given its seat up.
    SEAT.try_with(|s| s.has).unwrap_or(false)
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::disallowed_methods, reason = "a test may start threads")]
mod tests {
    use super::*;

    #[test]
    fn no_more_seats_are_taken_than_there_are() {
        let taken = AtomicUsize::new(0);
        let got: usize = std::thread::scope(|s| {
            let threads: Vec<_> =
                (0..8).map(|_| s.spawn(|| (0..100).filter(|_| Seat::take(&taken, 99)).count())).collect();
            threads.into_iter().map(|t| t.join().unwrap()).sum()
        });
        assert_eq!((got, taken.into_inner()), (99, 99));
    }

    #[test]
    fn a_thread_gives_its_seat_up_when_it_ends() {
        // Other tests take seats beside this one; a thousand threads one after another leave none behind.
        for _ in 0..1000 {
            assert!(std::thread::spawn(seated).join().unwrap());
        }
        assert!(TAKEN.load(Ordering::Relaxed) < 1000);
    }
}
