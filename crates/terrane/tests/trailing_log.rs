//! Databases with persistent memory on a device and a log behind it: what is theirs alone. The tests of everything else are run on them too
//! (`TERRANE_TEST_MEDIUM=pmem-log`).

mod support;

use std::path::Path;
use std::sync::{Arc, Mutex};

use support::pairs::{
    self, MANY, WRITE, all_open_behind_a_batch_to_many, check_all_subtables,
    damage_is_reported_and_given_up_when_asked_for, in_a_batch_to_many, make_all_subtables, memory_file,
    prefix, put_to_many, while_opening_writes_data, with_records_in_many, without_medium,
};
use support::*;
use terrane::media::Media;
use terrane::media::sim::{CrashKind, Fault, FaultPlan, Image, OpInfo, OpKind, SimMedia};
use terrane::{Db, Durability, ErrorKind, Medium, Options, PmemMode};

fn with_log() -> Options {
    without_medium().medium(Medium::Pmem(tiny_memory().trailing_log(true)))
}

/// For good.
fn remove_memory(media: &SimMedia) {
    media.remove_file(&memory_file()).unwrap();
    media.sync_dir(Path::new(DIR)).unwrap();
}

const POWER: [CrashKind; 4] =
    [CrashKind::PowerLost, CrashKind::PowerKept, CrashKind::PowerTorn, CrashKind::PowerWords];

/// Writes records of these numbers to both subtables.
fn put(db: &Db, numbers: std::ops::Range<u64>, durability: Durability) {
    let table = |name| db.subtable_or_create(name, tiny_table()).unwrap();
    pairs::put(db, &[&table("a"), &table("b")], numbers, durability);
}

/// A database with records, of which the first `synced` were synced and are in extents, that runs. A third subtable has a record of the time
/// in between.
fn running(synced: u64, all: u64) -> Image {
    let media = SimMedia::new(1);
    let db = open(&media, &with_log()).unwrap();
    put(&db, 0..synced.saturating_sub(1), Durability::Buffered);
    if synced > 0 {
        put(&db, synced - 1..synced, Durability::Sync);
    }
    ["a", "b"].iter().for_each(|name| db.subtable(name).unwrap().flush().unwrap());
    let flushes = db.stats().flushes;
    let c = db.create_subtable("c", tiny_table()).unwrap();
    put(&db, synced..synced + 5, Durability::Buffered);
    c.put(b"k", b"v").unwrap();
    drop(c);
    put(&db, synced + 5..all, Durability::Buffered);
    assert_eq!(db.stats().flushes, flushes, "all of it is in memory");
    let image = media.image();
    drop(db);
    media.shutdown();
    image
}

#[test]
fn what_the_log_lost_with_the_power_the_device_has() {
    for (seed, kind) in (0..10).flat_map(|seed| POWER.map(|kind| (seed, kind))) {
        let mut media = running(10, 100).crash(kind, seed);
        let mut rows = 100;
        // The log goes on behind the gap, and the next crash finds another one.
        for kind in [kind, CrashKind::Process, kind, CrashKind::PowerLost, CrashKind::PowerKept] {
            let db = open(&media, &without_medium()).unwrap();
            assert_eq!(prefix(&db), rows, "{kind:?} {seed}");
            assert!(!db.stats().pmem_renewed);
            put(&db, rows..rows + 20, Durability::Buffered);
            rows += 20;
            let image = media.image();
            drop(db);
            media.shutdown();
            media = image.crash(kind, seed);
        }
        let db = open(&media, &without_medium()).unwrap();
        assert_eq!(prefix(&db), rows);
        assert!(db.check(|_| true).unwrap().is_clean());
        db.close().unwrap();
    }
}

