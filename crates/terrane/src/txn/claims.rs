//! What a transaction does so that nobody changes what it relies on: it takes locks, or, optimistic, notes what it has read.

use std::borrow::Cow;
use std::sync::Arc;

use terrane_base::{Error, Result};
use terrane_format::limits::{MAX_KEY, check_key};
use terrane_locks::Mode;

use crate::db::subtable::Subtable;
use crate::db::table::Table;
use crate::txn::refusal::{conflict, refused};
use crate::txn::transaction::Transaction;

impl Transaction {
    /// Locks a key that is to be written.
    pub(super) fn claim(&mut self, subtable: &Subtable, key: &[u8]) -> Result<()> {
        let table = self.table(subtable)?.clone();
        check_key(key)?;
        if self.optimistic {
            return Ok(());
        }
        // Who has asked for the lock has looked, or has read the latest. (Where many locks became ranges that is forgotten, and it
        // looks again: what it has read as the latest may then be a conflict.)
        let looked = self.snapshot.is_some() && self.locks.asked_for(table.id, key);
        let Some(seq) = self.snapshot_seq().filter(|_| !looked) else {
            return self.lock(&table, key, Mode::Exclusive);
        };
        self.undone_if_refused(|txn| {
            txn.lock(&table, key, Mode::Exclusive)?;
            if txn.engine.key_changed_since(&table, key, seq)? {
                return Err(txn.conflict(&table, key));
            }
            Ok(())
        })
    }

    /// Locks a range that is to be written.
    pub(super) fn claim_range(&mut self, table: &Arc<Table>, start: &[u8], end: &[u8]) -> Result<()> {
        if self.optimistic {
            return Ok(());
        }
        self.undone_if_refused(|txn| {
            txn.lock_range(table, start, Some(end), Mode::Exclusive)?;
            if let Some(seq) = txn.snapshot_seq()
                && txn.engine.range_changed_since(table, start, Some(end), seq)?
            {
                return Err(txn.conflict(table, start));
            }
            Ok(())
        })
    }

    /// Takes locks, and gives them back if that ends in an error: who tries again is told again.
    fn undone_if_refused(&mut self, f: impl FnOnce(&mut Transaction) -> Result<()>) -> Result<()> {
        let mark = self.locks.mark();
        let outcome = f(self);
        if outcome.is_err() {
            self.locks.release_to(mark);
        }
        self.locks.forget(mark);
        outcome
    }

    fn conflict(&self, table: &Table, key: &[u8]) -> Error {
        self.engine.transactions.conflicts.add(1);
        conflict(table, key)
    }

    pub(super) fn lock(&mut self, table: &Table, key: &[u8], mode: Mode) -> Result<()> {
        self.locks.lock_key(table.id, key, mode, self.patience).map_err(|r| refused(r, table, key))
    }

    /// Locks what lies between two keys.
    fn lock_range(&mut self, table: &Table, start: &[u8], end: Option<&[u8]>, mode: Mode) -> Result<()> {
        self.locks.lock_range(table.id, start, end, mode, self.patience).map_err(|r| refused(r, table, start))
    }

    /// Makes sure that nobody changes what this transaction has read in a range, or that it hears of it.
    pub(crate) fn cover(
        &mut self,
        table: &Arc<Table>,
        start: &[u8],
        end: Option<&[u8]>,
        mode: Mode,
    ) -> Result<()> {
        // What keys can lie between is the same, and locks that are to be kept on the device have bounds of a limited length.
        let (start, end) = (cut(start), end.map(cut));
        if self.optimistic {
            self.reads.range(table, &start, end.as_deref());
            return Ok(());
        }
        self.lock_range(table, &start, end.as_deref(), mode)
    }

    /// An optimistic transaction has read a key that it would have locked.
    pub(crate) fn note(&mut self, table: &Arc<Table>, key: &[u8]) {
        self.reads.key(table, key);
    }

    /// An optimistic transaction's look at what others have done. From here on it has locks.
    pub(super) fn validate(&mut self) -> Result<()> {
        let Some(snapshot) = self.snapshot.as_ref().filter(|_| self.optimistic) else { return Ok(()) };
        let checked =
            self.engine.validate(&mut self.locks, self.patience, &self.writes, &self.reads, snapshot.seq);
        checked.inspect_err(|_| self.engine.transactions.conflicts.add(1))
    }
}

/// The shortest string that has the same keys in front of it.
fn cut(bound: &[u8]) -> Cow<'_, [u8]> {
    match bound.get(..MAX_KEY) {
        Some(longest) if bound.len() > MAX_KEY => Cow::Owned([longest, &[0]].concat()),
        _ => Cow::Borrowed(bound),
    }
}
