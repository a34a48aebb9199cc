//! The ring: reservation in one step, and ordering by whoever finds the head filled.
//!
//! # Reserving
//! One `fetch_add` on the packed word (see `word`) gives a ticket, an epoch and a position, so tickets, positions and
//! epochs rise together by construction. The ticket selects a slot; the thread waits until the slot is empty *in its
//! turn* (it carries the ticket it is empty for), which it nearly always is.
//!
//! # Filling
//! The entry goes into the slot, the slot is marked filled, and the role of orderer is tried for.
//!
//! # Ordering
//! The role is a word that counts the arrivals since it was last free: who raises it from zero is the orderer. The
//! orderer takes consecutive filled slots off the head, empties them, settles them as one group, and begins again. It
//! leaves by setting the count from what it last saw back to zero, and only with the head not filled.
//!
//! *No filled slot is left behind.* A filler first marks its slot and then raises the count, both with release. If its
//! raise comes before the orderer's leaving, the orderer's compare-and-swap fails and acquires the raise: it looks
//! again and sees the slot. If it comes after, the filler finds zero and is the orderer itself. Both are
//! read-modify-writes of one word, which have a single order, so there is no third case. (Release and re-check in one
//! RMW: nothing here rests on sequentially consistent accesses, which loom would not model faithfully.)
//!
//! *Nobody orders for ever.* After its own entry and one group more the orderer hands over: it asks
//! [`Orderer::heir`] for the completion of somebody who waits for the entry now at the head, marks the role as handed
//! over, and elects a thread blocked there ([`Completion::elect`]), which calls [`Ring::resume`]. Whoever comes first,
//! the elected thread, the next filler or the old orderer (if nobody was elected), clears the mark and has the role:
//! that clearing, not the election, decides. If nobody can take over, it goes on.
//!
//! It would be wrong to leave filled slots to whoever fills a slot that is reserved further on: that thread may be
//! waiting for log space that only ordering gives back.
//!
//! # Epochs
//! [`Ring::bump_epoch`] adds one to the epoch in the same word, so every reservation is wholly before or wholly after
//! the boundary it returns, by position as by epoch.
//!
//! # Concurrency
//! | what | written by | ordering |
//! |---|---|---|
//! | `word` | RMW by all | AcqRel, so that what a thread saw of the ring travels with the tickets (see `near`) |
//! | `near` | orderer, bumper; read by reservers | store release after the fact, load acquire. Never ahead of an unfilled place (the orderer cannot have passed it); behind by at most 2^39 units, two rounds of the ring and what is in flight, less than half of what decoding allows |
//! | `Slot::turn` | filler, then orderer, in turn | store release, load acquire: passes `cell` to and fro |
//! | `Slot::cell` | filler (empty in its turn), orderer (filled) | not atomic: `turn` gives it to one at a time |
//! | `role` | RMW by all | AcqRel; the winner acquires `order` from the last orderer |
//! | `order` | the orderer | not atomic: `role` gives it to one at a time |
//! | `settled` | the orderer | store release after settling, load acquire |
//!
//! *Waiting for a slot* (the ring is full) takes the mutex, raises the `CROWD` flag in `role`, looks at the slot once
//! more, and sleeps. The orderer empties slots before it next changes `role`. If the flag came first, that change sees
//! it, and the orderer takes the mutex (so the other sleeps by now) and notifies. If it came second, the look sees the
//! emptied slot.
//!
//! *One thread alone never blocks*: it finds the role free, so its entry is settled when `fill` returns.
//!
//! # What a lone reserve and fill cost
//! Three atomic read-modify-writes: `word`, `role` up, `role` down. The rest are plain moves (on x86 also where they
//! acquire or release): some eight loads, and stores to the cell, its turn (twice), the group and `settled`. No lock,
//! no allocation, no fence, no call into the system.

use std::collections::VecDeque;
use std::fmt;
use std::mem::{self, ManuallyDrop};

use crossbeam_utils::CachePadded;
use terrane_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use terrane_base::sync::{Condvar, Mutex, MutexGuard, UnsafeCell, spin_loop};
use terrane_base::{Completion, Error, ErrorKind, Result};

use crate::word::{NEXT_EPOCH, NEXT_TICKET, Place, TICKETS};

/// The largest reservation, in units: 1 GiB if the unit is 8 bytes. With the most slots there can be, all that can be
/// in flight stays far below what the packed word tells apart.
pub const MAX_UNITS: u64 = 1 << 27;

