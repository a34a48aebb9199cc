//! `check`: reads everything and verifies every checksum and invariant that the engine relies on.
//!
//! For each extent: the section checksums that the manifest holds, every block against its index entry, order within and
//! across blocks, counts, bounds, and that each block's filter lets all of its keys pass. For each subtable: levels sorted
//! and disjoint, at most eight L0 runs, and *newer above older* for every key (design rule 8), records and range
//! tombstones, by merging all levels. Large values against their references, those of memtables included; the records of memtables
//! themselves where they lie in persistent memory. Of prepared
//! transactions likewise what nobody sees yet: the large values, and the extents of those that are larger than memory.
//!
//! Damage is collected, not thrown: one bad block does not hide the next.

mod memory;

use std::sync::Arc;

use terrane_base::{Error, ErrorKind, Result, Seq};
use terrane_format::Kind;
use terrane_format::block::{Block, BlockCursor};
use terrane_format::checksum::key_hash;
use terrane_format::extent::{Index, IndexCursor};
use terrane_format::filter;
use terrane_format::value_ref::ValueRef;

use crate::db::engine::Engine;
use crate::db::table::Table;
use crate::levels::{ExtentRef, Homes, Run};
use crate::read::run_cursor::RunCursor;
use crate::txn::prepared::{Prepared, Property};

/// How far a check has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Bytes verified so far.
    pub bytes: u64,
    /// Bytes to verify in all, about.
    pub total: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Subtables looked at.
    pub subtables: u64,
    /// Extents verified.
    pub extents: u64,
    /// Blocks verified.
    pub blocks: u64,
    /// Records seen in them.
    pub records: u64,
    /// Records of memtables verified in persistent memory; range tombstones are none of them.
    pub memory_records: u64,
    /// Large values verified.
    pub large_values: u64,
    /// Prepared transactions looked at whose records are in extents; [`CheckReport::extents`] counts those too.
    pub staged: u64,
    /// Bytes read, those of such records included.
    pub bytes: u64,
    /// All damage found, each with its place.
    pub damage: Vec<Error>,
    /// The caller stopped the check before its end.
    pub stopped: bool,
}

impl CheckReport {
    /// Whether the check ran to its end and found nothing.
    pub fn is_clean(&self) -> bool {
        self.damage.is_empty() && !self.stopped
    }
}

struct Check<'a, P> {
    engine: &'a Engine,
    report: CheckReport,
    total: u64,
    progress: P,
}

/// Checks all subtables.
pub(crate) fn check(engine: &Engine, progress: impl FnMut(Progress) -> bool) -> Result<CheckReport> {
    let tables = engine.tables.load_full();
    let mut tables: Vec<&Arc<Table>> = tables.all().collect();
    tables.sort_by(|a, b| a.name.cmp(&b.name));
    let total = tables.iter().map(|t| extent_bytes(t) + memory::bytes(t)).sum();
    let mut c = Check { engine, report: CheckReport::default(), total, progress };
    for table in tables {
        let before = c.report.damage.len();
        c.table(table);
        for e in &mut c.report.damage[before..] {
            *e = e.clone().with_subtable(&*table.name);
        }
        c.report.subtables += 1;
        if c.report.stopped {
            return Ok(c.report);
        }
    }
    for (xid, prepared) in engine.all_prepared() {
        c.prepared(&xid, &prepared);
        if c.report.stopped {
            break;
        }
    }
    Ok(c.report)
}

