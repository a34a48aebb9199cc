//! A commit that goes to persistent memory: a group's records, as one item for each memtable that they are for.
//!
//! A group is one commit there, whole or not at all. In its turn ([`terrane_commit::Ring::reserve_in_turn`]) it takes a place in
//! each chain, for which it needs the lengths alone; what it writes there carries sequences, which it has since. Everything that
//! can fail for a reason other than the memory's own has been ruled out before: the lengths, and zones that were set aside, if a
//! place takes one.
//!
//! Most take none, and to set a zone aside for each commit and to give it back would take each some atomic operations. So requests for little
//! come without. A group that finds no room in a zone has no place anywhere, and leaves what it reserved empty; its requests come again, those that
//! find no room alone either with zones that they wait for ([`Engine::come_again`]).

mod again;
mod lone;

use std::cell::{OnceCell, RefCell};
use std::sync::Arc;

use arc_swap::Guard;
use smallvec::SmallVec;
use terrane_base::{Error, Lsn, Result, Seq, SubtableId};
use terrane_chainlog::{Admission, Chain, Item, Place, Stored, Written};
use terrane_commit::Filled;
use terrane_format::Kind;
use terrane_format::batch::{EntryKind, Op, Ops};
use terrane_format::chain::ChainRecord;

use crate::chains::Chains;
pub(crate) use crate::chains::commit::again::Again;
use crate::db::engine::{Engine, closing};
use crate::db::request::{GroupEntry, Locks, Placed, Request, Requests};
use crate::db::table::{Super, Table};
use crate::log::Log;
use crate::memtable::Memtable;
use crate::tombstone::{During, Needed};

/// Items that a thread keeps, for their memory.
const KEPT_ITEMS: usize = 4;
/// Their memory is given back beyond this.
pub(crate) const KEPT_BYTES: usize = 1 << 20;

thread_local! {
    #[allow(clippy::vec_box, reason = "they are boxed elsewhere")]
    static ITEMS: RefCell<Vec<Box<Item>>> = const { RefCell::new(Vec::new()) };
}

/// The items of a group, each with its memtable. (A guard on the subtable's state would do without a count that all who write share. But it
/// holds the other memtables too, and what they are freed with would then be freed by the orderer.)
pub(crate) type Items = SmallVec<[(Arc<Memtable>, Written); 1]>;

/// Where a group writes to in one subtable: known once it has its place. Counts no reference: those of a subtable that many threads write to
/// are on one line for all of them.
struct Target<'r> {
    table: &'r Arc<Table>,
    /// The subtable as of then, and the group's epoch.
    state: OnceCell<(Guard<Arc<Super>>, u64)>,
}

impl<'r> Target<'r> {
    fn new(table: &'r Arc<Table>) -> Self {
        Target { table, state: OnceCell::new() }
    }

    /// The memtable of the group's epoch, once it has its place.
    fn memtable(&self) -> Option<&Arc<Memtable>> {
        self.state.get().map(|(state, epoch)| state.memtable_for(*epoch))
    }

    /// In the group's turn, once: the chain that it writes to, if to any.
    fn chain(&self, epoch: u64) -> Option<&Chain> {
        // Where a subtable was dropped nothing is written any more: who dropped it waits for all that was reserved before it was seen to
        // be, and gives its chains back.
        if self.table.is_dropped() {
            return None;
        }
        let (state, epoch) = self.state.get_or_init(|| (self.table.state(), epoch));
        state.memtable_for(*epoch).chain().map(|records| records.index().chain())
    }
}

/// What a group has for one subtable.
struct Share<'r> {
    target: Target<'r>,
    /// By request: which one, and the bytes of its records.
    parts: SmallVec<[(usize, u32); 1]>,
}

/// Zones that were set aside, by request.
type Zones = SmallVec<[Option<Admission>; 1]>;

