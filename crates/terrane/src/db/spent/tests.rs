use terrane_base::{Error, ErrorKind};
use terrane_media::sim::SimMedia;

use super::*;
use crate::{Compression, Db, Medium, Options, ReadOptions, Subtable, SubtableOptions, Tuning};

/// Records of L1, to begin with.
const BELOW: u32 = 12_000;
/// Records that take [`LEAST_BYTES`] of a memtable.
const ENOUGH: u32 = 6000;

/// Nothing but what was written.
const OFFER: Offer = Offer {
    above: 0,
    into: 0,
    largest: 1,
    join: None,
    written: Written { generation: 1, records: 100, newest: None },
    now: Duration::ZERO,
};

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
    let tuning = Tuning { compact, flush_after: None, ..Tuning::default() };
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
    state.filled().count() + state.version.l0.len()
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
        assert!(table.table().spent.paid_for() == PaidFor::Nothing);
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
    assert!(table.table().spent.add(0) && !db.engine.looking.load(Ordering::Acquire));
    assert_eq!(sources(&db, &table), 1);
    assert!(!table.table().state().active().is_empty());
    assert!(table.table().spent.paid_for() == PaidFor::Nothing);
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
    let pay = |paid| t.spent.bought.lock().pass = Some(paid);
    let ends = || {
        engine.account_for_change(t);
        t.spent.paid_for() == PaidFor::Nothing
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
    t.spent.bought.lock().pass = Some(Paid::for_all_of(engine, t));
    engine.bring_down(t);
    assert!(!t.spent.add(LEAST - 1), "it is looked at again after a while");
    assert_eq!(sources(&db, &table), 1);
    t.spent.bought.lock().pass = None;
    let failed = Error::new(ErrorKind::OutOfSpace, "full");
    t.trouble.flushed(Some(&failed));
    engine.bring_down(t);
    assert!(t.spent.paid_for() == PaidFor::Nothing);
    t.trouble.flushed(None);
    engine.bring_down(t);
    assert_eq!(sources(&db, &table), 0);
    assert!(t.spent.paid_for() == PaidFor::Nothing && !t.spent.add(LEAST - 1));
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
    let goes_down = || engine.pick(t, u64::MAX).is_some_and(|p| (p.from, p.to) == (0, 1) && p.urgency >= 1.0);
    assert!(!goes_down());
    t.spent.bought.lock().pass = Some(Paid::for_all_of(engine, t));
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
    assert!(t.spent.paid_for() == PaidFor::Pass);
    assert_eq!(sources(&db, &table), 0);
    assert!(t.spent.paid_for() == PaidFor::Nothing);
    // As if somebody else had brought all of it down since it was looked at.
    engine.pay(t).unwrap();
    assert!(t.spent.paid_for() == PaidFor::Nothing);
}

#[test]
fn looks_that_could_not_pay_are_kept() {
    let (db, table) = filled(ENOUGH, true);
    let (t, engine) = (table.table(), &db.engine);
    t.spent.add(LEAST * 8);
    engine.journal.poison(&Error::new(ErrorKind::Io, "a flush that failed"));
    engine.bring_down(t);
    assert!(t.spent.paid_for() == PaidFor::Nothing);
    assert_eq!(t.spent.looks.load(Ordering::Relaxed), LEAST * 8);
    assert!(!t.spent.add(LEAST - 1) && t.spent.add(1));
}

#[test]
fn looks_that_could_not_pay_are_still_those_since_there_were_several_runs() {
    let spent = Spent::default();
    let several_since = |since| spent.bought.lock().several_since = since;
    let after = |before, now| {
        spent.set(LEAST, LEAST * 10);
        several_since(before);
        let saved = spent.saved();
        spent.set(5, LEAST);
        several_since(now);
        spent.give_back(saved);
        assert_eq!(spent.looks.load(Ordering::Relaxed), LEAST + 5);
        spent.bought.lock().several_since
    };
    assert_eq!(after(Some(7), Some(0)), Some(7));
    assert_eq!(after(None, Some(3)), Some(LEAST + 3), "they came meanwhile");
    assert_eq!(after(Some(7), None), None, "they have gone meanwhile");
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
    assert!(!l0_goes_down(&table.table().state().version, 32 << 20, READ_L0_RUNS));
    put(&table, 0..ENOUGH);
    table.table().spent.add(LEAST * 4);
    db.engine.look_at_reads();
    assert_eq!(sources(&db, &table), 2, "a memtable and one run");
    assert_eq!(table.table().spent.paid_for(), PaidFor::Nothing);
}

