//! What a transaction has written so far: the operations, in the form in which they will be logged, and an index by key, so that
//! the transaction reads its own writes.
//!
//! An operation's number decides between a key and a deleted range: the later one counts.

use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::sync::Arc;

use smallvec::SmallVec;
use terrane_base::{MAX_SEQ, MemoryBudget, Result, Seq};

use crate::batch::{Mark, WriteBatch};
use crate::db::subtable::Subtable;
use crate::db::table::Table;
use crate::tombstone::{During, MemTombstones};

/// See the module's head.
#[derive(Debug)]
pub(crate) struct OwnWrites {
    batch: WriteBatch,
    tables: SmallVec<[TableWrites; 2]>,
    /// What was in the index before, for going back; kept from the first savepoint on.
    undo: Vec<Undo>,
    keeps_undo: bool,
    /// Charged for the index of deleted ranges.
    budget: MemoryBudget,
}

/// What was written to one subtable.
#[derive(Debug)]
struct TableWrites {
    table: Arc<Table>,
    keys: BTreeMap<Box<[u8]>, Slot>,
    /// Deleted ranges, as they came, and the index of them by number of operation.
    ranges: Vec<Deleted>,
    covered: Option<MemTombstones>,
}

#[derive(Debug)]
struct Deleted {
    number: Seq,
    start: Box<[u8]>,
    end: Box<[u8]>,
}

/// The last operation on a key.
#[derive(Clone, Debug)]
struct Slot {
    /// Its number, from 1 on.
    number: Seq,
    value: Written,
}

#[derive(Clone, Debug)]
enum Written {
    Nothing,
    /// Where in the body the value lies.
    Inline(Range<usize>),
    /// Which one of the large puts.
    Large(usize),
}

#[derive(Debug)]
struct Undo {
    table: usize,
    key: Box<[u8]>,
    before: Option<Slot>,
}

/// What a transaction knows by itself of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Own<'a> {
    Unknown,
    Deleted,
    Value(&'a [u8]),
}

/// A moment in the course of the writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    mark: Mark,
    undo: usize,
}

impl OwnWrites {
    pub(crate) fn new(budget: MemoryBudget) -> Self {
        OwnWrites {
            batch: WriteBatch::new(),
            tables: SmallVec::new(),
            undo: Vec::new(),
            keeps_undo: false,
            budget,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.batch.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.batch.len()
    }

    /// Bytes of the encoded operations.
    pub(crate) fn bytes(&self) -> usize {
        self.batch.bytes()
    }

    pub(crate) fn into_batch(self) -> WriteBatch {
        self.batch
    }

    pub(crate) fn put(&mut self, subtable: &Subtable, key: &[u8], value: &[u8]) -> Result<()> {
        let large = self.batch.large().len();
        self.batch.put(subtable, key, value)?;
        let end = self.batch.body().len();
        let written = match self.batch.large().len() {
            n if n > large => Written::Large(large),
            _ => Written::Inline(end - value.len()..end),
        };
        self.index(subtable.table(), key, written);
        Ok(())
    }

    pub(crate) fn delete(&mut self, subtable: &Subtable, key: &[u8]) -> Result<()> {
        self.batch.delete(subtable, key)?;
        self.index(subtable.table(), key, Written::Nothing);
        Ok(())
    }

    pub(crate) fn delete_range(&mut self, subtable: &Subtable, start: &[u8], end: &[u8]) -> Result<()> {
        let before = self.batch.len();
        self.batch.delete_range(subtable, start, end)?;
        if self.batch.len() == before {
            return Ok(());
        }
        let number = self.batch.len() as Seq;
        let at = self.place(subtable.table());
        let budget = self.budget.clone();
        let writes = &mut self.tables[at];
        writes.ranges.push(Deleted { number, start: start.into(), end: end.into() });
        let covered = writes.covered.get_or_insert_with(|| MemTombstones::new(budget));
        covered.insert(0, number, start, end, During::Replay)
    }

    fn place(&mut self, table: &Arc<Table>) -> usize {
        let found = self.tables.iter().position(|w| Arc::ptr_eq(&w.table, table));
        found.unwrap_or_else(|| {
            self.tables.push(TableWrites {
                table: table.clone(),
                keys: BTreeMap::new(),
                ranges: Vec::new(),
                covered: None,
            });
            self.tables.len() - 1
        })
    }

    fn index(&mut self, table: &Arc<Table>, key: &[u8], value: Written) {
        let at = self.place(table);
        let slot = Slot { number: self.batch.len() as Seq, value };
        let keys = &mut self.tables[at].keys;
        let before = match keys.get_mut(key) {
            Some(old) => Some(std::mem::replace(old, slot)),
            None => {
                keys.insert(key.into(), slot);
                None
            }
        };
        if self.keeps_undo {
            self.undo.push(Undo { table: at, key: key.into(), before });
        }
    }

    fn of(&self, table: &Arc<Table>) -> Option<&TableWrites> {
        self.tables.iter().find(|w| Arc::ptr_eq(&w.table, table))
    }

    /// What is known of `key`.
    pub(crate) fn get(&self, table: &Arc<Table>, key: &[u8]) -> Own<'_> {
        let Some(writes) = self.of(table) else { return Own::Unknown };
        let cover = writes.cover(key);
        match writes.keys.get(key) {
            Some(slot) if slot.number > cover => self.value(slot),
            _ if cover > 0 => Own::Deleted,
            _ => Own::Unknown,
        }
    }

