//! A sorted run that nobody but its owner knows.
//!
//! Its records are stored without a sequence. The owner reads it at a sequence above all that the database has, so that it hides what
//! it is newer than: that is only in memory, and of its blocks nothing is left in the cache when the run is attached at another.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrane_base::{MAX_SEQ, Result, Seq};
use terrane_format::Kind;
use terrane_format::block::BlockBuilder;
use terrane_format::extent::{ExtentMeta, STAGED_SEQ};
use terrane_format::tombstone::RangeTombstones;
use terrane_format::value_ref::ValueRef;

use crate::compact::run::extent_form;
use crate::db::engine::Engine;
use crate::db::table::Table;
use crate::levels::{ExtentRef, Heir, Heirs, Homes, Run, RunWriter, Space, WrittenRun};
use crate::read::newer::newest_in;
use crate::read::source::Source;

/// Own runs are read at this sequence and those above, which no commit ever has.
pub(crate) const FIRST_OWN: Seq = MAX_SEQ - (1 << 32);

/// Writes a run.
#[derive(Debug)]
pub(crate) struct OwnWriter {
    engine: Arc<Engine>,
    table: Arc<Table>,
    writer: RunWriter,
    block: BlockBuilder,
    values: Vec<Arc<OwnValue>>,
}

/// A large value that only its owner knows: dropped, its space is free.
#[derive(Debug)]
pub(crate) struct OwnValue {
    space: Arc<Space>,
    value: ValueRef,
    /// The space belongs to the database.
    kept: AtomicBool,
}

impl Drop for OwnValue {
    fn drop(&mut self) {
        if !self.kept.load(Ordering::Acquire) {
            let freed = self.space.free_value(&self.value);
            debug_assert!(freed.is_ok(), "value {} owned its space", self.value.id);
        }
    }
}

impl OwnWriter {
    /// `deleted` are the ranges that hide older runs, and the database, in the new one.
    pub(crate) fn new(engine: &Arc<Engine>, table: &Arc<Table>, deleted: RangeTombstones) -> Result<Self> {
        let form = extent_form(&table.options(), 0, engine.options.tuning.extent_bytes);
        // In the common part, whoever owns the keys: from there nothing moves, so `leave_cache` leaves nothing behind.
        let heirs = Heirs::none(engine.cache.clone(), Homes::default());
        let (space, ids) = (engine.space.clone(), engine.ids.clone());
        Ok(OwnWriter {
            engine: engine.clone(),
            table: table.clone(),
            writer: RunWriter::new(space, ids, form, deleted.with_seq(STAGED_SEQ), heirs)?,
            block: BlockBuilder::new(form.block),
            values: Vec::new(),
        })
    }

    /// Adds what a key holds; keys ascend. A large value becomes one that is stored apart.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if value.len() < self.table.value_threshold() {
            return self.add(key, Kind::Put, value);
        }
        let space = self.engine.space.clone();
        let value = space.write_value(self.engine.ids.value(), value)?;
        let mut encoded = Vec::new();
        value.encode(&mut encoded);
        self.values.push(Arc::new(OwnValue { space, value, kept: AtomicBool::new(false) }));
        self.add(key, Kind::ValueRef, &encoded)
    }

    pub(crate) fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.add(key, Kind::Delete, &[])
    }

    fn add(&mut self, key: &[u8], kind: Kind, value: &[u8]) -> Result<()> {
        if !self.block.fits(key.len(), value.len(), STAGED_SEQ) {
            self.writer.add_block(self.block.finish(), None, Heir::No)?;
        }
        self.block.add(key, STAGED_SEQ, kind, value);
        Ok(())
    }

    /// Ends the run, which its owner reads at `seq`. Written, but not durable.
    pub(crate) fn finish(mut self, seq: Seq) -> Result<OwnRun> {
        if !self.block.is_empty() {
            self.writer.add_block(self.block.finish(), None, Heir::No)?;
        }
        let written = self.writer.finish_unsynced()?;
        let open = |meta: &Arc<ExtentMeta>| -> Result<Arc<ExtentRef>> {
            let extent =
                self.engine.open_extent(&self.table, &Arc::new(meta.attached(seq)), written.homes())?;
            Ok(Arc::new(ExtentRef::whole(extent)))
        };
        let refs = written.extents().iter().map(open).collect::<Result<_>>()?;
        Ok(OwnRun { run: Arc::new(Run::new(seq, refs)?), written, values: self.values, seq })
    }
}

