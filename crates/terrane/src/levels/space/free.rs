//! The free units of one data file.

use std::collections::{BTreeMap, BTreeSet};

/// Free runs of units, none adjacent to another.
#[derive(Debug, Default)]
pub(super) struct FreeMap {
    /// Length by first unit.
    runs: BTreeMap<u32, u32>,
    /// (length, first unit): the smallest run that fits is one look.
    sizes: BTreeSet<(u32, u32)>,
}

impl FreeMap {
    /// Takes `units` from the front of the smallest run that has them, the lowest of equal ones.
    pub(super) fn take(&mut self, units: u32) -> Option<u32> {
        let (len, start) = *self.sizes.range((units, 0)..).next()?;
        self.remove(start, len);
        if len > units {
            self.add(start + units, len - units);
        }
        Some(start)
    }

    /// Adds a run, joining it to its neighbours. False, and nothing changed, if part of it is free already.
    pub(super) fn insert(&mut self, start: u32, units: u32) -> bool {
        let end = start + units;
        let before = self.runs.range(..end).next_back().map(|(s, l)| (*s, *l));
        if before.is_some_and(|(s, l)| s + l > start) {
            return false;
        }
        let after = self.runs.get(&end).copied();
        let mut joined = (start, units);
        if let Some((s, l)) = before.filter(|(s, l)| s + l == start) {
            self.remove(s, l);
            joined = (s, l + units);
        }
        if let Some(l) = after {
            self.remove(end, l);
            joined.1 += l;
        }
        self.add(joined.0, joined.1);
        true
    }

    /// Units of the run that ends at `end`; 0 if none does.
    pub(super) fn ending_at(&self, end: u32) -> u32 {
        match self.runs.range(..end).next_back() {
            Some((s, l)) if s + l == end => *l,
            _ => 0,
        }
    }

    /// The runs from the highest to the lowest.
    pub(super) fn descending(&self) -> impl Iterator<Item = (u32, u32)> {
        self.runs.iter().rev().map(|(s, l)| (*s, *l))
    }

    fn add(&mut self, start: u32, len: u32) {
        self.runs.insert(start, len);
        self.sizes.insert((len, start));
    }

    fn remove(&mut self, start: u32, len: u32) {
        self.runs.remove(&start);
        self.sizes.remove(&(len, start));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn free_runs_are_the_maximal_ones_of_a_plain_set(ops in prop::collection::vec((any::<bool>(), 0u32..60, 1u32..9), 1..80)) {
            let mut map = FreeMap::default();
            let mut model = BTreeSet::new();
            for (insert, at, units) in ops {
                if insert {
                    let fresh = (at..at + units).all(|u| !model.contains(&u));
                    prop_assert_eq!(map.insert(at, units), fresh);
                    if fresh {
                        model.extend(at..at + units);
                    }
                } else if let Some(start) = map.take(units) {
                    prop_assert!((start..start + units).all(|u| model.remove(&u)));
                } else {
                    prop_assert!(!model.iter().any(|u| (*u..u + units).all(|v| model.contains(&v))));
                }
                let units: Vec<u32> = map.runs.iter().flat_map(|(s, l)| *s..s + l).collect();
                prop_assert!(model.iter().eq(&units));
                prop_assert!(map.runs.iter().all(|(s, l)| !model.contains(&(s + l))));
                prop_assert_eq!(map.sizes.len(), map.runs.len());
                prop_assert!(map.sizes.iter().all(|(l, s)| map.runs.get(s) == Some(l)));
            }
        }
    }

    #[test]
    fn the_smallest_run_that_fits_is_taken_so_that_large_ones_last() {
        let mut map = FreeMap::default();
        for (start, len) in [(10, 32), (50, 4), (60, 8), (70, 4)] {
            map.insert(start, len);
        }
        assert_eq!([4, 4, 4, 32].map(|n| map.take(n)), [Some(50), Some(70), Some(60), Some(10)]);
        assert_eq!(map.take(5), None);
        assert_eq!(map.ending_at(68), 4);
    }
}
