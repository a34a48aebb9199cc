//! Counting, limits and dumps.

use terrane_base::ErrorKind;

use super::*;
use crate::testing::{put, rich_task, task};

#[test]
fn a_dump_replays_as_the_same_task() {
    let t = rich_task(1);
    let bytes = t.encode();
    assert_eq!(Task::decode(&bytes).unwrap(), t);
    assert_eq!(Task::decode(&bytes).unwrap().digest(), t.digest());
    for cut in 0..bytes.len().min(400) {
        assert_eq!(Task::decode(&bytes[..cut]).unwrap_err().kind(), ErrorKind::Corruption);
    }
    for i in (0..bytes.len()).step_by(7) {
        let mut damaged = bytes.clone();
        damaged[i] ^= 4;
        assert_eq!(Task::decode(&damaged).unwrap_err().kind(), ErrorKind::Corruption);
    }
}

#[test]
fn a_dump_with_a_matching_checksum_still_cannot_make_the_decoder_panic() {
    let bytes = rich_task(1).encode();
    let body = bytes.len() - 4;
    for i in 0..body.min(300) {
        for value in [0, 0x7f, 0xff] {
            let mut damaged = bytes[..body].to_vec();
            damaged[i] = value;
            let sum = crc(&damaged);
            damaged.extend_from_slice(&sum.to_le_bytes());
            let _ = Task::decode(&damaged);
        }
    }
}

#[test]
fn the_digest_depends_on_all_that_the_result_depends_on() {
    let t = rich_task(1);
    let mut others = vec![t.clone(); 7];
    others[0].lo.push(0);
    others[1].hi = None;
    others[2].bottom = true;
    others[3].snapshots.pop();
    others[4].tombstones = RangeTombstones::default();
    others[5].ways[1].blocks.pop();
    others[6].form.leaf_records += 1;
    for (i, other) in others.iter().enumerate() {
        assert_ne!(other.digest(), t.digest(), "{i}");
    }
    let mut moved = t.clone();
    let block = moved.ways[0].blocks.pop().unwrap();
    moved.ways[1].blocks.insert(0, block);
    assert_ne!(moved.digest(), t.digest(), "the same blocks, dealt over the ways differently");
}

#[test]
fn records_are_counted_exactly_at_the_edges() {
    let mut t = task(&[(0..200).map(|i| put(&format!("{i:03}"), 1, "some value")).collect()]);
    for (lo, hi) in [(0, 200), (1, 199), (57, 58), (100, 150), (0, 1), (199, 200)] {
        t.lo = format!("{lo:03}").into_bytes();
        t.hi = Some(format!("{hi:03}").into_bytes());
        assert_eq!(t.records().unwrap(), hi - lo, "{lo}..{hi}");
    }
    (t.lo, t.hi) = (b"300".to_vec(), None);
    assert_eq!(t.records().unwrap(), 0);
}

#[test]
fn senseless_tasks_are_refused() {
    let mut t = rich_task(1);
    t.hi = Some(t.lo.clone());
    assert_eq!(t.check().unwrap_err().kind(), ErrorKind::InvalidArgument);
    let mut t = rich_task(1);
    t.snapshots = vec![5, 5];
    assert_eq!(t.check().unwrap_err().kind(), ErrorKind::InvalidArgument);
}

#[test]
fn a_device_gets_only_what_fits() {
    let t = rich_task(1);
    let limits = Limits::default();
    assert!(t.suits(&limits));
    assert!(!t.suits(&Limits { ways: 1, ..limits }));
    assert!(!t.suits(&Limits { blocks_per_way: 3, ..limits }));
    assert!(!t.suits(&Limits { block_bytes: 100, ..limits }));
    let mut single = t;
    single.ways[1].blocks.clear();
    assert!(!single.suits(&limits), "one way is a copy");
}

#[test]
fn damaged_input_is_found_before_use() {
    let mut t = rich_task(1);
    let block = &mut t.ways[1].blocks[2];
    let mut damaged = block.bytes().to_vec();
    damaged[10] ^= 1;
    *block = InputBlock::with_crc(damaged, block.crc());
    let e = t.check_input().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption);
    assert!(e.message().contains("block 2 of way 1"), "{e}");
}
