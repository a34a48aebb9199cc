//! The named anomalies, one by one, at each level of isolation: which level forbids them, and which allows them.
//!
//! Each is a fixed interleaving of transactions on one thread that wait for no lock, so it ends the same way each time. It either
//! happens, or it does not: because a lock was refused, a conflict was told, or what was read was right. Both are asserted: a level
//! that allows an anomaly must show it, or the level is stronger than it says, or the interleaving shows nothing.
//!
//! The names are those of A. Adya, "Weak Consistency" (PhD thesis, MIT 1999: G0, G1, G-single, G2), H. Berenson et al.,
//! "A Critique of ANSI SQL Isolation Levels" (SIGMOD 1995: P4), P. Bailis et al., "Highly Available Transactions" (VLDB 2013: OTV,
//! PMP), A. Fekete et al., "A Read-Only Transaction Anomaly Under Snapshot Isolation" (SIGMOD Record 2004), and Y. Sovran
//! et al., "Transactional Storage for Geo-replicated Systems" (SOSP 2011: long fork).
#![allow(clippy::disallowed_methods, reason = "a test may start threads, and looks at the clock")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use support::{Rng, on_medium};
use terrane::media::Media;
use terrane::media::real::RealOptions;
use terrane::media::sim::SimMedia;
use terrane::{
    Db, Durability, ErrorKind, Isolation, LockWait, Options, PmemOptions, ReadOptions, Result, Subtable,
    SubtableOptions, Transaction, TransactionOptions,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    ReadCommitted,
    Snapshot,
    Serializable,
    OptimisticSnapshot,
    OptimisticSerializable,
}

use Level::*;

const LEVELS: [Level; 5] =
    [ReadCommitted, Snapshot, Serializable, OptimisticSnapshot, OptimisticSerializable];

/// Nobody, those that are weaker than snapshot isolation, those that are weaker than serializable.
const NOBODY: &[Level] = &[];
const WEAKEST: &[Level] = &[ReadCommitted];
const NOT_SERIALIZABLE: &[Level] = &[ReadCommitted, Snapshot, OptimisticSnapshot];

type Scene = fn(&Stage) -> Result<bool>;

/// In either direction.
type Scan<'s> = fn(&mut Actor<'s>, &str, &str) -> Result<Vec<i64>>;

/// Each anomaly, how it is tried, and who allows it.
#[rustfmt::skip]
const TABLE: &[(&str, Scene, &[Level])] = &[
    ("G0: dirty write",                                 g0,                     NOBODY),
    ("G0 of a deleted range",                           g0_range,               NOBODY),
    ("G1a: aborted read",                               g1a,                    NOBODY),
    ("G1a by a scan",                                   g1a_scan,               NOBODY),
    ("G1a: read of what a savepoint took back",         g1a_savepoint,          NOBODY),
    ("G1b: intermediate read",                          g1b,                    NOBODY),
    ("G1c: circular information flow",                  g1c,                    NOBODY),
    ("G1c by scans",                                    g1c_scan,               NOBODY),
    ("OTV: observed transaction vanishes",              otv,                    NOBODY),
    ("PMP: predicate-many-preceders",                   pmp,                    WEAKEST),
    ("PMP: a range is emptied between scans",           pmp_delete,             WEAKEST),
    ("PMP: backwards",                                  pmp_backwards,          WEAKEST),
    ("P4: lost update",                                 p4,                     WEAKEST),
    ("P4: to a plain put",                              p4_plain,               WEAKEST),
    ("P4: to a prepared transaction",                   p4_prepared,            WEAKEST),
    ("P4: after a savepoint gave its lock back",        p4_savepoint,           WEAKEST),
    ("P4: by a deleted range",                          p4_by_range,            WEAKEST),
    ("P4: of a deleted range",                          p4_of_range,            WEAKEST),
    ("P4: after a locking read",                        p4_locked,              NOBODY),
    ("G-single: read skew",                             g_single,               WEAKEST),
    ("G-single by a scan",                              g_single_scan,          WEAKEST),
    ("G-single: write after a read skew",               g_single_write,         WEAKEST),
    ("Long fork",                                       long_fork,              WEAKEST),
    ("G2-item: write skew",                             g2_item,                NOT_SERIALIZABLE),
    ("G2-item of keys that are not there",              g2_absent,              NOT_SERIALIZABLE),
    ("G2-item: a reader sees what cannot be",           read_only,              NOT_SERIALIZABLE),
    ("G2-item of what a savepoint took back",           g2_savepoint,           NOT_SERIALIZABLE),
    ("G2: both insert where both looked",               g2,                     NOT_SERIALIZABLE),
    ("G2: backwards",                                   g2_backwards,           NOT_SERIALIZABLE),
    ("G2: each deletes the range the other scanned",    g2_delete_range,        NOT_SERIALIZABLE),
    ("G2: behind the last key",                         g2_behind_the_last,     NOT_SERIALIZABLE),
];

