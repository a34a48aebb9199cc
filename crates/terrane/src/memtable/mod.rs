//! A memtable: the newest records of one subtable, in memory, ordered by key.
//!
//! A subtable has one *active* memtable, which takes writes, and any number of *frozen* ones, which wait to be written
//! out. Records live in a DRAM arena that the index points into, or in persistent memory ([`crate::chains`]); range tombstones stand
//! beside it.
//!
//! # Invariants
//! A memtable holds exactly the records of its subtable whose LSN lies in `[start, end)`; `end` is unknown while it is
//! active. Which memtable a commit writes to is decided by the *generation* that its reservation carries (see
//! `db::freeze`), so the bounds are exact although writers never wait for a freeze.
//!
//! # Concurrency
//! Any number of writers and readers. Records become visible to a snapshot by their sequence, not by being inserted.

mod budget;
mod filter;
mod sample;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use terrane_base::reclaim::Clock;
use terrane_base::{Error, Lsn, MemoryBudget, Result, Seq};
use terrane_chainlog::{Chain, VolatileZones};
use terrane_commit::Stretch;
use terrane_format::chain::ChainRecord;
use terrane_format::value_ref::ValueRef;
use terrane_format::{Kind, checksum};
use terrane_memindex::{Cursor, MemIndex, Record};

use crate::chains::Chains;
use crate::chains::records::ChainRecords;
pub(crate) use crate::memtable::budget::{MemtableBudget, Of};
use crate::memtable::filter::KeyFilter;
use crate::memtable::sample::KeySample;
use crate::options::IndexKind;
use crate::tombstone::{During, MemTombstones};

/// An empty index, in zones of persistent memory if there are such.
fn index(
    kind: IndexKind,
    budget: &MemoryBudget,
    clock: Arc<Clock>,
    zones: Option<&Arc<VolatileZones>>,
) -> MemIndex {
    let kind = match kind {
        IndexKind::Art => terrane_memindex::IndexKind::Art,
        IndexKind::Skiplist => terrane_memindex::IndexKind::Skiplist,
    };
    match zones {
        Some(zones) => MemIndex::in_chunks(clock, zones.clone(), kind, budget.clone()),
        None => MemIndex::on(clock, kind, budget.clone()),
    }
}

/// See the module's head.
pub(crate) struct Memtable {
    records: Records,
    keys: KeyFilter,
    sample: KeySample,
    pub(crate) tombstones: MemTombstones,
    /// Whether zones take of another memory than the rest.
    apart: bool,
    /// Commits of its epoch, here called generation, and later ones (until the next memtable's) write here.
    pub(crate) stretch: Stretch,
    /// Deletions among the records.
    deletes: AtomicU64,
    /// Large values that records of this memtable refer to.
    values: Mutex<Vec<ValueRef>>,
}

/// Where the records lie, with the index over them.
#[allow(clippy::large_enum_variant, reason = "nearly all are the large one, and lookups go through it")]
enum Records {
    /// In the index's own arena.
    Dram(MemIndex),
    /// In persistent memory.
    Chain(Box<ChainRecords>),
}

impl std::fmt::Debug for Memtable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memtable")
            .field("stretch", &self.stretch)
            .field("records", &self.index().len())
            .finish_non_exhaustive()
    }
}

impl Memtable {
    pub(crate) fn new(kind: IndexKind, generation: u64, budget: &MemtableBudget, clock: Arc<Clock>) -> Self {
        let records = Records::Dram(index(kind, budget.indexes(), clock, None));
        Memtable::over(records, generation, budget)
    }

    /// One whose records lie in a chain: those that it has already are to be [read back](Memtable::read_back).
    pub(crate) fn chained(
        kind: IndexKind,
        generation: u64,
        budget: &MemtableBudget,
        clock: Arc<Clock>,
        chains: &Arc<Chains>,
        chain: Chain,
    ) -> Self {
        let index = index(kind, budget.indexes(), clock, chains.index_zones());
        let records = ChainRecords::new(chains, chain, index, budget.records().clone());
        Memtable::over(Records::Chain(Box::new(records)), generation, budget)
    }

    fn over(records: Records, generation: u64, budget: &MemtableBudget) -> Self {
        let beside = budget.indexes();
        Memtable {
            records,
            keys: KeyFilter::new(beside.clone()),
            sample: KeySample::new(beside.clone()),
            tombstones: MemTombstones::new(beside.clone()),
            apart: budget.is_apart(),
            stretch: Stretch::new(generation),
            deletes: AtomicU64::new(0),
            values: Mutex::new(Vec::new()),
        }
    }

    /// With random numbers inside that follow from `salt`, so that nobody can choose keys by them.
    #[must_use]
    pub(crate) fn salted(mut self, salt: u64) -> Self {
        self.tombstones.salt(salt);
        self
    }

