//! A lookup in steps: for event loops and executors.

use std::sync::Arc;

use terrane_base::Result;
use terrane_cache::{FrameKey, Pin};

use crate::db::engine::Engine;
use crate::db::snapshot::SnapshotGuard;
use crate::db::table::{Super, Table};
use crate::read::blocks::load;
use crate::read::lookup::{Copied, Found, Need, Step, View, Walk};
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
    /// The block last asked for.
    wanted: Option<FrameKey>,
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
pub struct FetchedBlock {
    database: u64,
    key: FrameKey,
    pin: Pin,
}

impl BlockRequest {
    /// Brings the block into memory, from the store below the cache or else from the medium, verified. Blocks. May run on any thread.
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub fn fetch(self) -> Result<FetchedBlock> {
        let Need { extent, part } = &self.need;
        let pin = load(&self.engine.cache, extent, part)?;
        Ok(FetchedBlock { database: self.engine.database, key: part.key(extent), pin })
    }
}

impl Lookup {
    pub(crate) fn new(engine: Arc<Engine>, table: Arc<Table>, key: &[u8]) -> Result<Self> {
        // Registered before the state is loaded, as for a cursor.
        let snapshot = engine.register_owned();
        let state = table.state_full();
        // After the state was taken: that of a dropped table may be the empty one.
        table.check_alive()?;
        let (key, walk) = (key.to_vec(), Walk::default());
        Ok(Lookup { engine, table, state, snapshot, key, walk, wanted: None, supplied: None })
    }

    /// Goes as far as memory allows. Reads the medium only for a large value, and once for the range tombstones of an
    /// extent that has any.
    ///
    /// # Errors
    /// Corruption; I/O errors while reading one of these.
    pub fn step(&mut self) -> Result<LookupStep> {
        let engine = &self.engine;
        let mut found = Some(|hit: Found<'_>| Copied::from(hit));
        let step = self.walk.advance(
            View { state: &self.state, cache: &engine.cache, heat: &engine.heat, rows: engine.rows.as_ref() },
            &self.key,
            self.snapshot.seq,
            &mut self.supplied,
            &mut found,
        );
        let place = |e: terrane_base::Error| e.with_subtable(&*self.table.name);
        match step.map_err(place)? {
            Step::Done(answer) => {
                let value = answer.map(|copy| engine.value_of(copy)).transpose();
                Ok(LookupStep::Done(value.map_err(place)?))
            }
            Step::Outdated => Err(place(outdated(self.snapshot.seq))),
            Step::Need(need) => {
                self.wanted = Some(need.part.key(&need.extent));
                Ok(LookupStep::Need(BlockRequest { engine: engine.clone(), need: *need }))
            }
        }
    }

    /// Hands in the block last asked for. Any other block is left aside: the next step asks again.
    pub fn supply(&mut self, block: FetchedBlock) {
        if block.database == self.engine.database && self.wanted == Some(block.key) {
            self.supplied = Some(block.pin);
        }
    }
}
