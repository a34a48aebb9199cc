//! What is said of blocks that cannot be read.

use terrane_base::{Error, ErrorKind};

/// Damage at `offset` of a block.
#[cold]
pub(super) fn bad(what: &str, offset: usize) -> Error {
    Error::corruption(format!("block {what}")).with_offset(offset as u64)
}

/// A block whose `what` only later versions know.
#[cold]
pub(super) fn newer(what: &str, value: u64) -> Error {
    Error::new(ErrorKind::NewerFormat, format!("block with {what} {value} is not known to this version"))
        .with_hint("open the database with the version that wrote it, or a later one")
}
