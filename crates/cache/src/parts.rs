//! The parts of a cache: which there are, and how the room is shared between them.
//!
//! ```text
//! common part  shards  share      always there, inline: a search in it costs no load more than without parts
//! part 1       shards  share      open, closed, or not made yet; made once, kept until the cache goes
//! ...
//! ```
//!
//! A part has its own shards (locks, queues, ghosts, tables) and its own sums, so threads that keep to different parts write no line in
//! common where they find what they look for. The budget is one for all, and so are the accounts, the memory of frames and what waits to be
//! freed: a frame that is made or freed takes a lock of its size ([`crate::slab`]) and changes their sums.
//!
//! # Shares
//! Shares add up to the whole room. When something has to leave, it is of the part that made it necessary, if that holds more than its
//! share, and else of the one that holds most beyond its own. One of the two is there whenever the cache is over its goal, so what a part
//! does not use serves others, and who stays within its share loses nothing to a scan elsewhere.
//!
//! Shares follow need. What comes back soon after it left, of either queue, would not have had to be loaded in a part that was a little
//! larger; what comes back late says little, since only a much larger part would have kept it. When a [`step`] of such bytes has come back
//! to a part, it gets a step of the share of whoever leaves most of his unused; or else, of the one to which least came back for what it
//! has, if that is less than half as much. Each keeps a quarter of an equal share. Nothing here looks at a clock: so much has to be missed
//! before so much moves.
//!
//! # Concurrency
//! Parts are made and never freed while the cache lives, so whoever holds a key of a closed part may look in it, and a load that began in
//! it may end there. `open` is a hint for those who choose a part; what decides is said under each shard's lock: a frame enters no shard
//! that was shut, so a part is empty once it is closed. Whoever opens, closes, or changes shares holds `changing`.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

use terrane_base::sync::atomic::{AtomicBool, Ordering};
use terrane_base::sync::{Mutex, MutexGuard};

use crate::accounts::Accounts;
use crate::shard::Shard;
use crate::share::{Share, WHOLE};

/// Most parts beside the common one. (The stacks of models are small.)
const MAX_PARTS: usize = if cfg!(loom) { 2 } else { 256 };
/// Shards of a part that is not the common one, at most: few threads meet in it.
const SHARDS: usize = 4;
/// Steps to an equal share.
const STEPS: usize = 16;
/// Steps of its share that a part keeps: a quarter.
const KEPT: usize = STEPS / 4;

pub(crate) struct Part {
    pub(crate) shards: Box<[Shard]>,
    pub(crate) share: Arc<Share>,
    open: AtomicBool,
}

pub(crate) struct Parts {
    pub(crate) common: Part,
    others: [OnceLock<Box<Part>>; MAX_PARTS],
    /// How many of the others are open.
    open: AtomicUsize,
    changing: Mutex<()>,
}

impl Part {
    fn new(shards: usize, accounts: &Arc<Accounts>, points: usize) -> Part {
        let share = Arc::new(Share::new(accounts.clone(), points));
        let shards = (0..shards).map(|_| Shard::new(1, share.clone())).collect();
        Part { shards, share, open: AtomicBool::new(points > 0) }
    }

    /// The shard of a hash.
    #[inline]
    pub(crate) fn shard(&self, hash: u64) -> &Shard {
        &self.shards[(hash >> 48) as usize & (self.shards.len() - 1)]
    }
}

/// Points that move at once where so many parts are open.
fn step(parts: usize) -> usize {
    WHOLE / (parts * STEPS)
}

impl Parts {
    pub(crate) fn new(shards: usize, accounts: &Arc<Accounts>) -> Parts {
        Parts {
            common: Part::new(shards, accounts, WHOLE),
            others: [const { OnceLock::new() }; MAX_PARTS],
            open: AtomicUsize::new(0),
            changing: Mutex::new(()),
        }
    }

    /// Part `number`, or the common one if that is not open.
    #[inline]
    pub(crate) fn get(&self, number: u16) -> &Part {
        if number == 0 {
            return &self.common;
        }
        self.made(number).filter(|part| part.open.load(Ordering::Acquire)).unwrap_or(&self.common)
    }

    /// Part `number`, open or not, if it ever was.
    #[inline]
    pub(crate) fn made(&self, number: u16) -> Option<&Part> {
        match usize::from(number) {
            0 => Some(&self.common),
            n => self.others.get(n - 1)?.get().map(|part| &**part),
        }
    }

