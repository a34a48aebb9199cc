//! Transactions between prepare and commit: whatever happens, they can still be committed, or rolled back, by their xid.
//!
//! A prepare is an entry in the log, durable before anybody hears of it, with the operations and all locks. A commit is an entry
//! with the operations once more, a rollback one without; of all entries about an xid the last counts, so a commit that is in the
//! log is complete by itself (`terrane_format::prepared`).
//!
//! One that is too large for the log, its locks included, and any in persistent memory, is prepared in the manifest: its runs are
//! *staged*, extents that have an owner and that nobody sees (`Edit::Stage` and those behind it, in one group); the group of
//! edits that attaches them, or none, takes the stage away.
//!
//! # The log is not pinned
//! A prepared transaction needs the log from its prepare on. When that stands in the way of letting go of the log, the prepare is
//! written again at the end, durable, and the old one is forgotten: one that nobody ever ends costs its own bytes for each turn
//! of the log, and memory for them.
//!
//! # After a crash
//! Replay finds those that have not ended; they hold their locks again before anybody else can begin. Large values that they
//! refer to keep their space.
//!
//! # Concurrency
//! Who is in doubt, and from where on the log is needed for it, is in [`terrane_commit::Pins`], where the models of all this are,
//! too. Each transaction has a mutex of its own, held while it is committed, rolled back, or written again, so these exclude each
//! other; who comes second finds it gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use smallvec::smallvec;
use terrane_base::{Completion, Error, ErrorKind, Lsn, Result, Seq, SubtableId};
use terrane_format::Kind;
use terrane_format::batch::{EntryKind, Ops};
use terrane_format::limits::MAX_XID;
use terrane_format::manifest::{Edit, MAX_FRONT};
use terrane_format::prepared::{Lock, Span, head, prepare_head};
use terrane_format::value_ref::ValueRef;
use terrane_locks::{Mode, Owner, Patience};

use crate::batch::{Tables, WriteBatch};
use crate::db::engine::Engine;
use crate::db::request::Form;
use crate::levels::{Alloc, StageState};
use crate::options::Durability;
use crate::txn::attach::{Attachment, Share};
use crate::txn::writes::OwnWrites;

/// A prepared transaction, or one that is being prepared: nothing while it is, and once it has ended.
#[derive(Debug)]
pub(crate) struct Prepared(Mutex<Option<Content>>);

#[derive(Debug)]
struct Content {
    what: What,
    /// Held until it ends.
    _locks: Owner,
}

#[derive(Debug)]
enum What {
    /// It is in the log.
    Logged(Logged),
    /// It is in the manifest.
    Staged(StageState),
}

#[derive(Debug)]
struct Logged {
    /// The front of its prepare, which has the locks.
    head: Vec<u8>,
    body: Vec<u8>,
    count: u32,
    tables: Tables,
}

/// What a prepared transaction has written that no subtable refers to yet.
#[derive(Debug)]
pub(crate) enum Property {
    /// Large values that its prepare in the log refers to.
    Logged(Vec<ValueRef>),
    Staged(StageState),
}

impl Prepared {
    /// Nothing if it is no longer there. Waits for whoever ends it or writes it again.
    pub(crate) fn property(&self) -> Result<Option<Property>> {
        Ok(match self.0.lock().as_ref().map(|c| &c.what) {
            None => None,
            Some(What::Logged(c)) => Some(Property::Logged(values_of(&c.body, |_| true)?)),
            Some(What::Staged(stage)) => Some(Property::Staged(stage.clone())),
        })
    }

    /// Whether it has not ended. Waits as [`Prepared::property`] does.
    pub(crate) fn is_there(&self) -> bool {
        self.0.lock().is_some()
    }
}

/// What replay found of a prepared transaction that has not ended.
#[derive(Debug)]
pub(crate) struct InDoubt {
    pub(crate) xid: Vec<u8>,
    pub(crate) lsn: Lsn,
    pub(crate) count: u32,
    /// The body of its prepare.
    pub(crate) body: Vec<u8>,
    /// The large values that it refers to.
    pub(crate) values: Vec<ValueRef>,
}

