//! What was done, and what it returned.

use std::fmt;

pub type Key = u8;
/// Never written twice in a history.
pub type Value = u64;

/// What a transaction was begun as. `Plain`: an operation that is no transaction, or a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Plain,
    ReadCommitted,
    Snapshot,
    Serializable,
    OptimisticSnapshot,
    OptimisticSerializable,
}

/// A value, and the one that its writer had read before it, if it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    pub value: Value,
    pub replaces: Option<Value>,
}

#[derive(Clone, Debug)]
pub enum Op {
    Read {
        key: Key,
        seen: Option<Record>,
        /// Read under a lock of its own.
        locked: bool,
    },
    /// All keys from `from` to before `to`.
    Scan {
        from: Key,
        to: Key,
        seen: Vec<(Key, Record)>,
    },
    /// No record: it deletes.
    Write {
        key: Key,
        record: Option<Record>,
    },
    DeleteRange {
        from: Key,
        to: Key,
    },
    Savepoint,
    /// To the savepoint of that number among those that are there, which stays.
    RollbackTo(usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With its sequence, if it wrote.
    Committed(Option<u64>),
    /// Why.
    Aborted(String),
}

#[derive(Clone, Debug)]
pub struct Txn {
    pub level: Level,
    pub thread: usize,
    /// It had not begun before this moment, and had ended at that one. Moments are numbers of one clock.
    pub begin: u64,
    pub end: u64,
    pub ops: Vec<Op>,
    pub outcome: Outcome,
}

impl Txn {
    pub fn committed(&self) -> bool {
        matches!(self.outcome, Outcome::Committed(_))
    }
}

fn shown(record: Option<Record>) -> String {
    record.map_or("nothing".to_owned(), |r| match r.replaces {
        Some(old) => format!("{} (after {old})", r.value),
        None => r.value.to_string(),
    })
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Read { key, seen, locked } => {
                write!(f, "read{} k{key}: {}", if *locked { " locked" } else { "" }, shown(*seen))
            }
            Op::Scan { from, to, seen } => {
                write!(f, "scan k{from}..k{to}:")?;
                seen.iter().try_for_each(|(k, r)| write!(f, " k{k}={}", shown(Some(*r))))
            }
            Op::Write { key, record: None } => write!(f, "delete k{key}"),
            Op::Write { key, record } => write!(f, "write k{key}: {}", shown(*record)),
            Op::DeleteRange { from, to } => write!(f, "delete k{from}..k{to}"),
            Op::Savepoint => write!(f, "savepoint"),
            Op::RollbackTo(n) => write!(f, "roll back to savepoint {n}"),
        }
    }
}

impl fmt::Display for Txn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Txn { level, thread, begin, end, ops, outcome } = self;
        write!(f, "{level:?}, thread {thread}, from {begin} to {end}, {outcome:?}")?;
        ops.iter().try_for_each(|op| write!(f, "\n        {op}"))
    }
}
