//! Compaction, seen from the engine: *pick* what to merge (pure), *plan* how (pure), *run* it on the compaction room's
//! scheduler, *install* the outcome.
//!
//! A job works on one *piece*: a key range of all L0 runs and L1, or of a level and the one below, about
//! `piece_bytes` large, or less in L0's pass. What straddles the piece's edges is trimmed, not rewritten, so that pieces stay small whatever
//! the shape of the tree, each is installed by itself, and space comes back as the work goes on. Of what readers have in the cache
//! less is merged at a time (`share`).

pub(crate) mod busy;
pub(crate) mod claim;
pub(crate) mod dead;
pub(crate) mod inputs;
pub(crate) mod pick;
pub(crate) mod plan;
pub(crate) mod run;
mod share;
pub(crate) mod warm;
