//! A group of one request for one subtable, which nearly all groups are where few write at a time: what [`Engine::place_in_memory`] does,
//! without what is there to tell requests and subtables apart. That took 900 of 8,800 instructions of a put of 24 bytes (callgrind).

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use terrane_base::{Lsn, Result};
use terrane_chainlog::Place;
use terrane_format::Kind;
use terrane_format::batch::{Op, Ops};
use terrane_format::chain::ChainRecord;
use terrane_memindex::Search;

use crate::chains::commit::{Again, Items, Target, add, enter, take_item};
use crate::db::engine::{Engine, closing};
use crate::db::request::{GroupEntry, Request};
use crate::log::Log;
use crate::memtable::Memtable;
use crate::tombstone::During;

/// What came of a turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// It is written, if it has records here.
    Writes,
    /// It has no locks and needs some by now, and comes again: see `txn::plain`.
    IsLate,
    /// There is no room without a zone more, and it has none; it comes again.
    IsShort,
    /// The database is closing.
    Closing,
}

/// What a group has got.
struct Assigned<'m> {
    from: Lsn,
    units: u64,
    place: Place<'m>,
    memtable: &'m Arc<Memtable>,
}

/// Nodes of a memtable's index that are in the caches mostly, for all go through them.
const NEAR_NODES: usize = 2;

/// Takes steps of a search that goes ahead of an insert, which goes on where that has come to. The nodes in which it ends are mostly in no
/// cache, and each was waited for, a quarter of the time of a put of 24 bytes; what the search has asked for comes near while the record is
/// written.
#[inline]
fn steps(scout: &mut Search<'_, '_>, count: usize) {
    for _ in 0..count {
        scout.step();
    }
}

/// The only operation of a request, if that is a record with a place in the order of keys.
#[inline]
fn only_record(request: &Request) -> Result<Option<Op<'_>>> {
    if request.count() != 1 {
        return Ok(None);
    }
    let op = Ops::new(request.ops()).next().transpose()?;
    Ok(op.filter(|op| op.kind != Kind::RangeDelete && op.subtable == request.tables[0].id))
}

/// Whether the requests of a group are such a one.
pub(super) fn is_lone(requests: &[Box<Request>]) -> bool {
    matches!(requests, [one] if one.tables.len() == 1 && one.lengths.len() == 1)
}

impl Engine {
    /// As [`Engine::place_in_memory`].
    pub(super) fn place_lone(
        self: &Arc<Self>,
        trailing: Option<&Log>,
        mut request: Box<Request>,
    ) -> Option<Box<Again>> {
        let (units, mut zones) = (request.units(), request.zones.take());
        let mut scratch = std::mem::take(&mut request.item);
        let target = Target::new(&request.tables[0]);
        let (mut turn, mut place) = (Outcome::Writes, Ok(None));
        let reserved = self.ring.reserve_in_turn(units, &**self, |_, epoch| {
            // Behind the reservation, both: see `Engine::take_turn`.
            let len = request.lengths[0] as usize;
            if self.journal.is_closed() {
                turn = Outcome::Closing;
            } else if request.is_unlocked() && self.transactions.guarded() {
                turn = Outcome::IsLate;
            } else if len > 0
                && let Some(chain) = target.chain(epoch)
            {
                match zones.is_none() && !chain.has_room(len) {
                    true => turn = Outcome::IsShort,
                    false => place = chain.assign(len, zones.as_mut()).map(Some),
                }
            }
        });
        let reservation = match reserved {
            Ok((reservation, ())) => reservation,
            Err(e) => {
                drop(place);
                drop(target);
                self.refuse(request, e);
                return None;
            }
        };
        let from = reservation.pos() * 8;
        let mut entry = GroupEntry::empty();
        let written = match (place, target.memtable()) {
            (Ok(Some(place)), Some(memtable)) => {
                let to = Assigned { from, units, place, memtable };
                self.write_lone(to, &request, &mut scratch, &mut entry.written)
            }
            (Ok(_), _) if turn == Outcome::Writes && request.lengths[0] > 0 => {
                self.free_values_for(&request, |id| id == target.table.id)
            }
            (place, _) => place.map(drop),
        };
        entry.failed = written.err();
        let is_full = target.memtable().is_some_and(|m| self.is_full(target.table, m, request.count()));
        let full = is_full.then(|| target.table.clone());
        drop(target);
        request.item = scratch;
        self.trail(trailing, from, &request, turn == Outcome::Writes, &mut entry);
        let mut again = None;
        match turn {
            Outcome::Writes => {
                // Others may wait for what it has not opened.
                drop(zones);
                entry.take(request, from + units * 8 - 1);
                reservation.fill(entry);
            }
            Outcome::IsLate | Outcome::IsShort => {
                request.zones = zones;
                reservation.fill(entry);
                let list = smallvec![request];
                again = Some(Box::new(match turn {
                    Outcome::IsShort => Again { short: list, ..Again::default() },
                    _ => Again { late: list, ..Again::default() },
                }));
            }
            Outcome::Closing => {
                reservation.fill(entry);
                self.refuse(request, closing());
            }
        }
        if let Some(table) = full {
            self.freeze_active(&table);
        }
        again
    }

    /// Writes its records to their place, and tells the index where they are. What was not written breaks the chain.
    #[inline]
    fn write_lone(
        &self,
        to: Assigned<'_>,
        request: &Request,
        scratch: &mut Vec<u8>,
        written: &mut Items,
    ) -> Result<()> {
        match only_record(request)? {
            Some(op) => self.write_record(to, &op, scratch, written),
            None => self.write_records(to, request, written),
        }
    }

    /// As [`Engine::write_lone`], of one record: nearly all that commit one at a time have such.
    #[inline]
    fn write_record(
        &self,
        to: Assigned<'_>,
        op: &Op<'_>,
        scratch: &mut Vec<u8>,
        written: &mut Items,
    ) -> Result<()> {
        let Assigned { from, units, place, memtable } = to;
        let Some(records) = memtable.chain() else { return Ok(()) };
        let record = ChainRecord { key: op.key, seq: from + 1, kind: op.kind, value: op.value };
        let mut scout = memtable.index().search(op.key);
        steps(&mut scout, NEAR_NODES);
        let hash = memtable.announce(from, &record, During::Reads(&|| self.needed()))?;
        steps(&mut scout, 1);
        let stored = place.write_one(from, 1, (units * 8) as u32, &record, scratch)?;
        steps(&mut scout, 1);
        written.push((memtable.clone(), stored.written()));
        records.index().insert_one(stored, &scout)?;
        records.charge();
        hash.into_iter().for_each(|hash| memtable.indexed(hash));
        Ok(())
    }

    fn write_records(&self, to: Assigned<'_>, request: &Request, written: &mut Items) -> Result<()> {
        let Assigned { from, units, place, memtable } = to;
        let needed = || self.needed();
        let mut item = take_item();
        let mut hashes: SmallVec<[u64; 8]> = SmallVec::new();
        let subtable = request.tables[0].id;
        for (seq, op) in (from + 1..).zip(Ops::new(request.ops())) {
            let op = op?;
            // What is for another subtable is for one that was dropped since it was prepared.
            if op.subtable == subtable
                && let Some(hash) = add(&mut item, memtable, from, seq, &op, &needed)?
            {
                hashes.push(hash);
            }
        }
        let stored = place.write(from, 1, (units * 8) as u32, item)?;
        enter(memtable, stored, written)?;
        hashes.into_iter().for_each(|hash| memtable.indexed(hash));
        Ok(())
    }
}
