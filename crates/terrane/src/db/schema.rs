//! Creating, dropping and configuring subtables. Every change is durable in the manifest before it is visible, and the
//! log up to it before that: no crash may keep the change and lose commits before it, for the log would go on at an LSN below the
//! subtable's own, and replay would take what is written there for older than the subtable.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrane_base::{Error, ErrorKind, Lsn, Result, SubtableId};
use terrane_format::limits;
use terrane_format::manifest::Edit;
use terrane_format::value_ref::ValueRef;

use crate::db::engine::Engine;
use crate::db::flush::Skip;
use crate::db::table::{Super, Table};
use crate::levels::Version;
use crate::memtable::Memtable;
use crate::options::SubtableOptions;
use crate::recovery::options::{from_record, to_record};

/// What a subtable that was dropped had.
#[derive(Debug)]
pub(crate) struct Remains {
    /// All commits to it are before this.
    settled: Lsn,
    /// Its large values, but for those of memtables.
    values: Vec<ValueRef>,
    /// When it was dropped, and as commits found it that were on their way.
    states: [Arc<Super>; 2],
}

impl Engine {
    /// Large values that extents of a subtable refer to: those with these ids, or all.
    pub(crate) fn values_of(&self, id: SubtableId, which: Option<&[u64]>) -> Vec<ValueRef> {
        self.manifest.with_state(|s| {
            let Some(t) = s.subtables.get(&id) else { return Vec::new() };
            match which {
                Some(ids) => ids.iter().filter_map(|id| t.values.get(id).cloned()).collect(),
                None => t.values.values().cloned().collect(),
            }
        })
    }

    pub(crate) fn create_subtable(&self, name: &str, options: SubtableOptions) -> Result<Arc<Table>> {
        self.check_writable()?;
        if name.is_empty() || name.len() > limits::MAX_NAME {
            return Err(Error::invalid(format!(
                "a subtable name has 1 to {} bytes, this one {}",
                limits::MAX_NAME,
                name.len()
            )));
        }
        options.check(self.options.max_logged_bytes())?;
        let _ddl = self.ddl.lock();
        let tables = self.tables.load_full();
        if tables.by_name(name).is_some() {
            return Err(Error::new(
                ErrorKind::AlreadyExists,
                format!("there is a subtable {name:?} already"),
            ));
        }
        if tables.len() >= limits::MAX_SUBTABLES {
            return Err(Error::limit(
                "number of subtables",
                tables.len() as u64 + 1,
                limits::MAX_SUBTABLES as u64,
            ));
        }
        let id = self.ids.subtable();
        let lsn = self.sync_settled()?;
        let generation = self.generation.load(Ordering::Acquire);
        self.journal.chains().map_or(Ok(()), |chains| chains.check_one_more())?;
        let memtable = Arc::new(self.new_memtable(id, options.index, generation)?);
        let created = self.append_edits(&[Edit::CreateSubtable {
            id,
            name: name.to_owned(),
            options: to_record(&options).encode(),
            lsn,
        }]);
        // In doubt the next opening needs it.
        created.inspect_err(|e| {
            if e.kind() != ErrorKind::Poisoned {
                memtable.not_needed(0);
            }
        })?;
        let version = Arc::new(Version::empty(self.reclaimer.clone()));
        let table = Table::new(id, name, self.database, options, memtable, version, lsn);
        let table = Arc::new(table.with_l0_runs(self.options.tuning.l0_runs));
        table.cut_values(self.options.max_batch_bytes());
        let mut changed = (*tables).clone();
        changed.insert(table.clone());
        self.tables.store(Arc::new(changed));
        Ok(table)
    }

    pub(crate) fn drop_subtable(self: &Arc<Self>, name: &str) -> Result<()> {
        self.check_writable()?;
        let _ddl = self.ddl.lock();
        let tables = self.tables.load_full();
        let Some(table) = tables.by_name(name).cloned() else {
            return Err(Error::new(ErrorKind::NotFound, format!("there is no subtable {name:?}")));
        };
        // No install may slip in between: its extents would belong to nobody.
        let _edit = table.edit.lock();
        let values = self.values_of(table.id, None);
        let lsn = self.sync_settled()?;
        // Its part of the log is not needed any more.
        let needed = self.oldest_needed(lsn, |t| Arc::ptr_eq(t, &table).then_some(Skip::All));
        self.append_edits(&[Edit::DropSubtable { id: table.id, lsn }, self.log_position(needed)])?;
        // Nobody puts a further memtable in front meanwhile.
        let freezing = self.freezing.lock();
        let state = table.state_full();
        let generation = self.generation.load(Ordering::Acquire);
        table.drop_with(
            Arc::new(Memtable::new(table.options().index, generation, &self.memory, self.clock.clone())),
            Arc::new(Version::empty(self.reclaimer.clone())),
        );
        drop(freezing);
        let mut changed = (*tables).clone();
        changed.remove(&table);
        self.tables.store(Arc::new(changed));
        // Commits that are on their way find what they write to in one of the two states. They are made durable before the space of
        // their large values is another's: one that is lost may leave a prepared transaction in doubt again, which needs them.
        if let Ok(settled) = self.barrier().and_then(|()| self.sync_settled()) {
            self.remains.lock().push(Remains { settled, values, states: [state, table.state_full()] });
            // What those commits have in other subtables counts, whatever becomes of what they have here. If that cannot be said now, whoever
            // says so next gives back what there was.
            let position = self.log_position(self.oldest_needed(settled, |_| None));
            if self.journal.chains().is_none() || self.append_edits(&[position]).is_ok() {
                self.give_back_remains(settled);
                self.journal.release_before(needed)?;
            }
        } else {
            // Commits on their way are not made durable. What it had comes back when the database is opened again; it is gone all the same.
            state.version.retire_all(Vec::new());
        }
        // Writers may wait for memory that it held.
        self.progress.notify_all();
        Ok(())
    }

    /// The manifest says that all commits before `settled` are: gives back what dropped subtables had of memory and of large values.
    pub(crate) fn give_back_remains(&self, settled: Lsn) {
        let done: Vec<Remains> = {
            let mut remains = self.remains.lock();
            let (done, later) = std::mem::take(&mut *remains).into_iter().partition(|r| r.settled <= settled);
            *remains = later;
            done
        };
        for Remains { settled, values: mut all, states } in done {
            let memtables = || states.iter().flat_map(|state| &state.memtables);
            if self.journal.chains().is_some() {
                memtables().for_each(|m| m.not_needed(settled));
            }
            // Large values, written out or not, go when the last reader has gone.
            all.extend(memtables().flat_map(|m| m.values()));
            all.sort_by_key(|v| v.id);
            all.dedup_by_key(|v| v.id);
            states[0].version.retire_all(all);
        }
    }

    pub(crate) fn set_subtable_options(&self, table: &Table, options: SubtableOptions) -> Result<()> {
        self.check_writable()?;
        options.check(self.options.max_logged_bytes())?;
        let _ddl = self.ddl.lock();
        table.check_alive()?;
        let record = to_record(&options);
        self.append_edits(&[Edit::SetOptions { id: table.id, options: record.encode() }])?;
        table.set_options(from_record(&record));
        table.cut_values(self.options.max_batch_bytes());
        Ok(())
    }
}
