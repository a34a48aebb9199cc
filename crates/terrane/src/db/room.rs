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

use terrane_base::{Error, ErrorKind, Result};
use terrane_chainlog::Admission;

use crate::chains::Chains;
use crate::chains::records::ChainRecords;
use crate::db::anchor::TableRef;
use crate::db::engine::Engine;
use crate::db::table::Table;

/// How often a writer waits for commits on their way, while nothing is written out, before it says that there is no zone for it.
const PATIENCE: u32 = 8;
/// A batch of more than such a part of a zone has zones set aside before: one that finds no room without takes its part of the log twice.
const LARGE: u64 = 16;

impl Engine {
    /// Holds the calling writer to `tables` until memtable memory is within its budget, as long as background work can
    /// free some.
    ///
    /// # Errors
    /// Why one of the subtables cannot be written out, or why memory that others hold cannot be freed.
    pub(crate) fn make_room(self: &Arc<Self>, tables: &[TableRef]) -> Result<()> {
        self.freeze_for_budgets();
        for table in tables {
            if table.trouble.any() && table.standstill().is_some() && self.bars_writers(table) {
                self.get_over_trouble(table)?;
            }
        }
        // What names no subtable takes no memory: a prepare that a job writes again must not wait for jobs.
        if self.memory.used() < self.memory.limit() || tables.is_empty() {
            return Ok(());
        }
        self.counters.full_waits.add(1);
        let began = self.media.now();
        let outcome = self.wait_for_memory(tables);
        self.counters.full_wait_nanos.add((self.media.now() - began).as_nanos() as u64);
        outcome
    }

    /// Whether persistent memory takes a batch with so many bytes of records for each of `tables`. For one that takes much of a zone, one that is
    /// to be `sure` of the first place that it takes, and all where zones are scarce, some are set aside ([`Engine::admit_to_memory`]); others nearly
    /// always find room in those that there are.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] for a batch that is too large; as [`Engine::admit_to_memory`].
    pub(crate) fn admit_at_first(
        self: &Arc<Self>,
        chains: &Chains,
        lengths: &[u32],
        tables: &[TableRef],
        sure: bool,
    ) -> Result<Option<Admission>> {
        chains.check()?;
        let (most, all) = (chains.largest_item() as u64, lengths.iter().map(|n| u64::from(*n)).sum());
        if all > most {
            return Err(Error::limit("bytes of a batch in persistent memory", all, most)
                .with_hint("split the batch, or use a transaction, which may be larger"));
        }
        let (subtables, most) = (tables.len() as u64, chains.most_subtables_of_a_commit());
        if subtables > most {
            return Err(Error::limit("subtables of a batch in persistent memory", subtables, most)
                .with_hint("split the batch, or use a transaction, which may be larger"));
        }
        if chains.have_long_chains() {
            for table in tables {
                let is_long = |records: &ChainRecords| Chains::is_long(records.index().chain());
                if table.state().active().chain().is_some_and(is_long) {
                    self.freeze_or_wait(table)?;
                }
            }
        }
        let is_large = all > chains.space().zone_bytes() as u64 / LARGE;
        // Where they are scarce each waits for its own, and not one for those of its group.
        let is_scarce = chains.space().is_scarce_without(tables.len() as u64);
        (is_large || is_scarce || sure).then(|| self.admit_to_memory(chains, tables)).transpose()
    }

