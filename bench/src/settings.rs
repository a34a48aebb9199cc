//! What a run asks of every engine alike, and how each engine is set up for it (`peers.toml`).

use serde::{Deserialize, Serialize};
use terrane::PmemOptions;
use terrane::media::PmemCost;
use terrane_format::chain::{ITEM_HEADER, record_len};

use crate::Failure;
use crate::args::RunArgs;

/// The least that memtables have of a persistent memory.
const LEAST_PMEM: u64 = 8 << 20;

/// The same for all engines of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) records: u64,
    /// Tables that the records are dealt out to.
    pub(crate) tables: u64,
    pub(crate) key_bytes: usize,
    pub(crate) value_bytes: usize,
    /// Keys are hashes.
    pub(crate) scattered: bool,
    /// None: as the workload has it.
    pub(crate) zipf: Option<f64>,
    pub(crate) cache_bytes: u64,
    pub(crate) memtable_bytes: u64,
    pub(crate) compression: Compression,
    pub(crate) sync: bool,
    pub(crate) direct: bool,
    /// What simulated memory costs beside ordinary memory.
    pub(crate) pm_cost: Option<PmCost>,
    /// Persistent memory is on a device, and not simulated.
    pub(crate) pm_device: bool,
    /// Compactions wait until they are asked for.
    pub(crate) hold_compactions: bool,
    /// Opened for workloads of transactions.
    pub(crate) transactions: bool,
    /// Engines count what they do, whatever that costs them: a workload asks them for it.
    pub(crate) statistics: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Compression {
    None,
    Zstd,
}

/// A device whose costs simulated persistent memory has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PmCost {
    /// One module of Optane DCPMM
    Optane,
}

impl PmCost {
    pub(crate) fn cost(self) -> PmemCost {
        match self {
            PmCost::Optane => PmemCost::OPTANE,
        }
    }

    /// What is said of figures that have them.
    pub(crate) fn in_words(self) -> &'static str {
        match self {
            PmCost::Optane => "the costs of an Optane module",
        }
    }
}

impl Settings {
    pub(crate) fn new(a: &RunArgs) -> Self {
        Settings {
            records: a.records,
            tables: a.tables,
            key_bytes: a.key_bytes as usize,
            value_bytes: a.value_bytes as usize,
            scattered: a.scattered,
            zipf: a.zipf,
            cache_bytes: a.cache_mib << 20,
            memtable_bytes: a.memtable_mib << 20,
            compression: a.compression,
            sync: a.sync,
            direct: a.direct,
            pm_cost: a.pm_cost,
            pm_device: a.pm_dir.is_some(),
            hold_compactions: false,
            transactions: false,
            statistics: a.workload.iter().any(|w| w.by_second()),
        }
    }

    /// A persistent memory in which memtables have as much room as they have elsewhere; the indexes of their records are in main memory
    /// beside it.
    pub(crate) fn pmem(&self) -> PmemOptions {
        PmemOptions::for_memtables(self.memtable_bytes.max(LEAST_PMEM))
    }

    /// One in the page cache, which is main memory too: records and their indexes together have as much room as memtables have elsewhere,
    /// where records are put one by one.
    pub(crate) fn page_cache(&self) -> PmemOptions {
        /// What finds a record: `PmemOptions::new` says so of indexes and filters.
        const INDEX: u64 = 50;
        let stored = (ITEM_HEADER + record_len(self.key_bytes, self.value_bytes)) as u64;
        PmemOptions::for_memtables((self.memtable_bytes * stored / (stored + INDEX)).max(LEAST_PMEM))
    }

    /// Bytes of each run where they pile up.
    pub(crate) fn piled_run_bytes(&self) -> u64 {
        const RUNS: u64 = 60;
        (self.records * self.record_bytes() / RUNS).max(1 << 20)
    }

    /// So many records that follow each other are not more than a block of that size has, whatever the engine. Blocks that are cut short have
    /// as many, mostly. (Of scattered keys none follow each other.)
    pub(crate) fn records_in_a_block(&self, block_bytes: u64) -> u64 {
        /// More than any engine takes for lengths, sequence and the like.
        const OVERHEAD: u64 = 16;
        if self.scattered { 1 } else { (block_bytes / 2 / (self.record_bytes() + OVERHEAD)).max(1) }
    }

    /// Bytes that a user would say a record has.
    pub(crate) fn record_bytes(&self) -> u64 {
        (self.key_bytes + self.value_bytes) as u64
    }
}

/// `peers.toml`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Peers {
    pub(crate) rocksdb: RocksDb,
    pub(crate) fjall: Fjall,
    pub(crate) lmdb: Lmdb,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RocksDb {
    pub(crate) block_kib: Vec<usize>,
    pub(crate) bloom_bits: f64,
    pub(crate) write_buffers: u64,
    pub(crate) background_jobs: i32,
    pub(crate) dynamic_level_bytes: bool,
    /// What an opening reads back from the log stays in memtables.
    pub(crate) avoid_flush_during_recovery: bool,
    pub(crate) direct_io: bool,
    pub(crate) format_version: i32,
    /// Whether they are on also in runs that do not ask for them.
    pub(crate) statistics: bool,
    pub(crate) lock_stripes: usize,
    pub(crate) per_key_locks: bool,
}

/// RocksDB as one entrant of a run has it.
#[cfg(feature = "peers")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RocksDbForm<'a> {
    pub(crate) own: &'a RocksDb,
    pub(crate) block_kib: usize,
    /// For reads from memory.
    pub(crate) tuned: bool,
    /// No commit survives a power failure.
    pub(crate) unsynced: bool,
    /// Nothing is merged.
    pub(crate) piled: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fjall {
    pub(crate) block_kib: u32,
    pub(crate) bloom_bits: f32,
    pub(crate) background_jobs: usize,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Lmdb {
    pub(crate) map_gib: usize,
    pub(crate) writemap: bool,
}

impl Peers {
    pub(crate) fn load(a: &RunArgs) -> Result<Self, Failure> {
        let text = match &a.peers {
            Some(path) => std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?,
            None => include_str!("../peers.toml").to_owned(),
        };
        let mut peers: Peers = toml::from_str(&text).map_err(|e| format!("the engines' settings: {e}"))?;
        if let Some(sizes) = &a.rocksdb_block_kib {
            peers.rocksdb.block_kib.clone_from(sizes);
        }
        Ok(peers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_settings_built_in_are_read() {
        let peers: Peers = toml::from_str(include_str!("../peers.toml")).unwrap();
        assert_eq!(peers.rocksdb.block_kib, [4, 16]);
    }

    #[test]
    fn a_block_has_records_by_their_size() {
        let of = |more: &str| {
            Settings::new(&RunArgs::from_line(&format!("--workload readrandom {more}")).unwrap())
                .records_in_a_block(4096)
        };
        assert_eq!((of("--value-bytes 8"), of("--value-bytes 512"), of("--value-bytes 9999")), (51, 3, 1));
        assert_eq!(of("--value-bytes 8 --scattered"), 1);
    }

    #[test]
    fn engines_are_timed_with_statistics_only_where_a_workload_asks_for_them() {
        let of = |workloads: &str| {
            let args = RunArgs::from_line(&format!("--workload {workloads}")).unwrap();
            (Settings::new(&args).statistics, Peers::load(&args).unwrap().rocksdb.statistics)
        };
        assert_eq!(of("readrandom,overwrite,ycsb-a"), (false, false));
        assert_eq!(of("readrandom,readmoving"), (true, false));
        assert_eq!(of("readwhilecompacting"), (true, false));
    }
}
