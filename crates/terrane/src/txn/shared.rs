//! What all transactions of a database share.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use terrane_base::Lsn;
use terrane_base::metrics::Counter;
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
    /// Prepared transactions whose commit need not be durable yet: where each was prepared, and where its commit ends. As long as it is not,
    /// a power failure must leave the prepare.
    pub(crate) ended: Mutex<Vec<(Lsn, Lsn)>>,
    /// In doubt, by xid.
    pub(crate) prepared: Mutex<BTreeMap<Vec<u8>, Arc<Prepared>>>,
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
            ended: Mutex::default(),
            prepared: Mutex::default(),
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