/// A database in which x is 10, y is 20, and nothing else is.
struct Stage {
    db: Db,
    t: Subtable,
    level: Level,
}

impl Stage {
    fn new(level: Level) -> Stage {
        let media = SimMedia::with_threads(0, &RealOptions::default());
        let options = Options::new().memtable_bytes(4 << 20).cache_bytes(4 << 20);
        let options = on_medium(options, PmemOptions::new(64 << 20));
        Stage::in_subtable(Db::open_on(media as Arc<dyn Media>, "/db", options).unwrap(), "t", level)
    }

    fn in_subtable(db: Db, name: &str, level: Level) -> Stage {
        let t = db.create_subtable(name, SubtableOptions::new()).unwrap();
        let stage = Stage { db, t, level };
        stage.t.put(b"x", b"10").unwrap();
        stage.t.put(b"y", b"20").unwrap();
        stage
    }

    fn options(&self) -> TransactionOptions {
        let (isolation, optimistic) = match self.level {
            ReadCommitted => (Isolation::ReadCommitted, false),
            Snapshot => (Isolation::Snapshot, false),
            Serializable => (Isolation::Serializable, false),
            OptimisticSnapshot => (Isolation::Snapshot, true),
            OptimisticSerializable => (Isolation::Serializable, true),
        };
        TransactionOptions::new().isolation(isolation).optimistic(optimistic).lock_wait(LockWait::No)
    }

    fn begin(&self) -> Actor<'_> {
        Actor { txn: self.db.begin(self.options()).unwrap(), db: &self.db, t: &self.t }
    }

    fn begin_two(&self) -> (Actor<'_>, Actor<'_>) {
        (self.begin(), self.begin())
    }

    /// What is there in the end; nothing is 0.
    fn now(&self, key: &str) -> i64 {
        number(self.t.get(key.as_bytes()).unwrap())
    }
}

fn number(value: Option<Vec<u8>>) -> i64 {
    value.map_or(0, |v| String::from_utf8(v).unwrap().parse().unwrap())
}

/// A transaction, of numbers by name.
struct Actor<'s> {
    txn: Transaction,
    db: &'s Db,
    t: &'s Subtable,
}

impl Actor<'_> {
    fn get(&mut self, key: &str) -> Result<i64> {
        self.txn.get(self.t, key.as_bytes()).map(number)
    }

    fn put(&mut self, key: &str, value: i64) -> Result<()> {
        self.txn.put(self.t, key.as_bytes(), value.to_string().as_bytes())
    }

    fn delete_range(&mut self, from: &str, to: &str) -> Result<()> {
        self.txn.delete_range(self.t, from.as_bytes(), to.as_bytes())
    }

    /// The values of the keys from `from` to before `to`.
    fn scan(&mut self, from: &str, to: &str) -> Result<Vec<i64>> {
        let mut c = self.txn.cursor(self.t, ReadOptions::new().lower(from).upper(to))?;
        c.seek_to_first()?;
        let mut seen = Vec::new();
        while let Some((_, value)) = c.take_next()? {
            seen.push(number(Some(value)));
        }
        Ok(seen)
    }

    fn scan_back(&mut self, from: &str, to: &str) -> Result<Vec<i64>> {
        let mut c = self.txn.cursor(self.t, ReadOptions::new().lower(from).upper(to))?;
        c.seek_to_last()?;
        let mut seen = Vec::new();
        while c.valid() {
            seen.push(number(Some(c.value()?.into_owned())));
            c.prev()?;
        }
        Ok(seen)
    }

    fn commit(self) -> Result<()> {
        self.txn.commit(Durability::Buffered).map(drop)
    }

    fn prepare_and_commit(self) -> Result<()> {
        self.txn.prepare(b"a")?;
        self.db.commit_prepared(b"a", Durability::Buffered).map(drop)
    }
}

