//! The two-layer directory: a tree of two levels over the first keys of the leaves, laid out so that a search touches few
//! cache lines and decides each level with one comparison of all its keys.
//!
//! ```text
//! directory = offset of each leaf | zeros, so that what follows begins at a multiple of 64 | inner node* | root
//! node      = 8 numbers of 8 bytes, ascending          root = 2 nodes
//! ```
//!
//! A number is what is *significant* of a leaf's first key: of what follows the prefix that all keys of the block have in
//! common, the first eight bytes as a big-endian number, with zeros where the key ends. Numbers are ordered as the keys are,
//! but for keys that are equal so far: for those the keys themselves decide ([`super::Block::leaves_before`], `spot_among`).
//!
//! With more than 16 leaves an inner node has those of eight leaves, and the root the first of each inner node. With up to 16
//! the root has them all, and there are no inner nodes. Where there are fewer than there is room for, the last is repeated.
//!
//! The root stands at the same distance from the block's end in all blocks, so that it can be loaded along with the trailer.
//!
//! Source: the in-memory read path of X-Engine (Alibaba, "Optimizing X-Engine's In-memory Read Performance"), whose nodes
//! have these fan-outs and parts of keys.

use std::ops::Range;

use super::MAX_LEAVES;
use super::simd::{NODE, rank};

/// Leaves of an inner node.
const INNER: usize = 8;
/// Entries of the root.
pub(super) const ROOT: usize = 2 * INNER;
const ROOT_NODES: usize = ROOT / INNER;
/// Nodes begin at multiples of it.
pub(super) const ALIGNMENT: usize = NODE;

const _: () = assert!(MAX_LEAVES == INNER * ROOT);

/// What is significant of `key` behind a prefix of that length: the eight bytes there as a number that sorts as they do; where the key
/// ends they are zeros.
#[inline]
pub fn significant(key: &[u8], prefix: usize) -> u64 {
    let rest = key.get(prefix..).unwrap_or_default();
    match rest.first_chunk::<8>() {
        Some(eight) => u64::from_be_bytes(*eight),
        None => rest.iter().rev().fold(0, |n, byte| n >> 8 | u64::from(*byte) << 56),
    }
}

/// Inner nodes over `leaves` leaves.
fn inner_nodes(leaves: usize) -> usize {
    if leaves <= ROOT { 0 } else { leaves.div_ceil(INNER) }
}

/// Bytes of the nodes over `leaves` leaves, of which there are 128 at most.
pub(super) fn nodes_len(leaves: usize) -> usize {
    (inner_nodes(leaves) + ROOT_NODES) * NODE
}

/// Appends the nodes over leaves with these numbers.
pub(super) fn append_nodes(out: &mut Vec<u8>, numbers: &[u64]) {
    debug_assert!(numbers.len() <= MAX_LEAVES);
    let firsts: Vec<u64>;
    let mut root = numbers;
    if numbers.len() > ROOT {
        numbers.chunks(INNER).for_each(|node| append_padded(out, node, INNER));
        firsts = numbers.iter().step_by(INNER).copied().collect();
        root = &firsts;
    }
    append_padded(out, root, ROOT);
}

fn append_padded(out: &mut Vec<u8>, numbers: &[u64], len: usize) {
    let last = numbers.last().copied().unwrap_or(0);
    let padding = std::iter::repeat_n(&last, len - numbers.len());
    out.extend(numbers.iter().chain(padding).flat_map(|n| n.to_le_bytes()));
}

/// What the root says of a number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Top {
    less: u32,
    not_greater: u32,
}

impl Top {
    /// The last of the inner nodes whose first number is not greater, if there is any.
    fn last_group(self) -> Option<u32> {
        self.not_greater.checked_sub(1)
    }
}

/// The first half of a search of `nodes`, those of `leaves` leaves: the root. The second half is [`bracket`].
#[inline]
pub(super) fn top(nodes: &[u8], leaves: u32, x: u64) -> Top {
    let entries = match leaves as usize <= ROOT {
        true => leaves,
        false => inner_nodes(leaves as usize) as u32,
    };
    let root = nodes.as_chunks::<NODE>().0.last_chunk::<ROOT_NODES>();
    let top = root.map_or(Top { less: 0, not_greater: entries }, |root| {
        let r = rank(root, x);
        Top { less: r.less, not_greater: r.not_greater }
    });
    let not_greater = top.not_greater.min(entries);
    Top { less: top.less.min(not_greater), not_greater }
}