/// What a key holds in a run.
#[derive(Debug)]
pub(crate) enum Found {
    /// The run says nothing about it.
    Nothing,
    Deleted,
    Record(Kind, Vec<u8>),
}

/// A run, with its space and that of its large values: dropped, both are free (but for values that another run shares).
#[derive(Debug)]
pub(crate) struct OwnRun {
    run: Arc<Run>,
    written: WrittenRun,
    values: Vec<Arc<OwnValue>>,
    seq: Seq,
}

impl OwnRun {
    /// The sequence at which it is read: what is above is newer.
    pub(crate) fn seq(&self) -> Seq {
        self.seq
    }

    /// To be read from, as long as this lives.
    pub(crate) fn run(&self) -> &Arc<Run> {
        &self.run
    }

    /// First key, and first key behind the last.
    pub(crate) fn bounds(&self) -> Option<(&[u8], &[u8])> {
        Some((&self.run.refs().first()?.lo, &self.run.refs().last()?.hi))
    }

    /// What it says about `key`. Reads through the cache.
    pub(crate) fn find(&self, engine: &Engine, key: &[u8]) -> Result<Found> {
        let Some(part) = self.run.find(key) else { return Ok(Found::Nothing) };
        let (cover, newest) = newest_in(&engine.cache, part, key, |_, kind, value| match kind.is_delete() {
            true => Found::Deleted,
            false => Found::Record(kind, value.to_vec()),
        })?;
        // A record of the run is newer than the ranges that it deletes.
        Ok(newest.unwrap_or(if cover > 0 { Found::Deleted } else { Found::Nothing }))
    }

    /// Makes it durable, with its large values.
    pub(crate) fn sync(&self, space: &Space) -> Result<()> {
        let values = self.values.iter().flat_map(|v| &v.value.pieces).map(|p| p.file);
        space.sync_files(self.written.extents().iter().map(|m| m.file).chain(values))
    }

    /// What is to be attached of it.
    pub(crate) fn content(&self) -> (Vec<Arc<ExtentMeta>>, Vec<ValueRef>) {
        (self.written.extents().to_vec(), self.values.iter().map(|v| v.value.clone()).collect())
    }

    /// Drops from the cache what was read at its own sequence.
    pub(crate) fn leave_cache(&self, engine: &Engine) {
        self.run.refs().iter().for_each(|part| engine.cache.remove_extent(part.extent.frame(0).extent));
    }

    /// Its space belongs to the database from here on, or may.
    pub(crate) fn keep(self) {
        self.values.iter().for_each(|v| v.kept.store(true, Ordering::Release));
        drop(self.written.keep());
    }
}

impl OwnWriter {
    /// Makes one run of `runs`, the newest first, which are used up: of each key the newest record stays, and deletions, which hide
    /// what the database has.
    pub(crate) fn merge(
        engine: &Arc<Engine>,
        table: &Arc<Table>,
        runs: &[Arc<OwnRun>],
        seq: Seq,
    ) -> Result<OwnRun> {
        let mut deleted = Vec::new();
        for part in runs.iter().flat_map(|r| r.run.refs()) {
            deleted.push(part.tombstones()?);
        }
        let deleted = RangeTombstones::merge(&deleted.iter().map(|t| &**t).collect::<Vec<_>>());
        let mut out = OwnWriter::new(engine, table, deleted.clone())?;
        let values: HashMap<u64, &Arc<OwnValue>> =
            runs.iter().flat_map(|r| &r.values).map(|v| (v.value.id, v)).collect();
        let source = |r: &Arc<OwnRun>| Source::run(r.run.clone(), engine.cache.clone(), MAX_SEQ);
        let mut sources: Vec<Source> = runs.iter().map(source).collect();
        sources.iter_mut().try_for_each(Source::seek_first)?;
        let mut key = Vec::new();
        while let Some(least) = sources.iter().filter(|s| s.valid()).map(Source::key).min() {
            key.clear();
            key.extend_from_slice(least);
            let cover = deleted.covering(&key, MAX_SEQ);
            let mut newest = true;
            for s in sources.iter_mut().filter(|s| s.valid() && s.key() == key) {
                // Within one run a deleted range is older than its records.
                if newest && cover <= s.seq() {
                    if s.kind() == Kind::ValueRef {
                        let id = ValueRef::decode(s.value().bytes())?.id;
                        out.values.extend(values.get(&id).map(|v| Arc::clone(v)));
                    }
                    out.add(&key, s.kind(), s.value().bytes())?;
                }
                newest = false;
                s.next(&key)?;
            }
        }
        out.finish(seq)
    }
}
