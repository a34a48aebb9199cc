//! Where the replayed records of a subtable go.
//!
//! Where there is a log alone, they go into one memtable. Where chains in the page cache have most of what the log has, only what they
//! have not is replayed: commits that were under way when the process died, and everything if the memory was lost. It goes into
//! memtables of its own, which stand between those of the chains in the order of the commits. They are frozen, and so written out soon.
//!
//! Which commits chains have is known exactly. Of those to a subtable a chain has all from where it begins to its last one, but for those
//! that an older chain has, or had, if it is written out. So whoever begins a chain sees to it that nothing from there on is elsewhere.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use terrane_base::Lsn;

use crate::memtable::Memtable;

/// See the module's head.
pub(super) struct Target {
    /// Below this all is in extents.
    persisted: Lsn,
    /// The commits of each chain, those of the oldest first.
    chains: Vec<Range<Lsn>>,
    /// The memtable that is newer than so many of these, and older than the others; made when it is needed.
    memtables: Vec<OnceLock<Arc<Memtable>>>,
    /// There are no chains, and never will be: what is replayed is the memtable that goes on.
    alone: bool,
}

impl Target {
    /// A subtable of which all goes into one memtable.
    pub(super) fn of(memtable: Arc<Memtable>, persisted: Lsn) -> Self {
        Target { persisted, chains: Vec::new(), memtables: vec![OnceLock::from(memtable)], alone: true }
    }

    /// A subtable that has these chains.
    pub(super) fn beside(chains: Vec<Range<Lsn>>, persisted: Lsn) -> Self {
        let memtables = (0..=chains.len()).map(|_| OnceLock::new()).collect();
        Target { persisted, chains, memtables, alone: false }
    }

    /// Whether the records of the commit at `lsn` are in extents.
    pub(super) fn is_persisted(&self, lsn: Lsn) -> bool {
        lsn < self.persisted
    }

    /// The memtable for the records of the commit at `lsn`; `None` if a chain has them.
    pub(super) fn memtable(&self, lsn: Lsn, make: impl FnOnce() -> Memtable) -> Option<&Arc<Memtable>> {
        if self.chains.iter().any(|chain| chain.contains(&lsn)) {
            return None;
        }
        let older = self.chains.iter().filter(|chain| chain.start <= lsn).count();
        Some(self.memtables.get(older)?.get_or_init(|| Arc::new(make())))
    }

    /// What was made beside chains, each with the number of those that are older. All of it is frozen: where the next chain begins, or at
    /// the log's `end`.
    pub(super) fn freeze(&self, end: Lsn) -> Vec<(usize, Arc<Memtable>)> {
        if self.alone {
            return Vec::new();
        }
        let made = self.memtables.iter().enumerate().filter_map(|(older, m)| Some((older, m.get()?.clone())));
        made.inspect(|(older, m)| m.freeze(self.chains.get(*older).map_or(end, |next| next.start))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memtable::MemtableBudget;
    use crate::options::IndexKind;

    fn make() -> Memtable {
        Memtable::new(IndexKind::Art, 0, &MemtableBudget::shared(1 << 20), Arc::default())
    }

    #[test]
    fn what_no_chain_has_goes_between_them() {
        // The second begins before the last commit of the first, as one does that is made while commits are under way.
        let target = Target::beside(vec![100..200, 180..300, 500..500], 50);
        assert!(target.is_persisted(49) && !target.is_persisted(50));
        assert!([100, 199, 200, 299].iter().all(|lsn| target.memtable(*lsn, make).is_none()));
        let all: Vec<_> = [60, 99, 300, 499, 500, 900]
            .iter()
            .map(|lsn| target.memtable(*lsn, make).unwrap().clone())
            .collect();
        assert!(
            Arc::ptr_eq(&all[0], &all[1]) && Arc::ptr_eq(&all[2], &all[3]) && Arc::ptr_eq(&all[4], &all[5])
        );
        let frozen = target.freeze(1000);
        let ends: Vec<_> = frozen.iter().map(|(older, m)| (*older, m.end())).collect();
        assert_eq!(ends, [(0, Some(100)), (2, Some(500)), (3, Some(1000))]);
    }

    #[test]
    fn without_chains_all_goes_into_one() {
        let memtable = Arc::new(make());
        let target = Target::of(memtable.clone(), 10);
        assert!([10, 1 << 40].iter().all(|lsn| Arc::ptr_eq(target.memtable(*lsn, make).unwrap(), &memtable)));
    }
}
