//! Check mode executes every task twice; two runs of the processor must never differ.

mod support;

use support::{open, tiny, tiny_table};
use terrane::CompactionMode;
use terrane::media::sim::SimMedia;

#[test]
fn check_mode_merges_as_the_processor_does() {
    let media = SimMedia::new(7);
    let db = open(&media, &tiny().compaction_mode(CompactionMode::Check)).unwrap();
    let table = db.create_subtable("t", tiny_table()).unwrap();
    for round in 0..4u32 {
        for i in 0..500u32 {
            table.put(format!("k{i:04}").as_bytes(), format!("{round}-{i}").as_bytes()).unwrap();
        }
        table.delete_range(b"k0100", b"k0200").unwrap();
        table.flush().unwrap();
    }
    table.compact().unwrap();

    let stats = db.stats();
    assert!(stats.compact_written > 0, "nothing was merged");
    assert_eq!(stats.tasks_redone, 0);
    assert_eq!(table.get(b"k0099").unwrap().as_deref(), Some(&b"3-99"[..]));
    assert_eq!(table.get(b"k0100").unwrap(), None);
    assert_eq!(table.range(terrane::ReadOptions::new()).unwrap().count(), 400);
}
