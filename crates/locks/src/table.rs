//! The lock table.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use terrane_base::SubtableId;
use terrane_base::sync::atomic::{AtomicU64, Ordering};
use terrane_base::sync::{Mutex, MutexGuard};

use crate::cell::{Cell, Verdict};
use crate::graph::{Graph, Owners};
use crate::lock;
use crate::mode::Mode;
use crate::owner::Owner;
use crate::patience::Patience;
use crate::refusal::Refusal;
use crate::shard::Shard;
use crate::wish::{Reach, Wish};

/// In so many parts a range spends its patience: what it waits in a shard in less than a part is not counted, for want of a clock.
const SLICES: u32 = 8;

/// How a lock table is made.
#[derive(Clone, Copy, Debug)]
pub struct LockOptions {
    /// Parts with a mutex each. Key locks get along with each other better the more there are; a range lock is entered in all of them.
    pub shards: usize,
    /// So many key locks of one owner in one subtable that are all shared, or all exclusive, are replaced by a few ranges in that mode
    /// that cover them, if others hold nothing between them that stands against it. So are ranges that do not touch, at a sixteenth of
    /// this number (but more than a few): a range is entered in every shard. A key of 128 bytes or more counts as several, one more for
    /// each 128 bytes.
    pub escalate_at: usize,
}

impl Default for LockOptions {
    fn default() -> Self {
        LockOptions { shards: 64, escalate_at: 65_536 }
    }
}

/// How much a lock table holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Key locks that are held. One that two owners share counts twice.
    pub keys: u64,
    /// Range locks that are held.
    pub ranges: u64,
    /// Requests that wait.
    pub waiting: u64,
    /// Requests that ever had to wait. A range may have to in each shard.
    pub waits: u64,
    /// Requests that were refused because of a deadlock.
    pub deadlocks: u64,
    /// Requests whose patience ran out.
    pub timeouts: u64,
    /// Times that key locks, or ranges, were replaced by fewer ranges.
    pub escalations: u64,
}

/// Locks on keys and key ranges: see the head of the crate.
pub struct LockTable {
    shards: Box<[Part]>,
    graph: Mutex<Graph>,
    escalate_at: usize,
    escalations: AtomicU64,
}

/// Two neighbours never share a cache line.
#[repr(align(128))]
struct Part(Mutex<Shard>);

impl LockTable {
    /// One in which nothing is locked.
    pub fn new(options: LockOptions) -> Arc<LockTable> {
        let shards = (0..options.shards.max(1)).map(|_| Part(Mutex::new(Shard::default())));
        Arc::new(LockTable {
            shards: shards.collect(),
            graph: Mutex::new(Graph::default()),
            escalate_at: options.escalate_at.max(1),
            escalations: AtomicU64::new(0),
        })
    }

    /// What is held and was done. Looks at the shards one after the other.
    pub fn counts(&self) -> Counts {
        let mut counts =
            Counts { escalations: self.escalations.load(Ordering::Relaxed), ..Counts::default() };
        for part in &self.shards {
            let shard = lock(&part.0);
            counts.keys += shard.key_locks();
            counts.waiting += shard.waiting() as u64;
            // Held is what stands in the last as well.
            counts.ranges = shard.ranges();
        }
        let graph = lock(&self.graph);
        Counts { waits: graph.waits, deadlocks: graph.deadlocks, timeouts: graph.timeouts, ..counts }
    }

    /// An owner that holds nothing. At any time no two owners may have the same number: they would not stand against each other.
    pub fn owner(self: &Arc<Self>, number: u64) -> Owner {
        Owner::new(self.clone(), number)
    }

    pub(crate) fn escalate_at(&self) -> usize {
        self.escalate_at
    }

