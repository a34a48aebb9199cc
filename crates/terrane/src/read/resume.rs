//! A lookup in steps: for event loops and executors.

use std::sync::Arc;

use terrane_base::Result;
use terrane_cache::Pin;

use crate::db::engine::Engine;
use crate::db::snapshot::SnapshotGuard;
use crate::db::table::{Super, Table};
use crate::read::blocks::load;
use crate::read::lookup::{Found, Need, Step, View, Walk};
use crate::tombstone::outdated;

/// A point lookup in steps. Each step answers from memory or names the one block that it needs; the caller has it
/// fetched wherever blocking is allowed, hands it in, and goes on. It answers as of the moment at which it was made, and
/// keeps the memtables and extents of that moment alive, and like a snapshot the versions of keys.
///
/// ```
/// # fn main() -> terrane::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let db = terrane::Db::open(dir.path(), terrane::Options::new())?;
/// # let users = db.create_subtable("users", terrane::SubtableOptions::new())?;
/// # users.put(b"ada", b"1815")?;
/// let mut lookup = users.lookup(b"ada")?;
/// let value = loop {
///     match lookup.step()? {
///         terrane::LookupStep::Done(value) => break value,
///         // Here an event loop would hand the request to a thread and do something else meanwhile.
///         terrane::LookupStep::Need(block) => lookup.supply(block.fetch()?),
///     }
/// };
/// assert_eq!(value.as_deref(), Some(&b"1815"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Lookup {
    engine: Arc<Engine>,
    table: Arc<Table>,
    state: Arc<Super>,
    /// Registered: steps may lie far apart.
    snapshot: SnapshotGuard,
    key: Vec<u8>,
    walk: Walk,
    supplied: Option<Pin>,
}

/// What [`Lookup::step`] came to.
#[derive(Debug)]
pub enum LookupStep {
    /// The answer; `None` if the key has no value.
    Done(Option<Vec<u8>>),
    /// The lookup goes on once this block is supplied.
    Need(BlockRequest),
}

/// A block that is not in memory.
#[derive(Debug)]
pub struct BlockRequest {
    engine: Arc<Engine>,
    need: Need,
}

/// A fetched block; keeps its bytes in memory.
#[derive(Debug)]
pub struct FetchedBlock(Pin);

impl BlockRequest {
    /// Reads the block from the medium, verified, into the cache. Blocks. May run on any thread.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn fetch(self) -> Result<FetchedBlock> {
        load(&self.engine.cache, &self.need.extent, &self.need.part).map(FetchedBlock)
    }
}

impl Lookup {
    pub(crate) fn new(engine: Arc<Engine>, table: Arc<Table>, key: &[u8]) -> Self {
        // Registered before the state is loaded, as for a cursor.
        let snapshot = engine.snapshots.register(|| engine.visible());
        let state = table.state_full();
        Lookup { engine, table, state, snapshot, key: key.to_vec(), walk: Walk::default(), supplied: None }
    }

    /// Goes as far as memory allows. Reads the medium only for a large value, and once for the range tombstones of an
    /// extent that has any.
    ///
    /// # Errors
    /// Corruption; I/O errors while reading one of these.
    pub fn step(&mut self) -> Result<LookupStep> {
        let engine = &self.engine;
        let mut found = Some(|hit: Found<'_>| engine.copy_value(&hit));
        let step = self.walk.advance(
            View { state: &self.state, cache: &engine.cache, heat: &engine.heat, rows: engine.rows.as_ref() },
            &self.key,
            self.snapshot.seq,
            &mut self.supplied,
            &mut found,
        );
        let place = |e: terrane_base::Error| e.with_subtable(&*self.table.name);
        match step.map_err(place)? {
            Step::Done(answer) => Ok(LookupStep::Done(answer.transpose().map_err(place)?)),
            Step::Outdated => Err(place(outdated(self.snapshot.seq))),
            Step::Need(need) => Ok(LookupStep::Need(BlockRequest { engine: engine.clone(), need })),
        }
    }

    /// Hands in the block last asked for.
    pub fn supply(&mut self, block: FetchedBlock) {
        self.supplied = Some(block.0);
    }
}
