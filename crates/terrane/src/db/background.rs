//! Scheduling background work: flushes of frozen memtables, compactions.
//!
//! At most one flush per subtable runs at a time, oldest memtable first. Compactions are limited in number over all
//! subtables; what jobs of one subtable touch is disjoint: each claims it first (see [`crate::compact::busy`]). Every
//! job, when it ends, looks for what is due next, so nothing polls. What is not due but worth while is done in a
//! *rest*: when no memtable of its subtable has frozen for a while, or when somebody waits for the background to be
//! idle. Else it would be done over and over again while writers go on, and take the processor and the device from
//! them. A failed job records its error as its subtable's *trouble*: see [`crate::db::trouble`] and [`crate::db::room`]
//! for what that means and when it is tried again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use terrane_base::{Error, ErrorKind, Lsn, Result};
use terrane_cache::HeatSampler;
use terrane_media::Pool;

use crate::compact::busy::Held;
use crate::compact::claim::Claim;
use crate::compact::pick::{self, PaidFor, Pick, Picture, Reason};
use crate::db::engine::Engine;
use crate::db::table::Table;
use crate::levels::Version;
use crate::options::Compression;

/// A piece that nobody else works on.
struct Claimed {
    ticket: u64,
    /// What the piece consists of. (Not a [`crate::db::table::Super`]: that would keep memtables in memory that are written
    /// out meanwhile.)
    version: Arc<Version>,
}

/// How long no memtable of a subtable freezes before it rests; for [`crate::db::spent`], how long nothing is written.
pub(crate) const REST: Duration = Duration::from_secs(5);
/// What a full L0 with a memtable behind it adds to the urgency of a subtable's work, against that of other subtables.
const FULL_L0: f64 = 2.0;

fn claim_of(version: &Version, pick: &Pick) -> Claim {
    Claim::of_merge(version, pick.from, pick.to, &pick.range.lo, pick.range.hi.as_deref())
}

/// Claims a piece, if nobody else works on any of it.
fn claim(table: &Table, pick: &Pick) -> Option<Claimed> {
    let mut busy = table.busy.lock();
    let version = table.state().version.clone();
    let claim = claim_of(&version, pick);
    busy.admits(&claim).then(|| Claimed { ticket: busy.enter(claim), version })
}

/// The right to merge everything of a subtable down, which one at a time has.
struct Alone<'a> {
    engine: &'a Engine,
    table: &'a Table,
}

impl<'a> Alone<'a> {
    fn in_turn(engine: &'a Engine, table: &'a Table) -> Result<Self> {
        let free = || !table.compacting.swap(true, Ordering::AcqRel);
        engine.progress.wait_until(&*engine.media, free)?;
        Ok(Alone { engine, table })
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.table.compacting.store(false, Ordering::Release);
        self.engine.progress.notify_all();
    }
}

/// A job that is queued or running: however it ends, dropped before it ran included, it is told that it did.
struct Counted(Weak<Engine>);

impl Drop for Counted {
    fn drop(&mut self) {
        let Some(engine) = self.0.upgrade() else { return };
        engine.jobs.fetch_sub(1, Ordering::AcqRel);
        engine.update_pressure();
        engine.progress.notify_all();
    }
}

/// Heat is halved whenever so many more accesses were sampled.
const HEAT_HALVES: u64 = 16 << 10;

impl Engine {
    /// Queues a job; it holds the engine only while it runs.
    pub(crate) fn spawn(&self, name: &'static str, job: impl FnOnce(Arc<Engine>) + Send + 'static) {
        self.spawn_on(Pool::Flush, name, job);
    }

