//! Transactions that are larger than their share of memory.
//!
//! What a transaction has written beyond that is *spilled*: written to extents of its own as a sorted run, a *layer*, of each subtable
//! ([`run`]). Later layers stand above earlier ones; now and then layers are merged into one ([`layers`]). The transaction reads them
//! beneath what it still has in memory, and above the database. At the commit all layers of a subtable become one run, and all runs
//! are attached at once ([`crate::txn::attach`]). So its memory is bounded, its size by the device, and nobody else meets any of
//! it before.
//!
//! Sorted data is taken in the same way, without a transaction ([`ingest`]).
//!
//! # After a crash
//! Nothing refers to layers; their space is free.

pub(crate) mod ingest;
pub(crate) mod layers;
pub(crate) mod run;