#[test]
fn a_join_is_paid_for_by_the_looks_that_it_spares() {
    let spent = Spent::default();
    let (all, came) = (LEAST * BYTES_A_LOOK * 2, LEAST * BYTES_A_LOOK);
    let join = Join { all, came, sources: 3, spared: 1, newest: 7 };
    let pays = |join| spent.pays(|| Offer { above: LEAST_BYTES, into: 1 << 40, join: Some(join), ..OFFER });
    let looks = || spent.looks.load(Ordering::Relaxed);
    assert!(spent.add(LEAST * 100));
    assert_eq!(pays(join), PaidFor::Nothing, "those were there before the runs");
    assert!(!spent.add(LEAST * 6 - 1) && spent.add(1));
    assert_eq!(pays(join), PaidFor::Join);
    assert_eq!((spent.paid_for(), looks()), (PaidFor::Join, LEAST * 104), "it takes no more than two");
    assert_eq!(spent.bought.lock().join, Some(7));
    // For so little it is written too much.
    let little = Join { came: all / (REWRITES * 2), ..join };
    spent.add(LEAST * 12 - 1);
    assert_eq!(pays(little), PaidFor::Nothing);
    assert!(spent.add(1));
    assert_eq!(pays(little), PaidFor::Join);
    assert_eq!(looks(), LEAST * 112);
}

#[test]
fn a_join_is_looked_at_again_where_too_little_is_above() {
    let spent = Spent::default();
    let (above, into) = (LEAST_BYTES - 1, 1 << 40);
    let join = Join { all: above, came: above / 2, sources: 3, spared: 1, newest: 7 };
    let pays = |join| spent.pays(|| Offer { above, into, join, ..OFFER });
    spent.add(LEAST);
    assert_eq!(pays(Some(join)), PaidFor::Nothing);
    assert!(!spent.add(LEAST * 3 - 1) && spent.add(1), "a memtable may have filled meanwhile");
    assert_eq!(pays(None), PaidFor::Nothing);
    assert!(!spent.add(LEAST * 3));
}

#[test]
fn a_join_that_was_bought_is_for_the_runs_of_then() {
    let (db, table) = filled(0, false);
    let (t, engine) = (table.table(), &db.engine);
    let bought = || t.spent.bought.lock().join;
    let newest = || t.state().version.l0.iter().map(|run| run.id).max();
    let buy = || t.spent.bought.lock().join = newest();
    put(&table, 0..BELOW * 16);
    table.compact().unwrap();
    let flush = |keys| {
        put(&table, keys);
        table.flush().unwrap();
    };
    flush(0..FEW);
    buy();
    engine.account_for_change(t);
    assert_eq!(bought(), None, "one run is joined");
    let looked_at_late = || {
        let bought = &mut t.spent.bought.lock();
        let looks = t.spent.looks.load(Ordering::Relaxed);
        t.spent.leave(bought, looks, looks + LEAST * 10);
    };
    looked_at_late();
    flush(0..FEW);
    assert!(t.spent.bought.lock().several_since.is_some());
    assert!(!t.spent.add(LEAST - 1) && t.spent.add(1), "there is something less to buy");
    buy();
    looked_at_late();
    flush(0..FEW);
    assert!(bought().is_some(), "the two are there yet");
    assert!(!t.spent.add(LEAST - 1) && t.spent.add(1), "it may cost less than it did");
    // As if these two were one.
    t.spent.bought.lock().join = t.state().version.l0.iter().map(|run| run.id).min();
    engine.bring_down(t);
    assert_eq!(bought(), None, "only runs that have come since");
    table.compact().unwrap();
    assert_eq!(t.spent.bought.lock().several_since, None);
}

