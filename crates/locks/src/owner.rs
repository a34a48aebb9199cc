//! One who holds locks.

use std::fmt;
use std::sync::Arc;

use terrane_base::SubtableId;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::ledger::{KeyLock, Ledger, Point};
use crate::mode::Mode;
use crate::patience::Patience;
use crate::refusal::Refusal;
use crate::stretches::STAYS;
use crate::table::{LockTable, Place};
use crate::wish::{Reach, Wish};

/// Locks are replaced by at most so many ranges at a time.
const PIECES: usize = 8;
/// Ranges are replaced when there are this part of the number at which key locks are, but never when there are fewer than twice as many
/// as would come of it.
const RANGE_WEIGHT: usize = 16;

/// One who holds locks: a transaction. Used by one thread at a time, which may change. When it is dropped, so are its locks.
pub struct Owner {
    table: Arc<LockTable>,
    number: u64,
    /// Apart, so that an owner is small to hand on.
    held: Box<Ledger>,
    /// Whether many locks become few ranges.
    escalates: bool,
}

/// A point in the life of an owner to which it can go back. Good for that owner, until it goes back further, forgets it or one before it,
/// or gives back all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(Point);

/// A lock that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held<'o> {
    /// Where it is.
    pub subtable: SubtableId,
    /// How it is held.
    pub mode: Mode,
    /// The key, or where the range starts.
    pub start: &'o [u8],
    /// Where the range ends, if it has an end. `None` for a key.
    pub end: Option<&'o [u8]>,
    /// Whether it is a key, not a range.
    pub is_key: bool,
}

impl Owner {
    pub(crate) fn new(table: Arc<LockTable>, number: u64) -> Owner {
        Owner { table, number, held: Box::new(Ledger::new()), escalates: true }
    }

    /// Has it lock what it asks for from now on and nothing beside: however many locks there are, they stay as they are. For locks that
    /// were held once, beside others that must find room again.
    pub fn lock_exactly(&mut self) {
        self.escalates = false;
    }

    /// Its number.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Locks a key, whether or not it exists. A key that is held shared may be asked for again exclusively. Blocks as long as
    /// `patience` allows.
    ///
    /// # Errors
    /// What stands against it; it then holds what it held before.
    #[inline]
    pub fn lock_key(
        &mut self,
        subtable: SubtableId,
        key: &[u8],
        mode: Mode,
        patience: Patience,
    ) -> Result<(), Refusal> {
        let hash = hash(subtable, key);
        let before = self.held.key_mode(subtable, key, hash);
        if before.is_some_and(|held| held.includes(mode)) || self.held.ranges.covers(subtable, key, mode) {
            return Ok(());
        }
        let key: Arc<[u8]> = key.into();
        self.table.lock_key(Place { owner: self.number, subtable, key: &key, hash }, mode, patience)?;
        match before {
            None => self.held.add_key(subtable, key, hash, mode),
            Some(_) => self.held.upgrade_key(subtable, &key, hash),
        }
        if self.escalates && self.held.are_too_many(subtable, mode, self.table.escalate_at()) {
            self.escalate_keys(subtable, mode);
        }
        Ok(())
    }

    /// Locks all keys from `start` to before `end`, or to the last if there is no end, whether or not they exist. Blocks as long as
    /// `patience` allows. Costs a visit of each shard. What touches a range that it took in the same mode since its newest mark becomes
    /// one with it.
    ///
    /// # Errors
    /// What stands against it; it then holds what it held before.
    pub fn lock_range(
        &mut self,
        subtable: SubtableId,
        start: &[u8],
        end: Option<&[u8]>,
        mode: Mode,
        patience: Patience,
    ) -> Result<(), Refusal> {
        if end.is_some_and(|end| end <= start) {
            return Ok(());
        }
        let reach = end.map_or(Reach::End, |end| Reach::Before(end.into()));
        self.take_range(subtable, mode, start.into(), reach, self.held.next(), patience)?;
        self.escalate_ranges(subtable, mode);
        Ok(())
    }

    fn take_range(
        &mut self,
        subtable: SubtableId,
        mode: Mode,
        start: Arc<[u8]>,
        reach: Reach,
        serial: u64,
        patience: Patience,
    ) -> Result<(), Refusal> {
        let wish = Wish { owner: self.number, subtable, mode, start, reach, serial };
        let Some(range) = self.held.ranges.missing(wish) else { return Ok(()) };
        let range = Arc::new(range);
        let parts = self.held.touching(&range);
        let whole = if parts.is_empty() { range.clone() } else { Arc::new(range.and(&parts, serial)) };
        self.table.lock_range(&range, &parts, &whole, patience)?;
        self.held.replace_ranges(&parts, whole);
        Ok(())
    }

    /// Joins a range that is held with those that touch it.
    fn join(&mut self, range: &Wish) {
        let parts = self.held.touching(range);
        // It is one of those that touch it, or has become part of one.
        if parts.len() > 1 {
            let whole = Arc::new(range.and(&parts, self.held.next()));
            self.table.join_ranges(&parts, &whole);
            self.held.replace_ranges(&parts, whole);
        }
    }

