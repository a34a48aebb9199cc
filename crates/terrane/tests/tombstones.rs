//! Deletions do not pile up in front of what is sought: stretches of mostly deletions are merged away before all else.
//!
//! `TERRANE_DELETES` sets how many keys are deleted; the times are printed, not judged (`--nocapture`).

mod support;

use std::time::Instant;

use support::{on_medium, stand_in};
use terrane::{Db, Durability, Options, ReadOptions, SubtableOptions, WriteBatch};

#[test]
#[allow(clippy::disallowed_methods, reason = "the time of a seek is printed")]
fn a_seek_over_many_deletions_is_served_by_what_is_left() {
    let n: u64 = std::env::var("TERRANE_DELETES").ok().and_then(|v| v.parse().ok()).unwrap_or(200_000);
    let dir = tempfile::tempdir().unwrap();
    let options = on_medium(Options::new().memtable_bytes(16 << 20), stand_in(16 << 20));
    let db = Db::open(dir.path(), options).unwrap();
    let t = db.create_subtable("queue", SubtableOptions::new()).unwrap();
    let key = |i: u64| i.to_be_bytes();
    let write = |delete: bool| {
        for first in (0..n).step_by(1000) {
            let mut b = WriteBatch::new();
            for i in first..(first + 1000).min(n) {
                if delete { b.delete(&t, &key(i)).unwrap() } else { b.put(&t, &key(i), b"job").unwrap() }
            }
            db.write(b, Durability::Buffered).unwrap();
        }
    };
    write(false);
    t.put(&key(n), b"the one that is left").unwrap();
    t.flush().unwrap();
    db.wait_idle().unwrap();
    let seek = |what: &str| {
        let mut c = t.cursor(ReadOptions::new()).unwrap();
        let began = Instant::now();
        c.seek(&key(0)).unwrap();
        println!("seek {what}: {:?}", began.elapsed());
        assert_eq!(c.value().unwrap().as_ref(), b"the one that is left");
    };
    write(true);
    seek("right after the deletions");
    // That seek has stepped over deletions, which asks for their removal.
    db.wait_idle().unwrap();
    seek("once the background has caught up");
    let stats = db.stats();
    let q = stats.subtables.iter().find(|s| s.name == "queue").unwrap();
    let left = q.memtable_records + q.levels.iter().map(|l| l.deletes).sum::<u64>();
    assert!(left < n / 50 + 1024, "{left} of {n} deletions are still in the way: {q:?}");
    db.close().unwrap();
}
