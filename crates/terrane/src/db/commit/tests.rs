use terrane_media::PmemMode;
use terrane_media::sim::SimMedia;

use super::*;
use crate::{Db, Medium, Options, PmemOptions, SubtableOptions};

/// A commit that was let through, and has its place only when one of its subtables, or all, were dropped: what it brought for them is given back.
#[test]
fn large_values_for_a_subtable_that_was_dropped_meanwhile_are_freed() {
    let memory = |mode| Medium::Pmem(PmemOptions::new(16 << 20).mode(mode));
    for medium in [Medium::Log, memory(PmemMode::Dax), memory(PmemMode::PageCache)] {
        for stays in [false, true] {
            let db = Db::open_on(SimMedia::new(1), "/db", Options::new().medium(medium.clone())).unwrap();
            let create = |name| db.create_subtable(name, SubtableOptions::new()).unwrap();
            let (gone, other) = (create("gone"), create("other"));
            let used = db.engine.space.stats().used;
            let mut batch = WriteBatch::new();
            let tables = if stays { vec![&gone, &other, &gone] } else { vec![&gone] };
            for (n, table) in tables.iter().enumerate() {
                batch.put(table, &[n as u8], &vec![n as u8; 300 << 10]).unwrap();
            }
            let completion = Completion::new();
            let form = Form::plain(Durability::Buffered);
            let request = db.engine.ready(batch, form, &completion).unwrap().unwrap();
            db.drop_subtable("gone").unwrap();
            match &db.engine.journal {
                Journal::Log(log) => db.engine.place_in_log(log, smallvec![request]),
                Journal::Chains { chains, trailing, .. } => {
                    db.engine.place_in_memory(chains, trailing.as_ref(), smallvec![request]);
                }
            }
            db.sync().unwrap();
            assert!(matches!(completion.outcome(), Some(Ok(_))), "{medium:?}");
            db.wait_idle().unwrap();
            let kept = if stays { 5 } else { 0 };
            assert_eq!(db.engine.space.stats().used - used, kept, "{medium:?}, {stays}");
            if stays {
                assert_eq!(other.get(&[1]).unwrap(), Some(vec![1; 300 << 10]));
            }
            db.check(|_| true).unwrap();
        }
    }
}
