//! Committing: check, bucket, reserve, write, index, order.
//!
//! One skeleton: what can fail is checked before anything is reserved (but whether persistent memory has room in zones that there are: see
//! [`crate::chains::commit`]); the first thread in a bucket leads and takes the
//! others along; the leader reserves log space in one step, writes its bytes into the mapped tail in parallel with other
//! leaders, inserts the records into the memtables, and marks its slot filled. Whoever then finds the ring's head filled
//! makes the filled prefix durable, if a member asked for it, and publishes it.
//!
//! # Invariants
//! * A reserved slot is always filled, even when writing its bytes failed: the entry then carries the error, and the log
//!   is poisoned, so nothing after it is acknowledged either.
//! * `visible` is stored by the orderer alone, in log order; a record with a higher sequence is in a memtable but no
//!   reader looks at it.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use smallvec::smallvec;
use terrane_base::metrics::stripe;
use terrane_base::{Completion, Error, ErrorKind, Lsn, Result, Seq, SubtableId, Waiter, Wakes};
use terrane_commit::{Filled, Lead, Orderer, Role};
use terrane_format::batch::{EntryHeader, EntryKind, Op, Ops, body_crc, entry_len};
use terrane_format::value_ref::ValueRef;
use terrane_format::{Kind, checksum};

use crate::batch::WriteBatch;
use crate::compact::pick::SCATTERED;
use crate::db::anchor::TableRef;
use crate::db::engine::{Engine, closing, log_poisoned};
use crate::db::journal::Journal;
use crate::db::request::{Form, GroupEntry, Locks, Placed, Request, Requests};
use crate::db::table::Table;
use crate::log::Log;
use crate::memtable::Memtable;
use crate::options::Durability;
use crate::tombstone::{During, Needed};
use crate::txn::prepared::values_of;

/// A memtable with fewer deletions than this goes on until it is full.
const FEW_DELETES: u64 = 1 << 15;
/// One that is mostly deletions does not go on beyond these: stepping over them takes 0.1 s or so.
const MANY_DELETES: u64 = 1 << 20;

/// A commit that may still be on its way. Wait for it, or register a waker or a callback. Dropping it does not take the
/// commit back.
#[derive(Debug)]
pub struct PendingCommit {
    completion: Completion,
    engine: Arc<Engine>,
}

impl PendingCommit {
    /// One that has its outcome.
    pub(crate) fn done(engine: &Arc<Engine>, seq: Seq) -> Self {
        let completion = Completion::new();
        completion.settle(Ok(seq));
        PendingCommit { completion, engine: engine.clone() }
    }

    /// Blocks until the commit has the durability that was asked for; returns its sequence.
    ///
    /// # Errors
    /// What the commit failed with.
    pub fn wait(self) -> Result<Seq> {
        let engine = &self.engine;
        self.completion.wait_helping(|| engine.ring.resume(&**engine))
    }

    /// The outcome, if known already.
    pub fn outcome(&self) -> Option<Result<Seq>> {
        self.completion.outcome()
    }

    /// Has `waiter` told once the outcome is known; at once, on this thread, if it is known already. Replaces a waiter registered
    /// before. Callbacks and wakers are called on a thread that commits: they must be quick, and must not block, call into the
    /// database, or hold the last [`crate::Db`] of it: when that is dropped it is closed, which waits for commits. (Wakers of
    /// executors that do no more than queue the task are fine.)
    pub fn register(&self, waiter: Waiter) {
        self.completion.register(waiter);
    }
}

thread_local! {
    /// What the thread's last commit waited on, for its next one: mostly nobody else holds it any more by then.
    static OWN: Cell<Option<Completion>> = const { Cell::new(None) };
}

impl Engine {
    /// Commits, and waits for the outcome.
    pub(crate) fn commit(self: &Arc<Self>, batch: WriteBatch, form: Form) -> Result<Seq> {
        let mut completion = OWN.try_with(Cell::take).ok().flatten().unwrap_or_else(Completion::new);
        completion.renew();
        self.begin(batch, form, &completion)?;
        let outcome = completion.wait_helping(|| self.ring.resume(&**self));
        // A thread that ends has no next commit.
        let _ = OWN.try_with(|own| own.set(Some(completion)));
        outcome
    }

