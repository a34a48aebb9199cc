//! What each writer does, and with which options a database is opened: all of it follows from seeds, so that the parent
//! knows what the child wrote without being told.

use std::path::Path;
use std::time::Duration;

use clap::ValueEnum;
use terrane::{
    CompactionMode, Compression, Db, DirectoryKind, Durability, IndexKind, Medium, Options, PmemMode,
    PmemOptions, Subtable, SubtableOptions, Swizzling, Transaction, Tuning, WriteBatch,
};

use crate::Failure;

pub(crate) const WRITERS: usize = 4;
pub(crate) const TABLES: [&str; 2] = ["left", "right"];
/// Keys of one writer in one subtable.
const KEYS: u64 = 700;
/// Bytes in front of a value's filling: checksum, counter, place in the batch.
const VALUE_HEADER: usize = 16;

/// A small generator of numbers.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// A generator for these words.
    pub(crate) fn new(words: &[u64]) -> Self {
        let mut rng = Rng(0x243f_6a88_85a3_08d3);
        for w in words {
            rng.0 ^= w.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            rng.0 = rng.next();
        }
        rng
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// True once in `n` times.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// One operation of a batch, on a subtable by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Put { table: usize, key: u64, len: usize },
    Delete { table: usize, key: u64 },
    DeleteRange { table: usize, start: u64, end: u64 },
}

/// What a writer commits at once, besides its counter in both subtables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Batch {
    pub(crate) ops: Vec<Op>,
    pub(crate) sync: bool,
    pub(crate) by: By,
}

/// How a batch is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Write,
    /// With `submit`, and waited for.
    Submit,
    Transaction,
    Optimistic,
    /// Prepared, and then committed.
    TwoPhases,
}

/// Batch number `n` (from 1) of a writer.
pub(crate) fn batch(seed: u64, writer: usize, n: u64) -> Batch {
    let mut rng = Rng::new(&[seed, writer as u64, n]);
    let ops = (0..1 + rng.below(6)).map(|_| op(&mut rng)).collect();
    let sync = rng.one_in(12);
    let by = match rng.below(9) {
        0 | 1 => By::Submit,
        2 | 3 => By::Transaction,
        4 => By::Optimistic,
        5 => By::TwoPhases,
        _ => By::Write,
    };
    Batch { ops, sync, by }
}

fn op(rng: &mut Rng) -> Op {
    let table = rng.below(TABLES.len() as u64) as usize;
    let key = rng.below(KEYS);
    match rng.below(40) {
        0 => Op::DeleteRange { table, start: key, end: key + 1 + rng.below(60) },
        1..=5 => Op::Delete { table, key },
        6 if rng.one_in(4) => Op::Put { table, key, len: 6000 + rng.below(200_000) as usize },
        7..=8 => Op::Put { table, key, len: 300 + rng.below(2200) as usize },
        _ => Op::Put { table, key, len: VALUE_HEADER + rng.below(120) as usize },
    }
}

/// What the keys of a writer start with.
pub(crate) fn prefix(writer: usize) -> Vec<u8> {
    format!("w{writer}/").into_bytes()
}

pub(crate) fn key(writer: usize, key: u64) -> Vec<u8> {
    format!("w{writer}/{key:06}").into_bytes()
}

/// Holds the number of the writer's last batch; sorts behind its other keys.
pub(crate) fn counter_key(writer: usize) -> Vec<u8> {
    format!("w{writer}/counter").into_bytes()
}

/// The value that operation `place` of batch `n` puts.
pub(crate) fn value(seed: u64, writer: usize, n: u64, place: usize, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(&[seed, writer as u64, n, place as u64]);
    let mut v = Vec::with_capacity(len + 8);
    v.extend_from_slice(&[0; 4]);
    v.extend_from_slice(&n.to_le_bytes());
    v.extend_from_slice(&(place as u32).to_le_bytes());
    while v.len() < len {
        // Half of the words repeat, so that compression has something to do.
        let word = if rng.0 & 1 == 0 { rng.next() } else { rng.0 | 1 };
        if rng.0 & 1 == 1 && v.len().is_multiple_of(64) {
            rng.next();
        }
        v.extend_from_slice(&word.to_le_bytes());
    }
    v.truncate(len.max(VALUE_HEADER));
    let crc = crc32fast::hash(&v[4..]);
    v[..4].copy_from_slice(&crc.to_le_bytes());
    v
}

