//! Concurrent ordered in-memory indexes: the search structure of a memtable.
//!
//! A [`MemIndex`] maps keys to records of several versions. The records lie in a [`RecordArena`], written once and never
//! moved; the index over them holds addresses, no keys. Two structures can be chosen ([`IndexKind`]): the adaptive radix
//! tree, which is the default, and a skiplist from `crossbeam-skiplist`, the option and the oracle of the tests.

mod art;
mod cursor;
mod index;
mod memory;
mod record;
mod skiplist;
mod spare;

pub use cursor::{Cursor, IndexCursor, Seeking, Versions};
pub use index::{IndexKind, MAX_KEY_BYTES, MAX_VALUE_BYTES, MemIndex, Search};
pub use memory::ChunkSource;
pub use record::{Record, RecordArena, RecordPtr};
