//! Transactions: many reads and writes that take effect together or not at all, kept apart from others by locks.
//!
//! A transaction keeps what it writes to itself ([`writes`]) and reads it back from there; the database hears of it at the
//! commit, as one batch. What keeps others out are locks on keys and ranges ([`terrane_locks`]), held to the end: two-phase locking.
//! What a reader sees without locks is a sequence (multi-version).
//!
//! | isolation | a read sees | a read locks | a write locks | a write fails if |
//! |---|---|---|---|---|
//! | read committed | the latest | nothing | its key | |
//! | snapshot | the beginning | nothing | its key | the key was changed since the beginning |
//! | serializable | the latest | its key; of a scan: all it passes | its key | |
//! | optimistic | the beginning | at commit, if serializable | at commit | at commit: what it locks was changed since the beginning |
//!
//! # Rules
//! * Locks are let go of after the commit is *published*, so whoever gets one next reads what was committed.
//! * What is read for a later write ([`cursor::rows`], `get_for_update`) is locked, and the latest, at every level but the optimistic one.
//! * A lock comes first, and then the look at what is there ([`crate::read::newer`]): between the two nobody changes it.
//! * Writers that are no transactions (batches, single puts) lock what they write for as long as their commit takes, from the first
//!   transaction on ([`plain`]).
//!
//! # Concurrency
//! A transaction belongs to one thread at a time. What transactions share is the lock table and the prepared ones.
//!
//! # After a crash
//! What was not committed is gone, and nobody has seen it. What was prepared is there again, with its locks ([`prepared`]).

pub(crate) mod attach;
pub(crate) mod big;
mod claims;
pub(crate) mod cursor;
pub(crate) mod options;
pub(crate) mod plain;
pub(crate) mod prepared;
pub(crate) mod reads;
pub(crate) mod refusal;
pub(crate) mod savepoint;
pub(crate) mod shared;
pub(crate) mod transaction;
pub(crate) mod validate;
pub(crate) mod writes;
