//! A write batch: operations on one or more subtables that happen together or not at all.

use std::cell::Cell;
use std::sync::Arc;

use smallvec::SmallVec;
use terrane_base::{Error, ErrorKind, Result, SubtableId};
use terrane_format::Kind;
use terrane_format::batch::{Op, Ops, put_op};
use terrane_format::chain::record_len;
use terrane_format::limits::{check_key, check_value};

use crate::db::anchor::TableRef;
use crate::db::subtable::Subtable;

/// The subtables of a batch: mostly one.
pub(crate) type Tables = SmallVec<[TableRef; 2]>;

/// Bytes that the records of a batch take in persistent memory ([`record_len`]), in each of its subtables, in their order.
pub(crate) type Lengths = SmallVec<[u32; 2]>;

/// Operations that one commit applies atomically, across subtables, at any crash point. Later operations on a key win
/// over earlier ones.
///
/// The operations are encoded as they are added, in the form in which the log stores them.
///
/// # Limits
/// Keys up to 64 KiB, values up to 1 GiB; all operations together, large values apart, up to
/// [`crate::Db::max_batch_bytes`].
#[derive(Debug, Default)]
pub struct WriteBatch {
    body: Vec<u8>,
    count: u32,
    /// The distinct subtables named, in the order of their first use.
    tables: Tables,
    /// Of each of them; counted while operations are added one by one, and else not there.
    lengths: Lengths,
    large: Vec<LargePut>,
}

/// Bytes of an operation beside key and value, at most: its kind, and three varints.
const OP_OVERHEAD: usize = 1 + 3 * 5;

/// A put whose value is stored apart: it is written at commit, and its operation inserted into the body at `at`.
#[derive(Debug)]
pub(crate) struct LargePut {
    pub(crate) at: usize,
    pub(crate) subtable: SubtableId,
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

/// Memory of operations that a thread keeps for its next batch is no more than this.
const KEPT_BYTES: usize = 4 << 10;

thread_local! {
    /// What the operations of one that was committed lay in.
    static KEPT: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Keeps the memory of operations that were committed, for the next [`WriteBatch::of_one`] of this thread.
#[inline]
pub(crate) fn keep(mut body: Vec<u8>) {
    if (1..=KEPT_BYTES).contains(&body.capacity()) {
        body.clear();
        // A thread that ends has no next one.
        let _ = KEPT.try_with(|kept| kept.set(body));
    }
}

/// A length of a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mark {
    body: usize,
    pub(crate) count: u32,
    large: usize,
    tables: usize,
}

impl WriteBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty batch for an operation that is committed at once.
    #[inline]
    pub(crate) fn of_one() -> Self {
        WriteBatch { body: KEPT.try_with(Cell::take).unwrap_or_default(), ..Self::default() }
    }

    /// Sets `key` to `value`.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`], [`ErrorKind::SubtableDropped`]; [`ErrorKind::InvalidArgument`] if the batch holds
    /// operations on another database.
    pub fn put(&mut self, subtable: &Subtable, key: &[u8], value: &[u8]) -> Result<()> {
        check_key(key)?;
        check_value(value)?;
        let at = self.enter(subtable)?;
        let table = subtable.table();
        if value.len() >= table.value_threshold() {
            self.large.push(LargePut {
                at: self.body.len(),
                subtable: table.id,
                key: key.into(),
                value: value.into(),
            });
            self.count += 1;
        } else {
            self.push(at, Op { kind: Kind::Put, subtable: table.id, key, value });
        }
        Ok(())
    }

    /// Removes `key`.
    ///
    /// # Errors
    /// As for [`WriteBatch::put`].
    pub fn delete(&mut self, subtable: &Subtable, key: &[u8]) -> Result<()> {
        check_key(key)?;
        let at = self.enter(subtable)?;
        self.push(at, Op { kind: Kind::Delete, subtable: subtable.table().id, key, value: &[] });
        Ok(())
    }

