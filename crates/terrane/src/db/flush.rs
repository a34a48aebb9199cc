//! Writing a frozen memtable out.
//!
//! The records become a run of L0, or go straight into L1 where they meet nothing there and no L0 run. Versions that no
//! snapshot can see are left behind. (A memtable that meets little of L1 becomes a run of L0 first and goes down at once:
//! the extents that meet nothing by reference, the others merged. So what is rewritten is what overlaps, and flushing
//! never waits for a merge while L0 has room.)
//!
//! A large memtable is written by several threads, each a range of its keys: see [`ranges`].
//!
//! # Rules
//! Only a complete memtable is written out, after the log is durable to its boundary (design rule 2), and after the large
//! values that it refers to are flushed. Its log is released only when the manifest edit is durable.

mod ranges;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrane_base::{ErrorKind, Lsn, Result};
use terrane_format::extent::ExtentMeta;
use terrane_format::manifest::{Edit, LogPosition};

use crate::compact::busy::Held;
use crate::compact::claim::Claim;
use crate::db::engine::Engine;
use crate::db::table::Table;
use crate::levels::{ExtentRef, Version, VersionEdit};
use crate::memtable::Memtable;

impl Engine {
    /// The oldest memtable of `table` that is complete and not empty of purpose, if there is one.
    pub(crate) fn flushable(&self, table: &Table) -> Option<Arc<Memtable>> {
        if table.is_dropped() {
            return None;
        }
        let settled = self.settled();
        table.frozen().into_iter().next().filter(|m| m.stretch.is_whole(settled))
    }

    /// Writes the oldest complete memtable of `table` out. Says whether there was one and L0 had room for it.
    pub(crate) fn flush_oldest(self: &Arc<Self>, table: &Arc<Table>) -> Result<bool> {
        let Some(memtable) = self.flushable(table) else { return Ok(false) };
        if table.is_dropped() || self.closing.load(Ordering::Acquire) {
            return Ok(false);
        }
        if !table.has_l0_room() {
            self.schedule_compactions();
            return Ok(false);
        }
        let began = self.media.now();
        let end = memtable.end().unwrap_or_default();
        // Durable to the memtable's end at least.
        let synced = self.sync_settled()?;
        // Published first, snapshots after: see `db::snapshot`.
        let published = self.visible();
        let snapshots = self.snapshots.collect(published);
        let (written, values) = self.write_run(table, &memtable, snapshots)?;
        let bytes: u64 = written.extents().iter().map(|m| u64::from(m.data_bytes)).sum();
        self.space.sync_values(&values)?;

        let edit_guard = table.edit.lock();
        if table.is_dropped() {
            return Ok(false);
        }
        let version = table.state().version.clone();
        let straight = straight_down(table, &version, written.extents());
        let (level, run) = match straight {
            Some(_) => (1, 0),
            None => (0, self.ids.run()),
        };
        let mut edit = VersionEdit::default();
        for meta in written.extents() {
            edit.added.push((level, run, ExtentRef::whole(self.open_extent(table, meta, written.homes())?)));
        }
        let applied = version.apply(&edit)?;
        let mut edits = edit.to_edits(table.id);
        edits.push(Edit::Persisted { subtable: table.id, lsn: end });
        edits.extend(values.iter().map(|v| Edit::AddValue { subtable: table.id, value: v.clone() }));
        let needed =
            self.oldest_needed(synced, |t| Arc::ptr_eq(t, table).then_some(Skip::Memtable(&memtable)));
        edits.push(self.log_position(needed));
        let appended = self.append_edits(&edits);
        if appended.as_ref().err().is_none_or(|e| e.kind() == ErrorKind::Poisoned) {
            // Durable or in doubt: the space is theirs.
            drop(written.keep());
        }
        appended?;
        table.persisted.store(end, Ordering::Release);
        // The edit says that all before `synced` is settled.
        memtable.not_needed(synced);
        self.give_back_remains(synced);
        // Large values that only superseded records referred to.
        let kept: HashSet<u64> = values.iter().map(|v| v.id).collect();
        let mut dead = memtable.values();
        dead.retain(|v| !kept.contains(&v.id));
        let next = Arc::new(applied.version);
        table.install_version(next.clone(), Some(&memtable));
        self.check_homes(table.id, &edit);
        version.retire(&next, applied.obsolete, dead);
        drop((edit_guard, straight));
        table.readers.strip();
        table.spent.run_came(bytes);
        self.account_for_change(table);
        self.journal.release_before(needed)?;
        self.counters.flushes.add(1);
        self.counters.flush_bytes.add(bytes);
        let size = memtable.bytes() as u64;
        // Of one that has a zone and hardly anything in it most of the time is the flush of the device.
        self.pacer.flushed(memtable.filled_bytes() as u64, self.media.now().saturating_sub(began));
        // Only this job writes it: one flush per subtable runs at a time.
        let before = table.flushed_bytes.load(Ordering::Relaxed);
        table.flushed_bytes.store((before + size) / 2, Ordering::Relaxed);
        drop(memtable);
        self.close_gap()?;
        self.update_pressure();
        self.progress.notify_all();
        Ok(true)
    }

