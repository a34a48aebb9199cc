//! Opening a database whose commits go to persistent memory: what the log's replay is elsewhere.
//!
//! 1. The memory is made, if the database never was open, and named in the manifest before anything is committed in it.
//! 2. What was committed there is found out ([`recover()`]); the chains of what is in extents already, and of subtables that are gone, are
//!    set apart.
//! 3. The indexes of the others are built anew, zone by zone, in parallel.
//! 4. Once the manifest has it that all this is settled, what was set apart is given back.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use terrane_base::reclaim::Clock;
use terrane_base::{Error, ErrorKind, Lsn, MemoryBudget, Result, SubtableId};
use terrane_chainlog::{Chain, Space, recover};
use terrane_format::manifest::{Edit, MemoryMode, MemoryPlace};
use terrane_media::{Media, PmemMode, Pool, Signal};

use crate::chains::Chains;
use crate::levels::{DbState, ManifestStore};
use crate::log::FIRST_LSN;
use crate::memtable::Memtable;
use crate::options::{IndexKind, Medium, Options, PmemOptions};

/// Zones that are read back at a time.
const IN_FLIGHT: usize = 4;

/// What was found in a memory.
pub(super) struct InMemory {
    pub(super) chains: Arc<Chains>,
    /// Of each subtable, the newest first: that one takes what is committed.
    pub(super) memtables: HashMap<SubtableId, Vec<Arc<Memtable>>>,
    /// Where the next commit begins.
    pub(super) end: Lsn,
    /// Chains that nobody needs.
    idle: Vec<Chain>,
}

/// The memory of a database, open; `None` if it has a log.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] if `options` ask for another medium than it has; [`ErrorKind::NotFound`] if its memory is gone; what opening
/// one fails with.
pub(super) fn open(
    media: &dyn Media,
    dir: &Path,
    manifest: &ManifestStore,
    state: &DbState,
    options: &Options,
) -> Result<Option<Arc<Space>>> {
    let uuid = manifest.superblock().uuid;
    let place = match (&state.memory, &options.medium) {
        (None, None | Some(Medium::Log)) => return Ok(None),
        // Never open before, so nothing was committed.
        (None, Some(Medium::Pmem(wanted))) if state.log.generation == 0 => {
            let path = dir.join(&wanted.path);
            // An attempt before this one may have come so far; whose it is is seen when it is opened.
            if !media.exists(&path)? {
                Space::create(media, &path, &wanted.plan(), uuid, 0)?;
            }
            let space = Space::open(media, &path, wanted.mode, uuid, 0)?;
            manifest.append(&[Edit::Memory(recorded(wanted))])?;
            return Ok(Some(space));
        }
        (None, Some(Medium::Pmem(_))) => return Err(other_medium("a log", dir)),
        (Some(_), Some(Medium::Log)) => return Err(other_medium("persistent memory", dir)),
        (Some(place), None) => place.clone(),
        (Some(_), Some(Medium::Pmem(wanted))) => recorded(wanted),
    };
    if place.mode == MemoryMode::PageCache {
        let what = "the database's persistent memory is in the page cache, which this version has no log for";
        return Err(Error::new(ErrorKind::Unsupported, what).with_file(dir));
    }
    let path = dir.join(PathBuf::from(OsStr::from_bytes(&place.path)));
    let space = Space::open(media, &path, mode_of(place.mode), uuid, 0).map_err(|e| match e.kind() {
        ErrorKind::NotFound => {
            Error::new(ErrorKind::NotFound, "the database's persistent memory is not there")
                .with_file(&path)
                .with_hint("mount it, or say where it is (PmemOptions::path); it has the newest commits")
        }
        _ => e,
    })?;
    if Some(&place) != state.memory.as_ref() {
        manifest.append(&[Edit::Memory(place)])?;
    }
    Ok(Some(space))
}

fn other_medium(has: &str, dir: &Path) -> Error {
    Error::invalid(format!("the commits of this database go to {has}"))
        .with_file(dir)
        .with_hint("leave Options::medium as it is, or copy the data to a new database")
}

fn recorded(wanted: &PmemOptions) -> MemoryPlace {
    let mode = match wanted.mode {
        PmemMode::Dax => MemoryMode::Device,
        PmemMode::StandIn => MemoryMode::StandIn,
        PmemMode::PageCache => MemoryMode::PageCache,
    };
    MemoryPlace { path: wanted.path.as_os_str().as_bytes().to_vec(), mode }
}

fn mode_of(mode: MemoryMode) -> PmemMode {
    match mode {
        MemoryMode::Device => PmemMode::Dax,
        MemoryMode::StandIn => PmemMode::StandIn,
        MemoryMode::PageCache => PmemMode::PageCache,
    }
}

/// What memtables of a memory share.
pub(super) struct Means<'a> {
    pub(super) media: &'a Arc<dyn Media>,
    pub(super) budget: &'a MemoryBudget,
    pub(super) clock: &'a Arc<Clock>,
    pub(super) lost_space: &'a Arc<ArcSwapOption<Error>>,
}

