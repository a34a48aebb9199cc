//! Point lookup in a block.

use terrane_base::{Result, Seq};

use super::Block;
use crate::Kind;

/// The newest record of exactly `key` with a sequence of at most `seq`. Allocates nothing.
pub fn get<'a>(_block: Block<'a>, _key: &[u8], _seq: Seq) -> Result<Option<(Seq, Kind, &'a [u8])>> {
    todo!()
}
