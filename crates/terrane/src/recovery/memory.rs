//! Opening a database whose commits go to persistent memory: what the log's replay is elsewhere.
//!
//! 1. The memory is made, if the database never was open, and named in the manifest before anything is committed in it.
//! 2. What was committed there is found out ([`recover()`]); the chains of what is in extents already, and of subtables that are gone, are
//!    set apart.
//! 3. The indexes of the others are built anew, zone by zone, in parallel.
//! 4. Once the manifest has it that all this is settled, what was set apart is given back.
//!
//! A memory in the page cache has a log beside it that has all that it has ([`crate::db::journal`]). So where it cannot be trusted, is not
//! there, or has more than the log, which lost what its tail had when a write to it failed, a new one is made in its place. What chains
//! have not is replayed from the log, into ordinary memory ([`super::target`]). If there are too few memtables in it for what comes behind
//! that, what there is is written out before the database is open ([`crate::db::engine::Engine::go_on_in_memory`]).
//!
//! A memory on a device may have a log beside it too. After a power failure it has more than the log, and keeps it: the log goes on behind
//! a gap ([`crate::log`]), and what the gap stands for is written out at once. If it is lost, a new one is made if [`Options::renew_pmem`]
//! says so, and has what the log has; unless there is a gap in that ([`super::renew`]).

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use terrane_base::reclaim::Clock;
use terrane_base::{Error, ErrorKind, Lsn, Result, SubtableId};
use terrane_chainlog::{Chain, Space, recover};
use terrane_format::manifest::{Edit, MemoryMode, MemoryPlace};
use terrane_format::pm::Known;
use terrane_media::{LockGuard, Media, PmemMode, Pool, in_shares_of_all};

use crate::chains::Chains;
use crate::levels::{DbState, ManifestStore};
use crate::log::FIRST_LSN;
use crate::memtable::{Memtable, MemtableBudget};
use crate::options::{IndexKind, Medium, Options, PmemOptions};
use crate::recovery::make_memtables;
use crate::recovery::renew::Renewal;
use crate::recovery::replay::{self, Replayed};
use crate::recovery::target::Target;

/// A memory that is open.
pub(super) struct Opened {
    pub(super) space: Arc<Space>,
    pub(super) place: MemoryPlace,
    pub(super) path: PathBuf,
    /// It was made anew, for what there was could not be used.
    pub(super) is_new: bool,
    /// Of its file: a copy of the directory has a lock of its own, and names the same memory.
    pub(super) lock: Box<dyn LockGuard>,
}

impl Opened {
    pub(super) fn new(
        space: Arc<Space>,
        lock: Box<dyn LockGuard>,
        path: PathBuf,
        place: MemoryPlace,
        is_new: bool,
    ) -> Self {
        let known = Known { opening: space.opening(), before: None };
        let place = MemoryPlace { known, ..place };
        Opened { space, place, path, is_new, lock }
    }
}

/// What was found in a memory.
pub(super) struct InMemory {
    pub(super) chains: Arc<Chains>,
    /// Of each subtable, the newest first: that one takes what is committed, unless the subtable [waits](InMemory::waiting).
    pub(super) memtables: HashMap<SubtableId, Vec<Arc<Memtable>>>,
    /// Where the next commit begins.
    pub(super) end: Lsn,
    /// Chains that nobody needs.
    idle: Vec<Chain>,
    /// What the log lacks already; empty if it lacks nothing.
    pub(super) gap: Range<Lsn>,
    /// Subtables that have no memtable in it to go on with yet, but an empty one in ordinary memory.
    pub(super) waiting: Vec<SubtableId>,
    /// As long as anything is stored in the memory.
    pub(super) lock: Box<dyn LockGuard>,
}

