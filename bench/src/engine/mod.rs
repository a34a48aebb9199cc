//! The engines that are timed, behind one face.

#[cfg(feature = "peers")]
mod fjall;
#[cfg(feature = "peers")]
mod lmdb;
mod on_core;
#[cfg(feature = "peers")]
mod redb;
#[cfg(feature = "peers")]
mod rocksdb;
mod terrane;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Failure;
#[cfg(feature = "peers")]
use crate::settings::RocksDbForm;
use crate::settings::{Peers, Settings};
use crate::worker::Job;

/// What part of the bytes for memtables small ones have.
const SMALL: u64 = 25;
/// How long a transaction waits for a lock.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// An engine's name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Kind {
    Terrane,
    /// Terrane without what makes reads from memory fast: restart arrays, no vector instructions, every block found by hash
    TerranePlain,
    /// terrane-plain with directories of two layers
    TerraneLayers,
    /// terrane-layers with vector instructions
    TerraneVectors,
    /// terrane-vectors with indexes and filters found by direct pointer; terrane has data blocks so too
    TerraneIndexes,
    /// terrane, each thread bound to a processor and reading by a reader of its own
    TerraneReader,
    /// terrane, but that lookups count references to what they read
    TerraneCounted,
    /// terrane, but what flushes and merges write does not enter the cache
    TerraneCold,
    /// terrane, asked through the lanes of an executor
    TerraneCores,
    /// terrane, with lookups that an executor's cores make up themselves, each of tables that it owns: for readrandom and readown,
    /// which are the same to it
    TerraneOnCore,
    /// terrane, with persistent memory in place of a log: simulated, an ordinary file with the instructions of a device
    TerranePm,
    /// terrane-pm, but what commits do not need of its memory stays empty
    TerranePmBare,
    /// terrane-pm, with the indexes of memtables in that memory too
    TerranePmIndex,
    /// terrane-pm, with a log that trails behind
    TerranePmLog,
    /// terrane-pm with all other files in main memory too, as if everything were on such a device
    TerranePmMemory,
    /// terrane, with skiplists for memtables
    TerraneSkiplist,
    /// terrane-skiplist with a 25th of the bytes of memtables: what the baseline of persistent memory's reference has beside that memory,
    /// 256 MB in use and as much on its way to the disk in each of 16 tables, beside 200 GB
    TerraneSkiplistSmall,
    /// terrane-skiplist with all files in main memory, as if they were on a device of persistent memory
    TerraneSkiplistMemory,
    /// terrane, but that runs pile up in L0: of a sixtieth of the records each, and nothing is merged
    TerranePiled,
    /// terrane-piled without filters: a lookup looks into every run that came before its key's
    TerranePiledBare,
    /// terrane, with persistent memory in the page cache, and a log that trails behind
    TerranePageCache,
    #[cfg(feature = "peers")]
    Rocksdb,
    /// rocksdb as its guides advise for reads from memory: data blocks with a hash index, indexes and filters outside the cache,
    /// and a cache without locks
    #[cfg(feature = "peers")]
    RocksdbTuned,
    /// rocksdb, whose commits do not survive a power failure, whatever the run asks for
    #[cfg(feature = "peers")]
    RocksdbUnsynced,
    /// rocksdb with a 25th of the bytes of memtables
    #[cfg(feature = "peers")]
    RocksdbSmall,
    /// rocksdb, but that runs pile up as those of terrane-piled
    #[cfg(feature = "peers")]
    RocksdbPiled,
    #[cfg(feature = "peers")]
    Fjall,
    #[cfg(feature = "peers")]
    Redb,
    #[cfg(feature = "peers")]
    Lmdb,
}

