//! Chain logs: commits in persistent memory that need no log beside what they write.
//!
//! The records of a commit go to where they stay, the zones of the memtables they belong to ([`Chain`]), each memtable's as one *item*.
//! Then one word for each of these memtables makes it a commit; nothing is written twice, and no log is replayed
//! ([`terrane_format::chain`] draws the bytes). A crash can come between two words of a commit. Words are therefore stored in the
//! order of the commits, those of one durably before the first of the next, so that only the last commit can be incomplete; each word has
//! beside where it points now where it pointed before, so what there is of that commit is taken back with one shift of each
//! ([`recover()`]).
//!
//! Source: "Revisiting the Design of LSM-tree Based OLTP Storage Engine with Persistent Memory" (VLDB 2021), "ROR".
//!
//! # What a commit does
//! 1. [`Space::admit`]: zones that it may open are set aside, so that nothing behind fails for want of them. (Or it has none, and takes no place
//!    anywhere if [`Chain::has_room`] says in its turn that it would need one.)
//! 2. In its turn (`Ring::reserve_in_turn` of `terrane-commit`) it takes a place in each memtable: [`Chain::assign`]. Turns
//!    come in the order of the commits, so what lies before an item in its zones is of earlier commits.
//! 3. It writes its items, in parallel with others ([`Place::write`], [`Place::write_one`]), fences, and tells the memtables'
//!    indexes where their records lie ([`ChainIndex::insert`]).
//! 4. Whoever orders has each word point at its item ([`Chain::advance`]), commit by commit, and fences behind each commit. A commit
//!    that was not written ends this: none behind it is ever committed.
//!
//! # After a crash
//! [`recover()`] gives what was committed: all whose fence of step 4 was passed, and perhaps one more, whole. Zones that were opened
//! for what was not committed are free again.

#![warn(missing_docs)]
#![deny(unsafe_code)]

mod chain;
#[allow(unsafe_code, reason = "it tells an index where in the mapped memory records lie")]
mod index;
mod item;
mod lent;
mod place;
mod recover;
mod space;
#[allow(unsafe_code, reason = "it says of zones that they are nobody else's memory")]
mod volatile;

pub use chain::Chain;
pub use index::ChainIndex;
pub use item::Item;
pub use lent::LentZone;
pub use place::{Place, Stored, StoredOne, Written};
pub use recover::{Recovered, recover};
pub use space::{Admission, Space};
pub use terrane_halloc::Plan;
pub use volatile::VolatileZones;
