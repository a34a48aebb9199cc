use std::collections::BTreeMap;

use proptest::prelude::*;
use terrane_base::MemoryBudget;

use super::*;
use crate::art::pool::Pool;

fn child(n: usize) -> Word {
    Word::node(64 * (n + 1), Kind::N4, n)
}

fn check(node: NodeRef<'_>, model: &BTreeMap<u8, Word>) {
    for byte in 0..=255u8 {
        assert_eq!(node.find(byte), model.get(&byte).copied().unwrap_or(Word::EMPTY), "{byte}");
    }
    for from in 0..=256usize {
        let above = model.iter().find(|(b, _)| usize::from(**b) >= from).map(|(b, w)| (*b, *w));
        assert_eq!(node.at_or_after(from), above, "at or after {from}");
        let below = model.iter().rev().find(|(b, _)| usize::from(**b) < from).map(|(b, w)| (*b, *w));
        assert_eq!(node.before(from), below, "before {from}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn every_kind_is_an_ordered_map_and_the_next_larger_takes_it_over(
        bytes in Just((0..=255u8).collect::<Vec<_>>()).prop_shuffle(),
        path in prop::collection::vec(any::<u8>(), 0..20),
    ) {
        let pool = Pool::new(MemoryBudget::new(0));
        let mut node = pool.node(Kind::N4);
        node.start(&path, Word::EMPTY);
        let mut model = BTreeMap::new();
        for (n, &byte) in bytes.iter().enumerate() {
            if node.is_full() {
                check(node, &model);
                let larger = pool.node(match node.kind() {
                    Kind::N4 => Kind::N16,
                    Kind::N16 => Kind::N48,
                    _ => Kind::N256,
                });
                larger.start_as(node);
                node = larger;
                check(node, &model);
            }
            node.add(byte, child(n));
            model.insert(byte, child(n));
            if n % 3 == 0 {
                node.set(Slot::Byte(byte), child(n + 1000));
                model.insert(byte, child(n + 1000));
            }
            if n % 16 == 0 {
                check(node, &model);
            }
        }
        prop_assert_eq!(node.kind(), Kind::N256);
        prop_assert_eq!(node.header().depth(), path.len());
        check(node, &model);
    }

    #[test]
    fn a_path_orders_against_keys_as_its_bytes_do(
        path in prop::collection::vec(0..3u8, 0..24),
        key in prop::collection::vec(0..3u8, 0..24),
        start in 0..24usize,
    ) {
        let start = start.min(path.len()).min(key.len());
        let arena = crate::RecordArena::new(MemoryBudget::new(0));
        let pool = Pool::new(MemoryBudget::new(0));
        let node = pool.node(Kind::N4);
        let record = arena.push(&path, 1, 1, b"");
        node.start(&path, Word::from_raw(record.address()));
        let (mine, theirs) = (&path[start..], &key[start..key.len().min(path.len())]);
        // SAFETY: the arena outlives the calls.
        let (same, order) = unsafe { node.header().compare_path(&key, start) };
        prop_assert_eq!(order, mine.cmp(theirs));
        prop_assert_eq!(same, mine.iter().zip(theirs).take_while(|(a, b)| a == b).count());
        if key.len() >= path.len() && path.len() - start <= 8 {
            let matches = node.header().tail_matches(&key, start, path.len());
            prop_assert_eq!(matches, mine == theirs);
        }
        for (at, byte) in path.iter().enumerate() {
            // SAFETY: as above.
            prop_assert_eq!(unsafe { node.header().path_byte(at) }, *byte);
        }
    }
}

proptest! {
    /// The record that has the rest was damaged since, and is too short: what the node has itself decides.
    #[test]
    fn a_path_orders_by_its_last_bytes_where_nothing_else_is_known(
        path in prop::collection::vec(0..3u8, 0..24),
        key in prop::collection::vec(0..3u8, 0..24),
        start in 0..24usize,
        len in 0..24usize,
    ) {
        let start = start.min(path.len()).min(key.len());
        let arena = crate::RecordArena::new(MemoryBudget::new(0));
        let pool = Pool::new(MemoryBudget::new(0));
        let node = pool.node(Kind::N4);
        let record = arena.push(&path[..len.min(path.len())], 1, 1, b"");
        node.start(&path, Word::from_raw(record.address()));
        let tail = path.len().saturating_sub(8).max(start);
        let mut known = path;
        if len < tail {
            let alike = start..tail.min(key.len()).max(start);
            known[alike.clone()].copy_from_slice(&key[alike]);
        }
        let (mine, theirs) = (&known[start..], &key[start..key.len().min(known.len())]);
        // SAFETY: the arena outlives the call.
        let (same, order) = unsafe { node.header().compare_path(&key, start) };
        prop_assert_eq!(order, mine.cmp(theirs));
        prop_assert_eq!(same, mine.iter().zip(theirs).take_while(|(a, b)| a == b).count());
    }
}

#[test]
fn nodes_fill_whole_cache_lines() {
    assert_eq!(size_of::<Node4>(), 64);
    assert_eq!(size_of::<Node16>(), 3 * 64);
    assert_eq!(size_of::<Node48>(), 11 * 64);
    assert_eq!(size_of::<Node256>(), 33 * 64);
    assert_eq!(size_of::<crate::art::versions::VersionList>(), 64);
}
