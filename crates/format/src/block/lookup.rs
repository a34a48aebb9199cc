//! Searching a block without a cursor: the directory tells the leaf, which is then walked through without copying a key. A leaf whose first
//! key is the searched one answers without a walk, where no leaf begins between the versions of a key.
//!
//! The walk keeps `matched`, the length of the prefix that the searched key has in common with the record before. Since
//! every record stores the exact length it shares with its predecessor, comparing that with `matched` decides most
//! records without looking at their keys:
//! - it shares more: it differs from the searched key where its predecessor did, so it is still before it;
//! - it shares less: it is greater than its predecessor within `matched`, so it is behind the searched key;
//! - it shares as much: only its suffix has to be compared.

use std::cmp::Ordering;

use terrane_base::{Result, Seq};

use super::errors::bad;
use super::view::{Approach, Lens, Record, Spot};
use super::{Block, BlockShape, common_prefix};
use crate::Kind;

/// The newest record of exactly `key` with a sequence of at most `seq`. Allocates nothing.
///
/// # Errors
/// [`terrane_base::ErrorKind::Corruption`] for damaged bytes, `NewerFormat` for a kind that this version does not know.
#[inline]
pub fn get<'a>(block: Block<'a>, key: &[u8], seq: Seq) -> Result<Option<(Seq, Kind, &'a [u8])>> {
    // (Without a probe, which would be copied.)
    let among = leaves_among(&block, &block.approach_leaf(key));
    look(&block, key, seq, among)
}

/// [`get`] in steps: each ends by asking the processor for what the next one looks at. For whoever has something else to do until that is
/// near.
#[derive(Clone, Debug)]
pub struct Probe<'a, 'k> {
    block: Block<'a>,
    key: &'k [u8],
    seq: Seq,
    approach: Approach,
}

/// A [`Probe`] that knows the leaf to look into, or leaves that begin alike and are to be told apart.
#[derive(Clone, Debug)]
pub struct LeafProbe<'a, 'k> {
    pub(super) block: Block<'a>,
    pub(super) key: &'k [u8],
    pub(super) seq: Seq,
    /// As [`Block::leaves_near_own`].
    among: (u32, u32),
}

impl<'a, 'k> Probe<'a, 'k> {
    /// Begins with the root of the directory.
    #[inline]
    pub fn new(block: Block<'a>, key: &'k [u8], seq: Seq) -> Self {
        Probe { block, key, seq, approach: block.approach_leaf(key) }
    }

    /// Finds the leaf, as far as the directory tells.
    #[inline]
    pub fn to_leaf(&self) -> LeafProbe<'a, 'k> {
        let Probe { block, key, seq, ref approach } = *self;
        LeafProbe { block, key, seq, among: leaves_among(&block, approach) }
    }
}

impl<'a> LeafProbe<'a, '_> {
    /// What its block is like.
    #[inline]
    pub fn shape(&self) -> BlockShape {
        self.block.shape()
    }

    /// Looks into the leaf.
    ///
    /// # Errors
    /// As for [`get`].
    #[inline]
    pub fn look(&self) -> Result<Option<(Seq, Kind, &'a [u8])>> {
        look(&self.block, self.key, self.seq, self.among)
    }

    /// Where the record that is sought is, if the key begins as all of the block do; else anywhere.
    #[inline]
    pub(super) fn spot(&self) -> Result<Spot> {
        spot(&self.block, self.key, self.seq, self.among)
    }
}

/// As [`Block::leaves_near_own`], and brings the leaf near that is looked into if there are not several.
#[inline]
fn leaves_among(block: &Block<'_>, approach: &Approach) -> (u32, u32) {
    let (lo, hi) = block.leaves_near_own(approach);
    match hi - lo {
        0 => block.bring_near(lo.saturating_sub(1)),
        1 => block.bring_near(lo),
        _ => {}
    }
    (lo, hi)
}

/// As [`Block::spot_among`], and brings the leaf near that is walked through, where [`leaves_among`] has not.
#[inline]
fn spot(block: &Block<'_>, key: &[u8], seq: Seq, among: (u32, u32)) -> Result<Spot> {
    let spot = block.spot_among(among, key, seq)?;
    if let Spot::Behind(behind) = spot
        && among.0 < among.1
    {
        block.bring_near(behind.saturating_sub(1));
    }
    Ok(spot)
}

