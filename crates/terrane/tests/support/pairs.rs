//! Two subtables, `a` and `b`, that get the same records in the same commits: 0, 1, and so on. What a crash leaves is a prefix of them, and of
//! both the same.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use terrane::media::sim::{CrashKind, Fault, FaultPlan, Image, OpInfo, OpKind, SimMedia};
use terrane::media::{Media, OpenMode};
use terrane::{Db, Durability, ErrorKind, Medium, Options, PmemOptions, ReadOptions, Subtable, WriteBatch};

use super::{DIR, TUNING, open};

pub const WRITE: OpenMode = OpenMode { write: true, create_new: false, direct: false };

/// Options that leave it to the database where its commits go.
pub fn without_medium() -> Options {
    Options::new().cache_bytes(256 << 10).tuning(TUNING)
}

pub fn memory_file() -> PathBuf {
    Path::new(DIR).join("pmem")
}

pub fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

/// Writes records, each in a commit of its own.
pub fn put(db: &Db, tables: &[&Subtable], numbers: Range<u64>, durability: Durability) {
    for n in numbers {
        let mut batch = WriteBatch::new();
        for t in tables {
            batch.put(t, &key(n), &[n as u8; 200]).unwrap();
        }
        db.write(batch, durability).unwrap();
    }
}

/// What the machine had whenever a database that opened `image` was about to write to its data files.
pub fn while_opening_writes_data(image: &Image, options: &Options) -> Vec<Image> {
    let media = image.crash(CrashKind::Process, 1);
    let writes_data = |op: &OpInfo<'_>| {
        let name = op.path.file_name().unwrap_or_default().to_string_lossy();
        matches!(op.kind, OpKind::Write | OpKind::Sync) && name.starts_with("data-")
    };
    let images = images_before(&media, writes_data, || drop(open(&media, options).unwrap()));
    media.shutdown();
    images
}

/// What the machine had before each of the calls that `f` made and `counts` picks.
fn images_before(
    media: &Arc<SimMedia>,
    counts: impl FnMut(&OpInfo<'_>) -> bool + Send + 'static,
    f: impl FnOnce(),
) -> Vec<Image> {
    let images = Arc::new(Mutex::new(Vec::new()));
    let sink = images.clone();
    let counts = Mutex::new(counts);
    media.on_op(Some(Arc::new(move |m: &SimMedia, op: &OpInfo<'_>| {
        if (*counts.lock().unwrap())(op) {
            sink.lock().unwrap().push(m.image());
        }
    })));
    f();
    media.on_op(None);
    std::mem::take(&mut *images.lock().unwrap())
}

/// Makes as many subtables as may be made, every third with a record; returns how many.
pub fn make_all_subtables(db: &Db) -> usize {
    let mut made = 0;
    while let Ok(t) = db.create_subtable(&format!("t{made}"), super::tiny_table()) {
        if made % 3 == 0 {
            t.put(b"k", b"v").unwrap();
        }
        made += 1;
    }
    assert!(made > 70, "{made}");
    made
}

/// Subtables that have a record: more than memtables that all subtables leave.
pub const MANY: usize = 12;

/// A machine with as many subtables as may be made, many of which have a record; and how many there are.
pub fn with_records_in_many(memory: impl FnOnce(PmemOptions) -> PmemOptions) -> (Arc<SimMedia>, Db, usize) {
    let media = SimMedia::new(2);
    let memory = memory(PmemOptions::new(8 << 20).zone_bytes(256 << 10));
    let db = open(&media, &without_medium().medium(Medium::Pmem(memory))).unwrap();
    let mut made = 0;
    while db.create_subtable(&format!("t{made}"), super::tiny_table()).is_ok() {
        made += 1;
    }
    put_to_many(&db, 0..MANY, b"k", b"v");
    (media, db, made)
}

/// A record to each of these subtables, in one commit.
pub fn put_to_many(db: &Db, many: Range<usize>, key: &[u8], value: &[u8]) {
    let mut batch = WriteBatch::new();
    for n in many {
        batch.put(&db.subtable(&format!("t{n}")).unwrap(), key, value).unwrap();
    }
    db.write(batch, Durability::Buffered).unwrap();
}

/// What the machine had every so many calls while `f` ran.
fn every(calls: usize, media: &Arc<SimMedia>, f: impl FnOnce()) -> Vec<Image> {
    let mut turns = (0..calls).cycle();
    images_before(media, move |_| turns.next() == Some(0), f)
}

/// What the machine had every few calls while a batch went to these subtables.
pub fn in_a_batch_to_many(media: &Arc<SimMedia>, db: Db, many: &Range<usize>) -> Vec<Image> {
    let images = every(5, media, || put_to_many(&db, many.clone(), b"k", b"newer"));
    assert_eq!(db.stats().flushes, 0, "all of it is in memory");
    drop(db);
    media.shutdown();
    images
}