/// The memory of a database, open; `None` if it has a log and nothing else.
///
/// # Errors
/// [`terrane_base::ErrorKind::InvalidArgument`] if `options` ask for another medium than it has; as [`Renewal::instead`] if its
/// memory cannot be used; what opening one fails with.
pub(super) fn open(
    dir: &Path,
    manifest: &ManifestStore,
    options: &Options,
    renewal: &mut Renewal<'_>,
) -> Result<Option<Opened>> {
    let state = renewal.state;
    let at = |place: &MemoryPlace| dir.join(PathBuf::from(OsStr::from_bytes(&place.path)));
    let place = match (&state.memory, &options.medium) {
        (None, None) if options.pmem_path.is_some() => {
            return Err(Error::invalid(
                "the commits of this database go to a log, and there is no memory to be found",
            )
            .with_file(dir)
            .with_hint("leave Options::pmem_path (terrane --pmem) off"));
        }
        (None, None | Some(Medium::Log)) => return Ok(None),
        // Never open before, so nothing was committed. (An attempt may have wanted another one.)
        (_, Some(Medium::Pmem(wanted))) if state.log.generation == 0 => {
            let opened = renewal.first(dir.join(&wanted.path), recorded(wanted))?;
            manifest.append(&[Edit::Memory(opened.place.clone())])?;
            // Nothing was ever in it.
            return Ok(Some(Opened { is_new: false, ..opened }));
        }
        (None, Some(Medium::Pmem(_))) => return Err(other_medium("a log", dir)),
        (Some(_), Some(Medium::Log)) => return Err(other_medium("persistent memory", dir)),
        (Some(had), None) => {
            let moved = options.pmem_path.as_ref().map(|path| path_bytes(path));
            let wanted = MemoryPlace { path: moved.unwrap_or_else(|| had.path.clone()), ..had.clone() };
            renewal.was_at = (at(had) != at(&wanted)).then(|| at(had));
            renewal.was_moved = renewal.was_at.is_some();
            wanted
        }
        (Some(had), Some(Medium::Pmem(wanted))) => {
            let wanted = MemoryPlace { number: had.number, known: had.known, ..recorded(wanted) };
            let kind = |place: &MemoryPlace| (place.has_log, place.mode == MemoryMode::PageCache);
            if kind(had) != kind(&wanted) {
                return Err(other_medium("another mode of memory, with a log or without one", dir));
            }
            renewal.was_at = (at(had) != at(&wanted)).then(|| at(had));
            wanted
        }
    };
    let opened = renewal.open(at(&place), place)?;
    if Some(&opened.place) != state.memory.as_ref() {
        manifest.append(&[Edit::Memory(opened.place.clone())])?;
    }
    Ok(Some(opened))
}

fn path_bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
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
    let has_log = wanted.has_log();
    MemoryPlace {
        path: path_bytes(&wanted.path),
        mode,
        bytes: wanted.bytes,
        zone_bytes: wanted.zone_bytes,
        number: 0,
        has_log,
        known: Known::default(),
    }
}

pub(super) fn mode_of(mode: MemoryMode) -> PmemMode {
    match mode {
        MemoryMode::Device => PmemMode::Dax,
        MemoryMode::StandIn => PmemMode::StandIn,
        MemoryMode::PageCache => PmemMode::PageCache,
    }
}

/// What memtables of a memory share.
pub(super) struct Means<'a> {
    pub(super) media: &'a Arc<dyn Media>,
    pub(super) budget: &'a MemtableBudget,
    pub(super) clock: &'a Arc<Clock>,
    pub(super) lost_space: &'a Arc<ArcSwapOption<Error>>,
    /// Ordinary memory for what is known of blocks in it.
    pub(super) index_bytes: usize,
    /// Indexes of memtables lie in it.
    pub(super) index_in_pmem: bool,
}

/// Finds out what was committed, and builds memtables of it; of what the log beside it has too, where there is one.
///
/// # Errors
/// [`terrane_base::ErrorKind::Corruption`] for damage; what the memory fails with.
pub(super) fn restore(
    opened: Opened,
    manifest: &ManifestStore,
    renewal: &Renewal<'_>,
    kinds: &BTreeMap<SubtableId, IndexKind>,
    means: &Means<'_>,
) -> Result<(Option<Replayed>, InMemory)> {
    let (state, path) = (renewal.state, opened.path.clone());
    // As large as it was: that has been told.
    let (bytes, zone_bytes) = (opened.space.file_bytes(), opened.space.zone_bytes() as u64);
    let place = MemoryPlace { bytes, zone_bytes, ..opened.place.clone() };
    let use_anew = |anew: Opened| {
        manifest.append(&[Edit::Memory(anew.place.clone())])?;
        read_back(anew, state, kinds, means)
    };
    let mut found = match read_back(opened, state, kinds, means) {
        Err(e) => use_anew(renewal.instead(e, path.clone(), place.clone())?)?,
        Ok(found) => found,
    };
    if !place.has_log {
        return Ok((None, found));
    }
    let replay = |found: &InMemory| {
        let make = make_memtables(kinds, means.budget, means.clock, means.media);
        replay::replay(means.media, renewal.log, state, found.targets(state), make)
    };
    let join = |found: &mut InMemory, replayed: &mut Replayed| {
        found.gap = replayed.gap.clone();
        found.join(std::mem::take(&mut replayed.beside), replayed.log.end, kinds, means)
    };
    let mut replayed = replay(&found)?;
    let in_page_cache = place.mode == MemoryMode::PageCache;
    let is_short = replayed.log.end < found.end;
    // What the log had in its tail alone it gave up when a write failed: it is what was promised, and all that later commits stand behind.
    if is_short && in_page_cache {
        drop((replayed, found));
        found = use_anew(renewal.make(path, place, true)?)?;
        replayed = replay(&found)?;
    }
    join(&mut found, &mut replayed)?;
    Ok((Some(replayed), found))
}