/// Looks for the key and sequence. If the key begins as all of the block do, no leaf before `among` begins behind it, and none behind
/// `among` before it.
fn look<'a>(
    block: &Block<'a>,
    key: &[u8],
    seq: Seq,
    among: (u32, u32),
) -> Result<Option<(Seq, Kind, &'a [u8])>> {
    let behind = match spot(block, key, seq, among)? {
        Spot::Head(leaf) => {
            let (record, _) = block.leaf_head(leaf)?;
            return found(block, record, block.seq_at(leaf * block.leaf_records())?).map(Some);
        }
        Spot::Behind(behind) => behind,
    };
    if let Some(leaf) = behind.checked_sub(1) {
        match in_leaf(block, leaf, key, seq)? {
            InLeaf::Is(hit) => return Ok(Some(hit)),
            InLeaf::IsNot => return Ok(None),
            InLeaf::MayFollow => {}
        }
    }
    // If the block has the key, all records up to here are before (key, seq): the next leaf's first record is the only candidate left.
    // Where versions are not divided the search would have said so.
    if block.is_undivided() {
        return Ok(None);
    }
    match head_of(*block, behind, key)? {
        Some(record) => found(block, record, block.seq_at(behind * block.leaf_records())?).map(Some),
        None => Ok(None),
    }
}

/// What a leaf says of a key.
enum InLeaf<'a> {
    Is((Seq, Kind, &'a [u8])),
    IsNot,
    /// Its records are all before the key and sequence.
    MayFollow,
}

/// Looks for `key` in one leaf. As [`LeafWalk`], but what is skipped is not taken apart.
#[inline]
fn in_leaf<'a>(block: &Block<'a>, leaf: u32, key: &[u8], seq: Seq) -> Result<InLeaf<'a>> {
    let first = leaf * block.leaf_records();
    let end = block.rows().min(first + block.leaf_records());
    let records = block.records();
    let mut at = block.leaf_start(leaf)? as usize;
    let mut matched = 0;
    for position in first..end {
        let Lens { header, shared, suffix, value } = match Lens::read(records, at) {
            Some(lens) => lens,
            None => block.long_lens(at)?,
        };
        let suffix_at = at + header;
        let next = suffix_at + suffix + value;
        if shared < matched {
            return Ok(InLeaf::IsNot);
        }
        if shared == matched {
            let suffix = records.get(suffix_at..suffix_at + suffix).unwrap_or_default();
            match compare_rest(suffix, key, &mut matched) {
                Ordering::Less => {}
                Ordering::Greater => return Ok(InLeaf::IsNot),
                Ordering::Equal => {
                    let record_seq = block.seq_at(position)?;
                    if record_seq <= seq {
                        let (Some(kind), Some(value)) = (records.get(at), records.get(next - value..next))
                        else {
                            return Err(bad("has a record that does not fit", at));
                        };
                        return Ok(InLeaf::Is((record_seq, Kind::from_u8(*kind)?, value)));
                    }
                }
            }
        }
        at = next;
    }
    Ok(InLeaf::MayFollow)
}

/// How the rest of a record's key compares with that of `key`, where both have the first `matched` bytes in common; how many it is then.
#[inline]
fn compare_rest(suffix: &[u8], key: &[u8], matched: &mut usize) -> Ordering {
    let rest = key.get(*matched..).unwrap_or_default();
    match (suffix.first(), rest.first()) {
        // Where a record differs from the one before, it mostly differs from what is searched.
        (Some(a), Some(b)) if a != b => a.cmp(b),
        _ => {
            let common = common_prefix(suffix, rest);
            *matched += common;
            suffix.get(common).cmp(&rest.get(common))
        }
    }
}

#[inline]
fn found<'a>(block: &Block<'a>, record: Record, seq: Seq) -> Result<(Seq, Kind, &'a [u8])> {
    Ok((seq, Kind::from_u8(record.kind)?, block.slice(record.value, record.next)))
}

/// What [`floor`] found.
pub(crate) struct Floor<'a> {
    pub position: u32,
    pub value: &'a [u8],
    /// Where it ends.
    pub end: u32,
    /// The value of the record behind it, if that has the searched key.
    pub next: Option<&'a [u8]>,
}

