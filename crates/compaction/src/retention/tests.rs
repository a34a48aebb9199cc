//! Stripes and tombstones by hand; [`crate::merge`]'s tests compare with a model.

use super::*;

#[test]
fn a_stripe_is_named_by_the_first_snapshot_that_sees_it() {
    assert_eq!(stripe(&[10, 20], 10), 10);
    assert_eq!(stripe(&[10, 20], 11), 20);
    assert_eq!(stripe(&[10, 20], 21), LATEST);
    assert_eq!(stripe(&[], 0), LATEST);
    assert_eq!((lowest(&[10, 20]), lowest(&[])), (10, LATEST));
}

#[test]
fn tombstones_advance_with_the_keys_and_count_per_stripe() {
    let tombstones = RangeTombstones::from_ranges([("b", "d", 15u64), ("c", "e", 25)]);
    let mut r = Retention::new(&[20], &tombstones, false);
    r.begin_key(b"a");
    assert_eq!(r.judge(1, Kind::Put), Verdict::Keep(1));
    r.begin_key(b"b");
    assert_eq!(r.judge(21, Kind::Put), Verdict::Keep(21));
    assert_eq!(r.judge(14, Kind::Put), Verdict::RangeDeleted);
    r.begin_key(b"c");
    assert_eq!(r.judge(24, Kind::Put), Verdict::RangeDeleted);
    assert_eq!(
        r.judge(16, Kind::Put),
        Verdict::Keep(16),
        "the snapshot at 20 does not see the tombstone at 25"
    );
    r.begin_key(b"d");
    assert_eq!(r.judge(14, Kind::Put), Verdict::Keep(14), "the end is excluded, and 25 is of another stripe");
    r.begin_key(b"e");
    assert_eq!(r.judge(24, Kind::Put), Verdict::Keep(24));
}

#[test]
fn of_the_tombstones_of_a_stripe_the_newest_stays() {
    let mut task = crate::testing::task(&[]);
    task.tombstones =
        RangeTombstones::from_ranges([("a", "z", 5u64), ("a", "z", 8), ("c", "d", 15), ("a", "z", 25)]);
    task.snapshots = vec![10, 20];
    let seqs = |task: &Task| -> Vec<Vec<Seq>> {
        kept_tombstones(task).fragments().iter().map(|f| f.seqs.clone()).collect()
    };
    assert_eq!(seqs(&task), [vec![25, 8], vec![25, 15, 8], vec![25, 8]]);
    task.bottom = true;
    assert_eq!(seqs(&task), [vec![25], vec![25, 15], vec![25]]);
    task.snapshots.clear();
    assert!(kept_tombstones(&task).is_empty());
}

#[test]
fn a_delete_that_a_newer_put_hides_is_superseded() {
    let none = RangeTombstones::default();
    let mut r = Retention::new(&[], &none, true);
    r.begin_key(b"a");
    assert_eq!(r.judge(9, Kind::Put), Verdict::Keep(0));
    assert_eq!(r.judge(8, Kind::Delete), Verdict::Superseded);
    r.begin_key(b"b");
    assert_eq!(r.judge(9, Kind::Delete), Verdict::DeleteDropped);
    assert_eq!(r.judge(8, Kind::Put), Verdict::Superseded);
}