fn read_back(
    opened: Opened,
    state: &DbState,
    kinds: &BTreeMap<SubtableId, IndexKind>,
    means: &Means<'_>,
) -> Result<InMemory> {
    let Opened { space, is_new, lock, .. } = opened;
    let found = recover(&space, state.log.durable_lsn)?;
    let end = found.next_lsn.max(state.log.first_lsn).max(FIRST_LSN).next_multiple_of(8);
    let generation = found.chains.iter().map(|c| c.of().generation + 1).max().unwrap_or(0);
    let (media, lost_space) = (means.media.clone(), means.lost_space.clone());
    let chains = Chains::new(media, space, end, generation, lost_space, is_new, means.index_bytes);
    let chains = Arc::new(match means.index_in_pmem {
        true => chains.with_indexes(means.budget.indexes().clone()),
        false => chains,
    });
    let (mut own, mut idle): (HashMap<SubtableId, Vec<Chain>>, _) = (HashMap::new(), Vec::new());
    let (mut unused, mut unneeded): (HashMap<SubtableId, Chain>, _) = (HashMap::new(), Vec::new());
    let settled = state.log.durable_lsn;
    // In the order of their generations.
    for chain in found.chains {
        let id = u32::try_from(chain.of().subtable).map(SubtableId);
        let living = id.ok().and_then(|id| Some((id, state.subtables.get(&id)?)));
        match living {
            Some((id, s)) if chain.end_lsn() > s.persisted_lsn => own.entry(id).or_default().push(chain),
            Some((id, _)) if chain.is_empty() => unneeded.extend(unused.insert(id, chain)),
            _ if chain.is_empty() || chain.end_lsn() <= settled => unneeded.push(chain),
            _ => idle.push(chain),
        }
    }
    unneeded.extend(own.keys().filter_map(|id| unused.remove(id)));
    // At once, for there may be no other ones: an opening that is cut short leaves some, and so does the next one; and its subtable may have
    // no other one, if that was while it waited. Nothing was committed in them, or the manifest has it that all of that is settled.
    unneeded.into_iter().for_each(|chain| chains.release(chain, settled));
    let mut memtables = HashMap::new();
    for (id, kind) in kinds {
        let mut all = own.remove(id).unwrap_or_default();
        if all.is_empty() {
            // As it was, if it was empty.
            all.push(unused.remove(id).map_or_else(|| chains.create(*id, end), Ok)?);
        }
        let made: Vec<_> = all.into_iter().rev().map(|chain| means.memtable(*kind, &chains, chain)).collect();
        // All but the newest were frozen, or may as well have been: each where its commits end, for those behind are in newer ones, and are
        // not in extents when this one is.
        for older in made.iter().skip(1) {
            older.freeze(commits(older).end);
        }
        memtables.insert(*id, made);
    }
    rebuild(means.media, memtables.values().flatten())?;
    Ok(InMemory { chains, memtables, end, idle, gap: 0..0, waiting: Vec::new(), lock })
}

/// The commits to its subtable that a memtable's chain has, but for those that an older one has: from where it begins to the last one.
fn commits(memtable: &Memtable) -> Range<Lsn> {
    let Some(records) = memtable.chain() else { return 0..0 };
    let chain = records.index().chain();
    chain.of().from_lsn..chain.end_lsn().max(chain.of().from_lsn)
}

impl Means<'_> {
    fn memtable(&self, kind: IndexKind, chains: &Arc<Chains>, chain: Chain) -> Arc<Memtable> {
        let (budget, clock) = (self.budget, self.clock.clone());
        let memtable = Memtable::chained(kind, 0, budget, clock, chains, chain);
        Arc::new(memtable.salted(self.media.entropy()))
    }
}

