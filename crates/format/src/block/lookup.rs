//! Point lookup in a block: binary search over the leaves' first keys, then a walk through one leaf that copies no key.
//!
//! The walk keeps `matched`, the length of the prefix that the searched key has in common with the record before. Since
//! every record stores the exact length it shares with its predecessor, comparing that with `matched` decides most
//! records without looking at their keys:
//! - it shares more: it differs from the searched key where its predecessor did, so it is still before it;
//! - it shares less: it is greater than its predecessor within `matched`, so it is behind the searched key;
//! - it shares as much: only its suffix has to be compared.

use terrane_base::{Result, Seq};

use super::view::Record;
use super::{Block, common_prefix};
use crate::Kind;

/// The newest record of exactly `key` with a sequence of at most `seq`. Allocates nothing.
///
/// # Errors
/// [`terrane_base::ErrorKind::Corruption`] for damaged bytes, `NewerFormat` for a kind that this version does not know.
pub fn get<'a>(block: Block<'a>, key: &[u8], seq: Seq) -> Result<Option<(Seq, Kind, &'a [u8])>> {
    let behind = block.leaves_before(key, seq, false)?;
    if let Some(leaf) = behind.checked_sub(1)
        && let Some(found) = get_in_leaf(block, leaf, key, seq)?
    {
        return Ok(Some(found));
    }
    // All records up to here are before (key, seq), so the next leaf's first record is the only candidate left.
    if behind == block.leaves() {
        return Ok(None);
    }
    let (record, head) = block.leaf_head(behind)?;
    if head != key {
        return Ok(None);
    }
    found(block, record, block.seq_at(behind * block.leaf_records())?).map(Some)
}

fn get_in_leaf<'a>(
    block: Block<'a>,
    leaf: u32,
    key: &[u8],
    seq: Seq,
) -> Result<Option<(Seq, Kind, &'a [u8])>> {
    let first = leaf * block.leaf_records();
    let end = block.rows().min(first + block.leaf_records());
    let mut at = block.leaf_start(leaf)?;
    let mut matched = 0;
    for position in first..end {
        let record = block.record_at(at)?;
        at = record.next;
        let shared = record.shared as usize;
        if shared > matched {
            continue;
        }
        if shared < matched {
            return Ok(None);
        }
        let suffix = block.slice(record.suffix, record.value);
        let rest = &key[matched..];
        let common = common_prefix(suffix, rest);
        match (suffix.get(common), rest.get(common)) {
            (None, None) => {
                let record_seq = block.seq_at(position)?;
                if record_seq <= seq {
                    return found(block, record, record_seq).map(Some);
                }
            }
            (Some(_), None) => return Ok(None),
            (Some(a), Some(b)) if a > b => return Ok(None),
            _ => {}
        }
        matched += common;
    }
    Ok(None)
}

#[inline]
fn found<'a>(block: Block<'a>, record: Record, seq: Seq) -> Result<(Seq, Kind, &'a [u8])> {
    Ok((seq, Kind::from_u8(record.kind)?, block.slice(record.value, record.next)))
}
