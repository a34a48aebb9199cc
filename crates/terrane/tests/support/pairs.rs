//! Two subtables, `a` and `b`, that get the same records in the same commits: 0, 1, and so on. What a crash leaves is a prefix of them, and of
//! both the same.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use terrane::media::sim::{CrashKind, Image, OpInfo, OpKind, SimMedia};
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
    let images = Arc::new(Mutex::new(Vec::new()));
    let sink = images.clone();
    media.on_op(Some(Arc::new(move |m: &SimMedia, op: &OpInfo<'_>| {
        let name = op.path.file_name().unwrap_or_default().to_string_lossy();
        if matches!(op.kind, OpKind::Write | OpKind::Sync) && name.starts_with("data-") {
            sink.lock().unwrap().push(m.image());
        }
    })));
    drop(open(&media, options).unwrap());
    media.on_op(None);
    media.shutdown();
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

/// Subtables that a batch is for: more than memtables that all subtables leave.
const MANY: usize = 70;

/// A machine with as many subtables as may be made, many of which have a record, while a batch goes to these: what it had every few calls, and how
/// many subtables there are.
pub fn in_a_batch_to_many(memory: impl FnOnce(PmemOptions) -> PmemOptions) -> (Vec<Image>, usize) {
    let media = SimMedia::new(2);
    let memory = memory(PmemOptions::new(8 << 20).zone_bytes(32 << 10));
    let db = open(&media, &without_medium().medium(Medium::Pmem(memory))).unwrap();
    let mut tables = Vec::new();
    while let Ok(t) = db.create_subtable(&format!("t{}", tables.len()), super::tiny_table()) {
        tables.push(t);
    }
    let mut batch = WriteBatch::new();
    for t in &tables[..MANY] {
        t.put(b"k", b"v").unwrap();
        batch.put(t, b"k", b"newer").unwrap();
    }
    let images = Arc::new(Mutex::new((0, Vec::new())));
    let sink = images.clone();
    media.on_op(Some(Arc::new(move |m: &SimMedia, _: &OpInfo<'_>| {
        let (calls, images) = &mut *sink.lock().unwrap();
        if *calls % 8 == 0 {
            images.push(m.image());
        }
        *calls += 1;
    })));
    db.write(batch, Durability::Buffered).unwrap();
    media.on_op(None);
    assert_eq!(db.stats().flushes, 0, "all of it is in memory");
    let made = tables.len();
    drop((tables, db));
    media.shutdown();
    (std::mem::take(&mut images.lock().unwrap().1), made)
}

/// Whether that batch is there, of which there must be all or nothing.
pub fn has_batch_to_many(db: &Db, made: usize) -> bool {
    let value = |n: usize| db.subtable(&format!("t{n}")).unwrap().get(b"k").unwrap();
    let is_there = value(0).as_deref() == Some(b"newer");
    for n in 0..made {
        let want = (n < MANY).then(|| if is_there { b"newer".to_vec() } else { b"v".to_vec() });
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
