//! The block cache of Terrane, and the sampling of heat.
//!
//! A *frame* holds one immutable byte string: a data block, an index block or a filter section, decompressed and verified
//! by whoever loaded it. It is named by extent and offset, and since extents are immutable and their ids never reused,
//! nothing is ever invalidated: removing the frames of an extent that is gone is only a courtesy to the others.
//!
//! ```text
//! slots --------------------------------\
//! with / get ---> table (lock-free) ---> frame [bytes | header]          reads: no lock, no count, at most one bit
//!                   ^                      ^
//! get_or_load ----> shard lock: books = queues + ghosts + loads under way   misses: a few short sections per shard
//!
//! part 0 (common): shards | part 1: shards | ...      a key says in which part to look, and each is sure of a share of the memory
//! accounts, slab                                      one for all parts
//! ```
//!
//! Read `frame` for the life of a frame, `table` for the lookup, `swizzle` for the way without one, `policy` for who stays,
//! `parts` for how those who use the cache are kept from each other, `moving` for how frames change parts, `accounts` for the budget,
//! `slab` for the memory, `below` for a store under the cache that takes what leaves.
//!
//! # Promises
//! - *Memory*: frames that can be found, frames that left but wait for a reader, and bookkeeping together stay within the
//!   capacity plus 5 %. When they would not, misses are served with *private* frames, which belong to their readers, as do
//!   blocks that are found below for the first time. What lies
//!   free between frames comes to that, see `slab`: little where the sizes of blocks stay, at most half as much again where they change.
//! - *One load*: threads that miss the same key in `get_or_load` at the same time, in one part, load it once; an error goes to all of them.
//! - *Scans*: what is read once passes through a tenth of the cache and leaves the rest alone.
//! - *Parts*: what a part holds within its share is not evicted for another one, unless all beyond the others' shares is in use.
//!
//! # Concurrency
//! Frames and tables are freed by epoch: a reader holds a guard for as long as it looks at a frame, or
//! a [`Pin`] for longer. Loom models of the protocol (lookup against eviction, insertion and growth; two misses of one
//! key; slots that are filled, emptied and filled again; frames that move between parts, and parts that close) are in `model.rs`, and one
//! of sampling is in `heat.rs`:
//! `RUSTFLAGS="--cfg loom" cargo test -p terrane-cache --lib model`.
//!
//! # After a crash
//! Nothing: all of it is memory.

mod accounts;
mod below;
mod cache;
mod entries;
mod epoch;
mod flight;
mod frame;
mod ghost;
mod heat;
mod hold;
mod key;
mod moving;
mod parts;
mod policy;
mod shard;
mod share;
mod slab;
mod swizzle;
mod table;
mod tally;

#[cfg(all(test, loom))]
mod model;

pub use below::{Below, Lying};
pub use cache::{Cache, CacheOptions, CacheStats};
pub use frame::{Pin, Priority, bring_near};
pub use heat::HeatSampler;
pub use hold::{Hold, Seen};
pub use key::FrameKey;
pub use moving::PartStats;
pub use swizzle::{Children, Slots, Swizzling};