#[test]
fn each_level_forbids_and_allows_what_it_says() {
    let mut wrong = Vec::new();
    let db = Stage::new(ReadCommitted).db;
    for (name, scene, allowed_by) in TABLE {
        let mut line = format!("{name:<48}");
        for level in LEVELS {
            let stage = Stage::in_subtable(db.clone(), &format!("{name}, {level:?}"), level);
            let happened = match scene(&stage) {
                Ok(happened) => happened,
                Err(e) => {
                    assert!(e.should_retry(), "{name}, {level:?}: {e}");
                    false
                }
            };
            line += if happened { " allowed  " } else { " forbidden" };
            if happened != allowed_by.contains(&level) {
                wrong
                    .push(format!("{name}: {level:?} {}", if happened { "allows it" } else { "forbids it" }));
            }
            assert_eq!(stage.db.stats().locked_keys, 0, "{name}, {level:?}");
        }
        eprintln!("{line}");
    }
    assert!(wrong.is_empty(), "not as documented:\n{}", wrong.join("\n"));
}

/// Two write x and y; x comes from one and y from the other.
fn g0(s: &Stage) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    a.put("x", 1)?;
    b.put("x", 2)?;
    b.put("y", 2)?;
    b.commit()?;
    a.put("y", 1)?;
    a.commit()?;
    Ok(s.now("x") != s.now("y"))
}

/// One deletes all, the other writes all: half is there.
fn g0_range(s: &Stage) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    a.delete_range("a", "y")?;
    b.put("x", 2)?;
    b.put("y", 2)?;
    b.commit()?;
    a.delete_range("y", "z")?;
    a.commit()?;
    Ok((s.now("x") == 0) != (s.now("y") == 0))
}

fn g1a(s: &Stage) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    a.put("x", 101)?;
    let seen = b.get("x")?;
    a.txn.rollback();
    let then = b.get("x")?;
    b.commit()?;
    Ok(seen == 101 || then == 101)
}

fn g1a_scan(s: &Stage) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    a.put("m", 101)?;
    a.delete_range("x", "z")?;
    let seen = b.scan("a", "z")?;
    a.txn.rollback();
    let then = b.scan("a", "z")?;
    b.commit()?;
    Ok(seen != [10, 20] || then != [10, 20])
}

fn g1a_savepoint(s: &Stage) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    a.put("y", 21)?;
    let point = a.txn.savepoint();
    a.put("x", 101)?;
    a.delete_range("a", "x")?;
    a.txn.rollback_to(point)?;
    a.commit()?;
    let seen = b.get("x")?;
    b.commit()?;
    Ok(seen == 101 || s.now("x") == 101 || s.now("y") != 21)
}

fn g1b(s: &Stage) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    a.put("x", 101)?;
    let seen = b.get("x")?;
    a.put("x", 11)?;
    a.commit()?;
    let then = b.get("x")?;
    b.commit()?;
    Ok(seen == 101 || then == 101)
}

/// Each reads what the other one writes.
fn g1c(s: &Stage) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    a.put("x", 11)?;
    b.put("y", 22)?;
    let seen = (a.get("y")?, b.get("x")?);
    a.commit()?;
    b.commit()?;
    Ok(seen == (22, 11))
}

