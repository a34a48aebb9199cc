//! What is being worked on in a subtable: the claims of compactions and of flushes that go straight to L1. Jobs run at the
//! same time only if no two of them claim a level in overlapping ranges. A range that could not be merged stays marked as
//! *barred*: no job picks it, but it does not keep others from the rest of its levels, nor from trimming what reaches out
//! of it.
//!
//! # Concurrency
//! Kept under one lock, which is held for moments. Whoever claims looks at the version under that lock: whoever left
//! before has installed what it changed, and whoever is in it keeps to its own claim. So what a claim covers stays as it
//! was seen, but for what its own job installs and for L0 runs that come on top, until the claim is given up. (Such a run may reach out of
//! the claim, and a job that is done in parts takes it along: if an extent of it is in the claim of another job, which was there before,
//! whoever installs second finds that out.)

use parking_lot::Mutex;

use crate::compact::claim::Claim;

/// `[lo, hi)`; no `hi` means "to the end".
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) lo: Vec<u8>,
    pub(crate) hi: Option<Vec<u8>>,
}

impl KeyRange {
    pub(crate) fn overlaps(&self, lo: &[u8], hi: Option<&[u8]>) -> bool {
        let below = |a: &[u8], b: Option<&[u8]>| b.is_none_or(|b| a < b);
        below(&self.lo, hi) && below(lo, self.hi.as_deref())
    }

    /// What of it lies below `other`, and what above.
    pub(crate) fn outside(&self, other: &KeyRange) -> impl Iterator<Item = KeyRange> + use<> {
        let ends_after = |key: &Vec<u8>| self.hi.as_ref().is_none_or(|hi| key < hi);
        let below = (self.lo < other.lo).then(|| {
            let hi = if ends_after(&other.lo) { Some(&other.lo) } else { self.hi.as_ref() };
            KeyRange { lo: self.lo.clone(), hi: hi.cloned() }
        });
        let end = other.hi.as_ref().filter(|end| ends_after(end));
        let above = end.map(|end| KeyRange { lo: end.max(&self.lo).clone(), hi: self.hi.clone() });
        below.into_iter().chain(above)
    }
}

#[derive(Debug)]
struct Busy {
    id: u64,
    claim: Claim,
    barred: bool,
}

impl Busy {
    /// What is out of bounds for others. Where nobody works, only what was to be merged.
    fn ranges(&self) -> &[(u8, KeyRange)] {
        if self.barred { self.claim.merged() } else { self.claim.touched() }
    }

    fn excludes(&self, other: &Claim) -> bool {
        let theirs = if self.barred { other.merged() } else { other.touched() };
        let meet = |(l, r): &(u8, KeyRange), (level, range): &(u8, KeyRange)| {
            l == level && r.overlaps(&range.lo, range.hi.as_deref())
        };
        self.ranges().iter().any(|mine| theirs.iter().any(|it| meet(mine, it)))
    }
}

/// The claims of one subtable.
#[derive(Debug, Default)]
pub(crate) struct BusyRanges {
    list: Vec<Busy>,
    next: u64,
}

impl BusyRanges {
    /// Whether `[lo, hi)` of `level` is being worked on.
    pub(crate) fn is_busy(&self, level: u8, lo: &[u8], hi: Option<&[u8]>) -> bool {
        self.list.iter().any(|b| b.ranges().iter().any(|(l, r)| *l == level && r.overlaps(lo, hi)))
    }

    /// Whether any range of `level` is being worked on; barred ones are not.
    pub(crate) fn level_is_busy(&self, level: u8) -> bool {
        let at_work = || self.list.iter().filter(|b| !b.barred);
        at_work().any(|b| b.claim.touched().iter().any(|(l, _)| *l == level))
    }

    /// The first barred range of `level` that meets `range`.
    pub(crate) fn barred(&self, level: u8, range: &KeyRange) -> Option<&KeyRange> {
        let all = self.list.iter().filter(|b| b.barred).flat_map(|b| b.claim.merged());
        let meets = |(l, r): &&(u8, KeyRange)| *l == level && r.overlaps(&range.lo, range.hi.as_deref());
        all.filter(meets).map(|(_, r)| r).min_by(|a, b| a.lo.cmp(&b.lo))
    }