/// Opens what the death of the process leaves of each of these. The batch is there or it is not, and stays so, wherever the opening is cut short
/// in its turn, and what is committed then stays too. Some had to write memtables out first, and both outcomes were met.
pub fn all_open_behind_a_batch_to_many(images: &[Image], made: usize, many: &Range<usize>) {
    let opened = |media: &Arc<SimMedia>, what: &str| {
        let db = open(media, &without_medium()).unwrap_or_else(|e| panic!("{what}: {e}"));
        let is_there = has_batch_to_many(&db, made, many);
        (db, is_there)
    };
    let (mut waited, mut outcomes) = (0, BTreeSet::new());
    for (stop, image) in images.iter().enumerate() {
        let media = image.crash(CrashKind::Process, stop as u64);
        let (db, is_there) = opened(&media, &format!("{stop}"));
        let stats = db.stats();
        assert!(!stats.pmem_renewed, "{stop}: it has all, with the log");
        outcomes.insert(is_there);
        put_to_many(&db, many.clone(), b"later", b"v");
        let later = media.image();
        drop(db);
        media.shutdown();
        let is_as_it_was = |media: &Arc<SimMedia>, what: &str| {
            let (db, still) = opened(media, what);
            assert_eq!(still, is_there, "{what}");
            db
        };
        let end = |media: &Arc<SimMedia>, db: Db| {
            db.close().unwrap();
            media.shutdown();
        };
        let media = later.crash(CrashKind::Process, 1);
        let db = is_as_it_was(&media, &format!("{stop}, later"));
        for n in many.clone() {
            let t = db.subtable(&format!("t{n}")).unwrap();
            assert_eq!(t.get(b"later").unwrap().as_deref(), Some(&b"v"[..]), "{stop}: {n}");
        }
        end(&media, db);
        if stats.flushes == 0 {
            continue;
        }
        waited += 1;
        let media = image.crash(CrashKind::Process, stop as u64);
        let cut_short = every(2, &media, || drop(open(&media, &without_medium()).unwrap()));
        media.shutdown();
        // Others for each stop.
        for (n, image) in cut_short.iter().enumerate().skip(stop % 4).step_by(4) {
            let media = image.crash(CrashKind::Process, n as u64);
            end(&media, is_as_it_was(&media, &format!("{stop} {n}")));
        }
        // Without room for what is to be written out it fails, and changes nothing that the next one needs.
        let media = image.crash(CrashKind::Process, stop as u64);
        let full = FaultPlan::nth(0, Fault::NoSpace).only(&[OpKind::Write]).files("data-");
        media.set_fault(Some(full.sticky()));
        let Err(e) = open(&media, &without_medium()) else { panic!("{stop}: on a full device") };
        let in_data_file = |f: &Path| f.file_name().is_some_and(|f| f.to_string_lossy().starts_with("data-"));
        // What the flush failed with, and not that there was no memtable.
        assert!(e.kind() == ErrorKind::OutOfSpace && e.file().is_some_and(in_data_file), "{stop}: {e}");
        assert!(e.hint().is_some_and(|h| h.contains("make room")), "{stop}: {e}");
        media.set_fault(None);
        end(&media, is_as_it_was(&media, &format!("{stop}: with room again")));
    }
    assert!(waited > 0 && outcomes.len() == 2, "{waited} {outcomes:?}");
}

/// Whether that batch is there, of which there must be all or nothing.
fn has_batch_to_many(db: &Db, made: usize, many: &Range<usize>) -> bool {
    let value = |n: usize| db.subtable(&format!("t{n}")).unwrap().get(b"k").unwrap();
    let is_there = value(many.start).as_deref() == Some(b"newer");
    for n in 0..made {
        let want = match n {
            n if is_there && many.contains(&n) => Some(b"newer".to_vec()),
            n => (n < MANY).then(|| b"v".to_vec()),
        };
        assert_eq!(value(n), want, "{n} of {made}");
    }
    is_there
}

/// Whether all of [`make_all_subtables`] is there.
pub fn check_all_subtables(db: &Db, made: usize) {
    for t in 0..made {
        let value = db.subtable(&format!("t{t}")).unwrap().get(b"k").unwrap();
        assert_eq!(value.is_some(), t % 3 == 0, "{t} of {made}");
    }
}

/// Damages the memory of a machine at one place after the other. `image` has all records up to `all` in its memory or in
/// extents, and what is in the memory in the log behind it too: damage is reported, and on request the memory is given up and nothing is lost.
pub fn damage_is_reported_and_given_up_when_asked_for(image: &Image, memory_bytes: u64, all: u64) {
    let (mut reported, mut renewed) = (0, 0);
    for at in (0..memory_bytes).step_by(4 << 10) {
        let media = image.crash(CrashKind::Process, 1);
        let file = media.open(&memory_file(), WRITE).unwrap();
        file.write_at(&[0x5a; 512], at).unwrap();
        drop(file);
        match open(&media, &without_medium()) {
            // Nobody has anything there.
            Ok(db) => assert_eq!(prefix(&db), all, "{at}"),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Corruption, "{at}: {e}");
                assert!(e.hint().is_some_and(|h| h.contains("renew_pmem")), "{e}");
                reported += 1;
            }
        }
        let db = open(&media, &without_medium().renew_pmem(true)).unwrap();
        assert_eq!(prefix(&db), all, "{at}");
        renewed += u64::from(db.stats().pmem_renewed);
        db.close().unwrap();
        media.shutdown();
    }
    assert!(reported > 0 && reported == renewed, "{reported} {renewed}");
}

/// How many of `0..n` there are: a prefix, in both subtables the same one.
pub fn prefix(db: &Db) -> u64 {
    let count = |name| {
        let t = db.subtable(name).unwrap();
        let rows: Vec<_> = t.range(ReadOptions::new()).unwrap().map(|r| r.unwrap()).collect();
        for (n, (k, v)) in (0..).zip(&rows) {
            assert_eq!((k.as_slice(), v.as_slice()), (&key(n)[..], &[n as u8; 200][..]), "{name} has a gap");
        }
        rows.len() as u64
    };
    let (a, b) = (count("a"), count("b"));
    assert_eq!(a, b, "of a commit there is a part");
    a
}
