//! Which leaf of a block a search looks into: by the directory's nodes, and by leaves' first keys where those leave it open.

use std::cmp::Ordering;
use std::ops::Range;

use terrane_base::{Result, Seq};

use super::{Block, TRAILER};
use crate::block::errors::bad;
use crate::block::{simd, two_layer};

/// A search for a leaf, halfway.
#[derive(Clone, Debug, Default)]
pub(crate) struct Approach {
    /// What is significant of the key.
    x: u64,
    top: two_layer::Top,
    /// Those among which it is, mostly.
    pub(crate) leaves: Range<u32>,
}

/// Where the newest record of a key, as of a sequence, is to be looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Spot {
    /// It is the first of this leaf.
    Head(u32),
    /// In the last of so many leaves, which begin before it, or else at the head of the next one.
    Behind(u32),
}

impl<'a> Block<'a> {
    /// How many leaves start before `(key, seq)`; with `inclusive`, at or before it.
    #[inline]
    pub(in crate::block) fn leaves_before(&self, key: &[u8], seq: Seq, inclusive: bool) -> Result<u32> {
        let among = self.leaves_near(key, &self.approach(key))?;
        self.leaves_before_among(among, key, seq, inclusive)
    }

    /// The first half of a search for the leaves that start with `key`: the root. What the second half looks at comes near meanwhile,
    /// which is worth waiting for if there is something else to do.
    #[inline]
    pub(crate) fn approach(&self, key: &[u8]) -> Approach {
        if self.shape.nodes == 0 {
            return Approach::default();
        }
        let x = two_layer::significant(key, self.prefix());
        let nodes = self.nodes();
        let top = two_layer::top(nodes, self.shape.leaves, x);
        let mut approach = Approach { x, top, leaves: 0..self.shape.leaves };
        if let Some((node, leaves)) = two_layer::below(nodes, self.shape.leaves, top) {
            simd::prefetch(node);
            approach.leaves = leaves;
        }
        approach
    }

    /// The second half: leaves among which those are that start with `key`, if any does: those in front of them start before it, those
    /// behind them behind it.
    #[inline]
    pub(in crate::block) fn leaves_near(&self, key: &[u8], approach: &Approach) -> Result<(u32, u32)> {
        let leaves = self.shape.leaves;
        if self.shape.nodes == 0 {
            return Ok((0, leaves));
        }
        Ok(match self.beside_prefix(key)? {
            Ordering::Less => (0, 0),
            Ordering::Greater => (leaves, leaves),
            Ordering::Equal => self.bracket(approach),
        })
    }

    /// As [`Block::leaves_near`] for a key that begins as all of the block do. Looks at no key.
    #[inline]
    pub(in crate::block) fn leaves_near_own(&self, approach: &Approach) -> (u32, u32) {
        match self.shape.nodes {
            0 => (0, self.shape.leaves),
            _ => self.bracket(approach),
        }
    }

    /// As [`Block::approach`], where offsets of leaves will be looked at too.
    #[inline]
    pub(in crate::block) fn approach_leaf(&self, key: &[u8]) -> Approach {
        let approach = self.approach(key);
        if self.shape.nodes > 0 {
            simd::prefetch(self.offsets(approach.leaves.clone()));
        }
        approach
    }

    /// How `key` stands to all keys that begin with the prefix of the block's: equal if it does so too.
    #[inline]
    fn beside_prefix(&self, key: &[u8]) -> Result<Ordering> {
        let len = self.shape.prefix as usize;
        if len == 0 || self.shape.leaves == 0 {
            return Ok(Ordering::Equal);
        }
        let Some(prefix) = self.leaf_key(0)?.get(..len) else {
            return Err(bad("has a key that is shorter than its prefix", 0));
        };
        Ok(compare(key.get(..len).unwrap_or(key), prefix))
    }