    /// Whether it may do with a key what `mode` allows, by a lock on it or on a range.
    pub fn holds(&self, subtable: SubtableId, key: &[u8], mode: Mode) -> bool {
        let held = self.held.key_mode(subtable, key, hash(subtable, key));
        held.is_some_and(|held| held.includes(mode)) || self.held.ranges.covers(subtable, key, mode)
    }

    /// Whether it holds a lock on a key, in any mode, that it asked for, on the key or on a range. Where many locks were replaced by
    /// ranges, it holds more than it asked for; of the keys within it no longer knows which those were, and says no.
    pub fn asked_for(&self, subtable: SubtableId, key: &[u8]) -> bool {
        self.held.was_asked_for(subtable, key, hash(subtable, key))
    }

    /// The present, to come back to: a savepoint. Ranges that are taken from now on do not become one with those of before until it is
    /// forgotten ([`Owner::forget`]).
    pub fn mark(&mut self) -> Mark {
        Mark(self.held.mark())
    }

    /// Gives back what was taken since, and makes shared again what was since made exclusive. Ranges that took the place of other
    /// locks stay. The mark stays good, those after it do not. Does nothing if the mark is not good any more.
    pub fn release_to(&mut self, mark: Mark) {
        if !self.held.forget_marks(mark.0, true) {
            return;
        }
        while let Some(range) = self.held.ranges.pop(mark.0.serial) {
            self.table.unlock_range(&range);
        }
        while let Some(lock) = self.held.pop_key(mark.0.serial) {
            self.table.unlock_key(place(self.number, &lock));
        }
        while let Some(lock) = self.held.pop_upgrade(mark.0.serial) {
            self.table.downgrade_key(place(self.number, &lock));
        }
    }

    /// Keeps what was taken since: the mark, and those after it, are not to be gone back to. Does nothing if it is not good any more.
    pub fn forget(&mut self, mark: Mark) {
        if self.held.forget_marks(mark.0, false) {
            self.held.ranges.since(mark.0.serial).iter().for_each(|range| self.join(range));
        }
    }

    /// Gives back all.
    pub fn release_all(&mut self) {
        let (keys, ranges) = self.held.drain();
        ranges.iter().for_each(|range| self.table.unlock_range(range));
        keys.for_each(|lock| self.table.unlock_key(place(self.number, &lock)));
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many locks it holds; a range is one.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Shows what it holds: keys, then ranges.
    pub fn for_each(&self, f: &mut dyn FnMut(Held<'_>)) {
        for KeyLock { subtable, mode, key, .. } in self.held.keys() {
            f(Held { subtable: *subtable, mode: *mode, start: key, end: None, is_key: true });
        }
        for range in self.held.ranges.iter() {
            let Wish { subtable, mode, start, .. } = &**range;
            let end = range.end().map(|end| &**end);
            f(Held { subtable: *subtable, mode: *mode, start, end, is_key: false });
        }
    }

    /// Replaces key locks of a subtable by ranges in their mode, where those can be had at once.
    #[cold]
    fn escalate_keys(&mut self, subtable: SubtableId, mode: Mode) {
        for (first, last) in self.held.pieces(subtable, mode, PIECES) {
            let end = Reach::Before(last.iter().copied().chain([0]).collect());
            // Where it is refused, the keys stay locked one by one.
            let _ = self.take_range(subtable, mode, first, end, STAYS, Patience::Never);
        }
        let released = self.held.supersede_keys(subtable, mode);
        self.table.count_escalation(!released.is_empty());
        released.iter().for_each(|lock| self.table.unlock_key(place(self.number, lock)));
        self.escalate_ranges(subtable, mode);
    }

    /// Replaces ranges of a subtable, if they have become too many, by fewer that also cover what lies between them, where that can be
    /// had at once.
    fn escalate_ranges(&mut self, subtable: SubtableId, mode: Mode) {
        let enough = (self.table.escalate_at() / RANGE_WEIGHT).max(2 * PIECES);
        if !self.escalates || !self.held.ranges.are_too_many(subtable, mode, enough) {
            return;
        }
        let before = self.held.ranges.len();
        for Wish { start, reach, .. } in self.held.ranges.pieces(subtable, mode, PIECES) {
            // Where it is refused, the ranges stay as they are.
            let _ = self.take_range(subtable, mode, start, reach, STAYS, Patience::Never);
        }
        let released = self.held.ranges.supersede(subtable, mode);
        self.table.drop_ranges(&released);
        self.table.count_escalation(self.held.ranges.len() < before);
    }
}

pub(crate) fn hash(subtable: SubtableId, key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, u64::from(subtable.0))
}

fn place(owner: u64, lock: &KeyLock) -> Place<'_> {
    Place { owner, subtable: lock.subtable, key: &lock.key, hash: lock.hash }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.release_all();
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owner")
            .field("number", &self.number)
            .field("locks", &self.len())
            .finish_non_exhaustive()
    }
}
