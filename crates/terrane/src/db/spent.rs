//! What reads spend on memtables and runs of L0, and what that pays for.
//!
//! Data that is read more than it is written is best in one run. But until its memtable is full, every lookup of what lies below looks
//! into that in vain, and every cursor merges. Each such look, and each step of a merge, is counted: lookups by sample, with their heat;
//! cursors tell many at once. When the looks have taken about as long as merging all of that down will, before a full memtable is written
//! out anyway, the active memtable freezes and L0 goes down into L1. So what reads spend in vain, and what is spent for them, are about
//! the same: as who rents skis until the rent would have bought them. (A. Karlin, M. Manasse, L. Rudolph, D. Sleator, "Competitive Snoopy
//! Caching", Algorithmica 1988.)
//!
//! Where L0 has several runs that are little, it is far less to make them one, which spares some of the looks: that is paid for first.
//!
//! What is written for it stays in proportion to what was written anyway, [`REWRITES`] bytes of levels for each byte that memtables and
//! L0 take, or else to what it spares: for so many times as many, reads must have paid so many times.
//!
//! The account ends when all of that has gone down, or is about to anyway, whoever had that done. What has come since reads paid, they have
//! not paid for.
//!
//! # Concurrency
//! One job at a time looks what was paid for ([`Engine::look_at_reads`]); flushes and merges end accounts. Both hold `paid` while they set
//! counts back, so that when to look fits what was counted. Reads count beside them, relaxed: some looks count twice or not at all.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use terrane_base::{Result, Seq};

use crate::compact::pick::{PaidFor, l0_goes_down, l0_is_little};
use crate::db::engine::Engine;
use crate::db::table::{Super, Table};

/// Bytes that are merged in the time that a lookup's look takes. (1 M records of 16 and 100 bytes in memory, one thread: a look into a run
/// of L0 took 110 ns, into a memtable 140, and merging them down 3.1 ns a byte.)
const BYTES_A_LOOK: u64 = 32;
/// Such looks that take as long as seeking in one source more. A step of a merge takes as long as one.
pub(crate) const LOOKS_A_SEEK: u32 = 3;
/// Looks for which nobody asks.
const LEAST: u64 = 1 << 17;
/// Bytes in memtables and L0 for which nobody asks: looks into so little are short.
const LEAST_BYTES: u64 = 1 << 20;
/// See the module's head.
const REWRITES: u64 = 16;
/// Looks that a cursor counts by itself before it tells.
pub(crate) const TOLD_AT_ONCE: u32 = 4096;

/// Looks for a rewrite that takes as long as `once`, of so many bytes for so many that have come.
fn price(once: u64, rewritten: u64, came: u64) -> u64 {
    once.saturating_mul(rewritten.div_ceil(came.saturating_mul(REWRITES).max(1)).max(1))
}

/// L0's runs becoming one.
#[derive(Clone, Copy, Debug)]
struct Join {
    /// Their bytes, and without the largest of them.
    all: u64,
    came: u64,
    /// Sources that reads look into in vain, and how many of these it spares.
    sources: u64,
    spared: u64,
}

impl Join {
    fn of(state: &Super, memtable_bytes: u64) -> Option<Self> {
        let l0 = &state.version.l0;
        let spared = l0.len().checked_sub(1).filter(|n| *n > 0)? as u64;
        let (all, largest) =
            l0.iter().map(|run| run.bytes()).fold((0, 0), |(all, largest), n| (all + n, n.max(largest)));
        let memtables = state.memtables.iter().filter(|m| !m.is_empty()).count();
        let sources = (memtables + l0.len()) as u64;
        l0_is_little(&state.version, memtable_bytes).then_some(Join {
            all,
            came: all - largest,
            sources,
            spared,
        })
    }

    /// As many as those that it spares have to be.
    fn price(self) -> u64 {
        let of_spared = price((self.all / BYTES_A_LOOK).max(LEAST), self.all, self.came);
        of_spared.saturating_mul(self.sources) / self.spared
    }
}