/// What operations are written to.
pub(crate) enum Target {
    Batch(WriteBatch),
    Transaction(Box<Transaction>),
}

impl Target {
    fn put(&mut self, table: &Subtable, key: &[u8], value: &[u8]) -> terrane::Result<()> {
        match self {
            Target::Batch(b) => b.put(table, key, value),
            Target::Transaction(t) => t.put(table, key, value),
        }
    }

    fn delete(&mut self, table: &Subtable, key: &[u8]) -> terrane::Result<()> {
        match self {
            Target::Batch(b) => b.delete(table, key),
            Target::Transaction(t) => t.delete(table, key),
        }
    }

    fn delete_range(&mut self, table: &Subtable, start: &[u8], end: &[u8]) -> terrane::Result<()> {
        match self {
            Target::Batch(b) => b.delete_range(table, start, end),
            Target::Transaction(t) => t.delete_range(table, start, end),
        }
    }
}

/// The xid of a writer's batch.
pub(crate) fn xid(writer: usize, n: u64) -> Vec<u8> {
    format!("w{writer}/{n}").into_bytes()
}

/// Ends what a kill left in doubt, one way or the other.
pub(crate) fn end_in_doubt(db: &Db, rng: &mut Rng) -> terrane::Result<()> {
    for xid in db.prepared() {
        match rng.one_in(2) {
            true => db.rollback_prepared(&xid)?,
            false => db.commit_prepared(&xid, Durability::Buffered).map(drop)?,
        }
    }
    Ok(())
}

/// Writes batch number `n` of a writer, counters included, but does not commit it.
pub(crate) fn fill(
    seed: u64,
    writer: usize,
    n: u64,
    tables: &[Subtable],
    mut out: Target,
) -> terrane::Result<Target> {
    let plan = batch(seed, writer, n);
    for (place, op) in plan.ops.iter().enumerate() {
        match *op {
            Op::Put { table, key: k, len } => {
                out.put(&tables[table], &key(writer, k), &value(seed, writer, n, place, len))?;
            }
            Op::Delete { table, key: k } => out.delete(&tables[table], &key(writer, k))?,
            Op::DeleteRange { table, start, end } => {
                out.delete_range(&tables[table], &key(writer, start), &key(writer, end))?;
            }
        }
    }
    for (i, table) in tables.iter().enumerate() {
        out.put(table, &counter_key(writer), &value(seed, writer, n, plan.ops.len() + i, 0))?;
    }
    Ok(out)
}

/// Whether a value is one that [`value`] made, and the batch it is of.
pub(crate) fn value_counter(v: &[u8]) -> Option<u64> {
    let crc = u32::from_le_bytes(v.get(..4)?.try_into().ok()?);
    let n = u64::from_le_bytes(v.get(4..12)?.try_into().ok()?);
    (crc32fast::hash(&v[4..]) == crc).then_some(n)
}

/// Where the database's commits go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum SoakMedium {
    /// A log
    #[default]
    Log,
    /// Persistent memory: an ordinary file with the instructions of a device, which a killed process leaves as one would be
    Pmem,
    /// The same with a log behind it; now and then the memory is lost between two processes
    PmemLog,
    /// Memory in the page cache, and a log behind it; now and then the memory is removed between two processes
    PageCache,
}

/// Opens the database, with options by seed. What was removed of it is made anew, and nothing else.
pub(crate) fn open(medium: SoakMedium, dir: &Path, rng: &mut Rng) -> Result<Db, Failure> {
    let lost = !dir.join("pmem").exists();
    Db::open(dir, options(medium, rng).renew_pmem(lost)).map_err(|e| format!("open: {e}").into())
}

