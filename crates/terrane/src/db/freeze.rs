//! Freezing memtables: where one ends and the next begins, without making writers wait.
//!
//! The commit ring's reservation word carries an *epoch* beside the position, so that the one `fetch_add` of a commit
//! also tells it which memtables it belongs to. Freezing installs the next memtable first, with the next epoch as its
//! generation, and then bumps the epoch. The position at the bump is the boundary: every reservation before it has a
//! lower epoch and goes to the old memtable, every one after it goes to the new. The old memtable is complete once
//! everything before the boundary is published; only then may it be written out (design rule 2). The bounds are kept by
//! [`terrane_commit::Stretch`].
//!
//! # Concurrency
//! Freezers exclude each other by a mutex that writers never take. `next_boundary` is how the orderer learns that a
//! memtable became complete: the freezer stores it and then looks at what is published; the orderer stores what is
//! published and then looks at it. Both sides are SeqCst, so at least one of them sees the other.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrane_base::{ErrorKind, Lsn, Result, SubtableId};

use crate::db::engine::{Engine, Tables};
use crate::db::journal::Journal;
use crate::db::pacing::BRAKE;
use crate::db::table::Table;
use crate::memtable::Memtable;
use crate::options::IndexKind;

/// So often is a memtable tried to be had where there is none.
const ATTEMPTS: u32 = 8;
/// Memtables are looked at whenever another of so many parts of memory is in use, or is no more.
const LOOKS: usize = 512;
/// So many times as often where memory is nearly full.
const CLOSER: usize = 16;
/// So many subtables are looked at in no time.
const FEW: usize = 32;
/// A subtable is idle whose memtable has one zone still when this part of all memory has been written since its first record.
const IDLE_PART: u64 = 16;
/// Idle subtables that are written out at a time: others wait behind them.
const IDLE_AT_A_TIME: usize = 4;
/// Busy ones are, too, where memory is as full as that: a little before writers are slowed down.
const BESIDE_IDLE: f64 = BRAKE - 0.05;

impl Engine {
    /// Freezes the active memtable of `table`, unless it is empty.
    pub(crate) fn freeze_active(self: &Arc<Self>, table: &Arc<Table>) {
        let Some(_freezing) = self.freezing.try_lock() else {
            // Someone freezes already. Whoever next commits to a full memtable, or looks at memory, will ask again.
            return;
        };
        // After an error they will ask again, too.
        let _later = self.freeze_locked(table);
    }

    /// As [`Engine::freeze_active`], but waits for a freezer at work.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] while the device is stuck and dozens of epochs are unsettled; [`ErrorKind::OutOfSpace`] if persistent memory
    /// has no memtable to go on with.
    pub(crate) fn freeze_now(self: &Arc<Self>, table: &Arc<Table>) -> Result<()> {
        let _freezing = self.freezing.lock();
        self.freeze_locked(table)
    }

    /// As [`Engine::freeze_now`], but where there is no memtable to go on with it waits for flushes to free some.
    ///
    /// # Errors
    /// As there; [`ErrorKind::OutOfSpace`] if none is freed.
    pub(crate) fn freeze_or_wait(self: &Arc<Self>, table: &Arc<Table>) -> Result<()> {
        let is_left = || self.journal.chains().is_none_or(|chains| chains.has_memtable_left());
        self.as_memtables_come(is_left, || self.freeze_now(table))
    }

    /// At opening: gives each of these subtables, which has an empty memtable in ordinary memory to go on with, one in persistent memory in
    /// its place, as flushes free them. Nobody commits yet.
    ///
    /// # Errors
    /// Why what is there cannot be written out.
    pub(crate) fn go_on_in_memory(self: &Arc<Self>, waiting: &[SubtableId]) -> Result<()> {
        let (tables, Some(chains)) = (self.tables.load_full(), self.journal.chains()) else { return Ok(()) };
        let go_on = |table: &Arc<Table>| -> Result<()> {
            let _freezing = self.freezing.lock();
            let (kind, generation) = (table.options().index, table.state().active().generation());
            // It may be one of those that are left for openings.
            let chain = chains.create(table.id, self.settled())?;
            let next = Memtable::chained(kind, generation, &self.memory, self.clock.clone(), chains, chain);
            table.replace_active(Arc::new(next.salted(self.media.entropy())));
            Ok(())
        };
        let is_left = || chains.space().memtables_left().0 > 0;
        let mut waiting = waiting.iter().filter_map(|id| tables.by_id(*id));
        waiting.try_for_each(|table| self.as_memtables_come(is_left, || go_on(table))).map_err(
            |e| match e.kind() {
                ErrorKind::OutOfSpace => tables.all().find_map(|t| t.standstill()).unwrap_or(e),
                _ => e,
            },
        )?;
        debug_assert!(tables.all().all(|t| t.state().active().chain().is_some()), "commits would be lost");
        Ok(())
    }

