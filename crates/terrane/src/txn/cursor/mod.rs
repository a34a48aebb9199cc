//! Ordered reads within a transaction: the database's records and the transaction's own writes, merged.
//!
//! What the transaction has written is looked up at each step, so what it writes while a cursor is open is seen from there on.
//!
//! # Covering
//! A serializable transaction must see again what it has seen, and nothing new beside it. Its cursors therefore go window by
//! window: a stretch of keys is *covered* (locked; of an optimistic transaction noted) before anything in it is shown. How far a
//! window goes is guessed by looking a few keys ahead; what was seen of them before the lock was there is not used: with locks the
//! cursor begins anew in the window, on what is the latest then. Windows grow while a scan goes on.
//!
//! Cursors that lock rows and not windows: [`rows`]. Both ways are one piece of code ([`walk`]), which is told the direction.

mod direction;
pub(crate) mod rows;
mod walk;
mod window;

use std::borrow::Cow;
use std::sync::Arc;

use terrane_base::{Error, Result};

use crate::db::anchor::Anchor;
use crate::db::snapshot::SnapshotGuard;
use crate::read::iter::{Cursor, KeyValue, ReadOptions};
use crate::txn::big::run::OwnRun;
use crate::txn::cursor::direction::Way;
use crate::txn::cursor::rows::RowLocks;
use crate::txn::cursor::window::Window;
use crate::txn::transaction::Transaction;
use crate::txn::writes::Own;

/// Keys of the first window, and of the largest.
const FIRST_WINDOW: usize = 1;
const MOST_WINDOW: usize = 256;

/// A position among the keys of a subtable, as a transaction sees them. Made by [`Transaction::cursor`] and
/// [`Transaction::locking_cursor`]; starts nowhere: seek first. After an error it is not valid.
#[derive(Debug)]
pub struct TransactionCursor<'t> {
    txn: &'t mut Transaction,
    anchor: Anchor,
    /// The database's records, and above them what the transaction has spilled.
    base: Cursor,
    /// What of it the base shows: kept as long as that does.
    spilled: Vec<Arc<OwnRun>>,
    /// The state of the transaction's writes that this is.
    changes: u64,
    /// What the base shows; the latest whenever it is made anew, if there is none.
    snapshot: Option<SnapshotGuard>,
    covers: bool,
    /// How it locks what it shows.
    rows: Option<RowLocks>,
    bounds: Window,
    /// What is covered. Keys outside must not be shown.
    window: Window,
    ahead: usize,
    key: Vec<u8>,
    stands: Stands,
    /// How it came here: the base stands on `key`, or is past it this way.
    way: Way,
}

/// On what a cursor stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    Nowhere,
    OnBase,
    OnOwn,
}

impl<'t> TransactionCursor<'t> {
    pub(crate) fn new(
        txn: &'t mut Transaction,
        anchor: Anchor,
        options: ReadOptions,
        rows: Option<RowLocks>,
    ) -> Result<Self> {
        let (mut snapshot, mut covers) = txn.view();
        let locks_rows = rows.is_some() && !txn.is_optimistic();
        if locks_rows {
            // What is locked is the latest.
            snapshot = None;
            covers &= !rows.is_some_and(RowLocks::skips);
        }
        if let Some(asked) = &options.snapshot {
            if rows.is_some() {
                return Err(Error::invalid("a cursor that locks rows shows the latest, and no snapshot"));
            }
            txn.engine.check_snapshot(asked)?;
            (snapshot, covers) = (Some(asked.guard.clone()), false);
        }
        // Read committed: one moment for all of it, however often the base is made anew.
        if !covers && !locks_rows && snapshot.is_none() {
            snapshot = Some(txn.engine.register_owned());
        }
        let bounds = Window { start: options.lower.unwrap_or_default(), end: options.upper };
        let (base, spilled) = walk::base(txn, &anchor, snapshot.as_ref(), &bounds)?;
        let changes = txn.writes.changes();
        let mut window = bounds.clone();
        if covers {
            // Nothing is covered yet; without covering, all is.
            window.end = Some(bounds.start.clone());
        }
        Ok(TransactionCursor {
            txn,
            anchor,
            base,
            spilled,
            changes,
            snapshot,
            covers,
            rows,
            bounds,
            window,
            ahead: FIRST_WINDOW,
            key: Vec::new(),
            stands: Stands::Nowhere,
            way: Way::Forward,
        })
    }

    /// The transaction, to read or write with while the cursor keeps its place.
    pub fn transaction(&mut self) -> &mut Transaction {
        self.txn
    }