/// The most slots a ring can have. Slots and threads that reserve at the same time must together be fewer than the
/// 16,384 tickets that are told apart; that leaves room for 12,287 threads.
pub const MAX_SLOTS: usize = 4096;

/// How many epochs may begin while an entry of the first of them is not settled: what decoding allows, halved.
const EPOCHS_IN_FLIGHT: usize = 64;

/// How far the reference position may stay behind before it is moved up.
const NEAR_LAG: u64 = 1 << 39;

/// Beside the ticket in `Slot::turn`: the slot is filled.
const FILLED: u32 = TICKETS;

/// In `role`, above the count: somebody waits for a slot.
const CROWD: u64 = 1 << 63;
/// In `role`, above the count: the orderer has left, and whoever clears this takes over.
const HANDED: u64 = 1 << 62;
/// In `role`: the arrivals.
const COUNT: u64 = HANDED - 1;

/// How often a thread looks for its slot before it sleeps.
#[cfg(not(loom))]
const SPINS: usize = 128;
#[cfg(loom)]
const SPINS: usize = 0;

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
    /// wait for a commit: none is settled before this returns.
    fn settle(&self, group: &mut [Filled<E>]);

    /// The completion of somebody who waits for `next` and is willing to go on as orderer: who blocks in
    /// [`Completion::wait_helping`] with [`Ring::resume`] as the work. `None` if nobody is known to.
    fn heir(&self, next: &E) -> Option<Completion> {
        let _ = next;
        None
    }
}

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
    word: CachePadded<AtomicU64>,
    near: CachePadded<Near>,
    head: CachePadded<Head<E>>,
    slots: Box<[CachePadded<Slot<E>>]>,
    /// Where the last epochs began.
    bumps: Mutex<VecDeque<u64>>,
    /// With `room`, for those who wait for a slot.
    crowd: Mutex<()>,
    room: Condvar,
}

/// References for decoding the word. Rarely written.
struct Near {
    pos: AtomicU64,
    epoch: AtomicU64,
}

struct Head<E> {
    role: AtomicU64,
    settled: AtomicU64,
    order: UnsafeCell<Order<E>>,
}

/// The orderer's own.
struct Order<E> {
    ticket: u32,
    pos: u64,
    /// Empty between groups; kept for its memory.
    group: Vec<Filled<E>>,
}

struct Slot<E> {
    /// The ticket it is empty for, or that filled it (with [`FILLED`]).
    turn: AtomicU32,
    cell: UnsafeCell<Cell<E>>,
}

struct Cell<E> {
    units: u64,
    entry: Option<E>,
}

// SAFETY: what is not `Sync` by itself are the cells. `Slot::cell` is touched by the one thread that holds the ticket
// the slot is empty for, and by the orderer once it is filled; `Head::order` by the orderer; `turn` and `role` pass
// them on with release and acquire, as the module's head argues. Entries move between threads, so they must be `Send`.
unsafe impl<E: Send> Sync for Ring<E> {}