    /// Removes every key from `start` (included) to `end` (excluded). Costs the same however many keys there are; an
    /// empty or inverted range removes nothing.
    ///
    /// # Errors
    /// As for [`WriteBatch::put`].
    pub fn delete_range(&mut self, subtable: &Subtable, start: &[u8], end: &[u8]) -> Result<()> {
        check_key(start)?;
        check_key(end)?;
        let at = self.enter(subtable)?;
        if start < end {
            let subtable = subtable.table().id;
            self.push(at, Op { kind: Kind::RangeDelete, subtable, key: start, value: end });
        }
        Ok(())
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there is no operation.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes of the encoded operations: what counts against [`crate::Db::max_batch_bytes`], but for large values.
    pub fn bytes(&self) -> usize {
        self.body.len()
    }

    /// Forgets all operations, keeping the memory.
    pub fn clear(&mut self) {
        self.body.clear();
        self.count = 0;
        self.tables.clear();
        self.lengths.clear();
        self.large.clear();
    }

    /// Adds an operation on the subtable of that number.
    fn push(&mut self, at: usize, op: Op<'_>) {
        // (Where a batch was cut they are not there.)
        if let Some(len) = self.lengths.get_mut(at) {
            *len = len.saturating_add(length_of(&op));
        }
        // One growth for what one operation takes.
        self.body.reserve(op.key.len() + op.value.len() + OP_OVERHEAD);
        put_op(&mut self.body, &op);
        self.count += 1;
    }

    /// The subtable's number among those of the batch.
    fn enter(&mut self, subtable: &Subtable) -> Result<usize> {
        let table = subtable.table();
        if let Some(last) = self.tables.last()
            && Arc::ptr_eq(last, table)
        {
            return Ok(self.tables.len() - 1);
        }
        if let Some(at) = self.tables.iter().position(|t| Arc::ptr_eq(t, table)) {
            return Ok(at);
        }
        if let Some(first) = self.tables.first()
            && first.database != table.database
        {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "one write batch names subtables of two databases",
            )
            .with_subtable(&*table.name));
        }
        table.check_alive()?;
        if self.lengths.len() == self.tables.len() {
            self.lengths.push(0);
        }
        self.tables.push(subtable.table_ref());
        Ok(self.tables.len() - 1)
    }

    /// The encoded operations, without large puts.
    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    pub(crate) fn large(&self) -> &[LargePut] {
        &self.large
    }

    /// How far it has come, to come back to.
    pub(crate) fn mark(&self) -> Mark {
        let (body, large, tables) = (self.body.len(), self.large.len(), self.tables.len());
        Mark { body, count: self.count, large, tables }
    }

    /// Forgets the operations that were added after `mark` was taken.
    pub(crate) fn truncate(&mut self, mark: Mark) {
        self.body.truncate(mark.body);
        self.count = mark.count;
        self.large.truncate(mark.large);
        self.tables.truncate(mark.tables);
        self.forget_lengths();
    }

    /// They are counted again when they are asked for.
    fn forget_lengths(&mut self) {
        self.lengths.clear();
    }

    pub(crate) fn tables(&self) -> &[TableRef] {
        &self.tables
    }

    pub(crate) fn take_large(&mut self) -> Vec<LargePut> {
        std::mem::take(&mut self.large)
    }

    /// Inserts the references to large values where their puts stood. `refs` matches `large` one to one.
    pub(crate) fn insert_refs(&mut self, large: &[LargePut], refs: &[Vec<u8>]) {
        let mut body = Vec::with_capacity(self.body.len() + refs.iter().map(|r| r.len() + 64).sum::<usize>());
        let mut from = 0;
        for (put, value) in large.iter().zip(refs) {
            body.extend_from_slice(&self.body[from..put.at]);
            from = put.at;
            put_op(&mut body, &Op { kind: Kind::ValueRef, subtable: put.subtable, key: &put.key, value });
        }
        body.extend_from_slice(&self.body[from..]);
        self.body = body;
        self.forget_lengths();
    }

    /// Operations that are encoded already, on these subtables.
    pub(crate) fn from_parts(body: Vec<u8>, count: u32, tables: Tables) -> Self {
        WriteBatch { body, count, tables, lengths: Lengths::new(), large: Vec::new() }
    }

    /// Counts what the records take in persistent memory, large puts apart.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] for 4 GiB and more; for a batch that names a subtable that it did not enter.
    pub(crate) fn count_lengths(&mut self) -> Result<()> {
        if self.lengths.len() != self.tables.len() {
            self.lengths = self.tables.iter().map(|_| 0).collect();
            for op in Ops::new(&self.body) {
                let op = op?;
                let at = self.tables.iter().position(|t| t.id == op.subtable);
                let at =
                    at.ok_or_else(|| Error::corruption("a batch names a subtable that it did not enter"))?;
                self.lengths[at] = self.lengths[at].saturating_add(length_of(&op));
            }
        }
        if self.lengths.contains(&u32::MAX) {
            return Err(Error::limit("bytes of a batch's records", u32::MAX.into(), u64::from(u32::MAX) - 1));
        }
        Ok(())
    }

    /// Those that were [counted](WriteBatch::count_lengths).
    pub(crate) fn lengths(&self) -> &[u32] {
        &self.lengths
    }

    /// The encoded operations, their number, the subtables, and what their records take if that was counted.
    pub(crate) fn into_parts(self) -> (Vec<u8>, u32, Tables, Lengths) {
        (self.body, self.count, self.tables, self.lengths)
    }
}

/// Bytes of an operation's record.
fn length_of(op: &Op<'_>) -> u32 {
    u32::try_from(record_len(op.key.len(), op.value.len())).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_the_memory_of_one_batch_and_none_of_its_operations() {
        let capacity = || WriteBatch::of_one().body.capacity();
        let mut body = Vec::with_capacity(100);
        body.push(1);
        let at = body.as_ptr();
        keep(body);
        let next = WriteBatch::of_one();
        assert!(next.is_empty() && next.body.is_empty() && next.body.as_ptr() == at);
        assert_eq!(capacity(), 0, "it is in use");
        keep(vec![0; KEPT_BYTES + 1]);
        assert_eq!(capacity(), 0, "too large to be kept");
        keep(Vec::new());
        assert_eq!(capacity(), 0);
    }
}