/// The last record at or before `(key, seq)`, or the first record if all are behind it. Allocates nothing.
pub(crate) fn floor<'a>(block: Block<'a>, key: &[u8], seq: Seq) -> Result<Option<Floor<'a>>> {
    if block.rows() == 0 {
        return Ok(None);
    }
    let behind = block.leaves_before(key, seq, true)?;
    let Some(leaf) = behind.checked_sub(1) else {
        let (record, _) = block.leaf_head(0)?;
        let value = block.slice(record.value, record.next);
        return Ok(Some(Floor { position: 0, value, end: record.next, next: None }));
    };
    let mut walk = LeafWalk::new(block, leaf, key)?;
    let value = |record: Record| block.slice(record.value, record.next);
    let (mut position, mut last, mut next) = (walk.position, None, None);
    loop {
        match walk.step()? {
            None => {
                next = head_of(block, behind, key)?.map(value);
                break;
            }
            Some((order, at))
                if order.is_lt() || order.is_eq() && block.seq_at(walk.position - 1)? >= seq =>
            {
                (position, last) = (walk.position - 1, Some(at));
            }
            Some((order, at)) => {
                if order.is_eq() {
                    next = Some(value(block.record_at(at)?));
                }
                break;
            }
        }
    }
    let (found, end) = match last {
        Some(at) => {
            let record = block.record_at(at)?;
            (value(record), record.next)
        }
        None => (&[][..], 0),
    };
    Ok(Some(Floor { position, value: found, end, next }))
}

/// The number of the record that [`floor`] finds, and whether the one behind it has the searched key. Where each leaf has one record
/// and no two of them begin alike, this looks at the directory alone, and at the first key if the searched one is not known to be an `own`
/// one, which begins as all of the block do. `approach` is the block's, of this key.
#[inline]
pub(crate) fn floor_position(
    block: Block<'_>,
    key: &[u8],
    seq: Seq,
    approach: &Approach,
    own: bool,
) -> Result<Option<(u32, bool)>> {
    if block.leaf_records() > 1 || !block.has_nodes() {
        return Ok(floor(block, key, seq)?.map(|f| (f.position, f.next.is_some())));
    }
    if block.rows() == 0 {
        return Ok(None);
    }
    let among = if own { block.leaves_near_own(approach) } else { block.leaves_near(key, approach)? };
    let behind = block.leaves_before_among(among, key, seq, true)?;
    // What is behind all that may start with the key does not.
    let next_has_key = behind > 0 && behind < among.1 && head_of(block, behind, key)?.is_some();
    Ok(Some((behind.saturating_sub(1), next_has_key)))
}

/// The first record of `leaf`, if there is such a leaf and the record has this key.
fn head_of(block: Block<'_>, leaf: u32, key: &[u8]) -> Result<Option<Record>> {
    if leaf == block.leaves() {
        return Ok(None);
    }
    let (record, head) = block.leaf_head(leaf)?;
    Ok((head == key).then_some(record))
}

/// Walks a leaf and says of each record whether its key is before, at or behind the searched one. To be left at the
/// first record behind it.
pub(super) struct LeafWalk<'a, 'k> {
    block: Block<'a>,
    key: &'k [u8],
    matched: usize,
    at: u32,
    /// The number of the record that comes next.
    pub(super) position: u32,
    end: u32,
}

impl<'a, 'k> LeafWalk<'a, 'k> {
    pub(super) fn new(block: Block<'a>, leaf: u32, key: &'k [u8]) -> Result<Self> {
        let position = leaf * block.leaf_records();
        let end = block.rows().min(position + block.leaf_records());
        Ok(LeafWalk { block, key, matched: 0, at: block.leaf_start(leaf)?, position, end })
    }

    /// After the first record: whether the key begins with what all keys of the block begin with, as far as the directory leaves that
    /// out.
    #[inline]
    pub(super) fn begins_as_all_do(&self) -> bool {
        self.matched >= self.block.prefix()
    }

    /// The next record, and how its key compares.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<(Ordering, Record)>> {
        match self.step()? {
            Some((order, at)) => Ok(Some((order, self.block.record_at(at)?))),
            None => Ok(None),
        }
    }

    /// As [`LeafWalk::next`], but says of the record only where it lies: what is stepped over is not taken apart.
    #[inline]
    pub(super) fn step(&mut self) -> Result<Option<(Ordering, u32)>> {
        if self.position == self.end {
            return Ok(None);
        }
        let at = self.at;
        let Lens { header, shared, suffix, value } = self.block.lens_at(at as usize)?;
        let suffix_at = at as usize + header;
        self.at = u32::try_from(suffix_at + suffix + value).unwrap_or(u32::MAX);
        self.position += 1;
        let order = match shared.cmp(&self.matched) {
            Ordering::Greater => Ordering::Less,
            Ordering::Less => Ordering::Greater,
            Ordering::Equal => {
                let suffix = self.block.records().get(suffix_at..suffix_at + suffix).unwrap_or_default();
                compare_rest(suffix, self.key, &mut self.matched)
            }
        };
        Ok(Some((order, at)))
    }
}