fn g1c_scan(s: &Stage) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    a.put("a", 11)?;
    b.put("z", 22)?;
    let seen = (a.scan("y", "zz")?, b.scan("a", "y")?);
    a.commit()?;
    b.commit()?;
    Ok(seen == (vec![20, 22], vec![11, 10]))
}

/// A third sees one of two writers, then the other one before it.
fn otv(s: &Stage) -> Result<bool> {
    let mut a = s.begin();
    a.put("x", 11)?;
    a.put("y", 19)?;
    a.commit()?;
    let mut c = s.begin();
    let mut b = s.begin();
    b.put("x", 12)?;
    let x = c.get("x")?;
    b.put("y", 18)?;
    let y = c.get("y")?;
    b.commit()?;
    let (y_then, x_then) = (c.get("y")?, c.get("x")?);
    c.commit()?;
    Ok(x == 12 || y == 18 || (y_then == 18) != (x_then == 12))
}

fn pmp(s: &Stage) -> Result<bool> {
    scans_differ(s, Actor::scan, |b| b.put("m", 30))
}

fn pmp_delete(s: &Stage) -> Result<bool> {
    scans_differ(s, Actor::scan, |b| b.delete_range("m", "y"))
}

fn pmp_backwards(s: &Stage) -> Result<bool> {
    scans_differ(s, Actor::scan_back, |b| b.put("m", 30))
}

/// One scans twice, the other changes something between.
fn scans_differ<'s>(s: &'s Stage, scan: Scan<'s>, change: fn(&mut Actor<'s>) -> Result<()>) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    let first = scan(&mut a, "a", "z")?;
    change(&mut b)?;
    b.commit()?;
    let second = scan(&mut a, "a", "z")?;
    a.commit()?;
    Ok(first != second)
}

fn p4(s: &Stage) -> Result<bool> {
    both_add_one(s, |actor| actor.get("x"), Actor::commit)
}

fn p4_prepared(s: &Stage) -> Result<bool> {
    both_add_one(s, |actor| actor.get("x"), Actor::prepare_and_commit)
}

fn p4_locked(s: &Stage) -> Result<bool> {
    both_add_one(s, |actor| actor.txn.get_for_update(actor.t, b"x").map(number), Actor::commit)
}

/// Each adds one to what both have read before.
fn both_add_one<'s>(
    s: &'s Stage,
    read: fn(&mut Actor<'s>) -> Result<i64>,
    commit: fn(Actor<'s>) -> Result<()>,
) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    let (seen_a, seen_b) = (read(&mut a)?, read(&mut b)?);
    a.put("x", seen_a + 1)?;
    commit(a)?;
    b.put("x", seen_b + 1)?;
    b.commit()?;
    Ok(s.now("x") != 12)
}

fn p4_plain(s: &Stage) -> Result<bool> {
    let mut a = s.begin();
    let seen = a.get("x")?;
    s.t.put(b"x", b"100")?;
    a.put("x", seen + 1)?;
    a.commit()?;
    Ok(s.now("x") != 101)
}

fn p4_savepoint(s: &Stage) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    let seen = a.get("x")?;
    let point = a.txn.savepoint();
    a.put("x", 0)?;
    a.txn.rollback_to(point)?;
    b.put("x", 100)?;
    b.commit()?;
    a.put("x", seen + 1)?;
    a.commit()?;
    Ok(s.now("x") != 101)
}

/// What came into a range after it was looked at is deleted with it.
fn p4_by_range(s: &Stage) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    assert!(a.scan("a", "n")?.is_empty());
    b.put("m", 30)?;
    b.commit()?;
    a.delete_range("a", "n")?;
    a.commit()?;
    Ok(s.now("m") != 30)
}

/// What was deleted as part of a range is there again.
fn p4_of_range(s: &Stage) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    let seen = a.get("x")?;
    b.delete_range("a", "y")?;
    b.commit()?;
    a.put("x", seen + 1)?;
    a.commit()?;
    Ok(s.now("x") == 11)
}

