//! Scheduling background work: flushes of frozen memtables, compactions.
//!
//! At most one flush per subtable runs at a time, oldest memtable first. Compactions are limited in number over all
//! subtables; jobs of one subtable work on disjoint ranges. Every job, when it ends, looks for what is due next, so
//! nothing polls. A failed job records its error as its subtable's *trouble*: see [`crate::db::trouble`] and
//! [`crate::db::room`] for what that means and when it is tried again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrane_base::{Error, ErrorKind, Result};
use terrane_media::Pool;

use crate::compact::pick::{self, Pick, Picture, Reason};
use crate::db::engine::Engine;
use crate::db::table::Table;

/// Heat is halved at every this many folds.
const HEAT_HALVES: u64 = 32;

impl Engine {
    /// Queues a job; it holds the engine only while it runs.
    fn spawn(&self, name: &'static str, job: impl FnOnce(Arc<Engine>) + Send + 'static) {
        let me = self.me.clone();
        self.jobs.fetch_add(1, Ordering::AcqRel);
        self.media.spawn(
            Pool::Flush,
            name,
            Box::new(move || {
                if let Some(engine) = me.upgrade() {
                    job(engine.clone());
                    engine.jobs.fetch_sub(1, Ordering::AcqRel);
                    engine.update_pressure();
                    engine.progress.notify_all();
                }
            }),
        );
    }

    /// Has the complete memtables of `table` written out, unless that is under way.
    pub(crate) fn schedule_flush(&self, table: &Arc<Table>) {
        if self.closing.load(Ordering::Acquire) || table.flushing.swap(true, Ordering::AcqRel) {
            return;
        }
        let table = table.clone();
        self.spawn("flush", move |engine| engine.flush_job(&table));
    }

    /// Has all complete memtables written out.
    pub(crate) fn schedule_flushes(&self) {
        for table in self.tables.load().all() {
            if !table.frozen().is_empty() {
                self.schedule_flush(table);
            }
        }
    }

    fn flush_job(self: &Arc<Self>, table: &Arc<Table>) {
        loop {
            match self.flush_oldest(table) {
                Ok(true) => table.trouble.flushed(None),
                Ok(false) => break,
                Err(e) => {
                    let e = e.with_subtable(&*table.name).context("writing a memtable out");
                    table.trouble.flushed(Some(&e));
                    break;
                }
            }
        }
        table.flushing.store(false, Ordering::Release);
        // One may have become complete between the last look and the flag.
        let failed = table.given_up().is_some();
        if !failed && self.flushable(table).is_some() && table.has_l0_room() {
            self.schedule_flush(table);
        }
        self.schedule_compactions();
    }

    /// Starts the most urgent compactions, as many as may run.
    pub(crate) fn schedule_compactions(&self) {
        while !self.closing.load(Ordering::Acquire) {
            let most = self.options.compaction_jobs() as u64;
            if self.compactions.fetch_add(1, Ordering::AcqRel) >= most {
                self.compactions.fetch_sub(1, Ordering::AcqRel);
                return;
            }
            let Some((table, pick, ticket)) = self.most_urgent() else {
                self.compactions.fetch_sub(1, Ordering::AcqRel);
                return;
            };
            self.spawn("compaction", move |engine| {
                let done = engine.compact_piece(&table, &pick);
                let failed = done.err().filter(|e| {
                    !table.is_dropped() && !matches!(e.kind(), ErrorKind::SubtableDropped | ErrorKind::Closed)
                });
                let failed = failed.map(|e| e.with_subtable(&*table.name).context("compaction"));
                table.trouble.compacted(&pick, ticket, failed.as_ref(), &table.busy, engine.media.now());
                engine.compactions.fetch_sub(1, Ordering::AcqRel);
                if failed.is_none() {
                    engine.counters.compactions.add(1);
                }
                // L0 may have room again, or is allowed some more.
                if engine.flushable(&table).is_some() && table.has_l0_room() {
                    engine.schedule_flush(&table);
                }
                // What failed is barred or paused: it is not tried again here.
                engine.schedule_compactions();
            });
        }
    }

    /// Adds what reads have sampled to the extents' heat. Every so often all heat is halved, so that it follows the
    /// present.
    fn fold_heat(&self) {
        let mut samples = Vec::new();
        self.heat.fold(|extent, n| samples.push((extent, n)));
        if samples.is_empty() {
            return;
        }
        let folds = self.heat_folds.fetch_add(1, Ordering::Relaxed);
        let mut extents = HashMap::new();
        for table in self.tables.load().all() {
            for part in table.state().version.runs().flat_map(|(_, run)| run.refs()) {
                if folds % HEAT_HALVES == HEAT_HALVES - 1 {
                    let heat = part.extent.heat.load(Ordering::Relaxed);
                    part.extent.heat.store(heat / 2, Ordering::Relaxed);
                }
                extents.insert(part.extent.meta.id.0, part.extent.clone());
            }
        }
        for (id, n) in samples {
            if let Some(e) = extents.get(&id) {
                e.heat.fetch_add(n, Ordering::Relaxed);
            }
        }
    }

