//! What every room of Terrane shares: errors, ids, memory budgets, metrics, waiters, seats, epochs, and the `sync` shims through
//! which lock-free code reaches atomics, so that a model checker can stand in for the real ones.
//!
//! This room depends on nothing of ours; everything else may depend on it.

#![forbid(unsafe_code)]

pub mod budget;
pub mod current;
pub mod error;
pub mod ids;
pub mod metrics;
#[cfg_attr(loom, allow(dead_code, reason = "its models alone use it"))]
pub mod reclaim;
pub mod seat;
pub mod sync;
pub mod waiter;

pub use budget::MemoryBudget;
pub use current::{Current, Epoch, Kept};
pub use error::{Error, ErrorKind, Result};
pub use ids::{ExtentId, Lsn, MAX_SEQ, Seq, SubtableId};
pub use waiter::{Completion, Settler, Waiter, Wakes};
