//! The life of one subtable: a writer commits, a background thread freezes the memtable, writes it out into an extent,
//! installs the next version and drops the last, while readers look a key up, with a snapshot or without one.
//!
//! The roles follow `terrane::db` step by step (`commit`, `freeze`, `flush`, `snapshot`, `read::lookup`); one key stands for
//! all, and its versions are their sequences. What is checked:
//!
//! * *No gap.* A lookup finds a version at least as new as what was published before it began, and none that is not
//!   published. A lookup at a snapshot finds exactly the snapshot's.
//! * *The collector respects a snapshot* registered before or while it runs.
//! * *Nothing is read that was freed*: dropping an extent writes its cell, reading reads it, and loom fails a model in
//!   which the two can meet.
//! * *A commit finds the memtable of its epoch*, and nothing is added to a memtable that is written out.
//!
//! Each rule of the protocol is broken once on purpose ([`Flaw`]), and the models then fail. How many interleavings were
//! explored is printed (`--nocapture`). Not modelled: what arc-swap does inside, several writers (their order is the
//! commit ring's, which has models of its own), and the shards of snapshots beyond the first.

use std::sync::atomic::{AtomicU64 as Count, Ordering::Relaxed};

use crate::current::{Current, Epoch, lock};
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, UnsafeCell, thread};

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// The memtable leaves before the version that holds its records is shown.
    TwoSteps,
    /// A lookup takes the published sequence first and the state after.
    SequenceFirst,
    /// A snapshot chooses its sequence before it takes the shard's lock.
    UnlockedSequence,
    /// The epoch is bumped before the next memtable is there.
    BumpFirst,
    /// A memtable is written out before all that belongs to it is published.
    EarlyFlush,
    /// An extent is freed when it is replaced, whoever still reads.
    EagerFree,
}

#[derive(Debug)]
struct Extent {
    seqs: Vec<u64>,
    bytes: UnsafeCell<()>,
    freed: std::sync::atomic::AtomicBool,
}

impl Extent {
    fn new(seqs: Vec<u64>) -> Arc<Self> {
        Arc::new(Extent { seqs, bytes: UnsafeCell::new(()), freed: Default::default() })
    }

    fn read(&self) -> &[u64] {
        self.bytes.with(|_| ());
        assert!(!self.freed.load(Relaxed), "an extent was read that was freed");
        &self.seqs
    }

    fn free(&self) {
        self.bytes.with_mut(|_| ());
        self.freed.store(true, Relaxed);
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        self.free();
    }
}

#[derive(Debug)]
struct Memtable {
    generation: u64,
    seqs: Mutex<Vec<u64>>,
    written: AtomicBool,
}

impl Memtable {
    fn new(generation: u64) -> Arc<Self> {
        Arc::new(Memtable { generation, seqs: Mutex::new(Vec::new()), written: AtomicBool::new(false) })
    }
}

/// `terrane::db::table::Super`.
#[derive(Debug)]
struct Super {
    memtables: Vec<Arc<Memtable>>,
    extent: Arc<Extent>,
    epoch: u64,
}

impl Epoch for Super {
    fn epoch(&self) -> u64 {
        self.epoch
    }
}

impl Super {
    /// The newest version at or below `seq`.
    fn find(&self, seq: u64) -> Option<u64> {
        let mut all = self.extent.read().to_vec();
        self.memtables.iter().for_each(|m| all.extend_from_slice(&lock(&m.seqs)));
        all.into_iter().filter(|s| *s <= seq).max()
    }
}

/// Above the sequences in the reservation word.
const EPOCH: u64 = 1 << 32;

#[derive(Debug)]
struct Subtable {
    flaw: Flaw,
    state: Current<Super>,
    /// Epoch and last sequence that was reserved.
    word: AtomicU64,
    visible: AtomicU64,
    shard: Mutex<Vec<u64>>,
}

impl Subtable {
    /// Sequence 1 is in an extent.
    fn new(flaw: Flaw) -> Arc<Self> {
        Arc::new(Subtable {
            flaw,
            state: Current::new(Super {
                memtables: vec![Memtable::new(0)],
                extent: Extent::new(vec![1]),
                epoch: 0,
            }),
            word: AtomicU64::new(1),
            visible: AtomicU64::new(1),
            shard: Mutex::new(Vec::new()),
        })
    }

    /// `commit`: reserve, index, publish. There is one writer, so each commit is the next to be published.
    fn commit(&self) {
        let word = self.word.fetch_add(1, Ordering::AcqRel);
        let (epoch, seq) = (word / EPOCH, word % EPOCH + 1);
        let state = self.state.load();
        let memtable = state.memtables.iter().find(|m| m.generation <= epoch).expect("has its memtable");
        assert_eq!(memtable.generation, epoch, "the memtable of this epoch is not there yet");
        lock(&memtable.seqs).push(seq);
        assert!(!memtable.written.load(Ordering::Acquire), "a memtable that is written out was added to");
        self.visible.store(seq, Ordering::SeqCst);
    }

    fn push_memtable(&self, generation: u64) {
        self.state.replace(|old| {
            let mut memtables = vec![Memtable::new(generation)];
            memtables.extend(old.memtables.iter().cloned());
            Super { memtables, extent: old.extent.clone(), epoch: old.epoch }
        });
    }

    /// `freeze`: the next memtable first, then the epoch. Gives the old one and the last sequence that belongs to it.
    fn freeze(&self) -> (Arc<Memtable>, u64) {
        let old = self.state.load().memtables[0].clone();
        let generation = old.generation + 1;
        if self.flaw != Flaw::BumpFirst {
            self.push_memtable(generation);
        }
        let end = self.word.fetch_add(EPOCH, Ordering::AcqRel) % EPOCH;
        if self.flaw == Flaw::BumpFirst {
            self.push_memtable(generation);
        }
        (old, end)
    }

