//! What all transactions of a database share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use terrane_base::metrics::Counter;
use terrane_commit::Pins;
use terrane_locks::{LockOptions, LockTable, Owner};

use crate::txn::prepared::Prepared;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Transactions {
    pub(crate) locks: Arc<LockTable>,
    /// Numbers of lock owners: the younger, the larger.
    next: AtomicU64,
    /// Writers that are no transactions lock what they write.
    guarded: AtomicBool,
    /// And none that does not is on its way any more.
    guard_stands: AtomicBool,
    pub(crate) guarding: Mutex<()>,
    pub(crate) prepared: Pins<Prepared>,
    pub(crate) begun: Counter,
    pub(crate) committed: Counter,
    pub(crate) conflicts: Counter,
}

impl Transactions {
    pub(crate) fn new() -> Self {
        Transactions {
            locks: LockTable::new(LockOptions::default()),
            next: AtomicU64::new(1),
            guarded: AtomicBool::new(false),
            guard_stands: AtomicBool::new(false),
            guarding: Mutex::new(()),
            prepared: Pins::default(),
            begun: Counter::new(),
            committed: Counter::new(),
            conflicts: Counter::new(),
        }
    }

    /// Somebody new who may hold locks.
    pub(crate) fn owner(&self) -> Owner {
        self.locks.owner(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether a commit that holds no locks must not go on. To be read after its place in the log is reserved: see
    /// [`crate::txn::plain`].
    #[inline]
    pub(crate) fn guarded(&self) -> bool {
        self.guarded.load(Ordering::Acquire)
    }

    pub(crate) fn guard_stands(&self) -> bool {
        self.guard_stands.load(Ordering::Acquire)
    }

    /// From here on commits that reserve their place see it.
    pub(crate) fn begin_guard(&self) {
        self.guarded.store(true, Ordering::SeqCst);
    }

    /// Those that did before are published.
    pub(crate) fn end_guard(&self) {
        self.guard_stands.store(true, Ordering::Release);
    }
}
