//! What the log says of prepared transactions.
//!
//! Of the entries about an xid the last one counts. But the log is still read as a process that died has left it, and what it has
//! beyond the point that is known durable may be lost if power fails before it is written again. So whoever may be in doubt then
//! keeps what it would need: its large values.

use std::cmp::Reverse;
use std::collections::HashMap;

use terrane_base::Lsn;
use terrane_format::value_ref::ValueRef;

use crate::txn::prepared::InDoubt;

/// By xid. Entries come in any order.
#[derive(Default)]
pub(super) struct Stages(HashMap<Vec<u8>, History>);

/// The entries about one xid.
#[derive(Default)]
struct History {
    /// Where each begins and ends.
    places: Vec<(Lsn, Lsn)>,
    /// Prepares, by where they begin, with the large values that they refer to, if there are any.
    values: Vec<(Lsn, Vec<ValueRef>)>,
    last: Option<(Lsn, Last)>,
}

/// The last entry about an xid.
pub(super) enum Last {
    Prepared { count: u32, body: Vec<u8> },
    Ended,
}

/// Whom the log leaves in doubt, and whom it might.
pub(super) struct Doubts {
    /// Those that have not ended, in the order of the log.
    pub(super) in_doubt: Vec<InDoubt>,
    /// Large values of all that would be in doubt if the log ended somewhere behind what is durable; those of the last come first.
    pub(super) values: Vec<ValueRef>,
}

impl Stages {
    /// Notes the entry from `lsn` to `end`, and the large values that it refers to as a prepare.
    pub(super) fn see(&mut self, xid: &[u8], lsn: Lsn, end: Lsn, entry: Last, values: Vec<ValueRef>) {
        let known = self.0.entry(xid.to_vec()).or_default();
        known.places.push((lsn, end));
        if !values.is_empty() {
            known.values.push((lsn, values));
        }
        if known.last.as_ref().is_none_or(|(last, _)| *last < lsn) {
            known.last = Some((lsn, entry));
        }
    }

    /// All that is in doubt, if the log is known durable up to `durable`.
    pub(super) fn doubts(self, durable: Lsn) -> Doubts {
        let mut in_doubt = Vec::new();
        let mut values = Vec::new();
        for (xid, known) in self.0 {
            if let Some((lsn, Last::Prepared { count, body })) = known.last {
                let own = known.values.iter().find(|(at, _)| *at == lsn);
                let values = own.map(|(_, values)| values.clone()).unwrap_or_default();
                in_doubt.push(InDoubt { xid, lsn, count, body, values });
            }
            // What stands before an entry that stays can never be the last one.
            let stays = known.places.iter().filter(|(_, end)| *end <= durable).map(|(lsn, _)| *lsn).max();
            values.extend(known.values.into_iter().filter(|(lsn, _)| stays.is_none_or(|at| at <= *lsn)));
        }
        in_doubt.sort_by_key(|p| p.lsn);
        values.sort_by_key(|(lsn, _)| Reverse(*lsn));
        Doubts { in_doubt, values: values.into_iter().flat_map(|(_, values)| values).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepared(value: u64) -> (Last, Vec<ValueRef>) {
        let value = ValueRef { id: value, len: 1, pieces: Vec::new() };
        (Last::Prepared { count: 1, body: vec![1] }, vec![value])
    }

    fn ended() -> (Last, Vec<ValueRef>) {
        (Last::Ended, Vec::new())
    }

    /// One xid: prepared, rolled back, prepared again and once more; each entry takes ten.
    fn doubts(durable: Lsn) -> (Vec<Lsn>, Vec<u64>) {
        let mut stages = Stages::default();
        let x = [(30, prepared(3)), (10, ended()), (0, prepared(1)), (20, prepared(2))].map(|e| (b"x", e));
        let y = [(40, prepared(4)), (50, ended())].map(|e| (b"y", e));
        for (xid, (lsn, (entry, values))) in x.into_iter().chain(y) {
            stages.see(xid, lsn, lsn + 10, entry, values);
        }
        let doubts = stages.doubts(durable);
        assert!(doubts.in_doubt.iter().all(|p| p.values.iter().map(|v| v.id).eq([3])));
        let lsns = doubts.in_doubt.iter().map(|p| p.lsn).collect();
        (lsns, doubts.values.iter().map(|v| v.id).collect())
    }

    #[test]
    fn values_stay_for_whoever_may_be_in_doubt_yet() {
        assert_eq!(doubts(0), (vec![30], vec![4, 3, 2, 1]));
        assert_eq!(doubts(19), (vec![30], vec![4, 3, 2, 1]));
        assert_eq!(doubts(20), (vec![30], vec![4, 3, 2]));
        assert_eq!(doubts(30), (vec![30], vec![4, 3, 2]));
        assert_eq!(doubts(40), (vec![30], vec![4, 3]));
        assert_eq!(doubts(60), (vec![30], vec![3]));
    }
}
