//! What the figures of persistent memory share: a file that is mapped as such, and one memtable in it to which any number of threads
//! commit, as the engine's leaders do: in turns, each its own item, ordered by whoever comes upon it. (Each sets a zone aside, as the
//! engine's do for large commits and where zones are scarce.)

pub(super) mod commit;
pub(super) mod growth;
pub(super) mod memtable;
#[cfg(feature = "pmdk")]
pub(super) mod peers;
pub(super) mod recovery;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use terrane::media::PmemMode;
use terrane::media::real::{RealMedia, RealOptions};
use terrane_base::waiter::Settler;
use terrane_base::{Completion, Lsn, MemoryBudget, Wakes};
use terrane_chainlog::{Chain, ChainIndex, Item, Space, Stored, VolatileZones, Written};
use terrane_commit::{Filled, Orderer, Ring};
use terrane_format::Kind;
use terrane_format::chain::{ChainMemtable, ChainRecord, record_len};
use terrane_halloc::{Halloc, Plan};
use terrane_memindex::{IndexKind, MemIndex};

use crate::Failure;
use crate::args::ReproArgs;
use crate::repro::Line;
use crate::scratch::Scratch;
use crate::settings::PmCost;

const UUID: [u8; 16] = *b"terrane-bench-pm";
const ZONE_BYTES: u64 = 256 << 10;
const KEY_BYTES: usize = 8;
const SLOTS: usize = 1024;
pub(super) const ROUNDS: usize = 3;

/// A file that is mapped as persistent memory.
pub(super) struct Memory {
    media: Arc<RealMedia>,
    path: PathBuf,
    mode: PmemMode,
    _dir: Scratch,
}

impl Memory {
    /// One with room for a memtable of so many bytes of records, for its index, and for a zone that each thread sets aside. On a
    /// device where there is one; what stands for one is in main memory where there is room, and has its `costs` too if that is
    /// wanted; what is in the page cache belongs on a disk.
    pub(super) fn create(
        a: &ReproArgs,
        mode: PmemMode,
        costs: Option<PmCost>,
        record_bytes: u64,
    ) -> Result<Memory, Failure> {
        let zones = (record_bytes * 3).div_ceil(ZONE_BYTES) + 64;
        let bytes = (zones * (ZONE_BYTES + 8) + (1 << 20)).next_multiple_of(4096);
        let dir = dir_of(a, mode, bytes)?;
        let path = dir.path().join("pm");
        let media = RealMedia::with_pmem_cost(RealOptions::default(), costs.map(PmCost::cost))?;
        let plan = Plan { bytes, subtables: 16, memtables: 64, zone_bytes: ZONE_BYTES };
        Halloc::create(&*media, &path, &plan, UUID, 0)?;
        Ok(Memory { media, path, mode, _dir: dir })
    }

    /// Maps it.
    pub(super) fn open(&self) -> Result<Arc<Space>, Failure> {
        Ok(Space::open(&*self.media, &self.path, self.mode, UUID, 0)?)
    }
}

/// Where a file of so many bytes lies that is mapped in this mode.
fn dir_of(a: &ReproArgs, mode: PmemMode, bytes: u64) -> Result<Scratch, Failure> {
    match mode {
        PmemMode::PageCache => Scratch::new(a.dir.as_deref()),
        PmemMode::Dax => Scratch::of_memory(a.pm_dir.as_deref(), None, bytes),
        PmemMode::StandIn => Scratch::of_memory(None, a.dir.as_deref(), bytes),
    }
}

/// Where the nodes of an index are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Nodes {
    Dram,
    Pm,
}

/// An empty index.
pub(super) fn index(space: &Arc<Space>, nodes: Nodes) -> MemIndex {
    let budget = MemoryBudget::new(0);
    match nodes {
        Nodes::Dram => MemIndex::new(IndexKind::Art, budget),
        Nodes::Pm => {
            MemIndex::in_chunks(Arc::default(), VolatileZones::new(space.clone()), IndexKind::Art, budget)
        }
    }
}

/// A memtable in persistent memory, and the order of its commits.
pub(super) struct Store {
    space: Arc<Space>,
    pub(super) memtable: ChainIndex,
    ring: Ring<Entry>,
    /// A commit was not stored. The orderer's.
    broken: AtomicBool,
    value_bytes: usize,
    /// Whether records are told to the index.
    indexed: bool,
}

/// A commit that was stored.
#[derive(Debug)]
struct Entry {
    written: Written,
    settler: Settler,
}

