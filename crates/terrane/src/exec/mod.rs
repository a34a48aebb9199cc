//! The executor: a thread for each processor, which owns a share of the subtables.
//!
//! A processor that alone reads a subtable has its blocks in its own caches, and shares no line of memory with another one. So each core of
//! an executor owns subtables, or ranges of keys of them, and whoever wants something of them asks it through rings of its own ([`Lane`]),
//! or lives on the core ([`Executor::poll_on`]). Ownership is a matter of speed alone: all threads may go on using the subtables as
//! always, transactions over what several cores own are transactions as always, and what comes to a core that does not own it any more is
//! carried out all the same. So ownership can change at any time, and does, after the load ([`balance`]).
//!
//! The same goes for the cores' parts of the cache: each has locks and queues of its own, and a share of the memory that others cannot take
//! from it, but every thread may look into all of them. The blocks of what a core owns follow it there in the background
//! ([`crate::db::homes`]).
//!
//! Source: the shared-nothing threads of X-Engine's in-memory read path (Alibaba, "Optimizing X-Engine's In-memory Read Performance"),
//! which leaves open how to divide what is hot, and transactions over several threads.

mod balance;
mod core;
mod lane;
mod late;
mod placement;
mod request;
mod shared;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use terrane_base::{Current, Error, Result};
use terrane_cache::PartStats as CachePartStats;
use terrane_media::Thread;

pub use core::{Core, Polled};
pub use lane::{Lane, Taken};

use crate::Subtable;
use crate::db::engine::Engine;
use crate::db::homes::Estate;
use balance::Balance;
use core::Running;
use placement::PIECES;
pub(crate) use placement::Placement;
use shared::{Arrival, Shared};

/// How an [`Executor`] works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorOptions {
    /// The processors, by number; empty, the default, means all on which the process may run. One named twice has two threads.
    pub cores: Vec<usize>,
    /// Whether what is hot moves to cores that have less to do. Default: true.
    pub balance: bool,
    /// Whether each core has a part of the cache of its own, for the blocks of what it owns: it shares no queue, table or
    /// lock of these with others then, and what one core reads does not push out what another one reads again and again. The memory stays
    /// one: what a core does not use serves the others, and how much each is sure of follows what it misses. Costs moving the blocks in the
    /// cache, by reference, when owners change. Default: true.
    pub cache_parts: bool,
}

impl Default for ExecutorOptions {
    fn default() -> Self {
        ExecutorOptions { cores: Vec::new(), balance: true, cache_parts: true }
    }
}

impl ExecutorOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`ExecutorOptions::cores`].
    #[must_use]
    pub fn cores(self, cores: impl Into<Vec<usize>>) -> Self {
        ExecutorOptions { cores: cores.into(), ..self }
    }

    /// Sets [`ExecutorOptions::balance`].
    #[must_use]
    pub fn balance(self, balance: bool) -> Self {
        ExecutorOptions { balance, ..self }
    }

    /// Sets [`ExecutorOptions::cache_parts`].
    #[must_use]
    pub fn cache_parts(self, cache_parts: bool) -> Self {
        ExecutorOptions { cache_parts, ..self }
    }
}

/// Most cores of an executor.
const MAX_CORES: usize = 1024;

/// Threads, each bound to a processor, that own the subtables of a database between them; see [`crate::Db::executor`]. When it goes it
/// answers what is under way and ends.
///
/// ```
/// use terrane::{Db, ExecutorOptions, Options, SubtableOptions, Taken};
///
/// # fn main() -> terrane::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let db = Db::open(dir.path(), Options::new())?;
/// let users = db.create_subtable("users", SubtableOptions::new())?;
/// users.put(b"ada", b"1815")?;
///
/// let executor = db.executor(ExecutorOptions::new())?;
/// let mut lane = executor.lane(64)?;
/// assert_eq!(lane.get(&users, b"ada", 1)?, Taken::Yes);
/// while lane.under_way() > 0 {
///     lane.wait()?;
///     lane.answers(|token, value| assert_eq!((token, value.unwrap()), (1, Some(&b"1815"[..]))));
/// }
/// executor.shutdown();
/// # Ok(())
/// # }
/// ```
pub struct Executor {
    shared: Arc<Shared>,
    threads: Vec<Thread>,
    /// The cores' parts of the cache, if they have some.
    estate: Option<Arc<Estate>>,
}