/// The large values that operations refer to, in the subtables that `whose` takes.
pub(crate) fn values_of(ops: &[u8], whose: impl Fn(SubtableId) -> bool) -> Result<Vec<ValueRef>> {
    let mut all = Vec::new();
    for op in Ops::new(ops) {
        let op = op?;
        if op.kind == Kind::ValueRef && whose(op.subtable) {
            all.push(ValueRef::decode(op.value)?);
        }
    }
    Ok(all)
}

fn check_xid(xid: &[u8]) -> Result<()> {
    if xid.is_empty() {
        return Err(Error::invalid("an xid has at least one byte"));
    }
    if xid.len() > MAX_XID {
        return Err(Error::limit("length of an xid in bytes", xid.len() as u64, MAX_XID as u64));
    }
    Ok(())
}

fn unknown(xid: &[u8]) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("no prepared transaction has the xid \"{}\": it has ended, or never was", xid.escape_ascii()),
    )
}

/// The front of its prepare: who, and what it has locked.
fn front(xid: &[u8], locks: &Owner) -> Vec<u8> {
    struct Kept {
        subtable: SubtableId,
        exclusive: bool,
        is_key: bool,
        start: Vec<u8>,
        end: Option<Vec<u8>>,
    }
    let mut held = Vec::new();
    locks.for_each(&mut |h| {
        held.push(Kept {
            subtable: h.subtable,
            exclusive: h.mode == Mode::Exclusive,
            is_key: h.is_key,
            start: h.start.to_vec(),
            end: h.end.map(<[u8]>::to_vec),
        });
    });
    let locks = held.iter().map(|h| Lock {
        subtable: h.subtable,
        exclusive: h.exclusive,
        span: if h.is_key { Span::Key(&h.start) } else { Span::Range(&h.start, h.end.as_deref()) },
    });
    prepare_head(xid, locks)
}