/// The account of a subtable; see the module's head.
#[derive(Debug)]
pub(crate) struct Spent {
    looks: AtomicU64,
    /// At how many somebody is to see what they pay for.
    due: AtomicU64,
    /// What they have paid for and is not down yet.
    paid: Mutex<Option<Paid>>,
    /// They have paid for L0's runs to become one.
    joins: AtomicBool,
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
        let mut parts = state.version.l0.iter().flat_map(|run| run.refs());
        state.memtables.iter().any(|m| m.generation() < self.before)
            || parts.any(|part| part.extent.meta.min_seq <= self.upto)
    }
}

impl Default for Spent {
    fn default() -> Self {
        let (looks, due, paid) = (AtomicU64::new(0), AtomicU64::new(LEAST), Mutex::new(None));
        Spent { looks, due, paid, joins: AtomicBool::new(false) }
    }
}

impl Spent {
    /// Counts; whether somebody is to see what that pays for.
    pub(crate) fn add(&self, looks: u64) -> bool {
        self.looks.fetch_add(looks, Ordering::Relaxed) + looks >= self.due.load(Ordering::Relaxed)
    }

    /// What is to be done for what was spent.
    pub(crate) fn paid_for(&self) -> PaidFor {
        if self.has_paid() {
            PaidFor::Pass
        } else if self.joins.load(Ordering::Relaxed) {
            PaidFor::Join
        } else {
            PaidFor::Nothing
        }
    }

    /// Whether L0 is to be emptied.
    fn has_paid(&self) -> bool {
        self.paid.lock().is_some()
    }

    /// What was above has changed, to `state`.
    fn some_is_gone(&self, state: &Super, memtable_bytes: u64) {
        let mut paid = self.paid.lock();
        self.joins.store(false, Ordering::Relaxed);
        let version = &state.version;
        let ends = match *paid {
            Some(paid) => !paid.is_above(state),
            None => version.l0.is_empty() || l0_goes_down(version, memtable_bytes),
        };
        if ends {
            *paid = None;
            self.set(0, LEAST);
        } else if version.l0.len() > 1 {
            // There may be something less to buy.
            let soon = self.looks.load(Ordering::Relaxed).saturating_add(LEAST);
            self.due.fetch_min(soon, Ordering::Relaxed);
        }
    }

    /// Nothing can be done for them now. The longer that lasts the more seldom it is looked at.
    fn look_later(&self) {
        let _alone = self.paid.lock();
        let looks = self.looks.load(Ordering::Relaxed);
        self.due.store(looks.saturating_add(LEAST.max(looks / 8)), Ordering::Relaxed);
    }

    /// To be called with `paid` locked.
    fn set(&self, looks: u64, due: u64) {
        self.looks.store(looks, Ordering::Relaxed);
        self.due.store(due, Ordering::Relaxed);
    }

    /// What the looks pay for: merging `above` bytes into the `into` bytes of L1, beside a level of `largest` bytes, or the `join` of L0. What
    /// they pay is gone, and so are all if there is too little above; else they are to be looked at again when there are enough, or when they
    /// would be if more had come above meanwhile: the price may be less then.
    fn pays(&self, above: u64, into: u64, largest: u64, join: Option<Join>) -> PaidFor {
        let _alone = self.paid.lock();
        let looks = self.looks.load(Ordering::Relaxed);
        let once = ((above + into) / BYTES_A_LOOK).max(LEAST);
        if above < LEAST_BYTES {
            self.set(0, once);
            return PaidFor::Nothing;
        }
        let price = price(once, largest, above);
        if looks >= price {
            self.set(0, LEAST);
            return PaidFor::Pass;
        }
        let join = join.map_or(u64::MAX, Join::price);
        if let Some(left) = looks.checked_sub(join) {
            self.set(left, left + LEAST);
            self.joins.store(true, Ordering::Relaxed);
            return PaidFor::Join;
        }
        self.set(looks, price.min(looks.saturating_add(once)).min(join));
        PaidFor::Nothing
    }
}