    pub(crate) fn count_escalation(&self, succeeded: bool) {
        if succeeded {
            self.escalations.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn lock_key(&self, key: Place<'_>, mode: Mode, patience: Patience) -> Result<(), Refusal> {
        let mut shard = self.shard(key.hash);
        if shard.try_key(key.owner, key.subtable, key.key, mode) {
            return Ok(());
        }
        let wish = Wish {
            owner: key.owner,
            subtable: key.subtable,
            mode,
            start: key.key.clone(),
            reach: Reach::Key,
            serial: 0,
        };
        let mut patience = patience;
        let slice = match patience {
            Patience::For(all) => all,
            Patience::Never | Patience::Forever => Duration::ZERO,
        };
        self.lock_in(&self.of(key.hash).0, shard, &Arc::new(wish), &mut patience, slice)
    }

    /// Locks a range in all shards, or in none. If its owner holds `parts` that touch it, `whole` stands for it and them from then on, and
    /// otherwise for it alone.
    pub(crate) fn lock_range(
        &self,
        range: &Arc<Wish>,
        parts: &[Arc<Wish>],
        whole: &Arc<Wish>,
        patience: Patience,
    ) -> Result<(), Refusal> {
        let mut patience = patience;
        let slice = match patience {
            Patience::For(all) => (all / SLICES).max(Duration::from_nanos(1)),
            Patience::Never | Patience::Forever => Duration::ZERO,
        };
        for (at, Part(mutex)) in self.shards.iter().enumerate() {
            let mut shard = lock(mutex);
            if !parts.is_empty() && shard.blockers(range).is_empty() {
                shard.replace_ranges(parts, whole);
                shard.settle(&self.graph);
            } else if let Err(refusal) = self.lock_in(mutex, shard, range, &mut patience, slice) {
                self.unlock_range_in(&self.shards[..at], parts, whole);
                return Err(refusal);
            } else if !parts.is_empty() {
                let mut shard = lock(mutex);
                shard.replace_ranges(parts, whole);
                shard.remove_range(range);
            }
        }
        Ok(())
    }

    /// Locks in one shard, whose mutex is held.
    #[cold]
    fn lock_in<'s>(
        &'s self,
        mutex: &'s Mutex<Shard>,
        mut shard: MutexGuard<'s, Shard>,
        wish: &Arc<Wish>,
        patience: &mut Patience,
        slice: Duration,
    ) -> Result<(), Refusal> {
        let blockers = shard.blockers(wish);
        if blockers.is_empty() {
            shard.enter(wish);
            shard.settle(&self.graph);
            return Ok(());
        }
        if *patience == Patience::Never {
            return Err(Refusal::Busy { holders: sorted(blockers) });
        }
        let cell = Arc::new(Cell::new());
        shard.push(wish, &cell);
        lock(&self.graph).enter(wish, &cell, blockers);
        drop(shard);
        if let Verdict::Granted = cell.wait(patience, slice) {
            return Ok(());
        }
        // It may have been granted meanwhile: the mutexes decide.
        let mut shard = lock(mutex);
        let mut graph = lock(&self.graph);
        let refusal = match cell.verdict() {
            Verdict::Granted => return Ok(()),
            Verdict::Waiting => Refusal::TimedOut { holders: sorted(graph.give_up(wish.owner)) },
            Verdict::Victim(cycle) => Refusal::Deadlock { cycle },
        };
        drop(graph);
        shard.withdraw(&cell);
        shard.settle(&self.graph);
        Err(refusal)
    }

    #[inline]
    pub(crate) fn unlock_key(&self, key: Place<'_>) {
        let mut shard = self.shard(key.hash);
        shard.remove_key(key.owner, key.subtable, key.key);
        shard.settle(&self.graph);
    }

    pub(crate) fn downgrade_key(&self, key: Place<'_>) {
        let mut shard = self.shard(key.hash);
        shard.downgrade_key(key.owner, key.subtable, key.key);
        shard.settle(&self.graph);
    }

    pub(crate) fn unlock_range(&self, range: &Arc<Wish>) {
        self.unlock_range_in(&self.shards, &[], range);
    }

    /// Gives a range back, all but `parts` of it.
    fn unlock_range_in(&self, shards: &[Part], parts: &[Arc<Wish>], range: &Arc<Wish>) {
        for Part(mutex) in shards {
            let mut shard = lock(mutex);
            parts.iter().for_each(|part| shard.enter(part));
            shard.remove_range(range);
            shard.settle(&self.graph);
        }
    }

    /// Puts a range of an owner in the place of others of it, which together cover the same. Nothing changes for those who wait.
    pub(crate) fn join_ranges(&self, parts: &[Arc<Wish>], whole: &Arc<Wish>) {
        self.shards.iter().for_each(|Part(mutex)| lock(mutex).replace_ranges(parts, whole));
    }

    /// Takes out ranges of an owner that cover nothing but what others of it cover as well. Nothing changes for those who wait.
    pub(crate) fn drop_ranges(&self, parts: &[Arc<Wish>]) {
        for Part(mutex) in self.shards.iter().filter(|_| !parts.is_empty()) {
            let mut shard = lock(mutex);
            parts.iter().for_each(|range| shard.remove_range(range));
        }
    }

    #[inline]
    fn of(&self, hash: u64) -> &Part {
        // The upper half, scaled: owners find their keys by the lower one.
        &self.shards[((hash >> 32) as usize * self.shards.len()) >> 32]
    }

    #[inline]
    fn shard(&self, hash: u64) -> MutexGuard<'_, Shard> {
        lock(&self.of(hash).0)
    }

    #[cfg(test)]
    pub(crate) fn parts(&self) -> (impl Iterator<Item = &Mutex<Shard>>, &Mutex<Graph>) {
        (self.shards.iter().map(|part| &part.0), &self.graph)
    }
}

/// A key, who locks it, and where it lies in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'k> {
    pub(crate) owner: u64,
    pub(crate) subtable: SubtableId,
    pub(crate) key: &'k Arc<[u8]>,
    pub(crate) hash: u64,
}

fn sorted(owners: Owners) -> Vec<u64> {
    let mut owners = owners.into_vec();
    owners.sort_unstable();
    owners
}

impl fmt::Debug for LockTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockTable").field("shards", &self.shards.len()).finish_non_exhaustive()
    }
}
