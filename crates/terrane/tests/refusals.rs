//! What the engine refuses, and how it says so: kinds that programs act on, and text that names what is wrong.

mod support;

use std::sync::Arc;

use support::*;
use terrane::media::sim::{CrashKind, SimMedia};
use terrane::media::{Media, OpenMode};
use terrane::{
    Db, Durability, Error, ErrorKind, Options, PmemOptions, ReadOptions, SubtableOptions, Tuning, WriteBatch,
};

/// A closed database with a few extents, a large value, and a log.
fn closed() -> Arc<SimMedia> {
    closed_with(&tiny())
}

fn closed_with(options: &Options) -> Arc<SimMedia> {
    let (media, db) = fresh(1, options).unwrap();
    let t = db.subtable("t0").unwrap();
    for i in 0..500 {
        t.put(format!("key{i}").as_bytes(), &[7; 100]).unwrap();
    }
    t.put(b"large", &[9; 20_000]).unwrap();
    t.flush().unwrap();
    t.put(b"in the log", b"only").unwrap();
    db.close().unwrap();
    media
}

fn names(media: &SimMedia, prefix: &str) -> Vec<String> {
    let all = media.list(dir()).unwrap().into_iter().map(|e| e.name);
    all.filter(|n| n.starts_with(prefix)).collect()
}

fn refused(media: &Arc<SimMedia>, options: &Options) -> Error {
    open(media, options).map(|_| ()).unwrap_err()
}

#[track_caller]
fn says(e: &Error, kind: ErrorKind, words: &[&str]) {
    assert_eq!(e.kind(), kind, "{e}");
    for w in words {
        assert!(e.to_string().contains(w), "{w:?} is not in: {e}");
    }
}

#[test]
fn a_second_opener_is_locked_out_and_the_first_goes_on() {
    let (media, db) = fresh(1, &tiny()).unwrap();
    says(&refused(&media, &tiny()), ErrorKind::Locked, &["LOCK"]);
    db.subtable("t0").unwrap().put(b"k", b"v").unwrap();
    db.close().unwrap();
    open(&media, &tiny()).unwrap();
}

#[test]
fn a_missing_data_file_is_named() {
    let media = closed();
    let files = names(&media, "data-");
    assert!(!files.is_empty());
    for name in files {
        let media = media.image().crash(CrashKind::Process, 1);
        media.remove_file(&dir().join(&name)).unwrap();
        says(&refused(&media, &tiny()), ErrorKind::Corruption, &[&name, "missing"]);
    }
}

#[test]
fn a_missing_manifest_is_named() {
    let media = closed();
    let name = &names(&media, "manifest-")[0];
    media.remove_file(&dir().join(name)).unwrap();
    says(&refused(&media, &tiny()), ErrorKind::Corruption, &[name, "missing"]);
}

#[test]
fn a_missing_superblock_is_not_mistaken_for_a_new_database() {
    // Even one whose records are all in the log.
    let (only_log, db) = fresh(1, &tiny()).unwrap();
    db.subtable("t0").unwrap().put(b"k", b"v").unwrap();
    db.close().unwrap();
    for media in [closed(), only_log] {
        let saved = media.image();
        media.remove_file(&dir().join("SUPER")).unwrap();
        says(&refused(&media, &tiny()), ErrorKind::Corruption, &["SUPER", "backup"]);
        says(&refused(&media, &tiny().create_if_missing(false)), ErrorKind::NotFound, &[DIR]);
        // Nothing was changed: with the superblock back in its place everything is there.
        let before = saved.crash(CrashKind::Process, 1);
        let from = before.open(&dir().join("SUPER"), OpenMode::READ).unwrap();
        let mut bytes = vec![0; from.len().unwrap() as usize];
        from.read_at(&mut bytes, 0).unwrap();
        let new = OpenMode { write: true, create_new: true, direct: false };
        media.open(&dir().join("SUPER"), new).unwrap().write_at(&bytes, 0).unwrap();
        assert!(!contents(&open(&media, &tiny()).unwrap()).unwrap()[0].as_ref().unwrap().is_empty());
    }
}

#[test]
fn a_missing_log_is_named() {
    let media = closed_with(&tiny_logged());
    let (mut needed, mut spare) = (0, 0);
    for name in names(&media, "log-") {
        let media = media.image().crash(CrashKind::Process, 1);
        media.remove_file(&dir().join(&name)).unwrap();
        let before = names(&media, "log-");
        match open(&media, &tiny_logged()) {
            // Nothing needs it.
            Ok(db) => {
                let t = db.subtable("t0").unwrap();
                assert_eq!(t.get(b"in the log").unwrap().as_deref(), Some(&b"only"[..]));
                spare += 1;
            }
            Err(e) => {
                says(&e, ErrorKind::Corruption, &[&name, "put that file back", "backup"]);
                assert_eq!(e.file(), Some(&*dir().join(&name)), "{e}");
                assert_eq!(names(&media, "log-"), before, "refused, but the log was changed");
                needed += 1;
            }
        }
    }
    assert!(needed > 0 && spare > 0, "{needed} needed, {spare} not");
    for name in names(&media, "log-") {
        media.remove_file(&dir().join(&name)).unwrap();
    }
    says(
        &refused(&media, &tiny_logged()),
        ErrorKind::Corruption,
        &["log-000001", "put that file back", "backup"],
    );
}