/// A place in the order, to be filled. Until it is, nothing behind it is settled, so between reserving and filling a
/// thread may wait only for what is before it. Dropping it fills it without an entry (see [`Filled::entry`]).
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

    pub(crate) fn starting_at(slots: usize, place: Place) -> Self {
        let first = place.ticket as usize;
        let mut ring = Ring {
            word: CachePadded::new(AtomicU64::new(place.pack())),
            near: CachePadded::new(Near {
                pos: AtomicU64::new(place.pos),
                epoch: AtomicU64::new(place.epoch),
            }),
            head: CachePadded::new(Head {
                role: AtomicU64::new(0),
                settled: AtomicU64::new(place.pos),
                order: UnsafeCell::new(Order { ticket: place.ticket, pos: place.pos, group: Vec::new() }),
            }),
            slots: Box::new([]),
            bumps: Mutex::new(VecDeque::new()),
            crowd: Mutex::new(()),
            room: Condvar::new(),
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
    /// ring is full of entries that are not yet taken up by the orderer.
    ///
    /// # Errors
    /// `LimitExceeded` if `units` is zero or more than [`MAX_UNITS`]; nothing is reserved then.
    pub fn reserve<'r, O: Orderer<E>>(&'r self, units: u64, orderer: &'r O) -> Result<Reservation<'r, E, O>> {
        if units == 0 || units > MAX_UNITS {
            return Err(Error::limit("units of a reservation", units, MAX_UNITS));
        }
        let word = self.word.fetch_add(NEXT_TICKET + units, Ordering::AcqRel);
        let place = Place::unpack(
            word,
            self.near.pos.load(Ordering::Acquire),
            self.near.epoch.load(Ordering::Acquire),
        );
        let slot = self.slot(place.ticket);
        if slot.turn.load(Ordering::Acquire) != place.ticket {
            self.wait_turn(slot, place.ticket);
        }
        Ok(Reservation { ring: self, orderer, place, units })
    }

    #[cold]
    fn wait_turn(&self, slot: &Slot<E>, ticket: u32) {
        for _ in 0..SPINS {
            spin_loop();
            if slot.turn.load(Ordering::Acquire) == ticket {
                return;
            }
        }
        let mut crowd = lock(&self.crowd);
        loop {
            self.head.role.fetch_or(CROWD, Ordering::AcqRel);
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

        let before = self.head.role.fetch_add(1, Ordering::AcqRel);
        if before & COUNT == 0 {
            self.order(1, place.pos + units, orderer);
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

    /// Orders until the head is not filled, or, with everything before `own_end` settled and one group more, until
    /// somebody takes over. The caller holds the role and has acquired `seen` arrivals.
    fn order(&self, mut seen: u64, own_end: u64, orderer: &impl Orderer<E>) {
        let mut own_settled = false;
        // Whether slots may have been emptied, here or by an orderer who handed over, since those who wait for one were
        // last told.
        let mut untold = true;
        loop {
            let (mut group, end) = self.take_filled();
            if group.is_empty() {
                let leave = self.head.role.compare_exchange(seen, 0, Ordering::AcqRel, Ordering::Acquire);
                let now = match leave {
                    Ok(_) => return,
                    Err(now) => now,
                };
                if now & COUNT != seen {
                    seen = now & COUNT;
                } else if untold {
                    self.make_room();
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
                self.make_room();
                untold = false;
            }

            let unwinding = Abandon(&self.head.role);
            orderer.settle(&mut group);
            mem::forget(unwinding);
            self.give_back(group);
            self.head.settled.store(end, Ordering::Release);
            if end - self.near.pos.load(Ordering::Relaxed) > NEAR_LAG {
                self.near.pos.store(end, Ordering::Release);
            }

            if own_settled && self.hand_over(orderer) {
                return;
            }
            own_settled = end >= own_end;
        }
    }

    /// Takes the consecutive filled entries at the head and empties their slots. Also gives where they end.
    fn take_filled(&self) -> (Vec<Filled<E>>, u64) {
        self.head.order.with_mut(|order| {
            // SAFETY: only the orderer gets here, and it has acquired the role.
            let order = unsafe { &mut *order };
            let mut group = mem::take(&mut order.group);
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
            (group, order.pos)
        })
    }

    /// Keeps the memory of a settled group for the next.
    fn give_back(&self, mut group: Vec<Filled<E>>) {
        group.clear();
        self.head.order.with_mut(|order| {
            // SAFETY: only the orderer gets here.
            unsafe { (*order).group = group };
        });
    }

    /// Wakes those who wait for a slot.
    #[cold]
    fn make_room(&self) {
        self.head.role.fetch_and(!CROWD, Ordering::AcqRel);
        // Taking the lock waits until they sleep.
        drop(lock(&self.crowd));
        self.room.notify_all();
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
        let mut word = self.word.load(Ordering::Acquire);
        let pos = loop {
            // Before the exchange: with the word unchanged since it was read, this is still behind its position.
            let near = self.near.pos.load(Ordering::Acquire);
            let next = word.wrapping_add(NEXT_EPOCH);
            match self.word.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire) {
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
    #[cfg(test)]
    pub(crate) fn next_pos(&self) -> u64 {
        let near = &self.near;
        let behind = near.pos.load(Ordering::Acquire);
        Place::unpack(self.word.load(Ordering::Acquire), behind, near.epoch.load(Ordering::Acquire)).pos
    }

    /// As if an orderer had just handed over.
    #[cfg(all(test, loom))]
    pub(crate) fn mark_handed_over(&self) {
        self.head.role.store(HANDED | 1, Ordering::Release);
    }

    fn slot(&self, ticket: u32) -> &Slot<E> {
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

/// Frees the role when settling panics, so that commits after it do not wait for ever; the group's entries are dropped.
struct Abandon<'r>(&'r AtomicU64);

impl Drop for Abandon<'_> {
    fn drop(&mut self) {
        self.0.fetch_and(CROWD, Ordering::AcqRel);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing that panics runs under these locks, so a poisoned one still holds a whole state.
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poison) => poison.into_inner(),
    }
}
