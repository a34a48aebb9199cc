//! What a transaction may be told when it begins.

use std::time::Duration;

use terrane_locks::Patience;

/// What a transaction sees of others, and what others may do to it. `docs/transactions.md` says which anomalies each level allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Isolation {
    /// Each read sees what is committed when it is made. What is written is locked.
    ReadCommitted,
    /// All reads see one moment, that at which the transaction began. What is written is locked, and the first one who changes a key
    /// wins: who comes later, having begun before, gets [`crate::ErrorKind::WriteConflict`]. Two transactions may each read
    /// what the other one writes.
    #[default]
    Snapshot,
    /// As if transactions ran one after the other. What is read is locked too, the gaps between the keys of a scan included, and
    /// is the latest.
    Serializable,
}

/// How long to wait for somebody else's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockWait {
    /// Not at all: fail with [`crate::ErrorKind::LockBusy`].
    No,
    /// That long at most, then fail with [`crate::ErrorKind::LockTimeout`].
    AtMost(Duration),
    /// Until it is free, or a deadlock is found.
    Forever,
}

impl Default for LockWait {
    fn default() -> Self {
        LockWait::AtMost(Duration::from_secs(1))
    }
}

impl From<LockWait> for Patience {
    fn from(wait: LockWait) -> Self {
        match wait {
            LockWait::No => Patience::Never,
            LockWait::AtMost(time) => Patience::For(time),
            LockWait::Forever => Patience::Forever,
        }
    }
}

/// How a transaction behaves.
#[derive(Clone, Debug, Default)]
pub struct TransactionOptions {
    pub(crate) isolation: Isolation,
    pub(crate) optimistic: bool,
    pub(crate) lock_wait: LockWait,
}

impl TransactionOptions {
    /// Snapshot isolation, with locks, waiting for one second.
    pub fn new() -> Self {
        Self::default()
    }

    /// What it sees of others. Default: [`Isolation::Snapshot`].
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> Self {
        self.isolation = isolation;
        self
    }

    /// Takes no locks and waits for nobody; at the commit it looks whether others have changed what it has written (under
    /// [`Isolation::Serializable`]: or read) since it began, and fails with [`crate::ErrorKind::WriteConflict`] if so. Cheaper
    /// where conflicts are rare. All its reads see the moment at which it began, whatever the isolation. What it has read takes
    /// bounded memory: of one that reads very much, changes close to what it has read may be conflicts too. Default: no.
    #[must_use]
    pub fn optimistic(mut self, yes: bool) -> Self {
        self.optimistic = yes;
        self
    }

    /// How long it waits for a lock. Default: one second.
    #[must_use]
    pub fn lock_wait(mut self, wait: LockWait) -> Self {
        self.lock_wait = wait;
        self
    }
}
