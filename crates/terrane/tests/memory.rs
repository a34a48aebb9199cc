//! Databases with persistent memory in place of a log: what is theirs alone. The tests of everything else are run on them too
//! (`TERRANE_TEST_MEDIUM=pmem`).

#![allow(clippy::disallowed_methods, reason = "a test may start threads")]

mod support;

use std::path::Path;
use std::sync::Arc;

use support::*;
use terrane::media::sim::{CrashKind, Fault, FaultPlan, OpKind, SimMedia};
use terrane::media::{Media, OpenMode};
use terrane::{
    Db, Durability, ErrorKind, Medium, Options, PmemMode, PmemOptions, SubtableOptions, TransactionOptions,
    WriteBatch,
};

fn with_memory() -> Options {
    tiny().medium(Medium::Pmem(tiny_memory()))
}

fn names(media: &SimMedia) -> Vec<String> {
    media.list(Path::new(DIR)).unwrap().into_iter().map(|e| e.name).collect()
}

const WRITE: OpenMode = OpenMode { write: true, create_new: false, direct: false };

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

#[test]
fn commits_survive_a_power_failure_unsynced_and_there_is_no_log() {
    let media = SimMedia::new(1);
    let db = open(&media, &with_memory()).unwrap();
    let (a, b) =
        (db.create_subtable("a", tiny_table()).unwrap(), db.create_subtable("b", tiny_table()).unwrap());
    for n in 0..100 {
        let mut batch = WriteBatch::new();
        batch.put(&a, &key(n), b"one").unwrap();
        batch.put(&b, &key(n), &vec![n as u8; 4000]).unwrap();
        batch.delete_range(&a, &key(n / 2), &key(n / 2 + 1)).unwrap();
        db.write(batch, Durability::Buffered).unwrap();
    }
    assert!(names(&media).iter().all(|n| !n.starts_with("log-") && n != "tail"), "{:?}", names(&media));
    let stats = db.stats();
    assert_eq!((stats.flushes, stats.log_bytes), (0, 0), "all of it is in memory alone");
    let image = media.image();
    drop((a, b, db));
    media.shutdown();
    for kind in CrashKind::WITH_WORDS {
        let media = image.crash(kind, 7);
        // What it has says the database itself.
        let db = open(&media, &tiny_without_medium()).unwrap();
        let (a, b) = (db.subtable("a").unwrap(), db.subtable("b").unwrap());
        for n in 0..100 {
            let there = (n >= 50).then_some(&b"one"[..]);
            assert_eq!(a.get(&key(n)).unwrap().as_deref(), there, "{n}, {kind:?}");
            assert_eq!(b.get(&key(n)).unwrap(), Some(vec![n as u8; 4000]), "{n}, {kind:?}");
        }
        db.close().unwrap();
        media.shutdown();
    }
}

fn tiny_without_medium() -> Options {
    Options::new().cache_bytes(256 << 10).tuning(TUNING)
}

