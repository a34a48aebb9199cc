//! A shard: a lookup table that is read without a lock, and the books about its frames, under one short lock.
//!
//! # Invariants
//! Under the lock, a frame is in the table iff it has an entry in the books, and the entry holds one count of it. An
//! entry's count is handed to the caller when the frame leaves, who retires it by epoch ([`crate::frame`]), or has it enter another shard.
//! A swizzle slot leads to a frame only if the frame's entry names the slot ([`crate::swizzle`]).
//!
//! # Concurrency
//! Lookups take no lock. Everything else holds the lock for the work on one frame, or for [`SWEEP`] steps of eviction;
//! the exceptions are a growing table (the pointers of one shard are copied) and the removal of an extent.

use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;

use terrane_base::sync::atomic::{AtomicPtr, Ordering};
use terrane_base::sync::{Mutex, MutexGuard};

use crate::accounts::Accounts;
use crate::entries::{Home, Leaving, Queue};
use crate::epoch::Guard;
use crate::flight::Flight;
use crate::frame::{Found, Frame, Pin};
use crate::key::FrameKey;
use crate::policy::Policy;
use crate::share::Share;
use crate::swizzle::Detached;
use crate::table::Table;

/// Frames that eviction looks at before it lets others have the lock.
const SWEEP: usize = 32;

pub(crate) struct Shard {
    /// The current table; owned by this pointer, replaced under the lock, retired by epoch.
    table: AtomicPtr<Table>,
    books: Mutex<Books>,
    /// That of its part.
    share: Arc<Share>,
}

#[derive(Default)]
struct Books {
    policy: Policy,
    loading: HashMap<FrameKey, Arc<Flight>>,
    /// Bookkeeping bytes that the accounts know of, without retired tables.
    booked: usize,
    /// Its part is closed: nothing enters.
    shut: bool,
}

/// What a miss finds when it asks whether to load.
pub(crate) enum Boarding {
    /// The frame came in meanwhile.
    Here(Pin),
    /// Another thread loads it: wait.
    Wait(Arc<Flight>),
    /// The caller loads it, and then calls [`Shard::disembark`].
    Load(Arc<Flight>),
}

/// A table that was replaced, to be retired by epoch; it is freed, and no longer paid for, when this is dropped.
#[must_use]
pub(crate) struct Retired {
    /// From a box. Not held as one: readers may still be in the table.
    table: *mut Table,
    accounts: Arc<Accounts>,
}

// SAFETY: the sole owner of a table, which any thread may free.
unsafe impl Send for Retired {}

impl Drop for Retired {
    fn drop(&mut self) {
        // SAFETY: came from a box, was swapped out once, and is dropped when no guard that could reach it is left.
        let table = unsafe { Box::from_raw(self.table) };
        self.accounts.rebook(table.bytes(), 0);
    }
}

/// A frame that left, and what left with it, to be retired.
pub(crate) struct Gone {
    pub(crate) frame: Pin,
    pub(crate) slots: Option<Detached>,
    /// The queue that it was in.
    pub(crate) queue: Queue,
}

/// What a sweep came to.
pub(crate) struct Sweep {
    /// Frames that left.
    pub(crate) victims: Vec<Gone>,
    /// Steps after which it is pointless to go on.
    pub(crate) patience: usize,
    /// Steps that were taken.
    pub(crate) steps: usize,
    /// Whether it was enough.
    pub(crate) done: bool,
}

impl Shard {
    pub(crate) fn new(buckets: usize, share: Arc<Share>) -> Shard {
        let table = Box::new(Table::new(buckets));
        let books = Books { booked: table.bytes(), ..Books::default() };
        share.accounts.rebook(0, books.booked);
        Shard { table: AtomicPtr::new(Box::into_raw(table)), books: Mutex::new(books), share }
    }

    fn table<'g>(&self, _guard: &'g Guard<'_>) -> &'g Table {
        // SAFETY: the pointer is never null, and the table it points to is freed after every guard that was taken before
        // it was replaced. Acquire pairs with the Release of the replacement: the table's content is visible.
        unsafe { &*self.table.load(Ordering::Acquire) }
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        match self.books.lock() {
            Ok(books) => books,
            // Only running out of memory can unwind under the lock, and that ends the process.
            Err(poison) => poison.into_inner(),
        }
    }