    /// All that were ever made.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Part> {
        // The first free one is opened, so they are made in order.
        std::iter::once(&self.common).chain(self.others.iter().map_while(|p| Some(&**p.get()?)))
    }

    /// Whether there is none but the common one.
    #[inline]
    pub(crate) fn is_whole(&self) -> bool {
        self.open.load(Ordering::Relaxed) == 0
    }

    fn all_open(&self) -> impl Iterator<Item = &Part> {
        self.all().filter(|part| part.open.load(Ordering::Relaxed))
    }

    fn change(&self) -> MutexGuard<'_, ()> {
        match self.changing.lock() {
            Ok(changing) => changing,
            // Each change leaves shares that serve, if not the best ones.
            Err(poison) => poison.into_inner(),
        }
    }

    /// Opens a part with an equal share, for which the others give in proportion; its number. `None` if all are open.
    pub(crate) fn open(&self) -> Option<u16> {
        let _changing = self.change();
        let is_free =
            |slot: &OnceLock<Box<Part>>| slot.get().is_none_or(|part| !part.open.load(Ordering::Relaxed));
        let at = self.others.iter().position(is_free)?;
        let before = self.open.load(Ordering::Relaxed) + 1;
        let part = self.others[at].get_or_init(|| {
            // Of about the size of the common ones, so that their queues mean something.
            let shards = 1 << (self.common.shards.len() / (before + 1)).clamp(1, SHARDS).ilog2();
            Box::new(Part::new(shards, &self.common.share.accounts, 0))
        });
        let mut left = WHOLE;
        for other in self.all_open() {
            let points = other.share.points() * before / (before + 1);
            other.share.set_points(points);
            left -= points;
        }
        part.share.set_points(left);
        part.share.forget();
        part.shards.iter().for_each(Shard::reopen);
        part.open.store(true, Ordering::Release);
        self.open.store(before, Ordering::Relaxed);
        u16::try_from(at + 1).ok()
    }

    /// Closes a part, and calls `empty` with it; its share goes to the others in proportion.
    pub(crate) fn close(&self, number: u16, empty: impl FnOnce(&Part)) {
        let _changing = self.change();
        let Some(part) = self.made(number).filter(|p| number != 0 && p.open.load(Ordering::Relaxed)) else {
            return;
        };
        part.open.store(false, Ordering::Release);
        self.open.store(self.open.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        let rest = WHOLE - part.share.points();
        part.share.set_points(0);
        let mut left = WHOLE;
        for other in self.all_open() {
            let points = (other.share.points() as u128 * WHOLE as u128 / rest.max(1) as u128) as usize;
            other.share.set_points(points);
            left -= points;
        }
        let common = &self.common.share;
        common.set_points(common.points() + left);
        empty(part);
    }

    /// The part that holds most beyond its share.
    pub(crate) fn fullest(&self) -> Option<&Part> {
        self.all().max_by_key(|part| part.share.excess())
    }

    /// Something has come back to `taker`: it gets a step of another's share, if it is time.
    pub(crate) fn returned_to(&self, taker: &Part) {
        let step = step(self.open.load(Ordering::Relaxed) + 1);
        if self.is_whole() || taker.share.missed() < taker.share.accounts.worth(step).max(1) {
            return;
        }
        // Whoever changes them now has a reason of his own; the next one that comes back looks again.
        let Ok(_changing) = self.changing.try_lock() else { return };
        // It may have been closed meanwhile.
        if !taker.open.load(Ordering::Relaxed) {
            return;
        }
        self.shift(&taker.share, step);
        self.all().for_each(|part| part.share.forget());
    }

    fn shift(&self, taker: &Share, step: usize) {
        let others = || {
            let shares = self.all_open().map(|part| &*part.share);
            shares.filter(|s| !std::ptr::eq(*s, taker) && s.points() >= (KEPT + 1) * step)
        };
        let unused = |s: &Share| s.bytes().saturating_sub(s.resident());
        // What came back to the one for each of its points, times the points of both.
        let missed = |one: &Share, other: &Share| one.missed() as u128 * other.points() as u128;
        let free = others().max_by_key(|s| unused(s)).filter(|s| unused(s) >= taker.accounts.worth(step));
        let giver = free.or_else(|| {
            let least = others().min_by(|a, b| missed(a, b).cmp(&missed(b, a)))?;
            (missed(least, taker) * 2 <= missed(taker, least)).then_some(least)
        });
        if let Some(giver) = giver {
            giver.set_points(giver.points() - step);
            taker.set_points(taker.points() + step);
        }
    }
}