impl Executor {
    pub(crate) fn start(engine: Arc<Engine>, options: &ExecutorOptions) -> Result<Self> {
        let cores = match options.cores.is_empty() {
            true => engine.media.cores(),
            false => options.cores.clone(),
        };
        // A machine that names none says why when the first thread is to start.
        let bound: Vec<Option<usize>> =
            if cores.is_empty() { vec![None] } else { cores.into_iter().map(Some).collect() };
        if bound.len() > MAX_CORES {
            return Err(Error::limit("cores of an executor", bound.len() as u64, MAX_CORES as u64));
        }
        let media = engine.media.clone();
        let placement = Arc::new(Current::new(Placement::new(bound.len())));
        let shared = Arc::new(Shared {
            engine,
            cores: bound.iter().map(|_| Default::default()).collect(),
            placement: placement.clone(),
            balance: Balance::new(bound.len(), options.balance),
            ending: AtomicBool::new(false),
            lanes: AtomicU64::new(0),
        });
        // Those that have started end when it goes, also if a later one cannot be started.
        let mut executor =
            Executor { shared: shared.clone(), threads: Vec::with_capacity(bound.len()), estate: None };
        for (number, core) in bound.into_iter().enumerate() {
            let shared = shared.clone();
            let job = Box::new(move || Running::new(&shared, number).run());
            executor.threads.push(media.start_thread(&format!("terrane-core-{number}"), core, job)?);
        }
        if options.cache_parts {
            let cache = &shared.engine.cache;
            // A core for which there is none left has the common part.
            let parts = (0..executor.cores()).map(|_| cache.open_part().unwrap_or(0)).collect();
            let estate = executor.estate.insert(Arc::new(Estate { placement, parts }));
            shared.engine.estates.add(estate.clone());
            shared.engine.settle_homes();
        }
        Ok(executor)
    }

    /// How many cores there are; they are numbered from 0.
    pub fn cores(&self) -> usize {
        self.shared.cores.len()
    }

    /// A lane to all cores for one client, with room for `depth` requests under way at each of them (1 to 65,536; each takes about 120
    /// bytes beside its key and value). Deep lanes make for large batches, and these for speed.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidArgument`] for another depth, [`crate::ErrorKind::Closed`] if the executor has ended.
    pub fn lane(&self, depth: usize) -> Result<Lane> {
        Lane::new(self.shared.clone(), depth)
    }

    /// Has `poller` asked on core `core`, turn by turn, as long as the executor lives: a server that serves its connections there, for
    /// example. It should come back after microseconds. A poller that panics is not asked again.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidArgument`] if there is no such core, [`crate::ErrorKind::Closed`] if a panic in foreign code has ended
    /// it.
    pub fn poll_on(
        &self,
        core: usize,
        poller: impl FnMut(&mut Core<'_>) -> Polled + Send + 'static,
    ) -> Result<()> {
        self.check_core(core)?;
        self.shared.arrive(core, Arrival::Poller(Box::new(poller)))
    }

    /// Has the pollers of a core asked again that said they were idle.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidArgument`] if there is no such core.
    pub fn wake(&self, core: usize) -> Result<()> {
        self.check_core(core)?;
        self.shared.wake(core);
        Ok(())
    }

    /// The core that owns `key` now.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidArgument`] for a subtable of another database.
    pub fn owner(&self, table: &Subtable, key: &[u8]) -> Result<usize> {
        self.shared.engine.check_is_own(table.table())?;
        Ok(self.shared.placement.load().owner(table.table().id, key))
    }

    /// Gives all of a subtable to a core. It may move again unless [`ExecutorOptions::balance`] is off.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidArgument`] for a subtable of another database, or if there is no such core.
    pub fn assign(&self, table: &Subtable, core: usize) -> Result<()> {
        self.shared.engine.check_is_own(table.table())?;
        self.check_core(core)?;
        self.shared.placement.replace(|p| p.assign(table.table().id, core));
        self.shared.owners_changed();
        Ok(())
    }

    /// Gives a core the keys of a subtable from `start` on, up to the next place where it was split.
    ///
    /// # Errors
    /// As for [`Executor::assign`]; [`crate::ErrorKind::LimitExceeded`] if it is in four pieces for each core already.
    pub fn split(&self, table: &Subtable, start: &[u8], core: usize) -> Result<()> {
        self.shared.engine.check_is_own(table.table())?;
        self.check_core(core)?;
        let mut outcome = Ok(());
        self.shared.placement.replace(|p| {
            p.split(table.table().id, start, core).unwrap_or_else(|| {
                let most = (PIECES * self.cores()) as u64;
                outcome = Err(Error::limit("pieces of a subtable", most + 1, most));
                p.clone()
            })
        });
        self.shared.owners_changed();
        outcome
    }

    /// What a core's part of the cache did and holds; `None` if it has none of its own. What it has is moved there in the background when
    /// owners change.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidArgument`] if there is no such core.
    pub fn cache_part(&self, core: usize) -> Result<Option<CachePartStats>> {
        self.check_core(core)?;
        let part = self.estate.as_ref().and_then(|estate| estate.parts.get(core)).filter(|part| **part != 0);
        Ok(part.map(|part| self.shared.engine.cache.part_stats(*part)))
    }

    /// Ends: requests under way are answered, further ones are refused. Blocks until the threads have ended, each of which finishes the
    /// work that it is at. Dropping does the same.
    pub fn shutdown(self) {}

    fn check_core(&self, core: usize) -> Result<()> {
        match core < self.cores() {
            true => Ok(()),
            false => Err(Error::invalid(format!("there is no core {core}: there are {}", self.cores()))),
        }
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.shared.end();
        self.threads.drain(..).for_each(Thread::join);
        if let Some(estate) = self.estate.take() {
            let engine = &self.shared.engine;
            engine.estates.remove(&estate);
            estate.parts.iter().for_each(|part| engine.cache.close_part(*part));
            engine.settle_homes();
        }
    }
}

impl fmt::Debug for Executor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Executor").field("cores", &self.cores()).finish_non_exhaustive()
    }
}
