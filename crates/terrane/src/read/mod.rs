//! The read path: point lookups, batches of them, and iterators, over memtables and levels, without locks.

pub(crate) mod blocks;
pub(crate) mod entry;
pub(crate) mod iter;
pub(crate) mod kept;
pub(crate) mod lead;
pub(crate) mod left;
pub(crate) mod lookup;
pub(crate) mod merge;
pub(crate) mod multi;
pub(crate) mod near;
pub(crate) mod newer;
pub(crate) mod reader;
pub(crate) mod resume;
pub(crate) mod rows;
pub(crate) mod run_cursor;
pub(crate) mod scan;
mod skipped;
pub(crate) mod source;
pub(crate) mod turns;
