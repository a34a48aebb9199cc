//! The executor: cores that own subtables, lanes to them, and what happens when things go wrong or change owners.

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use support::{on_medium, stand_in};
use terrane::media::Media;
use terrane::media::real::{RealMedia, RealOptions};
use terrane::{
    Core, Db, Durability, ErrorKind, ExecutorOptions, Lane, Medium, Options, Polled, Subtable,
    SubtableOptions, Taken, TransactionOptions, WriteBatch,
};

/// Two cores, whatever the machine has.
fn two() -> ExecutorOptions {
    let may = allowed();
    ExecutorOptions::new().cores([may[0], may[may.len() - 1]]).balance(false)
}

/// One core.
fn one() -> ExecutorOptions {
    two().cores([allowed()[0]])
}

/// The processors on which this process may run.
fn allowed() -> Vec<usize> {
    RealMedia::new(RealOptions::default()).unwrap().cores()
}

/// Lets others run until cores with nothing to do sleep, mostly.
fn rest() {
    (0..2000).for_each(|_| std::thread::yield_now());
}

/// Waits for something that other threads bring about.
fn until(mut there: impl FnMut() -> bool, what: &str) {
    let mut looks = 0u64;
    while !there() {
        std::thread::yield_now();
        looks += 1;
        assert!(looks < 200_000_000, "{what}");
    }
}

fn open(options: Options) -> (tempfile::TempDir, Db) {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), on_medium(options, stand_in(8 << 20))).unwrap();
    (dir, db)
}

fn small() -> Options {
    Options::new().memtable_bytes(8 << 20).cache_bytes(8 << 20)
}

