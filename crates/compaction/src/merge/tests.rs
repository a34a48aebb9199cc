//! The merge against a plain map, and its corner cases by hand.

use proptest::prelude::*;
use terrane_base::ErrorKind;
use terrane_format::block::BlockForm;
use terrane_format::tombstone::RangeTombstones;

use super::*;
use crate::testing::{Rec, SMALL, delete, history, large, put, records, task, way};
use crate::{Totals, verify};

fn run(task: &Task) -> Output {
    let output = merge(task, &CancelToken::new()).unwrap();
    verify(task, &output).unwrap();
    output
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_snapshot_reads_the_same_after_a_merge(h in history(), small in any::<bool>()) {
        let task = h.task(if small { SMALL } else { BlockForm::default() });
        let output = merge(&task, &CancelToken::new()).unwrap();
        prop_assert!(verify(&task, &output).is_ok(), "{:?}", verify(&task, &output));
        h.check_reads(&(records(&output), output.tombstones.clone()))?;
    }

    /// Long stretches of one way alone, so that whole blocks are taken without comparing.
    #[test]
    fn ways_that_take_turns_in_long_stretches_merge_in_order(
        stretches in proptest::collection::vec((0usize..4, 1usize..60), 1..30),
    ) {
        let mut ways = vec![Vec::new(); 4];
        let mut all = Vec::new();
        for (way, len) in stretches {
            for _ in 0..len {
                let n = all.len();
                let r = put(&format!("{n:06}"), n as u64 + 1, "v");
                ways[way].push(r.clone());
                all.push(r);
            }
        }
        prop_assert_eq!(records(&run(&task(&ways))), all);
    }
}

#[test]
fn the_newest_version_of_each_stripe_stays() {
    let mut t = task(&[
        vec![put("a", 50, "50"), put("a", 40, "40")],
        vec![put("a", 30, "30"), put("a", 20, "20"), put("a", 10, "10")],
    ]);
    t.snapshots = vec![10, 30, 35];
    let out = run(&t);
    assert_eq!(records(&out), [put("a", 50, "50"), put("a", 30, "30"), put("a", 10, "10")]);
    assert_eq!(out.totals, Totals { records_in: 5, records_out: 3, superseded: 2, ..Totals::default() });
}

#[test]
fn a_delete_stays_above_the_bottom_and_goes_at_the_bottom() {
    let mut t = task(&[vec![delete("a", 5), put("b", 6, "b")], vec![put("a", 1, "a")]]);
    assert_eq!(records(&run(&t)), [delete("a", 5), put("b", 6, "b")]);
    t.bottom = true;
    let out = run(&t);
    assert_eq!(records(&out), [put("b", 0, "b")]);
    assert_eq!(out.totals.deletes_dropped, 1);
    t.snapshots = vec![3];
    assert_eq!(records(&run(&t)), [delete("a", 5), put("a", 0, "a"), put("b", 6, "b")]);
}

#[test]
fn a_range_tombstone_hides_the_older_and_spares_the_newer() {
    let mut t = task(&[vec![put("b", 9, "new")], vec![put("a", 1, ""), put("b", 2, ""), put("c", 3, "")]]);
    t.tombstones = RangeTombstones::from_ranges([("a", "c", 5u64)]);
    let out = run(&t);
    assert_eq!(records(&out), [put("b", 9, "new"), put("c", 3, "")]);
    assert_eq!(out.totals.range_deleted, 1, "the older version of b is superseded, not deleted");
    assert_eq!(out.tombstones, t.tombstones, "it may hide more below");
    t.bottom = true;
    assert!(run(&t).tombstones.is_empty());
    t.snapshots = vec![4];
    let out = run(&t);
    assert_eq!(out.totals.range_deleted, 0, "the snapshot at 4 is older than the tombstone");
    assert_eq!(out.tombstones, t.tombstones);
}