impl Engine {
    /// Makes a transaction durable that may still be rolled back, and keeps its locks.
    pub(crate) fn prepare(self: &Arc<Self>, xid: &[u8], writes: OwnWrites, locks: Owner) -> Result<()> {
        check_xid(xid)?;
        self.check_open()?;
        let front = front(xid, &locks);
        // Locks alone may be too many for the log; and persistent memory has but what is committed.
        let is_staged = writes.is_large_with(front.len()) || self.journal.chains().is_some();
        let prepared = Arc::new(Prepared(Mutex::new(None)));
        // Nobody else ends it before it is there.
        let mut content = prepared.0.lock();
        // What it will write stands behind all that is published now.
        let from = (!is_staged).then(|| self.settled());
        if !self.transactions.prepared.enter(xid, from, prepared.clone()) {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("another prepared transaction has the xid \"{}\"", xid.escape_ascii()),
            ));
        }
        let done = match is_staged {
            true => self.stage(xid, front, writes).map(What::Staged),
            false => self.write_prepare(front, writes.into_batch()).map(What::Logged),
        };
        match done {
            Ok(what) => {
                *content = Some(Content { what, _locks: locks });
                Ok(())
            }
            Err(e) => {
                self.transactions.prepared.end(xid, None);
                Err(e)
            }
        }
    }

    fn write_prepare(self: &Arc<Self>, front: Vec<u8>, batch: WriteBatch) -> Result<Logged> {
        let completion = Completion::new();
        let form = Form::stage(EntryKind::Prepare, front.clone(), Durability::Sync);
        let Some(request) = self.ready(batch, form, &completion)? else {
            return Err(Error::corruption("a prepare that is no entry of the log"));
        };
        let (body, count, tables) = (request.ops().to_vec(), request.count(), request.tables.clone());
        self.place(smallvec![request]);
        completion.wait_helping(|| self.ring.resume(&**self))?;
        Ok(Logged { head: front, body, count, tables })
    }

    /// Writes a transaction that is too large for the log to extents that nobody sees.
    fn stage(self: &Arc<Self>, xid: &[u8], front: Vec<u8>, writes: OwnWrites) -> Result<StageState> {
        if front.len() > MAX_FRONT {
            return Err(Error::limit("bytes of a transaction's locks", front.len() as u64, MAX_FRONT as u64));
        }
        let runs = writes.into_runs()?;
        let mut stage = StageState { front, ..StageState::default() };
        for (table, run) in &runs {
            table.check_alive()?;
            run.sync(&self.space)?;
            run.leave_cache(self);
            let (extents, values) = run.content();
            stage.extents.extend(extents.into_iter().map(|meta| (table.id, meta)));
            stage.values.extend(values.into_iter().map(|value| (table.id, value)));
        }
        // What it has read is durable before it is.
        self.sync_settled()?;
        let staged = self.append_edits(&stage.to_edits(xid));
        if staged.as_ref().err().is_none_or(|e| e.kind() == ErrorKind::Poisoned) {
            // Durable or in doubt: the space is its own.
            runs.into_iter().for_each(|(_, run)| run.keep());
        }
        staged.map(|()| stage)
    }

    /// The prepared transaction of this xid, once nobody else is at it.
    fn prepared(&self, xid: &[u8]) -> Result<Arc<Prepared>> {
        self.transactions.prepared.get(xid).ok_or_else(|| unknown(xid))
    }

    /// The xids of all prepared transactions, in order.
    pub(crate) fn xids(&self) -> Vec<Vec<u8>> {
        self.transactions.prepared.xids()
    }

    /// All prepared transactions, in the order of their xids.
    pub(crate) fn all_prepared(&self) -> Vec<(Vec<u8>, Arc<Prepared>)> {
        self.transactions.prepared.all()
    }

    pub(crate) fn commit_prepared(self: &Arc<Self>, xid: &[u8], durability: Durability) -> Result<Seq> {
        let prepared = self.prepared(xid)?;
        let mut content = prepared.0.lock();
        let c = match content.as_ref().map(|c| &c.what) {
            None => return Err(unknown(xid)),
            Some(What::Staged(stage)) => {
                let (seq, freed) = self.attach_staged(xid, stage)?;
                self.transactions.committed.add(1);
                self.end(xid, None, &mut content);
                return freed.map(|()| seq);
            }
            Some(What::Logged(c)) => c,
        };
        let alive: Tables = c.tables.iter().filter(|t| !t.is_dropped()).cloned().collect();
        // What is left out gives its space back, and that must not be before the commit is durable.
        let left_out = values_of(&c.body, |id| !alive.iter().any(|t| t.id == id))?;
        // One that nothing comes of has no memtable that would wait for it to be durable.
        let durability = if alive.is_empty() || !left_out.is_empty() { Durability::Sync } else { durability };
        let batch = WriteBatch::from_parts(c.body.clone(), c.count, alive);
        let seq = self.commit(batch, Form::stage(EntryKind::Commit, head(xid), durability))?;
        self.transactions.committed.add(1);
        self.end(xid, (durability == Durability::Buffered).then_some(seq + 1), &mut content);
        left_out.iter().try_for_each(|v| self.space.free_value(v))?;
        Ok(seq)
    }

    pub(crate) fn rollback_prepared(self: &Arc<Self>, xid: &[u8]) -> Result<()> {
        let prepared = self.prepared(xid)?;
        let mut content = prepared.0.lock();
        let c = match content.as_ref().map(|c| &c.what) {
            None => return Err(unknown(xid)),
            Some(What::Staged(stage)) => {
                self.check_open()?;
                // What was committed before it began is durable before it is.
                self.sync_settled()?;
                self.append_edits(&[Edit::Unstage { xid: xid.to_vec() }])?;
                let freed = self.free_stage(stage, |_| true);
                self.end(xid, None, &mut content);
                return freed;
            }
            Some(What::Logged(c)) => c,
        };
        let values = values_of(&c.body, |_| true)?;
        let form = Form::stage(EntryKind::Rollback, head(xid), Durability::Sync);
        self.commit(WriteBatch::new(), form)?;
        self.end(xid, None, &mut content);
        // Nothing refers to them any more, whatever happens: the rollback is durable.
        values.iter().try_for_each(|v| self.space.free_value(v))
    }

    /// Makes staged runs part of the database; says too whether the space of what is left out could be freed.
    fn attach_staged(self: &Arc<Self>, xid: &[u8], stage: &StageState) -> Result<(Seq, Result<()>)> {
        let mut shares: Vec<Share> = Vec::new();
        let tables = self.tables.load_full();
        for (id, meta) in &stage.extents {
            let Some(table) = tables.by_id(*id) else { continue };
            match shares.iter_mut().find(|s| s.table.id == *id) {
                Some(share) => share.extents.push(meta.clone()),
                None => shares.push(Share::new(table, vec![meta.clone()], Vec::new())),
            }
        }
        for share in &mut shares {
            let own = stage.values.iter().filter(|(id, _)| *id == share.table.id);
            share.values.extend(own.map(|(_, value)| value.clone()));
        }
        let shown: Vec<_> = shares.iter().map(|s| (s.table.id, s.shown.clone())).collect();
        let further = vec![Edit::Unstage { xid: xid.to_vec() }];
        let seq = self.attach(Attachment { shares, further })?;
        let was_shown = |id| shown.iter().any(|(t, shown)| *t == id && shown.load(Ordering::Acquire));
        Ok((seq, self.free_stage(stage, |id| !was_shown(id))))
    }

    /// Frees what of a stage is for the subtables that `whose` takes. Nothing durable refers to it any more.
    fn free_stage(&self, stage: &StageState, whose: impl Fn(SubtableId) -> bool) -> Result<()> {
        for (_, meta) in stage.extents.iter().filter(|(id, _)| whose(*id)) {
            self.space.free(Alloc::of_extent(meta))?;
        }
        stage.values.iter().filter(|(id, _)| whose(*id)).try_for_each(|(_, v)| self.space.free_value(v))
    }

    /// Forgets it, and then lets go of its locks. If its end need not be durable yet, `volatile` is where that ends in the log.
    fn end(&self, xid: &[u8], volatile: Option<Lsn>, content: &mut Option<Content>) {
        self.transactions.prepared.end(xid, volatile);
        drop(content.take());
    }

    /// Writes prepares again that stand before `lsn` in the log.
    pub(crate) fn renew_prepared(self: &Arc<Self>, lsn: Lsn) -> Result<()> {
        for (xid, prepared) in self.transactions.prepared.before(lsn) {
            // Who is at it may wait for memory, and so for this very job: another time.
            let Some(content) = prepared.0.try_lock() else { continue };
            let Some(What::Logged(c)) = content.as_ref().map(|c| &c.what) else { continue };
            // It names no subtable here: those that are dropped meanwhile do not matter yet.
            let batch = WriteBatch::from_parts(c.body.clone(), c.count, Tables::new());
            let form = Form::stage(EntryKind::Prepare, c.head.clone(), Durability::Sync);
            self.transactions.prepared.renew(&xid, self.settled(), || self.commit(batch, form).map(drop))?;
        }
        Ok(())
    }

    /// Has what an opening found in doubt, in the log or staged, hold its locks again. Nobody else can yet be at work.
    pub(crate) fn adopt(
        self: &Arc<Self>,
        logged: Vec<InDoubt>,
        staged: &BTreeMap<Vec<u8>, StageState>,
    ) -> Result<()> {
        for InDoubt { xid, lsn, count, body, .. } in logged {
            let stage = terrane_format::prepared::decode(EntryKind::Prepare, &body)?;
            let mut tables = Tables::new();
            let all = self.tables.load();
            for op in Ops::new(stage.ops) {
                let id = op?.subtable;
                if !tables.iter().any(|t| t.id == id)
                    && let Some(table) = all.by_id(id)
                {
                    tables.push(table.clone().into());
                }
            }
            let front = body.len() - stage.ops.len();
            let what = What::Logged(Logged {
                head: body[..front].to_vec(),
                body: stage.ops.to_vec(),
                count,
                tables,
            });
            self.adopt_one(&xid, &stage.locks, Some(lsn), what)?;
        }
        for (xid, stage) in staged {
            let front = terrane_format::prepared::decode(EntryKind::Prepare, &stage.front)?;
            self.adopt_one(xid, &front.locks, None, What::Staged(stage.clone()))?;
        }
        if !self.transactions.prepared.is_empty() {
            self.guard_writes()?;
        }
        Ok(())
    }

    fn adopt_one(&self, xid: &[u8], locks: &[Lock<'_>], from: Option<Lsn>, what: What) -> Result<()> {
        let mut owner = self.transactions.owner();
        // The gaps between its keys may be another one's.
        owner.lock_exactly();
        for lock in locks {
            let mode = if lock.exclusive { Mode::Exclusive } else { Mode::Shared };
            let taken = match lock.span {
                Span::Key(key) => owner.lock_key(lock.subtable, key, mode, Patience::Never),
                Span::Range(start, end) => owner.lock_range(lock.subtable, start, end, mode, Patience::Never),
            };
            taken.map_err(|_| {
                Error::corruption(format!(
                    "the prepared transaction \"{}\" wants a lock that another one holds",
                    xid.escape_ascii()
                ))
            })?;
        }
        let prepared = Arc::new(Prepared(Mutex::new(Some(Content { what, _locks: owner }))));
        if !self.transactions.prepared.enter(xid, from, prepared) {
            return Err(Error::corruption("a transaction is prepared both in the log and in the manifest"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use terrane_base::MAX_SEQ;
    use terrane_media::Media;
    use terrane_media::sim::{CrashKind, SimMedia};

    use crate::{Db, Durability, Medium, Options, SubtableOptions, TransactionOptions};

    /// Operations that are left out count all the same: with other sequences than a replay gives, what a snapshot sees would change with it.
    #[test]
    fn a_commit_has_the_sequences_that_its_replay_has_though_a_subtable_is_gone() {
        const KEYS: [&[u8]; 3] = [b"1", b"2", b"3"];
        let media = SimMedia::new(1);
        // (Elsewhere it is staged, and never replayed.)
        let db = Db::open_on(media.clone(), "/db", Options::new().medium(Medium::Log)).unwrap();
        let tables = ["a", "b"].map(|name| db.create_subtable(name, SubtableOptions::new()).unwrap());
        let mut txn = db.begin(TransactionOptions::new()).unwrap();
        for (table, key) in tables.iter().flat_map(|t| KEYS.map(|key| (t, key))) {
            txn.put(table, key, b"v").unwrap();
        }
        txn.prepare(b"x").unwrap();
        db.drop_subtable("a").unwrap();
        let end = db.commit_prepared(b"x", Durability::Buffered).unwrap();
        let sequences = |db: &Db| {
            let state = db.subtable("b").unwrap().table().state_full();
            let of =
                |key| state.memtables.iter().find_map(|m| Some(m.index().get(key, MAX_SEQ)?.seq)).unwrap();
            KEYS.map(of)
        };
        let live = sequences(&db);
        assert!(live.iter().all(|seq| *seq <= end));
        let next = media.image().crash(CrashKind::Process, 1);
        media.shutdown();
        drop((tables, db));
        let db = Db::open_on(next.clone(), "/db", Options::new()).unwrap();
        assert_eq!(sequences(&db), live);
    }
}