fn key(n: u64) -> [u8; 8] {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn value(n: u64) -> Vec<u8> {
    [&n.to_le_bytes()[..], &[n as u8; 92]].concat()
}

fn fill(db: &Db, table: &Subtable, numbers: std::ops::Range<u64>) {
    for some in numbers.collect::<Vec<_>>().chunks(100) {
        let mut batch = WriteBatch::new();
        some.iter().for_each(|n| batch.put(table, &key(*n), &value(*n)).unwrap());
        db.write(batch, Durability::Buffered).unwrap();
    }
}

/// Asks for the keys of `numbers` and gives what came back by number.
fn ask(
    lane: &mut Lane,
    table: &Subtable,
    numbers: impl IntoIterator<Item = u64>,
) -> BTreeMap<u64, Option<Vec<u8>>> {
    let mut got = BTreeMap::new();
    support::ask(lane, table, key, numbers, |n, value| assert!(got.insert(n, value).is_none()));
    got
}

#[test]
fn lanes_answer_what_lookups_answer_from_memory_and_from_the_medium() {
    for cache_bytes in [64 << 20, 1 << 20] {
        let (_dir, db) = open(small().cache_bytes(cache_bytes));
        let options = SubtableOptions::new().value_threshold(16 << 10);
        let tables: Vec<_> =
            (0..3).map(|n| db.create_subtable(&format!("t{n}"), options.clone()).unwrap()).collect();
        for table in &tables {
            fill(&db, table, 0..40_000);
            table.flush().unwrap();
            fill(&db, table, 40_000..41_000);
            table.delete(&key(7)).unwrap();
            table.put(&key(8), &[8; 20_000]).unwrap();
            table.delete_range(&key(9), &[&key(9)[..], &[0]].concat()).unwrap();
        }
        let executor = db.executor(two()).unwrap();
        std::thread::scope(|scope| {
            for (client, table) in tables.iter().enumerate() {
                let executor = &executor;
                scope.spawn(move || {
                    let mut lane = executor.lane(if client == 0 { 1 } else { 64 }).unwrap();
                    let step = if client == 0 { 53 } else { 5 };
                    let numbers = || (0..42_000).step_by(step).chain(6..10);
                    let got = ask(&mut lane, table, numbers());
                    for (n, got) in &got {
                        assert_eq!(*got, table.get(&key(*n)).unwrap(), "{n}");
                    }
                    assert_eq!(got[&8].as_ref().map(Vec::len), Some(20_000));
                    assert!(got[&7].is_none() && got[&9].is_none() && got[&6].is_some());
                });
            }
        });
    }
}

#[test]
fn many_keys_at_once_go_to_the_cores_that_own_them() {
    /// A key that may turn out to be none.
    struct Asked(Option<[u8; 8]>);

    impl AsRef<[u8]> for Asked {
        fn as_ref(&self) -> &[u8] {
            self.0.as_ref().unwrap()
        }
    }

    const KEYS: usize = 5000;
    let (_dir, db) = open(small());
    let table = db.create_subtable("t", SubtableOptions::new()).unwrap();
    fill(&db, &table, 0..4000);
    table.flush().unwrap();
    let executor = db.executor(two()).unwrap();
    executor.split(&table, &[0x80], 1 - executor.owner(&table, &[0]).unwrap()).unwrap();
    for depth in [1, 7, 8192] {
        let mut lane = executor.lane(depth).unwrap();
        // The cores sleep by the second time.
        for _ in 0..2 {
            rest();
            let keys: Vec<_> = (0..KEYS as u64).map(key).collect();
            let (mut sent, mut got) = (0, BTreeMap::new());
            while got.len() < KEYS {
                let taken = lane.multi_get(&table, &keys[sent..], sent as u64).unwrap();
                assert!(depth < KEYS || taken == KEYS - sent, "{taken}");
                sent += taken;
                let mut take = |token, value: terrane::Result<Option<&[u8]>>| {
                    assert!(got.insert(token, value.unwrap().map(<[u8]>::to_vec)).is_none());
                };
                until(|| lane.answers(&mut take) > 0, "an answer");
            }
            assert!(got.iter().all(|(n, got)| *got == (*n < 4000).then(|| value(*n))));
            assert_eq!((sent, lane.under_way()), (KEYS, 0));
        }
    }
    // Whatever happens on the way, what was taken is answered.
    let mut lane = executor.lane(8).unwrap();
    let keys = [Asked(Some(key(1))), Asked(None)];
    rest();
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| lane.multi_get(&table, &keys, 3)));
    assert!(outcome.is_err());
    let first = |token, got: terrane::Result<Option<&[u8]>>| {
        assert_eq!((token, got.unwrap()), (3, Some(&value(1)[..])));
    };
    until(|| lane.answers(first) > 0, "an answer");
    assert_eq!(lane.under_way(), 0);
    let none: [&[u8]; 0] = [];
    assert_eq!(lane.multi_get(&table, &none, 0).unwrap(), 0);
}

#[test]
fn answers_of_a_turn_are_those_of_their_tables() {
    let (_dir, db) = open(small());
    let tables =
        ["small", "gone", "large"].map(|name| db.create_subtable(name, SubtableOptions::new()).unwrap());
    let of = |table: usize, n: u64| vec![n as u8; [10, 20, 3000][table] + 500 * n as usize];
    for (number, table) in tables.iter().enumerate() {
        (0..8).for_each(|n| table.put(&key(n), &of(number, n)).unwrap());
    }
    db.drop_subtable("gone").unwrap();
    let executor = db.executor(one()).unwrap();
    let mut lane = executor.lane(64).unwrap();
    for _ in 0..50 {
        let asked = [0, 1, 0, 0, 2, 1, 1, 2, 0, 2, 2];
        for (token, table) in (0..).zip(asked) {
            assert_eq!(lane.get(&tables[table], &key(token % 10), token).unwrap(), Taken::Yes);
        }
        let mut answers = 0;
        let mut take = |token: u64, got: terrane::Result<Option<&[u8]>>| {
            let (table, n) = (asked[token as usize], token % 10);
            match got {
                Ok(got) => assert_eq!(got, (n < 8).then(|| of(table, n)).as_deref(), "{token}"),
                Err(e) => assert_eq!((e.kind(), table), (ErrorKind::SubtableDropped, 1), "{token}"),
            }
            answers += 1;
        };
        until(
            || {
                lane.answers(&mut take);
                lane.under_way() == 0
            },
            "all answers",
        );
        assert_eq!(answers, asked.len());
    }
}