    /// As [`Engine::spawn`], on the threads of `pool`.
    pub(crate) fn spawn_on(
        &self,
        pool: Pool,
        name: &'static str,
        job: impl FnOnce(Arc<Engine>) + Send + 'static,
    ) {
        self.jobs.fetch_add(1, Ordering::AcqRel);
        let counted = Counted(self.me.clone());
        self.media.spawn(
            pool,
            name,
            Box::new(move || {
                if let Some(engine) = counted.0.upgrade() {
                    job(engine);
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
                    self.spare_no_space(&e);
                    let e = e.with_subtable(&*table.name).context("writing a memtable out");
                    table.trouble.flushed(Some(&e));
                    break;
                }
            }
        }
        // An RMW, since a load follows that must not come before it: see the orderer's store of what is visible.
        table.flushing.swap(false, Ordering::AcqRel);
        // One may have become complete between the last look and the flag.
        let failed = table.given_up().is_some();
        if !failed && self.flushable(table).is_some() && table.has_l0_room() {
            self.schedule_flush(table);
        }
        // It has left memory.
        self.await_trim();
        self.schedule_compactions();
    }

    /// Starts the most urgent compactions, as many as may run.
    pub(crate) fn schedule_compactions(&self) {
        // Held back or not, a flush that waits for room in L0 gets it.
        if !self.options.tuning.compact && !self.tables.load().all().any(|t| t.waits_for_l0()) {
            return;
        }
        self.compaction_calls.fetch_add(1, Ordering::AcqRel);
        while !self.closing.load(Ordering::Acquire) {
            let most = self.options.compaction_jobs() as u64;
            let one_more = |n: u64| (n < most).then_some(n + 1);
            if self.compactions.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_err() {
                return;
            }
            let calls = self.compaction_calls.load(Ordering::Acquire);
            let Some((table, pick, Claimed { ticket, version })) = self.most_urgent() else {
                self.compactions.fetch_sub(1, Ordering::AcqRel);
                // Who asked meanwhile, because of what was not there yet when we looked, may have found no slot left.
                if self.compaction_calls.load(Ordering::Acquire) == calls {
                    return;
                }
                continue;
            };
            self.spawn("compaction", move |engine| {
                let done = engine.compact_piece(&table, &pick, version);
                let installed = matches!(done, Ok(true));
                let failed = done.err().filter(|e| {
                    !table.is_dropped() && !matches!(e.kind(), ErrorKind::SubtableDropped | ErrorKind::Closed)
                });
                failed.iter().for_each(|e| engine.spare_no_space(e));
                let failed = failed.map(|e| e.with_subtable(&*table.name).context("compaction"));
                table.trouble.compacted(&pick, ticket, failed.as_ref(), &table.busy, engine.media.now());
                engine.compactions.fetch_sub(1, Ordering::AcqRel);
                if installed {
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

    /// Adds what reads have sampled to the extents' heat, and what that tells of looks to what they have spent: says whether somebody is to
    /// look what that pays for. Every so often all heat is halved, so that it follows the present.
    pub(crate) fn fold_heat(&self) -> bool {
        let mut samples = Vec::new();
        self.heat.fold(|extent, n| samples.push((extent, n)));
        if samples.is_empty() {
            return false;
        }
        let more: u64 = samples.iter().map(|(_, n)| u64::from(*n)).sum();
        let before = self.heat_samples.fetch_add(more, Ordering::Relaxed);
        let halve = before / HEAT_HALVES < (before + more) / HEAT_HALVES;
        let tables = self.tables.load();
        let mut extents = HashMap::new();
        for table in tables.all() {
            let state = table.state();
            let memtables = state.filled().count();
            for (level, run) in state.version.runs() {
                // A lookup that came here has looked into so many before, roughly.
                let before = memtables + if level == 0 { 0 } else { state.version.l0.len() };
                for part in run.refs() {
                    if halve {
                        let heat = part.extent.heat.load(Ordering::Relaxed);
                        part.extent.heat.store(heat / 2, Ordering::Relaxed);
                    }
                    extents.insert(part.extent.meta.id.0, (part.extent.clone(), table, level, before));
                }
            }
        }
        let mut due = false;
        for (id, n) in samples {
            if let Some((extent, table, level, before)) = extents.get(&id) {
                extent.heat.fetch_add(n, Ordering::Relaxed);
                let lookups = u64::from(n) * u64::from(HeatSampler::STRIDE);
                table.answered(*level, lookups);
                due |= table.spent.add(lookups * *before as u64);
            }
        }
        due
    }

    /// The most urgent piece over all subtables, claimed.
    fn most_urgent(&self) -> Option<(Arc<Table>, Pick, Claimed)> {
        if self.fold_heat() {
            self.look_at_reads();
        }
        loop {
            let (table, chosen) = self.most_urgent_now()?;
            // Someone may have claimed some of it since the look, or made it reach further; then another look tells.
            let Some(claimed) = claim(&table, &chosen) else { continue };
            table.served.store(self.compaction_calls.load(Ordering::Relaxed), Ordering::Relaxed);
            let now = self.media.now();
            match chosen.reason {
                Reason::L0 => {
                    table.cursors.lock().l0 = chosen.range.hi.clone();
                    table.passes.lock().begin(now);
                }
                Reason::Size => table.sinking.lock().begin(now),
                _ => {}
            }
            return Some((table, chosen, claimed));
        }
    }

    fn most_urgent_now(&self) -> Option<(Arc<Table>, Pick)> {
        let oldest_snapshot = self.oldest_snapshot();
        let mut deferred = false;
        let mut best: Option<((f64, u64), Arc<Table>, Pick)> = None;
        for table in self.tables.load().all() {
            if !table.trouble.pauses_compactions()
                && let Some(p) = self.pick(table, oldest_snapshot)
            {
                if p.urgency < 1.0 && !self.is_resting(table) {
                    deferred = true;
                    continue;
                }
                // Writers of others must not keep this one's memtables waiting for ever: a full L0 comes first, and among
                // equals who has waited longest.
                let more = if table.waits_for_l0() { FULL_L0 } else { 0.0 };
                let rank = (p.urgency + more, table.served.load(Ordering::Relaxed));
                if best.as_ref().is_none_or(|(b, ..)| rank.0 > b.0 || (rank.0 == b.0 && rank.1 < b.1)) {
                    best = Some((rank, table.clone(), p));
                }
            }
        }
        if best.is_none() && deferred {
            self.await_rest();
        }
        best.map(|(_, table, pick)| (table, pick))
    }

    fn is_resting(&self, table: &Table) -> bool {
        table.state().active().generation() < self.rested_at.load(Ordering::Acquire)
    }

    /// Has somebody look, in a while, which subtables have frozen no memtable since.
    fn await_rest(&self) {
        let rested = self.generation.load(Ordering::Acquire) + 1;
        self.look_in_a_while(
            |engine| &engine.awaiting_rest,
            move |engine| {
                engine.rested_at.fetch_max(rested, Ordering::AcqRel);
                // A job, so that closing waits for it.
                engine.spawn("look for a rest", |engine| engine.schedule_compactions());
            },
        );
    }

    /// Has somebody `look` once it may be a rest, unless somebody will, which `awaited` tells. It must be quick.
    pub(super) fn look_in_a_while(
        &self,
        awaited: fn(&Engine) -> &AtomicBool,
        look: impl FnOnce(&Engine) + Send + 'static,
    ) {
        if self.closing.load(Ordering::Acquire) || awaited(self).swap(true, Ordering::AcqRel) {
            return;
        }
        let engine = self.me.clone();
        let look = move || {
            let Some(engine) = engine.upgrade() else { return };
            awaited(&engine).store(false, Ordering::Release);
            look(&engine);
        };
        self.media.spawn_after(Pool::Flush, REST, "wait for a rest", Box::new(look));
    }

    /// Does what otherwise waits for a rest, and waits until no background work is queued or running.
    pub(crate) fn come_to_rest(&self) -> Result<()> {
        self.rested_at.fetch_max(self.generation.load(Ordering::Acquire) + 1, Ordering::AcqRel);
        self.schedule_compactions();
        self.wait_idle()?;
        self.space.trim();
        Ok(())
    }

    pub(crate) fn pick(&self, table: &Table, oldest_snapshot: u64) -> Option<Pick> {
        if table.is_dropped() {
            return None;
        }
        // Before the state: what is met from here on is met in this state or a later one.
        let mut met = table.deletions_met.lock().met.clone();
        let state = table.state();
        if met.as_ref().is_some_and(|met| state.memtables.len() < 2 && !met.are_in(&state.version)) {
            let mut clearing = table.deletions_met.lock();
            // Unless others were met meanwhile.
            if clearing.met == met {
                clearing.met = None;
            }
            met = None;
        }
        // What may be damaged is not gone through for it again and again.
        let paid = if table.trouble.hinders_l0() { PaidFor::Nothing } else { table.spent.paid_for() };
        let busy = table.busy.lock();
        let cursors = table.cursors.lock();
        pick::pick(&Picture {
            version: &state.version,
            busy: &busy,
            cursors: &cursors,
            memtable_bytes: self.options.memtable_bytes as u64,
            l0_due: table.l0_due(&state.version),
            piece_bytes: self.options.tuning.piece_bytes,
            oldest_snapshot,
            compresses: table.options().compression != Compression::None,
            met: met.as_ref(),
            paid,
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

    /// Has prepares written again that stand before `lsn`, unless that is under way.
    pub(crate) fn schedule_renewal(&self, lsn: Lsn) {
        if self.closing.load(Ordering::Acquire) || self.renewing.swap(true, Ordering::AcqRel) {
            return;
        }
        self.spawn("renew prepared transactions", move |engine| {
            // What failed here is tried again as long as the log is too long.
            if engine.renew_prepared(lsn).is_ok() {
                engine.schedule_log_release();
            }
            engine.renewing.store(false, Ordering::Release);
        });
    }

    /// Has the space freed whose last reader has gone.
    pub(crate) fn schedule_reclaim(&self) {
        if !self.closing.load(Ordering::Acquire) {
            self.spawn("reclaim", |engine| engine.reclaim());
        }
    }

    /// Merges everything of `table` that is there now down to the bottom, level by level, piece by piece. What is written
    /// meanwhile goes along where it comes in the way; it never makes for further pieces of a level once that is begun.
    pub(crate) fn compact_table(self: &Arc<Self>, table: &Arc<Table>) -> Result<()> {
        self.flush_table(table)?;
        let _alone = Alone::in_turn(self, table)?;
        let mut from = 0;
        loop {
            let version = table.state().version.clone();
            let pieces = pick::pieces(&version, from, &self.options);
            drop(version);
            for range in pieces {
                // A reason that no meter of the pacer counts.
                let pick = Pick { from, to: from + 1, range, reason: Reason::Rest, urgency: 1.0 };
                let done = loop {
                    match self.compact_in_turn(table, &pick) {
                        Ok(false) => {}
                        other => break other,
                    }
                };
                // Those who were kept out of it, or whose flush waits for room.
                if self.flushable(table).is_some() && table.has_l0_room() {
                    self.schedule_flush(table);
                }
                self.schedule_compactions();
                done?;
            }
            from += 1;
            // There are few levels, however many come.
            if usize::from(from) >= table.state().version.levels.len() {
                return Ok(());
            }
        }
    }

    /// Merges a piece as soon as nobody else works on any of it. Says whether it is done.
    fn compact_in_turn(self: &Arc<Self>, table: &Arc<Table>, pick: &Pick) -> Result<bool> {
        let ticket = table.busy.lock().enter(Claim::default());
        let held = Held::new(&table.busy, ticket);
        let mut ready = None;
        let waited = self.progress.wait_until(&*self.media, || {
            if self.check_writable().is_err() || table.is_dropped() {
                return true;
            }
            let mut busy = table.busy.lock();
            // What is claimed follows what the jobs that are waited for do.
            let version = table.state().version.clone();
            if busy.insist(held.ticket, claim_of(&version, pick)) {
                ready = Some(version);
            }
            ready.is_some()
        });
        let done = waited.and_then(|()| match ready {
            Some(version) => {
                let (lo, hi) = (&pick.range.lo[..], pick.range.hi.as_deref());
                let mut above = version.runs().filter(|(level, _)| *level == pick.from);
                match above.all(|(_, run)| run.overlapping(lo, hi).is_empty()) {
                    true => Ok(true),
                    false => {
                        drop(above);
                        self.compact_piece(table, pick, version)
                    }
                }
            }
            None => table.check_alive().and(self.check_writable()).map(|()| false),
        });
        drop(held);
        self.progress.notify_all();
        done
    }

    /// Waits until no background work is queued or running.
    pub(crate) fn wait_idle(&self) -> Result<()> {
        self.progress.wait_until(&*self.media, || self.jobs.load(Ordering::Acquire) == 0)
    }

    /// Writes everything of `table` that is in memtables out, and waits.
    pub(crate) fn flush_table(self: &Arc<Self>, table: &Arc<Table>) -> Result<()> {
        table.check_alive()?;
        self.check_writable()?;
        self.freeze_or_wait(table)?;
        // What is frozen by others from here on is not waited for: writers may go on for ever.
        self.retry(table, true);
        let Some(newest) = table.frozen().last().map(|m| m.generation()) else { return Ok(()) };
        self.schedule_flush(table);
        let mut failed: Option<Error> = None;
        self.progress.wait_until(&*self.media, || {
            // The oldest goes first.
            if table.is_dropped() || table.frozen().first().is_none_or(|m| m.generation() > newest) {
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

#[cfg(test)]
mod tests;