fn g_single(s: &Stage) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    let x = a.get("x")?;
    b.put("x", 12)?;
    b.put("y", 18)?;
    b.commit()?;
    let y = a.get("y")?;
    a.commit()?;
    Ok((x, y) == (10, 18))
}

fn g_single_scan(s: &Stage) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    let x = a.scan("a", "y")?;
    b.put("m", 12)?;
    b.delete_range("y", "z")?;
    b.commit()?;
    let y = a.scan("y", "z")?;
    a.commit()?;
    Ok((x, y) == (vec![10], vec![]))
}

/// What one reads of two is never true together, and is written down.
fn g_single_write(s: &Stage) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    let x = a.get("x")?;
    b.put("x", 12)?;
    b.put("y", 18)?;
    b.commit()?;
    let y = a.get("y")?;
    a.put("sum", x + y)?;
    a.commit()?;
    Ok(s.now("sum") == 28)
}

/// Two readers see two writers in different orders.
fn long_fork(s: &Stage) -> Result<bool> {
    let (mut c, mut d) = s.begin_two();
    let c_y = c.get("y")?;
    let d_x = d.get("x")?;
    let (mut a, mut b) = s.begin_two();
    a.put("x", 11)?;
    a.commit()?;
    b.put("y", 21)?;
    b.commit()?;
    let c_x = c.get("x")?;
    let d_y = d.get("y")?;
    c.commit()?;
    d.commit()?;
    Ok((c_x, c_y) == (11, 20) && (d_x, d_y) == (10, 21))
}

fn g2_item(s: &Stage) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    let of_a = a.get("x")? + a.get("y")?;
    let of_b = b.get("x")? + b.get("y")?;
    a.put("x", 10 - of_a)?;
    b.put("y", 20 - of_b)?;
    a.commit()?;
    b.commit()?;
    Ok(s.now("x") + s.now("y") < 0)
}

fn g2_absent(s: &Stage) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    let free = a.get("p")? == 0 && b.get("q")? == 0;
    a.put("q", 1)?;
    b.put("p", 1)?;
    a.commit()?;
    b.commit()?;
    Ok(free && s.now("p") + s.now("q") == 2)
}

/// A payment into y, a charge that read before it, and a statement between the two that shows the payment and not the charge.
fn read_only(s: &Stage) -> Result<bool> {
    let (mut charge, mut pays) = s.begin_two();
    let (x, y) = (charge.get("x")?, charge.get("y")?);
    pays.put("y", 40)?;
    pays.commit()?;
    let mut statement = s.begin();
    let shown = (statement.get("x")?, statement.get("y")?);
    statement.commit()?;
    charge.put("x", x - 11 - i64::from(y == 20))?;
    charge.commit()?;
    Ok(shown == (10, 40) && s.now("x") == -2)
}

fn g2_savepoint(s: &Stage) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    let point = a.txn.savepoint();
    let of_a = a.get("x")?;
    a.put("m", 1)?;
    a.txn.rollback_to(point)?;
    let of_b = b.get("y")?;
    b.put("x", -of_b)?;
    b.commit()?;
    a.put("y", -of_a)?;
    a.commit()?;
    Ok((s.now("x"), s.now("y")) == (-20, -10))
}

fn g2(s: &Stage) -> Result<bool> {
    both_insert(s, Actor::scan)
}

fn g2_backwards(s: &Stage) -> Result<bool> {
    both_insert(s, Actor::scan_back)
}

fn both_insert<'s>(s: &'s Stage, scan: Scan<'s>) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    let free = scan(&mut a, "a", "n")?.is_empty() && scan(&mut b, "a", "n")?.is_empty();
    a.put("b", 1)?;
    b.put("m", 1)?;
    a.commit()?;
    b.commit()?;
    Ok(free && s.now("b") + s.now("m") == 2)
}

fn g2_delete_range(s: &Stage) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    let both = a.scan("a", "y")? == [10] && b.scan("y", "z")? == [20];
    a.delete_range("y", "z")?;
    b.delete_range("a", "y")?;
    a.commit()?;
    b.commit()?;
    Ok(both && s.now("x") + s.now("y") == 0)
}