    /// Whether nothing is being worked on.
    pub(crate) fn is_idle(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether `claim` meets no other one.
    pub(crate) fn admits(&self, claim: &Claim) -> bool {
        self.list.iter().all(|b| !b.excludes(claim))
    }

    /// Enters a claim that [is admitted](BusyRanges::admits); returns the ticket for [`BusyRanges::leave`].
    pub(crate) fn enter(&mut self, claim: Claim) -> u64 {
        self.next += 1;
        self.list.push(Busy { id: self.next, claim, barred: false });
        self.next
    }

    /// Ends the work that `enter` announced, but keeps others away from its range until `leave`.
    pub(crate) fn bar(&mut self, ticket: u64) {
        if let Some(b) = self.list.iter_mut().find(|b| b.id == ticket) {
            b.barred = true;
        }
    }

    /// Puts `claim` in the place of the one of this ticket, whether or not it is admitted: it keeps others from coming
    /// newly into its ranges. Says whether nobody else works there: until then, its owner waits. What is barred does not
    /// hold up who insists.
    pub(crate) fn insist(&mut self, ticket: u64, claim: Claim) -> bool {
        let others = || self.list.iter().filter(|b| b.id != ticket && !b.barred);
        let admitted = others().all(|b| !b.excludes(&claim));
        if let Some(b) = self.list.iter_mut().find(|b| b.id == ticket) {
            b.claim = claim;
        }
        admitted
    }

    /// Ends the work that `enter` announced.
    pub(crate) fn leave(&mut self, ticket: u64) {
        self.list.retain(|b| b.id != ticket);
    }
}

/// A ticket that is given back however its owner ends.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    busy: &'a Mutex<BusyRanges>,
    pub(crate) ticket: u64,
}

impl<'a> Held<'a> {
    /// Sees to it that `ticket` of `busy` is given back.
    pub(crate) fn new(busy: &'a Mutex<BusyRanges>, ticket: u64) -> Self {
        Held { busy, ticket }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.busy.lock().leave(self.ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::levels::testkit::{extent, meta};
    use crate::levels::{ExtentRef, Reclaimer, Version, VersionEdit};

    fn claim(levels: std::ops::RangeInclusive<u8>, lo: &str, hi: &str) -> Claim {
        Claim::of_extents(levels, &[meta(1, lo, hi)])
    }

    #[test]
    fn jobs_exclude_each_other_only_where_they_share_level_and_range() {
        let mut b = BusyRanges::default();
        assert!(b.is_idle());
        let t = b.enter(claim(0..=1, "b", "d"));
        assert!(b.is_busy(1, b"c", Some(b"x")) && !b.is_idle());
        assert!(!b.is_busy(1, b"d", None), "the end is excluded");
        assert!(!b.is_busy(1, b"", Some(b"b")));
        assert!(!b.is_busy(2, b"c", None));
        assert!(!b.admits(&claim(1..=2, "c", "x")) && b.admits(&claim(1..=2, "d", "x")));
        b.leave(t);
        assert!(!b.is_busy(1, b"c", None));
        b.enter(claim(1..=2, "m", "z"));
        assert!(b.is_busy(2, b"y", None) && b.level_is_busy(1) && !b.level_is_busy(0));
    }

    #[test]
    fn who_insists_waits_for_those_inside_and_keeps_others_out() {
        let busy = Mutex::new(BusyRanges::default());
        let first = busy.lock().enter(claim(0..=1, "b", "d"));
        let ticket = busy.lock().enter(Claim::default());
        let held = Held::new(&busy, ticket);
        assert!(!busy.lock().insist(ticket, claim(0..=1, "a", "c")));
        assert!(!busy.lock().admits(&claim(1..=2, "a", "b")), "only it waits here, but it came first");
        busy.lock().leave(first);
        assert!(busy.lock().insist(ticket, claim(0..=1, "a", "e")));
        assert!(!busy.lock().admits(&claim(1..=1, "d", "e")));
        drop(held);
        assert!(busy.lock().is_idle());
    }

    #[test]
    fn a_barred_range_is_busy_but_not_its_level() {
        let mut b = BusyRanges::default();
        let r = |lo: &[u8], hi: Option<&[u8]>| KeyRange { lo: lo.into(), hi: hi.map(Into::into) };
        let t = b.enter(claim(0..=1, "b", "d"));
        assert_eq!(b.barred(0, &r(b"", None)), None, "at work is not barred");
        b.bar(t);
        assert!(b.is_busy(1, b"c", Some(b"x")) && !b.level_is_busy(0) && !b.level_is_busy(1));
        b.enter(claim(0..=1, "a", "b"));
        assert_eq!(b.barred(0, &r(b"", None)), Some(&r(b"b", Some(b"d"))));
        assert_eq!(b.barred(0, &r(b"d", None)), None);
        b.leave(t);
        assert!(!b.is_busy(1, b"c", Some(b"x")));
    }

    #[test]
    fn beside_a_barred_range_what_reaches_into_it_may_be_trimmed() {
        let reclaimer = Reclaimer::new(|| {});
        let wide = ExtentRef::whole(extent(meta(1, "a", "z"), &reclaimer));
        let edit = VersionEdit { removed: Vec::new(), added: vec![(0, 1, wide)] };
        let v = Version::empty(reclaimer).apply(&edit).unwrap().version;
        let mut b = BusyRanges::default();
        let t = b.enter(Claim::of_merge(&v, 0, 1, b"c", Some(b"f")));
        let beside = Claim::of_merge(&v, 0, 1, b"f", Some(b"k"));
        assert!(!b.admits(&beside));
        b.bar(t);
        assert!(b.admits(&beside) && !b.admits(&Claim::of_merge(&v, 0, 1, b"e", Some(b"k"))));
        let own = b.enter(Claim::default());
        assert!(b.insist(own, Claim::of_merge(&v, 0, 1, b"", None)), "whoever asks for it may try");
    }
}
