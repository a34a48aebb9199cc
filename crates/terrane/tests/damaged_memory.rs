//! Records of persistent memory that are damaged while a database is open: what becomes of them, and of those beside them.

#![allow(clippy::disallowed_methods, reason = "a test damages files behind the engine's back")]

mod support;

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use support::*;
use terrane::{Db, ErrorKind, IndexKind, Medium, Options, PmemMode, PmemOptions};

/// A database with a subtable, and the file of its memory, in a directory that goes with the first.
fn in_a_file(kind: IndexKind) -> (tempfile::TempDir, std::path::PathBuf, Db, terrane::Subtable) {
    in_a_file_of(PmemMode::StandIn, kind)
}

fn in_a_file_of(
    mode: PmemMode,
    kind: IndexKind,
) -> (tempfile::TempDir, std::path::PathBuf, Db, terrane::Subtable) {
    let dir = tempfile::tempdir().unwrap();
    let memory = PmemOptions::new(4 << 20).mode(mode);
    let options = Options::new().cache_bytes(256 << 10).tuning(TUNING).medium(Medium::Pmem(memory));
    let db = Db::open(dir.path(), options).unwrap();
    let t = db.create_subtable("t", tiny_table().index(kind)).unwrap();
    let file = dir.path().join("pmem");
    (dir, file, db, t)
}

/// What a memory's file had when it was looked at, to be damaged and mended.
struct Content {
    file: File,
    bytes: Vec<u8>,
}

impl Content {
    fn of(path: &Path) -> Self {
        let file = File::options().write(true).open(path).unwrap();
        Content { file, bytes: std::fs::read(path).unwrap() }
    }

    /// Where these bytes are.
    fn find(&self, what: &[u8]) -> usize {
        self.bytes.windows(what.len()).position(|w| w == what).unwrap()
    }

    fn damage(&self, at: usize, bits: u8) {
        self.file.write_all_at(&[self.bytes[at] ^ bits], at as u64).unwrap();
    }

    fn overwrite(&self, at: usize, with: &[u8]) {
        self.file.write_all_at(with, at as u64).unwrap();
    }

    fn mend(&self, at: usize) {
        self.file.write_all_at(&self.bytes[at..=at], at as u64).unwrap();
    }
}

/// A bit of a value that turns round while the database is open.
#[test]
fn a_value_that_is_damaged_in_memory_is_reported_and_never_given() {
    for (bit, mode) in [0, 399, 799]
        .into_iter()
        .flat_map(|bit| [PmemMode::StandIn, PmemMode::PageCache].map(|mode| (bit, mode)))
    {
        let (_dir, file, db, t) = in_a_file_of(mode, IndexKind::Art);
        for n in 0..20u8 {
            t.put(&[n], &[n ^ 0xa5; 100]).unwrap();
        }
        let content = Content::of(&file);
        let at = content.find(&[7 ^ 0xa5; 100]);
        let damaged = at + bit / 8;
        content.damage(damaged, 1 << (bit % 8));
        let errors = [
            t.get(&[7]).map(drop).unwrap_err(),
            t.multi_get(&[[6], [7], [8]]).map(drop).unwrap_err(),
            t.range(terrane::ReadOptions::new()).unwrap().find_map(Result::err).unwrap(),
            t.flush().unwrap_err(),
        ];
        for e in errors {
            assert_eq!((e.kind(), e.file()), (ErrorKind::Corruption, Some(&*file)), "{e}");
            assert!(e.offset().is_some_and(|found| (1..16).contains(&(at as u64 - found))), "{e}");
        }
        assert_eq!(t.get(&[8]).unwrap(), Some(vec![8 ^ 0xa5; 100]));
        let report = db.check(|_| true).unwrap();
        assert_eq!((report.memory_records, report.damage.len()), (7, 2), "{report:?}");
        assert!(report.damage.iter().all(|e| e.file() == Some(&*file)), "{report:?}");
        content.mend(damaged);
        assert_eq!(t.get(&[7]).unwrap(), Some(vec![7 ^ 0xa5; 100]), "nothing else became of it");
        assert!(db.check(|_| true).unwrap().is_clean());
    }
}

