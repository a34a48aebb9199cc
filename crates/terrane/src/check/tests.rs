//! What no checksum tells: extents that are whole, and wrong.

use std::path::Path;

use terrane_format::block::{BlockBuilder, BlockForm, FinishedBlock};
use terrane_format::extent::ExtentForm;
use terrane_format::tombstone::RangeTombstones;
use terrane_media::sim::SimMedia;

use super::*;
use crate::levels::testkit::heirs;
use crate::levels::{Heir, Homes, RunWriter, VersionEdit};
use crate::{Options, SubtableOptions, recovery};

fn block(key: &str, seq: Seq) -> FinishedBlock {
    let mut block = BlockBuilder::new(BlockForm::default());
    block.add(key.as_bytes(), seq, Kind::Put, b"value");
    block.finish()
}

fn deleted(seq: Seq) -> RangeTombstones {
    RangeTombstones::from_ranges([("a", "z", seq)])
}

/// A subtable that consists of these runs (level, id, block, range tombstones), checked.
fn found(runs: Vec<(u8, u64, FinishedBlock, RangeTombstones)>) -> Vec<String> {
    let engine = recovery::open(SimMedia::new(1), Path::new("/db"), Options::new()).unwrap();
    let table = engine.create_subtable("t", SubtableOptions::new()).unwrap();
    let mut edit = VersionEdit::default();
    for (level, run, block, tombstones) in runs {
        let (space, ids) = (engine.space.clone(), engine.ids.clone());
        let mut writer = RunWriter::new(space, ids, ExtentForm::default(), tombstones, heirs()).unwrap();
        writer.add_block(block, None, Heir::No).unwrap();
        for meta in writer.finish().unwrap().keep() {
            edit.added.push((
                level,
                run,
                ExtentRef::whole(engine.open_extent(&table, &meta, &Homes::default()).unwrap()),
            ));
        }
    }
    let version = table.state().version.apply(&edit).unwrap().version;
    engine.manifest.append(&edit.to_edits(table.id)).unwrap();
    table.install_version(Arc::new(version), None);
    check(&engine, |_| true).unwrap().damage.iter().map(|e| e.message().to_owned()).collect()
}

#[test]
fn a_filter_that_denies_a_key_is_found() {
    let none = RangeTombstones::default;
    assert_eq!(found(vec![(1, 0, block("k", 5), none())]), [""; 0]);
    let mut wrong = block("k", 5);
    wrong.hashes[0] ^= u64::MAX;
    let damage = found(vec![(1, 0, wrong, none())]);
    assert!(damage.len() == 1 && damage[0].contains("filter denies 1"), "{damage:?}");
}

#[test]
fn what_is_older_than_what_lies_below_is_found() {
    let none = RangeTombstones::default;
    let two =
        |above, below| found(vec![(0, 3, block("k", above), none()), (1, 0, block("k", below), none())]);
    assert_eq!(two(9, 5), [""; 0]);
    assert!(two(5, 9)[0].contains("holds version 9 of a key"));
    // A range tombstone above the version that it does not delete, and one below a version that it would.
    let above = |seq| found(vec![(0, 3, block("a", 20), deleted(seq)), (1, 0, block("k", 5), none())]);
    assert_eq!(above(9), [""; 0]);
    assert!(above(4)[0].contains("a level above holds version 4"));
    let below = |seq| found(vec![(0, 3, block("k", 5), none()), (1, 0, block("a", 1), deleted(seq))]);
    assert_eq!(below(4), [""; 0]);
    assert!(below(9)[0].contains("holds version 9 of a key"));
}
