//! What one owner holds, in the order in which it took it, and found by key.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use terrane_base::SubtableId;

use crate::mode::Mode;
use crate::stretches::{STAYS, Stretches};
use crate::wish::Wish;

/// See the module's head. Each thing has a serial number, given in order from one on.
#[derive(Debug)]
pub(crate) struct Ledger {
    next: u64,
    /// The marks that are still good, by what was next when they were set.
    marks: Vec<u64>,
    keys: Vec<KeyLock>,
    /// What they weigh.
    weight: usize,
    /// By hash, the newest of `keys` with it.
    newest: HashMap<u64, usize, BuildHasherDefault<AsItIs>>,
    /// Key locks that were shared first.
    upgrades: Vec<(u64, KeyLock)>,
    pub(crate) ranges: Stretches,
    /// By subtable, and by mode.
    tallies: Vec<(SubtableId, [Tally; 2])>,
}

/// A point to which an owner can go back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Point {
    /// What was next.
    pub(crate) serial: u64,
    /// So many marks were good before.
    depth: usize,
}

/// A key that is locked.
#[derive(Clone, Debug)]
pub(crate) struct KeyLock {
    pub(crate) subtable: SubtableId,
    pub(crate) key: Arc<[u8]>,
    pub(crate) hash: u64,
    pub(crate) mode: Mode,
    serial: u64,
    /// The one before it with the same hash.
    older: Option<usize>,
}

/// The first and the last of some keys.
type Piece = (Arc<[u8]>, Arc<[u8]>);

/// The key locks of one mode in a subtable.
#[derive(Debug, Default)]
struct Tally {
    weight: usize,
    /// So much they must weigh before it is tried again to replace them. Zero: as much as the table says.
    next_try: usize,
}

impl KeyLock {
    /// What it counts for, as memory: one of a long key as several.
    fn weight(&self) -> usize {
        1 + self.key.len() / 128
    }
}

impl Ledger {
    pub(crate) fn new() -> Ledger {
        Ledger {
            next: STAYS + 1,
            marks: Vec::new(),
            keys: Vec::new(),
            weight: 0,
            newest: HashMap::default(),
            upgrades: Vec::new(),
            ranges: Stretches::default(),
            tallies: Vec::new(),
        }
    }