    /// Commits without waiting for the outcome.
    pub(crate) fn submit(self: &Arc<Self>, batch: WriteBatch, form: Form) -> Result<PendingCommit> {
        let completion = Completion::new();
        self.begin(batch, form, &completion)?;
        Ok(PendingCommit { completion, engine: self.clone() })
    }

    /// Has a commit done by this thread or another; `completion` tells of its outcome.
    fn begin(self: &Arc<Self>, batch: WriteBatch, form: Form, completion: &Completion) -> Result<()> {
        let ordered = form.ordered;
        let Some(request) = self.ready(batch, form, completion)? else { return Ok(()) };
        if ordered {
            self.place(smallvec![request]);
        } else if let Role::Leader(lead) = self.buckets.enter(stripe(), request.weight(), request) {
            self.lead(lead);
        }
        Ok(())
    }

    /// Does what can fail before anything is reserved. Nothing is left to do if there is nothing to commit.
    pub(crate) fn ready(
        self: &Arc<Self>,
        mut batch: WriteBatch,
        form: Form,
        completion: &Completion,
    ) -> Result<Option<Box<Request>>> {
        let Form { kind, head, durability, mut locks, ordered } = form;
        self.check_writable()?;
        if self.ending.load(Ordering::Relaxed) {
            return Err(closing());
        }
        let sync = durability == Durability::Sync;
        if let Some(t) = batch.tables().first()
            && t.database != self.database
        {
            return Err(Error::invalid("the batch names subtables of another database"));
        }
        if kind != EntryKind::Commit {
            batch.tables().iter().try_for_each(|t| t.check_alive())?;
        }
        let most = self.options.max_operations();
        // A reference takes at most this much beside its key.
        let refs: usize = batch.large().iter().map(|l| l.key.len() + 64 + l.value.len() / (64 << 10)).sum();
        let operations = head.len() + batch.bytes() + refs;
        let bytes = entry_len(operations);
        if operations as u64 > most {
            return Err(Error::limit("batch size in bytes", operations as u64, most)
                .with_hint("split the batch, or use a transaction, which may be larger"));
        }
        if batch.is_empty() && kind == EntryKind::Batch {
            self.empty_commit(sync, completion)?;
            return Ok(None);
        }
        if matches!(locks, Locks::None) && self.transactions.guarded() {
            locks = Locks::Held(Some(self.lock_batch(batch.tables(), batch.body(), batch.large())?));
        }
        self.make_room(batch.tables())?;
        self.pacer.admit(bytes, self.memory.fullness(), &*self.media);
        let admission = self.journal.log().map(|log| self.admit_to_log(log, bytes)).transpose()?;
        let mut request = Request::nothing();
        let r = &mut *request;
        if !batch.large().is_empty() {
            r.values = self.write_values(&mut batch)?;
        }
        match self.journal.chains() {
            Some(chains) => {
                let admitted = batch.count_lengths().and_then(|()| {
                    // What is ordered is not to come again behind what follows it, nor to be refused by then.
                    self.admit_at_first(chains, batch.lengths(), batch.tables(), ordered)
                });
                match admitted {
                    Ok(zones) => r.zones = zones,
                    Err(e) => {
                        drop(self.free_values(&r.values));
                        return Err(e);
                    }
                }
                (r.body, r.count, r.tables, r.lengths) = batch.into_parts();
            }
            None => (r.body, r.count, r.tables, _) = batch.into_parts(),
        }
        // Chains have a checksum for each record.
        r.body_crc = match self.journal.log() {
            Some(_) if head.is_empty() => checksum::crc(&r.body),
            Some(_) => body_crc(&[&head, &r.body]),
            None => 0,
        };
        (r.kind, r.head, r.sync, r.locks, r.admission) = (kind, head, sync, locks, admission);
        r.settler = completion.settler();
        Ok(Some(request))
    }

