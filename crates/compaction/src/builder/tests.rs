//! However a plan is cut, its pieces together give what one merge would give.

use proptest::prelude::*;
use terrane_format::block::{Block, BlockCursor};

use super::*;
use crate::testing::{Rec, put, records, task};
use crate::{CancelToken, Output, Task, Way, merge};

/// First and last key and rows of each block.
fn outline(way: &Way) -> Vec<(Vec<u8>, Vec<u8>, u32, u64)> {
    let mut cursor = BlockCursor::new();
    way.blocks
        .iter()
        .map(|b| {
            let block = Block::parse(b.bytes()).unwrap();
            cursor.seek_first(block).unwrap();
            let first = cursor.key().to_vec();
            cursor.seek_last(block).unwrap();
            (first, cursor.key().to_vec(), block.rows(), b.bytes().len() as u64)
        })
        .collect()
}

struct Cut {
    pieces: Vec<Piece>,
    records: Vec<Rec>,
    copied: usize,
}

/// Cuts a task's range and does all pieces.
fn cut_and_do(task: &Task, blocks_per_way: usize, bytes: u64, copy_blocks: usize, ends: bool) -> Cut {
    let outlines: Vec<_> = task.ways.iter().map(outline).collect();
    let end_keys: Vec<Option<Vec<u8>>> =
        outlines.iter().map(|o| o.last().filter(|_| ends).map(|b| [b.1.as_slice(), &[0]].concat())).collect();
    let sources: Vec<Source<'_>> = outlines
        .iter()
        .zip(&end_keys)
        .map(|(o, end)| Source {
            blocks: o
                .iter()
                .map(|(first, _, rows, bytes)| Span {
                    first_key: first,
                    bytes: *bytes,
                    rows: *rows,
                    deletes: 0,
                })
                .collect(),
            end: end.as_deref(),
        })
        .collect();
    let plan = Plan {
        lo: &task.lo,
        hi: task.hi.as_deref(),
        sources: &sources,
        tombstones: &task.tombstones,
        blocks_per_way,
        bytes,
        copy_blocks,
    };
    let pieces = cut(&plan, |s, b| Ok(outlines[s][b].1.clone())).unwrap();

    let mut all = Vec::new();
    let mut copied = 0;
    let mut reached = Some(task.lo.clone());
    for piece in &pieces {
        assert!(reached.is_some_and(|r| r <= piece.lo), "pieces come in order");
        reached = piece.hi.clone();
        match &piece.work {
            Work::Merge(ranges) => {
                let ways = ranges.iter().zip(&task.ways).map(|(r, w)| Way::new(w.blocks[r.clone()].to_vec()));
                let part =
                    Task { lo: piece.lo.clone(), hi: piece.hi.clone(), ways: ways.collect(), ..task.clone() };
                all.extend(records(&merge(&part, &CancelToken::new()).unwrap()));
            }
            Work::Copy { source, blocks } => {
                copied += blocks.len();
                let way = Way::new(task.ways[*source].blocks[blocks.clone()].to_vec());
                let whole = Task { lo: Vec::new(), hi: None, ways: vec![way], ..task.clone() };
                let output: Output = merge(&whole, &CancelToken::new()).unwrap();
                for r in records(&output) {
                    assert!(r.key >= piece.lo && piece.hi.as_ref().is_none_or(|hi| r.key < *hi));
                    all.push(r);
                }
            }
        }
    }
    assert!(task.hi.is_none() || reached.is_some_and(|r| Some(r) <= task.hi), "within the plan");
    Cut { pieces, records: all, copied }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn pieces_add_up_to_the_whole(
        stretches in proptest::collection::vec((0usize..3, 1usize..50, 1usize..30), 1..16),
        range in (0usize..400, 0usize..400),
        bounded in any::<bool>(),
        tombstone in proptest::option::of((0usize..400, 0usize..400)),
        limits in (2usize..6, 300u64..3000, 1usize..4),
        ends in any::<bool>(),
    ) {
        // Stretches of one way alone, some keys with so many versions that they fill several blocks.
        let mut ways = vec![Vec::new(); 3];
        let (mut seq, mut number) = (0, 0);
        for (way, len, versions) in stretches {
            for i in 0..len {
                number += 1;
                for _ in 0..if i % 9 == 0 { versions } else { 1 } {
                    seq += 1;
                    ways[way].push(put(&format!("{number:04}"), seq, "v"));
                }
            }
        }
        let mut whole = task(&ways);
        whole.snapshots = (1..=seq).collect();
        if bounded && range.0 < range.1 {
            whole.lo = format!("{:04}", range.0).into_bytes();
            whole.hi = Some(format!("{:04}", range.1).into_bytes());
        }
        if let Some((a, b)) = tombstone {
            whole.tombstones = RangeTombstones::from_ranges([(format!("{a:04}"), format!("{b:04}"), seq + 1)]);
        }
        let expected = records(&merge(&whole, &CancelToken::new()).unwrap());
        let cut = cut_and_do(&whole, limits.0, limits.1, limits.2, ends);
        prop_assert_eq!(cut.records, expected);
    }
}