impl Engine {
    /// A memtable, or some of L0, may have gone down, or runs of L0 have become one.
    pub(crate) fn account_for_gone(&self, table: &Table) {
        table.spent.some_is_gone(&table.state(), self.options.memtable_bytes as u64);
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
                engine.looking.store(false, Ordering::Release);
                engine.schedule_compactions();
            });
        }
    }

    /// Has memtable and L0 go down to L1, if reads have paid for that.
    fn bring_down(self: &Arc<Self>, table: &Arc<Table>) {
        // What was paid for is not done yet, or nothing can be done.
        let pays_already = table.spent.paid_for() != PaidFor::Nothing;
        if pays_already || !table.can_flush_next() || table.trouble.hinders_l0() {
            return table.spent.look_later();
        }
        let state = table.state();
        let bytes = |at: usize| state.version.levels.get(at).map_or(0, |run| run.bytes());
        let largest = (0..state.version.levels.len()).map(bytes).max().unwrap_or(0);
        let l0: u64 = state.version.l0.iter().map(|run| run.bytes()).sum();
        let active = if state.active().is_empty() { 0 } else { state.active().filled_bytes() as u64 };
        let looks = table.spent.looks.load(Ordering::Relaxed);
        let join = Join::of(&state, self.options.memtable_bytes as u64);
        let pays = table.spent.pays(active + l0, bytes(0), largest, join);
        drop(state);
        if pays == PaidFor::Pass && self.pay(table).is_err() {
            table.spent.add(looks);
            table.spent.look_later();
        }
    }

    /// Has all that is above L1 now go down.
    fn pay(self: &Arc<Self>, table: &Arc<Table>) -> Result<()> {
        self.check_writable()?;
        // Before it freezes: it may have gone down right after.
        *table.spent.paid.lock() = Some(Paid::for_all_of(self, table));
        let frozen = self.freeze_now(table);
        match frozen {
            // Or before it was paid for, and then nobody looks for what has gone before something else goes.
            Ok(()) => self.account_for_gone(table),
            Err(_) => *table.spent.paid.lock() = None,
        }
        frozen
    }
}

#[cfg(test)]
mod tests {
    use terrane_base::{Error, ErrorKind};
    use terrane_media::sim::SimMedia;

    use super::*;
    use crate::{Compression, Db, Options, ReadOptions, Subtable, SubtableOptions, Tuning};

    /// Records of L1, to begin with.
    const BELOW: u32 = 12_000;
    /// Records that take [`LEAST_BYTES`] of a memtable.
    const ENOUGH: u32 = 6000;

    /// So few that they stay in L0 in a rest, too.
    const FEW: u32 = 500;

    fn key(n: u32) -> [u8; 4] {
        n.wrapping_mul(0x9e37_79b9).to_be_bytes()
    }

    fn put(table: &Subtable, keys: std::ops::Range<u32>) {
        // What compresses but little.
        let value = |n: u32| (0..32).flat_map(|i| key(n ^ i << 20)).collect::<Vec<_>>();
        keys.for_each(|n| table.put(&key(n), &value(n)).unwrap());
    }

    fn filled(above: u32, compact: bool) -> (Db, Subtable) {
        let tuning = Tuning { compact, ..Tuning::default() };
        let options = Options::new().memtable_bytes(32 << 20).cache_bytes(16 << 20).tuning(tuning);
        let db = Db::open_on(SimMedia::new(3), "/db", options).unwrap();
        let uncompressed = SubtableOptions::new().compression(Compression::None);
        let table = db.create_subtable("t", uncompressed).unwrap();
        put(&table, 0..BELOW);
        table.flush().unwrap();
        put(&table, BELOW..BELOW + above);
        (db, table)
    }

