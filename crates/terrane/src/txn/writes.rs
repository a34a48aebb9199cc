//! What a transaction has written so far: the operations, in the form in which they will be logged, and an index by key, so that
//! the transaction reads its own writes.
//!
//! An operation's number decides between a key and a deleted range: the later one counts.
//!
//! What grows beyond the transaction's share of memory is spilled (`super::big`): then there are layers beneath what is here.

use std::collections::{BTreeMap, btree_map::Entry};
use std::ops::{Bound, Range};
use std::sync::Arc;

use smallvec::SmallVec;
use terrane_base::{Error, MAX_SEQ, Result, Seq};
use terrane_format::Kind;
use terrane_format::tombstone::RangeTombstones;

use crate::batch::{Mark, WriteBatch};
use crate::db::engine::Engine;
use crate::db::subtable::Subtable;
use crate::db::table::Table;
use crate::tombstone::{During, MemTombstones};
use crate::txn::big::layers::Layers;
use crate::txn::big::run::{FIRST_OWN, Found, OwnRun, OwnWriter};

/// What a key costs in memory beside its bytes, about.
const KEY_OVERHEAD: usize = 96;
/// What a deleted range costs beside its bytes, about: it stands in a tree.
const RANGE_OVERHEAD: usize = 320;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct OwnWrites {
    engine: Arc<Engine>,
    batch: WriteBatch,
    /// Bytes of the values that will be stored apart.
    large_bytes: usize,
    /// Keys in the index.
    keys: usize,
    tables: SmallVec<[TableWrites; 2]>,
    /// What was in the index before, for going back; kept from the first savepoint on.
    undo: Vec<Undo>,
    keeps_undo: bool,
    /// Operations that were spilled.
    spilled: u64,
    /// The sequence of the next layer.
    next_layer: Seq,
    /// Grows whenever layers change, or something is undone.
    changes: u64,
    /// Why something that was written is lost: the transaction cannot go on.
    broken: Option<Error>,
}

/// What was written to one subtable.
#[derive(Debug)]
struct TableWrites {
    table: Arc<Table>,
    keys: BTreeMap<Box<[u8]>, Slot>,
    /// Deleted ranges, as they came, and the index of them by number of operation.
    ranges: Vec<Deleted>,
    covered: Option<MemTombstones>,
    layers: Layers,
}

/// What was written to a subtable between two moments.
#[derive(Debug, Default)]
struct Stretch {
    keys: BTreeMap<Box<[u8]>, Slot>,
    ranges: Vec<Deleted>,
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
    /// Layers of this sequence and those above came later.
    layer: Seq,
    /// Operations so far.
    count: u64,
}

