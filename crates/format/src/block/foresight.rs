//! Where in a block a search will look, foreseen before any of the block's bytes are near.
//!
//! Of a block with many leaves a search looks at the root of the directory, an inner node and an offset, and the leaf, one after the
//! other: each is a load from memory that tells where the next one goes. But the index knows how far between a block's first key and the
//! next block's the searched one lies, and where keys are spread evenly, as numbered ones and random ones are, that tells the inner node,
//! nearly; and the leaf too, where they are numbered. So all can be asked for at the same time. It is never relied upon: a wrong guess
//! costs some loads that nobody waits for.
//!
//! Source: the idea is interpolation search (W. W. Peterson, "Addressing for random-access storage", IBM J. Res. Dev. 1957), here as
//! advice to the processor.

use std::ops::Range;

use super::view::{MOST_NEAR, TRAILER};
use super::{Block, two_layer};

/// How far off, in leaves, the first key of a leaf may be, and its place, for the leaf to be told.
const OFF: f32 = 0.5;
/// Parts of a block in which its records are counted: a power of two.
const PARTS: u32 = 512;
/// What is asked for in front of a leaf, whose place is known no better, and behind the place where the record is expected.
const SLACK: u32 = 48;

/// What a guess needs to know of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Foresight {
    /// From 17 to 128.
    leaves: u32,
    /// How many [`PARTS`] of the block are records, if keys and sizes are spread evenly enough to tell the leaf; else 0.
    records: u32,
}

impl Foresight {
    /// Looks through the directory of a block. `None` if that has no inner nodes: then the root, which is read first, tells the leaf.
    pub fn of(block: Block<'_>) -> Option<Foresight> {
        let leaves = block.leaves();
        if !block.has_nodes() || !two_layer::has_inner_nodes(leaves) {
            return None;
        }
        let records = match is_even(block, leaves - 1) {
            true => (u64::from(block.records_end()) * u64::from(PARTS) / u64::from(block.len())) as u32,
            false => 0,
        };
        Some(Foresight { leaves, records: records.min(PARTS - 1) })
    }

    /// As a number, which is not 0.
    pub fn to_bits(self) -> u16 {
        ((self.leaves - 1) | (self.records << 7)) as u16
    }

    /// From [`Foresight::to_bits`]; of 0 there is none.
    #[inline]
    pub fn from_bits(bits: u16) -> Option<Foresight> {
        let bits = u32::from(bits);
        (bits > 0).then_some(Foresight { leaves: (bits & 127) + 1, records: bits >> 7 })
    }

    /// What of the block, of `len` bytes, a search will look at beside the trailer and the root, for a key that lies at `share` of the
    /// way between the first keys of this block and the next one, from 0 to 1: the inner node, offsets of leaves, and the leaf as far as
    /// the record. Some may be empty, or not within the block.
    #[inline]
    pub fn expects(self, len: u32, share: f32) -> [Range<u32>; 3] {
        let Foresight { leaves, records } = self;
        // The last leaf is half full, on average.
        let at = share * (leaves as f32 - 0.5);
        let leaf = (at as u32).min(leaves - 1);
        let end = len.saturating_sub(TRAILER as u32);
        let node = end.saturating_sub(two_layer::inner_node_before_end(leaves, leaf));
        // Offsets lie before the nodes, but for less than a line of padding.
        let offsets_end = end.saturating_sub(two_layer::nodes_len(leaves as usize) as u32);
        let offset = offsets_end.saturating_sub(2 * (leaves - leaf));
        let of_a_leaf = len as f32 * (records as f32 + 0.5) / PARTS as f32 / (leaves as f32 - 0.5);
        let (start, record) = ((leaf as f32 * of_a_leaf) as u32, (at * of_a_leaf) as u32);
        let start = start.saturating_sub(SLACK);
        let leaf = match records {
            0 => 0..0,
            _ => start..record.saturating_add(SLACK).min(start.saturating_add(MOST_NEAR)),
        };
        [node..node.saturating_add(1), offset.saturating_sub(64)..offset.saturating_add(1), leaf]
    }
}

