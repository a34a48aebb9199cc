//! The ring: reservation in one step.
//!
//! # Reserving
//! One `fetch_add` on the packed word (see `word`) gives a ticket, an epoch and a position, so tickets, positions and
//! epochs rise together by construction. The ticket selects a slot; the thread waits until the slot is empty *in its
//! turn* (it carries the ticket it is empty for), which it nearly always is.
//!
//! # Filling
//! The entry goes into the slot, the slot is marked filled, and the role of orderer is tried for.
//!
//! # Turns
//! A reservation gives a position in one order, in one step. A commit whose bytes go to several places that grow each on its own, as
//! records of several memtables in persistent memory do, needs a place in each of them, and those must follow each other as the
//! positions do: else what lies before a place may belong to a later commit, which a crash may leave unwritten. So in a ring of
//! [`Ring::with_turns`] a leader reserves and is assigned its places in one *turn*, of which there is one at a time, for a mutex is held
//! meanwhile. A turn does no more than add up lengths: some fifty nanoseconds. The mutex is not fair, and must not be: if turns came in an
//! order that is fixed before, by tickets drawn outside, then whenever a thread with a ticket is off its processor all behind it queue up
//! and go to sleep, each has to be woken in its turn, and has its next ticket behind the whole queue, which so never ends.
//! A leader that finds somebody in a turn waits with its group still open ([`Ring::await_turn`]): so the size of groups follows the load.
//!
//! # Ordering
//! See `order`: whoever raises the count of arrivals from zero settles all that is filled at the head.
//!
//! # Epochs
//! [`Ring::bump_epoch`] adds one to the epoch in the same word, so every reservation is wholly before or wholly after
//! the boundary it returns, by position as by epoch.
//!
//! # Concurrency
//! | what | written by | ordering |
//! |---|---|---|
//! | `Gate::word` | RMW by all | AcqRel, so that what a thread saw of the ring travels with the tickets (see `near`) |
//! | `near` | orderer, bumper; read by reservers | store release, load acquire (below) |
//! | `Slot::turn` | filler, then orderer, in turn | store release, load acquire: passes `cell` to and fro |
//! | `Slot::cell` | filler (empty in its turn), orderer (filled) | not atomic: `turn` gives it to one at a time |
//! | `Head::role` | RMW by all | AcqRel; the winner acquires `order` from the last orderer |
//! | `Head::order` | the orderer | not atomic: `role` gives it to one at a time |
//! | `Head::settled` | the orderer | store release after settling, load acquire |
//! | `Gate::turns` | who has the turn | a mutex: turns happen one after the other, in the order of their positions |
//! | `Gate::in_turn` | who has the turn | relaxed: a hint, on which nothing but the size of groups depends |
//!
//! *`near` is near enough to decode.* Its position is one that was settled, and the orderer cannot have passed a place
//! that is not filled, so for a reserver it is never ahead. It lags by 2^39 units before it is moved, at most 2^14
//! tickets of 2^27 units each can be out, and a reader may be late by the two rounds of the ring (2^40 units) that its
//! own last wait for a slot did not yet show it: less than the 2^42 that decoding allows. Its epoch is at most one behind
//! (a bumper stores it before the next can change the word) and at most 65 ahead ([`Ring::bump_epoch`] refuses more).
//!
//! *Tickets that are out are told apart*: there are at most as many as slots, seats and one (see `seats`), which is fewer
//! than [`TICKETS`]. So a slot that is empty for ticket `t` is never taken for one that is empty for `t + TICKETS`.
//!
//! *One thread alone never blocks*: it finds the role free, so its entry is settled when `fill` returns.
//!
//! # What a lone reserve and fill cost
//! Three atomic read-modify-writes: `word`, `role` up, `role` down. The rest are plain moves (on x86 also where they
//! acquire or release): some eight loads, and stores to the cell, its turn (twice) and `settled`. No lock, no allocation, no
//! fence, no call into the system.
//!
//! # Which lines of memory go from core to core
//! Where two threads commit at the same time: that of the word (with the lock of turns), those of the slot and of one two places ahead, and
//! that of the role (with all else that an orderer changes). An entry is best one pointer: a larger one makes more lines of a slot.

