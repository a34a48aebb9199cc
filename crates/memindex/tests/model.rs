//! Both structures against a `BTreeMap`: single-threaded histories of inserts, reads and cursor moves.
#![cfg(not(loom))]

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use proptest::sample::Index;
use terrane_base::{ErrorKind, MAX_SEQ, MemoryBudget, Seq};
use terrane_memindex::{Cursor, IndexKind, MAX_KEY_BYTES, MemIndex};

/// Versions by key, and within a key by sequence.
type Model = BTreeMap<Vec<u8>, BTreeMap<Seq, Vec<u8>>>;

#[derive(Clone, Debug)]
enum Op {
    Insert(Vec<u8>, Seq),
    Get(Index, Seq),
    /// In so many steps before the rest, if any.
    Seek(Vec<u8>, Option<usize>),
    SeekForPrev(Vec<u8>),
    First,
    Last,
    Next(usize),
    Prev(usize),
}

/// Keys that are prefixes of one another, that share long stretches, and that use few or all byte values.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let few = prop::collection::vec(prop::sample::select(vec![0u8, 1, 127, 255]), 0..5);
    let shared = (0..40usize, prop::collection::vec(any::<u8>(), 0..3)).prop_map(|(n, end)| {
        let mut key = b"a path that many keys share, longer than eight".to_vec();
        key.truncate(n);
        key.extend(end);
        key
    });
    let wide = any::<[u8; 2]>().prop_map(|k| k.to_vec());
    prop_oneof![few, shared, wide]
}

fn op() -> impl Strategy<Value = Op> {
    let seq = prop_oneof![8 => 0..40u64, 1 => Just(MAX_SEQ)];
    prop_oneof![
        12 => (key(), seq.clone()).prop_map(|(k, s)| Op::Insert(k, s)),
        3 => (any::<Index>(), seq).prop_map(|(k, s)| Op::Get(k, s)),
        2 => (key(), prop::option::of(0..9usize)).prop_map(|(k, steps)| Op::Seek(k, steps)),
        1 => key().prop_map(Op::SeekForPrev),
        1 => Just(Op::First),
        1 => Just(Op::Last),
        3 => (1..6usize).prop_map(Op::Next),
        3 => (1..6usize).prop_map(Op::Prev),
    ]
}

fn next<'m>(model: &'m Model, key: &[u8]) -> Option<&'m Vec<u8>> {
    model.range::<[u8], _>((Bound::Excluded(key), Bound::Unbounded)).next().map(|e| e.0)
}

fn prev<'m>(model: &'m Model, key: &[u8]) -> Option<&'m Vec<u8>> {
    model.range::<[u8], _>((Bound::Unbounded, Bound::Excluded(key))).next_back().map(|e| e.0)
}

fn value(seq: Seq, n: usize) -> Vec<u8> {
    format!("{seq} {n}").into_bytes()
}

fn check_versions(index: &MemIndex, cursor: &Cursor, model: &Model) {
    let key = cursor.key(index).to_vec();
    let versions: Vec<_> = cursor.versions(index).map(|r| (r.seq, r.value.to_vec())).collect();
    let expected: Vec<_> = model[&key].iter().rev().map(|(s, v)| (*s, v.clone())).collect();
    assert_eq!(versions, expected, "versions of {key:?}");
    assert!(cursor.versions(index).all(|r| r.key == key));
}

