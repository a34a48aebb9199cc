//! What an open database says about itself.

use std::path::PathBuf;

use terrane_base::metrics::Counter;
use terrane_compaction::DeviceStats;
use terrane_format::extent::UNIT_BYTES;
use terrane_media::PmemMode;

use crate::compact::dead::Dead;
use crate::db::engine::Engine;

/// Counts kept by the engine; each is bumped without sharing a cache line between threads.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) attached: Counter,
    pub(crate) flushes: Counter,
    pub(crate) flush_bytes: Counter,
    pub(crate) compactions: Counter,
    pub(crate) compact_read: Counter,
    pub(crate) compact_written: Counter,
    pub(crate) extents_moved: Counter,
    pub(crate) blocks_copied: Counter,
    pub(crate) tasks_redone: Counter,
    pub(crate) full_waits: Counter,
    pub(crate) full_wait_nanos: Counter,
}

/// One level of a subtable.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LevelStats {
    /// "L0", "L1", ...
    pub name: String,
    /// Sorted runs: up to eight in L0 (up to twelve where damage keeps it from being merged), one in each other level.
    pub runs: usize,
    /// References to extents.
    pub extents: usize,
    /// Stored bytes of the blocks that they show.
    pub bytes: u64,
    /// Those bytes before compression; of a trimmed extent in proportion.
    pub raw_bytes: u64,
    /// Records in those blocks, deletions included.
    pub rows: u64,
    /// Deletions.
    pub deletes: u64,
    /// Lookups that this level has answered since the database was opened: an estimate, from one in thirty-two, counted now and then.
    /// Of L7 and the levels below it, L7 has all.
    pub lookups: u64,
}

/// One subtable.
#[derive(Clone, Debug, PartialEq)]
pub struct SubtableStats {
    /// Its name.
    pub name: String,
    /// Memtables, the active one included.
    pub memtables: usize,
    /// Bytes in them. (Where there are two memories, see [`Stats::memtable_bytes`], of each memtable those in the one of which it
    /// has more: of all subtables together that may be more than is in use of either.)
    pub memtable_bytes: u64,
    /// Records in them.
    pub memtable_records: u64,
    /// Levels that hold anything, from the top.
    pub levels: Vec<LevelStats>,
    /// Large values stored apart.
    pub large_values: u64,
    /// Bytes of blocks that nothing refers to any more, in extents that are still referred to in part.
    pub dead_bytes: u64,
    /// Why its flushes or compactions stand still, if they do.
    pub trouble: Option<String>,
}