use std::collections::VecDeque;
use std::fmt;
use std::mem::ManuallyDrop;

use crossbeam_utils::CachePadded;
use terrane_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use terrane_base::sync::{Condvar, Mutex, MutexGuard, UnsafeCell, spin_loop};
use terrane_base::{Error, ErrorKind, Result};

use crate::order::{Head, Orderer};
use crate::seats::seated;
use crate::word::{NEXT_EPOCH, NEXT_TICKET, Place, TICKETS};

/// The largest reservation, in units: 1 GiB if the unit is 8 bytes. With the most slots there can be, all that can be
/// in flight stays far below what the packed word tells apart.
pub const MAX_UNITS: u64 = 1 << 27;

/// The most slots a ring can have. Slots and threads that wait for one must together be fewer than the 16,384 tickets that
/// are told apart; that leaves room for 12,286 threads, and further ones wait their turn to wait.
pub const MAX_SLOTS: usize = 4096;

/// How many epochs may begin while an entry of the first of them is not settled: what decoding allows, halved.
const EPOCHS_IN_FLIGHT: usize = 64;

/// Beside the ticket in `Slot::turn`: the slot is filled.
pub(crate) const FILLED: u32 = TICKETS;

/// How often a thread looks for its slot before it sleeps.
#[cfg(not(loom))]
pub(crate) const SPINS: usize = 128;
#[cfg(loom)]
pub(crate) const SPINS: usize = 0;

/// Where an epoch begins: a reservation has an epoch of at least `epoch` if it begins at or after `pos`, and a lower one
/// if it ends at or before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// The epoch that begins. Epochs count up from 0.
    pub epoch: u64,
    /// Its first unit.
    pub pos: u64,
}

/// The order of commits. `E` is what a leader leaves for the orderer.
pub struct Ring<E> {
    gate: CachePadded<Gate>,
    pub(crate) near: CachePadded<Near>,
    pub(crate) head: CachePadded<Head>,
    pub(crate) slots: Box<[CachePadded<Slot<E>>]>,
    /// Where the last epochs began.
    bumps: Mutex<VecDeque<u64>>,
    /// With `room` and [`Head::crowd`], for those who wait for a slot.
    crowd: Mutex<()>,
    room: Condvar,
    /// The place of all who have no seat. Order: before `turns`, and before `crowd`.
    standing: Mutex<()>,
    /// Whether the calling thread has a seat.
    pub(crate) seated: fn() -> bool,
}

/// What a reservation changes. In one line: who has the turn changes the word next.
struct Gate {
    word: AtomicU64,
    /// If reservations have turns.
    turns: Option<Mutex<()>>,
    /// Whether somebody has a turn, about: see [`Ring::await_turn`]. A look at it costs no read-modify-write.
    in_turn: AtomicBool,
}

/// References for decoding the word. Rarely written.
pub(crate) struct Near {
    pub(crate) pos: AtomicU64,
    epoch: AtomicU64,
}

pub(crate) struct Slot<E> {
    /// The ticket it is empty for, or that filled it (with [`FILLED`]).
    pub(crate) turn: AtomicU32,
    pub(crate) cell: UnsafeCell<Cell<E>>,
}

pub(crate) struct Cell<E> {
    pub(crate) units: u64,
    pub(crate) entry: Option<E>,
}

// SAFETY: what is not `Sync` by itself are the cells. `Slot::cell` is touched by the one thread that holds the ticket
// the slot is empty for, and by the orderer once it is filled; `Head::order` by the orderer; `turn` and `role` pass
// them on with release and acquire, as the heads of this module and of `order` argue. Entries move between threads, so
// they must be `Send`.
unsafe impl<E: Send> Sync for Ring<E> {}

/// A place in the order, to be filled. Until it is, nothing behind it is settled, so between reserving and filling a
/// thread may wait only for what is before it. Dropping it fills it without an entry (see `Filled::entry`).
#[must_use = "everything behind an unfilled place waits"]
pub struct Reservation<'r, E: Send, O: Orderer<E>> {
    ring: &'r Ring<E>,
    orderer: &'r O,
    place: Place,
    units: u64,
}

