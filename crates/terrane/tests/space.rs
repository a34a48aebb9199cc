//! Space comes back: what merges trim is rewritten, and nothing keeps the extents of superseded records.

mod support;

use support::{Rng, TUNING, open, tiny, tiny_table};
use terrane::media::sim::SimMedia;
use terrane::{Compression, Db, Tuning};

fn dead(db: &Db) -> u64 {
    db.stats().subtables.iter().map(|t| t.dead_bytes).sum()
}

fn live(db: &Db) -> u64 {
    db.stats().subtables.iter().flat_map(|t| &t.levels).map(|l| l.bytes).sum()
}

#[test]
fn trimmed_space_comes_back_in_a_rest() {
    let media = SimMedia::new(3);
    let tuning = Tuning { extent_bytes: 192 << 10, piece_bytes: 768 << 10, ..TUNING };
    let db = open(&media, &tiny().background_threads(1).tuning(tuning)).unwrap();
    let table = db.create_subtable("t", tiny_table().compression(Compression::None)).unwrap();
    let mut rng = Rng(5);
    let mut most = 0;
    for i in 0..24_000u64 {
        // Twice all keys in scattered order, then a while of overwriting.
        let n = if i < 12_000 { (i * 4801) % 6000 } else { rng.below(6000) };
        table.put(format!("k{n:05}").as_bytes(), &[i as u8; 900]).unwrap();
        if i % 100 == 0 {
            most = most.max(dead(&db) * 100 / live(&db).max(1));
        }
    }
    assert!((5..50).contains(&most), "merges trim, but what they trim does not pile up: {most} %");
    table.flush().unwrap();
    db.wait_idle().unwrap();
    let (dead, live, used) = (dead(&db), live(&db), db.stats().data_used);
    assert!(dead * 100 < live * 3, "{dead} of {live} bytes are dead after a rest");
    assert!(used * 100 < live * 125, "{used} bytes hold {live}");
    assert!(db.check(|_| true).unwrap().is_clean());
}
