//! Snapshots: sequences at which somebody still reads.
//!
//! A snapshot pins *versions of keys*, nothing else: merges keep, for each registered sequence, the newest version at
//! or below it.
//!
//! # Concurrency
//! Registrations are spread over shards by thread. A merge must not miss a snapshot that could need what it drops: it
//! first reads the published sequence V (all records it merges are at or below V, since only published records reach
//! extents), then collects the shards one by one. A registration that it misses happened after its shard was read, and
//! chose its sequence under that shard's lock, hence at or above V: such a snapshot sees the newest versions, which
//! every merge keeps.

use std::collections::BTreeMap;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use terrane_base::Seq;
use terrane_base::metrics::stripe;

const SHARDS: usize = 16;

/// All registered snapshots of a database.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    shards: [CachePadded<Mutex<BTreeMap<Seq, u32>>>; SHARDS],
}

impl Snapshots {
    /// Registers the sequence that `published` returns at this moment.
    pub(crate) fn register(self: &Arc<Self>, published: impl FnOnce() -> Seq) -> SnapshotGuard {
        let shard = stripe() % SHARDS;
        let mut map = self.shards[shard].lock();
        let seq = published();
        *map.entry(seq).or_insert(0) += 1;
        SnapshotGuard { all: self.clone(), shard, seq }
    }

    /// Registers `seq` once more; it must be registered already (so that nothing it needs can have been dropped).
    fn again(self: &Arc<Self>, shard: usize, seq: Seq) -> SnapshotGuard {
        *self.shards[shard].lock().entry(seq).or_insert(0) += 1;
        SnapshotGuard { all: self.clone(), shard, seq }
    }

    /// The sequences that a merge must respect, ascending, `published` (read by the caller before this call) included.
    pub(crate) fn collect(&self, published: Seq) -> Vec<Seq> {
        let mut all = vec![published];
        for shard in &self.shards {
            all.extend(shard.lock().keys().copied());
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// How many are registered, and the oldest.
    pub(crate) fn summary(&self) -> (u64, Option<Seq>) {
        let mut count = 0;
        let mut oldest = None;
        for shard in &self.shards {
            let map = shard.lock();
            count += map.values().map(|&n| u64::from(n)).sum::<u64>();
            if let Some((&s, _)) = map.first_key_value() {
                oldest = Some(oldest.map_or(s, |o: Seq| o.min(s)));
            }
        }
        (count, oldest)
    }
}

/// Keeps one sequence registered.
#[derive(Debug)]
pub(crate) struct SnapshotGuard {
    all: Arc<Snapshots>,
    shard: usize,
    pub(crate) seq: Seq,
}

impl Clone for SnapshotGuard {
    fn clone(&self) -> Self {
        self.all.again(self.shard, self.seq)
    }
}

impl Drop for SnapshotGuard {
    fn drop(&mut self) {
        let mut map = self.all.shards[self.shard].lock();
        if let Some(n) = map.get_mut(&self.seq) {
            *n -= 1;
            if *n == 0 {
                map.remove(&self.seq);
            }
        }
    }
}

/// A picture of the whole database that never changes. Cheap; holding one keeps the versions of keys that it sees (not
/// files, not memory), so do not hold one for ever. Cloning shares the picture.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(crate) guard: SnapshotGuard,
    pub(crate) database: u64,
}

impl Snapshot {
    /// The sequence it reads at: grows with every commit.
    pub fn sequence(&self) -> Seq {
        self.guard.seq
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_counts_until_its_last_holder_is_gone() {
        let s = Arc::new(Snapshots::default());
        let a = s.register(|| 5);
        let b = a.clone();
        let c = s.register(|| 9);
        drop(a);
        assert_eq!(s.collect(20), vec![5, 9, 20]);
        assert_eq!(s.summary(), (2, Some(5)));
        drop(b);
        assert_eq!(s.collect(20), vec![9, 20]);
        drop(c);
        assert_eq!(s.summary(), (0, None));
    }
}