/// The newest version, or the older one of two that a snapshot sees: there are older ones elsewhere, which nobody takes for it.
#[test]
fn a_version_whose_key_is_damaged_is_reported_and_no_older_one_given() {
    for kind in [IndexKind::Art, IndexKind::Skiplist] {
        let (_dir, file, db, t) = in_a_file(kind);
        t.put(b"a key", b"stale").unwrap();
        t.flush().unwrap();
        for other in ["a", "a ke", "a key of another", "b"] {
            t.put(other.as_bytes(), b"beside").unwrap();
        }
        t.put(b"a key", b"seen").unwrap();
        let snapshot = db.snapshot();
        let content = Content::of(&file);
        let at = content.find(b"a keyseen");
        let damaged = |reads: &dyn Fn()| {
            for byte in at - 1..at + 5 {
                content.damage(byte, 1);
                reads();
                content.mend(byte);
            }
        };
        let is_damage =
            |read: terrane::Result<()>| assert_eq!(read.unwrap_err().kind(), ErrorKind::Corruption);
        damaged(&|| {
            is_damage(t.get(b"a key").map(drop));
            is_damage(t.multi_get(&[&b"a"[..], b"a key"]).map(drop));
        });
        t.put(b"a key", b"newest").unwrap();
        damaged(&|| {
            assert_eq!(t.get(b"a key").unwrap().as_deref(), Some(&b"newest"[..]));
            is_damage(t.get_at(b"a key", &snapshot).map(drop));
        });
        assert_eq!(t.get_at(b"a key", &snapshot).unwrap().as_deref(), Some(&b"seen"[..]));
        assert!(db.check(|_| true).unwrap().is_clean());
    }
}

/// Any bit of what stands in front of a key, which says how long it and its value are: they may be said to end far behind the memory.
#[test]
fn lengths_that_are_damaged_lead_to_nothing_wrong() {
    const FRONT: usize = 11 + 8;
    for kind in [IndexKind::Art, IndexKind::Skiplist] {
        let (_dir, file, db, t) = in_a_file(kind);
        let keys = [1, 2, 63, 127, 191, 254, 255, 300].map(|len| {
            let mut key = vec![b'k'; len];
            key[len - 1] = len as u8;
            key
        });
        for key in &keys {
            t.put(key, &[key.len() as u8; 40]).unwrap();
        }
        let is_right =
            |key: &[u8], value: &[u8]| keys.iter().any(|k| k == key) && value == [key.len() as u8; 40];
        let content = Content::of(&file);
        let (mut reported, mut missed) = (0, 0);
        for key in &keys {
            let at = content.find(&[&key[..], &[key.len() as u8; 40]].concat());
            for bit in 0..FRONT * 8 {
                let damaged = at - FRONT + bit / 8;
                content.damage(damaged, 1 << (bit % 8));
                for key in &keys {
                    match t.get(key) {
                        Ok(Some(value)) => assert!(is_right(key, &value), "bit {bit}"),
                        Ok(None) => missed += 1,
                        Err(e) => {
                            assert_eq!(e.kind(), ErrorKind::Corruption, "bit {bit}: {e}");
                            reported += 1;
                        }
                    }
                    // Up to the first that is damaged.
                    let from = terrane::ReadOptions::new().lower(key.clone());
                    let mut last = Vec::new();
                    let rows: Vec<_> = t.range(from).unwrap().collect();
                    let all = keys.iter().filter(|k| *k >= key).count();
                    // (In a skiplist what is damaged may hide others.)
                    let is_whole = rows.iter().any(Result::is_err) || rows.len() == all;
                    assert!(is_whole || kind == IndexKind::Skiplist, "bit {bit}: {} of {all}", rows.len());
                    for row in rows.into_iter().map_while(Result::ok) {
                        assert!(is_right(&row.0, &row.1) && row.0 > last && row.0 >= *key, "bit {bit}");
                        last = row.0;
                    }
                }
                content.mend(damaged);
            }
        }
        assert!(reported > 100, "{reported} reported, {missed} not found");
        keys.iter().for_each(|key| assert!(is_right(key, &t.get(key).unwrap().unwrap())));
        assert!(db.check(|_| true).unwrap().is_clean());
    }
}

/// Keys whose beginnings are longer than what a node has of them, so that it takes them from a record below it.
fn alike(n: u8) -> Vec<u8> {
    [&b"all of them begin with this "[..], &[n / 8], b" and some go on with this ", &[n % 8]].concat()
}

/// A bit of a key, where it leads those astray who look for where a range begins, or of what is in front of it.
#[test]
fn a_memtable_with_damage_is_not_written_out_as_if_it_were_whole() {
    let len = alike(0).len();
    for kind in [IndexKind::Art, IndexKind::Skiplist] {
        for (n, byte) in
            [0, 9, 31, 32, 63].into_iter().flat_map(|n| (0..len + 3).step_by(5).map(move |b| (n, b)))
        {
            let (_dir, file, db, t) = in_a_file(kind);
            // So much that a memtable is written out in several ranges.
            (0..64).for_each(|n| t.put(&alike(n), &[n; 2000]).unwrap());
            let content = Content::of(&file);
            let at = content.find(&[&alike(n)[..], &[n; 2000]].concat()) - 3 + byte;
            content.damage(at, 1 << (byte % 8));
            let e = t.flush().unwrap_err();
            assert_eq!(
                (e.kind(), e.file()),
                (ErrorKind::Corruption, Some(&*file)),
                "{kind:?} {n} {byte}: {e}"
            );
            assert_eq!(db.stats().flushes, 0);
            content.mend(at);
            t.flush().unwrap();
            (0..64).for_each(|n| assert_eq!(t.get(&alike(n)).unwrap(), Some(vec![n; 2000])));
        }
    }
}

