//! The cache: shards, the budget over them, and one load per missing frame.

use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use terrane_base::metrics::Counter;
use terrane_base::reclaim::Clock;
use terrane_base::{Error, ErrorKind, Result};

use crate::accounts::Accounts;
use crate::below::Below;
use crate::entries::Queue;
use crate::epoch::{Domain, Guard};
use crate::flight::Flight;
use crate::frame::{Found, Frame, Pin, Priority};
use crate::hold::Hold;
use crate::key::FrameKey;
use crate::parts::{Part, Parts};
use crate::shard::{Boarding, Entered, Gone, Shard};
use crate::swizzle::{Slots, Swizzling, Unswizzle};
use crate::tally::Tally;

/// Most shards: the bits of a hash that choose one.
const MAX_SHARDS: usize = 256;
/// Least capacity of a shard that is chosen automatically: enough frames for its queues to mean something.
const SHARD_BYTES: usize = 4 << 20;
/// How often a miss tries to have evicted frames freed before it goes private. An epoch takes two advances to pass.
const RECLAIM_TRIES: usize = 3;

/// How many caches there have been.
static CACHES: AtomicU64 = AtomicU64::new(0);

/// How to set up a [`Cache`].
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Bytes that the cache may hold, bookkeeping included; up to 5 % more while evicted frames wait to be freed. Zero
    /// is legal: nothing is kept. What left others of another size behind lies free beside that ([`CacheStats::free_bytes`]).
    pub capacity_bytes: usize,
    /// Number of shards, rounded to a power of two within 1..=256.
    pub shards: usize,
}

impl CacheOptions {
    /// A cache of `capacity_bytes` for so many threads at a time: four shards for each of them, if each shard has some memory.
    pub fn for_processors(capacity_bytes: usize, processors: usize) -> CacheOptions {
        let wanted = (processors * 4).next_power_of_two();
        CacheOptions { capacity_bytes, shards: wanted.min((capacity_bytes / SHARD_BYTES).max(1)) }
    }

    fn shard_count(&self) -> usize {
        // Down to a power of two.
        1 << self.shards.clamp(1, MAX_SHARDS).ilog2()
    }
}

/// What a cache did and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Accesses that found their frame.
    pub hits: u64,
    /// Lookups that loaded: calls of [`Cache::get_or_load`], and what [`Cache::missed`] was told.
    pub misses: u64,
    /// Accesses that found their frame in the store below.
    pub recalled: u64,
    /// Calls of [`Cache::get_or_load`] that waited for another thread's load of the same frame.
    pub joins: u64,
    /// Frames that entered.
    pub inserts: u64,
    /// Frames that had to leave for others.
    pub evictions: u64,
    /// Frames that were served without entering: too large, or too many evicted ones were waiting to be freed. Those that stay in the store
    /// below for being found there for the first time are not among them.
    pub private: u64,
    /// Frames that can be found.
    pub frames: usize,
    /// Bytes of frames that can be found.
    pub resident_bytes: usize,
    /// Bytes of frames that left and wait for their last reader.
    pub awaiting_bytes: usize,
    /// Bytes of tables, queues and ghosts.
    pub bookkeeping_bytes: usize,
    /// Bytes that lie free in the memory of frames, for the next ones: no part of the capacity; at most half of it, and little of it as long
    /// as sizes stay.
    pub free_bytes: usize,
    /// The capacity in force.
    pub capacity_bytes: usize,
}

impl CacheStats {
    /// Everything that counts against the capacity.
    pub fn used_bytes(&self) -> usize {
        self.resident_bytes + self.awaiting_bytes + self.bookkeeping_bytes
    }
}

/// A cache of immutable byte strings (blocks, index blocks, filters), shared by all threads. See the crate's head.
///
/// ```
/// use terrane_cache::{Cache, CacheOptions, FrameKey, Priority};
///
/// let cache = Cache::new(CacheOptions::for_processors(64 << 20, 2));
/// let key = FrameKey::new(12, 65536);
/// // The fast way first; a miss reads the block, once for all threads that want it.
/// let first = match cache.with(key, |block| block[0]) {
///     Some(byte) => byte,
///     None => cache.get_or_load(key, Priority::Data, || Ok(vec![7; 16384]))?[0],
/// };
/// assert_eq!(first, 7);
/// # Ok::<(), terrane_base::Error>(())
/// ```
pub struct Cache {
    /// Of all caches of the process this one alone has it.
    number: u64,
    swizzling: Swizzling,
    #[cfg(feature = "reference-counts")]
    counted: bool,
    parts: Parts,
    domain: Domain,
    accounts: Arc<Accounts>,
    pub(crate) below: OnceLock<Arc<dyn Below>>,
    hits: Tally,
    pub(crate) misses: Counter,
    pub(crate) recalled: Counter,
    joins: Counter,
    private: Counter,
}