    /// Writes a batch's large values, and puts references where they stood.
    #[cold]
    fn write_values(&self, batch: &mut WriteBatch) -> Result<Vec<ValueRef>> {
        let large = batch.take_large();
        let mut values = Vec::with_capacity(large.len());
        for put in &large {
            match self.space.write_value(self.ids.value(), &put.value) {
                Ok(v) => values.push(v),
                Err(e) => {
                    self.free_values(&values)?;
                    return Err(e);
                }
            }
        }
        if self.journal.is_durable_at_once() {
            // Nothing is durable later than what refers to it.
            self.space.sync_values(&values).inspect_err(|_| drop(self.free_values(&values)))?;
        }
        self.values_dirty.store(true, Ordering::Release);
        let refs: Vec<Vec<u8>> = values.iter().map(encode_ref).collect();
        batch.insert_refs(&large, &refs);
        Ok(values)
    }

    /// A commit of nothing: still a barrier, if asked to be durable.
    fn empty_commit(&self, sync: bool, completion: &Completion) -> Result<()> {
        let seq = self.visible();
        if sync {
            self.sync_log(seq + 1)?;
        }
        completion.settle(Ok(seq));
        Ok(())
    }

    fn free_values(&self, values: &[ValueRef]) -> Result<()> {
        values.iter().try_for_each(|v| self.space.free_value(v))
    }

    /// Frees the large values that a batch has for subtables which were dropped before it had its place, so that it writes nothing to them: whoever
    /// dropped them waited for those who had theirs, and gave back what these have. The drop is durable, so nothing leads to them after a crash.
    pub(crate) fn free_values_for(&self, r: &Request, dropped: impl Fn(SubtableId) -> bool) -> Result<()> {
        // (What was prepared needs its own until that is known durably.)
        if r.kind != EntryKind::Batch || r.values.is_empty() {
            return Ok(());
        }
        self.free_values(&values_of(r.ops(), dropped)?)
    }

    /// Whether a request may still be committed. The last look before anything is reserved: time has passed since the
    /// first one.
    pub(crate) fn still_allowed(r: &Request) -> Result<()> {
        match r.kind {
            // What was prepared is bound to be committed, whatever has become of its subtables.
            EntryKind::Commit => Ok(()),
            _ => r.tables.iter().try_for_each(|t| t.check_alive()),
        }
    }

    /// Answers a request that is not committed.
    pub(crate) fn refuse(&self, r: Box<Request>, e: Error) {
        let freed = self.free_values(&r.values);
        drop(r.locks);
        r.settler.settle(Err(freed.err().unwrap_or(e)));
    }

    fn lead(self: &Arc<Self>, lead: Lead<'_, Box<Request>>) {
        // (Without chains there are no turns, and a line that all leaders change is not looked at for nothing.)
        if self.journal.chains().is_some() {
            self.ring.await_turn();
        }
        let group = lead.close();
        let mut requests: Requests = smallvec![group.own];
        if !group.followers.is_empty() {
            requests.extend(group.followers);
        }
        self.place(requests);
    }

    /// Gives requests their place in the order, and fills it. Where persistent memory has no room for some of them it waits for that.
    pub(crate) fn place(self: &Arc<Self>, mut requests: Requests) {
        let mut at = 0;
        while let Some(r) = requests.get(at) {
            match Engine::still_allowed(r) {
                Ok(()) => at += 1,
                Err(e) => self.refuse(requests.remove(at), e),
            }
        }
        if requests.is_empty() {
            return;
        }
        match &self.journal {
            Journal::Log(log) => self.place_in_log(log, requests),
            Journal::Chains { chains, trailing, .. } => {
                let trailing = trailing.as_ref();
                if let Some(again) = self.place_in_memory(trailing, requests) {
                    self.come_again(chains, trailing, *again);
                }
            }
        }
    }

