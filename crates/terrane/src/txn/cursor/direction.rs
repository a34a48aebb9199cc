//! The two ways in which a cursor goes, and what differs between them.
//!
//! Both go from a *cut*, a place between keys, to the nearest key on one side of it. A cut is named by the key right behind it,
//! whether or not that exists; nothing names the cut behind all keys.

use std::ops::Bound;
use std::sync::Arc;

use terrane_base::Result;

use crate::db::table::Table;
use crate::read::iter::Cursor;
use crate::txn::writes::{Own, OwnWrites};

/// A way to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Forward,
    Backward,
}

impl Way {
    /// Puts `base` on the nearest key past a cut.
    pub(super) fn seek(self, base: &mut Cursor, from: Option<&[u8]>) -> Result<()> {
        let Some(from) = from else {
            base.seek_to_last()?;
            return if self == Way::Forward { base.next() } else { Ok(()) };
        };
        match self {
            Way::Forward => base.seek(from),
            Way::Backward => {
                base.seek_for_prev(from)?;
                if base.valid() && base.key() == from { base.prev() } else { Ok(()) }
            }
        }
    }

    /// Puts `base` on the next key.
    pub(super) fn step(self, base: &mut Cursor) -> Result<()> {
        match self {
            Way::Forward => base.next(),
            Way::Backward => base.prev(),
        }
    }

    /// The cut right behind `key`, as one goes.
    pub(super) fn past(self, key: &[u8]) -> Vec<u8> {
        match self {
            Way::Forward => [key, &[0]].concat(),
            Way::Backward => key.to_vec(),
        }
    }

    /// The cut right before `key`, as one goes.
    pub(super) fn ahead_of(self, key: &[u8]) -> Vec<u8> {
        match self {
            Way::Forward => Way::Backward.past(key),
            Way::Backward => Way::Forward.past(key),
        }
    }

    /// Whether one meets `a` before `b`.
    pub(super) fn meets_first(self, a: &[u8], b: &[u8]) -> bool {
        match self {
            Way::Forward => a < b,
            Way::Backward => a > b,
        }
    }

    /// The nearest key past a cut that the transaction put or deleted by itself, with what is known of it.
    pub(super) fn own<'w>(
        self,
        writes: &'w OwnWrites,
        table: &Arc<Table>,
        from: Option<&[u8]>,
    ) -> Option<(&'w [u8], Own<'w>)> {
        match self {
            Way::Forward => writes.next(table, Bound::Included(from?)),
            Way::Backward => writes.prev(table, from.map_or(Bound::Unbounded, Bound::Excluded)),
        }
    }

    /// The cut at which the range ends, as one goes, that the transaction deleted with `key` in it.
    pub(super) fn out_of_deleted(
        self,
        writes: &OwnWrites,
        table: &Arc<Table>,
        key: &[u8],
    ) -> Option<Vec<u8>> {
        match self {
            Way::Forward => writes.deleted_up_to(table, key),
            Way::Backward => writes.deleted_from(table, key),
        }
    }
}