impl<E: Send, O: Orderer<E>> Reservation<'_, E, O> {
    /// First unit of the place.
    pub fn pos(&self) -> u64 {
        self.place.pos
    }

    /// Its length in units.
    pub fn units(&self) -> u64 {
        self.units
    }

    /// The unit after the place.
    pub fn end(&self) -> u64 {
        self.place.pos + self.units
    }

    /// The epoch it was reserved in.
    pub fn epoch(&self) -> u64 {
        self.place.epoch
    }

    /// Fills the place, then orders what is ready, unless another thread is at it already and will see this one.
    pub fn fill(self, entry: E) {
        let this = ManuallyDrop::new(self);
        this.ring.fill(this.place, this.units, Some(entry), this.orderer);
    }
}

impl<E: Send, O: Orderer<E>> Drop for Reservation<'_, E, O> {
    fn drop(&mut self) {
        self.ring.fill(self.place, self.units, None, self.orderer);
    }
}

/// A place whose slot may not be empty yet. If it is dropped, as by a turn that panics, it is filled without an entry.
struct Drawn<'r, E: Send, O: Orderer<E>> {
    ring: &'r Ring<E>,
    orderer: &'r O,
    place: Place,
    units: u64,
    /// What a thread without a seat holds from before it draws a ticket until that has its slot.
    standing: Option<MutexGuard<'r, ()>>,
}

impl<'r, E: Send, O: Orderer<E>> Drawn<'r, E, O> {
    /// Waits until its slot is empty.
    fn seated(self) -> Reservation<'r, E, O> {
        let mut this = ManuallyDrop::new(self);
        this.reservation()
    }

    fn reservation(&mut self) -> Reservation<'r, E, O> {
        self.ring.wait_for_slot(self.place.ticket);
        // Before anything is filled: whoever orders may commit.
        drop(self.standing.take());
        Reservation { ring: self.ring, orderer: self.orderer, place: self.place, units: self.units }
    }
}

impl<E: Send, O: Orderer<E>> Drop for Drawn<'_, E, O> {
    fn drop(&mut self) {
        drop(self.reservation());
    }
}

impl<E: Send> Ring<E> {
    /// A ring of `slots` slots whose first reservation begins at unit `pos` in epoch 0. Twice as many slots as
    /// threads never fill up, since a filled slot is emptied before its group is settled.
    ///
    /// # Errors
    /// `InvalidArgument` unless `slots` is a power of two from 2 to [`MAX_SLOTS`].
    pub fn new(slots: usize, pos: u64) -> Result<Self> {
        if !slots.is_power_of_two() || !(2..=MAX_SLOTS).contains(&slots) {
            return Err(Error::invalid(format!(
                "a ring has a power of two of slots from 2 to {MAX_SLOTS}, not {slots}"
            )));
        }
        Ok(Ring::starting_at(slots, Place { ticket: 0, epoch: 0, pos }))
    }

    /// As [`Ring::new`], of a ring whose reservations can have turns: see [`Ring::reserve_in_turn`].
    ///
    /// # Errors
    /// As [`Ring::new`].
    pub fn with_turns(slots: usize, pos: u64) -> Result<Self> {
        Ok(Ring::new(slots, pos)?.turning())
    }

    pub(crate) fn turning(mut self) -> Self {
        self.gate.turns = Some(Mutex::new(()));
        self
    }

    pub(crate) fn starting_at(slots: usize, place: Place) -> Self {
        let first = place.ticket as usize;
        let mut ring = Ring {
            gate: CachePadded::new(Gate {
                word: AtomicU64::new(place.pack()),
                turns: None,
                in_turn: AtomicBool::new(false),
            }),
            near: CachePadded::new(Near {
                pos: AtomicU64::new(place.pos),
                epoch: AtomicU64::new(place.epoch),
            }),
            head: CachePadded::new(Head::new(place.ticket, place.pos)),
            slots: Box::new([]),
            bumps: Mutex::new(VecDeque::new()),
            crowd: Mutex::new(()),
            room: Condvar::new(),
            standing: Mutex::new(()),
            seated,
        };
        ring.slots = (0..slots)
            .map(|i| {
                // The first ticket from `first` on that falls on slot `i`.
                let ticket = first + (i.wrapping_sub(first) & (slots - 1));
                CachePadded::new(Slot {
                    turn: AtomicU32::new(ticket as u32 % TICKETS),
                    cell: UnsafeCell::new(Cell { units: 0, entry: None }),
                })
            })
            .collect();
        ring
    }