impl Orderer<Entry> for Store {
    fn settle(&self, group: &mut [Filled<Entry>], wakes: &mut Wakes) {
        for filled in group {
            let end = filled.end();
            // Nothing behind what was not stored is ever committed; who waits for that hears so.
            let Some(entry) = filled.entry.take().filter(|_| !self.broken.load(Ordering::Relaxed)) else {
                self.broken.store(true, Ordering::Relaxed);
                continue;
            };
            let done = self.memtable.chain().advance(entry.written);
            self.space.fence();
            entry.settler.settle_later(done.map(|()| end), wakes);
        }
    }

    fn heir(&self, next: &Entry) -> Option<Completion> {
        next.settler.willing()
    }
}

/// What a thread commits with; kept for its memory.
pub(super) struct Hand {
    item: Box<Item>,
    done: Completion,
    value: Vec<u8>,
}

impl Hand {
    pub(super) fn new() -> Self {
        Hand { item: Box::default(), done: Completion::new(), value: Vec::new() }
    }
}

impl Store {
    /// A new memtable, whose first commit is at LSN 1.
    pub(super) fn create(
        space: &Arc<Space>,
        nodes: Nodes,
        value_bytes: usize,
        indexed: bool,
    ) -> Result<Store, Failure> {
        let of = ChainMemtable { subtable: 1, generation: 1, from_lsn: 1 };
        let memtable = ChainIndex::new(Chain::create(space, of)?, index(space, nodes));
        let (ring, broken) = (Ring::with_turns(SLOTS, 1)?, AtomicBool::new(false));
        Ok(Store { space: space.clone(), memtable, ring, broken, value_bytes, indexed })
    }

    /// Commits records of these numbers, in one commit, and waits until it is durable.
    pub(super) fn commit(&self, hand: &mut Hand, numbers: &[u64]) -> Result<Lsn, Failure> {
        let count = numbers.len() as u64;
        let mut admission = self.space.admit(1)?;
        let len = numbers.len() * record_len(KEY_BYTES, self.value_bytes);
        let assign = |pos, _| (pos, self.memtable.chain().assign(len, Some(&mut admission)));
        let (reservation, (lsn, place)) = self.ring.reserve_in_turn(count, self, assign)?;
        let mut item = std::mem::take(&mut hand.item);
        hand.value.resize(self.value_bytes, b'v');
        for (number, seq) in numbers.iter().zip(lsn + 1..) {
            let record = ChainRecord { key: &number.to_be_bytes(), seq, kind: Kind::Put, value: &hand.value };
            item.push(&record, true)?;
        }
        let mut stored = place?.write(lsn, 1, count as u32, item)?;
        Stored::fence_all(std::slice::from_mut(&mut stored));
        let written = stored.written();
        hand.item = if self.indexed { self.memtable.insert(stored)? } else { stored.into_item() };
        hand.done.renew();
        reservation.fill(Entry { written, settler: hand.done.settler() });
        Ok(hand.done.wait_helping(|| self.ring.resume(self))?)
    }

    /// Gives its memory back.
    pub(super) fn release(self) -> Result<(), Failure> {
        let chain = self.memtable.into_chain();
        let end = chain.end_lsn();
        Ok(chain.release(end)?)
    }
}

/// Of so many records as many as the scale says.
pub(super) fn scaled(a: &ReproArgs, records: u64) -> u64 {
    ((records as f64 * a.scale) as u64).max(10_000)
}

/// A range in pieces of so many.
pub(super) fn batches(all: Range<u64>, batch: u64) -> impl Iterator<Item = Range<u64>> {
    let end = all.end;
    all.step_by(batch as usize).map(move |at| at..(at + batch).min(end))
}

/// A line of which at least what is claimed is to be measured.
pub(super) fn line(
    figure: &'static str,
    row: String,
    claimed: Option<f64>,
    measured: f64,
    unit: &str,
    note: String,
) -> Line {
    let holds = claimed.is_none_or(|least| measured >= least);
    Line { figure, row, claimed, measured, unit: unit.to_owned(), note, holds }
}

/// The part of `0..all` of thread `thread`, if there are so many.
pub(super) fn part(all: u64, thread: u64, threads: u64) -> Range<u64> {
    all * thread / threads..all * (thread + 1) / threads
}

/// Has threads do `work` at the same time, each with its number. Seconds it takes.
pub(super) fn together(
    threads: u64,
    work: impl Fn(u64) -> Result<(), Failure> + Sync,
) -> Result<f64, Failure> {
    let began = Instant::now();
    thread::scope(|s| {
        let handles: Vec<_> = (0..threads)
            .map(|t| {
                let work = &work;
                s.spawn(move || work(t).map_err(|e| e.to_string()))
            })
            .collect();
        handles.into_iter().try_for_each(|h| match h.join() {
            Ok(done) => done.map_err(Failure::from),
            Err(_) => Err("a thread of the figure died".into()),
        })
    })?;
    Ok(began.elapsed().as_secs_f64())
}
