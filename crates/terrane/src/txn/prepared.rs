//! Transactions between prepare and commit: whatever happens, they can still be committed, or rolled back, by their xid.
//!
//! A prepare is an entry in the log, durable before anybody hears of it, with the operations and the locks beside those that the
//! operations imply. A commit is an entry with the operations once more, a rollback one without; of all entries about an xid
//! the last counts, so a commit that is in the log is complete by itself (`terrane_format::prepared`).
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
//! The map of xids is locked for moments. Each transaction has a mutex of its own, held while it is committed, rolled back, or
//! written again, so these exclude each other; who comes second finds it gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::smallvec;
use terrane_base::{Completion, Error, ErrorKind, Lsn, Result, Seq};
use terrane_format::Kind;
use terrane_format::batch::{EntryKind, Ops};
use terrane_format::limits::MAX_XID;
use terrane_format::prepared::{Lock, Span, head, prepare_head};
use terrane_format::value_ref::ValueRef;
use terrane_locks::{Mode, Owner, Patience};

use crate::batch::{Tables, WriteBatch};
use crate::db::commit::Form;
use crate::db::engine::Engine;
use crate::options::Durability;

/// A prepared transaction, or one that is being prepared.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// Its prepare stands here in the log, or behind it.
    from: AtomicU64,
    /// What it consists of; nothing while it is being prepared, and once it has ended.
    content: Mutex<Option<Content>>,
}

#[derive(Debug)]
struct Content {
    /// The front of its prepare, which has the locks.
    head: Vec<u8>,
    body: Vec<u8>,
    count: u32,
    tables: Tables,
    /// Held until it ends.
    _locks: Owner,
}

/// What replay found of a prepared transaction that has not ended.
#[derive(Debug)]
pub(crate) struct InDoubt {
    pub(crate) xid: Vec<u8>,
    pub(crate) lsn: Lsn,
    pub(crate) count: u32,
    /// The body of its prepare.
    pub(crate) body: Vec<u8>,
}

impl InDoubt {
    /// The large values that it refers to.
    pub(crate) fn values(&self) -> Result<Vec<ValueRef>> {
        values(terrane_format::prepared::decode(EntryKind::Prepare, &self.body)?.ops)
    }
}