#[test]
fn in_a_rest_an_eighth_is_enough() {
    let spent = Spent::default();
    let (above, into) = (LEAST_BYTES, LEAST * 80 * BYTES_A_LOOK - LEAST_BYTES);
    let offer = |records, seconds| {
        let (written, now) = (Written { records, ..OFFER.written }, Duration::from_secs(seconds));
        Offer { above, into, written, now, ..OFFER }
    };
    let pays = |records, seconds| spent.pays(|| offer(records, seconds)) == PaidFor::Pass;
    spent.add(LEAST);
    assert!(!pays(1, 100));
    assert!(!spent.add(LEAST * 9 - 1) && spent.add(1), "it may rest when an eighth is there");
    assert!(!pays(1, 104), "not yet");
    assert!(!spent.add(LEAST * 10 - 1) && spent.add(1));
    assert!(!pays(2, 106), "it was written to");
    assert!(!pays(2, 110));
    assert!(pays(2, 111));
    assert!(!pays(2, 200), "it was spent");
    spent.add(LEAST * 10 - 1);
    assert!(!pays(2, 200));
    assert!(spent.add(1));
    assert!(pays(2, 200));
    // Without a rest the price is what it was.
    spent.add(LEAST * 80 - 1);
    assert!(!pays(3, 300));
    spent.add(1);
    assert!(pays(4, 300));
    // And where much is rewritten for little.
    assert!(!pays(4, 305));
    spent.add(LEAST * 80 - 1);
    let much = LEAST_BYTES * REWRITES * AT_REST;
    let for_little = |largest| spent.pays(|| Offer { largest, ..offer(4, 310) }) == PaidFor::Pass;
    assert!(!for_little(much + AT_REST));
    assert!(for_little(much));
    // Little may become more.
    spent.add(LEAST);
    let little = Offer { above: above - 1, into: into + 1, ..offer(4, 320) };
    assert_eq!(spent.pays(|| little), PaidFor::Nothing);
    assert!(!spent.add(LEAST * 10 - 1) && spent.add(1));
}

#[test]
fn where_nothing_is_written_for_a_while_less_brings_it_down() {
    let (db, table) = filled(0, true);
    put(&table, 0..BELOW * 8);
    table.compact().unwrap();
    put(&table, 0..ENOUGH);
    let is_down_after = |time| {
        db.engine.media.sleep(time);
        db.engine.bring_down(table.table());
        sources(&db, &table) == 0
    };
    table.table().spent.add(LEAST);
    assert!(!is_down_after(REST), "it is seen for the first time");
    assert!(!is_down_after(REST / 2));
    put(&table, 0..1);
    assert!(!is_down_after(REST / 2), "it was written to");
    assert!(is_down_after(REST));
}

#[test]
fn a_seek_counts_what_a_pass_spares() {
    // (A flush of the log would have merges begin at other moments.)
    let tuning = Tuning { flush_after: None, ..Tuning::default() };
    let options = Options::new().memtable_bytes(256 << 10).cache_bytes(16 << 20).tuning(tuning);
    // So would memtables of another size.
    let db = Db::open_on(SimMedia::new(3), "/db", options.medium(Medium::Log)).unwrap();
    let table = db.create_subtable("t", SubtableOptions::new().compression(Compression::None)).unwrap();
    let seeks = |n| {
        let mut cursor = table.cursor(ReadOptions::new()).unwrap();
        (0..n).for_each(|_| cursor.seek(&[]).unwrap());
    };
    let looks = || table.table().spent.looks.load(Ordering::Relaxed);
    let levels = || table.table().state().version.levels.iter().filter(|run| !run.is_empty()).count();
    // A step, and what it takes for another source.
    let enough = TOLD_AT_ONCE / (1 + LOOKS_A_SEEK);
    put(&table, 0..BELOW * 4);
    table.flush().unwrap();
    db.wait_idle().unwrap();
    assert_eq!((levels(), sources(&db, &table)), (2, 0));
    table.table().spent.set(0, LEAST);
    seeks(enough * 2);
    assert_eq!(looks(), 0, "nothing is above");
    put(&table, 0..1);
    seeks(enough);
    assert_eq!(looks(), 0, "one source more than there need be");
    seeks(enough + 1);
    assert!((TOLD_AT_ONCE..TOLD_AT_ONCE * 2).contains(&(looks() as u32)));
}