/// An open database, at one moment. Counts start at its opening.
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    /// The newest published sequence.
    pub sequence: u64,
    /// Registered snapshots (cursors included) and the oldest one's sequence.
    pub snapshots: u64,
    /// The oldest snapshot's sequence.
    pub oldest_snapshot: Option<u64>,
    /// Memtable memory in use, bytes. Where records are in persistent memory and their indexes in main memory, each has the budget for itself, and
    /// this is what is in use of the fuller one.
    pub memtable_bytes: u64,
    /// The budget of all memtables, bytes. Where records are in persistent memory and their indexes in main memory, each has so much.
    pub memtable_budget: u64,
    /// Bytes of main memory that indexes of memtables take, and what else finds their records, where the records are in persistent memory and
    /// the indexes are not; else 0. Range tombstones of transactions under way are among them, and so are records that a log has given back
    /// instead of the memory, until they are written out.
    pub memtable_index_bytes: u64,
    /// How the persistent memory is mapped, where commits go there: what their durability rests on.
    pub pmem_mode: Option<PmemMode>,
    /// Where its file is.
    pub pmem_path: Option<PathBuf>,
    /// Bytes of the zones of persistent memory, where commits go there, a little less than its file has; else 0.
    pub pmem_bytes: u64,
    /// Bytes of those that memtables have, indexes there among them, or commits on their way may take.
    pub pmem_used: u64,
    /// Bytes of those that indexes of memtables have ([`crate::PmemOptions::index_in_pmem`]).
    pub pmem_index_bytes: u64,
    /// Bytes of those that hold blocks which the cache had no room for.
    pub pmem_cache_bytes: u64,
    /// Lookups of blocks that those answered.
    pub pmem_cache_hits: u64,
    /// Blocks there that could not be read, or failed their checksum; they were read from the data files instead. Persistent memory with any
    /// wants to be looked after.
    pub pmem_cache_damaged: u64,
    /// Whether there is a log behind the persistent memory ([`crate::PmemOptions::trailing_log`]; in the page cache there always is one).
    pub pmem_log: bool,
    /// The log behind persistent memory lacks commits that a power failure took from it, and that are not written out yet: until then
    /// the database cannot do without that memory.
    pub log_gap: bool,
    /// The persistent memory was made anew when the database was opened, and filled from the log: what there was before could not be trusted,
    /// or was gone.
    pub pmem_renewed: bool,
    /// Cache memory in use, bytes.
    pub cache_bytes: u64,
    /// The cache's capacity.
    pub cache_capacity: u64,
    /// Row cache memory in use, bytes.
    pub row_cache_bytes: u64,
    /// Lookups that the cache answered.
    pub cache_hits: u64,
    /// Lookups that were loaded from data files: neither the cache nor blocks in persistent memory ([`Stats::pmem_cache_hits`]) had it.
    pub cache_misses: u64,
    /// Log bytes that the opening after a crash would read, about; 0 where there is no log. Without persistent memory it replays them; with
    /// it, it takes of them what that lacks.
    pub log_bytes: u64,
    /// All commits before this position of the log survive a power failure. In persistent memory without a log: the position up to
    /// which commits are in it; with a log behind it, what that has.
    pub durable_lsn: u64,
    /// Bytes of the manifest file.
    pub manifest_bytes: u64,
    /// Bytes of space taken in data files, and their size.
    pub data_used: u64,
    /// Size of the data files.
    pub data_bytes: u64,
    /// Times sorted runs were attached: large transactions and bulk loads.
    pub attached: u64,
    /// Memtables written out, and the bytes that took.
    pub flushes: u64,
    /// Bytes written by flushes.
    pub flush_bytes: u64,
    /// Compaction pieces done, bytes taken in and written by them.
    pub compactions: u64,
    /// Bytes taken in by compactions, from the device or the cache.
    pub compact_read: u64,
    /// Bytes written by compactions.
    pub compact_written: u64,
    /// Extents that went down a level by reference.
    pub extents_moved: u64,
    /// Blocks that were copied as bytes.
    pub blocks_copied: u64,
    /// Tasks that a device failed and the processor redid.
    pub tasks_redone: u64,
    /// What executes compaction tasks: the processor, then devices.
    pub compaction_devices: Vec<DeviceStats>,
    /// Seconds for which writers were slowed down, summed over writers.
    pub paced_seconds: f64,
    /// Times a writer found the memtable budget exhausted, and the seconds it waited.
    pub full_waits: u64,
    /// Seconds waited for memtable memory.
    pub full_wait_seconds: f64,
    /// Transactions begun since the database was opened.
    pub transactions: u64,
    /// Transactions committed since then, prepared ones included.
    pub transactions_committed: u64,
    /// Writes and commits refused because somebody else had changed what they were about.
    pub write_conflicts: u64,
    /// Transactions that are prepared and have not ended.
    pub prepared: u64,
    /// Keys locked now.
    pub locked_keys: u64,
    /// Key ranges locked now.
    pub locked_ranges: u64,
    /// Transactions that wait for a lock now.
    pub lock_waiting: u64,
    /// Times one had to wait for a lock.
    pub lock_waits: u64,
    /// Times one waited for a lock for too long.
    pub lock_timeouts: u64,
    /// Circles of transactions that waited for each other.
    pub deadlocks: u64,
    /// Why background work of some subtable stands still, if it does, or why space was lost.
    pub trouble: Option<String>,
    /// The subtables, by name.
    pub subtables: Vec<SubtableStats>,
}

fn level(name: String, runs: &[std::sync::Arc<crate::levels::Run>]) -> LevelStats {
    let mut s = LevelStats { name, runs: runs.len(), ..LevelStats::default() };
    for run in runs {
        s.rows += run.rows();
        s.deletes += run.deletes();
        s.extents += run.refs().len();
        s.bytes += run.bytes();
        s.raw_bytes += run.refs().iter().map(|r| r.raw_bytes()).sum::<u64>();
    }
    s
}