    /// Attempts what takes a memtable, and where there is none waits for flushes to free some, until `is_left` says that they have.
    ///
    /// # Errors
    /// What the attempt fails with; why nothing can be written any more.
    fn as_memtables_come(
        self: &Arc<Self>,
        is_left: impl Fn() -> bool,
        attempt: impl Fn() -> Result<()>,
    ) -> Result<()> {
        for _ in 0..ATTEMPTS {
            match attempt() {
                Err(e) if e.kind() == ErrorKind::OutOfSpace => {}
                done => return done,
            }
            self.schedule_flushes();
            let mut refused = None;
            self.progress.wait_until(&*self.media, || {
                refused = self.check_writable().err();
                refused.is_some() || is_left() || self.jobs.load(Ordering::Acquire) == 0
            })?;
            if let Some(e) = refused {
                return Err(e);
            }
            if !is_left() {
                // Nothing is at work, for what is frozen waits for commits on their way, or these hold what has been written out.
                self.barrier()?;
            }
        }
        attempt()
    }

    fn freeze_locked(self: &Arc<Self>, table: &Arc<Table>) -> Result<()> {
        let old = table.state().active().clone();
        if old.is_empty() || table.is_dropped() {
            return Ok(());
        }
        let generation = self.generation.load(Ordering::Acquire) + 1;
        let next = Arc::new(self.new_memtable(table.id, table.options().index, generation)?);
        table.push_memtable(next.clone());
        match self.ring.bump_epoch() {
            Ok(boundary) => {
                debug_assert_eq!(boundary.epoch, generation);
                self.generation.store(boundary.epoch, Ordering::Release);
                let end: Lsn = boundary.pos * 8;
                old.freeze(end);
                self.next_boundary.fetch_min(end, Ordering::SeqCst);
                if self.settled() >= end {
                    self.boundary_passed();
                }
                Ok(())
            }
            // Dozens of epochs are still unsettled, which takes a stuck device: leave the old one active.
            Err(e) => {
                table.pop_memtable(&old);
                next.not_needed(0);
                // `old` is in what is left: nothing to speak of is freed here.
                table.readers.strip();
                Err(e)
            }
        }
    }

    /// An empty memtable.
    ///
    /// # Errors
    /// Where memtables lie in persistent memory, what that fails with.
    pub(crate) fn new_memtable(
        &self,
        table: SubtableId,
        kind: IndexKind,
        generation: u64,
    ) -> Result<Memtable> {
        let (budget, clock) = (&self.memory, self.clock.clone());
        let memtable = match &self.journal {
            Journal::Log(_) => Memtable::new(kind, generation, budget, clock),
            Journal::Chains { chains, .. } => {
                let chain = chains.create_next(table, self.settled())?;
                Memtable::chained(kind, generation, budget, clock, chains, chain)
            }
        };
        Ok(memtable.salted(self.media.entropy()))
    }

    /// A memtable became complete: have it written out.
    pub(crate) fn boundary_passed(&self) {
        self.next_boundary.store(u64::MAX, Ordering::SeqCst);
        let settled = self.settled();
        for table in self.tables.load().all() {
            for m in table.frozen() {
                match m.end() {
                    Some(_) if m.stretch.is_whole(settled) => self.schedule_flush(table),
                    Some(end) => {
                        self.next_boundary.fetch_min(end, Ordering::SeqCst);
                    }
                    None => {}
                }
            }
        }
        // A boundary put back above may have passed meanwhile.
        if self.next_boundary.load(Ordering::SeqCst) <= self.settled() {
            self.boundary_passed();
        }
    }

    /// Freezes memtables that keep the log from being released beyond its budget, or memory beyond its own. Of memory the largest; but where many
    /// subtables that hardly anybody writes to have each a zone of persistent memory, some of these first: else the others would freeze ever
    /// smaller ones for their sake.
    pub(crate) fn freeze_for_budgets(self: &Arc<Self>) {
        if self.journal.live_bytes() > self.options.log_budget() {
            let settled = self.settled();
            // Half of the budget may pass before it is in the way again.
            let recent = settled.saturating_sub(self.options.log_budget() / 2);
            if self.transactions.prepared.oldest(self.journal.durable_lsn()).is_some_and(|lsn| lsn < recent) {
                self.schedule_renewal(recent);
            }
            let tables = self.tables.load();
            let oldest = tables.all().filter_map(|t| Some((t.oldest_unflushed(None)?, t)));
            match oldest.min_by_key(|(lsn, _)| *lsn) {
                Some((lsn, t)) if lsn < settled => {
                    if t.frozen().is_empty() {
                        self.freeze_active(t);
                    }
                }
                // Nobody needs it: no flush will come and say so.
                _ => self.schedule_log_release(),
            }
        }
        if self.memory.is_over(60) && self.is_used_otherwise() {
            self.freeze_for_memory();
        }
    }

