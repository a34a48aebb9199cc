//! The records of a memtable in persistent memory.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use terrane_base::{Lsn, MemoryBudget};
use terrane_chainlog::{Chain, ChainIndex};
use terrane_memindex::MemIndex;

use crate::chains::Chains;

/// Nothing says yet that the records are elsewhere too.
const NEEDED: u64 = u64::MAX;

/// A chain with an index over it. Whoever drops it last gives the chain back, if it is not needed any more.
#[derive(Debug)]
pub(crate) struct ChainRecords {
    /// There until it is dropped.
    index: Option<ChainIndex>,
    chains: Arc<Chains>,
    budget: MemoryBudget,
    /// Bytes of its zones that the budget knows of.
    charged: AtomicUsize,
    /// Where all commits were settled when it was not needed any more, or [`NEEDED`].
    settled: AtomicU64,
}

impl ChainRecords {
    pub(crate) fn new(chains: &Arc<Chains>, chain: Chain, index: MemIndex, budget: MemoryBudget) -> Self {
        let records = ChainRecords {
            index: Some(ChainIndex::new(chain, index)),
            chains: chains.clone(),
            budget,
            charged: AtomicUsize::new(0),
            settled: AtomicU64::new(NEEDED),
        };
        records.charge();
        records
    }

    pub(crate) fn index(&self) -> &ChainIndex {
        match &self.index {
            Some(index) => index,
            None => unreachable!("taken by drop alone"),
        }
    }

    /// Tells the budget of zones that were opened.
    pub(crate) fn charge(&self) {
        let bytes = self.index().chain().bytes() as usize;
        if bytes > self.charged.load(Ordering::Relaxed) {
            // Whoever raises it charges what it is raised by.
            let before = self.charged.fetch_max(bytes, Ordering::Relaxed);
            self.budget.charge(bytes.saturating_sub(before));
        }
    }

    /// The memory's file.
    pub(crate) fn path(&self) -> &Path {
        self.chains.space().path()
    }

    /// Bytes of its zones.
    pub(crate) fn bytes(&self) -> usize {
        self.charged.load(Ordering::Relaxed)
    }

    /// Those that are filled.
    pub(crate) fn filled_bytes(&self) -> usize {
        self.index().chain().filled_bytes() as usize
    }

    /// A durable edit of the manifest says that all its records are in extents or their subtable is gone, and that all commits before
    /// `settled`, those in it among them, were.
    pub(crate) fn not_needed(&self, settled: Lsn) {
        self.settled.store(settled, Ordering::Release);
    }
}

impl Drop for ChainRecords {
    fn drop(&mut self) {
        let settled = *self.settled.get_mut();
        // Before its zones come free, of which those are told who wait for memory.
        self.budget.release(*self.charged.get_mut());
        if let Some(index) = self.index.take()
            && settled != NEEDED
        {
            self.chains.release(index.into_chain(), settled);
        }
    }
}