/// Whether the first key of each leaf up to `last` is where an even spread would have it, and each leaf where even sizes would.
fn is_even(block: Block<'_>, last: u32) -> bool {
    let place = |leaf| Some((block.leaf_number(leaf)?, block.leaf_start(leaf).ok()?));
    let (Some((first, _)), Some((end, size))) = (place(0), place(last)) else { return false };
    let (all, size) = (end.saturating_sub(first) as f32, size as f32);
    (0..=last).all(|leaf| {
        let Some((number, start)) = place(leaf) else { return false };
        let by_key = number.saturating_sub(first) as f32 / all * last as f32;
        let by_size = start as f32 / size * last as f32;
        // (Not so where `all` is nothing.)
        (by_key - leaf as f32).abs() < OFF && (by_size - leaf as f32).abs() < OFF
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Kind;
    use crate::block::{BlockBuilder, BlockForm, DirectoryKind, get};
    use crate::extent::Index;

    fn key(n: u64) -> Vec<u8> {
        [&n.to_be_bytes()[..], b"00000000"].concat()
    }

    fn block(numbers: &[u64], value: usize, form: BlockForm) -> Vec<u8> {
        let mut builder = BlockBuilder::new(form);
        for n in numbers {
            builder.add(&key(*n), 7, Kind::Put, &vec![1; value]);
        }
        builder.finish().bytes
    }

    /// Of how many in a hundred of a block's keys the inner node, the offset, and the leaf with the record are foreseen. The
    /// index has the first keys of three blocks, of which this is the second.
    fn hits(numbers: &[u64], beyond: u64) -> [usize; 3] {
        let bytes = block(numbers, 8, BlockForm::default());
        let heads =
            block(&[0, numbers[0], beyond], 12, BlockForm { leaf_records: 1, ..BlockForm::default() });
        let (index, block) = (Index::parse(&heads).unwrap(), Block::parse(&bytes).unwrap());
        let len = bytes.len() as u32;
        let foresight = Foresight::of(block).unwrap();
        let foresight = Foresight::from_bits(foresight.to_bits()).unwrap();
        let mut right = [0; 3];
        for n in numbers {
            let key = key(*n);
            let approach = index.approach(&key);
            assert_eq!(index.position_from(&approach, &key, 7).unwrap(), Some((1, false)));
            let share = index.share(&approach, 1).unwrap();
            let place = |part: &[u8]| (part.as_ptr() as usize - bytes.as_ptr() as usize) as u32;
            let leaf = block.leaves_before(&key, 7, true).unwrap() - 1;
            let (_, _, value) = get(block, &key, 7).unwrap().unwrap();
            let (node, offset) =
                (place(block.inner_node(&key).unwrap()), place(block.offsets(leaf..leaf + 1)));
            let lines = |part: &Range<u32>| part.start / 64 * 64..part.end.next_multiple_of(64);
            let parts = foresight.expects(len, share);
            let [of_node, of_offset, of_leaf] = parts.each_ref().map(lines);
            let whole = block.leaf_start(leaf).unwrap()..place(value);
            right[0] += usize::from(of_node.contains(&node));
            right[1] += usize::from(of_offset.contains(&offset));
            right[2] += usize::from(of_leaf.start <= whole.start && whole.end < of_leaf.end);
        }
        right.map(|n| n * 100 / numbers.len())
    }

    #[test]
    fn of_numbered_keys_all_is_foreseen() {
        let numbers: Vec<u64> = (1000..1600).map(|n| n * 64).collect();
        let [node, offset, leaf] = hits(&numbers, 1600 * 64);
        assert!(node >= 95 && offset >= 98 && leaf >= 80, "{node} {offset} {leaf}");
    }

    #[test]
    fn of_random_keys_the_inner_node_mostly_is() {
        let spread = |n: u64| crate::checksum::key_hash(&n.to_le_bytes()) >> 8;
        let mut numbers: Vec<u64> = (0..601).map(spread).collect();
        numbers.sort_unstable();
        let beyond = numbers.pop().unwrap();
        let [node, offset, leaf] = hits(&numbers, beyond);
        assert!(node >= 60 && offset >= 90 && leaf == 0, "{node} {offset} {leaf}");
    }

    #[test]
    fn of_keys_in_heaps_nothing_is() {
        let heaps: Vec<u64> = (1..600).map(|n| n / 300 * (1 << 30) + n % 300).collect();
        let [node, _, leaf] = hits(&heaps, 1 << 40);
        assert!(node < 30 && leaf == 0, "{node} {leaf}");
    }

    #[test]
    fn of_leaves_of_many_sizes_the_leaf_is_not() {
        let mut builder = BlockBuilder::new(BlockForm::default());
        for n in 0..400 {
            builder.add(&key(n), 7, Kind::Put, &vec![1; n as usize / 5]);
        }
        let bytes = builder.finish().bytes;
        let of = Foresight::of(Block::parse(&bytes).unwrap());
        assert_eq!(of.map(|of| of.records), Some(0));
    }

    #[test]
    fn without_inner_nodes_there_is_nothing_to_foresee() {
        let few: Vec<u64> = (0..128).collect();
        for form in [BlockForm::default(), BlockForm::with(DirectoryKind::RestartArray)] {
            let bytes = block(&few, 8, form);
            assert_eq!(Foresight::of(Block::parse(&bytes).unwrap()), None);
        }
        let bytes = block(&[few, vec![128]].concat(), 8, BlockForm::default());
        let of = Foresight::of(Block::parse(&bytes).unwrap());
        assert_eq!(of.map(|of| of.leaves), Some(17));
    }

    proptest! {
        #[test]
        fn what_is_expected_is_where_such_things_are(bits in 16..=u16::MAX, len in 2048..70_000u32, shares: [f32; 2]) {
            let Some(of) = Foresight::from_bits(bits).filter(|of| of.leaves > 16) else { return Ok(()) };
            prop_assert_eq!(of.to_bits(), bits);
            let nodes = shares.map(|share| {
                let [node, offsets, leaf] = of.expects(len, share.abs().fract());
                let before_end = len - TRAILER as u32 - node.start;
                assert!(before_end.is_multiple_of(64) && (3..=18).contains(&(before_end / 64)));
                assert!(offsets.end <= node.start + 1 && offsets.len() <= 65 && leaf.end <= len + 2 * SLACK);
                node.start
            });
            let order = shares.map(|share| share.abs().fract());
            prop_assert!(order[0] > order[1] || nodes[0] <= nodes[1]);
        }

        #[test]
        fn any_numbers_will_do(bits: u16, len: u32, share: u32) {
            let Some(of) = Foresight::from_bits(bits) else { return Ok(()) };
            for share in [f32::from_bits(share), f32::NAN, f32::INFINITY] {
                prop_assert!(of.expects(len, share).iter().all(|part| part.len() <= MOST_NEAR as usize));
            }
        }
    }
}