    /// Sources beside L1. (Not by [`Db::wait_idle`], which does what waits for a rest.)
    fn sources(db: &Db, table: &Subtable) -> usize {
        db.engine.wait_idle().unwrap();
        let state = table.table().state();
        state.memtables.iter().filter(|m| !m.is_empty()).count() + state.version.l0.len()
    }

    fn look_up(db: &Db, table: &Subtable, looks: u64) {
        for n in 0..looks as u32 {
            assert!(table.get(&key(n % BELOW)).unwrap().is_some());
            if n.is_multiple_of(24 << 10) {
                // In simulated time, what looks at samples gets no turn before.
                db.engine.wait_idle().unwrap();
            }
        }
    }

    fn scan(_: &Db, table: &Subtable, steps: u64) {
        let mut cursor = table.cursor(ReadOptions::new()).unwrap();
        for _ in 0..steps {
            if cursor.valid() { cursor.next().unwrap() } else { cursor.seek(&[]).unwrap() }
        }
    }

    #[test]
    fn reads_bring_down_what_they_look_into_in_vain() {
        for read in [look_up, scan] {
            let (db, table) = filled(ENOUGH, true);
            read(&db, &table, LEAST / 4);
            assert_eq!(sources(&db, &table), 1, "a few reads");
            read(&db, &table, LEAST * 4);
            assert_eq!(sources(&db, &table), 0);
            let rows = table.range(ReadOptions::new()).unwrap().filter(|row| row.is_ok()).count();
            assert_eq!(rows, (BELOW + ENOUGH) as usize);
            // They have paid once: what comes next waits until they have paid again.
            assert!(!table.table().spent.has_paid());
            put(&table, 0..FEW);
            table.flush().unwrap();
            assert_eq!(sources(&db, &table), 1);
            put(&table, FEW..FEW + ENOUGH);
            read(&db, &table, LEAST * 6);
            assert_eq!(sources(&db, &table), 0, "a run and a memtable");
        }
    }

    #[test]
    fn reads_bring_down_nothing_where_compactions_are_held_back() {
        let (db, table) = filled(ENOUGH, false);
        look_up(&db, &table, LEAST * 2);
        scan(&db, &table, LEAST * 4);
        assert_eq!(sources(&db, &table), 1);
        assert!(!db.engine.looking.load(Ordering::Acquire));
    }

    #[test]
    fn the_account_goes_on_until_l0_goes_down_whoever_has_that_done() {
        let (db, table) = filled(ENOUGH, true);
        table.table().spent.add(LEAST - 1);
        table.flush().unwrap();
        assert_eq!(sources(&db, &table), 1);
        assert!(table.table().spent.add(1), "a run that nobody merges");
        put(&table, 0..ENOUGH);
        table.flush().unwrap();
        assert_eq!(sources(&db, &table), 0, "two runs, which are not paid for");
        assert!(!table.table().spent.add(LEAST - 1));

        put(&table, 0..ENOUGH);
        assert!(table.table().spent.add(1));
        table.compact().unwrap();
        assert!(!table.table().spent.add(LEAST - 1));
    }

    #[test]
    fn what_has_come_since_is_not_paid_for() {
        let (db, table) = filled(ENOUGH, false);
        let (t, engine) = (table.table(), &db.engine);
        let pay = |paid| *t.spent.paid.lock() = Some(paid);
        let ends = || {
            engine.account_for_gone(t);
            !t.spent.has_paid()
        };
        let first = Paid::for_all_of(engine, t);
        pay(first);
        assert!(!ends(), "it is in a memtable");
        put(&table, 0..FEW);
        table.flush().unwrap();
        assert!(!ends(), "it is in L0");
        put(&table, 0..FEW);
        table.flush().unwrap();
        assert!(!ends());
        table.compact().unwrap();
        assert!(ends());

        put(&table, 0..FEW);
        pay(Paid::for_all_of(engine, t));
        assert!(!ends());
        pay(first);
        assert!(ends(), "only what has come since is in a memtable");
        table.flush().unwrap();
        pay(Paid::for_all_of(engine, t));
        assert!(!ends(), "a run, and an empty memtable");
        pay(first);
        assert!(ends(), "only what has come since is in L0");
    }