/// An engine in one of the forms it is run in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entrant {
    pub(crate) kind: Kind,
    /// Block size, for engines that are run with several.
    pub(crate) block_kib: Option<usize>,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Terrane => "terrane",
            Kind::TerranePlain => "terrane-plain",
            Kind::TerraneLayers => "terrane-layers",
            Kind::TerraneVectors => "terrane-vectors",
            Kind::TerraneIndexes => "terrane-indexes",
            Kind::TerraneReader => "terrane-reader",
            Kind::TerraneCounted => "terrane-counted",
            Kind::TerraneCold => "terrane-cold",
            Kind::TerraneCores => "terrane-cores",
            Kind::TerraneOnCore => "terrane-on-core",
            Kind::TerranePm => "terrane-pm",
            Kind::TerranePmBare => "terrane-pm-bare",
            Kind::TerranePmIndex => "terrane-pm-index",
            Kind::TerranePmLog => "terrane-pm-log",
            Kind::TerranePmMemory => "terrane-pm-memory",
            Kind::TerraneSkiplist => "terrane-skiplist",
            Kind::TerraneSkiplistSmall => "terrane-skiplist-small",
            Kind::TerraneSkiplistMemory => "terrane-skiplist-memory",
            Kind::TerranePiled => "terrane-piled",
            Kind::TerranePiledBare => "terrane-piled-bare",
            Kind::TerranePageCache => "terrane-page-cache",
            #[cfg(feature = "peers")]
            Kind::Rocksdb => "rocksdb",
            #[cfg(feature = "peers")]
            Kind::RocksdbTuned => "rocksdb-tuned",
            #[cfg(feature = "peers")]
            Kind::RocksdbUnsynced => "rocksdb-unsynced",
            #[cfg(feature = "peers")]
            Kind::RocksdbSmall => "rocksdb-small",
            #[cfg(feature = "peers")]
            Kind::RocksdbPiled => "rocksdb-piled",
            #[cfg(feature = "peers")]
            Kind::Fjall => "fjall",
            #[cfg(feature = "peers")]
            Kind::Redb => "redb",
            #[cfg(feature = "peers")]
            Kind::Lmdb => "lmdb",
        }
    }

    pub(crate) fn is_terrane(self) -> bool {
        #[cfg(feature = "peers")]
        if self.is_rocksdb() || matches!(self, Kind::Fjall | Kind::Redb | Kind::Lmdb) {
            return false;
        }
        true
    }

    #[cfg(feature = "peers")]
    fn is_rocksdb(self) -> bool {
        use Kind::{Rocksdb, RocksdbPiled, RocksdbSmall, RocksdbTuned, RocksdbUnsynced};
        matches!(self, Rocksdb | RocksdbTuned | RocksdbUnsynced | RocksdbSmall | RocksdbPiled)
    }

    /// Whether its persistent memory is a file apart from its database.
    pub(crate) fn has_memory(self) -> bool {
        use Kind::{TerranePm, TerranePmBare, TerranePmIndex, TerranePmLog, TerranePmMemory};
        matches!(self, TerranePm | TerranePmBare | TerranePmIndex | TerranePmLog | TerranePmMemory)
    }

    /// What stands for its persistent memory, where it has some and no device for it: to be said wherever figures of it are.
    pub(crate) fn memory_in_words(self) -> Option<&'static str> {
        match self {
            Kind::TerranePageCache => Some("page cache"),
            kind => (kind.has_memory() || kind.is_in_memory()).then_some("simulated"),
        }
    }

    /// Whether its memtables are skiplists.
    pub(crate) fn has_skiplists(self) -> bool {
        use Kind::{TerraneSkiplist, TerraneSkiplistMemory, TerraneSkiplistSmall};
        matches!(self, TerraneSkiplist | TerraneSkiplistMemory | TerraneSkiplistSmall)
    }

    /// Bytes for its memtables, of those that a run gives.
    fn memtable_bytes(self, given: u64) -> u64 {
        let is_small = match self {
            #[cfg(feature = "peers")]
            Kind::RocksdbSmall => true,
            _ => self == Kind::TerraneSkiplistSmall,
        };
        if is_small { given / SMALL } else { given }
    }

    /// Whether all its files are in main memory.
    pub(crate) fn is_in_memory(self) -> bool {
        matches!(self, Kind::TerranePmMemory | Kind::TerraneSkiplistMemory)
    }

    /// Whether records can be dealt out to several tables.
    fn has_tables(self) -> bool {
        #[cfg(feature = "peers")]
        if self.is_rocksdb() {
            return true;
        }
        self.is_terrane()
    }

    /// The forms in which this engine is run; `terrane_kib` are Terrane's block sizes, if not its default.
    pub(crate) fn entrants(self, peers: &Peers, terrane_kib: Option<&[usize]>) -> Vec<Entrant> {
        let sizes = match self {
            #[cfg(feature = "peers")]
            kind if kind.is_rocksdb() => Some(&peers.rocksdb.block_kib[..]),
            kind if kind.is_terrane() => terrane_kib,
            _ => None,
        };
        let _ = peers;
        match sizes {
            Some(sizes) => sizes.iter().map(|&k| Entrant { kind: self, block_kib: Some(k) }).collect(),
            None => vec![Entrant { kind: self, block_kib: None }],
        }
    }
}