/// Any bit of a key by which a tree finds its way to others, which have older versions elsewhere: whoever reads is given what is right, or an error.
#[test]
fn a_damaged_key_does_not_hide_others_of_a_tree() {
    let (mut reported, mut right) = (0, 0);
    for (n, byte) in [9, 12, 16, 57].into_iter().flat_map(|n| (0..alike(0).len()).map(move |byte| (n, byte)))
    {
        let bit = byte * 8 + (n as usize + byte) % 8;
        let (_dir, file, _db, t) = in_a_file(IndexKind::Art);
        let all: Vec<_> = (8..64).map(alike).collect();
        all.iter().for_each(|key| t.put(key, b"stale").unwrap());
        t.flush().unwrap();
        (8..64).for_each(|n| t.put(&alike(n), &[n; 20]).unwrap());
        let expected: Vec<_> = (8..64).map(|n| (alike(n), vec![n; 20])).collect();
        let content = Content::of(&file);
        content.damage(content.find(&[&alike(n)[..], &[n; 20]].concat()) + bit / 8, 1 << (bit % 8));
        // All from each key on, and up to it.
        for (at, key) in all.iter().enumerate() {
            let from = terrane::ReadOptions::new().lower(key.clone());
            let to = terrane::ReadOptions::new().upper(key.clone());
            let back = expected[..at].iter().rev().cloned().collect::<Vec<_>>();
            for (rows, expected) in [
                (t.range(from).unwrap().collect::<Vec<_>>(), &expected[at..]),
                (t.range(to).unwrap().rev().collect(), &back[..]),
            ] {
                let whole = rows.last().is_none_or(Result::is_ok);
                let rows: Vec<_> = rows.into_iter().map_while(Result::ok).collect();
                assert_eq!(rows, expected[..rows.len()], "{n} {bit} {at}");
                assert!(rows.len() == expected.len() || !whole, "{n} {bit} {at}: {}", rows.len());
                if whole { right += 1 } else { reported += 1 }
            }
        }
        // And what is put beside it: what the damage made of it and of others, ...
        let key = alike(n);
        let made = [n, n ^ 1, n + 8].map(|n| {
            let mut key = alike(n);
            key[byte] ^= 1 << (bit % 8);
            key
        });
        // ... and what begins as it does.
        let mut beside: Vec<Vec<u8>> = (0..key.len()).map(|len| key[..len].to_vec()).collect();
        beside.extend([0, n, u8::MAX].map(|byte| [&key[..], &[byte]].concat()));
        beside.extend((64..80).map(alike));
        let mut expected: BTreeMap<_, _> = expected.into_iter().collect();
        for beside in made.into_iter().map(|key| vec![key]).chain([beside]) {
            for key in beside {
                t.put(&key, b"beside").unwrap();
                expected.insert(key, b"beside".to_vec());
            }
            for (key, value) in &expected {
                match t.get(key) {
                    Ok(found) => assert_eq!(found.as_ref(), Some(value), "{n} {bit} {key:?}"),
                    Err(e) => assert_eq!(e.kind(), ErrorKind::Corruption, "{n} {bit}: {e}"),
                }
            }
        }
        assert_eq!(t.flush().unwrap_err().kind(), ErrorKind::Corruption);
    }
    assert!(reported > 1000 && right > 1000, "{reported} reported, {right} right");
}

/// Keys that come to a damaged one are found, and it is reported sooner or later.
#[test]
fn what_is_put_beside_a_damaged_key_is_found() {
    for kind in [IndexKind::Art, IndexKind::Skiplist] {
        for (n, bit) in [8, 9, 12, 63].into_iter().flat_map(|n| (0..8).map(move |bit| (n, bit))) {
            let (_dir, file, db, t) = in_a_file(kind);
            (8..64).for_each(|n| t.put(&alike(n), &[n; 20]).unwrap());
            let key = alike(n);
            let content = Content::of(&file);
            // How long it is.
            content.damage(content.find(&[&key[..], &[n; 20]].concat()) - 1, 1 << bit);
            let mut beside: Vec<Vec<u8>> = (0..key.len()).map(|len| key[..len].to_vec()).collect();
            beside.extend([0, n, u8::MAX].map(|byte| [&key[..], &[byte]].concat()));
            beside.push(key);
            beside.iter().for_each(|key| t.put(key, b"beside").unwrap());
            for key in &beside {
                assert_eq!(
                    t.get(key).unwrap().as_deref(),
                    Some(&b"beside"[..]),
                    "{kind:?} {n} {bit} {key:?}"
                );
            }
            let e = t.flush().unwrap_err();
            assert_eq!(
                (e.kind(), e.file()),
                (ErrorKind::Corruption, Some(&*file)),
                "{kind:?} {n} {bit}: {e}"
            );
            drop((t, db));
        }
    }
}

