//! Locks on keys and key ranges of subtables, for two-phase locking.
//!
//! A [`LockTable`] knows nothing of transactions but a number each, their [`Owner`]; a larger number is a younger owner. An owner
//! takes locks, waits for those of others as long as its [`Patience`] lasts, and gives back all of them or those since a [`Mark`].
//! A range covers keys that do not exist, which is what keeps phantoms away.
//!
//! # Concurrency
//! *Shards.* A key has its lock in one shard, a range is entered in all of them, in ascending order, and is held once it stands in
//! each. So whatever conflicts meets in some shard, under that shard's mutex, and no mutex is common to all.
//!
//! *Order.* Requests wait in each shard in order of arrival. One is granted when nothing that conflicts with it is held by others
//! or waits in front of it. A request in front does not count if it waits for the very owner that asks, be it in turn: to let it go
//! first would be a deadlock. That is how upgrades come first.
//!
//! *Hand-over.* Whoever changes a shard in which requests wait looks at all of them before it lets go of the mutex (`shard.rs`), and
//! enters the locks of those that nothing stands against any more. Nobody wakes up to compete.
//!
//! *Deadlocks* are found when the edge that closes a cycle is drawn (`graph.rs`), by whoever draws it. The youngest owner of the
//! cycle is refused, and keeps what it holds: to give that up is up to the caller.
//!
//! *Mutexes* are taken in this order: one shard, the graph, one cell. The graph is touched only where somebody waits.
//!
//! Loom models are in `model.rs`: `RUSTFLAGS="--cfg loom" cargo test -p terrane-locks --lib model`.

#![forbid(unsafe_code)]

mod cell;
mod graph;
mod ledger;
mod mode;
mod owner;
mod patience;
mod ranges;
mod refusal;
mod shard;
mod stretches;
mod table;
mod tree;
mod wish;

pub use mode::Mode;
pub use owner::{Held, Mark, Owner};
pub use patience::Patience;
pub use refusal::{Refusal, Step};
pub use table::{Counts, LockOptions, LockTable};

use terrane_base::sync::{Mutex, MutexGuard};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing panics under it.
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(all(test, loom))]
mod model;

#[cfg(all(test, not(loom)))]
mod tests;