    /// What a merge must keep: the newest version at or below each of these.
    fn collect(&self) -> Vec<u64> {
        let mut all = vec![self.visible.load(Ordering::Acquire)];
        all.extend_from_slice(&lock(&self.shard));
        all
    }

    /// `flush`, and a merge with what is below in the same step. False if the memtable is not complete yet.
    fn flush(&self, (memtable, end): &(Arc<Memtable>, u64)) -> bool {
        if self.visible.load(Ordering::SeqCst) < *end && self.flaw != Flaw::EarlyFlush {
            return false;
        }
        let snapshots = self.collect();
        let below = self.state.load_full().extent.clone();
        let mut all = below.read().to_vec();
        all.extend_from_slice(&lock(&memtable.seqs));
        memtable.written.store(true, Ordering::Release);
        let newest = |at: &u64| all.iter().copied().filter(|s| s <= at).max();
        let mut kept: Vec<u64> = snapshots.iter().filter_map(newest).collect();
        kept.extend(newest(&u64::MAX));
        kept.dedup();
        let without = |old: &Super| -> Vec<Arc<Memtable>> {
            old.memtables.iter().filter(|m| !Arc::ptr_eq(m, memtable)).cloned().collect()
        };
        if self.flaw == Flaw::TwoSteps {
            self.state.replace(|old| Super {
                memtables: without(old),
                extent: old.extent.clone(),
                epoch: old.epoch + 1,
            });
        }
        let extent = Extent::new(kept);
        self.state.replace(|old| Super { memtables: without(old), extent, epoch: old.epoch + 1 });
        if self.flaw == Flaw::EagerFree {
            below.free();
        }
        true
    }

    /// `read::lookup`, without a snapshot.
    fn get(&self) {
        let before = self.visible.load(Ordering::Acquire);
        let (state, seq) = if self.flaw == Flaw::SequenceFirst {
            let seq = self.visible.load(Ordering::Acquire);
            (self.state.load(), seq)
        } else {
            let state = self.state.load();
            (state, self.visible.load(Ordering::Acquire))
        };
        let found = state.find(seq);
        assert!(found.is_some_and(|f| f >= before), "{found:?} at {seq}, {before} was published before");
    }

    /// A snapshot that looks twice.
    fn snapshot(&self) {
        let seq = if self.flaw == Flaw::UnlockedSequence {
            let seq = self.visible.load(Ordering::Acquire);
            lock(&self.shard).push(seq);
            seq
        } else {
            let mut shard = lock(&self.shard);
            let seq = self.visible.load(Ordering::Acquire);
            shard.push(seq);
            seq
        };
        let first = self.state.load_full();
        assert_eq!(first.find(seq), Some(seq), "the snapshot's version");
        let second = self.state.load_full();
        let epoch = self.state.epoch();
        assert!(self.state.load().epoch >= epoch, "a new epoch was told, but has no state yet");
        assert_eq!(second.find(seq), Some(seq), "a snapshot never changes");
        lock(&self.shard).retain(|s| *s != seq);
    }
}

/// Explores `reader` beside a writer and the background; prints how many executions that were.
fn explore(flaw: Flaw, name: &'static str, reader: fn(&Subtable)) -> u64 {
    let executions = std::sync::Arc::new(Count::new(0));
    let flushed = std::sync::Arc::new(Count::new(0));
    let builder = crate::sync::bounded(3);
    let (n, f) = (executions.clone(), flushed.clone());
    builder.check(move || {
        n.fetch_add(1, Relaxed);
        let subtable = Subtable::new(flaw);
        let (s, t) = (subtable.clone(), subtable.clone());
        let writer = thread::spawn(move || {
            s.commit();
            s.commit();
        });
        let f = f.clone();
        let background = thread::spawn(move || {
            let frozen = t.freeze();
            f.fetch_add(u64::from(t.flush(&frozen)), Relaxed);
        });
        reader(&subtable);
        writer.join().unwrap();
        background.join().unwrap();
        // Whatever happened, both commits are there in the end.
        assert_eq!(subtable.state.load().find(u64::MAX), Some(3));
    });
    let n = executions.load(Relaxed);
    println!("{name}: {n} interleavings, {} with a memtable written out", flushed.load(Relaxed));
    assert_ne!(flushed.load(Relaxed), 0, "no execution wrote a memtable out");
    n
}

#[test]
fn a_lookup_finds_what_was_published_before_it() {
    assert!(explore(Flaw::None, "lookup", Subtable::get) > 100);
}

#[test]
fn a_snapshot_finds_its_version_and_goes_on_to() {
    assert!(explore(Flaw::None, "snapshot", Subtable::snapshot) > 100);
}

/// The model with this flaw fails.
fn caught(flaw: Flaw, reader: fn(&Subtable)) {
    let failed = std::panic::catch_unwind(|| explore(flaw, "flawed", reader));
    assert!(failed.is_err(), "{flaw:?} went unnoticed");
}

#[test]
fn what_is_done_wrong_is_found_out() {
    caught(Flaw::TwoSteps, Subtable::get);
    caught(Flaw::SequenceFirst, Subtable::get);
    caught(Flaw::BumpFirst, Subtable::get);
    caught(Flaw::EarlyFlush, Subtable::get);
    caught(Flaw::EagerFree, Subtable::get);
    caught(Flaw::UnlockedSequence, Subtable::snapshot);
}