/// The number of `leaf`.
#[inline]
pub(super) fn number(nodes: &[u8], leaf: u32) -> Option<u64> {
    // With inner nodes or without: leaves have the numbers at the front.
    nodes.as_chunks::<8>().0.get(leaf as usize).map(|n| u64::from_le_bytes(*n))
}

/// Whether there are inner nodes over `leaves` leaves.
pub(super) fn has_inner_nodes(leaves: u32) -> bool {
    inner_nodes(leaves as usize) > 0
}

/// How far before the nodes' end the inner node of `leaf` begins, where there are inner nodes over `leaves` leaves.
#[inline]
pub(super) fn inner_node_before_end(leaves: u32, leaf: u32) -> u32 {
    let nodes = inner_nodes(leaves as usize) + ROOT_NODES;
    (nodes as u32).saturating_sub(leaf / INNER as u32) * NODE as u32
}

/// What the second half will look at: the inner node, and the leaves under it. `None` if the root tells all.
#[inline]
pub(super) fn below(nodes: &[u8], leaves: u32, top: Top) -> Option<(&[u8], Range<u32>)> {
    let group = top.last_group().filter(|_| leaves as usize > ROOT)?;
    let start = group * INNER as u32;
    let node = nodes.as_chunks::<NODE>().0.get(group as usize)?;
    Some((node, start..start + INNER as u32))
}

/// Among leaves in order: the first whose number is not less than `x`, and the first whose number is greater. What is between the two
/// is for the keys to decide. `nodes` are those of `leaves` leaves, and `top` is what their root says; of other bytes the answer may be
/// wrong, but is in order, and no greater than `leaves`.
#[inline]
pub(super) fn bracket(nodes: &[u8], leaves: u32, x: u64, top: Top) -> (u32, u32) {
    if leaves as usize <= ROOT {
        return (top.less, top.not_greater);
    }
    let (nodes, _) = nodes.as_chunks::<NODE>();
    let within = |group: u32| {
        let node = nodes.get(group as usize);
        (group * INNER as u32, node.map(|node| rank(std::array::from_ref(node), x)))
    };
    // Leaves before the group that begins last are no matter; those of it are ranked by its node.
    let Some(group) = top.last_group() else { return (0, 0) };
    let (start, last) = within(group);
    let last = last.map_or((0, INNER as u32), |r| (r.less, r.not_greater));
    let end = (start + last.1).min(leaves);
    let begin = match top.less {
        0 => 0,
        less if less == top.not_greater => start + last.0,
        less => {
            let (start, first) = within(less - 1);
            start + first.map_or(0, |r| r.less)
        }
    };
    (begin.min(end), end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_bracket_is_what_a_partition_gives(
            mut numbers in prop::collection::vec(prop_oneof![0..40u64, any::<u64>(), Just(u64::MAX)], 0..=MAX_LEAVES),
            others in prop::collection::vec(prop_oneof![0..40u64, any::<u64>()], 8),
        ) {
            numbers.sort_unstable();
            let mut nodes = Vec::new();
            append_nodes(&mut nodes, &numbers);
            prop_assert_eq!(nodes.len(), nodes_len(numbers.len()));
            for x in numbers.iter().chain(&others) {
                let want = (numbers.partition_point(|n| n < x), numbers.partition_point(|n| n <= x));
                let leaves = numbers.len() as u32;
                let got = bracket(&nodes, leaves, *x, top(&nodes, leaves, *x));
                prop_assert_eq!((got.0 as usize, got.1 as usize), want);
            }
        }

        #[test]
        fn a_bracket_of_anything_is_in_order_and_within(
            nodes in prop::collection::vec(any::<u8>(), 0..1200),
            leaves in 0..=MAX_LEAVES as u32,
            x: u64,
        ) {
            let (a, b) = bracket(&nodes, leaves, x, top(&nodes, leaves, x));
            prop_assert!(a <= b && b <= leaves);
        }

        #[test]
        fn what_is_significant_is_ordered_as_keys_are(
            prefix in prop::collection::vec(any::<u8>(), 0..4),
            a in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..12),
            b in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..12),
        ) {
            let of = |rest: &[u8]| significant(&[&prefix[..], rest].concat(), prefix.len());
            match of(&a).cmp(&of(&b)) {
                std::cmp::Ordering::Equal => {
                    let cut = |k: &[u8]| { let mut k = k.to_vec(); k.resize(8.max(k.len()), 0); k.truncate(8); k };
                    prop_assert_eq!(cut(&a), cut(&b));
                }
                unequal => prop_assert_eq!(unequal, a.cmp(&b)),
            }
        }
    }
}
