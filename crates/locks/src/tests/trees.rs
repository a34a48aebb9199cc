//! Trees of ranges against a list of them.

use std::ops::ControlFlow::{Break, Continue};

use proptest::prelude::*;

use super::*;
use crate::tree::RangeTree;
use crate::wish::{Reach, Wish};

fn range((owner, start, end): (u64, u8, Option<u8>)) -> Arc<Wish> {
    let reach = end.map_or(Reach::End, |end| Reach::Before([end].into()));
    Arc::new(Wish { owner, subtable: T, mode: Shared, start: [start].into(), reach, serial: 1 })
}

type Range = (u64, u8, Option<u8>);

fn ranges() -> impl Strategy<Value = Range> {
    let end = prop_oneof![9 => (1..30u8).prop_map(Some), 1 => Just(None)];
    (0..3u64, 0..30u8, end).prop_map(|(owner, start, len)| (owner, start, len.map(|len| start + len)))
}

fn covering(tree: &RangeTree, key: u8) -> Vec<Range> {
    let mut seen = Vec::new();
    tree.find_at(&[key], |range| {
        seen.push((range.owner, range.start[0], range.end().map(|end| end[0])));
        Continue::<()>(())
    });
    seen
}

proptest! {
    #[test]
    fn a_tree_of_ranges_finds_what_a_list_does(
        ops in proptest::collection::vec((0..3, ranges(), ranges()), 1..300)
    ) {
        let (mut tree, mut list) = (RangeTree::default(), Vec::<Range>::new());
        for &(op, what, other) in &ops {
            let at = list.iter().position(|&held| held == what);
            match op {
                0 => {
                    prop_assert_eq!(tree.remove(&range(what)), at.is_some());
                    at.map(|at| list.swap_remove(at));
                }
                1 if !list.is_empty() => {
                    // Often one that it stands beside.
                    let at = at.unwrap_or(usize::from(what.1) % list.len());
                    let held = std::mem::replace(&mut list[at], other);
                    prop_assert!(tree.replace(&range(held), &range(other)));
                }
                _ => {
                    tree.insert(range(what));
                    list.push(what);
                }
            }
            tree.check();
        }
        prop_assert!(!tree.replace(&range((9, 0, None)), &range((0, 0, None))));
        // Then only fewer, down to none.
        loop {
            tree.check();
            prop_assert_eq!((tree.len(), tree.is_empty()), (list.len(), list.is_empty()));
            for key in 0..64 {
                let covers = |&&(_, start, end): &&Range| start <= key && end.is_none_or(|end| key < end);
                let mut expected: Vec<Range> = list.iter().filter(covers).copied().collect();
                let mut seen = covering(&tree, key);
                expected.sort_unstable();
                seen.sort_unstable();
                prop_assert_eq!(&seen, &expected);
                let first = tree.find_at(&[key], |range| Break(range.start.clone()));
                prop_assert_eq!(first.is_some(), !seen.is_empty());
            }
            let Some(what) = list.pop() else { break };
            prop_assert!(tree.remove(&range(what)));
        }
    }
}

#[test]
fn a_tree_stays_low_in_whatever_order_it_grows() {
    for step in [1, 999, 377] {
        let mut tree = RangeTree::default();
        for i in 0..1000u32 {
            let at = i * step % 1000;
            let reach = Reach::Before(number(at + 1)[..].into());
            let start = number(at)[..].into();
            tree.insert(Arc::new(Wish { owner: 1, subtable: T, mode: Shared, start, reach, serial: 1 }));
            tree.check();
        }
        assert_eq!(tree.iter().count(), 1000);
    }
}