    /// Whether it stands on a key.
    pub fn valid(&self) -> bool {
        self.stands != Stands::Nowhere
    }

    /// The key under it; empty when not valid.
    pub fn key(&self) -> &[u8] {
        if self.valid() { &self.key } else { &[] }
    }

    /// The value under it, as it is now: empty when not valid, or if the transaction has deleted the key since it came here.
    ///
    /// # Errors
    /// I/O errors and corruption while reading; what kept the transaction from writing to disk what memory does not hold.
    pub fn value(&self) -> Result<Cow<'_, [u8]>> {
        if !self.valid() {
            return Ok(Cow::Borrowed(&[]));
        }
        match self.txn.writes.get(&self.anchor.table, &self.key) {
            Own::Value(value) => Ok(Cow::Borrowed(value)),
            Own::Deleted => Ok(Cow::Borrowed(&[])),
            Own::Unknown => {
                // It may have been lost on its way to the disk.
                self.txn.writes.check()?;
                let has_changed = self.changes != self.txn.writes.changes();
                if has_changed && let Some(own) = self.txn.writes.find(&self.anchor.table, &self.key)? {
                    return Ok(Cow::Owned(own.unwrap_or_default()));
                }
                if self.stands == Stands::OnBase && (self.spilled.is_empty() || !has_changed) {
                    return self.base.value();
                }
                // Its own write was undone, or what was spilled may have been: what the database has shows again.
                let seq = self.snapshot.as_ref().map(|s| s.seq);
                let value = self.txn.engine.get(&self.anchor.table, &self.key, seq, <[u8]>::to_vec)?;
                Ok(Cow::Owned(value.unwrap_or_default()))
            }
        }
    }

    /// To the first key at or after `key`.
    ///
    /// # Errors
    /// I/O errors and corruption; for locks as for [`Transaction::get`].
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        let from = key.max(&self.bounds.start).to_vec();
        self.go_anew(Way::Forward, Some(from))
    }

    /// To the last key at or before `key`.
    ///
    /// # Errors
    /// As for [`TransactionCursor::seek`].
    pub fn seek_for_prev(&mut self, key: &[u8]) -> Result<()> {
        let from = Way::Backward.ahead_of(key);
        let from = match &self.bounds.end {
            Some(end) if *end < from => end.clone(),
            _ => from,
        };
        self.go_anew(Way::Backward, Some(from))
    }

    /// To the first key within the bounds.
    ///
    /// # Errors
    /// As for [`TransactionCursor::seek`].
    pub fn seek_to_first(&mut self) -> Result<()> {
        self.seek(&[])
    }

    /// To the last key within the bounds.
    ///
    /// # Errors
    /// As for [`TransactionCursor::seek`].
    pub fn seek_to_last(&mut self) -> Result<()> {
        self.go_anew(Way::Backward, self.bounds.end.clone())
    }

    /// To the next key; not valid after the last one.
    ///
    /// # Errors
    /// As for [`TransactionCursor::seek`].
    #[allow(
        clippy::should_implement_trait,
        reason = "a cursor goes both ways and keeps its place: not an iterator"
    )]
    pub fn next(&mut self) -> Result<()> {
        self.go_on(Way::Forward)
    }

    /// To the key before; not valid before the first one.
    ///
    /// # Errors
    /// As for [`TransactionCursor::seek`].
    pub fn prev(&mut self) -> Result<()> {
        self.go_on(Way::Backward)
    }

    /// Key and value under the cursor, and on to the next: how to read on and on.
    ///
    /// # Errors
    /// As for [`TransactionCursor::seek`].
    pub fn take_next(&mut self) -> Result<Option<KeyValue>> {
        if !self.valid() {
            return Ok(None);
        }
        let record = (self.key.clone(), self.value()?.into_owned());
        self.next()?;
        Ok(Some(record))
    }

    /// To the nearest key past a cut, wherever it was before.
    fn go_anew(&mut self, way: Way, from: Option<Vec<u8>>) -> Result<()> {
        self.ahead = FIRST_WINDOW;
        if !self.covers {
            self.renew_base()?;
        }
        self.go(way, from, false)
    }

    /// To the nearest key past the one on which it stands.
    fn go_on(&mut self, way: Way) -> Result<()> {
        let stood = std::mem::replace(&mut self.stands, Stands::Nowhere);
        if stood == Stands::Nowhere {
            return Ok(());
        }
        let there = self.changes == self.txn.writes.changes()
            && match stood {
                Stands::OnBase => way.step(&mut self.base).map(|()| true)?,
                _ => self.way == way,
            };
        let from = way.past(&self.key);
        self.go(way, Some(from), there)
    }
}