impl OwnWrites {
    pub(crate) fn new(engine: &Arc<Engine>) -> Self {
        OwnWrites {
            engine: engine.clone(),
            batch: WriteBatch::new(),
            large_bytes: 0,
            keys: 0,
            tables: SmallVec::new(),
            undo: Vec::new(),
            keeps_undo: false,
            spilled: 0,
            next_layer: FIRST_OWN,
            changes: 0,
            broken: None,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> u64 {
        self.spilled + self.batch.len() as u64
    }

    /// Whether some of it is no longer in memory.
    fn is_spilled(&self) -> bool {
        self.tables.iter().any(|w| !w.layers.is_empty())
    }

    /// Whether it is to be committed as runs: some of it was spilled, or all of it, with `more` bytes beside it, is too much for one
    /// entry of the log.
    pub(crate) fn is_large_with(&self, more: usize) -> bool {
        // References to large values are far smaller than this.
        let references =
            self.batch.large().iter().map(|put| put.key.len() + 64 + put.value.len() / (32 << 10));
        let bytes = self.batch.bytes() + references.sum::<usize>() + more;
        // What fits half of a zone, which is the largest batch, is a record of up to 16/3 as much where keys are tiny.
        let chains = self.engine.journal.chains();
        let share = if chains.is_some() { 3 } else { 2 };
        self.is_spilled()
            || bytes as u64 > self.engine.options.max_batch_bytes() / share
            || chains.is_some_and(|chains| self.tables.len() as u64 > chains.most_subtables_of_a_commit())
    }

    pub(crate) fn is_large(&self) -> bool {
        self.is_large_with(0)
    }

    /// Memory that it takes, about.
    pub(crate) fn memory(&self) -> usize {
        let ranges: usize = self.tables.iter().map(|w| w.ranges.len()).sum();
        self.batch.bytes()
            + self.large_bytes
            + (self.keys + self.undo.len()) * KEY_OVERHEAD
            + ranges * RANGE_OVERHEAD
    }

    /// Grows whenever what lies beneath [`OwnWrites::get`] changes, and when something is undone.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Fails if something that was written is lost.
    pub(crate) fn check(&self) -> Result<()> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn into_batch(self) -> WriteBatch {
        self.batch
    }

    pub(crate) fn put(&mut self, subtable: &Subtable, key: &[u8], value: &[u8]) -> Result<()> {
        let large = self.batch.large().len();
        self.batch.put(subtable, key, value)?;
        let end = self.batch.body().len();
        let written = match self.batch.large().len() {
            n if n > large => {
                self.large_bytes += value.len();
                Written::Large(large)
            }
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
        let budget = self.engine.memory.indexes().clone();
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
                layers: Layers::default(),
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
                self.keys += 1;
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

    /// What is known of `key` in memory.
    pub(crate) fn get(&self, table: &Arc<Table>, key: &[u8]) -> Own<'_> {
        let Some(writes) = self.of(table) else { return Own::Unknown };
        let cover = writes.cover(key);
        match writes.keys.get(key) {
            Some(slot) if slot.number > cover => self.value(slot),
            _ if cover > 0 => Own::Deleted,
            _ => Own::Unknown,
        }
    }

    /// What is known of `key`: its value, if it has one; nothing if nothing is known.
    pub(crate) fn find(&self, table: &Arc<Table>, key: &[u8]) -> Result<Option<Option<Vec<u8>>>> {
        self.check()?;
        match self.get(table, key) {
            Own::Value(value) => return Ok(Some(Some(value.to_vec()))),
            Own::Deleted => return Ok(Some(None)),
            Own::Unknown => {}
        }
        let Some(writes) = self.of(table) else { return Ok(None) };
        match writes.layers.find(&self.engine, key)? {
            Found::Nothing => Ok(None),
            Found::Deleted => Ok(Some(None)),
            Found::Record(Kind::ValueRef, value) => self.engine.read_large(&value).map(|v| Some(Some(v))),
            Found::Record(_, value) => Ok(Some(Some(value))),
        }
    }

    /// What was spilled, the newest first.
    pub(crate) fn runs(&self, table: &Arc<Table>) -> Vec<Arc<OwnRun>> {
        self.of(table).map(|w| w.layers.runs()).unwrap_or_default()
    }

    /// The subtables of which something was spilled.
    pub(crate) fn spilled_tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.tables.iter().filter(|w| !w.layers.is_empty()).map(|w| &w.table)
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
        Moment { mark: self.batch.mark(), undo: self.undo.len(), layer: self.next_layer, count: self.len() }
    }

    /// Nobody will come back any more.
    pub(crate) fn forget_moments(&mut self) {
        self.keeps_undo = false;
        self.undo = Vec::new();
    }

    /// Forgets what was written after `moment`.
    pub(crate) fn back_to(&mut self, moment: Moment) -> Result<()> {
        self.changes += 1;
        if moment.layer < self.next_layer {
            // All that is in memory came later.
            self.clear();
            self.spilled = moment.count;
            self.tables.iter_mut().for_each(|w| w.layers.truncate(moment.layer));
            return Ok(());
        }
        for undo in self.undo.drain(moment.undo..).rev() {
            let keys = &mut self.tables[undo.table].keys;
            match undo.before {
                Some(slot) => keys.insert(undo.key, slot),
                None => {
                    self.keys -= 1;
                    keys.remove(&undo.key)
                }
            };
        }
        self.batch.truncate(moment.mark);
        self.large_bytes = self.batch.large().iter().map(|put| put.value.len()).sum();
        let last = Seq::from(moment.mark.count);
        for writes in &mut self.tables {
            let kept = writes.ranges.partition_point(|r| r.number <= last);
            if kept == writes.ranges.len() {
                continue;
            }
            writes.ranges.truncate(kept);
            let covered = MemTombstones::new(self.engine.memory.indexes().clone());
            for r in &writes.ranges {
                covered.insert(0, r.number, &r.start, &r.end, During::Replay)?;
            }
            writes.covered = (kept > 0).then_some(covered);
        }
        Ok(())
    }

    /// Forgets what is in memory.
    fn clear(&mut self) {
        self.batch.clear();
        self.undo.clear();
        (self.keys, self.large_bytes) = (0, 0);
        for writes in &mut self.tables {
            writes.keys.clear();
            writes.ranges.clear();
            writes.covered = None;
        }
    }

    /// Writes what is in memory to layers: one for each stretch between `moments`, to which the transaction may still go back.
    pub(crate) fn spill(&mut self, moments: &mut [&mut Moment]) -> Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let done = self.spill_stretches(moments);
        if let Err(e) = &done {
            self.broken = Some(e.clone().context("the transaction lost what it could not write to disk"));
        }
        done
    }

    fn spill_stretches(&mut self, moments: &mut [&mut Moment]) -> Result<()> {
        let first = self.next_layer;
        let recent = moments.partition_point(|m| m.layer < first);
        let recent = &mut moments[recent..];
        // From the last one back, each undone once it is known.
        let mut stretches: Vec<Vec<Stretch>> = recent.iter().rev().map(|m| self.cut_off(m)).collect();
        let rest = |w: &mut TableWrites| Stretch {
            keys: std::mem::take(&mut w.keys),
            ranges: std::mem::take(&mut w.ranges),
        };
        stretches.push(self.tables.iter_mut().map(rest).collect());
        for (n, m) in (1..).zip(recent) {
            (m.mark, m.undo, m.layer) = (Mark::default(), 0, first + n);
        }
        self.next_layer = first + stretches.len() as Seq;
        let floor = moments.last().map_or(0, |m| m.layer);
        for (seq, stretch) in (first..).zip(stretches.into_iter().rev()) {
            for (at, stretch) in stretch.into_iter().enumerate() {
                if stretch.keys.is_empty() && stretch.ranges.is_empty() {
                    continue;
                }
                let table = self.tables[at].table.clone();
                let run = self.write(&table, &stretch, seq)?;
                self.tables[at].layers.push(&self.engine, &table, run, floor)?;
            }
        }
        self.spilled += self.batch.len() as u64;
        self.changes += 1;
        self.clear();
        Ok(())
    }

    /// Takes out what was written after `moment`, by subtable; what was there then is there again.
    fn cut_off(&mut self, moment: &Moment) -> Vec<Stretch> {
        let mut cut: Vec<Stretch> = self.tables.iter().map(|_| Stretch::default()).collect();
        for undo in self.undo.drain(moment.undo..).rev() {
            let keys = &mut self.tables[undo.table].keys;
            let last = match undo.before {
                Some(before) => keys.insert(undo.key.clone(), before),
                None => keys.remove(&undo.key),
            };
            // Of several writes the last comes first.
            if let (Entry::Vacant(free), Some(last)) = (cut[undo.table].keys.entry(undo.key), last) {
                free.insert(last);
            }
        }
        let last = Seq::from(moment.mark.count);
        for (writes, cut) in self.tables.iter_mut().zip(&mut cut) {
            let kept = writes.ranges.partition_point(|r| r.number <= last);
            cut.ranges = writes.ranges.split_off(kept);
        }
        cut
    }

    fn write(&self, table: &Arc<Table>, stretch: &Stretch, seq: Seq) -> Result<OwnRun> {
        let ranges = stretch.ranges.iter().map(|r| (&r.start, &r.end, r.number));
        let deleted = RangeTombstones::from_ranges(ranges);
        let mut out = OwnWriter::new(&self.engine, table, deleted.clone())?;
        for (key, slot) in &stretch.keys {
            if slot.number < deleted.covering(key, MAX_SEQ) {
                continue;
            }
            match self.value(slot) {
                Own::Value(value) => out.put(key, value)?,
                _ => out.delete(key)?,
            }
        }
        out.finish(seq)
    }

    /// All of it as one run for each subtable.
    pub(crate) fn into_runs(mut self) -> Result<Vec<(Arc<Table>, OwnRun)>> {
        self.spill(&mut [])?;
        let mut runs = Vec::new();
        for writes in self.tables {
            if let Some(run) = writes.layers.into_one(&self.engine, &writes.table)? {
                runs.push((writes.table, run));
            }
        }
        Ok(runs)
    }
}

impl TableWrites {
    /// The number of the last operation that deleted a range with `key` in it; 0 if none did.
    fn cover(&self, key: &[u8]) -> Seq {
        self.covered.as_ref().and_then(|c| c.covering(key, MAX_SEQ)).unwrap_or(0)
    }
}
