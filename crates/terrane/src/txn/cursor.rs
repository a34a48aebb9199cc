//! Ordered reads within a transaction: the database's records and the transaction's own writes, merged.
//!
//! What the transaction has written is looked up at each step, so what it writes while a cursor is open is seen from there on.
//!
//! # Covering
//! A serializable transaction must see again what it has seen, and nothing new beside it. Its cursors therefore go window by
//! window: a stretch of keys is *covered* (locked; of an optimistic transaction noted) before anything in it is shown. How far a
//! window goes is guessed by looking a few keys ahead; what was seen of them before the lock was there is not used: with locks the
//! cursor begins anew in the window, on what is the latest then. Windows grow while a scan goes on.

use std::borrow::Cow;
use std::ops::Bound;
use std::sync::Arc;

use terrane_base::Result;

use crate::db::snapshot::{Snapshot, SnapshotGuard};
use crate::db::table::Table;
use crate::read::iter::{Cursor, KeyValue, ReadOptions};
use crate::txn::big::run::OwnRun;
use crate::txn::transaction::Transaction;
use crate::txn::writes::Own;

/// Keys of the first window, and of the largest.
const FIRST_WINDOW: usize = 1;
const MOST_WINDOW: usize = 256;

/// A position among the keys of a subtable, as a transaction sees them. Made by [`Transaction::cursor`]; starts nowhere: seek
/// first. After an error it is not valid.
#[derive(Debug)]
pub struct TransactionCursor<'t> {
    txn: &'t mut Transaction,
    table: Arc<Table>,
    /// The database's records, and above them what the transaction has spilled.
    base: Cursor,
    /// What of it the base shows: kept as long as that does.
    spilled: Vec<Arc<OwnRun>>,
    /// The state of [`OwnWrites`] that this is.
    changes: u64,
    /// What the base shows; the latest whenever it is made anew, if there is none.
    snapshot: Option<SnapshotGuard>,
    covers: bool,
    lower: Vec<u8>,
    upper: Option<Vec<u8>>,
    /// Covered: from here on, up to there. Keys outside must not be shown.
    window: (Vec<u8>, Option<Vec<u8>>),
    ahead: usize,
    key: Vec<u8>,
    stands: Stands,
    /// The base stands on its first key at or after `key`; else on its last one at or before it.
    base_is_ahead: bool,
}

/// On what a cursor stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stands {
    Nowhere,
    OnBase,
    OnOwn,
}