    fn place_in_log(self: &Arc<Self>, log: &Log, requests: Requests) {
        let units: u64 = requests.iter().map(|r| r.units()).sum();
        let place = match self.ring.reserve(units, &**self) {
            Ok(p) => p,
            Err(e) => {
                requests.into_iter().for_each(|r| self.refuse(r, e.clone()));
                return;
            }
        };
        let generation = place.epoch();
        let mut lsn = place.pos() * 8;
        let mut entry = GroupEntry::empty();
        let mut full: Vec<TableRef> = Vec::new();
        let mut late = Requests::new();
        // After the reservation: see `txn::plain`.
        let guarded = self.transactions.guarded();
        for r in requests {
            let is_late = guarded && r.is_unlocked();
            let kind = if is_late { EntryKind::NoOp } else { r.kind };
            let mut done = self.write_entry(log, lsn, &r, kind);
            if r.applies() && !is_late {
                done = done.and_then(|()| self.index(lsn, generation, &r, &mut full));
            }
            if let Err(e) = done {
                entry.failed.get_or_insert(e);
            }
            lsn += r.len();
            if is_late {
                late.push(r);
                continue;
            }
            entry.take(r, lsn - 1);
        }
        place.fill(entry);
        if !late.is_empty() {
            self.commit_guarded(late);
        }
        for table in full {
            self.freeze_active(&table);
        }
    }

    /// Stores a request's entry in the log.
    pub(crate) fn write_entry(&self, log: &Log, lsn: Lsn, r: &Request, kind: EntryKind) -> Result<()> {
        let header = EntryHeader {
            body_len: (r.head.len() + r.body.len()) as u32,
            count: r.count,
            lsn,
            generation: self.log_generation,
            kind,
            body_crc: r.body_crc,
        };
        log.write(lsn, &[&header.encode(), &r.head, &r.body])
    }

    /// Inserts the records into their memtables; collects the tables whose active memtable is full.
    fn index(&self, lsn: Lsn, generation: u64, r: &Request, full: &mut Vec<TableRef>) -> Result<()> {
        let needed = || self.needed();
        let (mut ops, mut seq) = (Ops::new(&r.body), lsn + 1);
        let mut next = ops.next().transpose()?;
        while let Some(Op { subtable: id, .. }) = next {
            let table = match r.tables.iter().find(|t| t.id == id) {
                // (What was prepared needs its large values until that is known durably: see `Engine::free_values_for`.)
                Some(table) if r.kind != EntryKind::Batch || !table.is_dropped() => Some(table),
                None if r.kind != EntryKind::Commit => {
                    return Err(Error::corruption("a batch names a subtable that it did not enter"));
                }
                _ => None,
            };
            let Some(table) = table else {
                // Dropped since it was let through, or prepared.
                while let Some(op) = next.filter(|op| op.subtable == id) {
                    if r.kind == EntryKind::Batch && op.kind == Kind::ValueRef {
                        self.space.free_value(&ValueRef::decode(op.value)?)?;
                    }
                    seq += 1;
                    next = ops.next().transpose()?;
                }
                continue;
            };
            let state = table.state();
            let memtable = state.memtable_for(generation);
            while let Some(op) = next.filter(|op| op.subtable == id) {
                memtable.insert(lsn, seq, op.kind, op.key, op.value, During::Reads(&needed))?;
                seq += 1;
                next = ops.next().transpose()?;
            }
            if self.is_full(table, memtable, r.count) && !full.iter().any(|t| Arc::ptr_eq(t, table)) {
                full.push(table.clone());
            }
        }
        Ok(())
    }

    /// What readers may still see.
    pub(crate) fn needed(&self) -> Needed {
        // Published first, snapshots after: see `db::snapshot`.
        let published = self.visible();
        Needed { published, snapshots: self.snapshots.collect(published) }
    }

    /// Whether a memtable to which `count` operations went is to freeze.
    pub(crate) fn is_full(&self, table: &Table, memtable: &Memtable, count: u32) -> bool {
        // One that would have to wait for its place goes on taking records until memory runs short.
        let is_full = memtable.bytes() >= self.options.memtable_freeze_bytes() && table.can_flush_next();
        is_full || is_crowded(memtable, table, count)
    }

    /// Makes the log durable up to `lsn`, the large values that it refers to first.
    pub(crate) fn sync_log(&self, lsn: Lsn) -> Result<()> {
        self.journal.sync_to(lsn)
    }

    /// Makes the log durable up to what is published, and returns that LSN.
    pub(crate) fn sync_settled(&self) -> Result<Lsn> {
        let lsn = self.settled();
        self.sync_log(lsn)?;
        Ok(lsn)
    }
}

