//! What readers have in the cache stays there when merges rewrite it.

mod support;

use support::{on_medium, stand_in};
use terrane::{Compression, Db, Medium, Options, Result, Subtable, SubtableOptions, Tuning};

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
    let options = on_medium(Options::new().cache_bytes(cache_bytes), stand_in(16 << 20));
    let db = Db::open(dir.path(), options)?;
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
fn what_nobody_reads_takes_no_room_from_what_is_read() -> Result<()> {
    // What is read has three quarters of the cache, what is written beside it three times as much.
    let (_dir, db, hot) = open(1 << 20)?;
    let read_hot = || (0..6000).try_for_each(|i| hot.get_with(&key(i), |_| ()).map(drop));
    (0..6000).try_for_each(|i| hot.put(&key(i), &[1; 100]))?;
    hot.compact()?;
    // A rest moves it further down.
    db.wait_idle()?;
    (0..2).try_for_each(|_| read_hot())?;
    let cold = db.create_subtable("cold", SubtableOptions::new())?;
    for version in 0..4 {
        write_all(&cold, version)?;
        cold.flush()?;
        cold.compact()?;
        db.wait_idle()?;
        // Nor below the cache.
        let before = db.stats();
        let missed = misses(&db, read_hot)? + db.stats().pmem_cache_hits - before.pmem_cache_hits;
        assert!(missed < 10, "{missed} of 40 blocks had to go for version {version}");
        assert!(before.cache_bytes <= before.cache_capacity * 105 / 100, "{} bytes", before.cache_bytes);
    }
    read_all(&cold, 3)
}

/// Small extents, levels of 14 MB of which most lie in the second, and a cache for a part of them.
fn open_small(cache_bytes: usize, extent_bytes: usize) -> Result<(tempfile::TempDir, Db, Subtable)> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let tuning = Tuning { extent_bytes, ..Tuning::default() };
    let options = Options::new().memtable_bytes(1 << 20).cache_bytes(cache_bytes).tuning(tuning);
    let db = Db::open(dir.path(), on_medium(options, stand_in(4 << 20)))?;
    let t = db.create_subtable("t", SubtableOptions::new().compression(Compression::None))?;
    (0..MANY).try_for_each(|i| t.put(&key(i), &[7; 100]))?;
    t.compact()?;
    // A merge behind the reads would count as theirs.
    db.wait_idle()?;
    Ok((dir, db, t))
}

const MANY: u32 = 120_000;

fn read(t: &Subtable, keys: impl Iterator<Item = u32>) -> Result<()> {
    for i in keys {
        assert!(t.get_with(&key(i), |_| ())?.is_some(), "key {i}");
    }
    Ok(())
}

/// Overwrites a few records of every block, and merges them down.
fn rewrite(db: &Db, t: &Subtable) -> Result<()> {
    (0..MANY).step_by(50).try_for_each(|i| t.put(&key(i), &[8; 100]))?;
    t.compact()?;
    db.wait_idle()
}

#[test]
fn indexes_and_filters_that_are_read_stay_though_their_blocks_do_not() -> Result<()> {
    let (_dir, db, t) = open_small(1 << 20, 256 << 10)?;
    // Keys of every extent, hardly ever of a block that is still there.
    let some = |salt: u32, many: u32| (0..many).map(move |i| (i * 77_773 + salt) % MANY);
    read(&t, some(1, 2000))?;
    read(&t, some(30, 2000))?;
    let before = misses(&db, || read(&t, some(17, 400)))?;
    rewrite(&db, &t)?;
    let after = misses(&db, || read(&t, some(41, 400)))?;
    // Each of 57 extents has an index and filters.
    assert!((300..420).contains(&before), "{before} misses: the cache holds the blocks, or not the indexes");
    assert!(after < 470, "{before} misses before the merge, {after} after it");
    Ok(())
}

#[test]
fn more_than_a_merge_may_take_room_for_stays_when_it_is_read() -> Result<()> {
    let (_dir, db, t) = open_small(4 << 20, 64 << 10)?;
    // Two thirds of the cache, side by side, where a merge may have an eighth leave.
    let hot = || 40_000..63_000;
    read(&t, hot())?;
    read(&t, hot())?;
    assert_eq!(misses(&db, || read(&t, hot()))?, 0);
    rewrite(&db, &t)?;
    let after = misses(&db, || read(&t, hot()))?;
    assert!(after < 40, "{after} misses of 160 blocks after the merge");
    Ok(())
}

/// As [`open_small`], with a memory in which hardly anything is for memtables.
fn open_with_room(cache_bytes: usize) -> Result<(tempfile::TempDir, Db, Subtable)> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let tuning = Tuning { extent_bytes: 64 << 10, ..Tuning::default() };
    let memory = stand_in(48 << 20).zone_bytes(256 << 10).memtable_bytes(12 << 20);
    let options = Options::new().medium(Medium::Pmem(memory)).cache_bytes(cache_bytes).tuning(tuning);
    let db = Db::open(dir.path(), options)?;
    let t = db.create_subtable("t", SubtableOptions::new().compression(Compression::None))?;
    (0..MANY).try_for_each(|i| t.put(&key(i), &[7; 100]))?;
    t.compact()?;
    // A merge behind the reads would count as theirs.
    db.wait_idle()?;
    Ok((dir, db, t))
}

/// Blocks of 14 MB of records, about.
const BLOCKS: u64 = 14 * 64;

#[test]
fn what_lies_in_persistent_memory_is_read_there_when_it_was_merged() -> Result<()> {
    let (_dir, db, t) = open_with_room(1 << 20)?;
    (0..2).try_for_each(|_| read(&t, 0..MANY))?;
    let before = misses(&db, || read(&t, 0..MANY))?;
    assert!(before < BLOCKS / 20, "{before} misses: it does not lie there");
    for round in 0..3 {
        rewrite(&db, &t)?;
        let after = misses(&db, || read(&t, 0..MANY))?;
        assert!(after < BLOCKS / 5, "{after} misses after merge {round}");
    }
    Ok(())
}

#[test]
fn what_leaves_a_memtable_is_read_in_persistent_memory_still() -> Result<()> {
    let (_dir, db, t) = open_with_room(1 << 20)?;
    // What has room beside it is neither in the cache nor in a memtable.
    let hot = || (40_000..80_000).step_by(2);
    hot().try_for_each(|i| t.put(&key(i), &[8; 100]))?;
    assert_eq!(misses(&db, || read(&t, hot()))?, 0);
    t.flush()?;
    let after = misses(&db, || read(&t, hot()))?;
    assert!(after < 30, "{after} misses behind the memtable, of 140 blocks");
    Ok(())
}
