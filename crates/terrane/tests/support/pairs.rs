//! Two subtables, `a` and `b`, that get the same records in the same commits: 0, 1, and so on. What a crash leaves is a prefix of them, and of
//! both the same.

use std::ops::Range;
use std::path::{Path, PathBuf};

use terrane::media::OpenMode;
use terrane::{Db, Durability, Options, ReadOptions, Subtable, WriteBatch};

use super::{DIR, TUNING};

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