    /// Sets a zone of persistent memory aside for each of `tables`. Waits for zones as long as background work, or commits on their way, can free
    /// some.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfSpace`], or why memtables cannot be written out; of a database that is being closed.
    pub(crate) fn admit_to_memory(
        self: &Arc<Self>,
        chains: &Chains,
        tables: &[TableRef],
    ) -> Result<Admission> {
        if let Some(zones) = chains.try_admit(tables.len()) {
            return Ok(zones);
        }
        self.counters.full_waits.add(1);
        let began = self.media.now();
        let (mut patience, mut flushes) = (PATIENCE, self.counters.flushes.get());
        let outcome = loop {
            self.retry_all();
            let (mut failed, mut short) = (None, None);
            for table in self.tables.load().all() {
                match self.freeze_now(table).map_err(|e| (e.kind(), e)) {
                    // Where commits of dozens of epochs are on their way, their end is what is waited for.
                    Ok(()) | Err((ErrorKind::LimitExceeded, _)) => {}
                    // There is no memtable to go on with, until one of those that were frozen is written out.
                    Err((ErrorKind::OutOfSpace, e)) => short = Some(e),
                    Err((_, e)) => failed = Some(e),
                }
            }
            self.schedule_flushes();
            self.schedule_compactions();
            let (mut zones, mut refused) = (None, None);
            let waited = self.progress.wait_until(&*self.media, || {
                zones = chains.try_admit(tables.len());
                refused = self.check_writable().err().or_else(|| tables.iter().find_map(|t| self.refusal(t)));
                zones.is_some()
                    || refused.is_some()
                    || (chains.space().set_aside() == 0 && self.frees_nothing())
            });
            if let Some(zones) = zones {
                break Ok(zones);
            }
            // Others may have had what was freed, and it is in active memtables now.
            let more = |t: &Arc<Table>| {
                t.standstill().is_none()
                    && t.state().active().chain().is_some_and(|records| records.bytes() > 0)
            };
            let mut ended = waited.err().or(refused).or(failed);
            let any_more = self.tables.load().all().any(more);
            if self.counters.flushes.get() != flushes {
                // What that freed others were quicker to take, and it comes free again.
                (patience, flushes) = (PATIENCE, self.counters.flushes.get());
            }
            let no_more = !any_more || short.is_some();
            if ended.is_none() && no_more && patience > 0 {
                // Commits on their way hold what they saw of subtables, and with it memtables that have been written out since. And others may
                // have had what became free.
                patience -= 1;
                match self.barrier() {
                    Ok(()) => continue,
                    Err(e) => ended = Some(e),
                }
            }
            if ended.is_some() || no_more {
                break Err(ended.or_else(|| self.holder_of_memory()).or(short));
            }
        };
        self.counters.full_wait_nanos.add((self.media.now() - began).as_nanos() as u64);
        outcome.map_err(|e| {
            e.unwrap_or_else(|| {
                Error::new(ErrorKind::OutOfSpace, "persistent memory has no zone left for this batch")
                    .with_hint("end long readers, which keep what they read, or give it more memory")
            })
        })
    }

    /// Whether background work is under way, or a merge that somebody asked for and that is to make room. Whoever ends one notifies `progress`.
    fn is_at_work(&self) -> bool {
        let by_hand = |t: &Arc<Table>| t.compacting.load(Ordering::Acquire) && t.waits_for_l0();
        self.jobs.load(Ordering::Acquire) > 0 || self.tables.load().all().any(by_hand)
    }

    /// Whether no background work is under way, and none is left that could free memory. Has what can be written out, and is not yet,
    /// written out.
    fn frees_nothing(&self) -> bool {
        if self.is_at_work() {
            return false;
        }
        let settled = self.settled();
        let mut nothing = true;
        for table in self.tables.load().all() {
            // One that is not whole waits for commits on their way.
            nothing &= table.frozen().iter().all(|m| m.stretch.is_whole(settled));
            if self.flushable(table).is_some() && table.standstill().is_none() && table.has_l0_room() {
                self.schedule_flush(table);
                nothing = false;
            }
        }
        nothing
    }

    /// Bytes in memtables of subtables that cannot be written out, of the memory that counts.
    pub(crate) fn stuck_bytes(&self) -> usize {
        let (tables, which) = (self.tables.load(), self.memory.fuller());
        tables.all().filter(|t| t.standstill().is_some()).map(|t| t.memtable_bytes(which)).sum()
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
        if !self.remains.lock().is_empty() {
            self.schedule_log_release();
        }
        for table in self.tables.load().all() {
            self.retry(table, false);
        }
    }

    fn wait_for_memory(self: &Arc<Self>, tables: &[TableRef]) -> Result<()> {
        self.retry_all();
        self.schedule_flushes();
        self.schedule_compactions();
        let mut refused = None;
        self.progress.wait_until(&*self.media, || {
            if self.memory.used() < self.memory.limit() {
                return true;
            }
            refused = self.check_writable().err().or_else(|| tables.iter().find_map(|t| self.refusal(t)));
            // Nothing queued and nothing running, or nothing that could be written out: waiting would free nothing.
            refused.is_some() || !self.is_at_work() || self.tables.load().all().all(|t| t.frozen().is_empty())
        })?;
        if let Some(e) = refused {
            return Err(e);
        }
        if self.memory.used() < self.memory.limit() || self.stuck_bytes() * 2 < self.memory.limit() {
            // What is held is held by readers.
            return Ok(());
        }
        self.holder_of_memory().map_or(Ok(()), Err)
    }

    /// Why memory cannot be freed, if a subtable that cannot be written out holds some.
    fn holder_of_memory(&self) -> Option<Error> {
        let (all, which) = (self.tables.load(), self.memory.fuller());
        let held = all.all().filter_map(|t| Some((t, t.standstill()?)));
        let held = held.max_by_key(|(t, _)| t.memtable_bytes(which));
        held.map(|(t, e)| {
            e.context("memtable memory is held by a subtable that cannot be written out")
                .with_subtable(&*t.name)
        })
    }
}
