//! What reads spend on memtables and runs of L0, and what that pays for.
//!
//! Data that is read more than it is written is best in one run. But until its memtable is full, every lookup of what lies below looks
//! into that in vain, and every cursor merges. Each such look, and each step of a merge, is counted: lookups by sample, with their heat;
//! cursors tell many at once. When the looks have taken about as long as merging all of that down will, before a full memtable is written
//! out anyway, the active memtable freezes and L0 goes down into L1. So what reads spend in vain, and what is spent for them, are about
//! the same: as who rents skis until the rent would have bought them. (A. Karlin, M. Manasse, L. Rudolph, D. Sleator, "Competitive Snoopy
//! Caching", Algorithmica 1988.)
//!
//! While nothing is written what is bought lasts: an eighth of that is enough then, if no more than [`AT_REST`] times [`REWRITES`] bytes are
//! rewritten for each that is above. (Of a memtable it is the memory that counts, which small records take several times their own bytes of.)
//!
//! Where L0 has several runs that are little, it is far less to make them one, which spares some of the looks: those since there were
//! several pay for that, as soon as what it spares would have taken as long.
//!
//! What is written for it stays in proportion to what was written anyway, [`REWRITES`] bytes of levels for each byte that memtables and
//! L0 take (of L0 for each byte beside its largest run), or else to what it spares: for so many times as many, reads must have paid so many
//! times.
//!
//! The account ends when all of that has gone down, or is about to anyway, whoever had that done. What has come since reads paid, they have
//! not paid for.
//!
//! Without all that, passes of L0 through L1 wait for so many runs ([`Spent::l0_due`]): a pass rewrites L1, however many go with it. With
//! eight instead of four that is half as much for each byte that comes, and reads look into about twice as many. So it is four where
//! reads, while a run's bytes came, took longer than merging those once does.
//!
//! # Concurrency
//! One job at a time looks what was paid for ([`Engine::look_at_reads`]); flushes, merges and attachments end accounts. Both hold `bought`
//! while they set counts back, so that when to look fits what was counted, and load the state with that held: who brings something down, or
//! adds a run, looks after that too, so what is bought for an older state ends. (That a memtable freezes, or a merge further down, ends
//! nothing; what it makes impossible, the next look forgets.) Reads count beside them, relaxed: some looks count twice or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use terrane_base::{Result, Seq};

use crate::compact::pick::{MAX_L0_RUNS, PaidFor, READ_L0_RUNS, l0_goes_down, l0_is_little};
use crate::db::background::REST;
use crate::db::engine::Engine;
use crate::db::table::{Super, Table};
use crate::levels::{Run, Version};

/// Bytes that are merged in the time that a lookup's look takes. (1 M records of 16 and 100 bytes in memory, one thread: a look into a run
/// of L0 took 110 ns, into a memtable 140, and merging them down 3.1 ns a byte; with 5 M merging took 4.)
const BYTES_A_LOOK: u64 = 32;
/// Such looks that take as long as seeking in one source more, and what is merged behind that until a lead begins again. (5 M such records,
/// one thread: a seek to one record takes 1.24 us in one run and 2.77 in three, one to ten records 1.70 in one and 2.41 in two.) A step of a
/// merge takes as long as one.
pub(crate) const LOOKS_A_SEEK: u32 = 6;
/// Looks for which nobody asks.
const LEAST: u64 = 1 << 17;
/// Bytes in memtables and L0 for which nobody asks: looks into so little are short.
const LEAST_BYTES: u64 = 1 << 20;
/// See the module's head.
const REWRITES: u64 = 16;
/// See the module's head.
const AT_REST: u64 = 2;
/// The part of its price for which a pass is made while nothing is written.
const LASTING: u64 = 8;
/// Looks that a cursor counts by itself before it tells.
pub(crate) const TOLD_AT_ONCE: u32 = 4096;

/// Looks that take as long as merging so many bytes, or those for which nobody asks.
fn looks_to_merge(bytes: u64) -> u64 {
    (bytes / BYTES_A_LOOK).max(LEAST)
}

/// What is enough of a price in a rest.
fn at_rest(price: u64) -> u64 {
    (price / LASTING).max(LEAST)
}

/// Looks for a rewrite that takes as long as `once`, of so many bytes for so many that have come.
fn price(once: u64, rewritten: u64, came: u64) -> u64 {
    once.saturating_mul(rewritten.div_ceil(came.saturating_mul(REWRITES).max(1)).max(1))
}

/// What looks may pay for: that `above` bytes go down into the `into` bytes of L1, beside a level of `largest` bytes, or the join of L0.
struct Offer {
    above: u64,
    into: u64,
    largest: u64,
    join: Option<Join>,
    /// What was written by `now`.
    written: Written,
    now: Duration,
}

