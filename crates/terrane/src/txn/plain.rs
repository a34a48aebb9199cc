//! Writes that are no transactions, beside transactions.
//!
//! A batch or a single put knows of no locks, and as long as nobody has begun a transaction since the database was opened, takes
//! none. From the first transaction on ([`Engine::guard_writes`]) it locks what it writes until it is published.
//!
//! # Concurrency
//! The first transaction must not begin while a commit that found the database unguarded is still on its way: it might not
//! see what that writes, and lock it, and find it unchanged. So a commit looks *after* it has reserved its place in the log; and
//! the first transaction first says that the database is guarded, then reserves a place too (a no-op), and waits until that is
//! settled. Reservations are read-modify-writes of one word, acquiring and releasing, so of the two one comes first: a commit
//! that reserved later sees the flag, one that reserved earlier is published before the no-op settles. A commit that sees the
//! flag only now fills its place with a no-op (a reserved place is always filled) and begins anew with locks, on another thread: the
//! one that leads may hold locks itself.

use std::sync::Arc;

use smallvec::smallvec;
use terrane_base::{Completion, Result};
use terrane_format::Kind;
use terrane_format::batch::{EntryKind, Ops};
use terrane_locks::{Mode, Owner, Patience};
use terrane_media::Pool;

use crate::batch::LargePut;
use crate::db::anchor::TableRef;
use crate::db::engine::Engine;
use crate::db::request::{Locks, Request, Requests};
use crate::txn::options::LockWait;
use crate::txn::refusal::refused;

impl Engine {
    /// Has writers lock what they write from now on; returns once no commit without locks is on its way.
    pub(crate) fn guard_writes(self: &Arc<Self>) -> Result<()> {
        // Where nobody can write any more, nobody need be kept from it.
        if self.transactions.guard_stands() || self.check_writable().is_err() {
            return Ok(());
        }
        let _guarding = self.transactions.guarding.lock();
        if !self.transactions.guard_stands() {
            self.transactions.begin_guard();
            if let Err(e) = self.barrier() {
                return if self.check_writable().is_err() { Ok(()) } else { Err(e) };
            }
            self.transactions.end_guard();
        }
        Ok(())
    }

    /// Returns once all that was reserved before is published.
    pub(crate) fn barrier(self: &Arc<Self>) -> Result<()> {
        let completion = Completion::new();
        self.place(smallvec![Request::no_op(completion.settler())]);
        completion.wait_helping(|| self.ring.resume(&**self)).map(drop)
    }

    /// Locks what a batch writes, in the order of the keys, so that batches do not wait for each other in a circle.
    pub(crate) fn lock_batch(&self, tables: &[TableRef], body: &[u8], large: &[LargePut]) -> Result<Owner> {
        let mut owner = self.transactions.owner();
        let mut spans = Vec::new();
        for op in Ops::new(body) {
            let op = op?;
            let end = (op.kind == Kind::RangeDelete).then_some(op.value);
            spans.push((op.subtable.0, op.key, end));
        }
        spans.extend(large.iter().map(|put| (put.subtable.0, &put.key[..], None::<&[u8]>)));
        spans.sort_unstable();
        spans.dedup();
        let patience = Patience::from(LockWait::default());
        for (subtable, key, end) in spans {
            let id = terrane_base::SubtableId(subtable);
            let taken = match end {
                None => owner.lock_key(id, key, Mode::Exclusive, patience),
                Some(end) => owner.lock_range(id, key, Some(end), Mode::Exclusive, patience),
            };
            if let Err(refusal) = taken {
                // Always there: a batch enters the subtables that it names.
                let table = tables.iter().find(|t| t.id == id);
                return Err(table.map_or_else(
                    || terrane_base::Error::corruption("a batch names a subtable that it did not enter"),
                    |t| refused(refusal, t, key),
                ));
            }
        }
        Ok(owner)
    }

    /// Commits requests that found the database guarded too late.
    pub(crate) fn commit_guarded(self: &Arc<Self>, requests: Requests) {
        let engine = self.clone();
        let job = move || {
            for mut r in requests {
                debug_assert!(r.kind == EntryKind::Batch);
                let locked = engine.lock_batch(&r.tables, r.ops(), &[]);
                match locked.and_then(|owner| engine.admit_again(&mut r).map(|()| owner)) {
                    Ok(owner) => {
                        r.locks = Locks::Held(Some(owner));
                        engine.place(smallvec![r]);
                    }
                    Err(e) => engine.refuse(r, e),
                }
            }
        };
        self.media.spawn(Pool::Flush, "commit", Box::new(job));
    }
}