#[test]
fn requests_of_a_lane_come_in_order_and_see_what_was_written_before() {
    let (_dir, db) = open(small());
    let table = db.create_subtable("t", SubtableOptions::new()).unwrap();
    let executor = db.executor(two()).unwrap();
    let mut lane = executor.lane(512).unwrap();
    for n in 0..200u64 {
        let own = table.clone();
        let put = lane.run(&table, b"k", 2 * n, move |core, key| {
            assert!(core.owns(&own, key));
            own.put(key, &n.to_le_bytes())?;
            Ok(core.get(&own, key)?.filter(|v| **v == n.to_le_bytes()))
        });
        assert_eq!(put.unwrap(), Taken::Yes);
        assert_eq!(lane.get(&table, b"k", 2 * n + 1).unwrap(), Taken::Yes);
    }
    let mut next = 0u64;
    while lane.under_way() > 0 {
        lane.wait().unwrap();
        lane.answers(|token, got| {
            assert_eq!((token, got.unwrap()), (next, Some(&(next / 2).to_le_bytes()[..])));
            next += 1;
        });
    }
    assert_eq!(next, 400);
    // What an ordinary thread has written is there when it asks.
    table.put(b"k", b"mine").unwrap();
    assert_eq!(lane.get(&table, b"k", 0).unwrap(), Taken::Yes);
    lane.wait().unwrap();
    assert_eq!(lane.answers(|_, got| assert_eq!(got.unwrap(), Some(&b"mine"[..]))), 1);
}

/// Work may write more than there is memory: its core keeps none of what has been written out since its last lookup.
#[test]
fn a_core_keeps_no_memtable_while_it_works() {
    let dir = tempfile::tempdir().unwrap();
    let medium = Medium::Pmem(stand_in(8 << 20));
    let db = Db::open(dir.path(), Options::new().cache_bytes(8 << 20).medium(medium)).unwrap();
    let table = db.create_subtable("t", SubtableOptions::new()).unwrap();
    let fill = |table: &Subtable| (0..3000).for_each(|n| table.put(&key(n), &[1; 1000]).unwrap());
    fill(&table);
    let full = db.stats().pmem_used;
    let executor = db.executor(one()).unwrap();
    let mut lane = executor.lane(8).unwrap();
    assert_eq!(lane.get(&table, &key(1), 0).unwrap(), Taken::Yes);
    let (own, theirs) = (table.clone(), db.clone());
    let run = lane.run(&table, b"k", 1, move |_, _| {
        own.flush()?;
        theirs.wait_idle()?;
        Ok(Some(theirs.stats().pmem_used.to_le_bytes().to_vec()))
    });
    assert_eq!(run.unwrap(), Taken::Yes);
    let mut left = None;
    while lane.under_way() > 0 {
        lane.wait().unwrap();
        lane.answers(|token, got| {
            if token == 1 {
                left = got.unwrap().map(|b| u64::from_le_bytes(b.try_into().unwrap()));
            }
        });
    }
    assert!(left.unwrap() < full / 4, "{left:?} of {full} bytes are left");
}