    /// Whether the memory in use is another than when somebody last looked, by more than can be ignored. Looking at all memtables takes longer
    /// than a commit does, and most commits change next to nothing of it. Where it is nearly full less can be ignored, and nothing where there
    /// are few memtables to look at.
    fn is_used_otherwise(&self) -> bool {
        let (used, limit) = (self.memory.used(), self.memory.limit());
        let is_tight = used > limit - limit / 16;
        if is_tight && (used >= limit || self.tables.load().len() <= FEW) {
            return true;
        }
        let looks = if is_tight { LOOKS * CLOSER } else { LOOKS };
        let step = used / (limit / looks).max(1);
        if self.looked_at.load(Ordering::Relaxed) == step {
            return false;
        }
        self.looked_at.store(step, Ordering::Relaxed);
        true
    }

    fn freeze_for_memory(self: &Arc<Self>) {
        let (tables, which) = (self.tables.load(), self.memory.fuller());
        let (mut waiting, mut flushable, mut active, mut stuck) = (0, 0, 0, 0);
        // What can be written out at once comes first, else the largest.
        let mut best: Option<((bool, usize), &Arc<Table>)> = None;
        let (mut lone, mut lone_on_their_way) = (0, 0);
        for t in tables.all() {
            // What cannot be written out is left out of the account.
            if t.standstill().is_some() {
                stuck += t.memtable_bytes(which);
                continue;
            }
            let state = t.state();
            let own = state.active().bytes_of(which);
            let frozen: usize = state.memtables[1..].iter().map(|m| m.bytes_of(which)).sum();
            waiting += frozen;
            flushable += if t.has_l0_room() { frozen } else { 0 };
            active += own;
            lone += usize::from(self.has_one_zone(state.active()));
            if t.has_l0_room() {
                lone_on_their_way += state.memtables[1..].iter().filter(|m| self.has_one_zone(m)).count();
            }
            // One that is small beside the others frees little.
            let rank = (t.can_flush_next() && own * 8 > self.options.memtable_freeze_bytes(), own);
            if best.is_none_or(|(b, _)| rank >= b) {
                best = Some((rank, t));
            }
        }
        let used = self.memory.used().saturating_sub(stuck);
        // What neither is active nor waits is held by readers of memtables that are written out already: freezing
        // more would make small memtables and free nothing.
        let ours = active * 2 > used.saturating_sub(waiting);
        let Some(((at_once, _), best)) = best else { return };
        let enough = if at_once { flushable } else { waiting };
        if enough * 4 < used && ours {
            let idle = self.idle(&tables, lone);
            if idle.is_empty() || self.memory.fullness() > BESIDE_IDLE {
                self.freeze_active(best);
            }
            let more = IDLE_AT_A_TIME.saturating_sub(lone_on_their_way);
            idle.into_iter().take(more).for_each(|t| self.freeze_active(t));
        }
    }

    /// Subtables that hardly anybody writes to, the oldest first: see [`IDLE_PART`]. None if together they have less than an eighth of the memory:
    /// then they are no reason why others freeze early. (At most `lone` memtables are theirs.)
    fn idle<'a>(&self, tables: &'a Tables, lone: usize) -> Vec<&'a Arc<Table>> {
        let Some(chains) = self.journal.chains() else { return Vec::new() };
        let few = |zones: usize| zones * chains.space().zone_bytes() * 8 < self.memory.limit();
        if few(lone) {
            return Vec::new();
        }
        // An LSN counts bytes.
        let since = self.settled().saturating_sub(self.memory.limit() as u64 / IDLE_PART);
        let older = tables.all().filter(|t| t.standstill().is_none() && t.can_flush_next()).filter_map(|t| {
            let state = t.state();
            let first = state.active().first_record().filter(|lsn| *lsn < since)?;
            self.has_one_zone(state.active()).then_some((first, t))
        });
        let mut older: Vec<_> = older.collect();
        if few(older.len()) {
            return Vec::new();
        }
        older.sort_unstable_by_key(|(first, _)| *first);
        older.into_iter().map(|(_, t)| t).collect()
    }

    /// Whether it has no more of persistent memory than the least that a memtable has.
    pub(crate) fn has_one_zone(&self, memtable: &Memtable) -> bool {
        let zone = self.journal.chains().map_or(0, |chains| chains.space().zone_bytes());
        memtable.chain().is_some_and(|records| records.bytes() == zone)
    }
}
