//! A cursor on its way forwards reads several blocks at a time, and what it reads in vain harms nobody.

mod support;

use support::{on_medium, stand_in};
use terrane::{
    Compression, Db, ErrorKind, Options, PmemOptions, ReadOptions, Result, Subtable, SubtableOptions,
};

const KEYS: u32 = 20_000;

fn key(i: u32) -> [u8; 4] {
    i.to_be_bytes()
}

fn memory() -> PmemOptions {
    stand_in(16 << 20)
}

/// About 600 blocks, closed.
fn written() -> Result<tempfile::TempDir> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let db = Db::open(dir.path(), on_medium(Options::new(), memory()))?;
    let t =
        db.create_subtable("t", SubtableOptions::new().compression(Compression::None).block_bytes(4 << 10))?;
    (0..KEYS).try_for_each(|i| t.put(&key(i), &[i as u8; 100]))?;
    t.flush()?;
    db.close()?;
    Ok(dir)
}

fn open(dir: &tempfile::TempDir, cache_bytes: usize) -> Result<(Db, Subtable)> {
    let db = Db::open(dir.path(), on_medium(Options::new().cache_bytes(cache_bytes), memory()))?;
    let t = db.subtable("t")?;
    Ok((db, t))
}

/// Reads up to `n` records from `first` on; how many came, and what ended it.
fn scan(t: &Subtable, first: u32, n: u32) -> (u32, Result<()>) {
    let mut seen = 0;
    let done = (|| {
        let mut c = t.cursor(ReadOptions::new())?;
        c.seek(&key(first))?;
        while c.valid() && seen < n {
            assert_eq!(c.key(), key(first + seen));
            assert_eq!(c.value()?.as_ref(), [(first + seen) as u8; 100]);
            seen += 1;
            c.next()?;
        }
        Ok(())
    })();
    (seen, done)
}

#[test]
fn a_cold_scan_reads_stretches_and_a_short_one_little() -> Result<()> {
    let dir = written()?;
    let (db, t) = open(&dir, 16 << 20)?;
    let misses = |first, n| {
        let before = db.stats().cache_misses;
        let (seen, done) = scan(&t, first, n);
        done.map(|()| (seen, db.stats().cache_misses - before))
    };
    // An index, a block, and one read for the three or four that follow it.
    let (seen, reads) = misses(10_000, 130)?;
    assert_eq!(seen, 130);
    assert!(reads <= 3, "{reads} reads");
    let (seen, reads) = misses(0, KEYS)?;
    assert_eq!(seen, KEYS);
    assert!((20..100).contains(&reads), "{reads} reads");
    assert_eq!(misses(0, KEYS)?, (KEYS, 0), "all of it entered the cache");
    drop(t);
    db.close()
}

#[test]
#[allow(clippy::disallowed_methods, reason = "what is on the device is damaged behind the engine's back")]
fn damage_is_reported_where_it_is_and_not_before() -> Result<()> {
    let dir = written()?;
    let file = dir.path().join("data-000001");
    let mut bytes = std::fs::read(&file).unwrap();
    // In the middle of what is written: zeros end it.
    let end = bytes.iter().rposition(|b| *b != 0).unwrap();
    bytes[end / 2] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    // A cache this small has nothing read ahead.
    let mut seen = Vec::new();
    for cache_bytes in [300 << 10, 16 << 20] {
        let (_db, t) = open(&dir, cache_bytes)?;
        let (n, done) = scan(&t, 0, KEYS);
        assert_eq!(done.unwrap_err().kind(), ErrorKind::Corruption);
        seen.push(n);
    }
    assert_eq!(seen[0], seen[1]);
    assert!(seen[0] > KEYS / 4 && seen[0] < KEYS, "{seen:?}");
    Ok(())
}