#[test]
fn a_full_lane_says_so_and_takes_more_once_answers_are_taken() {
    let (_dir, db) = open(small());
    let table = db.create_subtable("t", SubtableOptions::new()).unwrap();
    let executor = db.executor(one()).unwrap();
    let mut lane = executor.lane(4).unwrap();
    for n in 0..4 {
        assert_eq!(lane.get(&table, b"k", n).unwrap(), Taken::Yes);
    }
    assert_eq!(lane.get(&table, b"k", 4).unwrap(), Taken::Full);
    lane.wait().unwrap();
    // They are answered, but not taken.
    assert_eq!(lane.get(&table, b"k", 4).unwrap(), Taken::Full);
    let mut taken = lane.answers(|_, got| assert_eq!(got.unwrap(), None));
    assert_eq!(lane.get(&table, b"k", 4).unwrap(), Taken::Yes);
    while lane.under_way() > 0 {
        lane.wait().unwrap();
        taken += lane.answers(|_, _| ());
    }
    assert_eq!(taken, 5);
    for depth in [0, 1 << 17] {
        assert_eq!(executor.lane(depth).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
}

#[test]
fn what_goes_wrong_is_told_to_whoever_asked() {
    let (_dir, db) = open(small());
    let (_other_dir, other) = open(small());
    let table = db.create_subtable("t", SubtableOptions::new()).unwrap();
    let gone = db.create_subtable("gone", SubtableOptions::new()).unwrap();
    let foreign = other.create_subtable("t", SubtableOptions::new()).unwrap();
    let executor = db.executor(two()).unwrap();
    let invalid = |r: terrane::Result<()>| assert_eq!(r.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let mut lane = executor.lane(8).unwrap();
    invalid(lane.get(&foreign, b"k", 0).map(drop));
    invalid(executor.owner(&foreign, b"k").map(drop));
    invalid(executor.assign(&table, 2));
    invalid(executor.split(&foreign, b"k", 0));
    invalid(executor.poll_on(2, |_| Polled::Done));
    invalid(executor.wake(2));
    let one = |lane: &mut Lane| {
        let mut got = None;
        while got.is_none() {
            lane.wait().unwrap();
            lane.answers(|token, outcome| got = Some((token, outcome.map(|v| v.map(<[u8]>::to_vec)))));
        }
        got.unwrap()
    };
    gone.put(b"k", b"v").unwrap();
    assert_eq!(lane.get(&gone, b"k", 1).unwrap(), Taken::Yes);
    assert_eq!(one(&mut lane).1.unwrap(), Some(b"v".to_vec()));
    db.drop_subtable("gone").unwrap();
    for token in 2..4 {
        assert_eq!(lane.get(&gone, b"k", token).unwrap(), Taken::Yes);
        let (of, outcome) = one(&mut lane);
        assert_eq!((of, outcome.unwrap_err().kind()), (token, ErrorKind::SubtableDropped));
    }
    assert_eq!(lane.run(&table, b"k", 4, |_, _| panic!("on purpose")).unwrap(), Taken::Yes);
    assert_eq!(one(&mut lane).1.unwrap_err().kind(), ErrorKind::InvalidArgument);
    let asked = Arc::new(AtomicU64::new(0));
    for core in 0..2 {
        let asked = asked.clone();
        executor
            .poll_on(core, move |_| {
                asked.fetch_add(1, Ordering::Relaxed);
                panic!("on purpose")
            })
            .unwrap();
    }
    until(|| asked.load(Ordering::Relaxed) == 2, "both are asked");
    // The cores are none the worse for it.
    table.put(b"k", b"v").unwrap();
    for token in 5..50 {
        assert_eq!(lane.get(&table, b"k", token).unwrap(), Taken::Yes);
        assert_eq!(one(&mut lane).1.unwrap(), Some(b"v".to_vec()));
    }
    executor.shutdown();
    assert_eq!(asked.load(Ordering::Relaxed), 2, "who panics is not asked again");
    assert_eq!(lane.get(&table, b"k", 9).unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn an_executor_that_ends_answers_what_is_under_way() {
    let (_dir, db) = open(small().cache_bytes(1 << 20));
    let table = db.create_subtable("t", SubtableOptions::new()).unwrap();
    fill(&db, &table, 0..30_000);
    table.flush().unwrap();
    for _ in 0..20 {
        let executor = db.executor(two()).unwrap();
        let mut lane = executor.lane(1000).unwrap();
        let mut abandoned = executor.lane(1000).unwrap();
        for n in 0..600 {
            assert_eq!(lane.get(&table, &key(n * 37), n).unwrap(), Taken::Yes);
            assert_eq!(abandoned.get(&table, &key(n * 41), n).unwrap(), Taken::Yes);
        }
        drop(abandoned);
        executor.shutdown();
        // It ended when nothing was left in the rings, and with nothing on its way.
        assert_eq!(lane.answers(|n, got| assert_eq!(got.unwrap(), Some(&value(n * 37)[..]))), 600);
        assert!(lane.wait().is_ok(), "nothing is under way");
    }
}

#[test]
fn pollers_live_on_their_cores_and_reach_the_others() {
    let (_dir, db) = open(small());
    let table = db.create_subtable("t", SubtableOptions::new()).unwrap();
    fill(&db, &table, 0..100);
    let executor = db.executor(two()).unwrap();
    executor.assign(&table, 1).unwrap();
    let (found, round) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (say, told, own) = (found.clone(), round.clone(), table.clone());
    let (mut lane, mut next, mut done) = (None, 0, 0);
    executor
        .poll_on(0, move |core| {
            assert_eq!(core.number(), 0);
            let lane = lane.get_or_insert_with(|| core.lane(16).unwrap());
            done += lane.answers(|n, got| assert_eq!(got.unwrap(), Some(&value(n)[..])));
            say.store(done as u64, Ordering::Release);
            if next < told.load(Ordering::Acquire) * 50
                && lane.get(&own, &key(next), next).unwrap() == Taken::Yes
            {
                next += 1;
                return Polled::Again;
            }
            // It is asked again when something arrives at the core; answers of its own lane do not count.
            if lane.under_way() > 0 { Polled::Again } else { Polled::Idle }
        })
        .unwrap();
    for rounds in 1..=2 {
        round.store(rounds, Ordering::Release);
        executor.wake(0).unwrap();
        while found.load(Ordering::Acquire) < rounds * 50 {
            std::thread::yield_now();
        }
    }
}

#[test]
fn owners_change_and_work_follows() {
    let (_dir, db) = open(small());
    let table = db.create_subtable("t", SubtableOptions::new()).unwrap();
    let executor = db.executor(two()).unwrap();
    let mut lane = executor.lane(8).unwrap();
    let mut ran_on = |key: &[u8]| {
        assert_eq!(
            lane.run(&table, key, 0, |core, _| Ok(Some(vec![core.number() as u8]))).unwrap(),
            Taken::Yes
        );
        lane.wait().unwrap();
        let mut core = 9;
        lane.answers(|_, got| core = got.unwrap().unwrap()[0]);
        usize::from(core)
    };
    for core in [1, 0, 1] {
        executor.assign(&table, core).unwrap();
        assert_eq!((ran_on(b"a"), ran_on(b"z")), (core, core));
    }
    executor.split(&table, b"m", 0).unwrap();
    assert_eq!((ran_on(b"a"), ran_on(b"m"), ran_on(b"z")), (1, 0, 0));
    assert_eq!((executor.owner(&table, b"l").unwrap(), executor.owner(&table, b"m").unwrap()), (1, 0));
    let refused = (0..=u8::MAX).find_map(|n| executor.split(&table, &[n, n], usize::from(n % 2)).err());
    assert_eq!(refused.unwrap().kind(), ErrorKind::LimitExceeded);
}

#[test]
fn what_is_hot_is_divided_by_itself() {
    let (_dir, db) = open(small());
    let table = db.create_subtable("t", SubtableOptions::new()).unwrap();
    fill(&db, &table, 0..1000);
    let executor = db.executor(two().balance(true)).unwrap();
    let before = executor.owner(&table, &[0]).unwrap();
    let mut lane = executor.lane(64).unwrap();
    let mut asked = 0;
    while (0..=u8::MAX).all(|n| executor.owner(&table, &[n]).unwrap() == before) {
        let got = ask(&mut lane, &table, 0..1000);
        assert!(got.iter().all(|(n, got)| got.as_deref() == Some(&value(*n)[..])));
        asked += 1;
        assert!(asked < 50_000, "one core does everything");
    }
    let other = (0..=u8::MAX).filter(|n| executor.owner(&table, &[*n]).unwrap() != before).count();
    assert!((40..216).contains(&other), "{other} of 256");
}

#[test]
fn a_core_keeps_no_memtable_from_being_freed() {
    let (_dir, db) = open(small());
    let read = db.create_subtable("read", SubtableOptions::new()).unwrap();
    let executor = db.executor(one()).unwrap();
    let mut lane = executor.lane(64).unwrap();
    for busy in [false, true] {
        let over = Arc::new(AtomicBool::new(false));
        if busy {
            // It never sleeps.
            let over = over.clone();
            let ask = move |_: &mut Core<'_>| {
                if over.load(Ordering::Relaxed) { Polled::Done } else { Polled::Again }
            };
            executor.poll_on(0, ask).unwrap();
        }
        fill(&db, &read, 0..20_000);
        assert_eq!(ask(&mut lane, &read, 0..2).len(), 2);
        read.flush().unwrap();
        until(|| db.stats().memtable_bytes <= 1 << 20, "the memtable goes");
        over.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_transaction_spans_what_several_cores_own() {
    let (_dir, db) = open(small());
    let (a, b) = (
        db.create_subtable("a", SubtableOptions::new()).unwrap(),
        db.create_subtable("b", SubtableOptions::new()).unwrap(),
    );
    let executor = db.executor(two()).unwrap();
    executor.assign(&a, 0).unwrap();
    executor.assign(&b, 1).unwrap();
    a.put(b"sum", &100u64.to_le_bytes()).unwrap();
    b.put(b"sum", &0u64.to_le_bytes()).unwrap();
    let number = |v: Option<Vec<u8>>| u64::from_le_bytes(v.unwrap().try_into().unwrap());
    let mut lane = executor.lane(128).unwrap();
    for token in 0..100 {
        let (db, a, b) = (db.clone(), a.clone(), b.clone());
        // Some begin on the one core, some on the other.
        let at = if token % 2 == 0 { a.clone() } else { b.clone() };
        let moved = lane.run(&at, b"sum", token, move |_, _| {
            let mut t = db.begin(TransactionOptions::new())?;
            let (from, to) = (number(t.get_for_update(&a, b"sum")?), number(t.get_for_update(&b, b"sum")?));
            t.put(&a, b"sum", &(from - 1).to_le_bytes())?;
            t.put(&b, b"sum", &(to + 1).to_le_bytes())?;
            t.commit(Durability::Buffered).map(|_| None)
        });
        assert_eq!(moved.unwrap(), Taken::Yes);
    }
    while lane.under_way() > 0 {
        lane.wait().unwrap();
        lane.answers(|_, outcome| assert_eq!(outcome.unwrap(), None));
    }
    assert_eq!((number(a.get(b"sum").unwrap()), number(b.get(b"sum").unwrap())), (0, 100));
}

#[test]
fn answers_are_right_while_everything_changes() {
    let (_dir, db) = open(small().cache_bytes(2 << 20));
    let tables: Vec<_> =
        (0..2).map(|n| db.create_subtable(&format!("t{n}"), SubtableOptions::new()).unwrap()).collect();
    tables.iter().for_each(|t| fill(&db, t, 0..20_000));
    let executor = db.executor(two().balance(true)).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (db, tables, executor, over) = (&db, &tables, &executor, &over);
        scope.spawn(move || {
            // Owners change, memtables are written out, and subtables come and go.
            for round in 0..40u64 {
                executor.split(&tables[0], &key(round), (round % 2) as usize).ok();
                executor.assign(&tables[(round % 2) as usize], (round / 2 % 2) as usize).unwrap();
                fill(db, &tables[(round % 2) as usize], round * 400..round * 400 + 2000);
                tables[(round / 2 % 2) as usize].flush().unwrap();
                let short = db.create_subtable("short", SubtableOptions::new()).unwrap();
                short.put(b"k", b"v").unwrap();
                let mut lane = executor.lane(2).unwrap();
                assert_eq!(lane.get(&short, b"k", 0).unwrap(), Taken::Yes);
                db.drop_subtable("short").unwrap();
            }
            over.store(true, Ordering::Release);
        });
        for client in 0..3u64 {
            scope.spawn(move || {
                let mut lane = executor.lane(100).unwrap();
                while !over.load(Ordering::Acquire) {
                    let got = ask(&mut lane, &tables[(client % 2) as usize], (client..20_000).step_by(41));
                    assert!(got.iter().all(|(n, got)| got.as_deref() == Some(&value(*n)[..])));
                }
            });
        }
    });
}

#[test]
fn a_reader_sees_the_newest_and_keeps_nothing_once_it_rests() {
    let (_dir, db) = open(small());
    let (_other_dir, other) = open(small());
    let table = db.create_subtable("t", SubtableOptions::new()).unwrap();
    let foreign = other.create_subtable("t", SubtableOptions::new()).unwrap();
    let mut reader = db.reader();
    assert_eq!(reader.get(&foreign, b"k").unwrap_err().kind(), ErrorKind::InvalidArgument);
    for round in 0..3u64 {
        fill(&db, &table, 0..20_000);
        table.put(b"round", &round.to_le_bytes()).unwrap();
        assert_eq!(reader.get(&table, b"round").unwrap(), Some(round.to_le_bytes().to_vec()));
        table.flush().unwrap();
        assert!(db.stats().memtable_bytes > 1 << 20, "it has the memtable that was written out");
        if round == 0 {
            reader.rest();
        } else {
            (0..2000).for_each(|n| assert_eq!(reader.get(&table, &key(n)).unwrap(), Some(value(n))));
        }
        until(|| db.stats().memtable_bytes <= 1 << 20, "the memtable goes");
    }
    db.drop_subtable("t").unwrap();
    assert_eq!(reader.get(&table, b"round").unwrap_err().kind(), ErrorKind::SubtableDropped);
}

#[test]
fn an_executor_ends_although_clients_go_on_asking() {
    let (_dir, db) = open(small());
    let table = db.create_subtable("t", SubtableOptions::new()).unwrap();
    let executor = db.executor(two()).unwrap();
    let asked = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let asked = &asked;
        for client in 0..3u64 {
            let (mut lane, table) = (executor.lane(64).unwrap(), &table);
            scope.spawn(move || {
                let refused = (0u64..).find_map(|n| {
                    lane.answers(|_, got| assert!(got.is_ok()));
                    asked.fetch_add(1, Ordering::Relaxed);
                    lane.run(table, &(n + client).to_be_bytes(), n, |_, _| Ok(None)).err()
                });
                assert_eq!(refused.unwrap().kind(), ErrorKind::Closed);
            });
        }
        until(|| asked.load(Ordering::Relaxed) > 10_000, "clients ask");
        executor.shutdown();
    });
}

#[test]
fn what_was_asked_for_is_done_though_the_client_has_gone() {
    let (_dir, db) = open(small());
    let table = db.create_subtable("t", SubtableOptions::new()).unwrap();
    let executor = db.executor(two()).unwrap();
    let done = Arc::new(AtomicU64::new(0));
    let mut sent = 0;
    for _ in 0..2000 {
        let mut lane = executor.lane(50).unwrap();
        for n in 0..50u64 {
            let done = done.clone();
            let work = move |_: &mut Core<'_>, _: &[u8]| {
                done.fetch_add(1, Ordering::Relaxed);
                Ok(None)
            };
            sent += u64::from(lane.run(&table, &n.to_be_bytes(), n, work).unwrap() == Taken::Yes);
        }
    }
    executor.shutdown();
    assert_eq!(done.load(Ordering::Relaxed), sent);
}

#[test]
fn a_read_that_waits_for_the_medium_does_not_see_what_follows_it() {
    let (_dir, db) = open(small().cache_bytes(1 << 20));
    let table = db.create_subtable("t", SubtableOptions::new()).unwrap();
    fill(&db, &table, 0..30_000);
    table.flush().unwrap();
    let executor = db.executor(two()).unwrap();
    let mut lane = executor.lane(8).unwrap();
    for n in (0..30_000).step_by(61) {
        let own = table.clone();
        assert_eq!(lane.get(&table, &key(n), 0).unwrap(), Taken::Yes);
        let put = lane.run(&table, &key(n), 1, move |_, key| own.put(key, b"new").map(|()| None));
        assert_eq!(put.unwrap(), Taken::Yes);
        while lane.under_way() > 0 {
            lane.wait().unwrap();
            lane.answers(|token, got| assert!(token == 1 || got.unwrap() == Some(&value(n)[..]), "{n}"));
        }
        assert_eq!(table.get(&key(n)).unwrap().as_deref(), Some(&b"new"[..]));
    }
}

#[test]
fn answers_do_not_wait_for_work_that_comes_later() {
    let (_dir, db) = open(small());
    let table = db.create_subtable("t", SubtableOptions::new()).unwrap();
    let executor = db.executor(one()).unwrap();
    for _ in 0..200 {
        let (mut first, mut second) = (executor.lane(8).unwrap(), executor.lane(8).unwrap());
        // Both come in one turn, mostly; the work ends when the first client has its answer.
        let (go, may) = std::sync::mpsc::channel();
        let (began, begins) = std::sync::mpsc::channel();
        let hold = first.run(&table, b"h", 9, move |_, _| {
            began.send(()).unwrap();
            may.recv().unwrap();
            Ok(None)
        });
        assert_eq!(hold.unwrap(), Taken::Yes);
        begins.recv().unwrap();
        let (told, answered) = std::sync::mpsc::channel();
        assert_eq!(first.get(&table, b"k", 1).unwrap(), Taken::Yes);
        let wait = second.run(&table, b"k", 2, move |_, _| {
            answered.recv().unwrap();
            Ok(None)
        });
        assert_eq!(wait.unwrap(), Taken::Yes);
        go.send(()).unwrap();
        let mut seen = 0;
        while seen < 2 {
            first.wait().unwrap();
            seen += first.answers(|_, got| assert!(got.is_ok()));
        }
        told.send(()).unwrap();
    }
}

#[test]
fn a_database_that_is_closed_answers_what_it_still_can() {
    let (_dir, db) = open(small().cache_bytes(1 << 20));
    let table = db.create_subtable("t", SubtableOptions::new()).unwrap();
    fill(&db, &table, 0..30_000);
    table.flush().unwrap();
    let executor = db.executor(two()).unwrap();
    let mut lane = executor.lane(64).unwrap();
    db.close().unwrap();
    let (mut right, mut closed) = (0, 0);
    for n in (0..30_000).step_by(601) {
        assert_eq!(lane.get(&table, &key(n), n).unwrap(), Taken::Yes);
        lane.wait().unwrap();
        lane.answers(|n, got| match got {
            Ok(got) => {
                assert_eq!(got, Some(&value(n)[..]));
                right += 1;
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Closed);
                closed += 1;
            }
        });
    }
    assert!(closed > 0 && right + closed == 50, "{right} and {closed}");
}

#[test]
fn several_readers_of_a_thread_do_not_keep_what_leaves() {
    let (_dir, db) = open(small().cache_bytes(4 << 20));
    let table = db.create_subtable("t", SubtableOptions::new()).unwrap();
    fill(&db, &table, 0..60_000);
    table.flush().unwrap();
    db.wait_idle().unwrap();
    let (mut one, mut other) = (db.reader(), db.reader());
    // More than the cache holds goes through it; what is hot stays or comes back.
    (0..60_000).for_each(|n| assert!(one.get(&table, &key(n)).unwrap().is_some()));
    let before = db.stats().cache_misses;
    for round in 0..200 {
        for n in 0..50 {
            let reader = if round % 2 == 0 { &mut one } else { &mut other };
            assert_eq!(reader.get(&table, &key(n)).unwrap(), Some(value(n)));
        }
    }
    let missed = db.stats().cache_misses - before;
    assert!(missed < 2000, "{missed} of 10,000 lookups of 50 keys");
}