/// A sequence that looks as large as that of the next put of its key, or larger, for as long as that takes.
#[test]
fn a_sequence_that_is_damaged_for_a_while_hides_no_later_put() {
    for (kind, far) in [IndexKind::Art, IndexKind::Skiplist].into_iter().flat_map(|k| [(k, 0), (k, 1 << 30)])
    {
        let (_dir, file, _db, t) = in_a_file(kind);
        t.put(b"key a", b"old").unwrap();
        t.put(b"key k", b"old").unwrap();
        let content = Content::of(&file);
        // Seven bytes in front of two lengths.
        let place = |what: &[u8]| content.find(what) - 10;
        let seq =
            |at: usize| u64::from_le_bytes([&content.bytes[at..at + 7], &[0]].concat().try_into().unwrap());
        let at = place(b"key kold");
        let next = seq(at) + (seq(at) - seq(place(b"key aold")));
        content.overwrite(at, &(next + far).to_le_bytes()[..7]);
        t.put(b"key k", b"new").unwrap();
        let now = Content::of(&file);
        let newer = now.find(b"key knew") - 10;
        assert_eq!(now.bytes[newer..newer + 7], next.to_le_bytes()[..7], "which was foreseen");
        content.overwrite(at, &content.bytes[at..at + 7]);
        // Nobody may be told of the old one any more.
        let is_right = || match t.get(b"key k") {
            Ok(value) => value.as_deref() == Some(b"new"),
            Err(e) => e.kind() == ErrorKind::Corruption,
        };
        assert!(is_right(), "{kind:?} {far}");
        match t.flush() {
            Ok(()) => assert_eq!(t.get(b"key k").unwrap().as_deref(), Some(&b"new"[..]), "{kind:?} {far}"),
            Err(e) => assert_eq!(e.kind(), ErrorKind::Corruption),
        }
        assert!(is_right(), "{kind:?} {far}, after flushing");
    }
}

/// ... and one beside which nothing is put meanwhile misleads nobody: it is reported, and that is all.
#[test]
fn a_sequence_that_is_damaged_for_a_while_stands_in_nobodys_way_later() {
    let (_dir, file, _db, t) = in_a_file(IndexKind::Art);
    for (key, value) in [(b"key a", b"old"), (b"key k", b"old"), (b"key k", b"new")] {
        t.put(key, value).unwrap();
    }
    let content = Content::of(&file);
    for value in [&b"key kold"[..], b"key knew"] {
        let at = content.find(value) - 10;
        content.overwrite(at + 5, &[1]);
        let scanned = t.range(terrane::ReadOptions::new()).unwrap().find_map(Result::err);
        let e = t.get(b"key k").err().or(scanned).or(t.flush().err()).unwrap();
        assert_eq!(e.kind(), ErrorKind::Corruption, "{e}");
        content.overwrite(at, &content.bytes[at..at + 7]);
        assert_eq!(t.get(b"key k").unwrap().as_deref(), Some(&b"new"[..]));
        assert_eq!(t.get(b"key l").unwrap(), None);
        assert_eq!(t.range(terrane::ReadOptions::new()).unwrap().map(Result::unwrap).count(), 2);
    }
    t.flush().unwrap();
    assert_eq!(t.get(b"key k").unwrap().as_deref(), Some(&b"new"[..]));
}

/// Any bit of a record that has an older one behind it and others beside it.
#[test]
fn a_check_finds_every_flipped_bit_and_comes_to_its_end() {
    for kind in [IndexKind::Art, IndexKind::Skiplist] {
        let (_dir, file, db, t) = in_a_file(kind);
        for n in 0..20u8 {
            t.put(&[n], &[n; 30]).unwrap();
        }
        for _ in 0..3 {
            t.put(&[7], &[0xa5; 30]).unwrap();
        }
        t.put(&[7], &[0x5a; 30]).unwrap();
        assert_eq!(db.check(|_| true).unwrap().memory_records, 24);
        let content = Content::of(&file);
        for value in [[0xa5; 30], [0x5a; 30]] {
            let at = content.find(&value);
            for bit in 0..(12 + 34) * 8 {
                let damaged = at - 12 + bit / 8;
                content.damage(damaged, 1 << (bit % 8));
                let report = db.check(|_| true).unwrap();
                assert!((1..=2).contains(&report.damage.len()), "{kind:?}, bit {bit}: {report:?}");
                content.mend(damaged);
            }
        }
        assert!(db.check(|_| true).unwrap().is_clean());
    }
}