    /// Adds one operation of the batch entry at `lsn`: `during` replay, or while others read.
    pub(crate) fn insert(
        &self,
        lsn: Lsn,
        seq: Seq,
        kind: Kind,
        key: &[u8],
        value: &[u8],
        during: During<'_>,
    ) -> Result<()> {
        self.stretch.note(lsn);
        match kind {
            Kind::RangeDelete => self.tombstones.insert(lsn, seq, key, value, during)?,
            _ => {
                let hash = self.consider(key);
                self.index().insert(key, seq, kind as u8, value)?;
                self.keys.add(hash);
            }
        }
        self.note(kind, value)
    }

    /// Counts what is counted of records.
    fn note(&self, kind: Kind, value: &[u8]) -> Result<()> {
        if kind.is_delete() {
            self.deletes.fetch_add(1, Ordering::Relaxed);
        }
        if kind == Kind::ValueRef {
            self.values.lock().push(ValueRef::decode(value)?);
        }
        Ok(())
    }

    /// The index.
    #[inline]
    pub(crate) fn index(&self) -> &MemIndex {
        match &self.records {
            Records::Dram(index) => index,
            Records::Chain(records) => records.index().index(),
        }
    }

    /// What lies in persistent memory, if the records do.
    #[inline]
    pub(crate) fn chain(&self) -> Option<&ChainRecords> {
        match &self.records {
            Records::Dram(_) => None,
            Records::Chain(records) => Some(records),
        }
    }

    /// Takes note of one operation of a commit at `lsn` whose records go to this memtable's chain: all but what the index is
    /// told. Returns the hash of the key, if it gets a place there: [`Memtable::indexed`] comes behind.
    pub(crate) fn announce(
        &self,
        lsn: Lsn,
        record: &ChainRecord<'_>,
        during: During<'_>,
    ) -> Result<Option<u64>> {
        self.stretch.note(lsn);
        self.note(record.kind, record.value)?;
        if record.kind == Kind::RangeDelete {
            self.tombstones.insert(lsn, record.seq, record.key, record.value, during)?;
            return Ok(None);
        }
        Ok(Some(self.consider(record.key)))
    }

    /// Takes note of a key that the index is about to have; returns its hash.
    #[inline]
    fn consider(&self, key: &[u8]) -> u64 {
        let hash = checksum::key_hash(key);
        self.keys.announce(hash);
        // Of a key that is written again and again, the first time alone.
        if self.sample.wants(hash) && !self.keys.may_have(|| hash) {
            self.sample.add(key, hash);
        }
        hash
    }

    /// Where the range of its keys is cut so that each of `parts` has about as many; fewer cuts where it has few keys.
    pub(crate) fn cuts(&self, parts: usize) -> Vec<Box<[u8]>> {
        self.sample.cuts(parts)
    }

    /// The index has a record with the key of this hash.
    pub(crate) fn indexed(&self, hash: u64) {
        self.keys.add(hash);
    }

    /// Reads a zone of its chain back, of which there are [`Chain::slots`]. Any number of them at a time, before anything is written.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::Corruption`] for damage.
    pub(crate) fn read_back(&self, slot: u32) -> Result<()> {
        let Some(records) = self.chain() else { return Ok(()) };
        records.index().rebuild(slot, |lsn, record| {
            let hash = self.announce(lsn, record, During::Replay)?;
            // Nobody reads yet.
            hash.inspect(|hash| self.indexed(*hash));
            Ok(hash.is_some())
        })
    }

    /// Its records are of no use any more once its last reader goes: see [`ChainRecords::not_needed`].
    pub(crate) fn not_needed(&self, settled: Lsn) {
        if let Some(records) = self.chain() {
            records.not_needed(settled);
        }
    }

    /// Whether a record is as it was written, as far as that can be told.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::Corruption`] if not.
    pub(crate) fn verify(&self, record: &Record<'_>) -> Result<()> {
        self.chain().map_or(Ok(()), |records| records.index().verify(record))
    }

    /// As [`Memtable::verify`], of what the index has found for `key` at `snapshot`, which it [may have](Memtable::may_have), for
    /// whoever gives the value away or goes on to what is older: of what lies on a device, or in a file, of whose pages the
    /// kernel may have read an old state back. (What lies in ordinary memory is read as it is.)
    #[inline]
    pub(crate) fn verify_read(&self, key: &[u8], snapshot: Seq, found: Option<&Record<'_>>) -> Result<()> {
        match &self.records {
            Records::Chain(records) => self.verify_in_chain(records, key, snapshot, found),
            _ => Ok(()),
        }
    }

    fn verify_in_chain(
        &self,
        records: &ChainRecords,
        key: &[u8],
        snapshot: Seq,
        found: Option<&Record<'_>>,
    ) -> Result<()> {
        let records = records.index();
        let Some(found) = found else {
            // One of these would be it, had it been damaged.
            let mut ends = records.index().ends_of_search(key, snapshot);
            ends.try_for_each(|record| records.verify(&record))?;
            return if records.index().is_misled() { Err(self.misled()) } else { Ok(()) };
        };
        records.verify(found)?;
        // Damage that is gone again may have led the index to take it for another one's older version, or for an older one than it is, ...
        let mut is_it = found.key == key && found.seq <= snapshot;
        if records.index().is_misled() {
            // ... or to take what it should have found for one.
            let passed = records.index().misplaced(key);
            is_it &= !passed.is_some_and(|passed| found.seq < passed.seq && passed.seq <= snapshot);
        }
        match is_it {
            true => Ok(()),
            false => {
                Err(self
                    .damaged("a record of a memtable has another key or sequence than its index".to_owned()))
            }
        }
    }