    #[test]
    fn looks_are_kept_while_nothing_can_be_done() {
        let (db, table) = filled(ENOUGH, true);
        let (t, engine) = (table.table(), &db.engine);
        t.spent.add(LEAST * 8);
        *t.spent.paid.lock() = Some(Paid::for_all_of(engine, t));
        engine.bring_down(t);
        assert!(!t.spent.add(LEAST - 1), "it is looked at again after a while");
        assert_eq!(sources(&db, &table), 1);
        *t.spent.paid.lock() = None;
        let failed = Error::new(ErrorKind::OutOfSpace, "full");
        t.trouble.flushed(Some(&failed));
        engine.bring_down(t);
        assert!(!t.spent.has_paid());
        t.trouble.flushed(None);
        engine.bring_down(t);
        assert_eq!(sources(&db, &table), 0);
        assert!(!t.spent.has_paid() && !t.spent.add(LEAST - 1));
        // The longer nothing can be done, the later.
        t.spent.add(LEAST * 79);
        t.spent.look_later();
        assert!(!t.spent.add(LEAST * 9) && t.spent.add(LEAST));
    }

    #[test]
    fn what_is_paid_for_goes_down_unless_there_is_trouble() {
        let (db, table) = filled(ENOUGH, false);
        table.flush().unwrap();
        let (t, engine) = (table.table(), &db.engine);
        let goes_down =
            || engine.pick(t, u64::MAX).is_some_and(|p| (p.from, p.to) == (0, 1) && p.urgency >= 1.0);
        assert!(!goes_down());
        *t.spent.paid.lock() = Some(Paid::for_all_of(engine, t));
        assert!(goes_down());
        let failed = Error::new(ErrorKind::OutOfSpace, "full");
        t.trouble.flushed(Some(&failed));
        assert!(!goes_down());
        t.trouble.flushed(None);
        assert!(goes_down());
    }

    #[test]
    fn what_has_gone_before_it_was_paid_for_is_not_waited_for() {
        let (db, table) = filled(ENOUGH, true);
        let (t, engine) = (table.table(), &db.engine);
        engine.pay(t).unwrap();
        assert!(t.spent.has_paid());
        assert_eq!(sources(&db, &table), 0);
        assert!(!t.spent.has_paid());
        // As if somebody else had brought all of it down since it was looked at.
        engine.pay(t).unwrap();
        assert!(!t.spent.has_paid());
    }

    #[test]
    fn looks_that_could_not_pay_are_kept() {
        let (db, table) = filled(ENOUGH, true);
        let (t, engine) = (table.table(), &db.engine);
        t.spent.add(LEAST * 8);
        engine.journal.poison(&Error::new(ErrorKind::Io, "a flush that failed"));
        engine.bring_down(t);
        assert!(!t.spent.has_paid());
        assert_eq!(t.spent.looks.load(Ordering::Relaxed), LEAST * 8);
        assert!(!t.spent.add(LEAST - 1) && t.spent.add(1));
    }

    #[test]
    fn cursors_of_a_dropped_subtable_have_nobody_look() {
        let (db, table) = filled(ENOUGH, true);
        let t = table.table().clone();
        db.drop_subtable("t").unwrap();
        t.spent.add(LEAST);
        let looking = || db.engine.looking.load(Ordering::Acquire);
        db.engine.merged(&t, 1);
        assert!(!looking());
        db.engine.look_at_reads();
        assert!(looking());
    }