    /// The inner node that a search for `key` looks at.
    #[cfg(test)]
    pub(in crate::block) fn inner_node(&self, key: &[u8]) -> Option<&'a [u8]> {
        let Approach { top, .. } = self.approach(key);
        two_layer::below(self.nodes(), self.shape.leaves, top).map(|(node, _)| node)
    }

    /// What is significant of the first key of `leaf`.
    #[inline]
    pub(in crate::block) fn leaf_number(&self, leaf: u32) -> Option<u64> {
        two_layer::number(self.nodes(), leaf)
    }

    /// How far between the first keys of `leaf` and the next one the searched key lies, from 0 to 1, as far as the numbers of the
    /// directory tell.
    #[inline]
    pub(crate) fn share(&self, approach: &Approach, leaf: u32) -> Option<f32> {
        if self.shape.nodes == 0 || leaf + 1 >= self.shape.leaves {
            return None;
        }
        let (first, next) = (self.leaf_number(leaf)?, self.leaf_number(leaf + 1)?);
        let (past, all) = (approach.x.checked_sub(first)?, next.checked_sub(first)?);
        // (Halves: signed numbers become floating ones in one instruction.)
        (past < all).then(|| (past >> 1).cast_signed() as f32 / (all >> 1).max(1).cast_signed() as f32)
    }

    /// The nodes of the directory.
    #[inline]
    fn nodes(&self) -> &'a [u8] {
        let end = self.shape.len - TRAILER as u32;
        self.slice(end - self.shape.nodes, end)
    }

    /// The leaves whose place the nodes leave open for a key that begins as all of the block do: those before are before it, those behind
    /// are behind it.
    #[inline]
    fn bracket(&self, &Approach { x, top, .. }: &Approach) -> (u32, u32) {
        two_layer::bracket(self.nodes(), self.shape.leaves, x, top)
    }

    /// As [`Block::leaves_before`], where [`Block::leaves_near`] is known.
    #[inline]
    pub(in crate::block) fn leaves_before_among(
        &self,
        (mut lo, mut hi): (u32, u32),
        key: &[u8],
        seq: Seq,
        inclusive: bool,
    ) -> Result<u32> {
        while lo < hi {
            let mid = lo.midpoint(hi);
            let before = match compare(self.leaf_key(mid)?, key) {
                Ordering::Less => true,
                Ordering::Greater => false,
                Ordering::Equal => {
                    let head_seq = self.seq_at(mid * self.shape.leaf_records)?;
                    head_seq > seq || (inclusive && head_seq == seq)
                }
            };
            if before {
                lo = mid + 1;
            } else {
                hi = mid;
            }
        }
        Ok(lo)
    }

    /// Where to look for `(key, seq)`, where [`Block::leaves_near_own`] is known. Of a key that does not begin as all of the block do nothing
    /// is at a head, and the number of leaves is any.
    #[inline]
    pub(in crate::block) fn spot_among(
        &self,
        (mut lo, mut hi): (u32, u32),
        key: &[u8],
        seq: Seq,
    ) -> Result<Spot> {
        while lo < hi {
            let mid = lo.midpoint(hi);
            match compare(self.leaf_key(mid)?, key) {
                Ordering::Less => lo = mid + 1,
                Ordering::Greater => hi = mid,
                Ordering::Equal if self.seq_at(mid * self.shape.leaf_records)? > seq => lo = mid + 1,
                // What precedes it is of other keys.
                Ordering::Equal if self.shape.undivided => return Ok(Spot::Head(mid)),
                Ordering::Equal => hi = mid,
            }
        }
        Ok(Spot::Behind(lo))
    }
}

/// As slices compare, but most keys that differ do so in what one load gets.
#[inline]
fn compare(a: &[u8], b: &[u8]) -> Ordering {
    if let (Some(x), Some(y)) = (a.first_chunk::<8>(), b.first_chunk::<8>())
        && x != y
    {
        return u64::from_be_bytes(*x).cmp(&u64::from_be_bytes(*y));
    }
    a.cmp(b)
}
