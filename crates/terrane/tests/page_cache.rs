//! Databases with memory in the page cache, and a log behind it: what is theirs alone. The tests of everything else are run on them too
//! (`TERRANE_TEST_MEDIUM=page-cache`).

#![allow(clippy::disallowed_methods, reason = "a test may start threads, and remove files")]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use support::pairs::*;
use support::*;
use terrane::media::Media;
use terrane::media::sim::{CrashKind, Fault, FaultPlan, OpKind, SimMedia};
use terrane::{
    Db, Durability, ErrorKind, Medium, Options, PmemMode, PmemOptions, ReadOptions, Tuning, WriteBatch,
};

fn in_the_page_cache() -> Options {
    without_medium().medium(Medium::Pmem(tiny_memory().mode(PmemMode::PageCache)))
}

#[test]
fn what_is_no_memory_is_not_put_aside_for_a_new_database() {
    let dir = tempfile::tempdir().unwrap();
    let (there, file) = (dir.path().join("there"), dir.path().join("file"));
    std::fs::create_dir(&there).unwrap();
    std::fs::write(&file, vec![7; 1 << 20]).unwrap();
    for mode in [PmemMode::PageCache, PmemMode::StandIn] {
        for (n, path) in [&there, &file].into_iter().enumerate() {
            for renew in [false, true] {
                let db = dir.path().join(format!("{mode:?}{n}{renew}"));
                let memory = tiny_memory().mode(mode).path(path);
                let options = without_medium().medium(Medium::Pmem(memory)).renew_pmem(renew);
                let e = Db::open(&db, options).unwrap_err();
                let hint = e.hint().unwrap_or_default();
                assert!(hint.contains("--pmem") && !hint.contains("renew"), "{e}");
                assert!(there.is_dir() && file.is_file());
                assert_eq!(
                    std::fs::read_dir(dir.path())
                        .unwrap()
                        .filter(|e| e.as_ref().unwrap().path().is_file())
                        .count(),
                    1
                );
            }
        }
    }
    // Nor is a directory for one that there is.
    let db = dir.path().join("db");
    let memory = tiny_memory().mode(PmemMode::PageCache);
    Db::open(&db, without_medium().medium(Medium::Pmem(memory))).unwrap().close().unwrap();
    std::fs::remove_file(db.join("pmem")).unwrap();
    std::fs::create_dir(db.join("pmem")).unwrap();
    let e = Db::open(&db, without_medium().renew_pmem(true)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    std::fs::remove_dir(db.join("pmem")).unwrap();
    Db::open(&db, without_medium()).unwrap().close().unwrap();
}

/// For a new one beside what is put aside there has to be room: who has none is told what to do.
#[test]
fn what_is_damaged_is_taken_away_where_there_is_no_room_for_both() {
    let media = SimMedia::new(8);
    let db = open(&media, &in_the_page_cache()).unwrap();
    let t = db.create_subtable("a", tiny_table()).unwrap();
    t.put(b"k", b"v").unwrap();
    drop(t);
    db.close().unwrap();
    let path = Path::new(DIR).join("pmem");
    let memory = media
        .open(&path, terrane::media::OpenMode { write: true, create_new: false, direct: false })
        .unwrap();
    memory.write_at(&[9; 512], 0).unwrap();
    memory.sync().unwrap();
    drop(memory);
    media.set_capacity(Some(media.used_bytes() + (600 << 10)));
    let renewing = without_medium().renew_pmem(true);
    let e = open(&media, &renewing).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutOfSpace);
    assert!(e.hint().is_some_and(|hint| hint.contains("take the old one")), "{e}");
    media.remove_file(&path).unwrap();
    let db = open(&media, &renewing).unwrap();
    assert_eq!(db.subtable("a").unwrap().get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn unsynced_commits_survive_the_process_and_synced_ones_a_power_failure() {
    let media = SimMedia::new(1);
    let db = open(&media, &in_the_page_cache()).unwrap();
    let (a, b) =
        (db.create_subtable("a", tiny_table()).unwrap(), db.create_subtable("b", tiny_table()).unwrap());
    put(&db, &[&a, &b], 0..60, Durability::Buffered);
    put(&db, &[&a, &b], 60..61, Durability::Sync);
    put(&db, &[&a, &b], 61..100, Durability::Buffered);
    assert_eq!(db.stats().flushes, 0, "all of it is in memory");
    let image = media.image();
    drop((a, b, db));
    media.shutdown();

    let media = image.crash(CrashKind::Process, 1);
    let db = open(&media, &without_medium()).unwrap();
    assert_eq!(prefix(&db), 100);
    assert!(!db.stats().pmem_renewed, "the memory is as it was");
    db.close().unwrap();

    for (seed, kind) in (0..20).flat_map(|seed| {
        [CrashKind::PowerLost, CrashKind::PowerKept, CrashKind::PowerTorn, CrashKind::PowerWords]
            .map(|kind| (seed, kind))
    }) {
        let media = image.crash(kind, seed);
        let db = open(&media, &without_medium()).unwrap();
        assert!(db.stats().pmem_renewed, "what of the memory is old nobody knows");
        let kept = prefix(&db);
        assert!((61..=100).contains(&kept), "{kept}, {kind:?}");
        // Not written out yet when the process dies once more, and then the power fails.
        let (a, b) = (db.subtable("a").unwrap(), db.subtable("b").unwrap());
        put(&db, &[&a, &b], kept..kept + 20, Durability::Buffered);
        db.sync().unwrap();
        let image = media.image();
        drop((a, b, db));
        media.shutdown();
        for kind in [CrashKind::Process, CrashKind::PowerLost] {
            let media = image.crash(kind, seed);
            let db = open(&media, &without_medium()).unwrap();
            assert_eq!(prefix(&db), kept + 20, "{kind:?}");
            assert_eq!(db.stats().pmem_renewed, kind == CrashKind::PowerLost);
            db.close().unwrap();
            media.shutdown();
        }
    }
}

/// At every store to the log's tail or to the memory: what of a commit the one has and not the other must not be lost, nor come twice.
#[test]
fn a_process_that_dies_between_log_and_memory_loses_nothing() {
    let mut beside = 0;
    for stop in 0.. {
        let media = SimMedia::new(2);
        let db = open(&media, &in_the_page_cache()).unwrap();
        let (a, b) =
            (db.create_subtable("a", tiny_table()).unwrap(), db.create_subtable("b", tiny_table()).unwrap());
        put(&db, &[&a, &b], 0..3, Durability::Buffered);
        let taken = Arc::new(std::sync::Mutex::new((0, None)));
        let sink = taken.clone();
        media.on_op(Some(Arc::new(move |m: &SimMedia, _: &terrane::media::sim::OpInfo<'_>| {
            let mut taken = sink.lock().unwrap();
            if taken.0 == stop {
                taken.1 = Some(m.image());
            }
            taken.0 += 1;
        })));
        put(&db, &[&a, &b], 3..5, Durability::Buffered);
        media.on_op(None);
        drop((a, b, db));
        media.shutdown();
        let Some(image) = taken.lock().unwrap().1.take() else { break };
        let mut media = image.crash(CrashKind::Process, 3);
        let mut had = None;
        // And once more, before anything is written out; and with the power failing.
        for kind in [Some(CrashKind::Process), Some(CrashKind::PowerLost), Some(CrashKind::PowerKept), None] {
            let db = open(&media, &without_medium()).unwrap();
            let now = prefix(&db);
            assert!((3..=5).contains(&now) && had.is_none_or(|n| n == now), "{had:?}, {now} at {stop}");
            had = Some(now);
            let stats = db.stats();
            let memtables: usize = stats.subtables.iter().map(|s| s.memtables).sum();
            beside += usize::from(!stats.pmem_renewed && memtables > 2);
            let image = media.image();
            drop(db);
            media.shutdown();
            media = kind.map_or(media, |kind| image.crash(kind, stop));
        }
    }
    assert!(beside > 0, "the log never had a commit that the memory had not");
}

/// What the kernel could not write, or cannot read, of the memory's file keeps nobody from what the log has.
#[test]
fn a_file_that_fails_while_it_is_opened_is_made_anew() {
    let media = SimMedia::new(4);
    let db = open(&media, &in_the_page_cache()).unwrap();
    let (a, b) =
        (db.create_subtable("a", tiny_table()).unwrap(), db.create_subtable("b", tiny_table()).unwrap());
    put(&db, &[&a, &b], 0..300, Durability::Buffered);
    let image = media.image();
    drop((a, b, db));
    media.shutdown();
    let fails = |n: u64, kind| FaultPlan::nth(n, Fault::Io).only(&[kind]).files("pmem");
    let mut failed = 0;
    for (n, kind) in (0..6).flat_map(|n| [(n, OpKind::Sync), (n, OpKind::Read), (n, OpKind::Look)]) {
        let media = image.crash(CrashKind::Process, 5);
        media.set_fault(Some(fails(n, kind)));
        // A flush that fails says for ever that the memory is of no use. What cannot be read may be readable another time: who
        // asks for it gives it up.
        let db = open(&media, &without_medium().renew_pmem(kind != OpKind::Sync)).unwrap();
        failed += u64::from(media.faults_hit() > 0);
        assert!(db.stats().pmem_renewed || media.faults_hit() == 0, "{n} {kind:?}");
        assert_eq!(prefix(&db), 300);
        media.set_fault(None);
        db.close().unwrap();
    }
    assert!(failed > 6, "{failed}");
}

#[test]
fn a_memory_that_is_gone_is_made_anew() {
    let media = SimMedia::new(4);
    let db = open(&media, &in_the_page_cache()).unwrap();
    let (a, b) =
        (db.create_subtable("a", tiny_table()).unwrap(), db.create_subtable("b", tiny_table()).unwrap());
    put(&db, &[&a, &b], 0..300, Durability::Buffered);
    let killed = media.image();
    drop((a, b));
    db.close().unwrap();
    let closed = media.image();
    media.shutdown();
    for (image, kind) in [(killed, CrashKind::Process), (closed, CrashKind::PowerLost)] {
        let media = image.crash(kind, 5);
        media.remove_file(&memory_file()).unwrap();
        let db = open(&media, &without_medium()).unwrap();
        assert!(db.stats().pmem_renewed && media.exists(&memory_file()).unwrap());
        assert_eq!(prefix(&db), 300);
        db.close().unwrap();
        let db = open(&media, &without_medium()).unwrap();
        assert!(!db.stats().pmem_renewed);
        assert_eq!(prefix(&db), 300);
        db.close().unwrap();
    }
}

#[test]
fn a_damaged_memory_is_reported_and_given_up_when_asked_for() {
    let media = SimMedia::new(4);
    let db = open(&media, &in_the_page_cache()).unwrap();
    let a = db.create_subtable("a", tiny_table()).unwrap();
    let b = db.create_subtable("b", tiny_table()).unwrap();
    put(&db, &[&a, &b], 0..100, Durability::Buffered);
    let image = media.image();
    drop((a, b, db));
    media.shutdown();
    damage_is_reported_and_given_up_when_asked_for(&image, TINY_MEMORY_BYTES, 100);
}

/// A log that fails gives up what its tail alone has. The memory has that still, but it is no promise, and the log's later entries could not
/// stand behind it.
#[test]
fn after_a_failed_flush_writes_are_refused_and_the_log_says_what_there_is() {
    let media = SimMedia::new(6);
    let db = open(&media, &in_the_page_cache()).unwrap();
    let (a, b) =
        (db.create_subtable("a", tiny_table()).unwrap(), db.create_subtable("b", tiny_table()).unwrap());
    put(&db, &[&a, &b], 0..20, Durability::Sync);
    put(&db, &[&a, &b], 20..30, Durability::Buffered);
    media.set_fault(Some(FaultPlan::nth(0, Fault::Io).only(&[OpKind::Sync]).files("log-")));
    assert!(db.sync().is_err());
    let mut batch = WriteBatch::new();
    batch.put(&a, b"later", b"").unwrap();
    assert_eq!(db.write(batch, Durability::Buffered).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(prefix(&db), 30, "reads go on");
    media.set_fault(None);
    drop((a, b, db));
    let db = open(&media, &without_medium()).unwrap();
    let kept = prefix(&db);
    assert!((20..=30).contains(&kept), "{kept}");
    let (a, b) = (db.subtable("a").unwrap(), db.subtable("b").unwrap());
    put(&db, &[&a, &b], kept..40, Durability::Sync);
    let image = media.image();
    drop((a, b, db));
    media.shutdown();
    let media = image.crash(CrashKind::PowerLost, 1);
    let db = open(&media, &without_medium()).unwrap();
    assert_eq!(prefix(&db), 40);
    db.close().unwrap();
}

/// A log whose flush failed, and of which what was written since cannot be read any more, ends before the memory does.
#[test]
fn a_memory_that_has_more_than_its_log_is_made_anew() {
    let media = SimMedia::new(8);
    let db = open(&media, &in_the_page_cache()).unwrap();
    let (a, b) =
        (db.create_subtable("a", tiny_table()).unwrap(), db.create_subtable("b", tiny_table()).unwrap());
    put(&db, &[&a, &b], 0..20, Durability::Buffered);
    db.sync().unwrap();
    // More than the tail has room for, and less than is flushed by itself.
    put(&db, &[&a, &b], 20..420, Durability::Buffered);
    assert_eq!(db.stats().flushes, 0);
    media.set_fault(Some(FaultPlan::nth(0, Fault::Io).only(&[OpKind::Sync]).files("log-")));
    assert!(db.sync().is_err());
    drop((a, b, db));
    media.set_fault(None);
    let media = media.image().crash(CrashKind::Process, 1);
    let mut logs: Vec<_> = media.list(Path::new(DIR)).unwrap().into_iter().map(|e| e.name).collect();
    logs.retain(|name| name.starts_with("log-"));
    logs.sort();
    for (number, name) in logs.iter().enumerate() {
        let file = media.open(&Path::new(DIR).join(name), WRITE).unwrap();
        let from = if number == 0 { 8 << 12 } else { 1 << 12 };
        file.write_at(&vec![0; file.len().unwrap() as usize - from], from as u64).unwrap();
        file.sync().unwrap();
    }
    let db = open(&media, &without_medium()).unwrap();
    assert!(db.stats().pmem_renewed);
    let kept = prefix(&db);
    assert!((20..420).contains(&kept), "{kept}");
    let (a, b) = (db.subtable("a").unwrap(), db.subtable("b").unwrap());
    put(&db, &[&a, &b], kept..kept + 10, Durability::Sync);
    let image = media.image();
    drop((a, b, db));
    media.shutdown();
    let db = open(&image.crash(CrashKind::PowerLost, 2), &without_medium()).unwrap();
    assert_eq!(prefix(&db), kept + 10);
    db.close().unwrap();
}

/// Another memory took its place, and then it is there again.
#[test]
fn a_memory_that_was_left_behind_is_not_trusted_again() {
    let media = SimMedia::new(9);
    let at = |path: &str| {
        let memory = tiny_memory().mode(PmemMode::PageCache).path(path);
        without_medium().medium(Medium::Pmem(memory))
    };
    let (mut media, mut rows) = (media, 0);
    for (path, renewed) in [("one", false), ("two", true), ("one", true), ("one", false), ("two", true)] {
        let db = open(&media, &at(path)).unwrap();
        assert_eq!(db.stats().pmem_renewed, renewed, "{path}");
        let (a, b) = (
            db.subtable_or_create("a", tiny_table()).unwrap(),
            db.subtable_or_create("b", tiny_table()).unwrap(),
        );
        assert_eq!(prefix(&db), rows);
        put(&db, &[&a, &b], rows..rows + 10, Durability::Buffered);
        rows += 10;
        let image = media.image();
        drop((a, b, db));
        media.shutdown();
        media = image.crash(CrashKind::Process, rows);
    }
    // With other bytes than it has: they are for the next one.
    let larger = PmemOptions::new(3 << 20).zone_bytes(32 << 10).mode(PmemMode::PageCache).path("two");
    let db = open(&media, &without_medium().medium(Medium::Pmem(larger))).unwrap();
    let before = db.stats().pmem_bytes;
    assert_eq!(prefix(&db), rows);
    db.close().unwrap();
    media.remove_file(&Path::new(DIR).join("two")).unwrap();
    let db = open(&media, &without_medium()).unwrap();
    assert!(db.stats().pmem_bytes > before);
    assert_eq!(prefix(&db), rows);
    db.close().unwrap();
}

/// As many subtables as may be made, some of which have something to take from the log.
#[test]
fn with_many_subtables_it_opens_after_a_power_failure() {
    let media = SimMedia::new(10);
    let db = open(&media, &in_the_page_cache()).unwrap();
    let made = make_all_subtables(&db);
    db.sync().unwrap();
    let mut image = media.image();
    drop(db);
    media.shutdown();
    for kind in [CrashKind::PowerLost, CrashKind::Process, CrashKind::PowerTorn, CrashKind::Process] {
        let media = image.crash(kind, 1);
        let db = open(&media, &without_medium()).unwrap();
        check_all_subtables(&db, made);
        image = media.image();
        drop(db);
        media.shutdown();
    }
}

/// ... and when the process dies while a batch to more of them than there are memtables left for has come to the log alone.
#[test]
fn with_many_subtables_it_opens_after_the_process_died_in_a_batch_to_many() {
    let (media, db, made) = with_records_in_many(|memory| memory.mode(PmemMode::PageCache));
    all_open_behind_a_batch_to_many(&in_a_batch_to_many(&media, db, &(0..MANY)), made, &(0..MANY));
}

/// One that is asked for, in place of a lost one, and is too small for the subtables that there are: refused before anything is given up.
#[test]
fn a_memory_is_not_made_anew_with_too_little_room_for_the_subtables() {
    let media = SimMedia::new(10);
    let of = |mib: u64| {
        let memory = PmemOptions::new(mib << 20).zone_bytes(64 << 10).mode(PmemMode::PageCache);
        without_medium().medium(Medium::Pmem(memory))
    };
    let db = open(&media, &of(12)).unwrap();
    for n in 0..200 {
        db.create_subtable(&format!("t{n}"), tiny_table()).unwrap();
    }
    db.subtable("t7").unwrap().put(b"k", b"v").unwrap();
    db.sync().unwrap();
    let image = media.image();
    drop(db);
    media.shutdown();
    let media = image.crash(CrashKind::PowerLost, 1);
    let before = media.list(Path::new(DIR)).unwrap().len();
    let e = open(&media, &of(4)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::LimitExceeded, "{e}");
    assert_eq!(media.list(Path::new(DIR)).unwrap().len(), before);
    for options in [of(12), without_medium()] {
        let db = open(&media, &options).unwrap();
        assert_eq!(db.subtable("t7").unwrap().get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
        db.close().unwrap();
    }
}

/// Nobody asks for a flush of the log, and too little is written for one: it comes by itself.
#[test]
fn what_is_committed_does_not_wait_for_more() {
    let memory = || tiny_memory().mode(PmemMode::PageCache);
    for medium in [Medium::Log, Medium::Pmem(memory())] {
        let dir = tempfile::tempdir().unwrap();
        let tuning = Tuning { flush_after: Some(Duration::from_millis(10)), ..TUNING };
        let db = Db::open(dir.path(), Options::new().tuning(tuning).medium(medium)).unwrap();
        let t = db.create_subtable("t", tiny_table()).unwrap();
        for n in 0..3 {
            let (before, began) = (db.stats().durable_lsn, Instant::now());
            t.put(b"k", &[n]).unwrap();
            while db.stats().durable_lsn == before {
                assert!(began.elapsed() < Duration::from_secs(60), "{n}");
                std::thread::yield_now();
            }
        }
        drop(t);
        db.close().unwrap();
    }
}

/// Commits for one subtable, which set nothing aside, beside such for all of them, which are large enough to do so.
#[test]
fn zones_are_found_by_who_needs_one_and_who_needs_many() {
    const WRITERS: u64 = 6;
    const COMMITS: u64 = 40;
    const TABLES: u64 = 40;
    let dir = tempfile::tempdir().unwrap();
    let memory = PmemOptions::new(3 << 20).zone_bytes(32 << 10).mode(PmemMode::PageCache);
    let db = Db::open(dir.path(), without_medium().medium(Medium::Pmem(memory))).unwrap();
    let tables: Vec<_> =
        (0..TABLES).map(|n| db.create_subtable(&format!("t{n}"), tiny_table()).unwrap()).collect();
    let value = [7; 200];
    // Half of the commits are for all subtables, and set a zone aside for each: of what the memtables have not, there is enough for one
    // such commit at a time.
    let is_for = |n: u64, t: u64| n.is_multiple_of(2) || n % TABLES == t;
    std::thread::scope(|s| {
        for w in 0..WRITERS {
            let (db, tables) = (&db, &tables);
            s.spawn(move || {
                for n in 0..COMMITS {
                    let mut batch = WriteBatch::new();
                    for (_, table) in (0..).zip(tables).filter(|(t, _)| is_for(n, *t)) {
                        batch.put(table, &key(w << 32 | n), &value).unwrap();
                    }
                    db.write(batch, Durability::Buffered).unwrap();
                }
            });
        }
    });
    assert!(db.stats().full_waits > 0, "there were enough zones");
    for (t, table) in (0..).zip(&tables) {
        let found = table.range(ReadOptions::default()).unwrap().map(Result::unwrap).count() as u64;
        let expected = (0..COMMITS).filter(|n| is_for(*n, t)).count() as u64;
        assert_eq!(found, WRITERS * expected, "t{t}");
    }
    db.close().unwrap();
}

/// Commits that come too late are refused, and closing fails for nothing.
#[test]
fn closing_beside_commits_loses_nothing_and_is_no_failure() {
    for round in 0..30u64 {
        let dir = tempfile::tempdir().unwrap();
        let memory = PmemOptions::new(4 << 20).mode(PmemMode::PageCache);
        let options = without_medium().medium(Medium::Pmem(memory));
        let db = Db::open(dir.path(), options).unwrap();
        let t = db.create_subtable("t", tiny_table()).unwrap();
        let done: Vec<u64> = std::thread::scope(|s| {
            let writers: Vec<_> = (0..4u64)
                .map(|w| {
                    let t = &t;
                    s.spawn(move || {
                        (0..).find(|n| match t.put(&key(w << 32 | n), b"v") {
                            Ok(_) => false,
                            Err(e) => {
                                assert_eq!(e.kind(), ErrorKind::Closed, "{e}");
                                true
                            }
                        })
                    })
                })
                .collect();
            std::thread::sleep(std::time::Duration::from_millis(1 + round % 7));
            db.close().unwrap();
            writers.into_iter().map(|w| w.join().unwrap().unwrap()).collect()
        });
        drop(t);
        // As if the machine had stopped then.
        std::fs::remove_file(dir.path().join("pmem")).unwrap();
        std::fs::remove_file(dir.path().join("tail")).unwrap();
        let db = Db::open(dir.path(), without_medium()).unwrap();
        let t = db.subtable("t").unwrap();
        for (w, done) in (0..).zip(done) {
            assert!((0..done).all(|n| t.get(&key(w << 32 | n)).unwrap().is_some()), "{w}");
            assert_eq!(t.get(&key(w << 32 | done)).unwrap(), None, "it was refused");
        }
        db.close().unwrap();
    }
}

/// Copies of a directory that name one memory: each has what its log has, whoever had the memory before, and what another one had there is put
/// aside, for it may have commits that its log lacks.
#[test]
fn copies_of_a_directory_take_nothing_from_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let (own, copy, memory) = (dir.path().join("own"), dir.path().join("copy"), dir.path().join("memory"));
    let at = tiny_memory().mode(PmemMode::PageCache).path(&memory);
    let set_aside = |n: usize| dir.path().join(format!("memory.lost-{n}"));
    assert_eq!(exchange(&own, without_medium().medium(Medium::Pmem(at)), b"0"), (None, false));
    copy_directory(&own, &copy);
    // The first one to come takes the memory. The other one has a new one from then on, and so it goes on.
    let mut last = [b"0".to_vec(), b"0".to_vec()];
    for turn in 0..5 {
        let who = [&own, &copy][turn % 2];
        let value = format!("of turn {turn}").into_bytes();
        let found = exchange(who, without_medium(), &value);
        assert_eq!(found, (Some(last[turn % 2].clone()), turn > 0), "turn {turn}");
        assert!(!set_aside(turn).exists(), "turn {turn}");
        assert!(turn == 0 || set_aside(turn - 1).exists(), "turn {turn}");
        last[turn % 2] = value;
    }
    // What was put aside is as it was left: with it both go on beside each other.
    let found = exchange(&copy, without_medium().pmem_path(set_aside(3)), b"");
    assert_eq!(found, (Some(last[1].clone()), false));
    for who in [&own, &copy, &own] {
        let (_, renewed) = exchange(who, without_medium(), b"");
        assert!(!renewed);
    }
}

#[test]
fn with_a_log_and_without_one_are_not_exchanged() {
    for (first, second) in [(PmemMode::PageCache, PmemMode::Dax), (PmemMode::Dax, PmemMode::PageCache)] {
        let media = SimMedia::new(7);
        let with = |mode| without_medium().medium(Medium::Pmem(tiny_memory().mode(mode)));
        open(&media, &with(first)).unwrap().close().unwrap();
        let e = open(&media, &with(second)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
        assert!(e.hint().is_some());
        open(&media, &with(first)).unwrap().close().unwrap();
    }
}
