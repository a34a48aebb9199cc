use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use terrane_media::Media;
use terrane_media::sim::SimMedia;

use super::{MOST_RANGES, ReadSet, distance};
use crate::db::Db;
use crate::db::table::Table;
use crate::options::{Options, SubtableOptions};

struct Rig {
    _db: Db,
    tables: [Arc<Table>; 2],
}

fn rig() -> Rig {
    let media = SimMedia::new(0);
    let db = Db::open_on(media as Arc<dyn Media>, "/db", Options::new().memtable_bytes(1 << 20)).unwrap();
    let tables = ["a", "b"].map(|n| db.create_subtable(n, SubtableOptions::new()).unwrap().table().clone());
    Rig { _db: db, tables }
}

/// Whether a key counts as read.
fn has(reads: &ReadSet, table: &Arc<Table>, key: &[u8]) -> bool {
    reads.iter().any(|(t, start, range)| {
        Arc::ptr_eq(t, table)
            && match range {
                None => key == start,
                Some(end) => start <= key && end.is_none_or(|end| key < end),
            }
    })
}

/// What it says of itself, and whether that is so.
fn counted(reads: &ReadSet) -> (usize, usize) {
    let spans: Vec<_> = reads.iter().collect();
    for pair in spans.windows(2) {
        let ((t, start, range), (next, behind, _)) = (&pair[0], &pair[1]);
        if Arc::ptr_eq(t, next) {
            let ends = range.map_or(*start, |end| end.expect("a range that ends before the next one"));
            assert!(ends < *behind, "{pair:?} touch");
        }
    }
    let ranges = spans.iter().filter(|(_, _, range)| range.is_some()).count();
    assert_eq!(reads.ranges, ranges);
    (spans.len(), ranges)
}

fn number(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

#[test]
fn windows_that_touch_are_one_range_and_take_in_the_keys_within() {
    let r = rig();
    let [t, other] = &r.tables;
    let mut reads = ReadSet::new(1 << 20);
    for key in [b"c", b"k", b"c", b"p"] {
        reads.key(t, key);
    }
    reads.key(other, b"c");
    assert_eq!(counted(&reads), (4, 0));
    // Forwards, backwards, and one that closes the gap.
    reads.range(t, b"a", Some(b"b"));
    reads.range(t, b"b", Some(b"d"));
    reads.range(t, b"j", Some(b"l"));
    reads.range(t, b"h", Some(b"j"));
    assert_eq!(counted(&reads), (4, 2));
    reads.range(t, b"d", Some(b"h"));
    reads.range(t, b"e", Some(b"e"));
    reads.key(t, b"f");
    assert_eq!(counted(&reads), (3, 1));
    assert!(has(&reads, t, b"a") && !has(&reads, t, b"l") && !has(&reads, other, b"a"));
    reads.key(t, b"l");
    assert!(has(&reads, t, b"l") && !has(&reads, t, b"l\0"));
    reads.range(t, b"m", None);
    reads.key(t, b"q");
    assert_eq!(counted(&reads), (3, 2));
    assert!(has(&reads, t, b"zzz"));
}

#[test]
fn a_million_keys_stay_under_the_limit_and_what_lies_far_apart_stays_apart() {
    let r = rig();
    let [t, _] = &r.tables;
    const LIMIT: usize = 256 << 10;
    let mut reads = ReadSet::new(LIMIT);
    for n in 0..1_000_000u32 {
        // A dense stretch, in no order, and one key of a sparse one now and then.
        let key = if n % 1000 == 0 { u32::MAX / 2 + n * 1000 } else { n.wrapping_mul(7919) % 1_000_000 * 16 };
        reads.key(t, &number(key));
        assert!(reads.memory() <= LIMIT);
    }
    let (_, ranges) = counted(&reads);
    assert!(ranges <= MOST_RANGES);
    assert!(
        (0..1_000_000)
            .step_by(17)
            .filter(|n| n % 1000 != 0)
            .all(|n: u32| { has(&reads, t, &number(n.wrapping_mul(7919) % 1_000_000 * 16)) })
    );
    assert!((0..1000).all(|n| has(&reads, t, &number(u32::MAX / 2 + n * 1_000_000))));
    for between in [17_000_000, 1 << 30, u32::MAX / 2 - 1, u32::MAX / 2 + 1_000_000_001] {
        assert!(!has(&reads, t, &number(between)), "{between}");
    }
}

#[test]
fn many_ranges_become_fewer_and_keys_beside_them_stay_keys() {
    let r = rig();
    let [t, other] = &r.tables;
    let mut reads = ReadSet::new(64 << 20);
    for n in 0..2000 {
        reads.key(other, &number(n * 64));
        reads.range(t, &number(n * 64), Some(&number(n * 64 + 8)));
        reads.key(t, &number(u32::MAX - n * 64));
    }
    let (spans, ranges) = counted(&reads);
    assert!(ranges <= MOST_RANGES && spans == 4000 + ranges, "{spans} {ranges}");
    assert!((0..2000).all(|n| has(&reads, t, &number(n * 64 + 7))));
    assert!(!has(&reads, t, &number(2000 * 64)) && !has(&reads, other, &number(1)));
}

#[test]
fn keys_that_are_larger_than_the_limit_are_kept_as_one_range() {
    let r = rig();
    let [t, other] = &r.tables;
    let mut reads = ReadSet::new(1000);
    for n in 0..50 {
        for table in [t, other] {
            reads.key(table, &[&[n][..], &[7; 4000]].concat());
        }
    }
    assert!(counted(&reads).0 <= 4);
    assert!((0..50).all(|n| has(&reads, t, &[&[n][..], &[7; 4000]].concat())));
}

#[test]
fn distances_are_those_of_fractions() {
    let sorted: &[(&[u8], &[u8])] = &[
        (b"k", b"k\0"),
        (b"common prefix 1", b"common prefix 2"),
        (b"aa", b"ab"),
        (b"a\xff", b"b\x01"),
        (b"a", b"b"),
        (b"a", b"c"),
        (b"", b"\xff"),
    ];
    assert!(sorted.iter().map(|(a, b)| distance(a, b)).is_sorted_by(|a, b| a < b));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn whatever_was_read_is_in_it(
        limit in 200..20_000usize,
        spans in prop::collection::vec((0..2usize, 0..400u16, prop::option::of(0..20u16)), 1..200),
    ) {
        let r = rig();
        let mut reads = ReadSet::new(limit);
        let mut model = BTreeSet::new();
        for (at, start, len) in spans {
            let key = start.to_be_bytes();
            match len {
                None => reads.key(&r.tables[at], &key),
                Some(len) => reads.range(&r.tables[at], &key, Some(&(start + len).to_be_bytes())),
            }
            model.extend((start..start + len.unwrap_or(1)).map(|n| (at, n)));
        }
        counted(&reads);
        for (at, n) in &model {
            prop_assert!(has(&reads, &r.tables[*at], &n.to_be_bytes()));
        }
        // Where nothing was thinned out, nothing else is.
        if limit > 10_000 && model.len() < 40 {
            for at in 0..2 {
                for n in 0..500u16 {
                    let wanted = model.contains(&(at, n));
                    prop_assert_eq!(has(&reads, &r.tables[at], &n.to_be_bytes()), wanted);
                }
            }
        }
    }
}