    /// The number that the next thing gets: what is taken from now on has it or a larger one.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len() + self.ranges.len()
    }

    pub(crate) fn mark(&mut self) -> Point {
        self.marks.push(self.next);
        Point { serial: self.next, depth: self.marks.len() - 1 }
    }

    /// Whether a mark is good still. Then those that were set later, and this one itself unless it is kept, are not from here on.
    pub(crate) fn forget_marks(&mut self, point: Point, keep: bool) -> bool {
        let is_good = self.marks.get(point.depth) == Some(&point.serial);
        if is_good {
            self.marks.truncate(point.depth + usize::from(keep));
        }
        is_good
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &KeyLock> {
        self.keys.iter()
    }

    /// How a key is locked by itself.
    #[inline]
    pub(crate) fn key_mode(&self, subtable: SubtableId, key: &[u8], hash: u64) -> Option<Mode> {
        self.find(subtable, key, hash).map(|at| self.keys[at].mode)
    }

    /// Whether a key is locked because that was asked for, and not only by ranges that took the place of other locks, which reach
    /// farther than those did. (Which those were is not known any more: they may be very many.)
    pub(crate) fn was_asked_for(&self, subtable: SubtableId, key: &[u8], hash: u64) -> bool {
        self.key_mode(subtable, key, hash).is_some() || self.ranges.cover_as_asked(subtable, key)
    }

    fn find(&self, subtable: SubtableId, key: &[u8], hash: u64) -> Option<usize> {
        let mut next = self.newest.get(&hash).copied();
        while let Some(at) = next {
            let here = &self.keys[at];
            if here.subtable == subtable && *here.key == *key {
                break;
            }
            next = here.older;
        }
        next
    }

    /// A key was locked that was not.
    pub(crate) fn add_key(&mut self, subtable: SubtableId, key: Arc<[u8]>, hash: u64, mode: Mode) {
        let older = self.newest.insert(hash, self.keys.len());
        let serial = self.serial();
        let lock = KeyLock { subtable, key, hash, mode, serial, older };
        self.weight += lock.weight();
        self.tally(subtable, mode).weight += lock.weight();
        self.keys.push(lock);
    }

    /// A key is now locked exclusively that was shared.
    pub(crate) fn upgrade_key(&mut self, subtable: SubtableId, key: &[u8], hash: u64) {
        let Some(at) = self.find(subtable, key, hash) else { return };
        self.keys[at].mode = Mode::Exclusive;
        let upgraded = (self.serial(), self.keys[at].clone());
        let weight = upgraded.1.weight();
        self.upgrades.push(upgraded);
        self.tally(subtable, Mode::Shared).weight -= weight;
        self.tally(subtable, Mode::Exclusive).weight += weight;
    }

    /// A range was locked, perhaps in the place of others.
    pub(crate) fn replace_ranges(&mut self, parts: &[Arc<Wish>], whole: Arc<Wish>) {
        self.next = self.next.max(whole.serial + 1);
        self.ranges.replace(parts, whole);
    }

    /// Those that touch a range and may join it: see [`Stretches`].
    pub(crate) fn touching(&self, range: &Wish) -> Vec<Arc<Wish>> {
        self.ranges.touching(range, self.marks.last().copied().unwrap_or_default())
    }

    /// Takes out a key that was locked at `serial` or later.
    pub(crate) fn pop_key(&mut self, serial: u64) -> Option<KeyLock> {
        let key = self.keys.pop_if(|key| key.serial >= serial)?;
        match key.older {
            Some(older) => self.newest.insert(key.hash, older),
            None => self.newest.remove(&key.hash),
        };
        self.weight -= key.weight();
        self.tally(key.subtable, key.mode).weight -= key.weight();
        Some(key)
    }

    /// Takes out an upgrade at `serial` or later, of a key that is still there: [`Ledger::pop_key`] comes first.
    pub(crate) fn pop_upgrade(&mut self, serial: u64) -> Option<KeyLock> {
        while let Some((_, upgraded)) = self.upgrades.pop_if(|(at, _)| *at >= serial) {
            if let Some(at) = self.find(upgraded.subtable, &upgraded.key, upgraded.hash) {
                self.keys[at].mode = Mode::Shared;
                self.tally(upgraded.subtable, Mode::Exclusive).weight -= upgraded.weight();
                self.tally(upgraded.subtable, Mode::Shared).weight += upgraded.weight();
                return Some(upgraded);
            }
        }
        None
    }

    /// Empties it, and gives what was there. No mark is good any more.
    pub(crate) fn drain(&mut self) -> (impl Iterator<Item = KeyLock>, Vec<Arc<Wish>>) {
        self.marks.clear();
        self.newest.clear();
        self.upgrades.clear();
        self.tallies.clear();
        self.weight = 0;
        (self.keys.drain(..), self.ranges.drain())
    }

    /// Whether the key locks of a subtable in a mode weigh so much that they are to be replaced.
    #[inline]
    pub(crate) fn are_too_many(&self, subtable: SubtableId, mode: Mode, limit: usize) -> bool {
        // Most owners never hold so many in all.
        self.weight >= limit
            && self.tallies.binary_search_by_key(&subtable, |&(id, _)| id).is_ok_and(|at| {
                let tally = &self.tallies[at].1[mode as usize];
                tally.weight >= tally.next_try.max(limit)
            })
    }

    /// At most `count` pieces of equal size, into which the key locks of a subtable in a mode fall.
    pub(crate) fn pieces(&self, subtable: SubtableId, mode: Mode, count: usize) -> Vec<Piece> {
        let wanted = |lock: &&KeyLock| lock.subtable == subtable && lock.mode == mode;
        let mut keys: Vec<&Arc<[u8]>> = self.keys.iter().filter(wanted).map(|lock| &lock.key).collect();
        keys.sort_unstable();
        let pieces = keys.chunks(keys.len().div_ceil(count).max(1));
        pieces.filter_map(|piece| Some(((*piece.first()?).clone(), (*piece.last()?).clone()))).collect()
    }

    /// Takes out the key locks for which ranges of a mode stand that stay until the end.
    pub(crate) fn supersede_keys(&mut self, subtable: SubtableId, mode: Mode) -> Vec<KeyLock> {
        let ranges = &self.ranges;
        let covered = |lock: &mut KeyLock| {
            lock.subtable == subtable
                && mode.includes(lock.mode)
                && ranges.cover_to_the_end(subtable, &lock.key, mode)
        };
        let released: Vec<KeyLock> = self.keys.extract_if(.., covered).collect();
        self.upgrades.retain_mut(|(_, lock)| !covered(lock));
        self.newest.clear();
        for (at, lock) in self.keys.iter_mut().enumerate() {
            lock.older = self.newest.insert(lock.hash, at);
        }
        for lock in &released {
            self.weight -= lock.weight();
            self.tally(subtable, lock.mode).weight -= lock.weight();
        }
        let tally = self.tally(subtable, mode);
        tally.next_try = 2 * tally.weight;
        released
    }

    fn serial(&mut self) -> u64 {
        let serial = self.next;
        self.next += 1;
        serial
    }

    fn tally(&mut self, subtable: SubtableId, mode: Mode) -> &mut Tally {
        let at = self.tallies.binary_search_by_key(&subtable, |&(id, _)| id).unwrap_or_else(|at| {
            self.tallies.insert(at, (subtable, Default::default()));
            at
        });
        &mut self.tallies[at].1[mode as usize]
    }
}

/// Its input is a hash already.
#[derive(Default)]
struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = self.0 << 8 | u64::from(byte));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
