//! Why the background work of one subtable stands still, if it does.
//!
//! Trouble belongs to the subtable that has it: it refuses that subtable's writers and nobody else's, and ends with that
//! subtable. There are three causes:
//! * *A flush failed.* The memtable stays where it is until a flush succeeds.
//! * *A compaction failed for want of something* (space, say). None is tried until something changed or somebody asks.
//! * *A piece is damaged.* What it covers is *barred*: no other compaction picks it, and all others go on. It is tried
//!   again when somebody needs it, but not more often than [`PATIENCE`] allows: what is damaged seldom mends itself, and
//!   each attempt reads a whole piece.
//!
//! # Concurrency
//! One mutex, taken by background jobs when they end; by writers, and by jobs that look for work, only while `any` says that there is
//! something to look at. Order: before `busy`.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use terrane_base::{Error, ErrorKind};

use crate::compact::busy::{BusyRanges, KeyRange};
use crate::compact::pick::Pick;

/// Time between two attempts to merge a damaged piece for writers that need it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// A piece that could not be merged.
#[derive(Clone, Debug)]
struct Damage {
    from: u8,
    to: u8,
    range: KeyRange,
    error: Error,
    /// Its ticket among the busy ranges; none while it may be tried again.
    barred: Option<u64>,
}

impl Damage {
    /// Whether it is in L0 or L1, wherever it was to go. (What is hot goes up.)
    fn is_high(&self) -> bool {
        self.from.min(self.to) <= 1
    }

    /// Whether `pick` is of a level, and of keys, that it is of.
    fn meets(&self, pick: &Pick) -> bool {
        let levels = |a: u8, b: u8| (a.min(b), a.max(b));
        let ((top, bottom), (pick_top, pick_bottom)) =
            (levels(self.from, self.to), levels(pick.from, pick.to));
        top <= pick_bottom
            && pick_top <= bottom
            && self.range.overlaps(&pick.range.lo, pick.range.hi.as_deref())
    }
}

#[derive(Debug, Default)]
struct Causes {
    flush: Option<Error>,
    compaction: Option<Error>,
    damage: Vec<Damage>,
    /// When damage was last met or tried again.
    met: Duration,
}

impl Causes {
    /// The outcome for `pick` is known: of damage that is tried again it leaves what lies beside it.
    fn was_tried(&mut self, pick: &Pick) {
        let tried: Vec<_> = self.damage.extract_if(.., |d| d.barred.is_none() && d.meets(pick)).collect();
        for d in tried {
            self.damage.extend(d.range.outside(&pick.range).map(|range| Damage { range, ..d.clone() }));
        }
    }

    /// The damage that keeps L0 from being emptied, among that which `counts`. What goes down from L0 ends in L1, so
    /// either level's will do.
    fn of_l0(
        &self,
        stuck: impl FnOnce(&[&KeyRange]) -> bool,
        counts: impl Fn(&Damage) -> bool,
    ) -> Option<&Error> {
        let damage: Vec<&Damage> = self.damage.iter().filter(|d| d.is_high() && counts(d)).collect();
        let ranges: Vec<&KeyRange> = damage.iter().map(|d| &d.range).collect();
        (!ranges.is_empty() && stuck(&ranges)).then(|| &damage[0].error)
    }
}

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Trouble {
    causes: Mutex<Causes>,
    any: AtomicBool,
    /// Flushes and compactions that ended, well or badly: how a writer sees that an attempt was made.
    attempts: AtomicU64,
}

/// Whether trying the same piece again is likely to fail in the same way.
fn is_lasting(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Corruption | ErrorKind::NewerFormat | ErrorKind::Io | ErrorKind::NotFound)
}

impl Trouble {
    /// Whether there is any; what every commit looks at.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Jobs of the subtable that ended so far.
    pub(crate) fn attempts(&self) -> u64 {
        self.attempts.load(Ordering::Acquire)
    }

    fn change<R>(&self, f: impl FnOnce(&mut Causes) -> R) -> R {
        let mut c = self.causes.lock();
        let out = f(&mut c);
        let any = c.flush.is_some() || c.compaction.is_some() || !c.damage.is_empty();
        self.any.store(any, Ordering::Release);
        out
    }