/// Options to open with, by seed: small sizes, so that memtables, segments and extents fill all the time.
pub(crate) fn options(medium: SoakMedium, rng: &mut Rng) -> Options {
    let tuning = Tuning {
        compact: true,
        segment_bytes: (256 << 10) << rng.below(3),
        tail_bytes: (128 << 10) << rng.below(3),
        drain_bytes: (4 << 10) << rng.below(5),
        log_budget: (1 << 20) << rng.below(3),
        data_file_bytes: (8 << 20) << rng.below(3),
        extent_bytes: (32 << 10) << rng.below(5),
        piece_bytes: (256 << 10) << rng.below(4),
        task_bytes: (64 << 10) << rng.below(4),
        transaction_bytes: [0, 2 << 10, 20 << 10][rng.below(3) as usize],
        swizzling: [Swizzling::Nothing, Swizzling::Parents, Swizzling::Children][rng.below(3) as usize],
        warm: true,
        l0_runs: [4, 8][rng.below(2) as usize],
        pmem_cache: true,
        simd: None,
        flush_after: [None, Some(Duration::from_millis(20))][rng.below(2) as usize],
    };
    let mode = if rng.one_in(4) { CompactionMode::Check } else { CompactionMode::Cpu };
    let bytes = (4 << 20) << rng.below(2);
    let memory = PmemOptions::new(bytes)
        .zone_bytes(128 << 10)
        .memtable_bytes((bytes / 4) << rng.below(3))
        // The page cache has none.
        .index_in_pmem(rng.one_in(2) && medium != SoakMedium::PageCache);
    Options::new()
        .medium(match medium {
            SoakMedium::Log => Medium::Log,
            SoakMedium::Pmem => Medium::Pmem(memory.mode(PmemMode::StandIn)),
            SoakMedium::PmemLog => Medium::Pmem(memory.mode(PmemMode::StandIn).trailing_log(true)),
            SoakMedium::PageCache => Medium::Pmem(memory.mode(PmemMode::PageCache)),
        })
        .memtable_bytes((512 << 10) << rng.below(4))
        .cache_bytes((256 << 10) << rng.below(6))
        .background_threads(1 + rng.below(3) as usize)
        .compaction_mode(mode)
        .tuning(tuning)
}

fn subtable_options(rng: &mut Rng) -> SubtableOptions {
    SubtableOptions::new()
        .block_bytes((4 << 10) << rng.below(3))
        .compression(if rng.one_in(2) { Compression::None } else { Compression::Zstd(1) })
        .filter_bits(if rng.one_in(4) { 0 } else { 10 })
        .value_threshold((4 << 10) << rng.below(2))
        .index(if rng.one_in(4) { IndexKind::Skiplist } else { IndexKind::Art })
        .directory(if rng.one_in(4) { DirectoryKind::RestartArray } else { DirectoryKind::TwoLayer })
}

/// Both subtables, with options by seed; created if they are not there.
pub(crate) fn subtables(db: &Db, rng: &mut Rng) -> terrane::Result<Vec<Subtable>> {
    TABLES
        .iter()
        .map(|name| {
            let options = subtable_options(rng);
            let table = db.subtable_or_create(name, options.clone())?;
            table.set_options(options)?;
            Ok(table)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_and_values_follow_from_their_seed() {
        assert_eq!(batch(7, 2, 90), batch(7, 2, 90));
        assert_ne!(batch(7, 2, 90), batch(7, 2, 91));
        for len in [0, 16, 17, 1000] {
            let v = value(7, 2, 90, 3, len);
            assert_eq!(v.len(), len.max(VALUE_HEADER));
            assert_eq!(v, value(7, 2, 90, 3, len));
            assert_eq!(value_counter(&v), Some(90));
        }
    }

    #[test]
    fn a_changed_value_is_noticed() {
        let mut v = value(1, 0, 5, 0, 200);
        v[150] ^= 1;
        assert_eq!(value_counter(&v), None);
    }

    #[test]
    fn all_kinds_of_operations_occur() {
        let ops: Vec<Op> = (1..2000).flat_map(|n| batch(3, 1, n).ops).collect();
        assert!(ops.iter().any(|o| matches!(o, Op::Put { len, .. } if *len > 100_000)));
        assert!(ops.iter().any(|o| matches!(o, Op::Delete { .. })));
        assert!(ops.iter().any(|o| matches!(o, Op::DeleteRange { .. })));
    }
}