    #[test]
    fn runs_of_a_little_l0_become_one_for_much_less_than_they_go_down_for() {
        let (db, table) = filled(0, true);
        // So that these are little.
        put(&table, 0..BELOW * 16);
        table.compact().unwrap();
        for keys in [0..FEW * 6, 0..FEW] {
            put(&table, keys);
            table.flush().unwrap();
        }
        assert_eq!(sources(&db, &table), 2, "what came last is not half as much");
        assert!(!l0_goes_down(&table.table().state().version, 32 << 20));
        put(&table, 0..ENOUGH);
        table.table().spent.add(LEAST * 4);
        db.engine.look_at_reads();
        assert_eq!(sources(&db, &table), 2, "a memtable and one run");
        assert_eq!(table.table().spent.paid_for(), PaidFor::Nothing);
    }

    #[test]
    fn a_join_is_paid_for_by_the_looks_that_it_spares() {
        let spent = Spent::default();
        let join = Join { all: LEAST * BYTES_A_LOOK * 2, came: LEAST * BYTES_A_LOOK, sources: 3, spared: 1 };
        let pays = |join| spent.pays(LEAST_BYTES, 1 << 40, 1, Some(join));
        assert!(spent.add(LEAST * 5));
        assert_eq!(pays(join), PaidFor::Nothing);
        assert!(!spent.add(LEAST - 1) && spent.add(1));
        assert_eq!(pays(join), PaidFor::Join);
        assert_eq!((spent.paid_for(), spent.looks.load(Ordering::Relaxed)), (PaidFor::Join, 0));
        // For so little it is written too much.
        let little = Join { came: join.all / (REWRITES * 2), ..join };
        spent.add(LEAST * 12 - 1);
        assert_eq!(pays(little), PaidFor::Nothing);
        spent.add(1);
        assert_eq!(pays(little), PaidFor::Join);
    }

    #[test]
    fn looks_pay_once_and_many_times_over_for_what_is_out_of_proportion() {
        let spent = Spent::default();
        let pays = |above, into, largest| spent.pays(above, into, largest, None) == PaidFor::Pass;
        let (above, into) = (LEAST_BYTES, LEAST * 2 * BYTES_A_LOOK - LEAST_BYTES);
        assert!(!spent.add(LEAST - 1));
        assert!(spent.add(1));
        assert!(!pays(above, into, into), "half of the price");
        assert!(!spent.add(LEAST - 1), "nobody looks before");
        assert!(spent.add(1));
        assert!(pays(above, into, into));
        assert!(!spent.add(LEAST - 1), "it was spent");
        assert!(spent.add(LEAST * 8));
        assert!(!pays(LEAST_BYTES - 1, 0, 1));
        assert!(!spent.add(LEAST - 1), "nothing is saved up for so little");
        assert!(spent.add(1));
        assert!(pays(LEAST_BYTES, 0, LEAST_BYTES * REWRITES));

        assert!(spent.add(LEAST * 2));
        let largest = LEAST_BYTES * REWRITES * 2 + 1;
        assert!(!pays(LEAST_BYTES, 0, largest), "three times the price");
        assert!(!spent.add(LEAST - 1));
        assert!(spent.add(1));
        assert!(pays(LEAST_BYTES, 0, largest));
        // Looked at again before they pay: when more is above, they may.
        let largest = LEAST_BYTES * REWRITES * 100;
        assert!(spent.add(LEAST * 9));
        assert!(!pays(LEAST_BYTES, 0, largest), "a hundred times the price");
        assert!(!spent.add(LEAST - 1));
        assert!(spent.add(1));
        assert!(!pays(LEAST_BYTES * 9, 0, largest / 2), "more than two times five");
        assert!(spent.add(LEAST * 3));
        assert!(pays(LEAST_BYTES * 10, 0, largest / 10));
        assert!(spent.add(1 << 40));
        assert!(!pays(LEAST_BYTES, 0, u64::MAX), "it takes more than that");
    }
}
