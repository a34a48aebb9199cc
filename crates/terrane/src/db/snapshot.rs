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

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use terrane_base::Seq;
use terrane_base::metrics::{STRIPES, stripe};

/// Sequences, ascending, and how often each is registered. Most come at the end and many go at the front, soon.
#[derive(Debug, Default)]
struct Shard(VecDeque<(Seq, u32)>);

impl Shard {
    fn add(&mut self, seq: Seq) {
        match self.0.back_mut() {
            Some((last, n)) if *last == seq => *n += 1,
            Some((last, _)) if *last > seq => match self.find(seq) {
                Ok(at) => self.0[at].1 += 1,
                Err(at) => self.0.insert(at, (seq, 1)),
            },
            _ => self.0.push_back((seq, 1)),
        }
    }

    fn remove(&mut self, seq: Seq) {
        let found = self.find(seq);
        debug_assert!(found.is_ok(), "{seq} is not registered here");
        if let Ok(at) = found {
            self.0[at].1 -= 1;
            if self.0[at].1 == 0 {
                self.0.remove(at);
            }
        }
    }

    fn find(&self, seq: Seq) -> Result<usize, usize> {
        self.0.binary_search_by_key(&seq, |(s, _)| *s)
    }
}

/// All registered snapshots of a database.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    shards: [CachePadded<Mutex<Shard>>; STRIPES],
}

impl AsRef<Snapshots> for Snapshots {
    fn as_ref(&self) -> &Snapshots {
        self
    }
}

impl Snapshots {
    /// The sequences that a merge must respect, ascending, `published` (read by the caller before this call) included.
    pub(crate) fn collect(&self, published: Seq) -> Vec<Seq> {
        let mut all = vec![published];
        for shard in &self.shards {
            all.extend(shard.lock().0.iter().map(|(seq, _)| *seq));
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
            let registered = &shard.lock().0;
            count += registered.iter().map(|&(_, n)| u64::from(n)).sum::<u64>();
            if let Some(&(s, _)) = registered.front() {
                oldest = Some(oldest.map_or(s, |o: Seq| o.min(s)));
            }
        }
        (count, oldest)
    }
}

/// Keeps one sequence registered among those of `A`: for a short time a reference, else what keeps them in memory.
#[derive(Debug)]
pub(crate) struct Registered<A: AsRef<Snapshots>> {
    pub(crate) among: A,
    /// [`HANDED_ON`] once another one keeps it.
    shard: usize,
    pub(crate) seq: Seq,
}

const HANDED_ON: usize = usize::MAX;

/// One that needs nothing else to last.
pub(crate) type SnapshotGuard = Registered<Arc<Snapshots>>;

impl<A: AsRef<Snapshots>> Registered<A> {
    /// Registers the sequence that `published` returns at this moment.
    pub(crate) fn new(among: A, published: impl FnOnce(&A) -> Seq) -> Self {
        let shard = stripe();
        let mut registered = among.as_ref().shards[shard].lock();
        let seq = published(&among);
        registered.add(seq);
        drop(registered);
        Registered { among, shard, seq }
    }

    /// Registers the sequence once more, `among` the same snapshots: in the same shard, for whoever collects might have passed
    /// another one already.
    pub(crate) fn again<B: AsRef<Snapshots>>(&self, among: B) -> Registered<B> {
        debug_assert!(std::ptr::eq(among.as_ref(), self.among.as_ref()));
        among.as_ref().shards[self.shard].lock().add(self.seq);
        Registered { among, shard: self.shard, seq: self.seq }
    }

    /// Has it kept through `among` from now on, the same snapshots.
    pub(crate) fn handed_to<B: AsRef<Snapshots>>(mut self, among: B) -> Registered<B> {
        debug_assert!(std::ptr::eq(among.as_ref(), self.among.as_ref()));
        let shard = std::mem::replace(&mut self.shard, HANDED_ON);
        Registered { among, shard, seq: self.seq }
    }
}

impl<A: AsRef<Snapshots> + Clone> Clone for Registered<A> {
    fn clone(&self) -> Self {
        self.again(self.among.clone())
    }
}

impl<A: AsRef<Snapshots>> Drop for Registered<A> {
    fn drop(&mut self) {
        if let Some(shard) = self.among.as_ref().shards.get(self.shard) {
            shard.lock().remove(self.seq);
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
        let a = Registered::new(s.clone(), |_| 5);
        let b = a.again(&*s);
        let c = Registered::new(&*s, |_| 9);
        drop(a);
        assert_eq!(s.collect(20), vec![5, 9, 20]);
        assert_eq!(s.summary(), (2, Some(5)));
        drop(b);
        assert_eq!(s.collect(20), vec![9, 20]);
        // An old one that is shared again, while there are newer ones.
        let d = Registered::new(&*s, |_| 4);
        assert_eq!(s.collect(20), vec![4, 9, 20]);
        drop((c, d));
        assert_eq!(s.summary(), (0, None));
    }

    #[test]
    fn one_that_is_shared_or_handed_on_stays_in_its_shard_whichever_thread_does_it() {
        let s = Arc::new(Snapshots::default());
        let a = Registered::new(s.clone(), |_| 5);
        let others: Vec<_> =
            (0..STRIPES).map(|_| std::thread::scope(|t| t.spawn(|| a.again(&*s)).join().unwrap())).collect();
        assert!(others.iter().all(|b| b.shard == a.shard));
        let c = a.handed_to(&*s);
        assert_eq!(s.summary(), (STRIPES as u64 + 1, Some(5)));
        drop(others);
        assert_eq!((s.collect(9), s.summary()), (vec![5, 9], (1, Some(5))));
        drop(c);
        assert_eq!(s.summary(), (0, None));
    }
}