impl InMemory {
    /// Where what the log has beside the chains goes.
    fn targets(&self, state: &DbState) -> HashMap<SubtableId, Target> {
        let targets = self.memtables.iter().filter_map(|(id, memtables)| {
            let persisted = state.subtables.get(id)?.persisted_lsn;
            Some((*id, Target::beside(memtables.iter().rev().map(|m| commits(m)).collect(), persisted)))
        });
        targets.collect()
    }

    /// Puts what the log had beside the chains between their memtables. Commits go on behind its end, or the chains' if they have more. Where
    /// the log lacks anything, all that there is is written out at once, or as soon as there can be memtables beside them
    /// ([`crate::db::engine::Engine::close_gap`]). Subtables have all memtables between them, so commits that were on their way to many may
    /// leave some [waiting](InMemory::waiting).
    fn join(
        &mut self,
        beside: HashMap<SubtableId, Vec<(usize, Arc<Memtable>)>>,
        end: Lsn,
        kinds: &BTreeMap<SubtableId, IndexKind>,
        means: &Means<'_>,
    ) -> Result<()> {
        let exposed = end < self.end || !self.gap.is_empty();
        self.end = self.end.max(end);
        let end = self.end;
        // The newest chain goes on, unless the log has something behind its beginning: of that it would say that it has it.
        let must_end = |id: &SubtableId, chained: &[Arc<Memtable>]| {
            let newest = beside.get(id).and_then(|between| between.last());
            newest.is_some_and(|(older, _)| *older == chained.len())
        };
        // In one order, for what is made takes numbers. Those first that cannot do without.
        let mut order: Vec<_> = kinds.iter().collect();
        order.sort_by_key(|(id, _)| !self.memtables.get(id).is_some_and(|chained| must_end(id, chained)));
        for (id, kind) in order {
            let between = beside.get(id).map_or(&[][..], Vec::as_slice);
            if between.is_empty() && !exposed {
                continue;
            }
            let Some(chained) = self.memtables.get_mut(id) else { continue };
            let (count, must_end) = (chained.len(), must_end(id, chained));
            let is_empty = chained.first().is_some_and(|newest| newest.is_empty());
            if must_end && is_empty {
                // Nothing was ever committed in it: it goes before another one is made, for there may be none to take.
                chained.remove(0).not_needed(0);
            }
            let next = match must_end || (exposed && !is_empty) {
                true => match self.chains.create(*id, end) {
                    Ok(chain) => Some(means.memtable(*kind, &self.chains, chain)),
                    Err(e) if e.kind() == ErrorKind::OutOfSpace => must_end.then(|| {
                        self.waiting.push(*id);
                        Arc::new(Memtable::new(*kind, 0, means.budget, means.clock.clone()))
                    }),
                    Err(e) => return Err(e),
                },
                false => None,
            };
            let mut all: Vec<Arc<Memtable>> = Vec::new();
            let oldest_first = std::mem::take(chained).into_iter().rev();
            let mut between = between.iter().peekable();
            for (older, memtable) in oldest_first.enumerate() {
                all.extend(between.next_if(|(n, _)| *n == older).map(|(_, m)| m.clone()));
                if older + 1 == count && next.is_some() {
                    memtable.freeze(commits(&memtable).end);
                }
                all.push(memtable);
            }
            // There are some only behind a chain that ends.
            all.extend(between.map(|(_, m)| m.clone()));
            all.extend(next);
            all.reverse();
            *chained = all;
        }
        Ok(())
    }

    /// Gives back what nobody needs. The manifest has it that all commits before `end` are settled.
    pub(super) fn give_back(&mut self) {
        self.idle.drain(..).for_each(|chain| self.chains.release(chain, self.end));
    }
}

/// Builds the indexes of all memtables, zone by zone, on all processors. Of several errors the first to be heard of is reported.
fn rebuild<'a>(media: &Arc<dyn Media>, memtables: impl Iterator<Item = &'a Arc<Memtable>>) -> Result<()> {
    let mut zones = Vec::new();
    for memtable in memtables {
        if let Some(records) = memtable.chain() {
            zones.extend((0..records.index().chain().slots()?).map(|slot| (memtable.clone(), slot)));
        }
    }
    let count = zones.len();
    let read_back = move |n: usize| {
        let (memtable, slot) = &zones[n];
        memtable.read_back(*slot)
    };
    in_shares_of_all(media, Pool::Flush, "rebuild", count, read_back).map(drop)
}