#[test]
fn a_device_that_is_lost_leaves_what_the_log_has() {
    let image = running(60, 100);
    let mut short = 0;
    for (seed, kind) in (0..10).flat_map(|seed| POWER.map(|kind| (seed, kind))) {
        let media = image.crash(kind, seed);
        remove_memory(&media);
        let e = open(&media, &without_medium()).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
        assert!(e.hint().is_some_and(|h| h.contains("renew_pmem")), "{e}");
        let db = open(&media, &without_medium().renew_pmem(true)).unwrap();
        assert!(db.stats().pmem_renewed);
        let kept = prefix(&db);
        assert!((60..=100).contains(&kept), "{kept}, {kind:?}");
        short += u64::from(kept < 100);
        // It goes on as it was, with the new memory.
        put(&db, kept..kept + 20, Durability::Buffered);
        let again = media.image();
        drop(db);
        media.shutdown();
        let media = again.crash(CrashKind::PowerLost, seed);
        let db = open(&media, &without_medium().renew_pmem(true)).unwrap();
        assert!(!db.stats().pmem_renewed, "it is whole");
        assert_eq!(prefix(&db), kept + 20);
        db.close().unwrap();
    }
    assert!(short > 0, "nothing was ever lost");
    // The process alone died: the log's tail has all.
    let media = image.crash(CrashKind::Process, 1);
    remove_memory(&media);
    let db = open(&media, &without_medium().renew_pmem(true)).unwrap();
    assert_eq!(prefix(&db), 100);
    db.close().unwrap();
}

#[test]
fn a_damaged_memory_is_reported_and_given_up_when_asked_for() {
    damage_is_reported_and_given_up_when_asked_for(&running(60, 100), TINY_MEMORY_BYTES, 100);
}

/// The power fails, and the device is lost before what the log lacked since is written out: that is said, and nothing is made up. Once it is
/// written out the log is enough again.
#[test]
fn with_a_gap_the_log_alone_is_not_taken_for_the_database() {
    let media = running(10, 100).crash(CrashKind::PowerLost, 1);
    let stopped = Arc::new(Mutex::new(None));
    let sink = stopped.clone();
    // When the first extent is about to be written: nothing has been.
    media.on_op(Some(Arc::new(move |m: &SimMedia, op: &OpInfo<'_>| {
        let name = op.path.file_name().unwrap_or_default().to_string_lossy();
        if op.kind == OpKind::Write && name.starts_with("data-") {
            sink.lock().unwrap().get_or_insert_with(|| m.image());
        }
    })));
    let db = open(&media, &without_medium()).unwrap();
    assert_eq!(prefix(&db), 100);
    db.wait_idle().unwrap();
    media.on_op(None);
    put(&db, 100..120, Durability::Sync);
    let whole = media.image();
    drop(db);
    media.shutdown();

    let exposed = stopped.lock().unwrap().take().unwrap();
    for kind in [CrashKind::Process, CrashKind::PowerLost] {
        let media = exposed.crash(kind, 1);
        let away = Path::new(DIR).join("away");
        media.rename(&memory_file(), &away).unwrap();
        for renew in [true, false, true] {
            let e = open(&media, &without_medium().renew_pmem(renew)).unwrap_err();
            let kind = if renew { ErrorKind::Corruption } else { ErrorKind::NotFound };
            assert_eq!((e.kind(), e.to_string().contains("lacks")), (kind, renew), "{e}");
            assert!(!media.exists(&memory_file()).unwrap(), "nothing is changed");
        }
        // What is there cannot be read, and is the only copy.
        let damaged = media.open(&away, WRITE).unwrap();
        let mut first = [0; 8];
        damaged.read_at(&mut first, 0).unwrap();
        damaged.write_at(b"garbage!", 0).unwrap();
        media.rename(&away, &memory_file()).unwrap();
        let e = open(&media, &without_medium().renew_pmem(true)).unwrap_err();
        assert!(e.to_string().contains("lacks"), "{e}");
        // The device is there again.
        damaged.write_at(&first, 0).unwrap();
        drop(damaged);
        let db = open(&media, &without_medium().renew_pmem(true)).unwrap();
        assert!(!db.stats().pmem_renewed);
        assert_eq!(prefix(&db), 100);
        db.sync().unwrap();
        assert!(!db.stats().log_gap, "the log is whole before it returns");
        let image = media.image();
        drop(db);
        media.shutdown();
        without_its_memory(&image, 100);
    }
    without_its_memory(&whole, 120);
}

