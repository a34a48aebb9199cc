//! A part of the lock table: the keys that fall to it, all ranges, and those who wait for either.
//!
//! # Concurrency
//! All of it lies under one mutex. Who changes what others may wait for calls [`Shard::settle`] before it lets go: from then on
//! nobody waits that could go on, and the graph tells for whom each of the others waits.

use std::collections::btree_map::{BTreeMap, Entry};
use std::collections::vec_deque::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use terrane_base::SubtableId;
use terrane_base::sync::Mutex;

use crate::cell::Cell;
use crate::graph::{Graph, Owners};
use crate::lock;
use crate::mode::Mode;
use crate::ranges::Ranges;
use crate::wish::{Reach, Wish};

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    /// By subtable, of which there is none in which nothing is held.
    subtables: Vec<(SubtableId, Held)>,
    key_locks: u64,
    ranges: u64,
    waiting: VecDeque<Request>,
}

/// What is held in a subtable.
#[derive(Debug, Default)]
struct Held {
    keys: Keys,
    ranges: Ranges,
}

type Keys = BTreeMap<Arc<[u8]>, Holders>;
type Holders = SmallVec<[Holder; 1]>;

#[derive(Clone, Copy, Debug)]
struct Holder {
    owner: u64,
    mode: Mode,
}

#[derive(Debug)]
struct Request {
    wish: Arc<Wish>,
    cell: Arc<Cell>,
}

impl Shard {
    /// How many key locks are held here; one that two owners share counts twice.
    pub(crate) fn key_locks(&self) -> u64 {
        self.key_locks
    }