    /// Looks `key` up without a lock.
    #[inline]
    pub(crate) fn find<'g>(&self, key: FrameKey, hash: u64, guard: &'g Guard<'_>) -> Option<Found<'g>> {
        self.table(guard).find(key, hash, guard)
    }

    /// Asks the processor to load what is likely the frame of `hash`.
    pub(crate) fn prefetch(&self, hash: u64, len: usize, guard: &Guard<'_>) {
        self.table(guard).prefetch(hash, len);
    }

    /// Decides under the lock who loads `key`.
    pub(crate) fn board(&self, key: FrameKey, hash: u64, guard: &Guard<'_>) -> Boarding {
        let mut books = self.lock();
        if let Some(found) = self.find(key, hash, guard) {
            return Boarding::Here(found.pin());
        }
        if let Some(flight) = books.loading.get(&key) {
            return Boarding::Wait(flight.clone());
        }
        let flight = Arc::new(Flight::new());
        books.loading.insert(key, flight.clone());
        Boarding::Load(flight)
    }

    /// The load of `key` is over.
    pub(crate) fn disembark(&self, key: FrameKey) {
        self.lock().loading.remove(&key);
    }

    /// Makes `pin` findable, unless its key is here already: then that frame is the answer. `moved` is the queue in which it was, if it
    /// comes from another shard. A table that was replaced comes back too, for the caller to retire.
    pub(crate) fn enter(
        &self,
        pin: &Pin,
        hash: u64,
        guard: &Guard<'_>,
        moved: Option<Queue>,
    ) -> (Entered, Option<Retired>) {
        let mut books = self.lock();
        if books.shut {
            return (Entered::Shut, None);
        }
        if let Some(found) = self.find(pin.key(), hash, guard) {
            return (Entered::Before(found.pin()), None);
        }
        if !books.policy.entries().has_room() {
            return (Entered::Full, None);
        }
        let entries = books.policy.entries().len() + 1;
        let retired = (!self.table(guard).has_room_for(entries)).then(|| {
            let buckets = Table::buckets_for(entries);
            self.replace_table(&books, buckets, guard)
        });
        match moved {
            Some(queue) => books.policy.add(pin.clone(), hash, queue),
            None => {
                let returned = books.policy.admit(pin.clone(), hash);
                self.share.inserted(pin.charge(), returned);
            }
        }
        // SAFETY: the policy keeps a count; it comes out in `sweep`, `remove`, `remove_extent` and `drain` only, where the frame is
        // unlinked first and the count goes to the caller, who retires it by epoch, or has it enter another shard.
        unsafe { self.table(guard).insert(pin, hash) };
        self.share.entered(pin.charge());
        self.rebook(&mut books, guard);
        (Entered::Now, retired)
    }

    /// Evicts until `enough`, which is told the shard's resident bytes, for [`SWEEP`] steps at most.
    pub(crate) fn sweep(&self, guard: &Guard<'_>, enough: &dyn Fn(usize) -> bool) -> Sweep {
        let mut books = self.lock();
        let mut left = SWEEP;
        let mut victims = Vec::new();
        let mut done = enough(books.policy.resident());
        let shared = !self.share.is_whole();
        while left > 0 && !done {
            let Some(leaving) = books.policy.evict(&mut left, shared) else { break };
            victims.push(self.part_with(leaving, guard));
            done = enough(books.policy.resident());
        }
        self.share.evicted(victims.len());
        self.rebook(&mut books, guard);
        Sweep { victims, patience: books.policy.patience(), steps: SWEEP - left, done }
    }

    /// Takes `key` out.
    pub(crate) fn remove(&self, key: FrameKey, hash: u64, guard: &Guard<'_>) -> Option<Gone> {
        let mut books = self.lock();
        let entry = self.find(key, hash, guard)?.entry();
        self.take_out(&mut books, entry, guard)
    }

    /// Takes every frame of `extent` out.
    pub(crate) fn remove_extent(&self, extent: u64, guard: &Guard<'_>) -> Vec<Gone> {
        let mut books = self.lock();
        let mut frames = Vec::new();
        while let Some(id) = books.policy.entries().first_of(extent) {
            match self.take_out(&mut books, id, guard) {
                Some(frame) => frames.push(frame),
                None => break,
            }
        }
        frames
    }