#[test]
fn each_write_is_seen() {
    let (db, table) = filled(0, false);
    let mut before = Written::in_state(&table.table().state());
    let mut is_other = || {
        let now = Written::in_state(&table.table().state());
        std::mem::replace(&mut before, now) != now
    };
    assert!(!is_other());
    table.put(b"k", b"v").unwrap();
    assert!(is_other());
    table.put(b"k", b"v").unwrap();
    assert!(is_other(), "again");
    table.delete(b"k").unwrap();
    assert!(is_other());
    table.delete_range(b"a", b"z").unwrap();
    assert!(is_other());
    table.flush().unwrap();
    is_other();
    for _ in 0..2 {
        let mut ingest = db.ingest().unwrap();
        ingest.put(&table, b"k", b"attached").unwrap();
        ingest.commit().unwrap();
        assert!(is_other(), "a run that was attached");
    }
    assert!(table.get(b"k").unwrap().is_some() && !is_other());
}

#[test]
fn looks_since_a_run_was_attached_pay_for_a_join() {
    let (db, table) = filled(0, false);
    let t = table.table();
    put(&table, 0..FEW);
    table.flush().unwrap();
    assert_eq!(t.spent.bought.lock().several_since, None);
    t.spent.set(7, LEAST * 10);
    let mut ingest = db.ingest().unwrap();
    ingest.put(&table, &key(0), b"attached").unwrap();
    ingest.commit().unwrap();
    assert_eq!(t.state().version.l0.len(), 2);
    assert_eq!(t.spent.bought.lock().several_since, Some(7));
    assert!(!t.spent.add(LEAST - 1) && t.spent.add(1), "there is something less to buy");
}

#[test]
fn looks_pay_once_and_many_times_over_for_what_is_out_of_proportion() {
    let spent = Spent::default();
    let pays = |above, into, largest| spent.pays(|| Offer { above, into, largest, ..OFFER }) == PaidFor::Pass;
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

#[test]
fn passes_wait_for_more_runs_where_nobody_reads() {
    let (_db, table) = filled(ENOUGH, false);
    let due_in = |table: &Subtable| table.table().l0_due(&table.table().state().version);
    let due = || due_in(&table);
    let add = |looks| table.table().spent.add(looks);
    assert_eq!(due(), MAX_L0_RUNS);
    add(LEAST - 1);
    assert_eq!(due(), MAX_L0_RUNS, "a few reads");
    add(1);
    assert_eq!(due(), READ_L0_RUNS, "at once");
    table.flush().unwrap();
    assert_eq!(due(), READ_L0_RUNS, "until it is known of the next run too");
    put(&table, 0..FEW);
    table.flush().unwrap();
    assert_eq!(due(), MAX_L0_RUNS, "nobody has read while that came");
    // What is enough grows with what has come.
    for (bytes, runs) in [(2 * LEAST * BYTES_A_LOOK, MAX_L0_RUNS), (LEAST * BYTES_A_LOOK, READ_L0_RUNS)] {
        add(LEAST);
        table.table().spent.run_came(bytes);
        assert_eq!(due(), runs);
    }
    // No more than there are places.
    let with_places = |l0_runs| {
        let options = Options::new().tuning(Tuning { l0_runs, ..Tuning::default() });
        let db = Db::open_on(SimMedia::new(3), "/db", options).unwrap();
        due_in(&db.create_subtable("t", SubtableOptions::new()).unwrap())
    };
    assert_eq!([3, 6, 9].map(with_places), [3, 6, MAX_L0_RUNS]);
}

#[test]
fn a_little_l0_has_more_runs_where_nobody_reads() {
    let (db, table) = filled(0, true);
    put(&table, 0..BELOW * 16);
    table.compact().unwrap();
    for keys in [FEW * 7, FEW, FEW, FEW] {
        put(&table, 0..keys);
        table.flush().unwrap();
    }
    assert_eq!(sources(&db, &table), READ_L0_RUNS, "what came last is not half as much");
    table.table().spent.add(LEAST);
    assert_eq!(table.table().spent.paid_for(), PaidFor::Nothing);
    db.engine.schedule_compactions();
    assert_eq!(sources(&db, &table), 1);
}
