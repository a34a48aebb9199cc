//! What readers have in the cache stays there when merges rewrite it.

use terrane::{Db, Options, Result, Subtable, SubtableOptions};

const KEYS: u32 = 20_000;

fn key(i: u32) -> [u8; 4] {
    i.to_be_bytes()
}

fn write_all(t: &Subtable, version: u8) -> Result<()> {
    (0..KEYS).try_for_each(|i| t.put(&key(i), &[version; 100]))
}

fn read_all(t: &Subtable, version: u8) -> Result<()> {
    for i in 0..KEYS {
        let seen = t.get_with(&key(i), |v| v == [version; 100])?;
        assert_eq!(seen, Some(true), "key {i}");
    }
    Ok(())
}

/// Blocks that had to be fetched while `work` was done.
fn misses(db: &Db, work: impl FnOnce() -> Result<()>) -> Result<u64> {
    let before = db.stats().cache_misses;
    work()?;
    Ok(db.stats().cache_misses - before)
}

fn open(cache_bytes: usize) -> Result<(tempfile::TempDir, Db, Subtable)> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let db = Db::open(dir.path(), Options::new().cache_bytes(cache_bytes))?;
    let t = db.create_subtable("t", SubtableOptions::new())?;
    Ok((dir, db, t))
}

#[test]
fn what_was_read_and_is_merged_is_read_without_the_device() -> Result<()> {
    let (_dir, db, t) = open(64 << 20)?;
    for version in 0..4 {
        write_all(&t, version)?;
        t.flush()?;
        read_all(&t, version)?;
        t.compact()?;
        db.wait_idle()?;
        assert_eq!(misses(&db, || read_all(&t, version))?, 0, "after merge {version}");
    }
    Ok(())
}

#[test]
fn what_nobody_reads_stays_outside_when_there_is_no_room() -> Result<()> {
    // A cache for an eighth of the data.
    let (_dir, db, t) = open(300 << 10)?;
    for version in 0..4 {
        write_all(&t, version)?;
        t.flush()?;
        t.compact()?;
    }
    db.wait_idle()?;
    let stats = db.stats();
    assert!(stats.cache_bytes <= stats.cache_capacity * 105 / 100, "{} bytes", stats.cache_bytes);
    assert!(misses(&db, || read_all(&t, 3))? > 0);
    read_all(&t, 3)
}