    fn value(&self, slot: &Slot) -> Own<'_> {
        match &slot.value {
            Written::Nothing => Own::Deleted,
            Written::Inline(range) => Own::Value(&self.batch.body()[range.clone()]),
            Written::Large(at) => Own::Value(&self.batch.large()[*at].value),
        }
    }

    /// The end of the deleted range in which `key` lies, whatever was put there later.
    pub(crate) fn deleted_up_to(&self, table: &Arc<Table>, key: &[u8]) -> Option<Vec<u8>> {
        let picture = self.of(table)?.covered.as_ref()?.picture(MAX_SEQ).ok()??;
        picture.fragment(key).map(|f| f.end.to_vec())
    }

    /// The start of the deleted range in which `key` lies.
    pub(crate) fn deleted_from(&self, table: &Arc<Table>, key: &[u8]) -> Option<Vec<u8>> {
        let picture = self.of(table)?.covered.as_ref()?.picture(MAX_SEQ).ok()??;
        picture.fragment(key).map(|f| f.start.to_vec())
    }

    /// The first key from `from` on that was put or deleted by itself, with what is known of it.
    pub(crate) fn next(&self, table: &Arc<Table>, from: Bound<&[u8]>) -> Option<(&[u8], Own<'_>)> {
        let writes = self.of(table)?;
        let (key, _) = writes.keys.range::<[u8], _>((from, Bound::Unbounded)).next()?;
        Some((key, self.get(table, key)))
    }

    /// The last key up to `to` that was put or deleted by itself, with what is known of it.
    pub(crate) fn prev(&self, table: &Arc<Table>, to: Bound<&[u8]>) -> Option<(&[u8], Own<'_>)> {
        let writes = self.of(table)?;
        let (key, _) = writes.keys.range::<[u8], _>((Bound::Unbounded, to)).next_back()?;
        Some((key, self.get(table, key)))
    }

    /// Every key that was put or deleted by itself, in order, by subtable.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (&Arc<Table>, &[u8])> {
        self.tables.iter().flat_map(|w| w.keys.keys().map(move |key| (&w.table, &**key)))
    }

    /// Every range that was deleted.
    pub(crate) fn ranges(&self) -> impl Iterator<Item = (&Arc<Table>, &[u8], &[u8])> {
        self.tables.iter().flat_map(|w| w.ranges.iter().map(move |r| (&w.table, &*r.start, &*r.end)))
    }

    /// The present moment, to come back to.
    pub(crate) fn moment(&mut self) -> Moment {
        self.keeps_undo = true;
        Moment { mark: self.batch.mark(), undo: self.undo.len() }
    }

    /// Nobody will come back any more.
    pub(crate) fn forget_moments(&mut self) {
        self.keeps_undo = false;
        self.undo = Vec::new();
    }

    /// Forgets what was written after `moment`.
    pub(crate) fn back_to(&mut self, moment: Moment) -> Result<()> {
        for undo in self.undo.drain(moment.undo..).rev() {
            let keys = &mut self.tables[undo.table].keys;
            match undo.before {
                Some(slot) => keys.insert(undo.key, slot),
                None => keys.remove(&undo.key),
            };
        }
        self.batch.truncate(moment.mark);
        let last = Seq::from(moment.mark.count);
        for writes in &mut self.tables {
            let kept = writes.ranges.partition_point(|r| r.number <= last);
            if kept == writes.ranges.len() {
                continue;
            }
            writes.ranges.truncate(kept);
            let covered = MemTombstones::new(self.budget.clone());
            for r in &writes.ranges {
                covered.insert(0, r.number, &r.start, &r.end, During::Replay)?;
            }
            writes.covered = (kept > 0).then_some(covered);
        }
        Ok(())
    }
}

impl TableWrites {
    /// The number of the last operation that deleted a range with `key` in it; 0 if none did.
    fn cover(&self, key: &[u8]) -> Seq {
        self.covered.as_ref().and_then(|c| c.covering(key, MAX_SEQ)).unwrap_or(0)
    }
}