impl Entrant {
    /// Of a block of records. (Of Terrane without a size it is the default; of others nobody asks.)
    pub(crate) fn block_bytes(&self) -> u64 {
        (self.block_kib.unwrap_or(16) as u64) << 10
    }
}

impl std::fmt::Display for Entrant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.block_kib {
            Some(k) => write!(f, "{} {k}K", self.kind.name()),
            None => f.write_str(self.kind.name()),
        }
    }
}

/// An open database. Threads share it; each works through a session of its own.
pub(crate) trait Engine: Send + Sync {
    fn session(&self) -> Result<Box<dyn Session + '_>, Failure>;

    /// Returns when no work is left in the background. For engines that have none there is nothing to do.
    fn settle(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// Whether a file of this name holds a log that is recycled, not data. For engines that have one.
    fn is_log(&self, _file: &str) -> bool {
        false
    }

    /// Runs of the uppermost level on disk, where any key may be in each. For engines that have one.
    fn l0_runs(&self) -> Option<u64> {
        None
    }

    /// Sorted runs on disk, whatever level they are in. For engines that are compared at compacting.
    fn sorted_runs(&self) -> Option<u64> {
        None
    }

    /// Writes what is in memory out, and returns when that is done.
    fn flush(&self) -> Result<(), Failure>;

    /// Merges all there is into one level. For engines that are compared at compacting or counted.
    fn compact(&self) -> Result<(), Failure> {
        Err("this engine has no compaction that can be asked for".into())
    }

    /// Threads of its own that make up what they do. For engines that have such.
    fn cores(&self) -> Option<&dyn Cores> {
        None
    }

    /// Blocks that its cache lacked so far. For engines that count them; some do so only where a run is set up for it.
    fn cache_misses(&self) -> Option<u64> {
        None
    }

    /// Lookups that its two uppermost levels on disk have answered so far, and those that all levels have. For engines that count them.
    fn lookups_above(&self) -> Option<(u64, u64)> {
        None
    }

    /// What the engine says of itself, for the reader of a row.
    fn says(&self) -> serde_json::Value {
        serde_json::Value::Null
    }

    fn close(self: Box<Self>) -> Result<(), Failure>;
}

/// Looks a key up and shows the value; says whether there is one: as [`Session::get`], on a core.
pub(crate) type Get<'a> = dyn FnMut(&[u8], &mut dyn FnMut(&[u8])) -> Result<bool, Failure> + 'a;

/// Does some work on a core; says whether there is more.
pub(crate) type Turn = Box<dyn FnMut(&mut Get<'_>) -> bool + Send>;

/// An engine's own threads. Each owns tables: of `n` tables those that [`owner_of`](crate::data::owner_of) says.
pub(crate) trait Cores {
    /// Starts so many, in place of those there were; false if there were as many already.
    fn start(&self, n: u64) -> Result<bool, Failure>;

    /// Has a core take turns until there is no more work. Returns at once.
    fn go(&self, core: u64, turn: Turn) -> Result<(), Failure>;
}

/// One thread's way into an [`Engine`].
pub(crate) trait Session {
    /// Commits all of `records` at once; `None` deletes.
    fn write(&mut self, records: &[(&[u8], Option<&[u8]>)], sync: bool) -> Result<(), Failure>;

    /// Shows the value to `see`; says whether there is one.
    fn get(&mut self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool, Failure>;

    /// As [`Session::get`], of many keys at once if the engine can do that; says how many there are.
    fn multi_get(&mut self, keys: &[Vec<u8>], see: &mut dyn FnMut(&[u8])) -> Result<u64, Failure> {
        let mut found = 0;
        for key in keys {
            found += u64::from(self.get(key, see)?);
        }
        Ok(found)
    }

    /// Looks up the keys that `next` puts into its place until it has no more, as many at the same time as the engine can have under way,
    /// and shows the values to `see`; says how many there are.
    fn stream(
        &mut self,
        next: &mut dyn FnMut(&mut Vec<u8>) -> bool,
        see: &mut dyn FnMut(&[u8]),
    ) -> Result<u64, Failure> {
        one_by_one(self, next, see)
    }

    /// Shows up to `limit` records from `from` on to `see`; says how many there were.
    fn scan(&mut self, from: &[u8], limit: u64, see: &mut dyn FnMut(&[u8], &[u8])) -> Result<u64, Failure>;

    /// Does a transaction from its beginning to its end; `see` gets the values it reads. For engines that have them.
    fn transact(&mut self, _script: &Script<'_>, _see: &mut dyn FnMut(&[u8])) -> Result<Outcome, Failure> {
        Err("this engine is not compared at transactions".into())
    }
}

/// As [`Session::stream`], with one lookup under way.
fn one_by_one(
    session: &mut (impl Session + ?Sized),
    next: &mut dyn FnMut(&mut Vec<u8>) -> bool,
    see: &mut dyn FnMut(&[u8]),
) -> Result<u64, Failure> {
    let (mut key, mut found) = (Vec::new(), 0);
    while next(&mut key) {
        found += u64::from(session.get(&key, see)?);
    }
    Ok(found)
}

/// A transaction as a workload wants it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script<'a> {
    pub(crate) steps: &'a [Step<'a>],
    pub(crate) ending: Ending,
    /// Whether others lock the same keys in another order.
    #[cfg_attr(not(feature = "peers"), expect(dead_code, reason = "Terrane always looks for deadlocks"))]
    pub(crate) deadlocks: bool,
}

/// What a transaction does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step<'a> {
    /// Locks a key and reads its latest value.
    GetForUpdate(&'a [u8]),
    /// Sets a key to a value.
    Put(&'a [u8], &'a [u8]),
}

/// How a transaction ends if it comes so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Commit { sync: bool },
    Rollback,
}

