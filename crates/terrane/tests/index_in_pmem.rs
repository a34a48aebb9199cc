//! Memtables whose indexes lie in persistent memory too, beside their records: what is theirs alone. The tests of everything else are run with
//! them as well (`TERRANE_TEST_MEDIUM=pmem-index`).

mod support;

use std::ops::Range;
use std::path::Path;

use support::*;
use terrane::media::sim::{CrashKind, SimMedia};
use terrane::media::{Media, OpenMode};
use terrane::{
    Db, Durability, ErrorKind, Medium, Options, PmemMode, PmemOptions, ReadOptions, Subtable, WriteBatch,
};

/// Of 128 zones.
fn memory() -> PmemOptions {
    PmemOptions::new(4 << 20).zone_bytes(32 << 10).index_in_pmem(true)
}

fn options() -> Options {
    tiny().medium(Medium::Pmem(memory()))
}

/// Spread, so that inner nodes are many.
fn key(n: u64) -> [u8; 8] {
    n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
}

fn put(db: &Db, t: &Subtable, numbers: Range<u64>) {
    let numbers: Vec<u64> = numbers.collect();
    for some in numbers.chunks(50) {
        let mut batch = WriteBatch::new();
        some.iter().for_each(|n| batch.put(t, &key(*n), &n.to_le_bytes()).unwrap());
        db.write(batch, Durability::Buffered).unwrap();
    }
}

fn check(t: &Subtable, records: u64) {
    for n in 0..records {
        assert_eq!(t.get(&key(n)).unwrap().as_deref(), Some(&n.to_le_bytes()[..]), "{n}");
    }
    assert_eq!(t.get(&key(records)).unwrap(), None);
    let keys: Vec<_> = t.range(ReadOptions::new()).unwrap().map(|r| r.unwrap().0).collect();
    assert_eq!(keys.len() as u64, records);
    assert!(keys.is_sorted());
}

#[test]
fn indexes_take_zones_and_are_built_again_after_any_crash() {
    let kinds = [
        CrashKind::Process,
        CrashKind::PowerLost,
        CrashKind::PowerKept,
        CrashKind::PowerTorn,
        CrashKind::PowerWords,
    ];
    for (seed, kind) in kinds.into_iter().enumerate() {
        let mut media = SimMedia::new(1);
        let mut records = 0;
        for round in 0..3 {
            let db = open(&media, &options()).unwrap();
            let t = db.subtable_or_create("t", tiny_table()).unwrap();
            check(&t, records);
            put(&db, &t, records..records + 4000);
            records += 4000;
            let stats = db.stats();
            assert!(stats.pmem_index_bytes > 0, "{kind:?} {round}");
            // Both are what memtables have.
            assert!(
                stats.pmem_used > stats.pmem_index_bytes
                    && stats.memtable_bytes as u64 >= stats.pmem_index_bytes
            );
            check(&t, records);
            let image = media.image();
            drop((t, db));
            media.shutdown();
            media = image.crash(kind, seed as u64);
        }
    }
}

#[test]
fn far_more_than_the_memory_goes_through_it() {
    let media = SimMedia::new(1);
    let db = open(&media, &options()).unwrap();
    let t = db.create_subtable("t", tiny_table()).unwrap();
    let (mut most, mut records) = (0, 0);
    // Some 40 bytes a record in the memory beside the index: four times what there is.
    while records < 400_000 {
        put(&db, &t, records..records + 10_000);
        records += 10_000;
        most = most.max(db.stats().pmem_index_bytes);
    }
    assert!(most > 256 << 10, "{most}");
    assert!(db.stats().flushes > 3);
    for n in (0..records).step_by(997) {
        assert_eq!(t.get(&key(n)).unwrap().as_deref(), Some(&n.to_le_bytes()[..]), "{n}");
    }
    t.flush().unwrap();
    db.wait_idle().unwrap();
    assert_eq!(db.stats().pmem_index_bytes, 0);
    drop(t);
    db.close().unwrap();
    // Where the index is may change.
    let db = open(&media, &tiny().medium(Medium::Pmem(memory().index_in_pmem(false)))).unwrap();
    let t = db.subtable("t").unwrap();
    put(&db, &t, records..records + 4000);
    assert_eq!(db.stats().pmem_index_bytes, 0);
    assert!(t.get(&key(records)).unwrap().is_some());
}

/// What has a memtable may be kept beyond the database.
#[test]
fn nothing_is_stored_once_the_memory_may_be_anothers() {
    let media = SimMedia::new(1);
    let file = || {
        let file = media.open(&Path::new(DIR).join("pmem"), OpenMode::READ).unwrap();
        let mut bytes = vec![0; file.len().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        bytes
    };
    let db = open(&media, &options()).unwrap();
    let t = db.create_subtable("t", tiny_table()).unwrap();
    put(&db, &t, 0..4000);
    assert!(db.stats().pmem_index_bytes > 0);
    let mut late = WriteBatch::new();
    late.put(&t, b"k", b"v").unwrap();
    drop(t);
    db.close().unwrap();
    let db = open(&media, &options()).unwrap();
    let t = db.subtable("t").unwrap();
    put(&db, &t, 4000..8000);
    db.wait_idle().unwrap();
    let before = file();
    drop(late);
    assert!(file() == before);
    check(&t, 8000);
}

#[test]
fn many_small_subtables_take_none() {
    let media = SimMedia::new(1);
    let db = open(&media, &options()).unwrap();
    let tables: Vec<_> =
        (0..40).map(|n| db.create_subtable(&format!("t{n}"), tiny_table()).unwrap()).collect();
    for (n, t) in (0..).zip(&tables) {
        put(&db, t, n * 20..n * 20 + 20);
    }
    assert_eq!(db.stats().pmem_index_bytes, 0);
}

#[test]
fn the_page_cache_is_no_place_for_them() {
    let media = SimMedia::new(1);
    let options = tiny().medium(Medium::Pmem(memory().mode(PmemMode::PageCache)));
    let refused = open(&media, &options).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    assert!(refused.to_string().contains("page cache"), "{refused}");
}