impl Cache {
    /// An empty cache.
    pub fn new(options: CacheOptions) -> Cache {
        Cache::on(Arc::default(), options)
    }

    /// An empty cache whose holds are guards of `clock`.
    pub fn on(clock: Arc<Clock>, options: CacheOptions) -> Cache {
        let accounts = Arc::new(Accounts::new(options.capacity_bytes));
        let parts = Parts::new(options.shard_count(), &accounts);
        Cache {
            number: CACHES.fetch_add(1, Ordering::Relaxed),
            swizzling: Swizzling::default(),
            #[cfg(feature = "reference-counts")]
            counted: false,
            parts,
            domain: Domain::on(clock),
            accounts,
            below: OnceLock::new(),
            hits: Tally::default(),
            misses: Counter::new(),
            recalled: Counter::new(),
            joins: Counter::new(),
            private: Counter::new(),
        }
    }

    pub(crate) fn parts(&self) -> &Parts {
        &self.parts
    }

    /// A guard of whatever is found.
    pub(crate) fn pin(&self) -> Guard<'_> {
        self.domain.pin()
    }

    /// Calls `f` with the bytes of `key`, if they are here. The fastest access: no lock, no reference count, and no
    /// shared write but the reference bit of a frame that is read for the first time in a while.
    ///
    /// An epoch guard is held while `f` runs, and delays the freeing of whatever is evicted meanwhile: `f` should be
    /// short and not block. For longer use take a [`Pin`].
    #[inline]
    pub fn with<R>(&self, key: FrameKey, f: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let guard = self.domain.pin();
        let (shard, hash) = self.place(key);
        let found = shard.find(key, hash, &guard)?;
        found.touch();
        self.hits.bump();
        Some(f(found.bytes()))
    }

    /// This cache, but swizzling no more than that.
    #[must_use]
    pub fn with_swizzling(self, swizzling: Swizzling) -> Cache {
        Cache { swizzling, ..self }
    }

    /// This cache, but that whoever looks at a frame under a hold counts itself in and out, as if nothing else protected the frame. For
    /// comparisons: it shows what reference counts cost.
    #[cfg(feature = "reference-counts")]
    #[must_use]
    pub fn with_counts(self, counted: bool) -> Cache {
        Cache { counted, ..self }
    }

    #[cfg(feature = "reference-counts")]
    #[inline]
    pub(crate) fn counts(&self) -> bool {
        self.counted
    }

    /// Which frames it swizzles.
    #[inline]
    pub fn swizzling(&self) -> Swizzling {
        self.swizzling
    }

    /// Slots for the frames of one extent, to be found by direct pointer.
    pub fn slots<P, T>(&self) -> Slots<P, T> {
        Slots::new(self.number)
    }

    /// Has the calling thread's accesses share one epoch guard until the hold goes: taking a guard costs an atomic
    /// read-modify-write. As with [`Cache::with`], what is evicted meanwhile is not freed: a hold should be short, and its
    /// holder not block.
    #[inline]
    pub fn hold(&self) -> Hold<'_> {
        Hold::new(self, self.domain.pin())
    }

    /// A pin on the frame of `key`, if it is here.
    #[inline]
    pub fn get(&self, key: FrameKey) -> Option<Pin> {
        let guard = self.domain.pin();
        let (shard, hash) = self.place(key);
        let found = shard.find(key, hash, &guard)?;
        found.touch();
        self.hits.bump();
        Some(found.pin())
    }

    /// As [`Cache::get`], but the frame is no more worth keeping for it: for whoever had it brought here for this access.
    #[inline]
    pub fn take_up(&self, key: FrameKey) -> Option<Pin> {
        let pin = self.peek(key)?;
        self.hits.bump();
        Some(pin)
    }

    /// As [`Cache::take_up`], and does not count as a hit either.
    #[inline]
    pub fn peek(&self, key: FrameKey) -> Option<Pin> {
        let guard = self.domain.pin();
        let (shard, hash) = self.place(key);
        Some(shard.find(key, hash, &guard)?.pin())
    }

    /// Asks the processor to load what a [`Cache::get`] of `key` and a look at the ends of its `len` bytes will need. For
    /// callers that will come for it soon and have something to do until then. Does not count as an access.
    pub fn prefetch(&self, key: FrameKey, len: usize) {
        let guard = self.domain.pin();
        let (shard, hash) = self.place(key);
        shard.prefetch(hash, len, &guard);
    }

    /// Whether `key` is here. Does not count as an access.
    pub fn contains(&self, key: FrameKey) -> bool {
        self.is_read(key).is_some()
    }

    /// Whether the frame of `key`, if it is here, was read since it came, or since an eviction last passed it by. Does not
    /// count as an access.
    pub fn is_read(&self, key: FrameKey) -> Option<bool> {
        let guard = self.domain.pin();
        let (shard, hash) = self.place(key);
        Some(shard.find(key, hash, &guard)?.referenced())
    }

    /// The capacity in force, bytes.
    pub fn capacity(&self) -> usize {
        self.accounts.capacity()
    }

    /// Counts lookups that found nothing, of a caller that looks with [`Cache::get`] and loads by itself.
    pub fn missed(&self, lookups: usize) {
        self.misses.add(lookups as u64);
    }

    /// Bytes of frames that can enter before others have to leave, about.
    pub fn room(&self) -> usize {
        self.accounts.goal().saturating_sub(self.accounts.resident() + self.accounts.bookkeeping())
    }

    /// Puts a copy of `bytes` in, unless `key` is here already, and pins what is here then. Where no room can be made, the pin is private.
    pub fn insert(&self, key: FrameKey, bytes: impl AsRef<[u8]>, priority: Priority) -> Pin {
        self.admit(key, bytes.as_ref(), priority)
    }

    /// The frame of `key`. If it is not here, `load` is called for its bytes: by one thread only, while others that miss
    /// the same key wait for it. Where no room can be made, or a block of records is found below for the first time, all of them share a
    /// private pin.
    ///
    /// `load` runs outside all locks. It may use the cache; asked for `key` itself, the cache loads privately rather than
    /// wait for itself.
    ///
    /// # Errors
    /// That of `load`, given to every thread that waited for it. It is not kept: the next call loads again.
    pub fn get_or_load<B: AsRef<[u8]>>(
        &self,
        key: FrameKey,
        priority: Priority,
        load: impl FnOnce() -> Result<B>,
    ) -> Result<Pin> {
        if let Some(pin) = self.get(key) {
            return Ok(pin);
        }
        let (shard, hash) = self.place(key);
        let boarding = {
            // Not held any longer: a load may take its time.
            let guard = self.domain.pin();
            shard.board(key, hash, &guard)
        };
        match boarding {
            Boarding::Here(pin) => {
                self.hits.bump();
                Ok(pin)
            }
            Boarding::Wait(flight) if flight.is_own() => {
                self.private.add(1);
                Ok(Pin::new(key, priority, load()?.as_ref(), None))
            }
            Boarding::Wait(flight) => {
                self.joins.add(1);
                flight.wait()
            }
            Boarding::Load(flight) => {
                let landing = Landing { shard, key, flight, outcome: None };
                landing.finish(self.fetch(key, priority, load))
            }
        }
    }

    /// Drops the frame of `key` that its part has. One that is being loaded still comes in.
    pub fn remove(&self, key: FrameKey) {
        let (shard, hash) = self.place(key);
        let guard = self.domain.pin();
        if let Some(gone) = shard.remove(key, hash, &guard) {
            retire(&guard, gone);
        }
        self.reclaim(&guard);
    }

    /// Drops every frame of `extent`: its space is about to be freed. Costs a short lock per shard. Frames that change parts meanwhile
    /// ([`Cache::rehome`], [`Cache::close_part`]) may stay; those in the common part change parts by [`Cache::rehome`] alone.
    pub fn remove_extent(&self, extent: u64) {
        if let Some(below) = self.below.get() {
            below.forget_extent(extent);
        }
        for shard in self.parts.all().flat_map(|part| &part.shards) {
            let guard = self.domain.pin();
            for gone in shard.remove_extent(extent, &guard) {
                retire(&guard, gone);
            }
            self.reclaim(&guard);
        }
    }

    /// Changes the capacity. Shrinking evicts before it returns, evenly over the shards.
    pub fn set_capacity(&self, bytes: usize) {
        let shrinks = bytes < self.accounts.capacity();
        self.accounts.set_capacity(bytes);
        if !shrinks {
            return;
        }
        let resident = self.accounts.resident();
        let keep = self.accounts.goal() as f64 / resident.max(1) as f64;
        for shard in self.parts.all().flat_map(|part| &part.shards).filter(|_| keep < 1.0) {
            let goal = (shard.resident() as f64 * keep) as usize;
            self.relieve(shard, &|shard_resident| shard_resident <= goal);
            // The bookkeeping of a much larger cache could be more than the new capacity.
            let guard = self.domain.pin();
            guard.retire(shard.compact(&guard).into());
        }
        self.evict(&self.parts.common, 0);
        (0..RECLAIM_TRIES).for_each(|_| self.domain.pin().flush());
    }

    /// Counts and sizes, each right by itself; together they may be a moment apart.
    pub fn stats(&self) -> CacheStats {
        let (resident_bytes, awaiting_bytes) = self.accounts.held();
        CacheStats {
            hits: self.hits.get(),
            misses: self.misses.get(),
            recalled: self.recalled.get(),
            joins: self.joins.get(),
            inserts: self.parts.all().map(|part| part.share.inserts()).sum(),
            evictions: self.parts.all().map(|part| part.share.evictions()).sum(),
            private: self.private.get(),
            frames: self.parts.all().flat_map(|part| &part.shards).map(Shard::len).sum(),
            resident_bytes,
            awaiting_bytes,
            bookkeeping_bytes: self.accounts.bookkeeping(),
            free_bytes: self.accounts.slab.unused(),
            capacity_bytes: self.accounts.capacity(),
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn accounts(&self) -> &Arc<Accounts> {
        &self.accounts
    }

    /// Counts accesses that found their frames.
    #[inline]
    pub(crate) fn add_hits(&self, count: u64) {
        if count > 0 {
            self.hits.add(count);
        }
    }

    /// The frame of `key`, by search.
    #[inline]
    pub(crate) fn find<'g>(&self, key: FrameKey, guard: &'g Guard<'_>) -> Option<Found<'g>> {
        let (shard, hash) = self.place(key);
        shard.find(key, hash, guard)
    }

    /// As [`Shard::swizzle`].
    pub(crate) fn swizzle<H: Unswizzle + 'static>(
        &self,
        key: FrameKey,
        guard: &Guard<'_>,
        (whose, which): (Arc<H>, u32),
        fill: impl FnOnce(NonNull<Frame>),
    ) {
        let (shard, hash) = self.place(key);
        if let Some(slots) = shard.swizzle((key, hash), guard, (whose, which), fill) {
            guard.retire(slots.into());
        }
    }

    /// Shard and hash of `key`.
    #[inline]
    fn place(&self, key: FrameKey) -> (&Shard, u64) {
        let hash = key.hash();
        (self.parts.get(key.part).shard(hash), hash)
    }

    /// Makes a frame and lets it in. The limit is checked before, and room is made after: the frame is paid for from its
    /// first moment, and whatever leaves for it is paid for until it is freed.
    fn admit(&self, key: FrameKey, bytes: &[u8], priority: Priority) -> Pin {
        let charge = self.accounts.charge_of(bytes.len());
        if !self.charge(charge) {
            self.private.add(1);
            return Pin::new(key, priority, bytes, None);
        }
        let pin = Pin::new(key, priority, bytes, Some(self.accounts.clone()));
        let guard = self.domain.pin();
        let (part, entered) = self.enter(self.parts.get(key.part), &pin, &guard, None);
        drop(guard);
        match entered {
            Entered::Now => self.parts.returned_to(part),
            Entered::Before(pin) => return pin,
            Entered::Full | Entered::Shut => self.private.add(1),
        }
        self.evict(part, key.hash());
        pin
    }

    /// Has a frame enter a part, or the common one should that be closed meanwhile; says which.
    pub(crate) fn enter<'c>(
        &'c self,
        part: &'c Part,
        pin: &Pin,
        guard: &Guard<'_>,
        moved: Option<Queue>,
    ) -> (&'c Part, Entered) {
        let hash = pin.key().hash();
        let (entered, table) = part.shard(hash).enter(pin, hash, guard, moved);
        if let Some(table) = table {
            guard.retire(table.into());
        }
        match entered {
            // That one is never shut.
            Entered::Shut if !std::ptr::eq(part, &self.parts.common) => {
                self.enter(&self.parts.common, pin, guard, moved)
            }
            entered => (part, entered),
        }
    }

    /// Charges for a frame to be made, if need be after evicted ones were freed.
    fn charge(&self, charge: usize) -> bool {
        if !self.accounts.fits(charge) {
            return false;
        }
        for _ in 0..RECLAIM_TRIES {
            if self.accounts.charge(charge) {
                return true;
            }
            self.domain.pin().flush();
        }
        self.accounts.charge(charge)
    }

    /// Evicts down to the goal: what `part` holds beyond its share, as long as that is something; then what others hold beyond theirs; and
    /// where all of that is in use, whatever is not.
    pub(crate) fn evict(&self, part: &Part, hash: u64) {
        if !self.parts.is_whole() {
            let own = || self.shrink(part, true, hash);
            let fullest = || self.parts.fullest().is_some_and(|part| self.shrink(part, true, hash));
            if own() || fullest() || self.parts.all().any(|part| self.shrink(part, true, hash)) {
                return;
            }
        }
        self.parts.all().any(|part| self.shrink(part, false, hash));
    }

    /// Evicts until the cache is down to its goal, or else until there is nothing in the part that may leave, beyond its share if that is to
    /// `keep`; says which. From the shard of `hash`, which keeps the shards' shares as the hash dealt them, and from the next ones
    /// where everything there is in use.
    fn shrink(&self, part: &Part, keep: bool, hash: u64) -> bool {
        if !self.accounts.over() {
            return true;
        }
        let keep = if keep { part.share.bytes() } else { 0 };
        let enough = || !self.accounts.over() || part.share.resident() <= keep;
        for i in 0..part.shards.len() as u64 {
            if enough() {
                break;
            }
            self.relieve(part.shard(hash.wrapping_add(i << 48)), &|_| enough());
        }
        !self.accounts.over()
    }

    /// Evicts from `shard` until `enough`, which is told the shard's resident bytes, or until nothing there may leave.
    fn relieve(&self, shard: &Shard, enough: &dyn Fn(usize) -> bool) {
        let mut fruitless = 0;
        loop {
            let guard = self.domain.pin();
            let sweep = shard.sweep(&guard, enough);
            fruitless = if sweep.victims.is_empty() { fruitless + sweep.steps } else { 0 };
            for gone in sweep.victims {
                if let Some(below) = self.below.get() {
                    below.keep(gone.frame.key(), &gone.frame);
                }
                retire(&guard, gone);
            }
            self.reclaim(&guard);
            if sweep.done || fruitless >= sweep.patience {
                return;
            }
        }
    }

    /// Hurries reclamation when what waits for it takes a good part of its room. What each thread has not handed over is
    /// therefore a small part of it too, also where that thread never comes back.
    pub(crate) fn reclaim(&self, guard: &Guard<'_>) {
        if self.accounts.awaiting() > self.accounts.slack() / 4 {
            guard.flush();
        }
    }
}

pub(crate) fn retire(guard: &Guard<'_>, gone: Gone) {
    guard.retire(gone.frame.into());
    if let Some(slots) = gone.slots {
        guard.retire(slots.into());
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("shards", &self.parts.common.shards.len())
            .field("stats", &self.stats())
            .finish()
    }
}

/// Ends a load whatever happens: should `load` unwind, those who wait get an error instead of waiting forever.
struct Landing<'c> {
    shard: &'c Shard,
    key: FrameKey,
    flight: Arc<Flight>,
    outcome: Option<Result<Pin>>,
}

impl Landing<'_> {
    fn finish(mut self, outcome: Result<Pin>) -> Result<Pin> {
        self.outcome = Some(outcome.clone());
        outcome
    }
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        self.shard.disembark(self.key);
        let given_up =
            || Err(Error::new(ErrorKind::Closed, "the thread that was loading this block gave up"));
        self.flight.land(self.outcome.take().unwrap_or_else(given_up));
    }
}