/// Becomes another one with each write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Written {
    /// Of the active memtable.
    generation: u64,
    records: u64,
    /// The newest of L0: it may have been attached. (Or was flushed; that is none, but follows one.)
    newest: Option<u64>,
}

impl Written {
    fn in_state(state: &Super) -> Self {
        let active = state.active();
        // Deletions of ranges are not among the records of the index.
        let records = active.index().len() as u64 + active.deletes();
        let newest = state.version.l0.first().map(|run| run.id);
        Written { generation: active.generation(), records, newest }
    }
}

/// L0's runs becoming one.
#[derive(Clone, Copy, Debug)]
struct Join {
    /// Their bytes, and those without the largest of them.
    all: u64,
    came: u64,
    /// Sources that reads look into in vain, and how many of these it spares, which is less.
    sources: u64,
    spared: u64,
    /// The newest of them.
    newest: u64,
}

impl Join {
    fn of(state: &Super, memtable_bytes: u64) -> Option<Self> {
        let l0 = &state.version.l0;
        let spared = l0.len().checked_sub(1).filter(|n| *n > 0)? as u64;
        let all = l0.iter().map(|run| run.bytes()).sum::<u64>();
        let largest = l0.iter().map(|run| run.bytes()).max()?;
        let sources = (state.filled().count() + l0.len()) as u64;
        let newest = l0.first()?.id;
        let join = Join { all, came: all - largest, sources, spared, newest };
        l0_is_little(&state.version, memtable_bytes).then_some(join)
    }

    fn price(self) -> u64 {
        price(looks_to_merge(self.all), self.all, self.came)
    }

    /// Looks of which as many as the price are those that it spares.
    fn looks(self) -> u64 {
        (u128::from(self.price()) * u128::from(self.sources) / u128::from(self.spared))
            .try_into()
            .unwrap_or(u64::MAX)
    }
}

/// The account of a subtable; see the module's head.
#[derive(Debug)]
pub(crate) struct Spent {
    looks: AtomicU64,
    /// At how many somebody is to see what they pay for.
    due: AtomicU64,
    bought: Mutex<Bought>,
    /// Looks that there ever were, and how many when a memtable was written out or a run attached last.
    ever: AtomicU64,
    at_last: AtomicU64,
    /// While the bytes of that came there were many.
    was_read: AtomicBool,
}

/// What looks have paid for and is not done yet.
#[derive(Debug, Default)]
struct Bought {
    /// That this goes down.
    pass: Option<Paid>,
    /// That those runs of L0 become one of which this is the newest. (One that comes meanwhile is newer, whatever is joined with it.)
    join: Option<u64>,
    /// Looks that there were when L0 came to have several runs, or when these were last paid for.
    several_since: Option<u64>,
    /// What was written when it was looked at last, and when it was first seen to be no more.
    written: Option<(Written, Duration)>,
}

impl Bought {
    /// Whether nothing has been written for a while, as far as was looked.
    fn sees_rest(&mut self, written: Written, now: Duration) -> bool {
        let since = self.written.filter(|(before, _)| *before == written).map_or(now, |(_, since)| since);
        self.written = Some((written, since));
        now.saturating_sub(since) >= REST
    }

    /// Forgets a join that is done, or can no longer be.
    fn look_at(&mut self, state: &Super, memtable_bytes: u64) {
        let runs = |newest| state.version.l0.iter().filter(move |run| run.id <= newest).count();
        let is_to_come = |newest: &u64| runs(*newest) > 1 && l0_is_little(&state.version, memtable_bytes);
        self.join = self.join.filter(is_to_come);
    }
}

/// Whether the run may have something that is not newer than this.
fn reaches_back(run: &Run, upto: Seq) -> bool {
    run.refs().iter().any(|part| part.extent.meta.min_seq <= upto)
}

/// What was above L1 at some time.
#[derive(Clone, Copy, Debug)]
struct Paid {
    /// It was in memtables of generations less than this, ...
    before: u64,
    /// ... and none of L0 was newer than this.
    upto: Seq,
}

impl Paid {
    /// What is there now, or a little less.
    fn for_all_of(engine: &Engine, table: &Table) -> Self {
        let upto = engine.visible();
        let state = table.state();
        let active = state.active();
        Paid { before: active.generation() + u64::from(!active.is_empty()), upto }
    }

    /// Whether `state` has some of it above L1.
    fn is_above(&self, state: &Super) -> bool {
        state.memtables.iter().any(|m| m.generation() < self.before)
            || state.version.l0.iter().any(|run| reaches_back(run, self.upto))
    }
}

impl Default for Spent {
    fn default() -> Self {
        Spent {
            looks: AtomicU64::new(0),
            due: AtomicU64::new(LEAST),
            bought: Mutex::default(),
            ever: AtomicU64::new(0),
            at_last: AtomicU64::new(0),
            was_read: AtomicBool::new(false),
        }
    }
}