#[test]
fn the_medium_is_the_one_that_the_database_was_created_with() {
    let media = SimMedia::new(2);
    open(&media, &with_memory()).unwrap().close().unwrap();
    let refused = open(&media, &tiny_without_medium().medium(Medium::Log)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(refused.hint().is_some());
    open(&media, &with_memory()).unwrap().close().unwrap();

    let media = SimMedia::new(3);
    open(&media, &tiny_without_medium()).unwrap().close().unwrap();
    assert_eq!(open(&media, &with_memory()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    open(&media, &tiny_without_medium().medium(Medium::Log)).unwrap().close().unwrap();

    let absurd = |memory: PmemOptions| {
        let media = SimMedia::new(4);
        open(&media, &tiny_without_medium().medium(Medium::Pmem(memory))).unwrap_err().kind()
    };
    for bytes in [1000, (16 << 40) + 1, u64::MAX] {
        assert_eq!(absurd(PmemOptions::new(bytes)), ErrorKind::InvalidArgument);
    }
    assert_eq!(absurd(PmemOptions::for_memtables(u64::MAX)), ErrorKind::InvalidArgument);
    // More than there is room for: nothing is written to find that out.
    assert_eq!(absurd(PmemOptions::new(16 << 40)), ErrorKind::OutOfSpace);
    assert_eq!(absurd(PmemOptions::new(8 << 20).zone_bytes(1000)), ErrorKind::InvalidArgument);
}

#[test]
fn the_first_opening_may_fail_and_the_next_want_another_medium() {
    let log = || tiny_without_medium().medium(Medium::Log);
    let memory =
        |mode, bytes| tiny().medium(Medium::Pmem(PmemOptions::new(bytes).mode(mode).zone_bytes(32 << 10)));
    let (device, stand_in, page_cache) = (PmemMode::Dax, PmemMode::StandIn, PmemMode::PageCache);
    for (first, next, crash, bytes) in [
        (with_memory(), log(), None, 0),
        (with_memory(), tiny_without_medium(), None, 0),
        (log(), memory(device, 1 << 20), None, 1 << 20),
        (memory(device, 1 << 20), memory(device, 2 << 20), None, 2 << 20),
        (memory(device, 2 << 20), memory(device, 1 << 20), Some(CrashKind::PowerKept), 1 << 20),
        (memory(stand_in, 1 << 20), memory(stand_in, 1 << 20), Some(CrashKind::PowerKept), 1 << 20),
        (memory(page_cache, 1 << 20), memory(device, 1 << 20), Some(CrashKind::PowerKept), 1 << 20),
        (memory(page_cache, 1 << 20), memory(page_cache, 2 << 20), Some(CrashKind::PowerKept), 2 << 20),
    ] {
        let (mut failed, mut anew) = (0, 0);
        for call in 1.. {
            let mut media = SimMedia::new(call);
            media.set_fault(Some(FaultPlan::nth(call, Fault::Io)));
            let opened = open(&media, &first);
            if media.faults_hit() == 0 {
                break;
            }
            media.set_fault(None);
            if opened.is_ok() {
                continue;
            }
            failed += 1;
            if let Some(kind) = crash {
                media = media.image().crash(kind, 3);
            }
            let only_if_made = tiny_without_medium().create_if_missing(false).renew_pmem(true);
            let copy = media.image().crash(CrashKind::Process, 0);
            let db = match open(&copy, &only_if_made) {
                Err(e) if e.kind() == ErrorKind::NotFound => {
                    anew += 1;
                    let db = open(&media, &next).unwrap();
                    let zones = db.stats().pmem_bytes;
                    assert!((bytes / 4 * 3..=bytes).contains(&zones), "call {call}: {zones} of {bytes}");
                    db
                }
                // It had been made before the call that failed, and what stands for a device does not outlive the power.
                Err(e) if e.kind() == ErrorKind::Stale => continue,
                _ => open(&media, &only_if_made).unwrap(),
            };
            let t = db.create_subtable("t", tiny_table()).unwrap();
            t.put(b"k", b"v").unwrap();
            drop(t);
            db.close().unwrap();
        }
        assert!(failed > 10 && anew > 10, "{failed}, {anew}");
    }
}

#[test]
fn a_memory_that_is_gone_or_damaged_or_anothers_is_told() {
    let media = SimMedia::new(5);
    let db = open(&media, &with_memory()).unwrap();
    let t = db.create_subtable("t", tiny_table()).unwrap();
    for n in 0..200 {
        t.put(&key(n), &[n as u8; 100]).unwrap();
    }
    drop(t);
    db.close().unwrap();
    let file = Path::new(DIR).join("pmem");
    let image = media.image();

    let gone = image.crash(CrashKind::PowerKept, 0);
    gone.remove_file(&file).unwrap();
    let e = open(&gone, &tiny_without_medium()).unwrap_err();
    assert_eq!((e.kind(), e.file()), (ErrorKind::NotFound, Some(&*file)));
    assert!(e.hint().is_some_and(|h| h.contains("Options::pmem_path")), "{e}");

    // It may lie elsewhere now, and is remembered there.
    let moved = image.crash(CrashKind::PowerKept, 0);
    moved.create_dir_all(Path::new("/pm")).unwrap();
    moved.rename(&file, Path::new("/pm/of-db")).unwrap();
    let elsewhere = Medium::Pmem(tiny_memory().path("/pm/of-db"));
    open(&moved, &tiny_without_medium().medium(elsewhere)).unwrap().close().unwrap();
    let db = open(&moved, &tiny_without_medium()).unwrap();
    assert!(db.subtable("t").unwrap().get(&key(7)).unwrap().is_some());
    db.close().unwrap();

    // So it is where that alone is said, and not looked for where it is not.
    let here = |path: &str| tiny_without_medium().pmem_path(path);
    moved.rename(Path::new("/pm/of-db"), Path::new("/pm/again")).unwrap();
    let e = open(&moved, &here("/pm/of-db")).unwrap_err();
    assert_eq!((e.kind(), e.file()), (ErrorKind::NotFound, Some(Path::new("/pm/of-db"))));
    for options in [here("/pm/again"), tiny_without_medium()] {
        let db = open(&moved, &options).unwrap();
        assert!(db.subtable("t").unwrap().get(&key(7)).unwrap().is_some());
        db.close().unwrap();
    }
    let both = here("/pm/again").medium(Medium::Pmem(tiny_memory()));
    assert_eq!(open(&moved, &both).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let none = SimMedia::new(5);
    assert_eq!(open(&none, &here("/pm/again")).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!none.exists(Path::new(DIR)).unwrap(), "none is made");
    open(&none, &tiny_without_medium()).unwrap().close().unwrap();
    assert_eq!(open(&none, &here("/pm/again")).unwrap_err().kind(), ErrorKind::InvalidArgument);

    // A byte of a record, of its checksum, or of an item's header.
    let mut reported = 0;
    let content = {
        let read = image.crash(CrashKind::PowerKept, 0);
        let opened = read.open(&file, OpenMode::READ).unwrap();
        let mut bytes = vec![0; opened.len().unwrap() as usize];
        opened.read_at(&mut bytes, 0).unwrap();
        bytes
    };
    let records = content.windows(100).position(|w| w == [150; 100]).unwrap();
    for at in [records, records + 50, records - 5, records + 101] {
        let damaged = image.crash(CrashKind::PowerKept, 0);
        let opened = damaged.open(&file, WRITE).unwrap();
        opened.write_at(&[content[at] ^ 0x10], at as u64).unwrap();
        opened.sync().unwrap();
        let e = open(&damaged, &tiny_without_medium()).unwrap_err();
        assert_eq!((e.kind(), e.file()), (ErrorKind::Corruption, Some(&*file)), "{at}: {e}");
        assert!(e.offset().is_some() && e.hint().is_some(), "{at}: {e}");
        reported += 1;
    }
    assert_eq!(reported, 4);

    let other = SimMedia::new(6);
    open(&other, &with_memory()).unwrap().close().unwrap();
    let opened = other.open(&file, WRITE).unwrap();
    opened.write_at(&content, 0).unwrap();
    opened.sync().unwrap();
    assert_eq!(open(&other, &tiny_without_medium()).unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn much_more_than_the_memory_holds_goes_through_it() {
    let media = SimMedia::new(8);
    let db = open(&media, &with_memory()).unwrap();
    let tables: Vec<_> = (0..3).map(|t| db.create_subtable(&name(t), tiny_table()).unwrap()).collect();
    let each = 1000;
    let rows = 8 * TINY_MEMORY_BYTES / each;
    for n in 0..rows {
        tables[(n % 3) as usize].put(&key(n * 7919 % rows), &vec![n as u8; each as usize]).unwrap();
    }
    let stats = db.stats();
    assert!(stats.flushes > 8, "{}", stats.flushes);
    assert!((1..=stats.pmem_bytes).contains(&stats.pmem_used), "{stats:?}");
    db.wait_idle().unwrap();
    tables.iter().for_each(|t| t.flush().unwrap());
    let held = db.stats().memtable_bytes;
    assert_eq!(db.stats().pmem_used, 0, "all is written out");
    assert!(held < 300 << 10, "{held} bytes of memory are still taken: three empty memtables take little");
    for t in &tables {
        assert!(t.get(&key(1)).is_ok());
    }
    assert_eq!(tables.iter().map(|t| contents_of(t).len() as u64).sum::<u64>(), rows, "each key once");
}

#[test]
fn indexes_in_main_memory_leave_what_memtables_may_take_to_records() {
    let media = SimMedia::new(21);
    let db = open(&media, &with_memory()).unwrap();
    let t = db.create_subtable("t", tiny_table()).unwrap();
    let mut full = db.stats();
    for n in 0.. {
        t.put(&key(n), &[1; 16]).unwrap();
        let stats = db.stats();
        if stats.flushes > 0 || stats.subtables[0].memtables > 1 {
            break;
        }
        full = stats;
    }
    // One freezes with half of the budget, in whole zones.
    let zone = 32 << 10;
    let (used, indexes) = (full.subtables[0].memtable_bytes, full.memtable_index_bytes);
    assert!((full.memtable_budget / 2 - zone..=full.memtable_budget / 2 + zone).contains(&used), "{full:?}");
    assert!(indexes > used / 4 && indexes < used, "{full:?}");
    assert!(full.pmem_used >= used && full.memtable_bytes >= used, "{full:?}");

    // Range tombstones take more of main memory than of the other: then that is what fills up.
    let mut most = 0;
    for n in 0..20_000 {
        t.delete_range(&key(3 * n), &key(3 * n + 2)).unwrap();
        let stats = db.stats();
        most = most.max(stats.memtable_index_bytes);
        // A writer looks before it writes, and what it writes may make something grow.
        assert!(stats.memtable_index_bytes <= stats.memtable_budget * 65 / 64, "{stats:?}");
    }
    assert!(most > full.memtable_budget / 4 && db.stats().flushes > 1, "{most}, {:?}", db.stats());
    db.close().unwrap();
}

/// Of a memory as large as main memory, or larger, that is what main memory has to hold once it is lost.
#[test]
fn memtables_may_be_kept_from_most_of_it_and_so_is_what_an_opening_takes_from_the_log() {
    const BOUND: u64 = 1 << 20;
    const ZONE: u64 = 64 << 10;
    let memory = PmemOptions::new(4 << 20).trailing_log(true);
    let refused = open(
        &SimMedia::new(1),
        &tiny_without_medium().medium(Medium::Pmem(memory.clone().memtable_bytes(BOUND - 1))),
    );
    assert_eq!(refused.map(drop).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let media = SimMedia::new(1);
    let db = open(&media, &tiny_without_medium().medium(Medium::Pmem(memory.memtable_bytes(BOUND)))).unwrap();
    assert_eq!(db.stats().memtable_budget, BOUND);
    let tables = ["a", "b"].map(|name| db.create_subtable(name, tiny_table()).unwrap());
    let (mut most, mut largest) = (0, None);
    for n in 0..30_000 {
        tables[n as usize % 2].put(&key(n), &[n as u8; 100]).unwrap();
        let used: u64 = db.stats().subtables.iter().map(|t| t.memtable_bytes).sum();
        if used > most {
            (most, largest) = (used, Some((n + 1, media.image())));
        }
    }
    assert!((BOUND / 2..=BOUND + 4 * ZONE).contains(&most), "{most}");
    drop((tables, db));
    media.shutdown();
    let (rows, image) = largest.unwrap();
    let media = image.crash(CrashKind::Process, 1);
    media.remove_file(&Path::new(DIR).join("pmem")).unwrap();
    let db = open(&media, &tiny_without_medium().renew_pmem(true)).unwrap();
    let stats = db.stats();
    assert!(stats.pmem_renewed && stats.memtable_bytes <= most + 4 * ZONE, "{most}, {stats:?}");
    let found: u64 =
        ["a", "b"].iter().map(|name| contents_of(&db.subtable(name).unwrap()).len() as u64).sum();
    assert_eq!(found, rows);
    db.close().unwrap();
}

/// Commits on their way may open more zones: a chain has as many left as there can be of these.
#[test]
fn a_memtable_freezes_before_its_chain_has_all_the_zones_that_it_can_have() {
    const ZONE: u64 = 8 << 10;
    const MOST: u64 = 3072 * ZONE;
    let media = SimMedia::new(1);
    let memory = PmemOptions::new(160 << 20).zone_bytes(ZONE);
    let db = open(&media, &tiny_without_medium().medium(Medium::Pmem(memory))).unwrap();
    assert!(db.stats().memtable_budget / 2 > MOST + 1000 * ZONE, "{:?}", db.stats());
    let t = db.create_subtable("t", tiny_table()).unwrap();
    let value = |n: u64| vec![n as u8; 500 + (n % 100) as usize];
    let (mut most, mut rows) = (0, 0);
    // The newest one's, until it freezes.
    while let [only] = &db.stats().subtables[..]
        && only.memtables == 1
    {
        most = most.max(only.memtable_bytes);
        for n in rows..rows + 50 {
            t.put(&key(n), &value(n)).unwrap();
        }
        rows += 50;
        assert!(rows < 100_000, "it never froze");
    }
    assert!((MOST - 100 * ZONE..=MOST + ZONE).contains(&most), "{} zones", most / ZONE);
    let image = media.image();
    drop((t, db));
    media.shutdown();
    for kind in [CrashKind::PowerLost, CrashKind::PowerWords] {
        let db = open(&image.crash(kind, 3), &tiny_without_medium()).unwrap();
        let t = db.subtable("t").unwrap();
        assert_eq!(contents_of(&t).len() as u64, rows);
        (0..rows).step_by(97).for_each(|n| assert_eq!(t.get(&key(n)).unwrap(), Some(value(n)), "{n}"));
        drop(t);
        db.close().unwrap();
    }
}

#[test]
fn what_commits_do_not_need_holds_blocks_until_they_do() {
    const ROWS: u64 = 3000;
    let media = SimMedia::new(6);
    let db = open(&media, &with_memory().cache_bytes(64 << 10)).unwrap();
    let t = db.create_subtable("t", tiny_table()).unwrap();
    let value = |n: u64, round: u64| vec![(n * 31 + round) as u8; 200 + (n % 100) as usize];
    let check = |t: &terrane::Subtable, round| {
        (0..ROWS).for_each(|n| assert_eq!(t.get(&key(n)).unwrap(), Some(value(n, round)), "{n}"));
    };
    (0..ROWS).for_each(|n| t.put(&key(n), &value(n, 0)).unwrap());
    t.compact().unwrap();
    (0..3).for_each(|_| check(&t, 0));
    let read = db.stats();
    assert!(read.pmem_cache_bytes > read.pmem_bytes / 2, "{} of {}", read.pmem_cache_bytes, read.pmem_bytes);
    assert!(read.pmem_cache_hits > 100 && read.pmem_cache_hits > read.cache_misses / 2, "{read:?}");
    let misses = read.cache_misses;
    check(&t, 0);
    let misses = db.stats().cache_misses - misses;
    assert!(misses < ROWS / 10, "nearly all of it is in memory: {misses}");

    let mut least = read.pmem_cache_bytes;
    for round in 1..4 {
        for n in 0..ROWS {
            t.put(&key(n), &value(n, round)).unwrap();
            least = least.min(db.stats().pmem_cache_bytes);
        }
    }
    assert!(least < read.pmem_cache_bytes / 2, "commits had no more of it: {least}");
    check(&t, 3);
    let image = media.image();
    drop((t, db));
    media.shutdown();
    for kind in [CrashKind::Process, CrashKind::PowerLost, CrashKind::PowerWords] {
        let media = image.crash(kind, 7);
        let db = open(&media, &tiny_without_medium()).unwrap();
        let t = db.subtable("t").unwrap();
        check(&t, 3);
        assert!(db.check(|_| true).unwrap().is_clean());
        drop(t);
        db.close().unwrap();
    }
}

/// Several memtables of a subtable come back from a crash; some of them are written out, and then it crashes once more.
#[test]
fn what_came_back_and_was_written_out_in_part_comes_back_again() {
    for seed in 0..40 {
        let media = SimMedia::new(seed);
        let db = open(&media, &with_memory()).unwrap();
        let t = db.create_subtable("t", tiny_table()).unwrap();
        let empty = db.create_subtable("empty", tiny_table()).unwrap();
        let images = Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut rows = 0;
        // Pictures between freezing and writing out.
        let sink = images.clone();
        media.on_op(Some(Arc::new(move |m: &SimMedia, info: &terrane::media::sim::OpInfo<'_>| {
            if info.path.to_string_lossy().contains("data-") {
                sink.lock().unwrap().push(m.image());
            }
        })));
        while images.lock().unwrap().len() < 8 {
            t.put(&key(rows), &[seed as u8; 900]).unwrap();
            rows += 1;
        }
        media.on_op(None);
        drop((t, empty, db));
        media.shutdown();
        let image = std::mem::take(&mut *images.lock().unwrap()).swap_remove((seed % 8) as usize);
        let media = image.crash(CrashKind::PowerTorn, seed);
        let seen = |db: &Db| contents_of(&db.subtable("t").unwrap());
        let db = open(&media, &tiny_without_medium()).unwrap();
        let first = seen(&db);
        assert!(first.len() as u64 >= rows - 1, "{} of {rows}", first.len());
        db.wait_idle().unwrap();
        assert!(db.stats().flushes > 0, "what was frozen is written out");
        match seed % 2 {
            0 => db.close().unwrap(),
            _ => drop(db),
        }
        for kind in [CrashKind::Process, CrashKind::PowerLost] {
            let media = media.image().crash(kind, seed);
            let db = open(&media, &tiny_without_medium()).unwrap();
            assert!(seen(&db) == first, "seed {seed}, {kind:?}: {} of {}", seen(&db).len(), first.len());
            db.close().unwrap();
            media.shutdown();
        }
    }
}

/// Memtables that are empty take an object each, and the same ones at every opening.
#[test]
fn empty_subtables_open_again_and_too_many_are_refused() {
    let media = SimMedia::new(10);
    let db = open(&media, &with_memory()).unwrap();
    let mut made = 0;
    let refused = loop {
        match db.create_subtable(&format!("t{made}"), tiny_table()) {
            Ok(t) => t.put(b"k", b"v").and_then(|_| t.flush()).unwrap(),
            Err(e) => break e,
        }
        made += 1;
    };
    assert_eq!(refused.kind(), ErrorKind::LimitExceeded);
    assert!(made > 60 && refused.hint().is_some(), "{made}: {refused}");
    db.close().unwrap();
    for _ in 0..4 {
        let db = open(&media, &tiny_without_medium()).unwrap();
        assert_eq!(db.subtables().len(), made);
        let t = db.subtable("t5").unwrap();
        t.put(b"k", b"w").unwrap();
        t.flush().unwrap();
        drop(t);
        db.close().unwrap();
    }
}

#[test]
fn a_thousand_subtables_have_room() {
    // As a GiB with zones of half a MiB, at a sixteenth.
    let memory = PmemOptions::new(64 << 20).zone_bytes(32 << 10);
    let media = SimMedia::new(9);
    let options = tiny_without_medium().medium(Medium::Pmem(memory));
    let db = open(&media, &options).unwrap();
    for t in 0..1000 {
        db.create_subtable(&format!("t{t}"), tiny_table()).unwrap().put(b"k", &[1; 100]).unwrap();
    }
    let stats = db.stats();
    assert_eq!(stats.flushes, 0);
    assert!(stats.pmem_used * 2 > stats.pmem_bytes, "they have half of it");
    // One is in use, and the others make room for it.
    let busy = db.subtable("t7").unwrap();
    let mut largest = 0;
    for n in 0..20_000 {
        busy.put(&key(n), &[2; 2000]).unwrap();
        // The background keeps pace.
        media.step();
        if n % 200 == 0 {
            let subtables = db.stats().subtables;
            largest = largest.max(subtables.iter().find(|s| s.name == "t7").unwrap().memtable_records);
        }
    }
    assert!(largest > 8000, "{largest} records in a memtable at most");
    assert_eq!(db.stats().full_waits, 0);
    drop(busy);
    db.close().unwrap();
    let db = open(&media, &options).unwrap();
    assert!(
        (0..1000).all(|t| db.subtable(&format!("t{t}")).unwrap().get(b"k").unwrap() == Some(vec![1; 100]))
    );
    assert!((0..20_000).all(|n| db.subtable("t7").unwrap().get(&key(n)).unwrap().is_some()));
}

/// A tiny record takes five times in memory what it takes in a batch: of those too a transaction may have any number.
#[test]
fn transactions_of_any_number_of_tiny_records_are_committed() {
    let media = SimMedia::new(4);
    let db = open(&media, &Options::new().medium(Medium::Pmem(PmemOptions::new(8 << 20)))).unwrap();
    let t = db.create_subtable("t", SubtableOptions::new()).unwrap();
    let longest = (db.max_batch_bytes() / 4) as u16;
    for count in (1000..longest).step_by(500) {
        let mut transaction = db.begin(TransactionOptions::new()).unwrap();
        for n in 0..count {
            transaction.delete(&t, &n.to_be_bytes()).unwrap();
        }
        transaction.put(&t, b"count", &count.to_be_bytes()).unwrap();
        transaction.commit(Durability::Buffered).unwrap();
        assert_eq!(t.get(b"count").unwrap().as_deref(), Some(&count.to_be_bytes()[..]));
    }
    db.close().unwrap();
}

/// Where a file system is no device, a new memory is refused before anything is given up for it, and leaves nothing in the way of the next try.
#[test]
fn a_memory_that_cannot_be_renewed_here_can_be_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let (db, memory) = (dir.path().join("db"), dir.path().join("memory"));
    let medium = |mode| Medium::Pmem(tiny_memory().mode(mode).trailing_log(true).path(&memory));
    let options = |mode| tiny_without_medium().medium(medium(mode));
    let opened = Db::open(&db, options(PmemMode::StandIn)).unwrap();
    opened.create_subtable("t", tiny_table()).unwrap().put(b"k", b"v").unwrap();
    opened.close().unwrap();
    for damaged in [true, false] {
        match damaged {
            true => std::fs::write(&memory, [1; 8192]).unwrap(),
            false => std::fs::remove_file(&memory).unwrap(),
        }
        let names = || {
            let all = std::fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().file_name());
            all.collect::<std::collections::BTreeSet<_>>()
        };
        let before = names();
        match Db::open(&db, options(PmemMode::Dax).renew_pmem(true)) {
            // Temporary files lie on a device that is mapped directly.
            Ok(_) => return,
            Err(e) => assert_eq!((e.kind(), e.file()), (ErrorKind::Unsupported, Some(&*memory)), "{e}"),
        }
        assert_eq!(names(), before);
        let opened = Db::open(&db, options(PmemMode::StandIn).renew_pmem(true)).unwrap();
        assert!(opened.stats().pmem_renewed);
        assert_eq!(opened.subtable("t").unwrap().get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
        opened.close().unwrap();
    }
}

/// A copy of a database's directory names the same memory, which has one owner all the same.
#[test]
fn a_copy_of_the_directory_does_not_open_a_memory_that_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let (own, copy, memory) = (dir.path().join("own"), dir.path().join("copy"), dir.path().join("memory"));
    let at = tiny_memory().mode(PmemMode::StandIn).path(&memory);
    let db = Db::open(&own, tiny_without_medium().medium(Medium::Pmem(at))).unwrap();
    db.create_subtable("t", tiny_table()).unwrap().put(b"k", b"v").unwrap();
    db.close().unwrap();
    copy_directory(&own, &copy);
    let db = Db::open(&own, tiny_without_medium()).unwrap();
    let e = Db::open(&copy, tiny_without_medium()).unwrap_err();
    assert_eq!((e.kind(), e.file()), (ErrorKind::Locked, Some(&*memory)), "{e}");
    assert_eq!(db.subtable("t").unwrap().get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    db.close().unwrap();
}

/// Of a directory and its copies the one that opens the memory first has it, and with its own copy of the memory each goes on.
#[test]
fn a_directory_from_before_is_not_opened_with_the_memory_of_a_later_one() {
    let dir = tempfile::tempdir().unwrap();
    for (n, first_is_copy) in [false, true].into_iter().enumerate() {
        let at = |name: &str| dir.path().join(format!("{name}-{n}"));
        let (own, copy, memory, kept) = (at("own"), at("copy"), at("memory"), at("kept"));
        let medium = Medium::Pmem(tiny_memory().mode(PmemMode::StandIn).path(&memory));
        exchange(&own, tiny_without_medium().medium(medium.clone()), b"before");
        copy_directory(&own, &copy);
        std::fs::copy(&memory, &kept).unwrap();
        let (first, second) = if first_is_copy { (&copy, &own) } else { (&own, &copy) };
        let had = |value: &[u8]| (Some(value.to_vec()), false);
        assert_eq!(exchange(first, tiny_without_medium(), b"first"), had(b"before"));
        for options in [
            tiny_without_medium(),
            tiny_without_medium().medium(medium),
            tiny_without_medium().renew_pmem(true),
        ] {
            let e = Db::open(second, options).unwrap_err();
            assert_eq!((e.kind(), e.file()), (ErrorKind::Stale, Some(&*memory)), "{e}");
            assert!(e.hint().is_some_and(|h| h.contains("a copy of its memory")), "{e}");
        }
        let with_its_own = tiny_without_medium().pmem_path(&kept);
        assert_eq!(exchange(second, with_its_own, b"second"), had(b"before"));
        assert_eq!(exchange(first, tiny_without_medium(), b""), had(b"first"));
        assert_eq!(exchange(second, tiny_without_medium(), b""), had(b"second"));
    }
}

/// A copy of the memory alone lacks what was committed since it was made, in the place of the memory too.
#[test]
fn a_memory_from_before_is_refused_and_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (db, old, new) = (dir.path().join("db"), dir.path().join("old"), dir.path().join("new"));
    let at = |path| {
        let memory = tiny_memory().mode(PmemMode::StandIn).path(path);
        tiny_without_medium().medium(Medium::Pmem(memory))
    };
    let opened = Db::open(&db, at(&old)).unwrap();
    let table = opened.create_subtable("t", tiny_table()).unwrap();
    table.put(b"k", b"before").unwrap();
    drop(table);
    opened.close().unwrap();
    std::fs::copy(&old, &new).unwrap();
    let opened = Db::open(&db, tiny_without_medium().pmem_path(&new)).unwrap();
    opened.subtable("t").unwrap().put(b"k", b"since").unwrap();
    opened.close().unwrap();
    // More than once, for an opening counts itself.
    for _ in 0..4 {
        let e = Db::open(&db, at(&old)).unwrap_err();
        assert_eq!((e.kind(), e.file()), (ErrorKind::Stale, Some(&*old)), "{e}");
        assert!(e.hint().is_some_and(|h| h.contains("backup")), "{e}");
    }
    let opened = Db::open(&db, tiny_without_medium()).unwrap();
    assert_eq!(opened.subtable("t").unwrap().get(b"k").unwrap().as_deref(), Some(&b"since"[..]));
    opened.close().unwrap();
}

/// A batch to more subtables than there are zones for is refused at once: nothing that is written out would make room for it.
#[test]
fn a_batch_to_more_subtables_than_memory_has_room_for_is_refused_at_once() {
    let media = SimMedia::new(6);
    let db = open(&media, &with_memory()).unwrap();
    let mut tables = Vec::new();
    while let Ok(t) = db.create_subtable(&format!("t{}", tables.len()), tiny_table()) {
        tables.push(t);
    }
    let to = |count: usize| {
        let mut batch = WriteBatch::new();
        tables[..count].iter().for_each(|t| batch.put(t, b"k", &[count as u8]).unwrap());
        db.write(batch, Durability::Buffered)
    };
    let zones = (db.stats().pmem_bytes / (32 << 10)) as usize;
    assert!(tables.len() > zones, "{} tables, {zones} zones", tables.len());
    let e = to(zones).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::LimitExceeded, "{e}");
    assert_eq!(db.stats().flushes, 0);
    // So many fit, again and again.
    for _ in 0..3 {
        to(zones - zones / 8).unwrap();
    }
    assert_eq!(tables[0].get(b"k").unwrap().unwrap(), [(zones - zones / 8) as u8]);
}

/// The subtable is gone, and a write fails that says so of its commits: what it had comes back with the next one that does not.
#[test]
fn a_dropped_subtable_gives_its_memory_back_though_the_manifest_could_not_be_written() {
    let media = SimMedia::new(9);
    let db = open(&media, &with_memory()).unwrap();
    let t = db.create_subtable("t", tiny_table()).unwrap();
    let other = db.create_subtable("other", tiny_table()).unwrap();
    (0..1000).for_each(|n| t.put(&key(n), &[2; 500]).unwrap());
    (0..20).for_each(|n| t.put(&key(n), &[3; 9000]).unwrap());
    let (used, data) = (db.stats().pmem_used, db.stats().data_used);
    drop(t);
    // The first write says that the subtable is dropped, the second one only that the file ends there.
    media.set_fault(Some(FaultPlan::nth(2, Fault::Io).only(&[OpKind::Write]).files("manifest")));
    db.drop_subtable("t").unwrap();
    media.set_fault(None);
    assert_eq!(db.stats().pmem_used, used, "no write failed");
    other.put(b"k", b"v").unwrap();
    other.flush().unwrap();
    db.wait_idle().unwrap();
    let stats = db.stats();
    assert!(stats.pmem_used < used / 4 && stats.data_used < data, "{stats:?}");
}

/// A file that has the name which an unfinished memory would have, and is another one's memory, stays.
#[test]
fn a_memory_of_another_is_not_taken_for_what_is_left_of_making_another() {
    let media = SimMedia::new(6);
    let at = |path: &str| tiny_without_medium().medium(Medium::Pmem(tiny_memory().path(path)));
    let open_at = |dir: &str, path: &str| Db::open_on(media.clone() as Arc<dyn Media>, dir, at(path));
    let db = open_at("/b", "/a.new").unwrap();
    db.create_subtable("t", tiny_table()).unwrap().put(b"k", b"v").unwrap();
    let e = open_at("/a-db", "/a").unwrap_err();
    assert_eq!((e.kind(), e.file()), (ErrorKind::Locked, Some(Path::new("/a.new"))), "{e}");
    db.close().unwrap();
    // Nor is one that nobody has open.
    let e = open_at("/a-db", "/a").unwrap_err();
    assert_eq!((e.kind(), e.file()), (ErrorKind::AlreadyExists, Some(Path::new("/a.new"))), "{e}");
    let db = open_at("/b", "/a.new").unwrap();
    assert_eq!(db.subtable("t").unwrap().get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
}

/// Writers go on while a check reads what memory they need.
#[test]
fn a_check_keeps_no_memory_while_it_reads_files() {
    let media = SimMedia::new(8);
    let db = open(&media, &with_memory()).unwrap();
    let t = db.create_subtable("t", tiny_table()).unwrap();
    let fill = |from: u64| (from..from + 2000).for_each(|n| t.put(&key(n), &[1; 500]).unwrap());
    (0..6).for_each(|n| fill(n * 2000));
    t.flush().unwrap();
    db.wait_idle().unwrap();
    (0..1000).for_each(|n| t.put(&key(n), &[2; 500]).unwrap());
    assert!(db.stats().pmem_used > 8 * (32 << 10));
    let mut least = u64::MAX;
    let report = db.check(|progress| {
        if progress.bytes > 0 {
            t.put(b"more", b"v").unwrap();
            t.flush().unwrap();
            least = least.min(db.stats().pmem_used);
        }
        true
    });
    assert!(report.unwrap().is_clean());
    assert!(least <= 4 * (32 << 10), "{least} bytes of memory in use at least");
}

/// A stand-in for a device does not outlive the machine, and says so instead of showing what is left.
#[test]
fn what_stands_for_a_device_is_refused_after_the_machine_stopped_unless_it_was_closed() {
    let media = SimMedia::new(3);
    let options = tiny_without_medium().medium(Medium::Pmem(tiny_memory().mode(PmemMode::StandIn)));
    let db = open(&media, &options).unwrap();
    let table = db.create_subtable("t", tiny_table()).unwrap();
    table.put(b"k", b"v").unwrap();
    db.sync().unwrap();
    let running = media.image();
    drop(table);
    db.close().unwrap();
    let closed = media.image();
    media.shutdown();
    let value = |db: &Db| db.subtable("t").unwrap().get(b"k").unwrap();
    for (image, kind) in [(&running, CrashKind::Process), (&closed, CrashKind::PowerLost)] {
        let media = image.crash(kind, 1);
        let db = open(&media, &tiny_without_medium()).unwrap();
        assert_eq!(value(&db).as_deref(), Some(&b"v"[..]), "{kind:?}");
        db.close().unwrap();
        media.shutdown();
    }
    for kind in [CrashKind::PowerLost, CrashKind::PowerKept, CrashKind::PowerTorn, CrashKind::PowerWords] {
        let media = running.crash(kind, 1);
        for wanted in [tiny_without_medium(), tiny_without_medium().renew_pmem(true)] {
            let e = open(&media, &wanted).map(drop).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Stale, "{kind:?}: {e}");
            assert!(e.file().is_some_and(|f| f.ends_with("pmem")) && e.hint().is_some(), "{e}");
        }
        media.shutdown();
    }
}

/// What each thread has committed is there when it is opened again, and of no commit a part.
#[test]
fn threads_that_commit_to_several_subtables_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let memory = PmemOptions::new(6 << 20).zone_bytes(64 << 10).mode(PmemMode::StandIn);
    let options = tiny_without_medium().medium(Medium::Pmem(memory));
    let threads = 8;
    let each = 400;
    for round in 0..3u64 {
        let db = Db::open(dir.path(), options.clone()).unwrap();
        let tables: Vec<_> = (0..4).map(|t| db.subtable_or_create(&name(t), tiny_table()).unwrap()).collect();
        let dropped = Arc::new(db.subtable_or_create("dropped", tiny_table()).unwrap());
        std::thread::scope(|s| {
            for w in 0..threads {
                let (db, tables, dropped) = (&db, &tables, dropped.clone());
                s.spawn(move || {
                    for n in 0..each {
                        let id = key(round << 32 | w << 16 | n);
                        let mut batch = WriteBatch::new();
                        batch.put(&tables[(w % 4) as usize], &id, &[w as u8; 300]).unwrap();
                        batch.put(&tables[(n % 4) as usize], &[&id[..], b"+"].concat(), b"and this").unwrap();
                        if n % 16 == 0 && batch.put(&dropped, &id, b"gone").is_err() {
                            continue;
                        }
                        match db.write(batch, Durability::Buffered) {
                            Err(e) => assert_eq!(e.kind(), ErrorKind::SubtableDropped, "{e}"),
                            Ok(_) => assert!(tables[(w % 4) as usize].get(&id).unwrap().is_some()),
                        }
                    }
                });
            }
            s.spawn(|| db.drop_subtable("dropped").unwrap());
        });
        let held: Vec<_> = tables.iter().map(contents_of).collect();
        drop((tables, dropped));
        db.close().unwrap();
        let db = Db::open(dir.path(), tiny_without_medium()).unwrap();
        let again: Vec<_> = (0..4).map(|t| contents_of(&db.subtable(&name(t)).unwrap())).collect();
        assert!(held == again, "round {round}");
        let ids = |rows: &[(Vec<u8>, Vec<u8>)], len| {
            let mut ids: Vec<Vec<u8>> =
                rows.iter().filter(|(k, _)| k.len() == len).map(|(k, _)| k[..8].to_vec()).collect();
            ids.sort();
            ids
        };
        let all = again.concat();
        assert!(ids(&all, 8) == ids(&all, 9), "round {round}: of some commit there is a part");
        db.close().unwrap();
    }
}

fn contents_of(t: &terrane::Subtable) -> Vec<(Vec<u8>, Vec<u8>)> {
    t.range(terrane::ReadOptions::new()).unwrap().map(|r| r.unwrap()).collect()
}
