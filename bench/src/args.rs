//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use terrane::media::PmemMode;

use crate::engine::Kind;
use crate::settings::{Compression, PmCost};
use crate::workload::Workload;

#[derive(Debug, Parser)]
#[command(name = "terrane-bench", version, about = "Times Terrane and its peers on the same data")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Runs workloads on engines, interleaved, round by round
    Run(Box<RunArgs>),
    /// Measures the figures that Terrane claims, beside what is claimed; what is compared with other engines wants
    /// those built in (`--features peers`), and says so
    Repro(ReproArgs),
    /// One engine, told by the program that started it what to do
    #[command(hide = true)]
    Worker(WorkerArgs),
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    /// Workloads, in this order
    #[arg(long, value_delimiter = ',', required = true)]
    pub(crate) workload: Vec<Workload>,
    /// Engines
    #[arg(long, value_delimiter = ',', default_value = "terrane")]
    pub(crate) engine: Vec<Kind>,
    /// Records in the database
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) records: u64,
    /// Tables (RocksDB: column families) that the records are dealt out to; with several, all is written out and read once before
    /// the first workload. For workloads without scans or many keys at once
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) tables: u64,
    /// Has each engine write out, merge as far as it sees fit and read all of a loaded database before each workload on it: what is timed
    /// then finds caches full, whatever was written before
    #[arg(long)]
    pub(crate) warm: bool,
    /// Has each engine merge all of a loaded database into one level. For engines that can be asked to
    #[arg(long)]
    pub(crate) merged: bool,
    /// Operations of a workload, all threads together. Default: as many as records; a tenth of that for ones that
    /// touch many records each
    #[arg(long)]
    pub(crate) ops: Option<u64>,
    /// Threads that work at once; each workload runs once with every number
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub(crate) threads: Vec<u64>,
    /// Bytes of a key
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(8..=65536))]
    pub(crate) key_bytes: u64,
    /// Keys are hashes, in no order: `fillseq` writes them so too. Not for workloads that are about stretches of keys
    #[arg(long)]
    pub(crate) scattered: bool,
    /// Bytes of a value; half of them compress
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=67_108_864))]
    pub(crate) value_bytes: u64,
    /// Skew of the choice of keys (0: none), for the ycsb workloads (default: 0.99), txn and txn-rollback (0.8)
    #[arg(long)]
    pub(crate) zipf: Option<f64>,
    /// Cache of the engine
    #[arg(long, default_value_t = 1024)]
    pub(crate) cache_mib: u64,
    /// Memory for all memtables of the engine
    #[arg(long, default_value_t = 128)]
    pub(crate) memtable_mib: u64,
    /// Compression of all engines that can
    #[arg(long, default_value = "none")]
    pub(crate) compression: Compression,
    /// Ends a workload after this time, whatever `--ops` says
    #[arg(long)]
    pub(crate) seconds: Option<f64>,
    /// Rounds; the table shows medians
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rounds: u64,
    /// Each commit survives a power failure
    #[arg(long)]
    pub(crate) sync: bool,
    /// Reads past the page cache where the engine can choose
    #[arg(long)]
    pub(crate) direct: bool,
    /// What persistent memory costs that is simulated, beside ordinary memory: its writes, and what is read there of records and blocks.
    /// (Other files of terrane-pm-memory cost nothing, nor do indexes of terrane-pm-index.) Default: nothing
    #[arg(long)]
    pub(crate) pm_cost: Option<PmCost>,
    /// Persistent memory is in this directory, on a file system of such memory (mounted with `-o dax`). Default: it is simulated
    #[arg(long, value_name = "DIR", conflicts_with = "pm_cost")]
    pub(crate) pm_dir: Option<PathBuf>,
    /// Where databases are made; it wants room for all engines' data at once. What stands for persistent memory is in `/dev/shm` where there is
    /// room, and is removed with the rest, also when the run is interrupted
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    /// The engines' settings, instead of those built in
    #[arg(long)]
    pub(crate) peers: Option<PathBuf>,
    /// Block sizes that Terrane is run with, instead of its default
    #[arg(long, value_delimiter = ',')]
    pub(crate) terrane_block_kib: Option<Vec<usize>>,
    /// Block sizes that RocksDB is run with, instead of those in the settings
    #[arg(long, value_delimiter = ',')]
    pub(crate) rocksdb_block_kib: Option<Vec<usize>>,
    /// Starts each engine's process by this command, for profiles: 'perf record -o FILE'
    #[arg(long)]
    pub(crate) under: Option<String>,
    /// One JSON object per engine, workload and round on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

