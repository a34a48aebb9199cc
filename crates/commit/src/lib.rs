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
//! Where bytes go to several places at once, each of which must grow in the same order, the leader assigns them in its turn:
//! [`Ring::reserve_in_turn`]. There is a mutex there, for the time that this takes.
//!
//! Beside it stands what outlasts the commit itself: which memtable an entry belongs to ([`Stretch`]), and from where on the log is
//! still needed ([`Pins`]).
//!
//! Elsewhere there is no mutex on this path, and no dedicated thread. What waits, waits on a `Completion`; a thread that blocks
//! there can be elected to go on with the ordering, so that nobody orders for others for ever.
//!
//! ```
//! use terrane_base::{Completion, Result, Settler, Wakes};
//! use terrane_commit::{Buckets, Filled, Group, Limits, Orderer, Ring, Role};
//!
//! struct Publish;
//!
//! impl Orderer<Group<Settler>> for Publish {
//!     fn settle(&self, group: &mut [Filled<Group<Settler>>], wakes: &mut Wakes) {
//!         // Make durable, publish; then:
//!         for filled in group {
//!             let end = filled.end();
//!             for member in filled.entry.take().into_iter().flatten() {
//!                 member.settle_later(Ok(end), wakes);
//!             }
//!         }
//!     }
//!     fn heir(&self, next: &Group<Settler>) -> Option<Completion> {
//!         next.iter().find_map(Settler::willing)
//!     }
//! }
//!
//! # fn main() -> Result<()> {
//! let buckets = Buckets::new(16, Limits { bytes: 1 << 20, count: 64 });
//! let ring = Ring::new(1024, 512)?;
//!
//! let outcome = Completion::new();
//! if let Role::Leader(lead) = buckets.enter(0, 40, outcome.settler()) {
//!     // Check whatever can fail: on an early return, dropping `lead` tells its followers. Then:
//!     let group = lead.close();
//!     let place = ring.reserve(5 * group.iter().count() as u64, &Publish)?;
//!     // Write to the log at `place.pos()` and into the memtable of `place.epoch()`. Then:
//!     place.fill(group);
//! }
//! assert_eq!(outcome.wait_helping(|| ring.resume(&Publish))?, 517);
//! # Ok(())
//! # }
//! ```
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
mod pins;
mod ring;
mod seats;
mod stretch;
mod word;

pub use bucket::{Buckets, Group, Lead, Limits, Role};
pub use order::{Filled, Orderer};
pub use pins::Pins;
pub use ring::{Boundary, MAX_SLOTS, MAX_UNITS, Reservation, Ring};
pub use stretch::{Stretch, of_epoch};

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod model;