impl<'t> TransactionCursor<'t> {
    pub(crate) fn new(txn: &'t mut Transaction, table: Arc<Table>, options: ReadOptions) -> Result<Self> {
        let (mut snapshot, mut covers) = txn.view();
        if let Some(asked) = &options.snapshot {
            txn.engine.check_snapshot(asked)?;
            (snapshot, covers) = (Some(asked.guard.clone()), false);
        }
        // Read committed: one moment for all of it, however often the base is made anew.
        if !covers && snapshot.is_none() {
            snapshot = Some(txn.engine.snapshots.register(|| txn.engine.visible()));
        }
        let lower = options.lower.clone().unwrap_or_default();
        let upper = options.upper.clone();
        let (base, spilled) = base(txn, &table, snapshot.as_ref(), &lower, upper.as_deref())?;
        let changes = txn.writes.changes();
        // Nothing is covered yet; without covering, all is.
        let window =
            if covers { (lower.clone(), Some(lower.clone())) } else { (lower.clone(), upper.clone()) };
        Ok(TransactionCursor {
            txn,
            table,
            base,
            spilled,
            changes,
            snapshot,
            covers,
            lower,
            upper,
            window,
            ahead: FIRST_WINDOW,
            key: Vec::new(),
            stands: Stands::Nowhere,
            base_is_ahead: false,
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
    /// I/O errors and corruption while reading a large value.
    pub fn value(&self) -> Result<Cow<'_, [u8]>> {
        if !self.valid() {
            return Ok(Cow::Borrowed(&[]));
        }
        match self.txn.writes.get(&self.table, &self.key) {
            Own::Value(value) => Ok(Cow::Borrowed(value)),
            Own::Deleted => Ok(Cow::Borrowed(&[])),
            Own::Unknown => {
                if self.changes != self.txn.writes.changes()
                    && let Some(own) = self.txn.writes.find(&self.table, &self.key)?
                {
                    return Ok(Cow::Owned(own.unwrap_or_default()));
                }
                if self.stands == Stands::OnBase {
                    return self.base.value();
                }
                // Its own write was undone: what the database has shows again.
                let seq = self.snapshot.as_ref().map(|s| s.seq);
                let value = self.txn.engine.get(&self.table, &self.key, seq, <[u8]>::to_vec)?;
                Ok(Cow::Owned(value.unwrap_or_default()))
            }
        }
    }

    /// To the first key at or after `key`.
    ///
    /// # Errors
    /// I/O errors and corruption; for locks as for [`Transaction::get`].
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.ahead = FIRST_WINDOW;
        let from = key.max(&self.lower).to_vec();
        self.forward(from, false)
    }

    /// To the last key at or before `key`.
    ///
    /// # Errors
    /// As for [`TransactionCursor::seek`].
    pub fn seek_for_prev(&mut self, key: &[u8]) -> Result<()> {
        self.ahead = FIRST_WINDOW;
        let to = [key, &[0]].concat();
        let to = match &self.upper {
            Some(upper) if *upper < to => upper.clone(),
            _ => to,
        };
        self.backward(Some(to), false)
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
        self.ahead = FIRST_WINDOW;
        self.backward(self.upper.clone(), false)
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
        if !self.valid() {
            return Ok(());
        }
        let there = match self.stands {
            _ if self.changes != self.txn.writes.changes() => false,
            Stands::OnBase => {
                self.base.next()?;
                true
            }
            _ => self.base_is_ahead,
        };
        let behind = [&self.key[..], &[0]].concat();
        self.forward(behind, there)
    }

    /// To the key before; not valid before the first one.
    ///
    /// # Errors
    /// As for [`TransactionCursor::seek`].
    pub fn prev(&mut self) -> Result<()> {
        if !self.valid() {
            return Ok(());
        }
        let there = match self.stands {
            _ if self.changes != self.txn.writes.changes() => false,
            Stands::OnBase => {
                self.base.prev()?;
                true
            }
            _ => !self.base_is_ahead,
        };
        let key = std::mem::take(&mut self.key);
        self.backward(Some(key), there)
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

    /// To the first key at or after `from`; the base may be `there` already.
    fn forward(&mut self, mut from: Vec<u8>, mut there: bool) -> Result<()> {
        self.stands = Stands::Nowhere;
        self.base_is_ahead = true;
        self.see_spills()?;
        loop {
            if self.upper.as_ref().is_some_and(|upper| from >= *upper) {
                return Ok(());
            }
            let inside = self.window.0 <= from && self.window.1.as_ref().is_none_or(|end| from < *end);
            if !inside {
                self.cover_from(&from)?;
            }
            if !there || !inside {
                self.base.seek(&from)?;
            }
            there = false;
            if self.stand_forward(&from)? {
                return Ok(());
            }
            match &self.window.1 {
                Some(end) if self.covers && self.upper.as_ref() != Some(end) => from.clone_from(end),
                _ => return Ok(()),
            }
        }
    }

    /// Stands on the first key in the window at or after `from`, if there is one. The base stands at or after `from`.
    fn stand_forward(&mut self, from: &[u8]) -> Result<bool> {
        let end = self.window.1.clone();
        let within = |key: &[u8]| end.as_deref().is_none_or(|end| key < end);
        let mut after = Bound::Included(from.to_vec());
        loop {
            // What the transaction has deleted, the database does not show.
            while self.base.valid() && within(self.base.key()) {
                match self.txn.writes.deleted_up_to(&self.table, self.base.key()) {
                    Some(end) => self.base.seek(&end)?,
                    None => break,
                }
            }
            let base = Some(self.base.key()).filter(|key| self.base.valid() && within(key));
            let bound = after.as_ref().map(Vec::as_slice);
            let own = self.txn.writes.next(&self.table, bound).filter(|(key, _)| within(key));
            match (base, own) {
                (Some(b), own) if own.is_none_or(|(o, _)| b < o) => {
                    self.key = b.to_vec();
                    self.stands = Stands::OnBase;
                    return Ok(true);
                }
                (_, None) => return Ok(false),
                (base, Some((o, what))) => {
                    let key = o.to_vec();
                    let shown = matches!(what, Own::Value(_));
                    if base == Some(&key[..]) {
                        self.base.next()?;
                    }
                    if shown {
                        self.key = key;
                        self.stands = Stands::OnOwn;
                        return Ok(true);
                    }
                    after = Bound::Excluded(key);
                }
            }
        }
    }

    /// To the last key before `to`; the base may be `there` already.
    fn backward(&mut self, mut to: Option<Vec<u8>>, mut there: bool) -> Result<()> {
        self.stands = Stands::Nowhere;
        self.base_is_ahead = false;
        self.see_spills()?;
        loop {
            if to.as_ref().is_some_and(|to| *to <= self.lower) {
                return Ok(());
            }
            let reaches = match (&self.window.1, &to) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(end), Some(to)) => to <= end,
            };
            let inside = reaches && to.as_ref().is_none_or(|to| self.window.0 < *to);
            if !inside {
                self.cover_to(to.as_deref())?;
            }
            if !there || !inside {
                self.base_before(to.as_deref())?;
            }
            there = false;
            if self.stand_backward(to.as_deref())? {
                return Ok(());
            }
            if !self.covers || self.window.0 <= self.lower {
                return Ok(());
            }
            to = Some(self.window.0.clone());
        }
    }