    pub(crate) fn ranges(&self) -> u64 {
        self.ranges
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Locks a key in the simple case: nobody waits, and nobody stands against it.
    #[inline]
    pub(crate) fn try_key(&mut self, owner: u64, subtable: SubtableId, key: &Arc<[u8]>, mode: Mode) -> bool {
        if !self.waiting.is_empty() {
            return false;
        }
        let at = self.subtable_or_new(subtable);
        let here = &mut self.subtables[at].1;
        // Then there is something in the subtable, and it may stay.
        if here.ranges.is_against(owner, key, mode) {
            return false;
        }
        match here.keys.entry(key.clone()) {
            Entry::Vacant(vacant) => {
                vacant.insert(smallvec![Holder { owner, mode }]);
                self.key_locks += 1;
            }
            Entry::Occupied(mut occupied) => {
                let holders = occupied.get_mut();
                if holders.iter().any(|holder| holder.stands_against(owner, mode)) {
                    return false;
                }
                self.key_locks += u64::from(holders.admit(owner, mode));
            }
        }
        true
    }

    /// Enters what nothing stands against.
    pub(crate) fn enter(&mut self, wish: &Arc<Wish>) {
        let at = self.subtable_or_new(wish.subtable);
        let here = &mut self.subtables[at].1;
        if wish.is_key() {
            let holders = here.keys.entry(wish.start.clone()).or_default();
            self.key_locks += u64::from(holders.admit(wish.owner, wish.mode));
        } else {
            here.ranges.insert(wish.clone());
            self.ranges += 1;
        }
    }

    /// Takes an owner's lock off a key.
    pub(crate) fn remove_key(&mut self, owner: u64, subtable: SubtableId, key: &[u8]) {
        let Ok(at) = self.subtable(subtable) else { return };
        let keys = &mut self.subtables[at].1.keys;
        let Some(holders) = keys.get_mut(key) else { return };
        let before = holders.len();
        holders.retain(|holder| holder.owner != owner);
        self.key_locks -= (before - holders.len()) as u64;
        if holders.is_empty() {
            keys.remove(key);
        }
        self.drop_if_empty(at);
    }

    /// Makes an owner's exclusive lock on a key a shared one.
    pub(crate) fn downgrade_key(&mut self, owner: u64, subtable: SubtableId, key: &[u8]) {
        let Ok(at) = self.subtable(subtable) else { return };
        let holders = self.subtables[at].1.keys.get_mut(key).into_iter().flatten();
        holders.filter(|holder| holder.owner == owner).for_each(|holder| holder.mode = Mode::Shared);
    }

    pub(crate) fn remove_range(&mut self, range: &Wish) {
        let Ok(at) = self.subtable(range.subtable) else { return };
        self.ranges -= u64::from(self.subtables[at].1.ranges.remove(range));
        self.drop_if_empty(at);
    }

    /// Puts a range of an owner in the place of others of it, of the same mode and subtable: at least one.
    pub(crate) fn replace_ranges(&mut self, parts: &[Arc<Wish>], whole: &Arc<Wish>) {
        let Ok(at) = self.subtable(whole.subtable) else { return };
        let ranges = &mut self.subtables[at].1.ranges;
        let mut parts = parts.iter();
        if parts.next().is_some_and(|first| ranges.replace(first, whole)) {
            self.ranges -= parts.map(|part| u64::from(ranges.remove(part))).sum::<u64>();
        }
    }

    /// Who stands against a request that comes now. Nobody: it may be entered.
    pub(crate) fn blockers(&self, wish: &Wish) -> Owners {
        let held = self.held_against(wish);
        if self.waiting.is_empty() {
            return held;
        }
        let against: Vec<Owners> = self.waiting.iter().map(|other| self.held_against(&other.wish)).collect();
        self.blockers_behind(wish, held, &against)
    }

    /// Puts a request behind the others.
    pub(crate) fn push(&mut self, wish: &Arc<Wish>, cell: &Arc<Cell>) {
        self.waiting.push_back(Request { wish: wish.clone(), cell: cell.clone() });
    }

    /// Takes a request away that is not to be granted any more.
    pub(crate) fn withdraw(&mut self, cell: &Arc<Cell>) {
        self.waiting.retain(|request| !Arc::ptr_eq(&request.cell, cell));
    }

    /// Grants what can be granted, in order, and draws anew for whom the others wait.
    #[inline]
    pub(crate) fn settle(&mut self, graph: &Mutex<Graph>) {
        if !self.waiting.is_empty() {
            self.settle_those_who_wait(&mut lock(graph));
        }
    }

    #[cold]
    fn settle_those_who_wait(&mut self, graph: &mut Graph) {
        let mut against: Vec<Owners> =
            self.waiting.iter().map(|request| self.held_against(&request.wish)).collect();
        // One pass is enough: what is granted stands in the way of others, and never makes way for one in front.
        let mut at = 0;
        while at < self.waiting.len() {
            let request = &self.waiting[at];
            let blockers = self.blockers_behind(&request.wish, against[at].clone(), &against[..at]);
            if !blockers.is_empty() || !graph.grant(request.wish.owner, &request.cell) {
                at += 1;
                continue;
            }
            let wish = request.wish.clone();
            self.enter(&wish);
            self.waiting.remove(at);
            against.remove(at);
            for (request, against) in self.waiting.iter().zip(&mut against) {
                if request.wish.conflicts_with(&wish) {
                    add(against, wish.owner);
                }
            }
        }
        let mut due = Owners::new();
        for (at, request) in self.waiting.iter().enumerate() {
            let blockers = self.blockers_behind(&request.wish, against[at].clone(), &against[..at]);
            if graph.redraw(request.wish.owner, blockers) {
                due.push(request.wish.owner);
            }
        }
        due.into_iter().for_each(|owner| graph.resolve(owner));
    }

    /// For a model of what goes wrong then: grants the first request, and tells nobody.
    #[cfg(all(test, loom))]
    pub(crate) fn settle_silently(&mut self) {
        if let Some(request) = self.waiting.pop_front() {
            self.enter(&request.wish);
        }
    }

    /// Whose locks conflict with a wish.
    fn held_against(&self, wish: &Wish) -> Owners {
        let mut owners = Owners::new();
        if let Ok(at) = self.subtable(wish.subtable) {
            let Held { keys, ranges } = &self.subtables[at].1;
            let mut look = |holders: &Holders| {
                let against = holders.iter().filter(|holder| holder.stands_against(wish.owner, wish.mode));
                against.for_each(|holder| add(&mut owners, holder.owner));
            };
            let end = match &wish.reach {
                Reach::Key => Bound::Included(&*wish.start),
                Reach::Before(end) => Bound::Excluded(&**end),
                Reach::End => Bound::Unbounded,
            };
            if wish.is_key() {
                keys.get(&*wish.start).into_iter().for_each(look);
            } else {
                keys.range::<[u8], _>((Bound::Included(&*wish.start), end)).for_each(|(_, h)| look(h));
            }
            ranges.against(wish, |owner| add(&mut owners, owner));
        }
        owners
    }

    /// Who stands against `wish`, if `held` do by what they hold, and it waits behind as many as `against` tells of: against whom
    /// of those who hold something each of them stands.
    fn blockers_behind(&self, wish: &Wish, held: Owners, against: &[Owners]) -> Owners {
        let in_front = || self.waiting.iter().take(against.len()).map(|request| &*request.wish).enumerate();
        // Those in front who wait for this very owner, or for one of them.
        let mut after_us: SmallVec<[&Wish; 4]> = SmallVec::new();
        let mut skipped: SmallVec<[usize; 4]> = SmallVec::new();
        for (at, other) in in_front() {
            if against[at].contains(&wish.owner) || after_us.iter().any(|after| after.conflicts_with(other)) {
                after_us.push(other);
                skipped.push(at);
            }
        }
        let mut blockers = held;
        for (at, other) in in_front().rev() {
            if !other.conflicts_with(wish) || skipped.contains(&at) {
                continue;
            }
            add(&mut blockers, other.owner);
            // Whatever is in front of that one stands against it too: where many wait for one key, edges stay few.
            if other.mode == Mode::Exclusive && other.is_of_the_same(wish) {
                break;
            }
        }
        blockers
    }

    fn subtable(&self, subtable: SubtableId) -> Result<usize, usize> {
        self.subtables.binary_search_by_key(&subtable, |(id, _)| *id)
    }

    fn subtable_or_new(&mut self, subtable: SubtableId) -> usize {
        self.subtable(subtable).unwrap_or_else(|at| {
            self.subtables.insert(at, (subtable, Held::default()));
            at
        })
    }

    fn drop_if_empty(&mut self, at: usize) {
        let here = &self.subtables[at].1;
        if here.keys.is_empty() && here.ranges.is_empty() {
            self.subtables.remove(at);
        }
    }
}

impl Holder {
    #[inline]
    fn stands_against(&self, owner: u64, mode: Mode) -> bool {
        self.owner != owner && self.mode.conflicts_with(mode)
    }
}

trait Admit {
    /// Lets an owner in, or raises its mode. Whether it is new.
    fn admit(&mut self, owner: u64, mode: Mode) -> bool;
}

impl Admit for Holders {
    fn admit(&mut self, owner: u64, mode: Mode) -> bool {
        match self.iter_mut().find(|holder| holder.owner == owner) {
            Some(holder) if mode.includes(holder.mode) => {
                holder.mode = mode;
                false
            }
            Some(_) => false,
            None => {
                self.push(Holder { owner, mode });
                true
            }
        }
    }
}

fn add(owners: &mut Owners, owner: u64) {
    if !owners.contains(&owner) {
        owners.push(owner);
    }
}