/// The places that a group has got.
#[derive(Default)]
struct Turn<'s> {
    /// Whether requests without locks came too late: see `txn::plain`.
    guarded: bool,
    /// Each for the share of that number.
    places: SmallVec<[(usize, Place<'s>); 1]>,
    failed: Option<Error>,
    /// The database is closing: nothing is written, and that is no failure.
    closing: bool,
    /// There is no room for one of them without a zone more, and none was set aside: nothing is written.
    is_short: bool,
    /// Subtables that were dropped when the group had its place, and get nothing.
    dropped: SmallVec<[SubtableId; 1]>,
}

fn shares(requests: &[Box<Request>]) -> SmallVec<[Share<'_>; 1]> {
    let mut shares: SmallVec<[Share<'_>; 1]> = SmallVec::new();
    for (number, request) in requests.iter().enumerate() {
        for (table, len) in request.tables.iter().zip(&request.lengths) {
            let part = (number, *len);
            match shares.iter_mut().find(|s| Arc::ptr_eq(s.target.table, table)) {
                Some(share) => share.parts.push(part),
                None => shares.push(Share { target: Target::new(table), parts: SmallVec::from_iter([part]) }),
            }
        }
    }
    shares
}

/// Takes one operation of a commit at `lsn` into the item that it has for this memtable. Returns the hash of its key, if an index is to be
/// told of it: see [`Memtable::announce`].
fn add(
    item: &mut Item,
    memtable: &Memtable,
    lsn: Lsn,
    seq: Seq,
    op: &Op<'_>,
    needed: &dyn Fn() -> Needed,
) -> Result<Option<u64>> {
    let record = ChainRecord { key: op.key, seq, kind: op.kind, value: op.value };
    item.push(&record, op.kind != Kind::RangeDelete)?;
    memtable.announce(lsn, &record, During::Reads(needed))
}

/// Has a memtable's index know of what was stored, and a group of what is to be committed.
fn enter(memtable: &Arc<Memtable>, stored: Stored<'_>, written: &mut Items) -> Result<()> {
    written.push((memtable.clone(), stored.written()));
    if let Some(records) = memtable.chain() {
        give_item(records.index().insert(stored)?);
        records.charge();
    }
    Ok(())
}

impl Engine {
    /// Gives requests their place in the order, writes them to persistent memory, and to the log that trails behind if there is one, and
    /// fills the place. Gives back those that got none, and are to [come again](Engine::come_again).
    #[must_use]
    pub(crate) fn place_in_memory(
        self: &Arc<Self>,
        trailing: Option<&Log>,
        mut requests: Requests,
    ) -> Option<Box<Again>> {
        if lone::is_lone(&requests)
            && let Some(request) = requests.pop()
        {
            return self.place_lone(trailing, request);
        }
        let units: u64 = requests.iter().map(|r| r.units()).sum();
        let mut zones: Zones = requests.iter_mut().map(|r| r.zones.take()).collect();
        let shares = shares(&requests);
        let mut turn = Turn::default();
        let reserved = self.ring.reserve_in_turn(units, &**self, |_, epoch| {
            self.take_turn(epoch, &requests, &mut zones, &shares, &mut turn);
        });
        let place = match reserved {
            Ok((place, ())) => place,
            Err(e) => {
                drop(turn);
                drop(shares);
                requests.into_iter().for_each(|r| self.refuse(r, e.clone()));
                return None;
            }
        };
        let from = place.pos() * 8;
        let (guarded, is_closing, is_short) = (turn.guarded, turn.closing, turn.is_short);
        let dropped = std::mem::take(&mut turn.dropped);
        let mut entry = GroupEntry::empty();
        if let Err(e) = self.write_items(from, units, turn, &requests, &shares, &mut entry.written) {
            entry.failed = Some(e);
        }
        let mut full: SmallVec<[Arc<Table>; 1]> = SmallVec::new();
        for share in &shares {
            if let Some(memtable) = share.target.memtable()
                && self.is_full(share.target.table, memtable, requests.iter().map(|r| r.count()).sum())
            {
                full.push(share.target.table.clone());
            }
        }
        drop(shares);
        let mut lsn = from;
        let (mut again, mut refused) = (Again::default(), Requests::new());
        for (mut r, zones) in requests.into_iter().zip(zones) {
            let is_late = guarded && r.is_unlocked();
            self.trail(trailing, lsn, &r, !is_late && !is_closing && !is_short, &mut entry);
            lsn += r.units() * 8;
            if is_closing {
                refused.push(r);
            } else if is_short || is_late {
                r.zones = zones;
                if is_short { again.short.push(r) } else { again.late.push(r) }
            } else {
                if let Err(e) = self.free_values_for(&r, |id| dropped.contains(&id)) {
                    entry.failed.get_or_insert(e);
                }
                entry.take(r, lsn - 1);
            }
        }
        place.fill(entry);
        refused.into_iter().for_each(|r| self.refuse(r, closing()));
        for table in full {
            self.freeze_active(&table);
        }
        (!again.short.is_empty() || !again.late.is_empty()).then(|| Box::new(again))
    }

    /// Writes a request to the log that trails behind, if there is one; as nothing unless it `counts`.
    fn trail(&self, trailing: Option<&Log>, lsn: Lsn, r: &Request, counts: bool, entry: &mut GroupEntry) {
        let Some(log) = trailing else { return };
        // What is not in the chains must not come back out of the log.
        let kind = if counts && entry.failed.is_none() { r.kind } else { EntryKind::NoOp };
        if let Err(e) = self.write_entry(log, lsn, r, kind) {
            entry.failed.get_or_insert(e);
        }
    }

    /// In the group's turn: a place in each memtable that it has records for.
    fn take_turn<'s>(
        &self,
        epoch: u64,
        requests: &[Box<Request>],
        zones: &mut Zones,
        shares: &'s [Share<'_>],
        turn: &mut Turn<'s>,
    ) {
        // After the reservation: see `txn::plain`.
        let guarded = self.transactions.guarded();
        turn.guarded = guarded;
        // Before any place is taken. See `Engine::close`: whoever closes waits for those that reserved before they could see this. (What writes
        // nothing is let through: it is how that is waited for.)
        if !shares.is_empty() && self.journal.is_closed() {
            turn.closing = true;
            return;
        }
        // All are looked at before the first gets a place, which would have to be written.
        let mut wanted: SmallVec<[(usize, &Chain, usize, usize); 4]> = SmallVec::new();
        for (number, share) in shares.iter().enumerate() {
            let (mut len, mut payer) = (0, None);
            for (request, part) in &share.parts {
                if *part > 0 && !(guarded && requests[*request].is_unlocked()) {
                    len += *part as usize;
                    // One that has zones, if there is such a one. (It has them for each of its subtables.)
                    if payer.is_none_or(|payer: usize| zones[payer].is_none()) {
                        payer = Some(*request);
                    }
                }
            }
            let Some(payer) = payer else { continue };
            let Some(chain) = share.target.chain(epoch) else {
                turn.dropped.push(share.target.table.id);
                continue;
            };
            turn.is_short |= zones[payer].is_none() && !chain.has_room(len);
            wanted.push((number, chain, len, payer));
        }
        if turn.is_short {
            return;
        }
        for (number, chain, len, payer) in wanted {
            match chain.assign(len, zones[payer].as_mut()) {
                Ok(place) => turn.places.push((number, place)),
                Err(e) => {
                    turn.failed = Some(e);
                    return;
                }
            }
        }
    }

    /// Writes all records of a group, and tells the indexes where they are. What was not written breaks its chain, and fails the group.
    fn write_items(
        &self,
        from: Lsn,
        units: u64,
        turn: Turn<'_>,
        requests: &[Box<Request>],
        shares: &[Share<'_>],
        written: &mut Items,
    ) -> Result<()> {
        if let Some(e) = turn.failed {
            return Err(e);
        }
        let needed = || self.needed();
        let mut items: SmallVec<[Box<Item>; 1]> = turn.places.iter().map(|_| take_item()).collect();
        let mut hashes: SmallVec<[(usize, u64); 8]> = SmallVec::new();
        let mut lsn = from;
        for r in requests {
            let (at, is_late) = (lsn, turn.guarded && r.is_unlocked());
            lsn += r.units() * 8;
            if is_late {
                continue;
            }
            for (seq, op) in (at + 1..).zip(Ops::new(r.ops())) {
                let op = op?;
                let place =
                    turn.places.iter().position(|(share, _)| shares[*share].target.table.id == op.subtable);
                let Some(place) = place else { continue };
                let Some(memtable) = shares[turn.places[place].0].target.memtable() else { continue };
                let hash = add(&mut items[place], memtable, from, seq, &op, &needed)?;
                hashes.extend(hash.map(|hash| (place, hash)));
            }
        }
        let (count, length) = (items.len() as u32, (units * 8) as u32);
        let mut stored: SmallVec<[Stored<'_>; 1]> = SmallVec::new();
        let mut memtables: SmallVec<[&Arc<Memtable>; 1]> = SmallVec::new();
        for ((share, place), item) in turn.places.into_iter().zip(items) {
            stored.push(place.write(from, count, length, item)?);
            memtables.extend(shares[share].target.memtable());
        }
        Stored::fence_all(&mut stored);
        for (stored, memtable) in stored.into_iter().zip(&memtables) {
            enter(memtable, stored, written)?;
        }
        for (place, hash) in hashes {
            memtables[place].indexed(hash);
        }
        Ok(())
    }
}

impl Chains {
    /// For the orderer: commits groups in their order.
    ///
    /// # Errors
    /// What the memory fails with. What was committed before stays.
    pub(crate) fn advance(&self, groups: &[Filled<Placed>]) -> Result<()> {
        for entry in groups.iter().filter_map(|f| f.entry.as_ref()) {
            for (memtable, written) in &entry.written {
                if let Some(records) = memtable.chain() {
                    records.index().chain().advance(*written)?;
                }
            }
            if !entry.written.is_empty() {
                self.space.fence();
            }
        }
        Ok(())
    }
}

fn take_item() -> Box<Item> {
    // A thread that ends has none any more.
    ITEMS.try_with(|kept| kept.borrow_mut().pop()).ok().flatten().unwrap_or_default()
}

fn give_item(item: Box<Item>) {
    let _ = ITEMS.try_with(|kept| {
        let mut kept = kept.borrow_mut();
        if kept.len() < KEPT_ITEMS && item.capacity() <= KEPT_BYTES {
            kept.push(item);
        }
    });
}

impl Request {
    /// Whether it holds no locks, and did not look whether it has to.
    pub(crate) fn is_unlocked(&self) -> bool {
        matches!(self.locks, Locks::None)
    }
}
