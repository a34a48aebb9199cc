//! The records of a memtable as the extents of a run, a range of keys at a time.
//!
//! The job that writes a memtable out takes ranges in turn, and so does whatever thread of the pool for such jobs is idle. Each
//! range has a writer, and extents, of its own; what they wrote is one run, in order.

use std::sync::Arc;

use terrane_base::{Error, ErrorKind, Result};
use terrane_compaction::{Retention, Verdict};
use terrane_format::Kind;
use terrane_format::block::BlockBuilder;
use terrane_format::extent::ExtentForm;
use terrane_format::tombstone::RangeTombstones;
use terrane_format::value_ref::ValueRef;
use terrane_media::{Pool, in_shares};
use terrane_memindex::Cursor;

use crate::compact::run::extent_form;
use crate::db::engine::Engine;
use crate::db::table::Table;
use crate::levels::{Heir, Heirs, Ids, RunWriter, Space, WrittenRun};
use crate::memtable::Memtable;

/// Ranges are such that each has about so many extents at least: the last one of each is not full.
const LEAST_EXTENTS: usize = 4;
/// Ranges for each thread: they are not of the same size, and threads begin late.
const RANGES_PER_THREAD: usize = 2;

/// What is to be written.
struct Source {
    memtable: Arc<Memtable>,
    snapshots: Vec<u64>,
    tombstones: RangeTombstones,
    /// Where a range ends and the next begins.
    cuts: Vec<Box<[u8]>>,
    space: Arc<Space>,
    ids: Arc<Ids>,
    form: ExtentForm,
    /// Which part of the blocks goes below the cache; all from 1 on.
    below: f64,
}

/// Its records were in memory until now. Where that is persistent memory, they stay there as blocks, as far as there is room for them without
/// pushing out most of what readers have there: without that, all reads of them would go to the device at once. Nobody knows which of them are
/// read, so it is every so many.
#[derive(Debug)]
struct Share {
    of: f64,
    due: f64,
}

impl Share {
    fn heir(&mut self) -> Heir {
        self.due += self.of.min(1.0);
        if self.due < 1.0 {
            return Heir::No;
        }
        self.due -= 1.0;
        Heir::Below { index: false }
    }
}

impl Engine {
    /// Writes the records that matter; returns the extents, which are durable, and the large values that they refer to.
    pub(super) fn write_run(
        self: &Arc<Self>,
        table: &Table,
        memtable: &Arc<Memtable>,
        snapshots: Vec<u64>,
    ) -> Result<(WrittenRun, Vec<ValueRef>)> {
        let threads = self.options.flush_threads();
        // Of all that is written out in a turn, not of this one alone: of many small ones each would push out as much.
        let in_turn = memtable.filled_bytes().max(self.options.memtable_freeze_bytes()) as f64;
        let source = Source {
            tombstones: memtable.tombstones.to_ranges(&snapshots)?,
            cuts: memtable.cuts(self.ranges(memtable, threads * RANGES_PER_THREAD)),
            memtable: memtable.clone(),
            snapshots,
            below: self.cache.room_below() as f64 / (in_turn * newest_of(memtable)).max(1.0),
            space: self.space.clone(),
            ids: self.ids.clone(),
            form: extent_form(&table.options(), 0, self.options.tuning.extent_bytes),
        };
        let (engine, homes, ranges) = (self.clone(), self.estates.homes(table.id), source.cuts.len() + 1);
        let write = move |n| source.write_range(n, engine.heirs_at(homes.clone(), true, 0));
        let written = in_shares(&self.media, (Pool::Flush, threads - 1), "flush a range", ranges, write)?;
        let in_order = written.into_iter().reduce(|mut first, behind| {
            first.run.append(behind.run);
            first.values.extend(behind.values);
            first.records += behind.records;
            first
        });
        let Written { run, values, records } = in_order
            .ok_or_else(|| Error::new(ErrorKind::Closed, "a memtable was written out in no range"))?;
        // A damaged key may have hidden others from who looked for where a range begins.
        let all = memtable.index().len();
        if records != all {
            return Err(memtable.damaged(format!("of {all} records of a memtable {records} were found")));
        }
        run.sync()?;
        Ok((run, values))
    }

    /// In how many ranges a memtable is written, at most so many.
    fn ranges(&self, memtable: &Memtable, most: usize) -> usize {
        let bytes = memtable.filled_bytes() as f64 * newest_of(memtable);
        let least = (LEAST_EXTENTS * self.options.tuning.extent_bytes).max(1);
        (bytes as usize / least).clamp(1, most)
    }
}

/// Which part of a memtable's records is written, about: of each key one version, mostly.
fn newest_of(memtable: &Memtable) -> f64 {
    let (keys, records) = (memtable.index().keys(), memtable.index().len().max(1));
    (keys as f64 / records as f64).min(1.0)
}

/// What came of a range.
struct Written {
    run: WrittenRun,
    values: Vec<ValueRef>,
    /// How many records there were, of whom not all matter.
    records: usize,
}

impl Source {
    fn write_range(&self, n: usize, heirs: Heirs) -> Result<Written> {
        let lo: &[u8] = n.checked_sub(1).map_or(&[], |before| &self.cuts[before]);
        let hi = self.cuts.get(n).map(|key| &key[..]);
        let index = self.memtable.index();
        let tombstones = self.tombstones.clip(lo, hi);
        let mut retention = Retention::new(&self.snapshots, &tombstones, false);
        let mut writer =
            RunWriter::new(self.space.clone(), self.ids.clone(), self.form, tombstones.clone(), heirs)?;
        let mut block = BlockBuilder::new(self.form.block);
        let mut share = Share { of: self.below, due: 0.0 };
        let out_of_order = || self.memtable.damaged("records of a memtable are out of order".to_owned());
        let (mut values, mut records, mut last) = (Vec::new(), 0, None);
        let mut cursor = Cursor::new();
        cursor.seek(index, lo);
        while let Some(landed) = cursor.landed(index) {
            // What is damaged does not say where it belongs.
            self.memtable.verify(&landed)?;
            let key = landed.key;
            if hi.is_some_and(|hi| key >= hi) {
                break;
            }
            if key < lo || last.is_some_and(|last| key <= last) {
                return Err(out_of_order());
            }
            last = Some(key);
            retention.begin_key(key);
            for r in cursor.versions(index) {
                if !r.is(&landed) {
                    self.memtable.verify(&r)?;
                    if r.key != key {
                        return Err(out_of_order());
                    }
                }
                records += 1;
                let kind = Kind::from_u8(r.kind)?;
                let Verdict::Keep(seq) = retention.judge(r.seq, kind) else { continue };
                if !block.fits(r.key.len(), r.value.len(), seq) {
                    writer.add_block(block.finish(), None, share.heir())?;
                }
                block.add(r.key, seq, kind, r.value);
                if kind == Kind::ValueRef {
                    values.push(ValueRef::decode(r.value)?);
                }
            }
            cursor.next(index);
        }
        if !block.is_empty() {
            writer.add_block(block.finish(), None, share.heir())?;
        }
        Ok(Written { run: writer.finish_unsynced()?, values, records })
    }
}

#[cfg(test)]
mod tests;
