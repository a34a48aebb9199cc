//! The look at what an optimistic transaction has read and written, when it commits or is prepared.
//!
//! At the commit all that was written, and all that was read if the transaction is to be serializable, is locked, in the order of
//! the keys, so that transactions that commit seldom wait for each other in a circle (those that have read a range and write within it
//! may), and then compared with the snapshot.
//! From there on it is a transaction with locks.

use std::sync::Arc;

use terrane_base::{Result, Seq};
use terrane_locks::{Mode, Owner, Patience};

use crate::db::engine::Engine;
use crate::db::table::Table;
use crate::txn::reads::ReadSet;
use crate::txn::refusal::{conflict, refused};
use crate::txn::writes::OwnWrites;

/// Something to lock and to look at.
struct Claim<'a> {
    table: &'a Arc<Table>,
    start: &'a [u8],
    /// None: one key. Some(None): to the end.
    range: Option<Option<&'a [u8]>>,
    mode: Mode,
}

impl Engine {
    /// Locks what was read and written, and fails if any of it was changed after `seq`.
    pub(crate) fn validate(
        &self,
        owner: &mut Owner,
        patience: Patience,
        writes: &OwnWrites,
        reads: &ReadSet,
        seq: Seq,
    ) -> Result<()> {
        let mut claims: Vec<Claim<'_>> = Vec::new();
        let mode = Mode::Exclusive;
        claims.extend(writes.keys().map(|(table, start)| Claim { table, start, range: None, mode }));
        claims.extend(writes.ranges().map(|(table, start, end)| Claim {
            table,
            start,
            range: Some(Some(end)),
            mode,
        }));
        // Of what was spilled the bounds stand for the keys.
        let spilled: Vec<_> =
            writes.spilled_tables().flat_map(|t| writes.runs(t).into_iter().map(move |r| (t, r))).collect();
        for (table, run) in &spilled {
            if let Some((start, end)) = run.bounds() {
                claims.push(Claim { table, start, range: Some(Some(end)), mode });
            }
        }
        let mode = Mode::Shared;
        claims.extend(reads.iter().map(|(table, start, range)| Claim { table, start, range, mode }));
        // Of what is both written and read the stronger lock comes first.
        claims.sort_by(|a, b| {
            let shared = |c: &Claim<'_>| c.mode == Mode::Shared;
            (a.table.id, a.start, shared(a)).cmp(&(b.table.id, b.start, shared(b)))
        });
        for c in &claims {
            let taken = match c.range {
                None => owner.lock_key(c.table.id, c.start, c.mode, patience),
                Some(end) => owner.lock_range(c.table.id, c.start, end, c.mode, patience),
            };
            taken.map_err(|refusal| refused(refusal, c.table, c.start))?;
        }
        for c in &claims {
            let changed = match c.range {
                None => self.key_changed_since(c.table, c.start, seq)?,
                Some(end) => self.range_changed_since(c.table, c.start, end, seq)?,
            };
            if changed {
                return Err(conflict(c.table, c.start));
            }
        }
        Ok(())
    }
}