fn run(kind: IndexKind, ops: &[Op]) {
    let budget = MemoryBudget::new(0);
    let index = MemIndex::new(kind, budget.clone());
    let mut model = Model::new();
    let mut cursor = Cursor::new();
    let mut at: Option<Vec<u8>> = None;
    for (n, op) in ops.iter().enumerate() {
        match op {
            Op::Insert(key, seq) => {
                index.insert(key, *seq, n as u8, &value(*seq, n)).unwrap();
                model.entry(key.clone()).or_default().entry(*seq).or_insert_with(|| value(*seq, n));
            }
            Op::Get(i, snapshot) if !model.is_empty() => {
                let mut key = model.keys().nth(i.index(model.len())).unwrap().clone();
                for cut in 0..3 {
                    key.truncate(key.len().saturating_sub(cut));
                    let expected = model.get(&key).and_then(|v| v.range(..=snapshot).next_back());
                    let got = index.get(&key, *snapshot);
                    assert_eq!(
                        got.map(|r| (r.seq, r.value.to_vec())),
                        expected.map(|(s, v)| (*s, v.clone()))
                    );
                    assert!(got.is_none_or(|r| r.key == key));
                    let mut search = index.search(&key);
                    (0..i.index(9)).for_each(|_| _ = search.step());
                    assert_eq!(search.finish(*snapshot), got, "in steps");
                }
                continue;
            }
            Op::Get(..) => assert!(index.get(b"", MAX_SEQ).is_none()),
            Op::Seek(key, steps) => {
                match steps {
                    None => cursor.seek(&index, key),
                    Some(steps) => {
                        let mut seek = cursor.seek_in_steps(&index, key);
                        (0..*steps).for_each(|_| _ = seek.step());
                        seek.finish();
                    }
                }
                at = model.range(key.clone()..).next().map(|e| e.0.clone());
            }
            Op::SeekForPrev(key) => {
                cursor.seek_for_prev(&index, key);
                at = model.range(..=key.clone()).next_back().map(|e| e.0.clone());
            }
            Op::First => {
                cursor.seek_first(&index);
                at = model.keys().next().cloned();
            }
            Op::Last => {
                cursor.seek_last(&index);
                at = model.keys().next_back().cloned();
            }
            // Walks on over whatever was inserted since the last move.
            Op::Next(steps) | Op::Prev(steps) => {
                for _ in 0..*steps {
                    if matches!(op, Op::Next(_)) {
                        cursor.next(&index);
                        at = at.and_then(|key| next(&model, &key).cloned());
                    } else {
                        cursor.prev(&index);
                        at = at.and_then(|key| prev(&model, &key).cloned());
                    }
                }
            }
        }
        if !matches!(op, Op::Insert(..)) {
            assert_eq!(cursor.valid().then(|| cursor.key(&index).to_vec()), at, "{op:?}");
            assert!(cursor.shown(&index).is_none() || matches!(op, Op::Get(..)), "a move forgets it");
            for snapshot in [0, 20, MAX_SEQ] {
                let version = cursor.version(&index, snapshot);
                assert_eq!(cursor.show(&index, snapshot), version);
                assert_eq!(cursor.shown(&index), version);
            }
            if at.is_some() {
                check_versions(&index, &cursor, &model);
            }
        }
    }
    assert_eq!(index.len(), model.values().map(BTreeMap::len).sum::<usize>());
    assert_eq!(index.keys(), model.len());
    walk(&index, &model);
    assert_eq!(index.bytes(), budget.used());
    drop(index);
    assert_eq!(budget.used(), 0);
}

/// From end to end, both ways.
fn walk(index: &MemIndex, model: &Model) {
    let mut cursor = index.cursor();
    cursor.seek_first();
    for key in model.keys() {
        assert_eq!((cursor.valid(), cursor.key()), (true, &key[..]));
        cursor.next();
    }
    assert!(!cursor.valid());
    cursor.seek_last();
    for key in model.keys().rev() {
        assert_eq!((cursor.valid(), cursor.key()), (true, &key[..]));
        cursor.prev();
    }
    assert!(!cursor.valid());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn the_tree_behaves_as_an_ordered_map_of_versions(ops in prop::collection::vec(op(), 0..400)) {
        run(IndexKind::Art, &ops);
    }

    #[test]
    fn the_skiplist_behaves_as_an_ordered_map_of_versions(ops in prop::collection::vec(op(), 0..200)) {
        run(IndexKind::Skiplist, &ops);
    }
}

#[test]
fn a_step_sees_nothing_twice_and_skips_nothing_old_while_keys_arrive_between_steps() {
    for kind in [IndexKind::Art, IndexKind::Skiplist] {
        let index = MemIndex::new(kind, MemoryBudget::new(0));
        let old: Vec<_> = (0..3000u32).map(|i| (i * 1_431_655).to_be_bytes()).collect();
        for key in &old {
            index.insert(key, 1, 1, b"").unwrap();
        }
        let mut cursor = index.cursor();
        cursor.seek_first();
        let mut seen: Vec<Vec<u8>> = Vec::new();
        let mut seq = 2;
        while cursor.valid() {
            let key = cursor.key().to_vec();
            // Around the cursor: splits its path, fills its node, and gives its key another version.
            for end in [0u8, 3, 128, 255] {
                let mut new = key.clone();
                new.truncate(4);
                new.push(end);
                index.insert(&new, seq, 1, b"").unwrap();
                new[3] ^= end;
                index.insert(&new[..4], seq + 1, 1, b"").unwrap();
                seq += 2;
            }
            index.insert(&key, seq, 1, b"").unwrap();
            seq += 1;
            seen.push(key);
            cursor.next();
            assert!(seen.len() < 100_000);
            if seen.len() > 20_000 {
                break;
            }
        }
        assert!(seen.windows(2).all(|w| w[0] < w[1]));
        let reached = seen.last().unwrap();
        let mut expected = old.iter().filter(|k| k[..] <= reached[..]);
        assert!(expected.all(|k| seen.binary_search_by(|s| s[..].cmp(k)).is_ok()));
        let back = seen.last().unwrap().clone();
        cursor.seek(&back);
        for key in seen.iter().rev() {
            while cursor.key() > &key[..] {
                cursor.prev();
            }
            assert_eq!(cursor.key(), &key[..]);
        }
    }
}