impl Engine {
    pub(crate) fn stats(&self) -> Stats {
        let mut subtables: Vec<SubtableStats> = Vec::new();
        for t in self.tables.load().all() {
            let state = t.state();
            let mut levels = vec![level("L0".into(), &state.version.l0)];
            for (i, run) in state.version.levels.iter().enumerate() {
                levels.push(level(format!("L{}", i + 1), std::slice::from_ref(run)));
            }
            (0..).zip(&mut levels).for_each(|(at, level)| level.lookups = t.lookups(at));
            levels.retain(|l| l.extents > 0 || l.lookups > 0);
            subtables.push(SubtableStats {
                name: t.name.to_string(),
                memtables: state.memtables.len(),
                memtable_bytes: state.memtables.iter().map(|m| m.bytes() as u64).sum(),
                memtable_records: state.memtables.iter().map(|m| m.index().len() as u64).sum(),
                levels,
                dead_bytes: Dead::of(&state.version).bytes(),
                trouble: t.trouble.first().map(|e| e.to_string()),
                large_values: self
                    .manifest
                    .with_state(|s| s.subtables.get(&t.id).map_or(0, |t| t.values.len() as u64)),
            });
        }
        subtables.sort_by(|a, b| a.name.cmp(&b.name));
        let cache = self.cache.stats();
        let space = self.space.stats();
        let (pmem_bytes, pmem_used) = self.journal.chains().map_or((0, 0), |chains| chains.sizes());
        let shelf = self.journal.chains().and_then(|chains| chains.shelf());
        let index_zones = self.journal.chains().and_then(|chains| chains.index_zones());
        let pmem_renewed = self.journal.chains().is_some_and(|chains| chains.is_renewed());
        let (snapshots, oldest_snapshot) = self.snapshots.summary();
        let c = &self.counters;
        let (locks, t) = (self.transactions.locks.counts(), &self.transactions);
        let lost = self.lost_space.load().as_ref().map(|e| e.to_string());
        let trouble = subtables.iter().find_map(|s| s.trouble.clone()).or(lost);
        Stats {
            sequence: self.visible(),
            snapshots,
            oldest_snapshot,
            memtable_bytes: self.memory.used() as u64,
            memtable_budget: self.memory.limit() as u64,
            pmem_mode: self.journal.chains().map(|chains| chains.space().mode()),
            pmem_path: self.journal.chains().map(|chains| chains.space().path().to_owned()),
            memtable_index_bytes: self.memory.beside_records() as u64,
            pmem_bytes,
            pmem_used,
            pmem_index_bytes: index_zones.map_or(0, |zones| zones.bytes()),
            pmem_log: self.journal.chains().is_some() && self.journal.log().is_some(),
            log_gap: self.journal.live_gap().is_some(),
            pmem_cache_bytes: shelf.map_or(0, |shelf| shelf.bytes()),
            pmem_cache_hits: shelf.map_or(0, |shelf| shelf.found()),
            pmem_cache_damaged: shelf.map_or(0, |shelf| shelf.damaged()),
            pmem_renewed,
            cache_bytes: cache.used_bytes() as u64,
            cache_capacity: self.options.cache_bytes as u64,
            row_cache_bytes: self.rows.as_ref().map_or(0, |r| r.bytes()),
            cache_hits: cache.hits,
            cache_misses: cache.misses,
            log_bytes: self.journal.live_bytes(),
            durable_lsn: self.journal.durable_lsn(),
            manifest_bytes: self.manifest.bytes(),
            data_used: space.used * UNIT_BYTES as u64,
            data_bytes: (space.used + space.idle) * UNIT_BYTES as u64,
            attached: c.attached.get(),
            flushes: c.flushes.get(),
            flush_bytes: c.flush_bytes.get(),
            compactions: c.compactions.get(),
            compact_read: c.compact_read.get(),
            compact_written: c.compact_written.get(),
            extents_moved: c.extents_moved.get(),
            blocks_copied: c.blocks_copied.get(),
            tasks_redone: c.tasks_redone.get(),
            compaction_devices: self.scheduler.stats().devices,
            paced_seconds: self.pacer.delayed().as_secs_f64(),
            full_waits: c.full_waits.get(),
            full_wait_seconds: c.full_wait_nanos.get() as f64 / 1e9,
            transactions: t.begun.get(),
            transactions_committed: t.committed.get(),
            write_conflicts: t.conflicts.get(),
            prepared: t.prepared.len() as u64,
            locked_keys: locks.keys,
            locked_ranges: locks.ranges,
            lock_waiting: locks.waiting,
            lock_waits: locks.waits,
            lock_timeouts: locks.timeouts,
            deadlocks: locks.deadlocks,
            trouble,
            subtables,
        }
    }
}