/// Whether a memtable consists mostly of deletions, and of so many that they are to be merged away before it is full: they
/// slow scans until then. Where there is much data a merge has much to rewrite, and what is deleted lies farther apart.
/// Looks about once in a thousand deletions, of which the last `count` operations brought some.
fn is_crowded(memtable: &Memtable, table: &Table, count: u32) -> bool {
    let deletes = memtable.deletes();
    if deletes < FEW_DELETES || deletes % 1024 > count.into() {
        return false;
    }
    if deletes * 2 <= memtable.index().len() as u64 {
        return false;
    }
    let rows: u64 = table.state().version.runs().map(|(_, run)| run.rows()).sum();
    deletes >= MANY_DELETES || deletes * SCATTERED > rows
}

fn encode_ref(v: &ValueRef) -> Vec<u8> {
    let mut out = Vec::new();
    v.encode(&mut out);
    out
}

/// A group that is being settled. If that ends half way, by a panic, nothing behind it may be committed: in chains the next group's words
/// would commit some of its records too.
struct Unsettled<'a>(&'a Engine);

impl Drop for Unsettled<'_> {
    fn drop(&mut self) {
        self.0.journal.poison(&Error::new(ErrorKind::Poisoned, "a thread died while it settled commits"));
        self.0.progress.notify_all();
    }
}

impl Orderer<Placed> for Engine {
    fn settle(&self, group: &mut [Filled<Placed>], wakes: &mut Wakes) {
        let Some(end) = group.last().map(|f| f.end() * 8) else { return };
        let unsettled = Unsettled(self);
        let mut failed = group.iter().find_map(|f| match &f.entry {
            None => Some(Error::new(ErrorKind::Poisoned, "a committing thread died half way")),
            Some(e) => e.failed.clone(),
        });
        if failed.is_none() && self.journal.is_poisoned() {
            failed = Some(log_poisoned());
        }
        if failed.is_none() {
            failed = self.journal.advance(group, end).err();
        }
        // Or would have, if nobody else had flushed as far meanwhile.
        let mut has_blocked = false;
        if failed.is_none() {
            // A log that is being closed may have been flushed without these.
            let wants_sync = |e: &GroupEntry| e.sync || e.attachment.is_some();
            if group.iter().filter_map(|f| f.entry.as_deref()).any(wants_sync) || self.journal.is_closed() {
                has_blocked = self.journal.log().is_some();
                if has_blocked {
                    // It blocks: those of groups before need not wait for that.
                    wakes.wake();
                }
                failed = self.sync_log(end).err();
            }
        }
        if failed.is_none() {
            for f in group.iter_mut() {
                let seq = f.end() * 8 - 1;
                if let Some(entry) = &mut f.entry
                    && let Some(attachment) = entry.attachment.take()
                {
                    entry.refused = self.show(&attachment, seq).err();
                }
            }
        }
        let entries = group.iter_mut().filter_map(|f| f.entry.take());
        match failed {
            None => {
                // SeqCst: pairs with the freezer, which stores its boundary and then reads what is visible.
                self.visible.store(end - 1, Ordering::SeqCst);
                for mut entry in entries {
                    // Before anybody hears of it: who waits for zones waits for commits on their way to let go of theirs.
                    entry.written.clear();
                    entry.tell(|m, refused| {
                        // Published: who hears of it may want the locks at once.
                        drop(m.locks);
                        m.settler.settle_later(refused.map_or(Ok(m.seq), Err), wakes);
                    });
                    GroupEntry::keep(entry);
                }
                if has_blocked {
                    // What they commit next is to be in the next flush, not in the one after it.
                    wakes.wake();
                }
                if self.next_boundary.load(Ordering::SeqCst) <= end {
                    self.boundary_passed();
                }
            }
            Some(e) => {
                self.journal.poison(&e);
                // Nothing more will be settled: who waits for that is told.
                self.progress.notify_all();
                for mut entry in entries {
                    entry.written.clear();
                    entry.tell(|m, _| m.settler.settle_later(Err(e.clone()), wakes));
                }
            }
        }
        std::mem::forget(unsettled);
    }

    fn heir(&self, next: &Placed) -> Option<Completion> {
        next.members.first().and_then(|m| m.settler.willing())
    }
}

#[cfg(test)]
mod tests;