/// Nodes outgrow one another and paths split under the seek, between any two of its steps.
#[test]
fn a_seek_in_steps_skips_nothing_old_while_keys_arrive_between_its_steps() {
    for kind in [IndexKind::Art, IndexKind::Skiplist] {
        let index = MemIndex::new(kind, MemoryBudget::new(0));
        let mut keys: BTreeSet<Vec<u8>> =
            (0..400u32).map(|i| (i * 10_737_418).to_be_bytes().to_vec()).collect();
        keys.iter().for_each(|key| index.insert(key, 1, 1, b"").unwrap());
        let mut cursor = Cursor::new();
        for target in keys.clone() {
            let target = &target[..3];
            for after in 0..4u8 {
                let old = keys.range(target.to_vec()..).next().cloned();
                let mut seek = cursor.seek_in_steps(&index, target);
                (0..after).for_each(|_| _ = seek.step());
                // Beside what the seek has come to, at each depth of it.
                for (cut, byte) in (0..=3).flat_map(|cut| (0..20u8).map(move |n| (cut, n * 13 + after))) {
                    let new = [&target[..cut], &[byte]].concat();
                    if keys.insert(new.clone()) {
                        index.insert(&new, 1, 1, b"").unwrap();
                    }
                }
                seek.finish();
                let found = cursor.valid().then(|| cursor.key(&index).to_vec());
                assert!(found.as_ref().is_none_or(|found| found[..] >= *target));
                assert!(old.is_none() || found.is_some() && found <= old, "{found:?} {old:?} {target:?}");
                // A step from there sees what has come meanwhile.
                if let Some(found) = found {
                    cursor.next(&index);
                    let next = keys.range((Bound::Excluded(found), Bound::Unbounded)).next();
                    assert_eq!(cursor.valid().then(|| cursor.key(&index)), next.map(Vec::as_slice));
                }
            }
        }
    }
}

#[test]
fn a_seek_that_is_given_up_leaves_the_cursor_nowhere() {
    for kind in [IndexKind::Art, IndexKind::Skiplist] {
        let index = MemIndex::new(kind, MemoryBudget::new(0));
        (0..100u8).for_each(|n| index.insert(&[n, n], 1, 1, b"").unwrap());
        let mut cursor = Cursor::new();
        cursor.seek(&index, &[7]);
        let mut seek = cursor.seek_in_steps(&index, &[50]);
        seek.step();
        drop(seek);
        assert!(!cursor.valid());
        cursor.next(&index);
        assert!(!cursor.valid());
        cursor.seek(&index, &[50]);
        assert_eq!(cursor.key(&index), [50, 50]);
    }
}

#[test]
fn keys_of_the_greatest_length_differ_in_their_last_byte() {
    let index = MemIndex::new(IndexKind::Art, MemoryBudget::new(0));
    let mut key = vec![9u8; 64 << 10];
    for end in [5u8, 3, 4] {
        *key.last_mut().unwrap() = end;
        index.insert(&key, u64::from(end), 1, b"v").unwrap();
    }
    index.insert(&key[..1000], 1, 1, b"short").unwrap();
    assert_eq!(index.get(&key, MAX_SEQ).unwrap().seq, 4);
    assert_eq!(index.get(&key[..1000], MAX_SEQ).unwrap().value, b"short");
    assert!(index.get(&key[..65_535], MAX_SEQ).is_none());
    // The same length and last bytes, but another byte within the compressed path.
    let mut other = key.clone();
    other[2000] = 8;
    assert!(index.get(&other, MAX_SEQ).is_none());
    let mut cursor = index.cursor();
    cursor.seek(&other);
    assert_eq!(cursor.key().last(), Some(&3));
    cursor.prev();
    assert_eq!(cursor.key(), &key[..1000]);
    index.insert(&other, 7, 1, b"other").unwrap();
    assert_eq!(index.get(&other, MAX_SEQ).unwrap().value, b"other");
    assert_eq!(index.keys(), 5);
}