/// Finds out what was committed, and builds memtables of it.
///
/// # Errors
/// [`ErrorKind::Corruption`] for damage; what the memory fails with.
pub(super) fn read_back(
    space: Arc<Space>,
    state: &DbState,
    kinds: &BTreeMap<SubtableId, IndexKind>,
    means: &Means<'_>,
) -> Result<InMemory> {
    let found = recover(&space, state.log.durable_lsn)?;
    let end = found.next_lsn.max(state.log.first_lsn).max(FIRST_LSN).next_multiple_of(8);
    let generation = found.chains.iter().map(|c| c.of().generation + 1).max().unwrap_or(0);
    let (media, lost_space) = (means.media.clone(), means.lost_space.clone());
    let chains = Arc::new(Chains::new(media, space, end, generation, lost_space));
    let (mut own, mut idle): (HashMap<SubtableId, Vec<Chain>>, _) = (HashMap::new(), Vec::new());
    let mut unused: HashMap<SubtableId, Chain> = HashMap::new();
    // In the order of their generations.
    for chain in found.chains {
        let id = u32::try_from(chain.of().subtable).map(SubtableId);
        let living = id.ok().and_then(|id| Some((id, state.subtables.get(&id)?)));
        match living {
            Some((id, s)) if chain.end_lsn() > s.persisted_lsn => own.entry(id).or_default().push(chain),
            Some((id, _)) if chain.is_empty() => idle.extend(unused.insert(id, chain)),
            _ => idle.push(chain),
        }
    }
    let mut memtables = HashMap::new();
    for (id, kind) in kinds {
        let mut all = own.remove(id).unwrap_or_default();
        match unused.remove(id) {
            // As it was.
            Some(chain) if all.is_empty() => all.push(chain),
            Some(chain) => idle.push(chain),
            None if all.is_empty() => all.push(chains.create(*id, end)?),
            None => {}
        }
        let made = all.into_iter().rev().map(|chain| {
            let (budget, clock) = (means.budget.clone(), means.clock.clone());
            let memtable = Memtable::chained(*kind, 0, budget, clock, &chains, chain);
            Arc::new(memtable.salted(means.media.entropy()))
        });
        let made: Vec<_> = made.collect();
        // All but the newest were frozen, or may as well have been: each where its commits end, for those behind are in newer ones, and are
        // not in extents when this one is.
        for older in made.iter().skip(1) {
            older.freeze(older.chain().map_or(end, |records| records.index().chain().end_lsn()));
        }
        memtables.insert(*id, made);
    }
    rebuild(means.media, memtables.values().flatten())?;
    Ok(InMemory { chains, memtables, end, idle })
}

impl InMemory {
    /// Gives back what nobody needs. The manifest has it that all commits before `end` are settled.
    pub(super) fn give_back(&mut self) {
        self.idle.drain(..).for_each(|chain| self.chains.release(chain, self.end));
    }
}

/// Builds the indexes of all memtables, zone by zone, in parallel. Of several errors the first to be heard of is reported.
fn rebuild<'a>(media: &Arc<dyn Media>, memtables: impl Iterator<Item = &'a Arc<Memtable>>) -> Result<()> {
    struct Shared {
        in_flight: AtomicUsize,
        done: Signal,
        failed: Mutex<Option<Error>>,
    }
    let shared =
        Arc::new(Shared { in_flight: AtomicUsize::new(0), done: Signal::new(), failed: Mutex::new(None) });
    let mut sent = Ok(());
    'all: for memtable in memtables {
        let Some(records) = memtable.chain() else { continue };
        let slots = match records.index().chain().slots() {
            Ok(slots) => slots,
            Err(e) => {
                sent = Err(e);
                break;
            }
        };
        for slot in 0..slots {
            let room = || shared.in_flight.load(Ordering::Acquire) < IN_FLIGHT;
            sent = shared.done.wait_until(&**media, room);
            if sent.is_err() || shared.failed.lock().is_some() {
                break 'all;
            }
            shared.in_flight.fetch_add(1, Ordering::AcqRel);
            let (shared, memtable) = (shared.clone(), memtable.clone());
            let job = move || {
                if let Err(e) = memtable.read_back(slot) {
                    shared.failed.lock().get_or_insert(e);
                }
                drop(memtable);
                shared.in_flight.fetch_sub(1, Ordering::AcqRel);
                shared.done.notify_all();
            };
            media.spawn(Pool::Flush, "rebuild", Box::new(job));
        }
    }
    // Whatever happened, no task may outlive this call.
    shared.done.wait_until(&**media, || shared.in_flight.load(Ordering::Acquire) == 0)?;
    sent?;
    shared.failed.lock().take().map_or(Ok(()), |e| {
        Err(match e.kind() {
            ErrorKind::Corruption => e.with_hint("restore the database, its memory with it, from a backup"),
            _ => e,
        })
    })
}