    /// Takes the next `units` units. Whatever of the commit can fail must have been checked before. Waits only if the
    /// ring is full of entries that are not yet taken up by the orderer; any number of threads may wait.
    ///
    /// # Errors
    /// `LimitExceeded` if `units` is zero or more than [`MAX_UNITS`]; nothing is reserved then.
    pub fn reserve<'r, O: Orderer<E>>(&'r self, units: u64, orderer: &'r O) -> Result<Reservation<'r, E, O>> {
        check_units(units)?;
        let standing = self.stand();
        Ok(Drawn { ring: self, orderer, place: self.draw(units), units, standing }.seated())
    }

    /// As [`Ring::reserve`], and calls `assign` with the first unit and the epoch of the place, in the order of the places: it has returned
    /// for all before that are assigned something, and is not called for any behind until it returns. It must be quick and must not wait for
    /// anything, least of all for another reservation. If it panics the place is filled without an entry. Costs two atomic
    /// read-modify-writes more than [`Ring::reserve`], and a wait while others have their turns.
    ///
    /// # Errors
    /// As [`Ring::reserve`]; `InvalidArgument` for a ring without turns.
    pub fn reserve_in_turn<'r, O: Orderer<E>, T>(
        &'r self,
        units: u64,
        orderer: &'r O,
        assign: impl FnOnce(u64, u64) -> T,
    ) -> Result<(Reservation<'r, E, O>, T)> {
        let Some(turns) = &self.gate.turns else {
            return Err(Error::invalid("this ring's reservations have no turns"));
        };
        check_units(units)?;
        let standing = self.stand();
        // Its slot is waited for when the turn is over: by what a panic drops too.
        let drawn;
        let assigned = {
            let _turn = lock(turns);
            self.gate.in_turn.store(true, Ordering::Relaxed);
            drawn = Drawn { ring: self, orderer, place: self.draw(units), units, standing };
            let assigned = assign(drawn.place.pos, drawn.place.epoch);
            // (After a panic it stays until the next turn is over.)
            self.gate.in_turn.store(false, Ordering::Relaxed);
            assigned
        };
        Ok((drawn.seated(), assigned))
    }

    /// Returns when nobody has a turn: at once, mostly. A leader calls it before it closes its group. While it waits others can follow it who
    /// would wait for turns themselves, so groups are as large as turns are sought after, and of one commit where they are not.
    /// For a ring with turns: others have none to wait for.
    pub fn await_turn(&self) {
        if let Some(turns) = &self.gate.turns
            && self.gate.in_turn.load(Ordering::Relaxed)
        {
            drop(lock(turns));
        }
    }

    /// The standing place, for a thread without a seat.
    fn stand(&self) -> Option<MutexGuard<'_, ()>> {
        (!(self.seated)()).then(|| lock(&self.standing))
    }

    /// Takes a place.
    fn draw(&self, units: u64) -> Place {
        let word = self.gate.word.fetch_add(NEXT_TICKET + units, Ordering::AcqRel);
        let place = Place::unpack(
            word,
            self.near.pos.load(Ordering::Acquire),
            self.near.epoch.load(Ordering::Acquire),
        );
        // Whoever orders looks at the slot behind the last that is filled, which a lone committer has not touched for a lap. It is asked for one
        // commit ahead, so that it is there by then. (Where others commit too they may have it already: then it goes to and fro once more.)
        prefetch(self.slot(place.ticket + 2));
        place
    }

    fn wait_for_slot(&self, ticket: u32) {
        let slot = self.slot(ticket);
        if slot.turn.load(Ordering::Acquire) != ticket {
            self.wait_slot(slot, ticket);
        }
    }

    #[cold]
    fn wait_slot(&self, slot: &Slot<E>, ticket: u32) {
        for _ in 0..SPINS {
            spin_loop();
            if slot.turn.load(Ordering::Acquire) == ticket {
                return;
            }
        }
        let mut crowd = lock(&self.crowd);
        loop {
            self.head.crowd();
            if slot.turn.load(Ordering::Acquire) == ticket {
                return;
            }
            crowd = match self.room.wait(crowd) {
                Ok(guard) => guard,
                Err(poison) => poison.into_inner(),
            };
        }
    }

    fn fill(&self, place: Place, units: u64, entry: Option<E>, orderer: &impl Orderer<E>) {
        let slot = self.slot(place.ticket);
        slot.cell.with_mut(|cell| {
            // SAFETY: the slot is empty in this ticket's turn, and the reservation that held the ticket is used up by
            // this call: nobody else is in until `turn` says filled.
            unsafe { *cell = Cell { units, entry } };
        });
        slot.turn.store(place.ticket | FILLED, Ordering::Release);

        self.arrive(place.pos + units, orderer);
    }

    /// Wakes those who wait for a slot.
    pub(crate) fn make_room(&self) {
        // Taking the lock waits until they sleep.
        drop(lock(&self.crowd));
        self.room.notify_all();
    }

    /// Begins a new epoch. Rare; bumpers exclude each other.
    ///
    /// # Errors
    /// `LimitExceeded` if an entry from 64 epochs ago is still not settled.
    pub fn bump_epoch(&self) -> Result<Boundary> {
        let mut bumps = lock(&self.bumps);
        if bumps.len() == EPOCHS_IN_FLIGHT {
            if bumps.front().is_some_and(|&pos| self.settled_pos() < pos) {
                return Err(Error::new(
                    ErrorKind::LimitExceeded,
                    format!("a commit has not been settled for {EPOCHS_IN_FLIGHT} epochs"),
                ));
            }
            bumps.pop_front();
        }
        let mut word = self.gate.word.load(Ordering::Acquire);
        let pos = loop {
            // Before the exchange: with the word unchanged since it was read, this is still behind its position.
            let near = self.near.pos.load(Ordering::Acquire);
            let next = word.wrapping_add(NEXT_EPOCH);
            match self.gate.word.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break Place::unpack(word, near, self.near.epoch.load(Ordering::Relaxed)).pos,
                Err(now) => word = now,
            }
        };
        let epoch = self.near.epoch.load(Ordering::Relaxed) + 1;
        self.near.epoch.store(epoch, Ordering::Release);
        bumps.push_back(pos);
        Ok(Boundary { epoch, pos })
    }

    /// Everything before this unit is settled.
    pub fn settled_pos(&self) -> u64 {
        self.head.settled.load(Ordering::Acquire)
    }

    /// Where the next reservation will begin.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn next_pos(&self) -> u64 {
        let near = &self.near;
        let behind = near.pos.load(Ordering::Acquire);
        Place::unpack(self.gate.word.load(Ordering::Acquire), behind, near.epoch.load(Ordering::Acquire)).pos
    }

    pub(crate) fn slot(&self, ticket: u32) -> &Slot<E> {
        &self.slots[ticket as usize & (self.slots.len() - 1)]
    }
}

impl<E> fmt::Debug for Ring<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("slots", &self.slots.len())
            .field("settled", &self.head.settled.load(Ordering::Acquire))
            .finish_non_exhaustive()
    }
}

fn check_units(units: u64) -> Result<()> {
    match units {
        1..=MAX_UNITS => Ok(()),
        _ => Err(Error::limit("units of a reservation", units, MAX_UNITS)),
    }
}

/// Asks the processor to load the first line of what is there. Never waits.
#[inline]
fn prefetch<T>(at: &T) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: a prefetch reads nothing as far as the program can tell.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(at).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = at;
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that panics runs under these locks but what is assigned in a turn, and that changes nothing here: a poisoned one still holds
    // a whole state.
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poison) => poison.into_inner(),
    }
}
