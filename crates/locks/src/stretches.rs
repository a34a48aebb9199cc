//! The ranges that one owner holds.
//!
//! Each has a serial number, in the order in which they were taken. Zero have those that took the place of other locks: they stay until
//! the end, and reach farther than what was asked for. All others are *asked for*, and go when the owner goes back to a mark before
//! them.
//!
//! # Joining
//! A scan takes one window after the other, and may take millions. So ranges of one mode and subtable that touch or overlap become one,
//! which covers neither more nor less. Two may join if no way back parts them: if both stay until the end, or if both were asked for
//! since the newest mark that is still good. Then whoever goes back gives up both or neither, and what is left is what was
//! held at the mark. The whole gets a serial number of its own, which lies behind that mark too.
//!
//! Of a range that is asked for, what is held already at its start and at its end is not taken again: windows that overlap do not pile
//! up where marks keep them apart. What it relies on for that is older than itself, and so never given back before it; if that has become
//! part of a younger whole, both lie behind the same mark, and go together. A range that is to stay relies on none but such
//! as stay, in its own mode.
//!
//! A shard puts the whole in the place of the parts while it holds its mutex, so nobody finds a gap. What it asks of others is only what
//! was not held: the parts stand there already. Who has to wait for that waits for that alone, and joins when it has it. If it is
//! refused in a later shard, the parts come back in the place of the whole, and what was new is given back
//! ([`crate::table::LockTable::lock_range`]).

use std::collections::BTreeMap;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;

use terrane_base::SubtableId;

use crate::mode::Mode;
use crate::ranges::Ranges;
use crate::wish::{Reach, Wish};

/// The serial number of those that stay.
pub(crate) const STAYS: u64 = 0;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Stretches {
    /// Those that are asked for, by serial number.
    asked: BTreeMap<u64, Arc<Wish>>,
    subtables: Vec<(SubtableId, Here)>,
}

/// What is held in a subtable.
#[derive(Debug, Default)]
struct Here {
    ranges: Ranges,
    /// By mode: so many there must be before it is tried again to replace them.
    next_try: [usize; 2],
}