/// Each looks for the last key without a bound, and writes one behind it.
fn g2_behind_the_last(s: &Stage) -> Result<bool> {
    let (mut a, mut b) = s.begin_two();
    for actor in [&mut a, &mut b] {
        let mut c = actor.txn.cursor(actor.t, ReadOptions::new())?;
        c.seek_to_last()?;
        assert_eq!(c.key(), b"y");
    }
    a.put("z1", 1)?;
    b.put("z2", 1)?;
    a.commit()?;
    b.commit()?;
    Ok(s.now("z1") + s.now("z2") == 2)
}

/// Whoever waits for a lock does not get what was there before it: read committed goes on, snapshot hears of the first updater.
#[test]
fn who_waited_for_a_writer_sees_its_write_or_is_told() {
    for level in [ReadCommitted, Snapshot, Serializable] {
        let s = Stage::new(level);
        let mut first = s.begin();
        first.put("x", 11).unwrap();
        let mut second = s.begin();
        second.txn.set_lock_wait(LockWait::Forever);
        let waited = std::thread::scope(|scope| {
            let waits = scope.spawn(|| second.put("x", 12).and_then(|()| second.commit()));
            while s.db.stats().lock_waits == 0 {
                std::thread::yield_now();
            }
            first.commit().unwrap();
            waits.join().unwrap()
        });
        match level {
            Snapshot => {
                assert_eq!(waited.unwrap_err().kind(), ErrorKind::WriteConflict);
                assert_eq!(s.now("x"), 11);
            }
            _ => {
                waited.unwrap();
                assert_eq!(s.now("x"), 12);
            }
        }
    }
}

/// Who was told of a conflict and tries again in the same transaction is told again.
#[test]
fn a_conflict_does_not_go_away_by_trying_again() {
    let s = Stage::new(Snapshot);
    let (mut a, mut b) = s.begin_two();
    b.put("x", 11).unwrap();
    b.put("m", 1).unwrap();
    b.commit().unwrap();
    for _ in 0..2 {
        assert_eq!(a.put("x", 12).unwrap_err().kind(), ErrorKind::WriteConflict);
        assert_eq!(a.delete_range("a", "n").unwrap_err().kind(), ErrorKind::WriteConflict);
        assert_eq!(a.put("m", 2).unwrap_err().kind(), ErrorKind::WriteConflict);
    }
    a.put("y", 21).unwrap();
    a.commit().unwrap();
    assert_eq!((s.now("x"), s.now("m"), s.now("y")), (11, 1, 21));
}

/// So many locks that they become ranges: those cover keys that nobody has looked at.
#[test]
fn a_lock_that_covers_more_than_was_asked_for_does_not_hide_a_conflict() {
    let s = Stage::new(Snapshot);
    s.t.put(b"k00000001+", b"1").unwrap();
    let mut a = s.begin();
    assert_eq!(a.get("k00000001+").unwrap(), 1);
    s.t.put(b"k00000001+", b"2").unwrap();
    let mut held = 0;
    for key in 0.. {
        a.put(&format!("k{key:08}"), 0).unwrap();
        if key % 64 == 0 {
            let now = s.db.stats().locked_keys;
            if now < held {
                break;
            }
            held = now;
        }
        assert!(key < 200_000, "nothing escalates any more");
    }
    assert_eq!(a.put("k00000001+", 2).unwrap_err().kind(), ErrorKind::WriteConflict);
    // What it has written itself it may write again.
    a.put("k00000000", 1).unwrap();
}

/// Once; with `TERRANE_ISOLATION_SECONDS` for so long.
fn for_as_long_as_asked(mut round: impl FnMut(u64)) {
    let seconds = std::env::var("TERRANE_ISOLATION_SECONDS").ok().and_then(|v| v.parse().ok());
    let (began, time) = (Instant::now(), Duration::from_secs(seconds.unwrap_or(0)));
    for number in 0.. {
        round(number);
        if began.elapsed() >= time {
            eprintln!("{} rounds", number + 1);
            return;
        }
    }
}