    fn attempted(&self) {
        self.attempts.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes how a flush ended. One that succeeded is a change: compactions that want for something are tried again.
    pub(crate) fn flushed(&self, failed: Option<&Error>) {
        if failed.is_some() || self.any() {
            self.change(|c| {
                c.flush = failed.cloned();
                if failed.is_none() {
                    c.compaction = None;
                }
            });
        }
        self.attempted();
    }

    /// Notes how a compaction ended, and ends its mark among the busy ranges, unless the piece is damaged: then the mark
    /// stays and bars it.
    pub(crate) fn compacted(
        &self,
        pick: &Pick,
        ticket: u64,
        failed: Option<&Error>,
        busy: &Mutex<BusyRanges>,
        now: Duration,
    ) {
        let lasting = failed.filter(|e| is_lasting(e));
        match lasting {
            Some(_) => busy.lock().bar(ticket),
            None => busy.lock().leave(ticket),
        }
        if failed.is_some() || self.any() {
            self.change(|c| {
                c.was_tried(pick);
                match (lasting, failed) {
                    (Some(e), _) => {
                        let range = pick.range.clone();
                        let (error, barred) = (e.clone(), Some(ticket));
                        c.damage.push(Damage { from: pick.from, to: pick.to, range, error, barred });
                        c.met = now;
                    }
                    (None, e) => c.compaction = e.cloned(),
                }
            });
        }
        self.attempted();
    }

    /// Whether compactions wait for a change.
    pub(crate) fn pauses_compactions(&self) -> bool {
        self.any() && self.causes.lock().compaction.is_some()
    }

    /// Whether anything is known to keep memtable and L0 from going down to L1.
    pub(crate) fn hinders_l0(&self) -> bool {
        self.any() && {
            let c = self.causes.lock();
            let barred = |d: &Damage| d.barred.is_some();
            c.flush.is_some() || c.compaction.is_some() || c.of_l0(|_| true, barred).is_some()
        }
    }

    /// Whether damage keeps L0 from being emptied: `stuck` says so of ranges in which L0 cannot go down.
    pub(crate) fn bars_l0(&self, stuck: impl FnOnce(&[&KeyRange]) -> bool) -> bool {
        self.any() && self.causes.lock().of_l0(stuck, |_| true).is_some()
    }

    /// Why nothing can be written out: the last flush failed, damage keeps L0 from being emptied, or L0 is full (`full`) and
    /// compactions wait for a change.
    pub(crate) fn standstill(&self, full: bool, stuck: impl FnOnce(&[&KeyRange]) -> bool) -> Option<Error> {
        self.standstill_of(full, stuck, |_| true)
    }

    /// As [`Trouble::standstill`], leaving out damage that is being tried again.
    pub(crate) fn lasting_standstill(
        &self,
        full: bool,
        stuck: impl FnOnce(&[&KeyRange]) -> bool,
    ) -> Option<Error> {
        self.standstill_of(full, stuck, |d| d.barred.is_some())
    }

    fn standstill_of(
        &self,
        full: bool,
        stuck: impl FnOnce(&[&KeyRange]) -> bool,
        counts: impl Fn(&Damage) -> bool,
    ) -> Option<Error> {
        if !self.any() {
            return None;
        }
        let c = self.causes.lock();
        let compaction = || c.of_l0(stuck, counts).or(c.compaction.as_ref().filter(|_| full));
        c.flush.as_ref().or_else(compaction).cloned()
    }

    /// As [`Trouble::lasting_standstill`], where damage counts only if L0 is `full` as well.
    pub(crate) fn given_up(&self, full: bool, stuck: impl FnOnce(&[&KeyRange]) -> bool) -> Option<Error> {
        self.lasting_standstill(full, |ranges| full && stuck(ranges))
    }

    /// The first of all there is, for the eyes of people.
    pub(crate) fn first(&self) -> Option<Error> {
        if !self.any() {
            return None;
        }
        let c = self.causes.lock();
        let damage = c.damage.first().map(|d| &d.error);
        c.flush.as_ref().or(damage).or(c.compaction.as_ref()).cloned()
    }

    /// Lets everything be tried again; what is damaged only if the last attempt is long enough ago, or `at_once`. Says
    /// whether anything is to be tried.
    pub(crate) fn lift(&self, busy: &Mutex<BusyRanges>, now: Duration, at_once: bool) -> bool {
        if !self.any() {
            return false;
        }
        self.change(|c| {
            let (flush, compaction) = (c.flush.take(), c.compaction.take());
            let mut lifted = flush.is_some() || compaction.is_some();
            if at_once || now.saturating_sub(c.met) >= PATIENCE {
                let mut busy = busy.lock();
                for ticket in c.damage.iter_mut().filter_map(|d| d.barred.take()) {
                    busy.leave(ticket);
                    lifted = true;
                }
                c.met = now;
            }
            lifted
        })
    }

    /// Forgets damage that may be tried again and that nothing tries: nothing needs it to be merged.
    pub(crate) fn forget_untried(&self) {
        self.change(|c| c.damage.retain(|d| d.barred.is_some()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compact::claim::Claim;
    use crate::compact::pick::Reason;
    use crate::levels::{Reclaimer, Version};

    fn pick(from: u8, lo: &str, hi: &str) -> Pick {
        let range = KeyRange { lo: lo.into(), hi: Some(hi.into()) };
        Pick { from, to: from + 1, range, reason: Reason::L0, urgency: 1.0 }
    }

    fn upwards(from: u8, lo: &str, hi: &str) -> Pick {
        Pick { to: from - 1, ..pick(from, lo, hi) }
    }

    fn claim(p: &Pick) -> Claim {
        Claim::of_merge(
            &Version::empty(Reclaimer::new(|| {})),
            p.from,
            p.to,
            &p.range.lo,
            p.range.hi.as_deref(),
        )
    }

    /// A compaction of `p` that ends like this at second `at`.
    fn compact(t: &Trouble, busy: &Mutex<BusyRanges>, p: &Pick, failed: Option<&Error>, at: u64) {
        let ticket = busy.lock().enter(claim(p));
        t.compacted(p, ticket, failed, busy, Duration::from_secs(at));
    }

    #[test]
    fn damage_bars_its_piece_until_it_was_merged_and_is_tried_with_patience() {
        let (t, busy) = (Trouble::default(), Mutex::new(BusyRanges::default()));
        let damaged = Error::corruption("a block");
        let piece = pick(0, "c", "f");
        compact(&t, &busy, &piece, Some(&damaged), 10);
        assert!(t.bars_l0(|_| true) && t.hinders_l0() && !t.pauses_compactions());
        assert!(busy.lock().is_busy(0, b"d", None) && !busy.lock().level_is_busy(0));
        assert!(t.standstill(false, |_| false).is_none() && t.standstill(true, |_| true).is_some());
        // Others go on, and their success changes nothing here.
        compact(&t, &busy, &pick(0, "a", "c"), None, 10);
        assert!(t.bars_l0(|_| true) && busy.lock().is_busy(0, b"d", None));
        assert!(!t.lift(&busy, Duration::from_millis(10_999), false), "too early");
        assert!(t.lift(&busy, Duration::from_secs(11), false));
        assert!(!busy.lock().is_busy(0, b"d", None));
        assert!(
            t.standstill(true, |_| true).is_some() && t.given_up(true, |_| true).is_none(),
            "writers wait for the outcome"
        );
        compact(&t, &busy, &piece, Some(&damaged), 11);
        assert!(t.given_up(true, |_| true).is_some());
        assert!(t.lift(&busy, Duration::from_secs(11), true));
        // A piece of L1 on its way down bars L0 above it as well.
        compact(&t, &busy, &pick(1, "d", "e"), Some(&damaged), 11);
        assert!(t.bars_l0(|ranges| ranges.iter().map(|r| &r.lo[..]).eq([b"c", b"e", b"d"])));
        assert!(t.lift(&busy, Duration::from_secs(11), true));
        compact(&t, &busy, &piece, None, 11);
        assert!(!t.any() && !t.bars_l0(|_| true) && !busy.lock().is_busy(0, b"d", None));
        // What is further down is no matter of L0.
        compact(&t, &busy, &pick(2, "d", "e"), Some(&damaged), 12);
        assert!(t.any() && !t.bars_l0(|_| true) && !t.hinders_l0());
        // Unless it was to come up.
        let up = upwards(2, "g", "h");
        compact(&t, &busy, &up, Some(&damaged), 12);
        assert!(t.bars_l0(|ranges| ranges[0].lo == b"g") && t.hinders_l0());
        assert!(t.lift(&busy, Duration::from_secs(12), true));
        assert!(t.bars_l0(|_| true) && !t.hinders_l0(), "it is worth a try");
        compact(&t, &busy, &up, None, 12);
        assert!(t.any() && !t.bars_l0(|_| true));
        compact(&t, &busy, &pick(2, "d", "e"), None, 12);
        assert!(!t.any());
    }

    #[test]
    fn a_smaller_piece_that_is_merged_leaves_the_damage_beside_it() {
        let (t, busy) = (Trouble::default(), Mutex::new(BusyRanges::default()));
        let damaged = Error::corruption("a block");
        let ranges = |t: &Trouble| {
            let mut out = Vec::new();
            t.bars_l0(|ranges| {
                let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
                let end = |r: &KeyRange| r.hi.as_deref().map_or_else(String::new, text);
                out.extend(ranges.iter().map(|r| format!("{}-{}", text(&r.lo), end(r))));
                true
            });
            out.sort();
            out.join(" ")
        };
        compact(&t, &busy, &pick(0, "c", "m"), Some(&damaged), 10);
        assert!(t.lift(&busy, Duration::from_secs(10), true));
        for (piece, left) in [
            (("m", "p"), "c-m"),
            (("a", "c"), "c-m"),
            (("e", "g"), "c-e g-m"),
            (("a", "d"), "d-e g-m"),
            (("k", "z"), "d-e g-k"),
        ] {
            compact(&t, &busy, &pick(0, piece.0, piece.1), None, 10);
            assert_eq!(ranges(&t), left, "after {piece:?}");
        }
        compact(&t, &busy, &pick(0, "h", "i"), Some(&damaged), 11);
        assert_eq!(ranges(&t), "d-e g-h h-i i-k");
        assert!(busy.lock().is_busy(0, b"h", None) && !busy.lock().is_busy(0, b"j", None));
        compact(&t, &busy, &pick(0, "a", "h"), None, 11);
        compact(&t, &busy, &pick(0, "i", "z"), None, 11);
        assert_eq!(ranges(&t), "h-i", "barred: nobody has tried it");
        let tail = Pick { range: KeyRange { lo: "x".into(), hi: None }, ..pick(0, "x", "x") };
        compact(&t, &busy, &tail, Some(&damaged), 11);
        assert!(t.lift(&busy, Duration::from_secs(11), true));
        compact(&t, &busy, &pick(0, "a", "y"), None, 11);
        assert_eq!(ranges(&t), "y-");
    }

    #[test]
    fn want_of_space_pauses_all_and_any_success_ends_it() {
        let (t, busy) = (Trouble::default(), Mutex::new(BusyRanges::default()));
        let full = Error::new(ErrorKind::OutOfSpace, "full");
        compact(&t, &busy, &pick(1, "a", "b"), Some(&full), 0);
        assert!(t.pauses_compactions() && t.hinders_l0() && !busy.lock().is_busy(1, b"a", None));
        t.flushed(None);
        assert!(!t.any() && !t.hinders_l0());
        t.flushed(Some(&full));
        assert!(t.hinders_l0());
        assert_eq!(t.standstill(false, |_| false).map(|e| e.kind()), Some(ErrorKind::OutOfSpace));
        assert!(t.lift(&busy, Duration::ZERO, false) && !t.any());
        assert!(!t.lift(&busy, Duration::ZERO, false));
    }
}