/// Openings that are cut short, one after the other: none leaves anything that the next one could not do without.
#[test]
fn any_number_of_openings_that_do_not_come_to_an_end_is_followed_by_one_that_does() {
    let is_log = |op: &OpInfo<'_>| {
        let name = op.path.file_name().unwrap_or_default().to_string_lossy();
        op.kind == OpKind::Write && name.starts_with("log-")
    };
    for fails in [false, true] {
        let mut media = running(10, 100).crash(CrashKind::PowerLost, 1);
        // Of memtables there is room for 92.
        for _ in 0..40 {
            let stopped = Arc::new(Mutex::new(None));
            let sink = stopped.clone();
            media.on_op(Some(Arc::new(move |m: &SimMedia, op: &OpInfo<'_>| {
                if is_log(op) {
                    sink.lock().unwrap().get_or_insert_with(|| m.image());
                }
            })));
            if fails {
                let first = FaultPlan::nth(0, Fault::NoSpace).only(&[OpKind::Write]).files("log-");
                media.set_fault(Some(first.sticky()));
            }
            let opened = open(&media, &without_medium());
            media.on_op(None);
            assert_eq!(opened.is_err(), fails);
            drop(opened);
            if !fails {
                media.shutdown();
                media = stopped.lock().unwrap().take().unwrap().crash(CrashKind::Process, 1);
            }
            media.set_fault(None);
        }
        let db = open(&media, &without_medium()).unwrap();
        assert_eq!(prefix(&db), 100);
        db.close().unwrap();
    }
}

/// As many subtables as may be made, some of which have something that the log lacks: there are not as many memtables as it would take to
/// freeze all of theirs at once.
#[test]
fn with_many_subtables_it_opens_after_a_power_failure_and_mends_the_log() {
    let media = SimMedia::new(10);
    let db = open(&media, &with_log()).unwrap();
    let made = make_all_subtables(&db);
    // Behind all that making subtables has synced.
    db.subtable("t0").unwrap().put(b"k", b"newer").unwrap();
    assert_eq!(db.stats().flushes, 0, "all of it is in memory");
    let image = media.image();
    drop(db);
    media.shutdown();
    let mut exposed = false;
    for (seed, kind) in (0..).zip(POWER) {
        let media = image.crash(kind, seed);
        let db = open(&media, &without_medium()).unwrap();
        exposed |= db.stats().log_gap;
        db.wait_idle().unwrap();
        assert!(!db.stats().log_gap, "{kind:?}");
        check_all_subtables(&db, made);
        let image = media.image();
        drop(db);
        media.shutdown();
        let media = image.crash(CrashKind::PowerLost, seed);
        remove_memory(&media);
        let db = open(&media, &without_medium().renew_pmem(true)).unwrap();
        // Of the log alone.
        check_all_subtables(&db, made);
        db.close().unwrap();
    }
    assert!(exposed, "the log never lacked anything");
}

/// ... and when the process dies while a batch to more of them than there are memtables left for has come to the log alone.
#[test]
fn with_many_subtables_it_opens_after_the_process_died_in_a_batch_to_many() {
    let (media, db, made) = with_records_in_many(|memory| memory.trailing_log(true));
    all_open_behind_a_batch_to_many(&in_a_batch_to_many(&media, db, &(0..MANY)), made, &(0..MANY));
}

/// ... even if the power has failed just before, and the log lacks what the memory has.
#[test]
fn with_many_subtables_it_opens_after_the_process_died_in_a_batch_to_many_while_there_is_a_gap() {
    let (media, db, made) = with_records_in_many(|memory| memory.trailing_log(true));
    let image = media.image();
    drop(db);
    media.shutdown();
    let media = image.crash(CrashKind::PowerLost, 1);
    let db = open(&media, &without_medium()).unwrap();
    assert!(db.stats().log_gap);
    // Those that had a memtable to go on with have something in both: none is left, nor comes free but by writing one out.
    put_to_many(&db, 0..8, b"other", b"v");
    let many = 8..18;
    all_open_behind_a_batch_to_many(&in_a_batch_to_many(&media, db, &many), made, &many);
}

/// Whatever else it loses, the log has all of so many records.
fn without_its_memory(image: &Image, rows: u64) {
    for kind in [CrashKind::Process, CrashKind::PowerLost] {
        let media = image.crash(kind, 1);
        remove_memory(&media);
        let db = open(&media, &without_medium().renew_pmem(true)).unwrap();
        assert_eq!(prefix(&db), rows, "{kind:?}");
        db.close().unwrap();
    }
}