/// Money moves between accounts, some of which come and go; whoever looks at all of them sees all of it.
#[test]
fn money_is_neither_made_nor_lost() {
    for_as_long_as_asked(|round| LEVELS.iter().for_each(|level| money_moves(*level, round)));
}

fn account(number: u64) -> String {
    format!("b{number}")
}

fn money_moves(level: Level, round: u64) {
    let s = Stage::new(level);
    (0..8).for_each(|i| s.t.put(account(i).as_bytes(), b"100").unwrap());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (s, stop) = (&s, &stop);
            scope.spawn(move || {
                let mut rng = Rng(2 * round + thread);
                let mut done = 0;
                while done < 150 {
                    let (from, to) = (account(rng.below(8)), account(rng.below(8)));
                    if from != to && transfer(s, &from, &to, rng.below(40)).is_ok() {
                        done += 1;
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
        while !stop.load(Ordering::Relaxed) {
            let mut all = s.begin();
            all.txn.set_lock_wait(LockWait::default());
            // A scan of read committed sees one moment too.
            let Ok(seen) = all.scan("b", "c") else { continue };
            if all.commit().is_ok() {
                assert_eq!(seen.iter().sum::<i64>(), 800, "{level:?}");
            }
        }
    });
    assert_eq!((0..8).map(|i| s.now(&account(i))).sum::<i64>(), 800, "{level:?}");
}

/// Accounts without money are deleted. Locks are taken as the level needs them.
fn transfer(s: &Stage, from: &str, to: &str, sum: u64) -> Result<()> {
    let mut a = s.begin();
    a.txn.set_lock_wait(LockWait::default());
    let mut read = |key: &str| match s.level {
        ReadCommitted => a.txn.get_for_update(&s.t, key.as_bytes()).map(number),
        _ => a.get(key),
    };
    let (of_from, of_to) = (read(from)?, read(to)?);
    let sum = i64::try_from(sum).unwrap().min(of_from);
    if of_from == sum {
        a.txn.delete(&s.t, from.as_bytes())?;
    } else {
        a.put(from, of_from - sum)?;
    }
    a.put(to, of_to + sum)?;
    a.commit()
}

/// Of each pair of keys, written by two, nobody sees the first without the second if somebody sees the second without the first.
#[test]
fn no_two_readers_see_two_writers_in_different_orders() {
    for_as_long_as_asked(|_| LEVELS[1..].iter().for_each(|level| forks(*level)));
}

fn forks(level: Level) {
    const PAIRS: u64 = 150;
    let s = Stage::new(level);
    let written = AtomicU64::new(0);
    let write = |side: &str| {
        for pair in 0..PAIRS {
            loop {
                let mut a = s.begin();
                if a.put(&format!("{pair}{side}"), 1).and_then(|()| a.commit()).is_ok() {
                    break;
                }
            }
            written.fetch_max(pair, Ordering::Relaxed);
        }
    };
    let read = |sides: [&str; 2]| {
        let mut seen = Vec::new();
        let mut pair = 0;
        while pair + 1 < PAIRS {
            pair = written.load(Ordering::Relaxed);
            let mut a = s.begin();
            let looked = sides.map(|side| a.get(&format!("{pair}{side}")));
            if let ([Ok(first), Ok(second)], Ok(())) = (looked, a.commit())
                && first != second
            {
                seen.push((pair, first == 1));
            }
        }
        seen
    };
    let (c, d) = std::thread::scope(|scope| {
        let d = scope.spawn(|| read(["r", "l"]));
        scope.spawn(|| write("l"));
        scope.spawn(|| write("r"));
        (read(["l", "r"]), d.join().unwrap())
    });
    // Each as: of which pair, and whether it was the one that it looks at first. They look at different ones first.
    for of_pair in &c {
        assert!(!d.contains(of_pair), "{level:?}: {of_pair:?}: each saw another one first");
    }
}
