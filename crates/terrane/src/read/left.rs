//! Which subtables may have a scan that a closed cursor has left, so that a database keeps only so many.
//!
//! What is left (`read/scan.rs`) is a few KiB that no budget counts. A shard of readers notes its subtable here when it first
//! keeps something; of those that one shard number has noted, the one noted longest ago loses what is left there, once there are too
//! many. Up to that number a cursor that closes does not come here.
//!
//! # Concurrency
//! A subtable is noted by whoever has set its shard's flag, under the shard's lock, and struck off before the flag is taken back:
//! so each stands here once at most. No lock is held while another is taken.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use terrane_base::metrics::STRIPES;

use crate::db::table::Table;

/// Most subtables for which one shard keeps what was left.
pub(crate) const MOST: usize = 64;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct LeftScans {
    shards: [CachePadded<Mutex<VecDeque<Weak<Table>>>>; STRIPES],
}

impl LeftScans {
    /// Notes that `table` has something left in `shard`; another may lose what it has there. To be called without locks.
    #[cold]
    pub(crate) fn note(&self, shard: usize, table: &Arc<Table>) {
        let mut noted = self.shards[shard].lock();
        noted.push_back(Arc::downgrade(table));
        let gone = if noted.len() > MOST { noted.pop_front() } else { None };
        drop(noted);
        if let Some(table) = gone.and_then(|t| t.upgrade()) {
            table.readers.forget(shard);
        }
    }
}