fn keys(range: Range<u64>) -> Vec<Rec> {
    range.map(|i| put(&format!("{i:05}"), i + 1, "some value")).collect()
}

#[test]
fn merges_stay_within_their_limits_and_come_out_even() {
    let even = (0..2000).step_by(2).map(|i| put(&format!("{i:05}"), 1, "some value")).collect();
    let odd = (1..2000).step_by(2).map(|i| put(&format!("{i:05}"), 1, "some value")).collect();
    let task = task(&[even, odd]);
    let cut = cut_and_do(&task, 16, u64::MAX, 1, true);
    let mut sizes = Vec::new();
    for piece in &cut.pieces {
        let Work::Merge(ways) = &piece.work else { panic!("everything overlaps") };
        assert!(ways.iter().all(|w| w.len() <= 16), "{ways:?}");
        sizes.push(ways.iter().map(ExactSizeIterator::len).sum::<usize>());
    }
    assert!(sizes.len() > 3);
    let (min, max) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
    assert!(max - min <= 4, "{sizes:?}");
}

#[test]
fn what_overlaps_nothing_is_copied() {
    let task = task(&[keys(500..600), keys(0..2000)]);
    let cut = cut_and_do(&task, 128, u64::MAX, 4, true);
    let blocks = task.ways[1].blocks.len();
    let merged: usize = cut
        .pieces
        .iter()
        .map(|p| match &p.work {
            Work::Merge(ways) => ways[1].len(),
            Work::Copy { .. } => 0,
        })
        .sum();
    assert_eq!(cut.copied + merged, blocks, "no block is read twice");
    assert!(cut.copied > blocks * 9 / 10 - 4, "{} of {blocks} blocks", cut.copied);
    assert_eq!(cut.pieces.len(), 3, "copy, merge, copy");
    assert_eq!(cut_and_do(&task, 128, u64::MAX, usize::MAX, true).copied, 0, "copies are switched off");
}

#[test]
fn nothing_is_copied_from_under_a_range_tombstone() {
    let mut task = task(&[keys(0..2000)]);
    let free = cut_and_do(&task, 128, u64::MAX, 1, true).copied;
    task.tombstones = RangeTombstones::from_ranges([("00500", "01500", 3000u64)]);
    let cut = cut_and_do(&task, 128, u64::MAX, 1, true);
    assert!(cut.copied < free * 6 / 10 && cut.copied > free * 4 / 10, "{} of {free}", cut.copied);
    assert_eq!(cut.records.len(), 1000);
}

#[test]
fn blocks_of_mostly_deletes_are_merged() {
    let task = task(&[keys(0..100)]);
    let outline = outline(&task.ways[0]);
    let spans = |deletes| Source {
        blocks: outline
            .iter()
            .map(|(first, _, rows, bytes)| Span { first_key: first, bytes: *bytes, rows: *rows, deletes })
            .collect(),
        end: None,
    };
    for (deletes, copies) in [(0, true), (100, false)] {
        let sources = [spans(deletes)];
        let tombstones = RangeTombstones::default();
        let plan = Plan {
            lo: b"",
            hi: None,
            sources: &sources,
            tombstones: &tombstones,
            blocks_per_way: 128,
            bytes: u64::MAX,
            copy_blocks: 1,
        };
        let pieces = cut(&plan, |_, b| Ok(outline[b].1.clone())).unwrap();
        assert_eq!(pieces.iter().any(|p| matches!(p.work, Work::Copy { .. })), copies);
    }
}
