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
//! *Ranges* lie in balanced trees (`tree.rs`), apart by subtable and mode: to find those that conflict with a wish takes steps as many as
//! the logarithm of how many there are, and as many for each that is found. A key that no range of others stands against is locked as if
//! there were none. Those of one owner that touch become one (`stretches.rs`), so that a scan holds one range however far it goes.
//!
//! *Escalation.* When an owner holds very many keys of a subtable in one mode, ranges in that mode take their place, each where
//! nothing of others stands against it; so it goes with ranges that do not touch. Shared keys are counted apart from exclusive ones, and
//! become shared ranges: others may go on reading what was only read. An exclusive range covers what lies between exclusive keys, keys
//! that its owner shares as well as gaps: it locks more than was asked for in any case, and only what no other holds. An exclusive key within
//! a shared range stays locked by itself. What takes the place of others stays until the owner gives back all, as what it
//! replaced may be older than any mark.
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
