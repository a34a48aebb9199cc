//! The cores' parts of the cache: what is where, what stays, and that answers do not depend on it.

mod support;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use support::{on_medium, stand_in};
use terrane::media::Media;
use terrane::media::real::{RealMedia, RealOptions};
use terrane::{
    Db, Durability, Executor, ExecutorOptions, Lane, Options, Subtable, SubtableOptions, WriteBatch,
};

/// Two cores, whatever the machine has, and owners only by hand.
fn two() -> ExecutorOptions {
    let may = RealMedia::new(RealOptions::default()).unwrap().cores();
    ExecutorOptions::new().cores([may[0], may[may.len() - 1]]).balance(false)
}

fn open(cache_bytes: usize) -> (tempfile::TempDir, Db) {
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new().memtable_bytes(8 << 20).cache_bytes(cache_bytes);
    let db = Db::open(dir.path(), on_medium(options, stand_in(8 << 20))).unwrap();
    (dir, db)
}

/// In order, so that extents are cut where the numbers are.
fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

/// Does not compress.
fn value(n: u64, round: u64) -> Vec<u8> {
    let first = (n << 8 | round).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mix = |x: u64| (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (0..32).flat_map(|at| mix(first.wrapping_add(at)).to_le_bytes()).collect()
}

fn fill(db: &Db, table: &Subtable, numbers: Range<u64>, round: u64) {
    for some in numbers.collect::<Vec<_>>().chunks(100) {
        let mut batch = WriteBatch::new();
        some.iter().for_each(|&n| batch.put(table, &key(n), &value(n, round)).unwrap());
        db.write(batch, Durability::Buffered).unwrap();
    }
}

/// A subtable of so many records, a quarter of a kilobyte each, in the last level that it needs.
fn table(db: &Db, name: &str, records: u64) -> Subtable {
    let table = db.create_subtable(name, SubtableOptions::new()).unwrap();
    fill(db, &table, 0..records, 0);
    table.compact().unwrap();
    table
}

fn read(table: &Subtable, numbers: Range<u64>) {
    numbers.for_each(|n| assert_eq!(table.get(&key(n)).unwrap(), Some(value(n, 0)), "{n}"));
}

/// Lookups of the cache that found nothing while `work` ran.
fn misses(db: &Db, work: impl FnOnce()) -> u64 {
    let before = db.stats().cache_misses;
    work();
    db.stats().cache_misses - before
}

/// Bytes in the two cores' parts, once all is where it belongs.
fn held(db: &Db, executor: &Executor) -> [usize; 2] {
    db.wait_idle().unwrap();
    [0, 1].map(|core| executor.cache_part(core).unwrap().unwrap().resident_bytes)
}

/// Asks for keys by a lane, and gives the values by number.
fn ask(lane: &mut Lane, table: &Subtable, numbers: impl IntoIterator<Item = u64>) -> BTreeMap<u64, Vec<u8>> {
    let mut got = BTreeMap::new();
    support::ask(lane, table, key, numbers, |n, value| drop(got.insert(n, value.unwrap())));
    got
}

#[test]
fn blocks_follow_their_owners_and_nothing_is_read_again_for_it() {
    let (_dir, db) = open(64 << 20);
    const RECORDS: u64 = 40_000;
    let t = table(&db, "t", RECORDS);
    read(&t, 0..RECORDS);
    let all = || read(&t, 0..RECORDS);
    assert_eq!(misses(&db, all), 0, "all of it fits");
    let executor = db.executor(two()).unwrap();
    let before = db.stats().cache_bytes;
    let whole = held(&db, &executor);
    let owner = executor.owner(&t, &key(0)).unwrap();
    assert!(whole[owner] > 10 << 20 && whole[1 - owner] == 0, "{whole:?}");
    assert_eq!(misses(&db, all), 0);
    executor.assign(&t, 1 - owner).unwrap();
    let moved = held(&db, &executor);
    assert_eq!((moved[1 - owner], moved[owner]), (whole[owner], 0));
    assert_eq!(misses(&db, all), 0);
    executor.split(&t, &key(RECORDS / 2), owner).unwrap();
    let halves = held(&db, &executor);
    assert_eq!(halves[0] + halves[1], whole[owner]);
    assert!(halves.iter().all(|half| *half > whole[owner] / 4), "{halves:?}");
    assert_eq!(misses(&db, all), 0);
    // Another one takes all, and when it ends the first has it again.
    let later = db.executor(two()).unwrap();
    assert_eq!(held(&db, &executor), [0, 0]);
    assert_eq!(held(&db, &later).iter().sum::<usize>(), whole[owner]);
    assert_eq!(misses(&db, all), 0);
    later.shutdown();
    assert_eq!(held(&db, &executor), halves);
    assert_eq!(misses(&db, all), 0);
    executor.shutdown();
    assert_eq!(misses(&db, all), 0, "before anybody has looked for a new home too");
    db.wait_idle().unwrap();
    assert_eq!(misses(&db, all), 0);
    let after = db.stats().cache_bytes;
    assert!(after.abs_diff(before) < 1 << 20, "{before} {after}");
}

#[test]
fn who_comes_right_after_another_one_has_what_that_had() {
    let (_dir, db) = open(64 << 20);
    const RECORDS: u64 = 20_000;
    let (t, other) = (table(&db, "t", RECORDS), table(&db, "other", 4 * RECORDS));
    read(&t, 0..RECORDS);
    let mut executor = Some(db.executor(two()).unwrap());
    db.wait_idle().unwrap();
    for round in 1..6 {
        fill(&db, &other, 0..4 * RECORDS, round);
        other.flush().unwrap();
        let tasks = || db.stats().compaction_devices.iter().map(|device| device.tasks).sum::<u64>();
        let before = tasks();
        // While a merge keeps those busy who look for new homes, so that its parts have the same numbers before that.
        std::thread::scope(|scope| {
            let merge = scope.spawn(|| other.compact().unwrap());
            while tasks() == before && !merge.is_finished() {
                std::thread::yield_now();
            }
            drop(executor.take());
            executor = Some(db.executor(two()).unwrap());
        });
        db.wait_idle().unwrap();
        assert_eq!(misses(&db, || read(&t, 0..RECORDS)), 0, "in round {round}");
    }
}

#[test]
fn blocks_follow_what_is_divided_by_load() {
    let (_dir, db) = open(64 << 20);
    const RECORDS: u64 = 40_000;
    let t = table(&db, "t", RECORDS);
    read(&t, 0..RECORDS);
    let executor = db.executor(two().balance(true)).unwrap();
    let first = executor.owner(&t, &key(0)).unwrap();
    let mut lane = executor.lane(64).unwrap();
    let mut asked = 0;
    while executor.owner(&t, &key(RECORDS - 1)).unwrap() == first {
        ask(&mut lane, &t, (0..RECORDS).step_by(7));
        asked += 1;
        assert!(asked < 10_000, "one core does everything");
    }
    let held = held(&db, &executor);
    assert!(held.iter().all(|bytes| *bytes > 1 << 20), "{held:?}");
}

#[test]
fn what_is_written_out_is_where_its_owner_is() {
    let (_dir, db) = open(64 << 20);
    let t = db.create_subtable("t", SubtableOptions::new()).unwrap();
    let executor = db.executor(two()).unwrap();
    executor.assign(&t, 0).unwrap();
    executor.split(&t, &key(10_000), 1).unwrap();
    for round in 0..3 {
        fill(&db, &t, 0..20_000, round);
        t.flush().unwrap();
        // What a flush has written enters the cache, and begins in the lower half.
        let held = held(&db, &executor);
        assert!(held[0] > 1 << 20, "{held:?}");
    }
    t.compact().unwrap();
    let held = held(&db, &executor);
    assert!(held.iter().all(|bytes| *bytes > 1 << 20), "{held:?}");
}

#[test]
fn a_core_that_reads_much_does_not_push_out_what_another_one_keeps() {
    const HOT: u64 = 4_000;
    const LARGE: u64 = 100_000;
    let missed = |cache_parts: bool| {
        let (_dir, db) = open(8 << 20);
        let (hot, large) = (table(&db, "hot", HOT), table(&db, "large", LARGE));
        let executor = db.executor(two().cache_parts(cache_parts)).unwrap();
        executor.assign(&hot, 0).unwrap();
        executor.assign(&large, 1).unwrap();
        db.wait_idle().unwrap();
        let mut lane = executor.lane(64).unwrap();
        let (mut missed, mut seed) = (0, 1u64);
        for round in 0..6 {
            let lookups = misses(&db, || {
                let got = ask(&mut lane, &hot, 0..HOT);
                assert!(got.len() == HOT as usize && got.iter().all(|(n, v)| *v == value(*n, 0)));
            });
            // The first round brings it.
            missed += if round == 0 { 0 } else { lookups };
            for _ in 0..2 {
                let some: Vec<u64> = (0..2_000)
                    .map(|_| {
                        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                        (seed >> 33) % LARGE
                    })
                    .collect();
                ask(&mut lane, &large, some);
            }
        }
        assert_eq!(executor.cache_part(0).unwrap().is_some(), cache_parts);
        missed
    };
    let (apart, together) = (missed(true), missed(false));
    // (Where what was evicted is not freed in time, a block that is read does not enter: that is a miss of a few.)
    assert!(together > 100 && apart * 10 < together, "{apart} with parts, {together} without");
}

#[test]
fn answers_are_right_while_subtables_move_and_the_cache_is_small() {
    const RECORDS: u64 = 20_000;
    let (_dir, db) = open(2 << 20);
    let tables = ["a", "b"].map(|name| table(&db, name, RECORDS));
    let executor = db.executor(two()).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for t in &tables {
            let (executor, db, done) = (&executor, &db, &done);
            scope.spawn(move || {
                let mut lane = executor.lane(64).unwrap();
                for round in 1..12u64 {
                    // Written over by the one who reads it, so it knows what is right; flushes and merges follow.
                    fill(db, t, 0..RECORDS / 2, round);
                    t.flush().unwrap();
                    let got = ask(&mut lane, t, (0..RECORDS).step_by(3));
                    for (n, got) in got {
                        let round = if n < RECORDS / 2 { round } else { 0 };
                        assert!(got == value(n, round), "{n} in round {round}");
                    }
                }
                done.store(true, Ordering::Relaxed);
            });
        }
        let mut turn = 0;
        while !done.load(Ordering::Relaxed) {
            turn += 1;
            let t = &tables[turn % 2];
            match turn % 5 {
                0 => executor.split(t, &key(turn as u64 % RECORDS), turn % 2).unwrap(),
                1 => drop(db.executor(two()).unwrap()),
                _ => executor.assign(t, turn / 2 % 2).unwrap(),
            }
            std::thread::yield_now();
        }
    });
    let stats = db.stats();
    assert!(stats.cache_bytes <= (2 << 20) * 21 / 20, "{}", stats.cache_bytes);
}

#[test]
fn parts_are_had_or_not_and_cores_are_checked() {
    let (_dir, db) = open(8 << 20);
    let executor = db.executor(two().cache_parts(false)).unwrap();
    assert_eq!(executor.cache_part(1).unwrap(), None);
    assert_eq!(executor.cache_part(2).unwrap_err().kind(), terrane::ErrorKind::InvalidArgument);
    let later = db.executor(two()).unwrap();
    let part = later.cache_part(1).unwrap().unwrap();
    assert!(part.share_bytes > 2 << 20 && part.resident_bytes == 0, "{part:?}");
}