impl RunArgs {
    /// Reads what would stand behind `terrane-bench run`.
    pub(crate) fn from_line(line: &str) -> Result<Self, clap::Error> {
        match Cli::try_parse_from(["terrane-bench", "run"].into_iter().chain(line.split_whitespace()))?
            .command
        {
            Command::Run(a) => Ok(*a),
            Command::Repro(_) | Command::Worker(_) => {
                Err(clap::Error::new(clap::error::ErrorKind::InvalidSubcommand))
            }
        }
    }

    /// The rows of a round and an engine: workloads and numbers of threads, in order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (Workload, u64)> {
        self.workload.iter().flat_map(|&w| self.threads.iter().map(move |&n| (w, n)))
    }

    /// A smaller or a larger run of the same kind: see [`ReproArgs::scale`].
    pub(crate) fn scale(&mut self, by: f64) {
        // (A product that is too large becomes the largest number.)
        let scale = |n: &mut u64, by: f64| *n = ((*n as f64 * by) as u64).max(1);
        [&mut self.records].into_iter().chain(&mut self.ops).for_each(|n| scale(n, by));
        [&mut self.cache_mib, &mut self.memtable_mib].into_iter().for_each(|n| scale(n, by.max(1.0)));
        self.seconds = self.seconds.map(|s| s * by.min(1.0));
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct ReproArgs {
    /// Figures; `list` names them, `all` takes all
    #[arg(value_delimiter = ',', required = true)]
    pub(crate) name: Vec<String>,
    /// Times the records and operations, at most 100. Below 1 the seconds of a row are fewer too: quicker, and says less. Above 1 they are
    /// not more, while caches and memtables are larger by as much: all engines of a run hold their data at once, so memory and disk must
    /// be larger too, and loading takes as much longer (100 makes of inmemory-read's 6.4 M records 640 M: 15 GiB and more in the memory of
    /// each of nine engines, and hours). What an engine has no room for, it says, and the run ends
    #[arg(long, default_value_t = 1.0)]
    pub(crate) scale: f64,
    /// Where databases are made; what stands for persistent memory is in `/dev/shm` where there is room
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    /// Persistent memory is in this directory, on a file system of such memory (mounted with `-o dax`), but where a device's costs are
    /// simulated. Default: all of it is simulated
    #[arg(long, value_name = "DIR")]
    pub(crate) pm_dir: Option<PathBuf>,
    /// Only those parts of figures whose files are in main memory (`page-cache` has some)
    #[arg(long)]
    pub(crate) in_memory: bool,
    /// The rows behind the figures go to standard error as JSON, instead of as text
    #[arg(long)]
    pub(crate) rows: bool,
    /// One JSON object per claim on standard output
    #[arg(long)]
    pub(crate) json: bool,
}

impl ReproArgs {
    /// Most that figures are scaled by.
    pub(crate) const MOST_SCALE: f64 = 100.0;

    /// Seconds that something takes at this scale which takes so many at 1.
    pub(crate) fn seconds(&self, of: f64) -> f64 {
        of * self.scale.min(1.0)
    }

    /// How what figures have for persistent memory is mapped.
    pub(crate) fn pm_mode(&self) -> PmemMode {
        if self.pm_dir.is_some() { PmemMode::Dax } else { PmemMode::StandIn }
    }

    /// What that is: to be said wherever figures of it are.
    pub(crate) fn pm_in_words(&self) -> &'static str {
        if self.pm_dir.is_some() { "a device" } else { "simulated" }
    }

    /// The same, and what is done there.
    pub(crate) fn pm_and_instructions(&self) -> &'static str {
        match self.pm_dir {
            Some(_) => "a device",
            None => "simulated: on ordinary memory, with a device's instructions",
        }
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct WorkerArgs {
    /// The job, as JSON
    pub(crate) job: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_larger_run_has_memory_in_proportion_and_a_smaller_one_less_time() {
        let line = "--workload scan --records 1000 --ops 500 --cache-mib 64 --memtable-mib 16 --seconds 6";
        let scaled = |by| {
            let mut args = RunArgs::from_line(line).unwrap();
            args.scale(by);
            let memory = (args.cache_mib, args.memtable_mib);
            (args.records, args.ops.unwrap(), memory, args.seconds.unwrap())
        };
        assert_eq!(scaled(0.5), (500, 250, (64, 16), 3.0));
        assert_eq!(scaled(1.0), (1000, 500, (64, 16), 6.0));
        assert_eq!(scaled(100.0), (100_000, 50_000, (6400, 1600), 6.0));
        assert_eq!(scaled(1e-9).0, 1);
    }
}
