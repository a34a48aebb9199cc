//! What the range tombstones of one memtable cost: counted for the memtable, which freezes by it, and charged to the
//! budget of all memtables, which paces writers.
//!
//! # Invariants
//! Every allocation carries its own [`Charge`], given back when the last who shares it lets go. So bytes that only a
//! reader of an older picture still holds stay charged as long as they are there.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use terrane_base::MemoryBudget;

/// See the module's head.
#[derive(Debug)]
pub(super) struct Account {
    budget: MemoryBudget,
    used: AtomicUsize,
    /// Charges ever made: the work done, for tests.
    #[cfg(test)]
    made: AtomicUsize,
}

impl Account {
    pub(super) fn new(budget: MemoryBudget) -> Arc<Self> {
        Arc::new(Account {
            budget,
            used: AtomicUsize::new(0),
            #[cfg(test)]
            made: AtomicUsize::new(0),
        })
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }
}

/// Bytes charged until it is dropped.
#[derive(Debug)]
pub(super) struct Charge {
    account: Arc<Account>,
    bytes: usize,
}

impl Charge {
    pub(super) fn new(account: &Arc<Account>, bytes: usize) -> Self {
        account.used.fetch_add(bytes, Ordering::Relaxed);
        account.budget.charge(bytes);
        #[cfg(test)]
        account.made.fetch_add(1, Ordering::Relaxed);
        Charge { account: account.clone(), bytes }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.budget.release(self.bytes);
        self.account.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