    /// The most urgent piece over all subtables, marked as being worked on.
    fn most_urgent(&self) -> Option<(Arc<Table>, Pick, u64)> {
        self.fold_heat();
        let oldest_snapshot = self.oldest_snapshot();
        let mut best: Option<(Arc<Table>, Pick)> = None;
        for table in self.tables.load().all() {
            if !table.trouble.pauses_compactions()
                && let Some(p) = self.pick(table, oldest_snapshot)
                && best.as_ref().is_none_or(|(_, b)| p.urgency > b.urgency)
            {
                best = Some((table.clone(), p));
            }
        }
        let (table, chosen) = best?;
        let mut busy = table.busy.lock();
        // Someone may have picked in this range meanwhile.
        let (lo, hi) = (&chosen.range.lo, chosen.range.hi.as_deref());
        if busy.is_busy(chosen.from, lo, hi) || busy.is_busy(chosen.to, lo, hi) {
            return None;
        }
        let ticket = busy.enter(chosen.from..=chosen.to, chosen.range.clone());
        drop(busy);
        let now = self.media.now();
        match chosen.reason {
            Reason::L0 => {
                table.cursors.lock().l0 = chosen.range.hi.clone();
                table.passes.lock().begin(now);
            }
            Reason::Size => table.sinking.lock().begin(now),
            _ => {}
        }
        Some((table, chosen, ticket))
    }

    pub(crate) fn pick(&self, table: &Table, oldest_snapshot: u64) -> Option<Pick> {
        if table.is_dropped() {
            return None;
        }
        let state = table.state();
        let busy = table.busy.lock();
        let cursors = table.cursors.lock();
        pick::pick(&Picture {
            version: &state.version,
            busy: &busy,
            cursors: &cursors,
            memtable_bytes: self.options.memtable_bytes as u64,
            piece_bytes: self.options.tuning.piece_bytes,
            oldest_snapshot,
        })
    }

    pub(crate) fn oldest_snapshot(&self) -> u64 {
        let published = self.visible();
        self.snapshots.collect(published).first().copied().unwrap_or(published)
    }

    /// Has the log let go of what no memtable needs, unless that is under way.
    pub(crate) fn schedule_log_release(&self) {
        if self.closing.load(Ordering::Acquire) || self.releasing.swap(true, Ordering::AcqRel) {
            return;
        }
        self.spawn("release the log", |engine| {
            // What failed here fails again, and is heard of, when the log is next written.
            if let Err(e) = engine.release_log() {
                engine.lost_space.store(Some(Arc::new(e.context("releasing log segments"))));
            }
            engine.releasing.store(false, Ordering::Release);
        });
    }

    /// Has the space freed whose last reader has gone.
    pub(crate) fn schedule_reclaim(&self) {
        if !self.closing.load(Ordering::Acquire) {
            self.spawn("reclaim", |engine| engine.reclaim());
        }
    }

    /// Merges everything of `table` down, piece by piece, until nothing is left above the bottom.
    pub(crate) fn compact_table(self: &Arc<Self>, table: &Arc<Table>) -> Result<()> {
        self.flush_table(table)?;
        loop {
            // Work in progress first: pieces must not overlap.
            self.wait_idle()?;
            let state = table.state();
            let last = state.version.levels.len() as u8;
            let from = match state.version.l0.is_empty() {
                false => 0,
                true => match (1..last).find(|l| !state.version.levels[*l as usize - 1].is_empty()) {
                    Some(l) => l,
                    None => return Ok(()),
                },
            };
            drop(state);
            let mut lo = Vec::new();
            loop {
                self.check_writable()?;
                let Some(range) = pick::next_piece(&table.state().version, from, &lo, &self.options) else {
                    break;
                };
                let hi = range.hi.clone();
                let pick = Pick { from, to: from + 1, range, reason: Reason::Size, urgency: 1.0 };
                let ticket = table.busy.lock().enter(from..=from + 1, pick.range.clone());
                let done = self.compact_piece(table, &pick);
                table.busy.lock().leave(ticket);
                done?;
                match hi {
                    Some(hi) => lo = hi,
                    None => break,
                }
            }
        }
    }

    /// Waits until no background work is queued or running.
    pub(crate) fn wait_idle(&self) -> Result<()> {
        self.progress.wait_until(&*self.media, || self.jobs.load(Ordering::Acquire) == 0)
    }

    /// Writes everything of `table` that is in memtables out, and waits.
    pub(crate) fn flush_table(self: &Arc<Self>, table: &Arc<Table>) -> Result<()> {
        table.check_alive()?;
        self.check_writable()?;
        self.freeze_now(table)?;
        self.retry(table, true);
        self.schedule_flush(table);
        let mut failed: Option<Error> = None;
        self.progress.wait_until(&*self.media, || {
            if table.is_dropped() || table.frozen().is_empty() {
                return true;
            }
            failed = table.given_up();
            if failed.is_some() {
                return true;
            }
            // Nothing that is not settled by now ever will be.
            if let Err(e) = self.check_writable() {
                failed = Some(e);
                return true;
            }
            if !table.has_l0_room() {
                self.schedule_compactions();
            } else if self.flushable(table).is_some() {
                self.schedule_flush(table);
            }
            false
        })?;
        failed.map_or(Ok(()), Err)
    }
}
