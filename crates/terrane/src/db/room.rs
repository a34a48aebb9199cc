//! Room for writers: memtable memory, and what happens to writers when it cannot be freed.
//!
//! # Rules
//! * A writer waits for memory only as long as background work can free some.
//! * A subtable that cannot be written out (see [`crate::db::trouble`]) refuses its own writers, with the reason: at once
//!   if L0 is full and a piece of it is damaged, since no time will empty it; else when such subtables together hold half
//!   of the memory. The other half is for those that can be written out: their writers are not refused.
//! * Before anybody is refused, what failed is tried once more, and the writer waits for the outcome. Damaged pieces are
//!   tried with patience. Nothing else retries, so nothing is tried in a loop that no writer turns.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrane_base::{Error, Result};

use crate::db::engine::Engine;
use crate::db::table::Table;

impl Engine {
    /// Holds the calling writer to `tables` until memtable memory is within its budget, as long as background work can
    /// free some.
    ///
    /// # Errors
    /// Why one of the subtables cannot be written out, or why memory that others hold cannot be freed.
    pub(crate) fn make_room(self: &Arc<Self>, tables: &[Arc<Table>]) -> Result<()> {
        self.freeze_for_budgets();
        for table in tables {
            if table.trouble.any() && table.standstill().is_some() && self.bars_writers(table) {
                self.get_over_trouble(table)?;
            }
        }
        if self.memory.used() < self.memory.limit() {
            return Ok(());
        }
        self.counters.full_waits.add(1);
        let began = self.media.now();
        let outcome = self.wait_for_memory(tables);
        self.counters.full_wait_nanos.add((self.media.now() - began).as_nanos() as u64);
        outcome
    }

    /// Bytes in memtables of subtables that cannot be written out.
    pub(crate) fn stuck_bytes(&self) -> usize {
        let tables = self.tables.load();
        tables.all().filter(|t| t.standstill().is_some()).map(|t| t.memtable_bytes()).sum()
    }

    /// Whether a subtable that cannot be written out refuses its writers: no time will mend it, or such subtables hold too
    /// much.
    fn bars_writers(&self, table: &Table) -> bool {
        table.damage_bars_l0() || self.stuck_bytes() * 2 >= self.memory.limit()
    }

    /// Why writers of `table` are refused, if they are.
    fn refusal(&self, table: &Table) -> Option<Error> {
        let e = table.lasting_standstill()?;
        self.bars_writers(table).then(|| {
            let lasting = table.damage_bars_l0();
            let until = if lasting { "until that is mended, or drop the subtable" } else { "until that works again" };
            e.context(format!(
                "the subtable takes no writes {until} (reads and other subtables go on), for what it holds cannot be \
                 written out"
            ))
            .with_subtable(&*table.name)
        })
    }

    /// Has what failed for `table` tried again, and waits for the outcome.
    fn get_over_trouble(self: &Arc<Self>, table: &Arc<Table>) -> Result<()> {
        let before = table.trouble.attempts();
        // Somebody else may have it tried at this moment.
        if self.retry(table, false) || table.lasting_standstill().is_none() {
            self.progress.wait_until(&*self.media, || {
                table.trouble.attempts() != before || self.jobs.load(Ordering::Acquire) == 0
            })?;
            if table.trouble.attempts() == before {
                table.trouble.forget_untried();
            }
        }
        let Some(e) = self.refusal(table) else { return Ok(()) };
        if table.damage_bars_l0() && !table.state().active().is_empty() {
            // L0 takes some more for this: in memory it would keep the log from being released.
            self.freeze_active(table);
        }
        Err(e)
    }

    /// Has what failed for `table` tried again; what is damaged in due time, or `at_once`. Says whether anything is.
    pub(crate) fn retry(&self, table: &Arc<Table>, at_once: bool) -> bool {
        let lifted = table.trouble.lift(&table.busy, self.media.now(), at_once);
        if lifted {
            self.schedule_flush(table);
            self.schedule_compactions();
        }
        lifted
    }

    /// Something changed, or somebody is in need: has everything that failed tried again.
    pub(crate) fn retry_all(&self) {
        for table in self.tables.load().all() {
            self.retry(table, false);
        }
    }

    fn wait_for_memory(self: &Arc<Self>, tables: &[Arc<Table>]) -> Result<()> {
        self.retry_all();
        self.schedule_flushes();
        self.schedule_compactions();
        let mut refused = None;
        self.progress.wait_until(&*self.media, || {
            if self.memory.used() < self.memory.limit() {
                return true;
            }
            refused = tables.iter().find_map(|t| self.refusal(t));
            // Nothing queued and nothing running, or nothing that could be written out: waiting would free nothing.
            refused.is_some()
                || self.jobs.load(Ordering::Acquire) == 0
                || self.tables.load().all().all(|t| t.frozen().is_empty())
        })?;
        if let Some(e) = refused {
            return Err(e);
        }
        if self.memory.used() < self.memory.limit() || self.stuck_bytes() * 2 < self.memory.limit() {
            // What is held is held by readers.
            return Ok(());
        }
        let all = self.tables.load();
        let held =
            all.all().filter_map(|t| Some((t, t.standstill()?))).max_by_key(|(t, _)| t.memtable_bytes());
        held.map_or(Ok(()), |(t, e)| {
            Err(e
                .context("memtable memory is held by a subtable that cannot be written out")
                .with_subtable(&*t.name))
        })
    }
}
