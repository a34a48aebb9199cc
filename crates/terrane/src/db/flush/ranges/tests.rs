use std::collections::BTreeMap;

use super::Share;
use crate::levels::Heir;
use terrane_media::sim::{Fault, FaultPlan, OpKind, SimMedia};

use crate::{Db, ErrorKind, Options, ReadOptions, Snapshot, Subtable, SubtableOptions, Tuning};

const KEYS: u64 = 6000;

/// Extents so small that a memtable has dozens.
fn options() -> Options {
    let tuning = Tuning { extent_bytes: 32 << 10, compact: false, ..Tuning::default() };
    Options::new().memtable_bytes(16 << 20).background_threads(3).tuning(tuning)
}

fn key(n: u64) -> Vec<u8> {
    format!("key {n:06}").into_bytes()
}

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

/// Versions, deletions, large values, and a range deletion over most of it. Returns what there is in the end, and with a snapshot what there was
/// before the deletions.
fn fill(db: &Db, t: &Subtable) -> (Contents, (Snapshot, Contents)) {
    let mut model = BTreeMap::new();
    let put = |model: &mut Contents, n: u64, value: Vec<u8>| {
        t.put(&key(n), &value).unwrap();
        model.insert(key(n), value);
    };
    (0..KEYS).for_each(|n| t.put(&key(n), b"superseded before anybody saw it").unwrap());
    for n in (0..KEYS).map(|n| n * 7919 % KEYS) {
        let len = if n % 1000 == 7 { 200 << 10 } else { 100 + n as usize % 50 };
        put(&mut model, n, vec![n as u8; len]);
    }
    let seen = (db.snapshot(), model.clone());
    t.delete_range(&key(1000), &key(KEYS - 1000)).unwrap();
    model.retain(|k, _| *k < key(1000) || *k >= key(KEYS - 1000));
    (0..KEYS).step_by(3).for_each(|n| put(&mut model, n, vec![n as u8; 60]));
    for n in (0..KEYS).step_by(30) {
        t.delete(&key(n)).unwrap();
        model.remove(&key(n));
    }
    (model, seen)
}

fn contents(t: &Subtable, options: ReadOptions) -> Contents {
    t.range(options).unwrap().collect::<crate::Result<_>>().unwrap()
}

#[test]
fn ranges_on_several_threads_are_one_run_of_all_that_matters() {
    let dir = tempfile::tempdir().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    let t = db.create_subtable("t", SubtableOptions::new().block_bytes(4 << 10)).unwrap();
    let (after, (snapshot, before)) = fill(&db, &t);
    t.flush().unwrap();
    let state = t.table().state();
    let run = state.version.levels.first().unwrap();
    assert!(run.refs().len() > 20, "{} extents", run.refs().len());
    assert!(run.refs().windows(2).all(|pair| pair[0].hi <= pair[1].lo));
    let filled = run.refs().iter().filter(|e| e.extent.meta.data_bytes > 20 << 10).count();
    assert!(filled + 8 > run.refs().len(), "all but the last of each range are full");
    assert!(contents(&t, ReadOptions::new()) == after);
    assert!(contents(&t, ReadOptions::new().snapshot(&snapshot)) == before);
    assert!(db.check(|_| true).unwrap().is_clean());
    drop((t, state, snapshot));
    db.close().unwrap();
    let db = Db::open(dir.path(), options()).unwrap();
    assert!(contents(&db.subtable("t").unwrap(), ReadOptions::new()) == after);
}

#[test]
fn a_range_that_cannot_be_written_leaves_nothing_behind_and_is_written_later() {
    let media = SimMedia::new(3);
    let db = Db::open_on(media.clone(), "/db", options()).unwrap();
    let t = db.create_subtable("t", SubtableOptions::new().block_bytes(4 << 10)).unwrap();
    let (after, _) = fill(&db, &t);
    let before = db.stats().data_used;
    // Somewhere in the middle.
    media.set_fault(Some(FaultPlan::nth(12, Fault::NoSpace).only(&[OpKind::Write]).files("data-").sticky()));
    let e = t.flush().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutOfSpace, "{e}");
    assert_eq!(db.stats().data_used, before, "what was written is free again");
    media.set_fault(None);
    t.flush().unwrap();
    assert!(contents(&t, ReadOptions::new()) == after);
    assert!(db.check(|_| true).unwrap().is_clean());
}

#[test]
fn a_share_is_every_so_many() {
    let taken = |of| {
        let mut share = Share { of, due: 0.0 };
        (0..100).filter(|_| share.heir() != Heir::No).collect::<Vec<_>>()
    };
    assert!(taken(0.5).into_iter().eq((1..100).step_by(2)));
    assert_eq!([0.0, 0.25, 1.0, 7.0].map(|of| taken(of).len()), [0, 25, 100, 100]);
}

#[test]
fn keys_that_are_written_again_and_again_make_no_ranges() {
    let media = SimMedia::new(4);
    let db = Db::open_on(media, "/db", options()).unwrap();
    let t = db.create_subtable("t", SubtableOptions::new().block_bytes(4 << 10)).unwrap();
    for n in 0..60_000u64 {
        t.put(&key(n % 1000), &n.to_be_bytes()).unwrap();
    }
    t.flush().unwrap();
    let state = t.table().state();
    assert_eq!(state.version.levels.first().unwrap().refs().len(), 1, "a thousand small records");
}