    /// That a cursor has come where it was to go, if only to an end, and passed over nothing.
    ///
    /// # Errors
    /// As [`Memtable::verify`].
    #[inline]
    pub(crate) fn verify_way(&self, cursor: &Cursor) -> Result<()> {
        if cursor.is_doubtful(self.index()) { Err(self.misled()) } else { Ok(()) }
    }

    fn misled(&self) -> Error {
        self.damaged("a key that says where others belong is damaged in a memtable".to_owned())
            .with_hint("a check says which record it is")
    }

    /// As [`Memtable::verify_read`], of what a cursor shows of the key that it has come to; and of what says where it goes on.
    #[inline]
    pub(crate) fn verify_place(&self, cursor: &Cursor, shown: Option<&Record<'_>>) -> Result<()> {
        let Records::Chain(records) = &self.records else { return Ok(()) };
        let records = records.index();
        // (A damaged sequence may have a key's only version look as if it were newer than the snapshot.)
        if shown.is_none() || cursor.steps_by_key(records.index()) {
            let landed = cursor.landed(records.index());
            landed
                .filter(|landed| shown.is_none_or(|shown| !shown.is(landed)))
                .map_or(Ok(()), |landed| records.verify(&landed))?;
        }
        shown.map_or(Ok(()), |shown| records.verify(shown))
    }

    /// An error that says what is wrong with its records as a whole.
    pub(crate) fn damaged(&self, what: String) -> Error {
        let e = Error::corruption(what);
        match self.chain() {
            Some(records) => e.with_file(records.path()),
            None => e,
        }
    }

    /// Which memtable a commit writes to: see the module's head.
    pub(crate) fn generation(&self) -> u64 {
        self.stretch.epoch()
    }

    /// LSN of the oldest record, if there is any.
    pub(crate) fn first_record(&self) -> Option<Lsn> {
        self.stretch.first()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first_record().is_none()
    }

    /// Fixes the end: nothing at or above `boundary` will be inserted.
    pub(crate) fn freeze(&self, boundary: Lsn) {
        self.stretch.close(boundary);
    }

    /// The boundary, once frozen.
    pub(crate) fn end(&self) -> Option<Lsn> {
        self.stretch.end()
    }

    /// Whether the index may have a record that is published, with the key whose hash ([`checksum::key_hash`]) that is. Says no for nearly
    /// all keys that it has not, and much faster than the index. The hash is asked for only if there are any.
    #[inline]
    pub(crate) fn may_have(&self, hash: impl FnOnce() -> u64) -> bool {
        self.keys.may_have(hash)
    }

    /// Has what [`Memtable::may_have`] will look at brought near.
    #[inline]
    pub(crate) fn announce_lookup(&self, hash: u64) {
        self.keys.announce_lookup(hash);
    }

    /// Memory held, in bytes; where there are two ([`MemtableBudget`]), of that of which it has more.
    pub(crate) fn bytes(&self) -> usize {
        self.of_both(self.zone_bytes(), self.bytes_beside_zones())
    }

    /// Memory held of the one that counts, in bytes. Those of all memtables are no more than its budget says is used.
    pub(crate) fn bytes_of(&self, which: Of) -> usize {
        match which {
            Of::Both => self.zone_bytes() + self.bytes_beside_zones(),
            Of::Records => self.zone_bytes(),
            Of::Indexes => self.bytes_beside_zones(),
        }
    }

    /// As [`Memtable::bytes`], about. Of zones of persistent memory only what records have filled: they are large, and records may be few.
    pub(crate) fn filled_bytes(&self) -> usize {
        let beside = self.index().bytes() + self.tombstones.bytes() + self.keys.bytes();
        self.of_both(self.chain().map_or(0, ChainRecords::filled_bytes), beside)
    }

    fn zone_bytes(&self) -> usize {
        self.chain().map_or(0, ChainRecords::bytes)
    }

    fn bytes_beside_zones(&self) -> usize {
        let index = self.index().bytes() + self.index().lent_bytes();
        index + self.tombstones.bytes() + self.keys.bytes() + self.sample.bytes()
    }

    fn of_both(&self, zones: usize, beside: usize) -> usize {
        if self.apart { zones.max(beside) } else { zones + beside }
    }

    pub(crate) fn deletes(&self) -> u64 {
        self.deletes.load(Ordering::Relaxed)
    }

    /// Large values referred to by any record, live or superseded.
    pub(crate) fn values(&self) -> Vec<ValueRef> {
        self.values.lock().clone()
    }
}