/// What came of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It ended as it was to.
    Done,
    /// Others were in its way: it was rolled back, and may be tried again.
    Refused,
}

/// Waits, for a minute at most, until an engine that has no call for it is no more busy.
#[cfg(feature = "peers")]
fn wait_while(busy: impl Fn() -> bool) {
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while busy() && std::time::Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Opens or creates the database of a job.
pub(crate) fn open(job: &Job) -> Result<Box<dyn Engine>, Failure> {
    let kind = job.entrant.kind;
    let memtable_bytes = kind.memtable_bytes(job.settings.memtable_bytes);
    let settings = &Settings { memtable_bytes, ..job.settings.clone() };
    #[cfg(feature = "peers")]
    let dir = &job.dir;
    if settings.tables > 1 && !kind.has_tables() {
        return Err(format!("{} is not compared with several tables", kind.name()).into());
    }
    Ok(match kind {
        #[cfg(feature = "peers")]
        kind if kind.is_rocksdb() => {
            let form = RocksDbForm {
                own: &job.peers.rocksdb,
                block_kib: job.entrant.block_kib.unwrap_or(16),
                tuned: kind == Kind::RocksdbTuned,
                unsynced: kind == Kind::RocksdbUnsynced,
                piled: kind == Kind::RocksdbPiled,
            };
            if settings.transactions {
                Box::new(rocksdb::TransactionDb::open(dir, settings, &form)?)
            } else {
                Box::new(rocksdb::RocksDb::open(dir, settings, &form)?)
            }
        }
        #[cfg(feature = "peers")]
        Kind::Fjall => Box::new(fjall::Fjall::open(dir, settings, &job.peers.fjall)?),
        #[cfg(feature = "peers")]
        Kind::Redb => Box::new(redb::Redb::open(dir, settings)?),
        #[cfg(feature = "peers")]
        Kind::Lmdb => Box::new(lmdb::Lmdb::open(dir, settings, &job.peers.lmdb)?),
        _ => Box::new(terrane::Terrane::open(job, settings)?),
    })
}
