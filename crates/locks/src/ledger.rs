//! What one owner holds, in the order in which it took it, and found by key.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use terrane_base::SubtableId;

use crate::mode::Mode;
use crate::wish::Wish;

/// See the module's head. Each thing has a serial number, given in order.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    next: u64,
    keys: Vec<KeyLock>,
    /// By hash, the newest of `keys` with it.
    newest: HashMap<u64, usize, BuildHasherDefault<AsItIs>>,
    /// Key locks that were shared first.
    upgrades: Vec<(u64, KeyLock)>,
    ranges: Vec<(u64, Arc<Wish>)>,
    /// Ranges that took the place of key locks, and stay until the end.
    escalated: Vec<Arc<Wish>>,
    /// By subtable.
    tallies: Vec<(SubtableId, Tally)>,
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

#[derive(Debug, Default)]
struct Tally {
    exclusive: usize,
    /// So many there must be before it is tried again to replace them. Zero: as many as the table says.
    next_try: usize,
}

impl Ledger {
    /// The number that the next thing gets: what is taken from now on has it or a larger one.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len() + self.ranges.len() + self.escalated.len()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &KeyLock> {
        self.keys.iter()
    }

    pub(crate) fn ranges(&self) -> impl Iterator<Item = &Arc<Wish>> {
        self.ranges.iter().map(|(_, range)| range).chain(&self.escalated)
    }

    /// How a key is locked by itself.
    #[inline]
    pub(crate) fn key_mode(&self, subtable: SubtableId, key: &[u8], hash: u64) -> Option<Mode> {
        self.find(subtable, key, hash).map(|at| self.keys[at].mode)
    }

    /// Whether a range covers a key in such a mode.
    #[inline]
    pub(crate) fn covers(&self, subtable: SubtableId, key: &[u8], mode: Mode) -> bool {
        self.ranges().any(|range| range.mode.includes(mode) && range.covers(subtable, key))
    }

    /// Whether a key is locked because that was asked for, and not only by ranges that took the place of key locks, which reach
    /// farther than those did. (Which keys those were is not known any more: they may be very many.)
    pub(crate) fn was_asked_for(&self, subtable: SubtableId, key: &[u8], hash: u64) -> bool {
        self.key_mode(subtable, key, hash).is_some()
            || self.ranges.iter().any(|(_, range)| range.covers(subtable, key))
    }

    /// Whether a range includes another.
    pub(crate) fn includes(&self, wish: &Wish) -> bool {
        self.ranges().any(|range| range.mode.includes(wish.mode) && range.includes(wish))
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
        self.keys.push(KeyLock { subtable, key, hash, mode, serial, older });
        if mode == Mode::Exclusive {
            self.tally(subtable).exclusive += 1;
        }
    }

    /// A key is now locked exclusively that was shared.
    pub(crate) fn upgrade_key(&mut self, subtable: SubtableId, key: &[u8], hash: u64) {
        let Some(at) = self.find(subtable, key, hash) else { return };
        self.keys[at].mode = Mode::Exclusive;
        let upgraded = (self.serial(), self.keys[at].clone());
        self.upgrades.push(upgraded);
        self.tally(subtable).exclusive += 1;
    }

    pub(crate) fn add_range(&mut self, range: Arc<Wish>) {
        let serial = self.serial();
        self.ranges.push((serial, range));
    }

    /// Takes out a range that was locked at `serial` or later.
    pub(crate) fn pop_range(&mut self, serial: u64) -> Option<Arc<Wish>> {
        self.ranges.pop_if(|(at, _)| *at >= serial).map(|(_, range)| range)
    }

    /// Takes out a key that was locked at `serial` or later.
    pub(crate) fn pop_key(&mut self, serial: u64) -> Option<KeyLock> {
        let key = self.keys.pop_if(|key| key.serial >= serial)?;
        match key.older {
            Some(older) => self.newest.insert(key.hash, older),
            None => self.newest.remove(&key.hash),
        };
        if key.mode == Mode::Exclusive {
            self.tally(key.subtable).exclusive -= 1;
        }
        Some(key)
    }

    /// Takes out an upgrade at `serial` or later, of a key that is still there: [`Ledger::pop_key`] comes first.
    pub(crate) fn pop_upgrade(&mut self, serial: u64) -> Option<KeyLock> {
        while let Some((_, upgraded)) = self.upgrades.pop_if(|(at, _)| *at >= serial) {
            if let Some(at) = self.find(upgraded.subtable, &upgraded.key, upgraded.hash) {
                self.keys[at].mode = Mode::Shared;
                self.tally(upgraded.subtable).exclusive -= 1;
                return Some(upgraded);
            }
        }
        None
    }

    /// Empties it, and gives what was there.
    pub(crate) fn drain(&mut self) -> (impl Iterator<Item = KeyLock>, impl Iterator<Item = Arc<Wish>>) {
        self.newest.clear();
        self.upgrades.clear();
        self.tallies.clear();
        let ranges = self.ranges.drain(..).map(|(_, range)| range).chain(self.escalated.drain(..)).rev();
        (self.keys.drain(..), ranges)
    }

    /// Whether the exclusive key locks of a subtable have become so many that they are to be replaced.
    #[inline]
    pub(crate) fn is_escalation_due(&self, subtable: SubtableId, limit: usize) -> bool {
        // Most owners never hold so many in all.
        self.keys.len() >= limit
            && self.tallies.binary_search_by_key(&subtable, |&(id, _)| id).is_ok_and(|at| {
                let tally = &self.tallies[at].1;
                tally.exclusive >= tally.next_try.max(limit)
            })
    }

    /// At most `count` pieces of equal size, into which the exclusive key locks of a subtable fall.
    pub(crate) fn pieces(&self, subtable: SubtableId, count: usize) -> Vec<Piece> {
        let exclusive = |lock: &&KeyLock| lock.subtable == subtable && lock.mode == Mode::Exclusive;
        let mut keys: Vec<&Arc<[u8]>> = self.keys.iter().filter(exclusive).map(|lock| &lock.key).collect();
        keys.sort_unstable();
        let pieces = keys.chunks(keys.len().div_ceil(count).max(1));
        pieces.filter_map(|piece| Some(((*piece.first()?).clone(), (*piece.last()?).clone()))).collect()
    }

    /// Ranges of a subtable have been locked exclusively: takes out the key locks that they cover.
    pub(crate) fn escalate(&mut self, subtable: SubtableId, ranges: Vec<Arc<Wish>>) -> Vec<KeyLock> {
        let covered = |lock: &mut KeyLock| ranges.iter().any(|range| range.covers(lock.subtable, &lock.key));
        let released: Vec<KeyLock> = self.keys.extract_if(.., covered).collect();
        self.upgrades.retain_mut(|(_, lock)| !covered(lock));
        self.newest.clear();
        for (at, lock) in self.keys.iter_mut().enumerate() {
            lock.older = self.newest.insert(lock.hash, at);
        }
        self.escalated.extend(ranges);
        let tally = self.tally(subtable);
        tally.exclusive -= released.iter().filter(|lock| lock.mode == Mode::Exclusive).count();
        tally.next_try = 2 * tally.exclusive;
        released
    }

    fn serial(&mut self) -> u64 {
        let serial = self.next;
        self.next += 1;
        serial
    }

    fn tally(&mut self, subtable: SubtableId) -> &mut Tally {
        let at = self.tallies.binary_search_by_key(&subtable, |&(id, _)| id).unwrap_or_else(|at| {
            self.tallies.insert(at, (subtable, Tally::default()));
            at
        });
        &mut self.tallies[at].1
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
