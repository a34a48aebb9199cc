//! A group of one request for one subtable, which nearly all groups are where few write at a time: what [`Engine::place_in_memory`] does,
//! without what is there to tell requests and subtables apart. That took 900 of 8,800 instructions of a put of 24 bytes (callgrind).

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use terrane_base::{Lsn, Result};
use terrane_chainlog::{Place, Stored};
use terrane_format::Kind;
use terrane_format::batch::Ops;
use terrane_memindex::Search;

use crate::chains::Chains;
use crate::chains::commit::{Items, Target, add, enter, take_item};
use crate::db::engine::{Engine, closing};
use crate::db::request::{GroupEntry, Request};
use crate::log::Log;
use crate::memtable::Memtable;

/// What came of a turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It is written, if it has records here.
    Writes,
    /// It has no locks and needs some by now, and comes again: see `txn::plain`.
    IsLate,
    /// The database is closing.
    Closing,
}

/// Nodes of a memtable's index that are in the caches mostly, for all go through them.
const NEAR_NODES: usize = 2;

/// Takes steps of a search that goes ahead of an insert, which goes on where that has come to. The nodes in which it ends are mostly in no
/// cache, and each was waited for, a quarter of the time of a put of 24 bytes; what the search has asked for comes near while the record is
/// written.
#[inline]
fn steps(scout: &mut Option<Search<'_, '_>>, count: usize) {
    if let Some(scout) = scout {
        for _ in 0..count {
            scout.step();
        }
    }
}

/// Whether the requests of a group are such a one.
pub(super) fn is_lone(requests: &[Box<Request>]) -> bool {
    matches!(requests, [one] if one.tables.len() == 1 && one.lengths.len() == 1)
}

impl Engine {
    /// As [`Engine::place_in_memory`].
    pub(super) fn place_lone(
        self: &Arc<Self>,
        chains: &Chains,
        trailing: Option<&Log>,
        mut request: Box<Request>,
    ) {
        let (units, mut zones) = (request.units(), request.zones.take());
        let target = Target::new(&request.tables[0]);
        let (mut turn, mut place) = (Turn::Writes, Ok(None));
        let reserved = self.ring.reserve_in_turn(units, &**self, |_, epoch| {
            // Behind the reservation, both: see `Engine::take_turn`.
            let len = request.lengths[0] as usize;
            if self.journal.is_closed() {
                turn = Turn::Closing;
            } else if request.is_unlocked() && self.transactions.guarded() {
                turn = Turn::IsLate;
            } else if len > 0 {
                place = target.assign(epoch, len, &mut zones);
            }
        });
        let reservation = match reserved {
            Ok((reservation, ())) => reservation,
            Err(e) => {
                drop(place);
                drop(target);
                return self.refuse(request, e);
            }
        };
        let from = reservation.pos() * 8;
        let mut entry = GroupEntry::empty();
        let written = match (place, target.memtable()) {
            (Ok(Some(place)), Some(memtable)) => {
                self.write_lone(from, units, place, memtable, &request, &mut entry.written)
            }
            (Ok(_), _) if turn == Turn::Writes && request.lengths[0] > 0 => {
                self.free_values_for(&request, |id| id == target.table.id)
            }
            (place, _) => place.map(drop),
        };
        entry.failed = written.err();
        let is_full = target.memtable().is_some_and(|m| self.is_full(target.table, m, request.count()));
        let full = is_full.then(|| target.table.clone());
        drop(target);
        self.trail(trailing, from, &request, turn == Turn::Writes, &mut entry);
        match turn {
            Turn::Writes => {
                zones.into_iter().for_each(|zones| chains.done_with(zones));
                entry.take(request, from + units * 8 - 1);
                reservation.fill(entry);
            }
            Turn::IsLate => {
                request.zones = zones;
                reservation.fill(entry);
                self.commit_guarded(smallvec![request]);
            }
            Turn::Closing => {
                reservation.fill(entry);
                self.refuse(request, closing());
            }
        }
        if let Some(table) = full {
            self.freeze_active(&table);
        }
    }

    /// Writes its records to their place, and tells the index where they are. What was not written breaks the chain.
    fn write_lone(
        &self,
        from: Lsn,
        units: u64,
        place: Place<'_>,
        memtable: &Arc<Memtable>,
        request: &Request,
        written: &mut Items,
    ) -> Result<()> {
        let needed = || self.needed();
        let mut item = take_item();
        let mut hashes: SmallVec<[u64; 8]> = SmallVec::new();
        let subtable = request.tables[0].id;
        let mut scout = None;
        for (seq, op) in (from + 1..).zip(Ops::new(request.ops())) {
            let op = op?;
            // What is for another subtable is for one that was dropped since it was prepared.
            if op.subtable == subtable {
                if request.count() == 1 && op.kind != Kind::RangeDelete {
                    scout = Some(memtable.index().search(op.key));
                    steps(&mut scout, NEAR_NODES);
                }
                if let Some(hash) = add(&mut item, memtable, from, seq, &op, &needed)? {
                    hashes.push(hash);
                }
            }
        }
        steps(&mut scout, 1);
        let mut stored = place.write(from, 1, (units * 8) as u32, item)?;
        steps(&mut scout, 1);
        Stored::fence_all(std::slice::from_mut(&mut stored));
        enter(memtable, stored, scout, written)?;
        hashes.into_iter().for_each(|hash| memtable.indexed(hash));
        Ok(())
    }
}