#[test]
fn a_much_overwritten_key_is_read_at_every_snapshot() {
    for kind in [IndexKind::Art, IndexKind::Skiplist] {
        let index = MemIndex::new(kind, MemoryBudget::new(0));
        // In blocks whose order is reversed within: most arrive late.
        for block in 0..100u64 {
            for i in (0..20u64).rev() {
                let seq = 10 + 2 * (20 * block + i);
                index.insert(b"hot", seq, 1, &seq.to_le_bytes()).unwrap();
                index.insert(b"hot", seq, 1, b"again").unwrap();
            }
        }
        assert_eq!(index.len(), 2000);
        assert!(index.get(b"hot", 9).is_none());
        for snapshot in 10..4009 {
            let record = index.get(b"hot", snapshot).unwrap();
            assert_eq!(record.seq, snapshot & !1);
            assert_eq!(record.value, (snapshot & !1).to_le_bytes());
        }
        let mut cursor = index.cursor();
        cursor.seek_first();
        let seqs: Vec<_> = cursor.versions().map(|r| r.seq).collect();
        assert_eq!(seqs, (0..2000u64).rev().map(|i| 10 + 2 * i).collect::<Vec<_>>());
    }
}

#[test]
fn what_exceeds_a_limit_is_refused_by_name_and_leaves_nothing() {
    let index = MemIndex::new(IndexKind::Art, MemoryBudget::new(0));
    let key = vec![0; MAX_KEY_BYTES + 1];
    let error = index.insert(&key, 1, 1, b"").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
    assert!(error.message().contains("key size"));
    assert_eq!(index.insert(b"k", MAX_SEQ + 1, 1, b"").unwrap_err().kind(), ErrorKind::LimitExceeded);
    assert!(index.is_empty());
}

#[test]
fn a_cursor_handed_another_index_is_invalid_there() {
    let one = MemIndex::new(IndexKind::Art, MemoryBudget::new(0));
    let two = MemIndex::new(IndexKind::Art, MemoryBudget::new(0));
    one.insert(b"a", 1, 1, b"").unwrap();
    one.insert(b"b", 1, 1, b"").unwrap();
    two.insert(b"c", 1, 1, b"").unwrap();
    let mut cursor = Cursor::new();
    cursor.seek_first(&one);
    assert_eq!(cursor.key(&two), b"");
    assert!(cursor.version(&two, MAX_SEQ).is_none());
    assert_eq!(cursor.versions(&two).count(), 0);
    assert_eq!(cursor.key(&one), b"a");
    cursor.next(&two);
    assert!(!cursor.valid());
}

#[test]
fn small_indexes_are_cheap() {
    for kind in [IndexKind::Art, IndexKind::Skiplist] {
        let budget = MemoryBudget::new(0);
        let indexes: Vec<_> = (0..1000).map(|_| MemIndex::new(kind, budget.clone())).collect();
        for index in &indexes {
            index.insert(b"key", 1, 1, b"value").unwrap();
        }
        assert!(budget.used() <= indexes.len() * (40 << 10), "{}", budget.used());
    }
}

/// A record that is damaged while an older one of its key comes late: that is found, and whoever asks is told what it may have taken the place of.
#[test]
fn what_was_damaged_beside_a_late_version_is_told() {
    let damaged = Arc::new(AtomicBool::new(false));
    let mut index = MemIndex::new(IndexKind::Art, MemoryBudget::new(0));
    let is_damaged = damaged.clone();
    index.check_with(move |record| record.seq != 10 || !is_damaged.load(Ordering::Relaxed));
    index.insert(b"key", 10, 1, b"newer").unwrap();
    assert!(index.misplaced(b"key").is_none());
    damaged.store(true, Ordering::Relaxed);
    index.insert(b"key", 5, 1, b"late").unwrap();
    damaged.store(false, Ordering::Relaxed);
    index.insert(b"key", 20, 1, b"newest").unwrap();
    assert!(index.is_misled());
    assert_eq!(index.get(b"key", 12).map(|r| r.seq), Some(5));
    assert_eq!(index.misplaced(b"key").map(|r| r.seq), Some(10));
    assert!(index.misplaced(b"other").is_none_or(|r| r.key != b"other"));
}
