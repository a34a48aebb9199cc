//! How concurrent commits become one order: gather, reserve, fill, settle. Knows nothing of what a commit *is* or where
//! its bytes go: write-ahead log and persistent memory share it.
//!
//! A commit passes three stations:
//!
//! 1. [`Buckets`]: the first thread in a bucket leads and takes along those who arrive until it closes the group.
//! 2. [`Ring::reserve`]: the leader takes its place in the order, and so in the log, in one step; then it writes its
//!    bytes there and its records into the memtables, in parallel with other leaders; then it fills its slot.
//! 3. [`Orderer::settle`]: whoever finds the ring's head filled settles all consecutive filled slots: makes them
//!    durable if asked, publishes them, tells who waits.
//!
//! There is no mutex on this path and no dedicated thread. What waits, waits on a `Completion`; a thread that blocks
//! there can be elected to go on with the ordering, so that nobody orders for others for ever.
//!
//! # What a lone commit costs
//! Counted in atomic read-modify-writes, all on lines that this thread wrote last, without a lock and without an
//! allocation: two in the bucket (take the lead, close), three in the ring (reserve, take the order, leave it). A
//! `Completion` that travels with the entry and is renewed each time adds three (clone, settle, drop). The rest are
//! plain loads and stores.
//!
//! # After a crash
//! Nothing here outlives the process.

#![warn(missing_docs)]

mod bucket;
mod order;
mod ring;
mod word;

pub use bucket::{Buckets, Group, Lead, Limits, Role};
pub use order::{Filled, Orderer};
pub use ring::{Boundary, MAX_SLOTS, MAX_UNITS, Reservation, Ring};

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod model;