impl<P: FnMut(Progress) -> bool> Check<'_, P> {
    fn damage(&mut self, e: Error) {
        self.report.damage.push(e);
    }

    fn note(&mut self, what: String) {
        self.damage(Error::new(ErrorKind::Corruption, what));
    }

    fn table(&mut self, table: &Table) {
        let state = table.state_full();
        let version = state.version.clone();
        let limit = table.most_l0_runs();
        if version.l0.len() > limit {
            self.note(format!("{} runs in L0, the limit is {limit}", version.l0.len()));
        }
        // Memtables first: what is kept of them is memory that writers wait for. Values of records that they alone hold yet; superseded ones are
        // whole too.
        state.memtables.iter().flat_map(|m| m.values()).for_each(|value| self.value(&value));
        for memtable in &state.memtables {
            self.memtable(memtable);
            if self.report.stopped {
                return;
            }
        }
        drop(state);
        let runs: Vec<&Arc<Run>> = version.runs().map(|(_, r)| r).collect();
        let before = self.report.damage.len();
        for run in &runs {
            self.run(run.refs());
            if self.report.stopped {
                return;
            }
        }
        // Across levels only if each level by itself can be read.
        if self.report.damage.len() == before
            && let Err(e) = self.newer_above_older(&runs)
        {
            self.damage(e);
        }
    }

    fn value(&mut self, value: &ValueRef) {
        self.report.large_values += 1;
        if let Err(e) = self.engine.space.read_value(value) {
            self.damage(e);
        }
    }

    /// Verifies extents that are one behind the other.
    fn run(&mut self, refs: &[Arc<ExtentRef>]) {
        for pair in refs.windows(2) {
            if pair[0].hi > pair[1].lo {
                self.note(format!(
                    "extents {} and {} of a run overlap",
                    pair[0].extent.meta.id, pair[1].extent.meta.id
                ));
            }
        }
        for r in refs {
            if let Err(e) = self.extent(r) {
                self.damage(e);
            }
            if !self.go_on() {
                return;
            }
        }
    }

    /// Tells how far the check is; whether it is to go on.
    fn go_on(&mut self) -> bool {
        let at = Progress { bytes: self.report.bytes, total: self.total };
        self.report.stopped |= !(self.progress)(at);
        !self.report.stopped
    }

    /// Verifies what a prepared transaction would make part of the database. Its end does not wait for that, and lets go
    /// of the space of what it leaves out: damage counts only if the transaction is there still afterwards.
    fn prepared(&mut self, xid: &[u8], prepared: &Prepared) {
        let before = self.report.damage.len();
        let verified = prepared.property().and_then(|p| p.map_or(Ok(()), |p| self.property(&p)));
        if let Err(e) = verified {
            self.damage(e);
        }
        if !prepared.is_there() {
            self.report.damage.truncate(before);
        }
        for e in &mut self.report.damage[before..] {
            *e = e.clone().context(format!("the prepared transaction \"{}\"", xid.escape_ascii()));
        }
    }

    fn property(&mut self, property: &Property) -> Result<()> {
        match property {
            Property::Logged(values) => values.iter().for_each(|value| self.value(value)),
            Property::Staged(stage) => {
                self.report.staged += 1;
                // What is for a dropped subtable is left out when it is committed.
                for table in self.engine.tables.load_full().all() {
                    let own = stage.extents.iter().filter(|(id, _)| *id == table.id);
                    let refs = own.map(|(_, meta)| {
                        Ok(Arc::new(ExtentRef::whole(self.engine.open_extent(
                            table,
                            meta,
                            &Homes::default(),
                        )?)))
                    });
                    self.run(&refs.collect::<Result<Vec<_>>>()?);
                    if self.report.stopped {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Verifies one extent: sections, blocks, order, counts and bounds.
    fn extent(&mut self, r: &ExtentRef) -> Result<()> {
        let extent = &r.extent;
        let meta = &extent.meta;
        self.report.extents += 1;
        extent.load_footer()?;
        if meta.blocks == 0 {
            return Ok(());
        }
        let index_bytes = extent.load_index()?;
        let filters = extent.load_filter()?;
        let place = |what: String, offset: u32| extent.place(Error::corruption(what), offset);
        let index = Index::parse(&index_bytes)?;
        index.verify(meta).map_err(|e| extent.place(e, meta.index.offset))?;
        let mut measured = r.clone();
        measured.measure(index)?;
        if measured.size != r.size {
            self.damage(place(
                format!("a reference shows {:?}, the manifest says {:?}", measured.size, r.size),
                meta.index.offset,
            ));
        }
        let mut entry = IndexCursor::new();
        let mut record = BlockCursor::new();
        let mut last: Option<(Vec<u8>, Seq)> = None;
        let (mut rows, mut deletes, mut blocks) = (0u64, 0u64, 0u32);
        entry.seek_first(index)?;
        while let Some(handle) = entry.handle().copied() {
            let bytes = match extent.load_block(&handle) {
                Ok(b) => b,
                Err(e) => {
                    self.damage(e);
                    entry.next(index)?;
                    blocks += 1;
                    last = None;
                    rows += u64::from(handle.rows);
                    deletes += u64::from(handle.deletes);
                    continue;
                }
            };
            let block = Block::parse(&bytes)?;
            record.seek_first(block)?;
            let filter = match handle.filter_len {
                0 => &[],
                _ => handle.filter(&filters)?,
            };
            let mut first = true;
            let (mut strangers, mut missed) = (0, 0);
            let mut in_block = 0;
            while record.valid() {
                if first && (record.key() != entry.key() || record.seq() != entry.seq()) {
                    self.damage(place(
                        "an index entry does not name its block's first record".into(),
                        handle.offset,
                    ));
                }
                first = false;
                if let Some((key, seq)) = &last
                    && !(key.as_slice() < record.key() || (key == record.key() && *seq > record.seq()))
                {
                    self.damage(place("records out of order".into(), handle.offset));
                }
                if record.kind() == Kind::ValueRef && record.key() >= &*r.lo && record.key() < &*r.hi {
                    self.report.large_values += 1;
                    if let Err(e) = self.engine.read_large(record.value(block)) {
                        self.damage(e);
                    }
                }
                strangers +=
                    u32::from(record.key() < meta.lo.as_slice() || record.key() >= meta.hi.as_slice());
                missed += u32::from(!filter::may_contain(filter, key_hash(record.key())));
                in_block += 1;
                deletes += u64::from(record.kind().is_delete());
                last = Some((record.key().to_vec(), record.seq()));
                record.next(block)?;
            }
            if strangers > 0 {
                self.damage(place(
                    format!("{strangers} records of a block lie outside of the extent's bounds"),
                    handle.offset,
                ));
            }
            if missed > 0 {
                self.damage(place(
                    format!("a block's filter denies {missed} of its records, which lookups do not find"),
                    meta.filter.offset.saturating_add(handle.filter_offset),
                ));
            }
            if in_block != handle.rows {
                self.damage(place(
                    format!("a block has {in_block} records, its index entry says {}", handle.rows),
                    handle.offset,
                ));
            }
            rows += u64::from(in_block);
            blocks += 1;
            self.report.blocks += 1;
            self.report.records += u64::from(in_block);
            self.report.bytes += u64::from(handle.stored_len);
            entry.next(index)?;
        }
        if (rows, deletes, blocks) != (meta.rows, meta.deletes, meta.blocks) {
            return Err(place(
                format!(
                    "an extent has {rows} records, {deletes} deletions, {blocks} blocks; the manifest says {}, {}, {}",
                    meta.rows, meta.deletes, meta.blocks
                ),
                0,
            ));
        }
        Ok(())
    }

    /// For every key, versions in upper levels are newer than those below, and so are range tombstones that cover it.
    fn newer_above_older(&mut self, runs: &[&Arc<Run>]) -> Result<()> {
        let mut cursors: Vec<RunCursor> =
            runs.iter().map(|r| RunCursor::new((*r).clone(), self.engine.cache.clone())).collect();
        for c in &mut cursors {
            c.seek_first()?;
        }
        loop {
            let Some(key) = cursors.iter().filter(|c| c.valid()).map(|c| c.key()).min().map(<[u8]>::to_vec)
            else {
                return Ok(());
            };
            let mut above: Option<Seq> = None;
            for (run, c) in runs.iter().zip(&mut cursors) {
                let part = run.find(&key);
                let covering = part.map_or(Ok(Vec::new()), |p| covering(p, &key))?;
                let mut newest = covering.first().copied();
                let mut oldest = covering.last().copied();
                while c.valid() && c.key() == key {
                    newest = newest.max(Some(c.seq()));
                    oldest = Some(oldest.map_or(c.seq(), |o| o.min(c.seq())));
                    c.next()?;
                }
                if let (Some(seq), Some(newer)) = (newest, above)
                    && seq >= newer
                {
                    let id = part.map(|r| r.extent.meta.id).unwrap_or_default();
                    self.damage(Error::corruption(format!(
                        "extent {id} holds version {seq} of a key of which a level above holds version {newer}"
                    )));
                }
                above = oldest.or(above);
            }
        }
    }
}

/// Stored bytes of a subtable's runs.
fn extent_bytes(table: &Table) -> u64 {
    table.state().version.runs().map(|(_, run)| run.bytes()).sum()
}

/// Sequences of the range tombstones of `part` that cover `key`, newest first.
fn covering(part: &ExtentRef, key: &[u8]) -> Result<Vec<Seq>> {
    if !part.extent.meta.has_tombstones {
        return Ok(Vec::new());
    }
    let all = part.extent.tombstones()?;
    let covers = all.next_covered(key).filter(|f| f.start.as_slice() <= key);
    Ok(covers.map(|f| f.seqs.clone()).unwrap_or_default())
}

#[cfg(test)]
mod tests;