    /// Lets nothing in from now on.
    pub(crate) fn shut(&self) {
        self.lock().shut = true;
    }

    /// Lets frames in again.
    pub(crate) fn reopen(&self) {
        self.lock().shut = false;
    }

    /// Takes out some frames, those that were here longest; none if none is left.
    pub(crate) fn drain(&self, guard: &Guard<'_>) -> Vec<Gone> {
        let mut books = self.lock();
        let mut next = || {
            let oldest = books.policy.oldest()?;
            self.take_out(&mut books, oldest, guard)
        };
        (0..SWEEP).map_while(|_| next()).collect()
    }

    /// Gives back bookkeeping memory that more frames needed.
    pub(crate) fn compact(&self, guard: &Guard<'_>) -> Retired {
        let mut books = self.lock();
        books.policy.compact();
        let buckets = Table::buckets_for(books.policy.entries().len());
        let retired = self.replace_table(&books, buckets, guard);
        self.rebook(&mut books, guard);
        retired
    }

    /// Bytes of resident frames.
    pub(crate) fn resident(&self) -> usize {
        self.lock().policy.resident()
    }

    /// Resident frames.
    pub(crate) fn len(&self) -> usize {
        self.lock().policy.entries().len()
    }

    fn take_out(&self, books: &mut Books, id: u32, guard: &Guard<'_>) -> Option<Gone> {
        let leaving = books.policy.remove(id)?;
        Some(self.part_with(leaving, guard))
    }

    /// Has a frame that was taken out of the books, whose lock is held, found by nobody any more.
    fn part_with(&self, leaving: Leaving, guard: &Guard<'_>) -> Gone {
        let Leaving { frame, hash, home, queue } = leaving;
        self.table(guard).remove(&frame, hash);
        self.share.left(frame.charge());
        let slots = home.and_then(|(whose, which)| whose.unswizzle(which, frame.as_ptr(), guard));
        Gone { frame, slots, queue }
    }

    /// Calls `fill` with the frame of `key`, if that is here, to have the slot `home` lead to it. What another slot leaves behind comes
    /// back to be retired.
    pub(crate) fn swizzle(
        &self,
        (key, hash): (FrameKey, u64),
        guard: &Guard<'_>,
        home: Home,
        fill: impl FnOnce(NonNull<Frame>),
    ) -> Option<Detached> {
        let mut books = self.lock();
        let found = self.find(key, hash, guard)?;
        let before = books.policy.set_home(found.entry(), home);
        let detached =
            before.and_then(|(whose, which)| whose.unswizzle(which, found.as_ptr().as_ptr(), guard));
        fill(found.as_ptr());
        detached
    }

    /// Swaps in a table of `buckets` buckets with the same entries. Readers in the old one go on undisturbed.
    fn replace_table(&self, books: &Books, buckets: usize, guard: &Guard<'_>) -> Retired {
        let accounts = &self.share.accounts;
        // The old table is paid for until it is freed.
        accounts.rebook(0, self.table(guard).bytes());
        let table = Table::new(buckets);
        for (frame, hash) in books.policy.entries().frames() {
            // SAFETY: as in `enter`: the books keep a count of every frame in the current table.
            unsafe { table.insert(frame, hash) };
        }
        let old = self.table.swap(Box::into_raw(Box::new(table)), Ordering::AcqRel);
        Retired { table: old, accounts: accounts.clone() }
    }

    /// Tells the accounts how much bookkeeping there is now.
    fn rebook(&self, books: &mut Books, guard: &Guard<'_>) {
        let now = books.policy.bytes() + self.table(guard).bytes();
        if now != books.booked {
            self.share.accounts.rebook(std::mem::replace(&mut books.booked, now), now);
        }
    }
}

/// How an entering frame fared.
pub(crate) enum Entered {
    /// It is in.
    Now,
    /// This one was there before.
    Before(Pin),
    /// The shard cannot count that many frames.
    Full,
    /// Its part is closed.
    Shut,
}

impl Drop for Shard {
    fn drop(&mut self) {
        let table = self.table.load(Ordering::Acquire);
        // SAFETY: the pointer came from a box and nobody else has the shard any more. The frames are dropped with the
        // books, after this; the table holds no counts.
        drop(unsafe { Box::from_raw(table) });
    }
}