    /// Lets go of the part of the log that no memtable needs any more, where no flush will: the subtables of its records
    /// are dropped.
    pub(crate) fn release_log(&self) -> Result<()> {
        let synced = self.sync_settled()?;
        let needed = self.oldest_needed(synced, |_| None);
        self.append_edits(&[self.log_position(needed)])?;
        self.give_back_remains(synced);
        self.journal.release_before(needed)
    }

    /// Once all that the log lacked is in extents, has the manifest say that nothing before is needed: from then on the log is enough. Flushes
    /// of several subtables, each of which finds another one's memtable still there, would leave that unsaid. Memtables that have some of it
    /// and could not be frozen when the database was opened, for want of others to go on with, are now.
    pub(crate) fn close_gap(self: &Arc<Self>) -> Result<()> {
        let Some(gap) = self.journal.live_gap() else { return Ok(()) };
        if self.oldest_needed(self.settled(), |_| None) >= gap.end {
            self.release_log()?;
            self.journal.gap_is_closed();
            return Ok(());
        }
        for table in self.tables.load().all() {
            if table.state().active().first_record().is_some_and(|lsn| lsn < gap.end) {
                self.freeze_active(table);
            }
        }
        Ok(())
    }

    /// Has all that the log lacks written out, and waits.
    ///
    /// # Errors
    /// Why some of it cannot be; all else is. What was committed is durable on the device all the same.
    pub(crate) fn mend_log(self: &Arc<Self>) -> Result<()> {
        let Some(gap) = self.journal.live_gap() else { return Ok(()) };
        let mut failed = None;
        for table in self.tables.load_full().all() {
            if table.oldest_unflushed(None).is_none_or(|lsn| lsn >= gap.end) {
                continue;
            }
            match self.flush_table(table) {
                Err(e) if e.kind() != ErrorKind::SubtableDropped => {
                    failed.get_or_insert(e.with_subtable(&*table.name));
                }
                _ => {}
            }
        }
        if let Some(e) = failed {
            return Err(e.context(
                "all commits are durable in persistent memory, but the log behind it lacks some that cannot be written out",
            ));
        }
        self.close_gap()
    }

    /// The edit that says from where on the log is needed.
    pub(crate) fn log_position(&self, first_lsn: Lsn) -> Edit {
        Edit::Log(LogPosition {
            generation: self.log_generation,
            first_lsn,
            durable_lsn: self.journal.durable_lsn(),
            clean: false,
        })
    }

    /// The oldest LSN that a replay would need, without what `skip` says of a subtable. Everything below `synced` is published and
    /// durable.
    pub(crate) fn oldest_needed<'a>(
        &self,
        synced: Lsn,
        skip: impl Fn(&Arc<Table>) -> Option<Skip<'a>>,
    ) -> Lsn {
        let tables = self.tables.load();
        let held = tables.all().filter_map(|t| match skip(t) {
            Some(Skip::All) => None,
            Some(Skip::Memtable(m)) => t.oldest_unflushed(Some(m)),
            None => t.oldest_unflushed(None),
        });
        self.journal.readable_from(self.transactions.prepared.needed(synced, held))
    }
}

/// What need not be replayed any more.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Skip<'a> {
    /// A memtable that has been written out.
    Memtable(&'a Arc<Memtable>),
    /// All of a subtable: it is dropped.
    All,
}

/// Whether a run may go into L1 as it is: it meets neither L0 nor L1, nor anybody at work there. Until the claim is given
/// up no merge begins there either: it would not know of the run. The caller holds `edit`, and `version` is the present one.
fn straight_down<'a>(table: &'a Table, version: &Version, written: &[Arc<ExtentMeta>]) -> Option<Held<'a>> {
    let mut busy = table.busy.lock();
    let claim = Claim::of_extents(0..=1, written);
    let alone = written.iter().all(|m| {
        let mut above = version.l0.iter().chain(version.levels.first());
        above.all(|run| run.overlapping(&m.lo, Some(&m.hi)).is_empty())
    });
    (alone && busy.admits(&claim)).then(|| Held::new(&table.busy, busy.enter(claim)))
}

#[cfg(test)]
mod tests;