    /// Puts the base on its last key before `to`.
    fn base_before(&mut self, to: Option<&[u8]>) -> Result<()> {
        match to {
            None => self.base.seek_to_last(),
            Some(to) => {
                self.base.seek_for_prev(to)?;
                if self.base.valid() && self.base.key() >= to { self.base.prev() } else { Ok(()) }
            }
        }
    }

    /// Stands on the last key in the window before `to`, if there is one. So does the base.
    fn stand_backward(&mut self, to: Option<&[u8]>) -> Result<bool> {
        let start = self.window.0.clone();
        let mut before = to.map_or(Bound::Unbounded, |to| Bound::Excluded(to.to_vec()));
        loop {
            while self.base.valid() && self.base.key() >= &start[..] {
                match self.txn.writes.deleted_from(&self.table, self.base.key()) {
                    Some(from) => self.base_before(Some(&from))?,
                    None => break,
                }
            }
            let base = Some(self.base.key()).filter(|key| self.base.valid() && *key >= &start[..]);
            let bound = before.as_ref().map(Vec::as_slice);
            let own = self.txn.writes.prev(&self.table, bound).filter(|(key, _)| *key >= &start[..]);
            match (base, own) {
                (Some(b), own) if own.is_none_or(|(o, _)| b > o) => {
                    self.key = b.to_vec();
                    self.stands = Stands::OnBase;
                    return Ok(true);
                }
                (_, None) => return Ok(false),
                (base, Some((o, what))) => {
                    let key = o.to_vec();
                    let shown = matches!(what, Own::Value(_));
                    if base == Some(&key[..]) {
                        self.base.prev()?;
                    }
                    if shown {
                        self.key = key;
                        self.stands = Stands::OnOwn;
                        return Ok(true);
                    }
                    before = Bound::Excluded(key);
                }
            }
        }
    }

    /// Makes a window that begins at `from`.
    fn cover_from(&mut self, from: &[u8]) -> Result<()> {
        self.renew_base()?;
        self.base.seek(from)?;
        for _ in 1..self.ahead {
            self.base.next()?;
        }
        let end = if self.base.valid() { Some([self.base.key(), &[0]].concat()) } else { self.upper.clone() };
        self.ahead = (self.ahead * 2).min(MOST_WINDOW);
        self.txn.cover(&self.table, from, end.as_deref())?;
        self.window = (from.to_vec(), end);
        self.renew_base()
    }

    /// Makes a window that ends at `to`.
    fn cover_to(&mut self, to: Option<&[u8]>) -> Result<()> {
        self.renew_base()?;
        self.base_before(to)?;
        for _ in 1..self.ahead {
            self.base.prev()?;
        }
        let start = if self.base.valid() { self.base.key().to_vec() } else { self.lower.clone() };
        self.ahead = (self.ahead * 2).min(MOST_WINDOW);
        self.txn.cover(&self.table, &start, to)?;
        self.window = (start, to.map(<[u8]>::to_vec));
        self.renew_base()
    }

    /// Has the base show the latest, if it is to.
    fn renew_base(&mut self) -> Result<()> {
        if self.snapshot.is_none() { self.make_base() } else { Ok(()) }
    }

    /// Has the base show what was spilled since it was made, and nothing that was undone.
    fn see_spills(&mut self) -> Result<()> {
        self.txn.writes.check()?;
        if self.changes == self.txn.writes.changes() { Ok(()) } else { self.make_base() }
    }

    fn make_base(&mut self) -> Result<()> {
        let snapshot = self.snapshot.as_ref();
        let made = base(self.txn, &self.table, snapshot, &self.lower, self.upper.as_deref())?;
        (self.base, self.spilled) = made;
        self.changes = self.txn.writes.changes();
        Ok(())
    }
}

fn base(
    txn: &Transaction,
    table: &Arc<Table>,
    snapshot: Option<&SnapshotGuard>,
    lower: &[u8],
    upper: Option<&[u8]>,
) -> Result<(Cursor, Vec<Arc<OwnRun>>)> {
    let snapshot = snapshot.map(|guard| Snapshot { guard: guard.clone(), database: txn.engine.database });
    let options = ReadOptions { snapshot, lower: Some(lower.to_vec()), upper: upper.map(<[u8]>::to_vec) };
    let spilled = txn.writes.runs(table);
    let own = spilled.iter().map(|r| r.run().clone()).collect();
    Ok((Cursor::over(txn.engine.clone(), table.clone(), options, own)?, spilled))
}