#[test]
fn a_record_whose_sequence_became_zero_is_not_hidden_by_the_tombstone_it_outlived() {
    let mut t = task(&[vec![put("a", 9, "new")]]);
    t.tombstones = RangeTombstones::from_ranges([("a", "b", 5u64)]);
    t.bottom = true;
    let out = run(&t);
    assert_eq!(records(&out), [put("a", 0, "new")]);
    assert!(out.tombstones.is_empty());
}

#[test]
fn only_the_range_is_merged_and_counted() {
    let keys = |from: u64, to| (from..to).map(|i| put(&format!("{i:04}"), i + 1, "v")).collect::<Vec<Rec>>();
    let mut t = task(&[keys(0, 300), keys(500, 600)]);
    (t.lo, t.hi) = (b"0100".to_vec(), Some(b"0550".to_vec()));
    t.tombstones = RangeTombstones::from_ranges([("0000", "0110", 1000u64), ("0540", "0700", 1000)]);
    let out = run(&t);
    assert_eq!(out.totals.records_in, 250);
    assert_eq!(records(&out).len(), 230);
    assert_eq!(out.tombstones.bounds(), Some((&b"0100"[..], &b"0550"[..])));

    (t.lo, t.hi) = (b"0300".to_vec(), Some(b"0400".to_vec()));
    let out = run(&t);
    assert_eq!((out.totals, out.blocks.len()), (Totals::default(), 0), "nothing lies between the ways");
}

#[test]
fn values_of_dropped_records_are_reported() {
    let mut t = task(&[
        vec![put("a", 10, "x"), large("b", 11, 111), delete("c", 12)],
        vec![large("a", 1, 101), large("b", 2, 102), large("c", 3, 103), large("d", 4, 104)],
    ]);
    t.tombstones = RangeTombstones::from_ranges([("d", "e", 9u64)]);
    let out = run(&t);
    assert_eq!(out.dropped_values, [101, 102, 103, 104]);
    t.snapshots = vec![5];
    assert!(run(&t).dropped_values.is_empty());
}

#[test]
fn the_same_record_in_two_ways_comes_out_once() {
    let out = run(&task(&[vec![put("a", 5, "x")], vec![put("a", 5, "x")]]));
    assert_eq!(records(&out), [put("a", 5, "x")]);
    assert_eq!(out.totals.superseded, 1);
}

#[test]
fn versions_of_one_key_may_fill_many_blocks() {
    let versions: Vec<Rec> = (1..=200).map(|s| put("k", s, "some value")).collect();
    let mut t = task(std::slice::from_ref(&versions));
    t.snapshots = (1..=200).collect();
    let out = run(&t);
    assert!(out.blocks.len() > 5);
    assert_eq!(records(&out), versions.into_iter().rev().collect::<Vec<_>>());
}

#[test]
fn unsorted_input_is_corruption() {
    let mut t = task(&[vec![put("a", 1, "")], vec![]]);
    t.ways[0].blocks.extend(way(&[put("b", 5, "")], SMALL).blocks);
    t.ways[0].blocks.swap(0, 1);
    match merge(&t, &CancelToken::new()) {
        Err(DeviceError::Failed(e)) => assert_eq!(e.kind(), ErrorKind::Corruption),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_damaged_input_block_is_a_typed_error() {
    let t = task(&[(0..50).map(|i| put(&format!("{i:02}"), i + 1, "value")).collect()]);
    let bytes = t.ways[0].blocks[0].bytes().to_vec();
    for i in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[i] ^= 0x41;
        let mut t = t.clone();
        t.ways[0].blocks[0] = crate::InputBlock::new(damaged);
        // Undetected damage may give another result, but no panic, and none that verification would take as sorted
        // and counted if it is not.
        if let Ok(output) = merge(&t, &CancelToken::new()) {
            let _ = verify(&t, &output);
        }
    }
}

#[test]
fn a_cancelled_merge_stops() {
    let token = CancelToken::new();
    token.cancel();
    assert!(matches!(merge(&task(&[vec![put("a", 1, "")]]), &token), Err(DeviceError::TimedOut)));
}
