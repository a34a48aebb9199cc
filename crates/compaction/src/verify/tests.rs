//! Each claim of an output, made false by itself.

use super::*;
use crate::testing::{large, put, rich_task, task};
use crate::{CancelToken, merge};

fn good() -> (Task, Output) {
    let task = rich_task(1);
    let output = merge(&task, &CancelToken::new()).unwrap();
    verify(&task, &output).unwrap();
    (task, output)
}

fn refused(change: impl FnOnce(&mut Output)) -> Violation {
    let (task, mut output) = good();
    change(&mut output);
    verify(&task, &output).unwrap_err()
}

#[test]
fn false_counts_are_refused() {
    assert!(matches!(refused(|o| o.totals.records_out += 1), Violation::Count("records out")));
    assert!(matches!(refused(|o| o.totals.superseded += 1), Violation::Count("records dropped")));
    let more_read = |o: &mut Output| {
        o.totals.records_in += 1;
        o.totals.superseded += 1;
    };
    assert!(matches!(refused(more_read), Violation::Count("records in")));
    assert!(matches!(refused(|o| o.totals.superseded = u64::MAX), Violation::Count("records dropped")));
}

#[test]
fn losses_that_the_task_cannot_have_are_refused() {
    // Deletes that vanish above the bottom let what they hide come back.
    let deletes = |o: &mut Output| {
        o.totals.superseded -= 1;
        o.totals.deletes_dropped += 1;
    };
    assert!(matches!(refused(deletes), Violation::Count("deletes dropped")));
    let task = task(&[vec![put("a", 2, "new")], vec![put("a", 1, "old")]]);
    let mut output = merge(&task, &CancelToken::new()).unwrap();
    output.totals.superseded -= 1;
    output.totals.range_deleted += 1;
    assert!(matches!(verify(&task, &output).unwrap_err(), Violation::Count("records deleted by ranges")));
}

#[test]
fn false_metadata_is_refused() {
    type Change = fn(&mut FinishedBlock);
    let changes: [(&str, Change); 9] = [
        ("first record", |b| b.first_key.push(0)),
        ("first record", |b| b.first_seq += 1),
        ("last key", |b| b.last_key.push(0)),
        ("number of rows", |b| b.rows += 1),
        ("number of deletes", |b| b.deletes += 1),
        ("sequence range", |b| b.min_seq += 1),
        ("sequence range", |b| b.max_seq += 1),
        ("mark for large values", |b| b.value_refs = !b.value_refs),
        ("filter hash", |b| b.hashes.truncate(1)),
    ];
    for (field, change) in changes {
        match refused(|o| change(&mut o.blocks[1])) {
            Violation::Metadata(1, what) => assert_eq!(what, field),
            other => panic!("{field}: {other:?}"),
        }
    }
    assert!(matches!(refused(|o| o.blocks[2].hashes.push(1)), Violation::Metadata(2, "filter hash")));
    assert!(matches!(refused(|o| o.block_crcs.clear()), Violation::ChecksumCount));
}

/// A block whose records can be walked, but not all be found: one entry of its directory is wrong.
#[test]
fn a_false_directory_is_refused() {
    let (task, mut output) = good();
    let block = &mut output.blocks[0];
    let leaves = block.rows.div_ceil(task.form.leaf_records as u32) as usize;
    assert!(leaves >= 3);
    let directory = block.bytes.len() - 24 - 2 * leaves;
    block.bytes.copy_within(directory..directory + 2, directory + 2);
    output.block_crcs[0] = crc(&block.bytes);
    assert!(matches!(verify(&task, &output), Err(Violation::Unreadable(0, _))));
}

#[test]
fn a_block_without_records_is_refused() {
    let task = task(&[vec![put("a", 1, "")], vec![]]);
    let mut output = merge(&task, &CancelToken::new()).unwrap();
    let empty = terrane_format::block::BlockBuilder::new(task.form).finish();
    output.block_crcs.push(crc(&empty.bytes));
    output.blocks.push(empty);
    assert!(matches!(verify(&task, &output), Err(Violation::Metadata(1, _))));
}

#[test]
fn a_version_that_should_have_gone_is_refused() {
    let mut t = task(&[vec![put("a", 9, "new")], vec![put("a", 3, "old")]]);
    t.snapshots = vec![5];
    let both = merge(&t, &CancelToken::new()).unwrap();
    assert_eq!(both.totals.records_out, 2);
    t.snapshots.clear();
    let stale = Output { input_digest: t.digest(), ..both };
    assert!(matches!(verify(&t, &stale), Err(Violation::Needless(0))));
}

#[test]
fn the_fate_of_large_values_is_checked_against_the_input() {
    let t = task(&[vec![large("a", 9, 109), large("b", 8, 108)], vec![large("a", 3, 103)]]);
    let good = merge(&t, &CancelToken::new()).unwrap();
    assert_eq!(good.dropped_values, [103]);
    for lie in [vec![], vec![109], vec![103, 109], vec![103, 999], vec![103, 103]] {
        let output = Output { dropped_values: lie.clone(), ..good.clone() };
        assert!(matches!(verify(&t, &output), Err(Violation::Values)), "{lie:?}");
    }
}