/// However soon the opening that finds the log short comes to an end, the next one goes on with what that is about.
#[test]
fn what_the_log_lacks_is_written_out_by_whoever_opens_next() {
    for closes in [false, true] {
        let media = running(10, 100).crash(CrashKind::PowerLost, 1);
        let db = open(&media, &without_medium()).unwrap();
        assert!(db.stats().log_gap);
        let media = match closes {
            true => {
                db.close().unwrap();
                media
            }
            false => {
                let image = media.image();
                drop(db);
                media.shutdown();
                image.crash(CrashKind::Process, 1)
            }
        };
        let db = open(&media, &without_medium()).unwrap();
        assert_eq!(db.stats().log_gap, !closes, "closing has seen to it");
        db.wait_idle().unwrap();
        assert!(!db.stats().log_gap);
        put(&db, 100..120, Durability::Sync);
        let image = media.image();
        drop(db);
        media.shutdown();
        without_its_memory(&image, 120);
    }
}

#[test]
fn a_memory_is_given_up_for_its_own_database_alone_and_where_it_was() {
    let media = SimMedia::new(9);
    let elsewhere =
        |path: &str| without_medium().medium(Medium::Pmem(tiny_memory().trailing_log(true).path(path)));
    let other = Db::open_on(media.clone() as Arc<dyn Media>, "/other", elsewhere("/pm-other")).unwrap();
    let t = other.create_subtable("t", tiny_table()).unwrap();
    t.put(b"k", b"v").unwrap();
    let db = open(&media, &elsewhere("/pm")).unwrap();
    put(&db, 0..10, Durability::Buffered);
    db.close().unwrap();
    // By a slip, what another one has open.
    let e = open(&media, &elsewhere("/pm-other").renew_pmem(true)).unwrap_err();
    assert_eq!((e.kind(), e.file()), (ErrorKind::Locked, Some(Path::new("/pm-other"))), "{e}");
    // By another one, where nothing is.
    let e = open(&media, &elsewhere("/pm-new").renew_pmem(true)).unwrap_err();
    assert_eq!((e.kind(), e.file()), (ErrorKind::InvalidArgument, Some(Path::new("/pm"))), "{e}");
    let db = open(&media, &without_medium()).unwrap();
    assert_eq!(prefix(&db), 10);
    db.close().unwrap();
    assert_eq!(t.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    drop(t);
    other.close().unwrap();
    // Nobody has it open, and it is still another's.
    let e = open(&media, &elsewhere("/pm-other").renew_pmem(true)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
    // What is damaged is put aside, and what was put aside stays.
    for round in 0..3 {
        let file = media.open(Path::new("/pm"), WRITE).unwrap();
        file.write_at(b"garbage!", 0).unwrap();
        drop(file);
        let db = open(&media, &without_medium().renew_pmem(true)).unwrap();
        assert!(db.stats().pmem_renewed);
        assert_eq!(prefix(&db), 10);
        db.close().unwrap();
        assert!(media.exists(Path::new(&format!("/pm.lost-{round}"))).unwrap());
    }
}

/// At every operation of an opening that finds the log short, or the device gone: the next one finds all there was.
#[test]
fn an_opening_that_is_cut_off_can_be_done_again() {
    let image = running(60, 100);
    for lost in [false, true] {
        let options = without_medium().renew_pmem(lost);
        let mut kept = None;
        for stop in 0.. {
            let media = image.crash(CrashKind::PowerLost, 3);
            if lost {
                remove_memory(&media);
            }
            let taken = Arc::new(Mutex::new((0, None)));
            let sink = taken.clone();
            media.on_op(Some(Arc::new(move |m: &SimMedia, _: &OpInfo<'_>| {
                let mut taken = sink.lock().unwrap();
                if taken.0 == stop {
                    taken.1 = Some(m.image());
                }
                taken.0 += 1;
            })));
            let db = open(&media, &options).unwrap();
            db.wait_idle().unwrap();
            media.on_op(None);
            let rows = prefix(&db);
            assert!(if lost { rows >= 60 } else { rows == 100 });
            assert!(kept.is_none_or(|kept| kept == rows));
            kept = Some(rows);
            drop(db);
            media.shutdown();
            let Some(image) = taken.lock().unwrap().1.take() else { break };
            for kind in [CrashKind::Process, CrashKind::PowerLost, CrashKind::PowerKept, CrashKind::PowerTorn]
            {
                let media = image.crash(kind, stop);
                if let Err(e) = open(&image.crash(kind, stop), &without_medium()) {
                    assert!(lost && e.hint().is_some_and(|hint| hint.contains("renew_pmem")), "{e}");
                }
                let db = open(&media, &options).unwrap();
                assert_eq!(prefix(&db), rows, "{kind:?} at {stop}, lost: {lost}");
                let put_aside =
                    media.list(Path::new(DIR)).unwrap().into_iter().find(|e| e.name.contains("lost"));
                assert!(put_aside.is_none(), "{put_aside:?}, {kind:?} at {stop}: nothing was there");
                put(&db, rows..rows + 3, Durability::Buffered);
                let image = media.image();
                drop(db);
                media.shutdown();
                let media = image.crash(CrashKind::PowerLost, stop);
                let db = open(&media, &without_medium()).unwrap();
                assert_eq!(prefix(&db), rows + 3, "{kind:?} at {stop}, lost: {lost}");
                drop(db);
                media.shutdown();
            }
        }
    }
}

/// Values of units of their own are there when a commit returns, whatever the log knows of them.
#[test]
fn large_values_survive_with_the_device() {
    let media = SimMedia::new(5);
    let db = open(&media, &with_log()).unwrap();
    let t = db.create_subtable("a", tiny_table()).unwrap();
    let value = |n: u8| vec![n; 20_000];
    (0..20).for_each(|n| t.put(&[n], &value(n)).unwrap());
    let image = media.image();
    drop((t, db));
    media.shutdown();
    for kind in POWER {
        let media = image.crash(kind, 7);
        let db = open(&media, &without_medium()).unwrap();
        let t = db.subtable("a").unwrap();
        (0..20).for_each(|n| assert_eq!(t.get(&[n]).unwrap(), Some(value(n)), "{n}, {kind:?}"));
        assert!(db.check(|_| true).unwrap().is_clean());
        drop(t);
        db.close().unwrap();
    }
}

/// The process dies, and the power fails while the next one opens the database: of what was durable nothing is written again.
#[test]
fn large_values_survive_a_power_failure_while_opening_too() {
    let media = SimMedia::new(5);
    let db = open(&media, &with_log()).unwrap();
    let t = db.create_subtable("a", tiny_table()).unwrap();
    let value = |n: u8| vec![n; 20_000];
    (0..20).for_each(|n| t.put(&[n], &value(n)).unwrap());
    let image = media.image();
    drop((t, db));
    media.shutdown();
    let mut images = while_opening_writes_data(&image, &without_medium());
    images.push(image);
    for (seed, image) in (0..).zip(&images) {
        for kind in POWER {
            let media = image.crash(kind, seed);
            let db = open(&media, &without_medium()).unwrap();
            let t = db.subtable("a").unwrap();
            (0..20).for_each(|n| assert_eq!(t.get(&[n]).unwrap(), Some(value(n)), "{n}, {kind:?}, {seed}"));
            drop(t);
            db.close().unwrap();
        }
    }
}

#[test]
fn a_log_is_there_from_the_beginning_or_never() {
    let plain = || without_medium().medium(Medium::Pmem(tiny_memory()));
    let in_page_cache =
        || without_medium().medium(Medium::Pmem(tiny_memory().mode(PmemMode::PageCache).trailing_log(true)));
    for (first, second) in [(with_log(), plain()), (plain(), with_log()), (in_page_cache(), with_log())] {
        let media = SimMedia::new(7);
        open(&media, &first).unwrap().close().unwrap();
        let e = open(&media, &second).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{e}");
        open(&media, &first).unwrap().close().unwrap();
        // Nothing is lost: nothing is made anew.
        let db = open(&media, &without_medium().renew_pmem(true)).unwrap();
        assert!(!db.stats().pmem_renewed);
        db.close().unwrap();
    }
    // Without a log there is nothing to make one from.
    let media = SimMedia::new(8);
    open(&media, &plain()).unwrap().close().unwrap();
    remove_memory(&media);
    let e = open(&media, &without_medium().renew_pmem(true)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
}