#[test]
fn a_segment_missing_from_the_middle_of_the_log_is_named() {
    // A log of several segments: one subtable's records are never written out.
    let tuning = Tuning { log_budget: 8 << 20, ..TUNING };
    let (media, db) =
        fresh(4, &Options::new().medium(terrane::Medium::Log).memtable_bytes(8 << 20).tuning(tuning))
            .unwrap();
    let t = db.subtable("t0").unwrap();
    for i in 0..5000u32 {
        t.put(&i.to_be_bytes(), &[7; 100]).unwrap();
        if i % 300 == 0 {
            // What comes later proves that this was durable.
            db.sync().unwrap();
        }
    }
    let image = media.image();
    let all = names(&media, "log-");
    let (mut needed, mut exact) = (0, 0);
    for name in &all {
        let media = image.crash(CrashKind::PowerLost, 1);
        media.remove_file(&dir().join(name)).unwrap();
        let Err(e) = open(&media, &tiny_logged()).map(drop) else { continue };
        says(&e, ErrorKind::Corruption, &[name, "log", "backup"]);
        exact += u32::from(e.file() == Some(&*dir().join(name)));
        needed += 1;
    }
    // Of the newest one no file says that it was there.
    assert!(needed >= 4 && exact + 1 >= needed, "{needed} of {all:?} were needed, {exact} named exactly");
}

/// Changes the superblock's bytes and seals them again.
fn edit_superblock(media: &SimMedia, edit: impl Fn(&mut terrane_format::superblock::Superblock)) {
    let path = dir().join("SUPER");
    let file = media.open(&path, OpenMode::READ).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    let mut s = terrane_format::superblock::Superblock::decode(&bytes).unwrap();
    edit(&mut s);
    media.remove_file(&path).unwrap();
    let new = OpenMode { write: true, create_new: true, direct: false };
    media.open(&path, new).unwrap().write_at(&s.encode(), 0).unwrap();
}

#[test]
fn features_of_a_newer_version_are_refused() {
    let media = closed();
    let saved = media.image();
    let untouched = |media: &Arc<SimMedia>, options: &Options, words: &[&str]| {
        let before = (names(media, ""), media.used_bytes());
        let e = refused(media, options);
        says(&e, ErrorKind::NewerFormat, words);
        assert_eq!(e.file(), Some(&*dir().join("SUPER")));
        assert_eq!((names(media, ""), media.used_bytes()), before, "refused, but something was changed");
    };
    let newer = "the version that wrote it";
    edit_superblock(&media, |s| s.features.incompatible |= 1 << 40);
    untouched(&media, &tiny(), &["SUPER", "0x10000000000", "does not know", newer]);
    untouched(&media, &tiny().create_if_missing(false), &["SUPER", newer]);
    let media = saved.crash(CrashKind::Process, 1);
    // There is no opening for reading only, so this is refused too, and says so.
    edit_superblock(&media, |s| s.features.read_only |= 1 << 40);
    untouched(&media, &tiny(), &["SUPER", "0x10000000000", "read it only", "opens for writing only", newer]);
    let media = saved.crash(CrashKind::Process, 1);
    edit_superblock(&media, |s| s.features.compatible |= 1 << 40);
    open(&media, &tiny()).unwrap().close().unwrap();
    // And it is still there for the version that knows it.
    edit_superblock(&media, |s| assert_eq!(s.features.compatible, 1 << 40));
}

#[test]
fn a_newer_version_number_is_refused() {
    let media = closed();
    let path = dir().join("SUPER");
    let file = media.open(&path, OpenMode::READ).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    let end = bytes.len() - 4;
    // A newer version may lay out anything behind its number in another way.
    for (version, rest) in [(2u32, false), (u32::MAX, true)] {
        bytes[12..16].copy_from_slice(&version.to_le_bytes());
        if rest {
            bytes[16..end].fill(0xa5);
        }
        let crc = terrane_format::checksum::crc(&bytes[..end]);
        bytes[end..].copy_from_slice(&crc.to_le_bytes());
        media.remove_file(&path).unwrap();
        let new = OpenMode { write: true, create_new: true, direct: false };
        media.open(&path, new).unwrap().write_at(&bytes, 0).unwrap();
        let e = refused(&media, &tiny());
        says(&e, ErrorKind::NewerFormat, &["SUPER", &format!("version {version}"), "version 1", "later one"]);
    }
    // Without the checksum it is damage, not a newer format.
    media.flip_bit(&path, 12 * 8).unwrap();
    says(&refused(&media, &tiny()), ErrorKind::Corruption, &["SUPER", "checksum"]);
}

