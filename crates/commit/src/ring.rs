//! Being written: one-step reservation, and ordering by whoever finds the head filled.

use std::marker::PhantomData;

use terrane_base::Result;

/// The largest reservation, in units: 1 GiB of 8-byte units.
pub const MAX_UNITS: u64 = 1 << 27;

/// The commit ring.
pub struct Ring<E> {
    _entries: PhantomData<fn(E) -> E>,
}

/// A place in the ring. It must be filled; one that is dropped (a panic) counts as filled without an entry.
#[must_use]
pub struct Reservation<'r, E> {
    _ring: &'r Ring<E>,
}

impl<E> Reservation<'_, E> {
    /// First unit of the place.
    pub fn pos(&self) -> u64 {
        todo!()
    }
    /// Units reserved.
    pub fn units(&self) -> u64 {
        todo!()
    }
    /// The epoch in force when the place was reserved. Counts up from 0, never wraps.
    pub fn epoch(&self) -> u64 {
        todo!()
    }
}

/// Where an epoch begins: reservations at or past `pos` have an epoch of at least `epoch`, those before have less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// The epoch that begins.
    pub epoch: u64,
    /// Its first unit.
    pub pos: u64,
}

/// A filled place, handed to the orderer in ring order.
#[derive(Debug)]
pub struct Filled<E> {
    /// First unit of the place.
    pub pos: u64,
    /// Units reserved.
    pub units: u64,
    /// What was filled in; `None` if the reservation was dropped unfilled: its bytes are not written.
    pub entry: Option<E>,
}

impl<E> Filled<E> {
    /// The unit after the place.
    pub fn end(&self) -> u64 {
        self.pos + self.units
    }
}

/// What is done with filled entries in ring order. Called by one thread at a time.
pub trait Orderer<E> {
    /// Makes a group durable if any of it asks, publishes it, settles its completions.
    fn settle(&self, group: &mut [Filled<E>]);
    /// Asks someone who waits for `next` to call [`Ring::resume`] soon; true if they will.
    /// Typically `next`'s completions' `elect()`.
    fn hand_over(&self, next: &E) -> bool {
        let _ = next;
        false
    }
}

impl<E: Send> Ring<E> {
    /// A ring of `slots` places (a power of two, 2 to 4096) whose first reservation begins at unit `first_pos`.
    pub fn new(slots: usize, first_pos: u64) -> Result<Self> {
        let _ = (slots, first_pos);
        todo!()
    }
    /// Takes the next `units` units. One `fetch_add`.
    ///
    /// # Errors
    /// `LimitExceeded` if `units` is 0 or more than [`MAX_UNITS`]; nothing is reserved then.
    pub fn reserve(&self, units: u64) -> Result<Reservation<'_, E>> {
        let _ = units;
        todo!()
    }
    /// Fills a reserved place, and orders what is ready unless someone else is at it.
    pub fn fill(&self, place: Reservation<'_, E>, entry: E, orderer: &impl Orderer<E>) {
        let _ = (place, entry, orderer);
        todo!()
    }
    /// Takes over as orderer if the last one handed over; does nothing otherwise. For `Completion::wait_helping`.
    pub fn resume(&self, orderer: &impl Orderer<E>) {
        let _ = orderer;
        todo!()
    }
    /// Begins a new epoch.
    ///
    /// # Errors
    /// `LimitExceeded` when entries of an epoch 64 back are still not settled.
    pub fn bump_epoch(&self) -> Result<Boundary> {
        todo!()
    }
    /// Everything before this unit has been settled.
    pub fn settled_pos(&self) -> u64 {
        todo!()
    }
}
