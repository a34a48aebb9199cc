//! What a refused lock is told as.

use terrane_base::{Error, ErrorKind};
use terrane_locks::Refusal;

use crate::db::table::Table;

/// The error for a lock on `key` (or on a range that begins there) that was not to be had.
pub(crate) fn refused(refusal: Refusal, table: &Table, key: &[u8]) -> Error {
    let (kind, what, hint) = match refusal {
        Refusal::Busy { holders } => (
            ErrorKind::LockBusy,
            format!("the lock is held by {}", named(&holders)),
            "try again later, or allow waiting",
        ),
        Refusal::TimedOut { holders } => (
            ErrorKind::LockTimeout,
            format!("the lock was held for too long by {}", named(&holders)),
            "roll back and begin anew, or allow waiting for longer",
        ),
        Refusal::Deadlock { cycle } => {
            let steps: Vec<String> = cycle.iter().map(ToString::to_string).collect();
            (
                ErrorKind::Deadlock,
                format!("transactions wait for each other: {}", steps.join("; ")),
                "roll back and begin anew; transactions that lock in one order do not meet like this",
            )
        }
    };
    Error::new(kind, what).with_subtable(&*table.name).with_key(key).with_hint(hint)
}

fn named(holders: &[u64]) -> String {
    let names: Vec<String> = holders.iter().map(|n| format!("transaction {n}")).collect();
    if names.is_empty() { "somebody who has let go of it since".to_owned() } else { names.join(", ") }
}

/// The error for a key that somebody else changed since the transaction began.
pub(crate) fn conflict(table: &Table, key: &[u8]) -> Error {
    Error::new(ErrorKind::WriteConflict, "it was changed after this transaction began")
        .with_subtable(&*table.name)
        .with_key(key)
        .with_hint("roll back and begin anew")
}