impl Spent {
    /// Counts; whether somebody is to see what that pays for.
    pub(crate) fn add(&self, looks: u64) -> bool {
        self.ever.fetch_add(looks, Ordering::Relaxed);
        self.looks.fetch_add(looks, Ordering::Relaxed) + looks >= self.due.load(Ordering::Relaxed)
    }

    /// A memtable of so many bytes was written out, or a run attached.
    pub(crate) fn run_came(&self, bytes: u64) {
        self.was_read.store(self.is_read(bytes), Ordering::Relaxed);
        self.at_last.store(self.ever.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Whether reads have taken longer since then than merging so many bytes does.
    fn is_read(&self, bytes: u64) -> bool {
        let at_last = self.at_last.load(Ordering::Relaxed);
        self.ever.load(Ordering::Relaxed).saturating_sub(at_last) >= looks_to_merge(bytes)
    }

    /// Runs of L0 with which its pass is to go on in any case, if there are places for them ([`Table::l0_due`]); see the module's head.
    pub(crate) fn l0_due(&self, version: &Version) -> usize {
        let newest = version.l0.first().map_or(0, |run| run.birth_bytes());
        let is_read = self.was_read.load(Ordering::Relaxed) || self.is_read(newest);
        if is_read { READ_L0_RUNS } else { MAX_L0_RUNS }
    }

    /// What is to be done for what was spent.
    pub(crate) fn paid_for(&self) -> PaidFor {
        match &*self.bought.lock() {
            Bought { pass: Some(_), .. } => PaidFor::Pass,
            Bought { join: Some(_), .. } => PaidFor::Join,
            _ => PaidFor::Nothing,
        }
    }

    /// Looks at what is bought and at the state of `table`, which is loaded under the lock.
    fn with_state<R>(&self, table: &Table, look: impl FnOnce(&mut Bought, &Super) -> R) -> R {
        // Dropped without the lock: it may be the last one to keep memtables.
        let state;
        let mut bought = self.bought.lock();
        state = table.state_full();
        look(&mut bought, &state)
    }

    /// What is above, or L0's runs, may have become other than they were: that is `state`. With `l0_due` runs L0 goes down anyway.
    fn look_at(&self, bought: &mut Bought, state: &Super, memtable_bytes: u64, l0_due: usize) {
        bought.look_at(state, memtable_bytes);
        let version = &state.version;
        let ends = match &bought.pass {
            Some(paid) => !paid.is_above(state),
            None => version.l0.is_empty() || l0_goes_down(version, memtable_bytes, l0_due),
        };
        if ends {
            *bought = Bought { written: bought.written, ..Bought::default() };
            self.set(0, LEAST);
        }
        let looks = self.looks.load(Ordering::Relaxed);
        if version.l0.len() < 2 {
            bought.several_since = None;
            return;
        }
        bought.several_since.get_or_insert(looks);
        if bought.pass.is_none() {
            // There is something less to buy, or for less than before.
            self.due.fetch_min(looks.saturating_add(LEAST), Ordering::Relaxed);
        }
    }

    /// The looks, and how many there were when L0 came to have several runs.
    fn saved(&self) -> (u64, Option<u64>) {
        let bought = self.bought.lock();
        (self.looks.load(Ordering::Relaxed), bought.several_since)
    }

    /// What was saved was spent for nothing.
    fn give_back(&self, (looks, several_since): (u64, Option<u64>)) {
        let mut bought = self.bought.lock();
        bought.several_since = bought.several_since.map(|since| several_since.unwrap_or(looks + since));
        self.looks.fetch_add(looks, Ordering::Relaxed);
    }

    /// Nothing can be done for them now. The longer that lasts the more seldom it is looked at.
    fn look_later(&self) {
        let _alone = self.bought.lock();
        let looks = self.looks.load(Ordering::Relaxed);
        self.due.store(looks.saturating_add(LEAST.max(looks / 8)), Ordering::Relaxed);
    }

    /// Some, or all, of the looks are gone.
    fn leave(&self, bought: &mut Bought, left: u64, due: u64) {
        bought.several_since = bought.several_since.map(|_| left);
        self.set(left, due);
    }

    /// To be called with `bought` locked.
    fn set(&self, looks: u64, due: u64) {
        self.looks.store(looks, Ordering::Relaxed);
        self.due.store(due, Ordering::Relaxed);
    }

    /// What the looks pay for, of what is offered. What they pay is gone, and so are all if there is too little above; else they are to be
    /// looked at again when there are enough, or when they would be if more had come above meanwhile: the price may be less then.
    fn pays(&self, offer: impl FnOnce() -> Offer) -> PaidFor {
        let mut bought = self.bought.lock();
        let Offer { above, into, largest, join, written, now } = offer();
        let rests = bought.sees_rest(written, now);
        let looks = self.looks.load(Ordering::Relaxed);
        let once = looks_to_merge(above + into);
        if above < LEAST_BYTES {
            let due = join.map_or(u64::MAX, Join::looks).min(at_rest(once));
            self.leave(&mut bought, 0, due);
            return PaidFor::Nothing;
        }
        let price = price(once, largest, above);
        let is_much = largest / AT_REST > above.saturating_mul(REWRITES);
        let lasting = if is_much { price } else { at_rest(price) };
        if looks >= if rests { lasting } else { price } {
            self.leave(&mut bought, 0, LEAST);
            return PaidFor::Pass;
        }
        // (And whether it rests.)
        let again = if looks < lasting { lasting } else { looks.saturating_add(lasting) };
        let mut due = price.min(looks.saturating_add(once)).min(again);
        if let Some(join) = join {
            let since = *bought.several_since.get_or_insert(looks);
            let enough = since.saturating_add(join.looks());
            if looks >= enough {
                // The others are for what stays.
                let left = looks.saturating_sub(join.price());
                bought.join = Some(join.newest);
                self.leave(&mut bought, left, left.saturating_add(LEAST));
                return PaidFor::Join;
            }
            due = due.min(enough);
        }
        self.set(looks, due);
        PaidFor::Nothing
    }
}

impl Engine {
    /// A memtable, or some of L0, may have gone down, runs of L0 have become one, or there is one more.
    pub(crate) fn account_for_change(&self, table: &Table) {
        let memtable_bytes = self.options.memtable_bytes as u64;
        table.spent.with_state(table, |bought, state| {
            table.spent.look_at(bought, state, memtable_bytes, table.l0_due(&state.version));
        });
    }

    /// A cursor has sought and stepped for as long as so many looks take.
    pub(crate) fn merged(&self, table: &Table, looks: u32) {
        // Nobody looks at what was dropped.
        if table.spent.add(u64::from(looks)) && !table.is_dropped() {
            self.look_at_reads();
        }
    }

    /// There were many reads: what they say may be worth a merge. Quick; the looking is done in the background.
    pub(crate) fn look_at_reads(&self) {
        let compacts = self.options.tuning.compact && !self.closing.load(Ordering::Acquire);
        if compacts && !self.looking.swap(true, Ordering::AcqRel) {
            self.spawn("look at what is read", |engine| {
                engine.fold_heat();
                for table in engine.tables.load().all() {
                    if table.spent.add(0) {
                        engine.bring_down(table);
                    }
                }
                // Whose looks came too late for this sees that, and tells; or they are seen here.
                engine.looking.swap(false, Ordering::AcqRel);
                engine.schedule_compactions();
            });
        }
    }

    /// Has memtable and L0 go down to L1, or L0's runs become one, if reads have paid for that.
    fn bring_down(self: &Arc<Self>, table: &Arc<Table>) {
        let memtable_bytes = self.options.memtable_bytes as u64;
        table.spent.with_state(table, |bought, state| bought.look_at(state, memtable_bytes));
        // What was paid for is not done yet, or nothing can be done.
        let pays_already = table.spent.paid_for() != PaidFor::Nothing;
        if pays_already || !table.can_flush_next() || table.trouble.hinders_l0() {
            return table.spent.look_later();
        }
        let saved = table.spent.saved();
        // Dropped without the lock.
        let mut seen = None;
        let pays = table.spent.pays(|| {
            let state = &**seen.insert(table.state_full());
            let bytes = |at: usize| state.version.levels.get(at).map_or(0, |run| run.bytes());
            let largest = (0..state.version.levels.len()).map(bytes).max().unwrap_or(0);
            let l0: u64 = state.version.l0.iter().map(|run| run.bytes()).sum();
            let active = if state.active().is_empty() { 0 } else { state.active().filled_bytes() as u64 };
            Offer {
                above: active + l0,
                into: bytes(0),
                largest,
                join: Join::of(state, memtable_bytes),
                written: Written::in_state(state),
                now: self.media.now(),
            }
        });
        drop(seen);
        if pays == PaidFor::Pass && self.pay(table).is_err() {
            table.spent.give_back(saved);
            table.spent.look_later();
        }
    }

    /// Has all that is above L1 now go down.
    fn pay(self: &Arc<Self>, table: &Arc<Table>) -> Result<()> {
        self.check_writable()?;
        // Before it freezes: it may have gone down right after.
        table.spent.bought.lock().pass = Some(Paid::for_all_of(self, table));
        let frozen = self.freeze_now(table);
        match frozen {
            // Or before it was paid for, and then nobody looks for what has gone before something else goes.
            Ok(()) => self.account_for_change(table),
            Err(_) => table.spent.bought.lock().pass = None,
        }
        frozen
    }
}

#[cfg(test)]
mod tests;
