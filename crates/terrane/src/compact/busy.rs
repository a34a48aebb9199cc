//! Key ranges of levels that compactions work on now. Two jobs of a subtable may run at once if they share no level in
//! overlapping ranges. A range that could not be merged stays marked as *barred*: nobody works there, but it does not
//! keep others from the rest of its levels.

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
}

#[derive(Debug)]
struct Busy {
    id: u64,
    levels: std::ops::RangeInclusive<u8>,
    range: KeyRange,
    barred: bool,
}

/// The ranges in work of one subtable.
#[derive(Debug, Default)]
pub(crate) struct BusyRanges {
    list: Vec<Busy>,
    next: u64,
}

impl BusyRanges {
    /// Whether `[lo, hi)` of `level` is being worked on.
    pub(crate) fn is_busy(&self, level: u8, lo: &[u8], hi: Option<&[u8]>) -> bool {
        self.list.iter().any(|b| b.levels.contains(&level) && b.range.overlaps(lo, hi))
    }

    /// Whether any range of `level` is being worked on; barred ones are not.
    pub(crate) fn level_is_busy(&self, level: u8) -> bool {
        self.list.iter().any(|b| !b.barred && b.levels.contains(&level))
    }

    /// The first barred range of `level` that meets `range`.
    pub(crate) fn barred(&self, level: u8, range: &KeyRange) -> Option<&KeyRange> {
        let meets = |b: &&Busy| b.range.overlaps(&range.lo, range.hi.as_deref());
        let all = self.list.iter().filter(|b| b.barred && b.levels.contains(&level)).filter(meets);
        all.map(|b| &b.range).min_by(|a, b| a.lo.cmp(&b.lo))
    }

    /// Marks a range of some levels; returns the ticket for [`BusyRanges::leave`].
    pub(crate) fn enter(&mut self, levels: std::ops::RangeInclusive<u8>, range: KeyRange) -> u64 {
        self.next += 1;
        self.list.push(Busy { id: self.next, levels, range, barred: false });
        self.next
    }

    /// Ends the work that `enter` announced, but keeps others away from its range until `leave`.
    pub(crate) fn bar(&mut self, ticket: u64) {
        if let Some(b) = self.list.iter_mut().find(|b| b.id == ticket) {
            b.barred = true;
        }
    }

    /// Ends the work that `enter` announced.
    pub(crate) fn leave(&mut self, ticket: u64) {
        self.list.retain(|b| b.id != ticket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_exclude_each_other_only_where_they_share_level_and_range() {
        let mut b = BusyRanges::default();
        let r = |lo: &[u8], hi: Option<&[u8]>| KeyRange { lo: lo.into(), hi: hi.map(Into::into) };
        let t = b.enter(0..=1, r(b"b", Some(b"d")));
        assert!(b.is_busy(1, b"c", Some(b"x")));
        assert!(!b.is_busy(1, b"d", None), "the end is excluded");
        assert!(!b.is_busy(1, b"", Some(b"b")));
        assert!(!b.is_busy(2, b"c", None));
        b.leave(t);
        assert!(!b.is_busy(1, b"c", None));
        b.enter(1..=2, r(b"m", None));
        assert!(b.is_busy(2, b"z", None) && b.level_is_busy(1) && !b.level_is_busy(0));
    }

    #[test]
    fn a_barred_range_is_busy_but_not_its_level() {
        let mut b = BusyRanges::default();
        let r = |lo: &[u8], hi: Option<&[u8]>| KeyRange { lo: lo.into(), hi: hi.map(Into::into) };
        let t = b.enter(0..=1, r(b"b", Some(b"d")));
        assert_eq!(b.barred(0, &r(b"", None)), None, "at work is not barred");
        b.bar(t);
        assert!(b.is_busy(1, b"c", Some(b"x")) && !b.level_is_busy(0) && !b.level_is_busy(1));
        b.enter(0..=1, r(b"a", Some(b"b")));
        assert_eq!(b.barred(0, &r(b"", None)), Some(&r(b"b", Some(b"d"))));
        assert_eq!(b.barred(0, &r(b"d", None)), None);
        b.leave(t);
        assert!(!b.is_busy(1, b"c", Some(b"x")));
    }
}