#[test]
fn limits_are_named_and_nothing_is_changed() {
    let (_media, db) = fresh(1, &tiny()).unwrap();
    let t = db.subtable("t0").unwrap();
    let long = vec![b'k'; (64 << 10) + 1];
    let limit =
        |r: terrane::Result<()>, words: &[&str]| says(&r.unwrap_err(), ErrorKind::LimitExceeded, words);
    limit(t.put(&long, b""), &["key", "65537", "65536"]);
    limit(t.delete(&long), &["key", "65536"]);
    limit(t.delete_range(b"a", &long), &["key", "65536"]);
    let mut batch = WriteBatch::new();
    for i in 0..200 {
        batch.put(&t, format!("{i}").as_bytes(), &[1; 1000]).unwrap();
    }
    let most = db.max_batch_bytes().to_string();
    limit(db.write(batch, Durability::Buffered).map(|_| ()), &["batch", &most, "split"]);
    says(
        &db.create_subtable(&"n".repeat(256), tiny_table()).map(|_| ()).unwrap_err(),
        ErrorKind::InvalidArgument,
        &["name", "255", "256"],
    );
    says(
        &db.create_subtable("", tiny_table()).map(|_| ()).unwrap_err(),
        ErrorKind::InvalidArgument,
        &["name"],
    );
    db.create_subtable(&"n".repeat(255), tiny_table()).unwrap();
    assert_eq!(t.range(ReadOptions::new()).unwrap().count(), 0);
    // Reading such a key is a question with an answer.
    assert_eq!(t.get(&long).unwrap(), None);
    // The longest legal key, and one that is written out.
    t.put(&long[1..], b"v").unwrap_err();
    let roomy = Options::new().memtable_bytes(8 << 20).cache_bytes(1 << 20);
    let roomy = on_medium(roomy, PmemOptions::new(16 << 20));
    let (_media, db) = fresh(2, &roomy).unwrap();
    let t = db.subtable("t0").unwrap();
    t.put(&long[1..], b"v").unwrap();
    t.flush().unwrap();
    assert_eq!(t.get(&long[1..]).unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn a_value_beyond_the_limit_is_refused_by_its_length() {
    let (_media, db) = fresh(1, &tiny()).unwrap();
    let t = db.subtable("t0").unwrap();
    // Zeroed memory that nobody touches costs nothing.
    let huge = vec![0u8; (1 << 30) + 1];
    says(&t.put(b"k", &huge).unwrap_err(), ErrorKind::LimitExceeded, &["value", "1073741824"]);
    assert_eq!(t.get(b"k").unwrap(), None);
}

#[test]
fn absurd_options_are_named() {
    let media = SimMedia::new(1);
    let bad = |o: Options, word: &str| says(&refused(&media, &o), ErrorKind::InvalidArgument, &[word]);
    bad(Options::new().memtable_bytes(0), "memtable_bytes");
    bad(Options::new().memtable_bytes(usize::MAX), "memtable_bytes");
    bad(Options::new().cache_bytes(0), "cache_bytes");
    bad(Options::new().cache_bytes(usize::MAX), "cache_bytes");
    bad(Options::new().memtable_bytes(usize::MAX).create_if_missing(false), "memtable_bytes");
    bad(Options::new().background_threads(100_000), "background_threads");
    assert!(!media.exists(dir()).unwrap(), "refused, but something was created");
    says(&refused(&media, &tiny().create_if_missing(false)), ErrorKind::NotFound, &["no database"]);
    let (media, db) = fresh(1, &tiny()).unwrap();
    let sub = |o: SubtableOptions, word: &str| {
        let e = db.create_subtable("x", o.clone()).map(|_| ()).unwrap_err();
        says(&e, ErrorKind::InvalidArgument, &[word]);
        let e = db.subtable("t0").unwrap().set_options(o).unwrap_err();
        says(&e, ErrorKind::InvalidArgument, &[word]);
    };
    sub(tiny_table().block_bytes(0), "block_bytes");
    sub(tiny_table().block_bytes(usize::MAX), "block_bytes");
    sub(tiny_table().filter_bits(33), "filter_bits");
    sub(tiny_table().value_threshold(0), "value_threshold");
    sub(tiny_table().value_threshold(usize::MAX), "value_threshold");
    sub(tiny_table().compression(terrane::Compression::Zstd(100)), "zstd");
    sub(tiny_table().compression(terrane::Compression::Zstd(i32::MIN)), "zstd");
    db.close().unwrap();
    says(&refused(&media, &tiny().error_if_exists(true)), ErrorKind::AlreadyExists, &[DIR]);
}

#[test]
fn a_dropped_subtables_handle_says_so_in_every_call() {
    let (_media, db) = fresh(1, &tiny()).unwrap();
    let t = db.subtable("t0").unwrap();
    t.put(b"k", b"v").unwrap();
    let mut begun = WriteBatch::new();
    begun.put(&t, b"x", b"y").unwrap();
    let mut cursor = t.cursor(ReadOptions::new()).unwrap();
    cursor.seek(b"").unwrap();
    db.drop_subtable("t0").unwrap();
    db.create_subtable("t0", tiny_table()).unwrap();
    let gone = |r: terrane::Result<()>| says(&r.unwrap_err(), ErrorKind::SubtableDropped, &["t0"]);
    gone(t.get(b"k").map(|_| ()));
    gone(t.multi_get(&[b"k"]).map(|_| ()));
    gone(t.put(b"k", b"v"));
    gone(t.delete(b"k"));
    gone(t.delete_range(b"a", b"z"));
    gone(t.cursor(ReadOptions::new()).map(|_| ()));
    gone(t.range(ReadOptions::new()).map(|_| ()));
    gone(t.lookup(b"k").map(|_| ()));
    gone(t.flush());
    gone(t.compact());
    gone(t.set_options(tiny_table()));
    gone(db.write(begun, Durability::Sync).map(|_| ()));
    // What was open goes on to its end.
    assert_eq!((cursor.valid(), cursor.key()), (true, &b"k"[..]));
    cursor.next().unwrap();
    assert!(!cursor.valid());
    says(&db.drop_subtable("nobody").unwrap_err(), ErrorKind::NotFound, &["nobody"]);
    says(&db.subtable("nobody").map(|_| ()).unwrap_err(), ErrorKind::NotFound, &["nobody"]);
    says(&db.create_subtable("t0", tiny_table()).map(|_| ()).unwrap_err(), ErrorKind::AlreadyExists, &["t0"]);
}

#[test]
fn what_belongs_to_another_database_is_refused() {
    let (_m1, one) = fresh(1, &tiny()).unwrap();
    let (_m2, two) = fresh(2, &tiny()).unwrap();
    let (t1, t2) = (one.subtable("t0").unwrap(), two.subtable("t0").unwrap());
    let snapshot = two.snapshot();
    let foreign = |r: terrane::Result<()>| says(&r.unwrap_err(), ErrorKind::InvalidArgument, &["database"]);
    foreign(t1.get_at(b"k", &snapshot).map(|_| ()));
    foreign(t1.range(ReadOptions::new().snapshot(&snapshot)).map(|_| ()));
    foreign(t1.cursor(ReadOptions::new().snapshot(&snapshot)).map(|_| ()));
    let mut batch = WriteBatch::new();
    batch.put(&t2, b"k", b"v").unwrap();
    foreign(batch.put(&t1, b"k", b"v"));
    foreign(one.write(batch, Durability::Sync).map(|_| ()));
    assert_eq!(t2.get(b"k").unwrap(), None);
}

#[test]
fn a_closed_database_takes_no_writes() {
    let (_media, db) = fresh(1, &tiny()).unwrap();
    let (t, other) = (db.subtable("t0").unwrap(), db.clone());
    t.put(b"k", b"v").unwrap();
    db.close().unwrap();
    says(&t.put(b"k", b"w").unwrap_err(), ErrorKind::Closed, &["closed"]);
    says(&other.create_subtable("x", tiny_table()).map(|_| ()).unwrap_err(), ErrorKind::Closed, &["closed"]);
    assert_eq!(t.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn what_is_no_database_is_not_destroyed() {
    let media = SimMedia::new(1);
    media.create_dir_all(dir()).unwrap();
    media.open(&dir().join("notes"), OpenMode { write: true, create_new: true, direct: false }).unwrap();
    says(&refused(&media, &tiny().create_if_missing(false)), ErrorKind::NotFound, &[DIR]);
    let real = tempfile::tempdir().unwrap();
    says(&Db::destroy(real.path()).unwrap_err(), ErrorKind::NotFound, &["no database"]);
    let inside = real.path().join("db");
    Db::open(&inside, Options::new().memtable_bytes(1 << 20)).unwrap().close().unwrap();
    Db::destroy(&inside).unwrap();
    says(&Db::destroy(&inside).unwrap_err(), ErrorKind::NotFound, &["no database"]);
}