impl Stretches {
    pub(crate) fn len(&self) -> usize {
        let modes = [Mode::Shared, Mode::Exclusive];
        self.subtables.iter().flat_map(|(_, here)| modes.map(|mode| here.ranges.of(mode).len())).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Wish>> {
        let modes = [Mode::Shared, Mode::Exclusive];
        self.subtables
            .iter()
            .flat_map(move |(_, here)| modes.map(|mode| here.ranges.of(mode).iter()))
            .flatten()
    }

    /// Whether one covers a key in such a mode.
    #[inline]
    pub(crate) fn covers(&self, subtable: SubtableId, key: &[u8], mode: Mode) -> bool {
        self.here(subtable).is_some_and(|here| here.ranges.covers(key, mode))
    }

    /// Whether one that was asked for covers a key.
    pub(crate) fn cover_as_asked(&self, subtable: SubtableId, key: &[u8]) -> bool {
        let asked = |range: &Arc<Wish>| first_if(range.serial != STAYS, ());
        let mut trees = self.here(subtable).into_iter().flat_map(|here| here.ranges.including(Mode::Shared));
        trees.any(|ranges| ranges.find_at(key, asked).is_some())
    }

    /// Whether one that stays, in this very mode, covers a key.
    pub(crate) fn cover_to_the_end(&self, subtable: SubtableId, key: &[u8], mode: Mode) -> bool {
        let stays = |range: &Arc<Wish>| first_if(range.serial == STAYS, ());
        self.here(subtable).is_some_and(|here| here.ranges.of(mode).find_at(key, stays).is_some())
    }

    /// What of a wish is not yet held, if anything, but for what is held in its middle.
    pub(crate) fn missing(&self, mut wish: Wish) -> Option<Wish> {
        let Some(here) = self.here(wish.subtable) else { return Some(wish) };
        let (mode, stays) = (wish.mode, wish.serial == STAYS);
        let relied = |range: &Arc<Wish>| !stays || range.serial == STAYS && range.mode == mode;
        let find = |start: &dyn Fn(&[u8]) -> bool, reach: &dyn Fn(&Reach) -> bool| {
            let one = |range| first_if(relied(range), range);
            here.ranges.including(mode).find_map(|ranges| ranges.find(start, reach, one))
        };
        let (mut from, mut to) = (wish.start.clone(), wish.reach.clone());
        while let Some(held) = find(&|start| *start <= *from, &|reach| reach.is_past(&from)) {
            match &held.reach {
                Reach::Before(end) if held.reach < to => from = end.clone(),
                _ => return None,
            }
        }
        while let Some(held) = find(&|start| to.is_past(start), &|reach| *reach >= to) {
            to = Reach::Before(held.start.clone());
        }
        (wish.start, wish.reach) = (from, to);
        Some(wish)
    }

    /// Puts one in the place of others of its mode and subtable, if there are any.
    pub(crate) fn replace(&mut self, parts: &[Arc<Wish>], whole: Arc<Wish>) {
        parts.iter().for_each(|part| self.remove(part));
        if whole.serial != STAYS {
            self.asked.insert(whole.serial, whole.clone());
        }
        let at = self.subtables.binary_search_by_key(&whole.subtable, |(id, _)| *id).unwrap_or_else(|at| {
            self.subtables.insert(at, (whole.subtable, Here::default()));
            at
        });
        self.subtables[at].1.ranges.insert(whole);
    }

    fn remove(&mut self, range: &Wish) {
        self.asked.remove(&range.serial);
        if let Some(here) = self.here_mut(range.subtable) {
            here.ranges.remove(range);
        }
    }

    /// Takes out the newest, if it was asked for at `serial` or later.
    pub(crate) fn pop(&mut self, serial: u64) -> Option<Arc<Wish>> {
        let (_, range) = self.asked.last_key_value().filter(|(at, _)| **at >= serial)?;
        let range = range.clone();
        self.remove(&range);
        Some(range)
    }

    /// Takes out all.
    pub(crate) fn drain(&mut self) -> Vec<Arc<Wish>> {
        self.asked.clear();
        let all = self.iter().cloned().collect();
        self.subtables.clear();
        all
    }

    /// Those that were asked for at `serial` or later.
    pub(crate) fn since(&self, serial: u64) -> Vec<Arc<Wish>> {
        self.asked.range(serial..).map(|(_, range)| range.clone()).collect()
    }

    /// Those in its mode that touch a range, and may join it if the newest good mark is at `mark`. In order.
    pub(crate) fn touching(&self, range: &Wish, mark: u64) -> Vec<Arc<Wish>> {
        let is_since = |serial| serial >= mark.max(STAYS + 1);
        let may_join = |serial| if range.serial == STAYS { serial == STAYS } else { is_since(serial) };
        let mut parts = Vec::new();
        if let Some(here) = self.here(range.subtable).filter(|_| may_join(range.serial)) {
            here.ranges.of(range.mode).find(
                |start| range.reach.is_up_to(start),
                |reach| reach.is_up_to(&range.start),
                |part| {
                    parts.extend(Some(part).filter(|part| may_join(part.serial)).cloned());
                    Continue::<()>(())
                },
            );
        }
        parts
    }

    /// Whether those in a mode have become so many that they are to be replaced.
    pub(crate) fn are_too_many(&self, subtable: SubtableId, mode: Mode, limit: usize) -> bool {
        self.here(subtable)
            .is_some_and(|here| here.ranges.of(mode).len() >= here.next_try[mode as usize].max(limit))
    }

    /// At most `count` ranges that stay and cover those of a mode, about as many each.
    pub(crate) fn pieces(&self, subtable: SubtableId, mode: Mode, count: usize) -> Vec<Wish> {
        let Some(here) = self.here(subtable) else { return Vec::new() };
        let held: Vec<Arc<Wish>> = here.ranges.of(mode).iter().cloned().collect();
        let pieces = held.chunks(held.len().div_ceil(count).max(1));
        pieces.filter_map(|piece| Some(piece.first()?.and(piece, STAYS))).collect()
    }

    /// Takes out what was asked for and lies within one that stays.
    pub(crate) fn supersede(&mut self, subtable: SubtableId, mode: Mode) -> Vec<Arc<Wish>> {
        let Some(here) = self.here(subtable) else { return Vec::new() };
        let ranges = here.ranges.of(mode);
        let is_within = |range: &&Arc<Wish>| {
            let stays = |whole: &Arc<Wish>| first_if(whole.serial == STAYS, ());
            let within = ranges.find(|start| start <= &*range.start, |reach| *reach >= range.reach, stays);
            range.serial != STAYS && within.is_some()
        };
        let parts: Vec<Arc<Wish>> = ranges.iter().filter(is_within).cloned().collect();
        parts.iter().for_each(|part| self.remove(part));
        if let Some(here) = self.here_mut(subtable) {
            here.next_try[mode as usize] = 2 * here.ranges.of(mode).len();
        }
        parts
    }

    #[inline]
    fn here(&self, subtable: SubtableId) -> Option<&Here> {
        let at = self.subtables.binary_search_by_key(&subtable, |(id, _)| *id).ok()?;
        Some(&self.subtables[at].1)
    }

    fn here_mut(&mut self, subtable: SubtableId) -> Option<&mut Here> {
        let at = self.subtables.binary_search_by_key(&subtable, |(id, _)| *id).ok()?;
        Some(&mut self.subtables[at].1)
    }
}

fn first_if<T>(wanted: bool, found: T) -> ControlFlow<T> {
    if wanted { Break(found) } else { Continue(()) }
}
