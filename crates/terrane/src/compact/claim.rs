//! What a job touches: in each of its levels a key range. Jobs whose claims meet must not run at the same time.

use std::ops::RangeInclusive;
use std::sync::Arc;

use terrane_format::extent::ExtentMeta;

use crate::compact::busy::KeyRange;
use crate::levels::{ExtentRef, Version};

/// Ranges of levels.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claim {
    merged: Vec<(u8, KeyRange)>,
    touched: Vec<(u8, KeyRange)>,
}

impl Claim {
    /// What merging `[lo, hi)` of level `from` into `to` touches: the range, and with it the whole of every part that
    /// reaches into it. What straddles an edge of the range is trimmed, so it cannot be anybody else's meanwhile.
    pub(crate) fn of_merge(version: &Version, from: u8, to: u8, lo: &[u8], hi: Option<&[u8]>) -> Self {
        let range = || KeyRange { lo: lo.to_vec(), hi: hi.map(<[u8]>::to_vec) };
        let widened = |level: u8| {
            let mut range = range();
            for (_, run) in version.runs().filter(|(l, _)| *l == level) {
                let parts: &[Arc<ExtentRef>] = run.overlapping(lo, hi);
                let (Some(first), Some(last)) = (parts.first(), parts.last()) else { continue };
                if *first.lo < *range.lo {
                    range.lo = first.lo.to_vec();
                }
                if range.hi.as_ref().is_some_and(|hi| **hi < *last.hi) {
                    range.hi = Some(last.hi.to_vec());
                }
            }
            (level, range)
        };
        let levels = || from.min(to)..=from.max(to);
        Claim {
            merged: levels().map(|level| (level, range())).collect(),
            touched: levels().map(widened).collect(),
        }
    }

    /// What adding these extents to one of `levels` touches.
    pub(crate) fn of_extents(levels: RangeInclusive<u8>, extents: &[Arc<ExtentMeta>]) -> Self {
        let range = |m: &ExtentMeta| KeyRange { lo: m.lo.clone(), hi: Some(m.hi.clone()) };
        let touched: Vec<_> =
            extents.iter().flat_map(|m| levels.clone().map(move |l| (l, range(m)))).collect();
        Claim { merged: touched.clone(), touched }
    }

    /// By level, what is to be merged.
    pub(crate) fn merged(&self) -> &[(u8, KeyRange)] {
        &self.merged
    }

    /// By level, all that is touched thereby. A level may come more than once.
    pub(crate) fn touched(&self) -> &[(u8, KeyRange)] {
        &self.touched
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::levels::testkit::{extent, meta};
    use crate::levels::{Reclaimer, VersionEdit};

    #[test]
    fn a_merge_claims_what_straddles_its_edges() {
        let r = Reclaimer::new(|| {});
        let parts =
            [(0, 2, "c", "f"), (0, 1, "a", "d"), (1, 0, "d", "e"), (2, 0, "b", "k"), (2, 0, "k", "z")];
        let part = |id, lo, hi| ExtentRef::whole(extent(meta(id, lo, hi), &r));
        let added = (1..).zip(parts).map(|(id, (level, run, lo, hi))| (level, run, part(id, lo, hi)));
        let edit = VersionEdit { removed: Vec::new(), added: added.collect() };
        let v = Version::empty(r.clone()).apply(&edit).unwrap().version;
        let claimed = |from, to, lo: &str, hi: Option<&str>| -> Vec<_> {
            let claim = Claim::of_merge(&v, from, to, lo.as_bytes(), hi.map(str::as_bytes));
            let text = |key: &[u8]| String::from_utf8_lossy(key).into_owned();
            claim.touched().iter().map(|(l, r)| (*l, text(&r.lo), r.hi.as_deref().map(text))).collect()
        };
        let is = |level: u8, lo: &str, hi: &str| (level, lo.to_owned(), Some(hi.to_owned()));
        assert_eq!(claimed(0, 1, "d", Some("e")), [is(0, "c", "f"), is(1, "d", "e")]);
        assert_eq!(claimed(0, 1, "c", Some("d")), [is(0, "a", "f"), is(1, "c", "d")]);
        assert_eq!(claimed(1, 2, "d", Some("e")), [is(1, "d", "e"), is(2, "b", "k")]);
        assert_eq!(claimed(1, 2, "j", None)[1], (2, "b".to_owned(), None));
        assert_eq!(claimed(2, 1, "d", Some("e")), claimed(1, 2, "d", Some("e")), "upwards");
        assert_eq!(claimed(2, 2, "k", Some("z")), [is(2, "k", "z")], "an edge is not straddled");
        assert_eq!(claimed(7, 7, "k", Some("z")), [is(7, "k", "z")], "no such level yet");
    }
}
