//! Taking in sorted data: straight into extents, without the log and without memtables, and all at once.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrane_base::{Error, ErrorKind, Result, Seq};
use terrane_format::limits::{check_key, check_value};
use terrane_format::tombstone::RangeTombstones;
use terrane_locks::{Mode, Patience};

use crate::db::engine::Engine;
use crate::db::subtable::Subtable;
use crate::db::table::Table;
use crate::txn::attach::{Attachment, Share};
use crate::txn::big::run::{FIRST_OWN, OwnRun, OwnWriter};
use crate::txn::options::LockWait;
use crate::txn::refusal::refused;

/// Sorted records on their way into a database; made by [`crate::Db::ingest`]. Nobody sees any before [`Ingest::commit`], and then all
/// at once. Dropped, it leaves nothing behind.
///
/// Each subtable gets one sorted run. It costs writing the data once, and what merging it with older data costs; a plain load also
/// writes the log, and sorts in memory.
///
/// ```
/// use terrane::{Db, Options, SubtableOptions};
///
/// # fn main() -> terrane::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let db = Db::open(dir.path(), Options::new())?;
/// let squares = db.create_subtable("squares", SubtableOptions::new())?;
/// let mut ingest = db.ingest()?;
/// for n in 0..1000u64 {
///     ingest.put(&squares, &n.to_be_bytes(), &(n * n).to_be_bytes())?;
/// }
/// ingest.commit()?;
/// assert!(squares.get(&7u64.to_be_bytes())?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Ingest {
    engine: Arc<Engine>,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    table: Arc<Table>,
    writer: OwnWriter,
    first: Vec<u8>,
    last: Vec<u8>,
    rows: u64,
}

impl Ingest {
    pub(crate) fn new(engine: &Arc<Engine>) -> Result<Self> {
        engine.check_open()?;
        Ok(Ingest { engine: engine.clone(), parts: Vec::new() })
    }

    /// Sets `key` to `value`. The keys of a subtable must ascend; subtables may take turns. Writes an extent now and then.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidArgument`] for a key that is not above the one before it; limits, a full device, I/O errors. After
    /// an error other than for the key or its order, drop it.
    pub fn put(&mut self, subtable: &Subtable, key: &[u8], value: &[u8]) -> Result<()> {
        check_key(key)?;
        check_value(value)?;
        let table = subtable.table();
        let at = match self.parts.iter().position(|p| Arc::ptr_eq(&p.table, table)) {
            Some(at) => at,
            None => {
                if table.database != self.engine.database {
                    return Err(
                        Error::invalid("the data is for another database").with_subtable(&*table.name)
                    );
                }
                table.check_alive()?;
                let writer = OwnWriter::new(&self.engine, table, RangeTombstones::default())?;
                let table = table.clone();
                self.parts.push(Part { table, writer, first: key.to_vec(), last: Vec::new(), rows: 0 });
                self.parts.len() - 1
            }
        };
        let part = &mut self.parts[at];
        if part.rows > 0 && *key <= *part.last {
            return Err(Error::invalid(format!(
                "keys must ascend, but this one is not above the one before it, \"{}\"",
                part.last.escape_ascii()
            ))
            .with_subtable(&*table.name)
            .with_key(key)
            .with_hint("sort the data by key, bytewise, and leave one record of each key"));
        }
        part.writer.put(key, value)?;
        part.rows += 1;
        part.last.clear();
        part.last.extend_from_slice(key);
        Ok(())
    }

    /// Records so far.
    pub fn len(&self) -> u64 {
        self.parts.iter().map(|p| p.rows).sum()
    }

    /// Whether there is no record.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Makes everything part of the database, durably, at one moment. What is there of the same keys is overwritten. Locks the key
    /// ranges meanwhile, so it waits for transactions that have written there; flushes the memtables of the subtables, and waits
    /// for room in their L0. Long; blocks.
    ///
    /// # Errors
    /// [`crate::ErrorKind::LockTimeout`], [`crate::ErrorKind::SubtableDropped`], [`crate::ErrorKind::OutOfSpace`],
    /// [`crate::ErrorKind::Poisoned`], I/O errors. Nothing of it is there then, but after an error of a flush it may be found
    /// after a restart.
    pub fn commit(mut self) -> Result<Seq> {
        self.engine.check_open()?;
        if self.parts.is_empty() {
            return Ok(self.engine.visible());
        }
        self.engine.guard_writes()?;
        self.parts.sort_by_key(|p| p.table.id);
        let mut locks = self.engine.transactions.owner();
        let patience = Patience::from(LockWait::default());
        for p in &self.parts {
            let end = [&p.last[..], &[0]].concat();
            locks
                .lock_range(p.table.id, &p.first, Some(&end), Mode::Exclusive, patience)
                .map_err(|refusal| refused(refusal, &p.table, &p.first))?;
        }
        let mut runs: Vec<(Arc<Table>, OwnRun)> = Vec::with_capacity(self.parts.len());
        for p in self.parts {
            runs.push((p.table, p.writer.finish(FIRST_OWN)?));
        }
        self.engine.attach_runs(runs)
    }
}

impl Engine {
    /// Makes own runs part of the database. The caller holds locks on all that they change.
    pub(crate) fn attach_runs(self: &Arc<Self>, runs: Vec<(Arc<Table>, OwnRun)>) -> Result<Seq> {
        let mut shares = Vec::with_capacity(runs.len());
        for (table, run) in &runs {
            run.sync(&self.space)?;
            run.leave_cache(self);
            let (extents, values) = run.content();
            shares.push(Share::new(table, extents, values));
        }
        runs.iter().try_for_each(|(table, _)| table.check_alive())?;
        let shown: Vec<_> = shares.iter().map(|s| s.shown.clone()).collect();
        let attached = self.attach(Attachment { shares, further: Vec::new() });
        // In doubt: the space may be the database's.
        let in_doubt = attached.as_ref().is_err_and(|e| e.kind() == ErrorKind::Poisoned);
        for ((_, run), shown) in runs.into_iter().zip(shown) {
            if in_doubt || shown.load(Ordering::Acquire) {
                run.keep();
            }
        }
        attached
    }
}
