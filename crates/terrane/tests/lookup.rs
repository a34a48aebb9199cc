//! Lookups in steps.

mod support;

use support::{Rng, open, tiny, tiny_table};
use terrane::media::sim::SimMedia;
use terrane::{BlockRequest, Db, Lookup, LookupStep, Subtable};

/// Some are stored apart.
fn value(seed: u64, i: u64) -> String {
    format!("{seed}-{i}").repeat(if i.is_multiple_of(100) { 1000 } else { 1 })
}

/// A database whose blocks are not in memory.
fn cold(seed: u64) -> (Db, Subtable) {
    let media = SimMedia::new(seed);
    let db = open(&media, &tiny()).unwrap();
    let t = db.create_subtable("t", tiny_table()).unwrap();
    for i in 0..2000u64 {
        t.put(format!("k{i:04}").as_bytes(), value(seed, i).as_bytes()).unwrap();
    }
    t.compact().unwrap();
    drop(t);
    db.close().unwrap();
    let db = open(&media, &tiny()).unwrap();
    let t = db.subtable("t").unwrap();
    (db, t)
}

fn need(lookup: &mut Lookup) -> Option<BlockRequest> {
    match lookup.step().unwrap() {
        LookupStep::Need(block) => Some(block),
        LookupStep::Done(_) => None,
    }
}

#[test]
fn a_block_that_was_not_asked_for_is_left_aside() {
    let ((_db, t), (_other_db, other)) = (cold(1), cold(2));
    let mut rng = Rng(3);
    for _ in 0..50 {
        let n = rng.below(2000);
        let key = format!("k{n:04}");
        let mut lookup = t.lookup(key.as_bytes()).unwrap();
        // Blocks of another lookup and of another database, before anything was asked for and later.
        let mut stranger = t.lookup(format!("k{:04}", rng.below(2000)).as_bytes()).unwrap();
        let mut foreign = other.lookup(key.as_bytes()).unwrap();
        let got = loop {
            if let Some(block) = need(&mut foreign) {
                lookup.supply(block.fetch().unwrap());
            }
            if let Some(block) = need(&mut stranger) {
                lookup.supply(block.fetch().unwrap());
            }
            match lookup.step().unwrap() {
                LookupStep::Done(value) => break value,
                LookupStep::Need(block) => lookup.supply(block.fetch().unwrap()),
            }
        };
        assert_eq!(got.as_deref(), Some(value(1, n).as_bytes()), "{key}");
    }
}