fn values(ops: &[u8]) -> Result<Vec<ValueRef>> {
    let mut all = Vec::new();
    for op in Ops::new(ops) {
        let op = op?;
        if op.kind == Kind::ValueRef {
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

impl Engine {
    /// Makes a transaction durable that may still be rolled back, and keeps its locks.
    pub(crate) fn prepare(self: &Arc<Self>, xid: &[u8], batch: WriteBatch, locks: Owner) -> Result<()> {
        check_xid(xid)?;
        let prepared = Arc::new(Prepared {
            // What it will write stands behind all that is published now.
            from: AtomicU64::new(self.settled()),
            content: Mutex::new(None),
        });
        // Nobody else ends it before it is there.
        let mut content = prepared.content.lock();
        {
            use std::collections::btree_map::Entry;
            match self.transactions.prepared.lock().entry(xid.to_vec()) {
                Entry::Vacant(free) => free.insert(prepared.clone()),
                Entry::Occupied(_) => {
                    return Err(Error::new(
                        ErrorKind::AlreadyExists,
                        format!("another prepared transaction has the xid \"{}\"", xid.escape_ascii()),
                    ));
                }
            };
        }
        match self.write_prepare(xid, batch, locks) {
            Ok(done) => {
                *content = Some(done);
                Ok(())
            }
            Err(e) => {
                self.transactions.prepared.lock().remove(xid);
                Err(e)
            }
        }
    }

    fn write_prepare(self: &Arc<Self>, xid: &[u8], batch: WriteBatch, locks: Owner) -> Result<Content> {
        let mut held = Vec::new();
        locks.for_each(&mut |h| {
            held.push((h.subtable, h.mode, h.start.to_vec(), h.end.map(<[u8]>::to_vec), h.is_key))
        });
        let further = held.iter().map(|(subtable, mode, start, end, is_key)| Lock {
            subtable: *subtable,
            exclusive: *mode == Mode::Exclusive,
            span: if *is_key { Span::Key(start) } else { Span::Range(start, end.as_deref()) },
        });
        let front = prepare_head(xid, further);
        let completion = Completion::new();
        let form = Form::stage(EntryKind::Prepare, front.clone(), Durability::Sync);
        let Some(request) = self.ready(batch, form, &completion)? else {
            return Err(Error::corruption("a prepare that is no entry of the log"));
        };
        let (body, count, tables) = (request.ops().to_vec(), request.count(), request.tables.clone());
        self.place(smallvec![request]);
        completion.wait_helping(|| self.ring.resume(&**self))?;
        Ok(Content { head: front, body, count, tables, _locks: locks })
    }

    /// The prepared transaction of this xid, once nobody else is at it.
    fn prepared(&self, xid: &[u8]) -> Result<Arc<Prepared>> {
        self.transactions.prepared.lock().get(xid).cloned().ok_or_else(|| unknown(xid))
    }

    /// The xids of all prepared transactions, in order.
    pub(crate) fn xids(&self) -> Vec<Vec<u8>> {
        self.transactions.prepared.lock().keys().cloned().collect()
    }

    pub(crate) fn commit_prepared(self: &Arc<Self>, xid: &[u8], durability: Durability) -> Result<Seq> {
        let prepared = self.prepared(xid)?;
        let mut content = prepared.content.lock();
        let Some(c) = &*content else { return Err(unknown(xid)) };
        let alive = c.tables.iter().filter(|t| !t.is_dropped()).cloned().collect();
        let batch = WriteBatch::from_parts(c.body.clone(), c.count, alive);
        let seq = self.commit(batch, Form::stage(EntryKind::Commit, head(xid), durability))?;
        self.transactions.committed.add(1);
        self.end(xid, &mut content);
        Ok(seq)
    }

    pub(crate) fn rollback_prepared(self: &Arc<Self>, xid: &[u8]) -> Result<()> {
        let prepared = self.prepared(xid)?;
        let mut content = prepared.content.lock();
        let Some(c) = &*content else { return Err(unknown(xid)) };
        let values = values(&c.body)?;
        let form = Form::stage(EntryKind::Rollback, head(xid), Durability::Sync);
        self.commit(WriteBatch::new(), form)?;
        self.end(xid, &mut content);
        // Nothing refers to them any more, whatever happens: the rollback is durable.
        values.iter().try_for_each(|v| self.space.free_value(v))
    }

    /// Forgets it, and then lets go of its locks.
    fn end(&self, xid: &[u8], content: &mut Option<Content>) {
        self.transactions.prepared.lock().remove(xid);
        drop(content.take());
    }

    /// From where on prepared transactions need the log.
    pub(crate) fn oldest_prepared(&self) -> Option<Lsn> {
        self.transactions.prepared.lock().values().map(|p| p.from.load(Ordering::Acquire)).min()
    }

    /// Writes prepares again that stand before `lsn` in the log.
    pub(crate) fn renew_prepared(self: &Arc<Self>, lsn: Lsn) -> Result<()> {
        let old: Vec<_> = {
            let all = self.transactions.prepared.lock();
            all.values().filter(|p| p.from.load(Ordering::Acquire) < lsn).cloned().collect()
        };
        for prepared in old {
            let content = prepared.content.lock();
            let Some(c) = &*content else { continue };
            let from = self.settled();
            // It names no subtable here: those that are dropped meanwhile do not matter yet.
            let batch = WriteBatch::from_parts(c.body.clone(), c.count, Tables::new());
            self.commit(batch, Form::stage(EntryKind::Prepare, c.head.clone(), Durability::Sync))?;
            // Durable at its new place: the old one may go.
            prepared.from.store(from, Ordering::Release);
        }
        Ok(())
    }

    /// Has what a replay found in doubt hold its locks again. Nobody else can yet be at work.
    pub(crate) fn adopt(self: &Arc<Self>, found: Vec<InDoubt>) -> Result<()> {
        for InDoubt { xid, lsn, count, body } in found {
            let stage = terrane_format::prepared::decode(EntryKind::Prepare, &body)?;
            let mut locks = self.transactions.owner();
            for lock in &stage.locks {
                let mode = if lock.exclusive { Mode::Exclusive } else { Mode::Shared };
                let taken = match lock.span {
                    Span::Key(key) => locks.lock_key(lock.subtable, key, mode, Patience::Never),
                    Span::Range(start, end) => {
                        locks.lock_range(lock.subtable, start, end, mode, Patience::Never)
                    }
                };
                taken.map_err(|_| {
                    Error::corruption(format!(
                        "the prepared transaction \"{}\" wants a lock that another one holds",
                        xid.escape_ascii()
                    ))
                })?;
            }
            let mut tables = Tables::new();
            let all = self.tables.load();
            for op in Ops::new(stage.ops) {
                let id = op?.subtable;
                if !tables.iter().any(|t| t.id == id)
                    && let Some(table) = all.by_id(id)
                {
                    tables.push(table.clone());
                }
            }
            let front = body.len() - stage.ops.len();
            let content = Content {
                head: body[..front].to_vec(),
                body: stage.ops.to_vec(),
                count,
                tables,
                _locks: locks,
            };
            let prepared = Prepared { from: AtomicU64::new(lsn), content: Mutex::new(Some(content)) };
            self.transactions.prepared.lock().insert(xid, Arc::new(prepared));
        }
        if !self.transactions.prepared.lock().is_empty() {
            self.guard_writes()?;
        }
        Ok(())
    }
}
