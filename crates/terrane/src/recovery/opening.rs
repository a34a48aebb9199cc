//! The steps of an opening, in their order: see the head of [`crate::recovery`].

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use terrane_base::reclaim::Clock;
use terrane_base::{Error, Lsn, Result, SubtableId};
use terrane_cache::{Cache, CacheOptions};
use terrane_compaction::{CpuDevice, Mode, Scheduler, SchedulerOptions};
use terrane_format::options::SubtableOptionsRecord;
use terrane_format::value_ref::ValueRef;
use terrane_media::Media;

use crate::db::engine::Tables;
use crate::db::journal::{Gap, Journal};
use crate::db::table::Table;
use crate::levels::{DbState, Extent, Ids, ManifestStore, Reclaimer, Space, SpaceOptions, Survey, Version};
use crate::log::{Log, LogOptions, joined};
use crate::memtable::Memtable;
use crate::options::{CompactionMode, IndexKind, Options};
use crate::recovery::memory::{self, InMemory, Means, Opened};
use crate::recovery::renew::Renewal;
use crate::recovery::replay::{self, Replayed};
use crate::recovery::target::Target;
use crate::recovery::{make_memtables, options};
use crate::txn::prepared::InDoubt;

pub(super) fn cache(media: &dyn Media, clock: &Arc<Clock>, options: &Options) -> Cache {
    let sizes = CacheOptions::for_processors(options.cache_bytes, media.processors());
    let cache = Cache::on(clock.clone(), sizes).with_swizzling(options.tuning.swizzling);
    #[cfg(feature = "reference-counts")]
    let cache = cache.with_counts(options.counts_references);
    cache
}

pub(super) fn log_options(dir: &Path, uuid: [u8; 16], options: &Options) -> LogOptions {
    LogOptions {
        segment_bytes: options.tuning.segment_bytes,
        tail_bytes: options.tuning.tail_bytes,
        drain_bytes: options.tuning.drain_bytes,
        flush_after: options.tuning.flush_after,
        ..LogOptions::new(dir, uuid)
    }
}

pub(super) fn space_options(uuid: [u8; 16], options: &Options) -> SpaceOptions {
    let (file_bytes, extent_bytes) = (options.tuning.data_file_bytes, options.tuning.extent_bytes);
    let mut space = SpaceOptions::new(uuid);
    space.file_bytes = file_bytes;
    space.grow_bytes = space.grow_bytes.min(file_bytes / 4);
    space.idle_bytes = space.idle_bytes.min(file_bytes / 4);
    space.extent_bytes = extent_bytes;
    // Beside the budget: what a flush and a merge have in use at a time, where memtables are of middling size. Two are worth it in any case.
    space.image_bytes = (options.memtable_bytes / 4).max(3 * extent_bytes);
    space
}

/// What a database has that is in no extent.
pub(super) struct Contents {
    /// What its log had, if it has one.
    pub(super) replayed: Option<Replayed>,
    /// What its persistent memory had, if it has one.
    pub(super) in_memory: Option<InMemory>,
    /// Of each subtable, the newest first: that one takes what is committed, unless the subtable [waits](InMemory::waiting).
    pub(super) memtables: HashMap<SubtableId, Vec<Arc<Memtable>>>,
}

/// Step 3: reads the log, or persistent memory.
///
/// # Errors
/// [`terrane_base::ErrorKind::Corruption`] for damage; what reading and renewing a memory fails with.
pub(super) fn contents(
    opened: Option<Opened>,
    manifest: &ManifestStore,
    renewal: &Renewal<'_>,
    kinds: &BTreeMap<SubtableId, IndexKind>,
    means: &Means<'_>,
) -> Result<Contents> {
    if let Some(opened) = opened {
        let (replayed, mut found) = memory::restore(opened, manifest, renewal, kinds, means)?;
        let memtables = std::mem::take(&mut found.memtables);
        return Ok(Contents { replayed, in_memory: Some(found), memtables });
    }
    let make = make_memtables(kinds, means.budget, means.clock, means.media);
    let memtables: HashMap<_, _> = kinds.keys().map(|id| (*id, Arc::new(make(*id)))).collect();
    let targets = renewal
        .state
        .subtables
        .iter()
        .filter_map(|(id, s)| memtables.get(id).map(|m| (*id, Target::of(m.clone(), s.persisted_lsn))));
    let replayed = replay::replay(means.media, renewal.log, renewal.state, targets.collect(), make)?;
    let memtables = memtables.into_iter().map(|(id, m)| (id, vec![m])).collect();
    Ok(Contents { replayed: Some(replayed), in_memory: None, memtables })
}

/// Step 4: takes for free what neither the manifest nor a record refers to. Gives also the large values of prepared transactions whose end is
/// not known durable, which are to be freed when it is.
///
/// # Errors
/// [`terrane_base::ErrorKind::Corruption`] if two of them, or one and an extent, have the same place.
pub(super) fn claim(
    mut survey: Survey,
    ids: &Ids,
    contents: &mut Contents,
) -> Result<(Arc<Space>, Vec<ValueRef>)> {
    let mut values: Vec<_> = contents.memtables.values().flatten().flat_map(|m| m.values()).collect();
    for prepared in contents.replayed.iter().flat_map(|r| &r.in_doubt) {
        values.extend(prepared.values.iter().cloned());
    }
    for value in values {
        survey.claim_value(&value)?;
        ids.saw_value(value.id);
    }
    // Behind all others: what others have taken the place of was given up, and that is durable.
    let mut doubtful =
        contents.replayed.as_mut().map(|r| std::mem::take(&mut r.doubtful)).unwrap_or_default();
    doubtful.retain(|value| survey.claim_if_free(value));
    doubtful.iter().for_each(|value| ids.saw_value(value.id));
    Ok((Arc::new(survey.finish()?), doubtful))
}

/// Step 5: records that only the tail has are about to become durable. The large values that they refer to go first, written again since the
/// flush that should have come before may have failed.
///
/// # Errors
/// [`terrane_base::ErrorKind::Corruption`] for a value that is damaged; what writing it fails with.
pub(super) fn rewrite_unproved(space: &Space, contents: &mut Contents) -> Result<()> {
    let unproved = contents.replayed.as_mut().map(|r| std::mem::take(&mut r.unproved)).unwrap_or_default();
    // On a device they are durable, and what refers to them there too: a power failure would tear what it has.
    let on_device = contents.in_memory.as_ref().is_some_and(|found| found.chains.space().is_on_device());
    if unproved.is_empty() || on_device {
        return Ok(());
    }
    unproved.iter().try_for_each(|v| space.rewrite_value(v))?;
    space.sync_all()
}

/// Where commits go from now on.
pub(super) struct Started {
    pub(super) journal: Journal,
    /// Where the next one begins.
    pub(super) end: Lsn,
    /// Prepared transactions that have not ended.
    pub(super) in_doubt: Vec<InDoubt>,
}

/// Step 6: begins the log anew under this generation, which is durable, and so makes all that was read of it durable.
///
/// # Errors
/// What writing the log fails with.
pub(super) fn start_journal(
    media: &Arc<dyn Media>,
    log_options: LogOptions,
    generation: u32,
    contents: &mut Contents,
) -> Result<Started> {
    let found = contents.in_memory.as_ref();
    let Some(replayed) = contents.replayed.take() else {
        let found = found.ok_or_else(|| Error::corruption("the database has neither a log nor a memory"))?;
        let journal = Journal::Chains { chains: found.chains.clone(), trailing: None, gap: Gap::new(0..0) };
        return Ok(Started { journal, end: found.end, in_doubt: Vec::new() });
    };
    let in_doubt = replayed.in_doubt;
    let log = Log::start(media.clone(), log_options, generation, replayed.log)?;
    let Some(found) = found else {
        let end = log.advanced_lsn();
        return Ok(Started { journal: Journal::Log(log), end, in_doubt });
    };
    let gap = Gap::new(joined(&found.gap, &log.fill_up_to(found.end, generation)?));
    let end = log.advanced_lsn();
    let journal = Journal::Chains { chains: found.chains.clone(), trailing: Some(log), gap };
    Ok(Started { journal, end, in_doubt })
}

/// All subtables, each with its memtables and levels.
///
/// # Errors
/// [`terrane_base::ErrorKind::Corruption`] for one whose options or levels are not what they can be.
pub(super) fn tables(
    state: &DbState,
    memtables: &HashMap<SubtableId, Vec<Arc<Memtable>>>,
    space: &Space,
    reclaimer: &Arc<Reclaimer>,
    database: u64,
    options: &Options,
) -> Result<Tables> {
    let (mut tables, max_batch, l0_runs) =
        (Tables::default(), options.max_batch_bytes(), options.tuning.l0_runs);
    for (id, s) in &state.subtables {
        let Some(own) = memtables.get(id) else { continue };
        let name: Arc<str> = s.name.as_str().into();
        let named = |e: Error| e.with_subtable(&*name);
        let own_options = options::from_record(&SubtableOptionsRecord::decode(&s.options).map_err(named)?);
        let version = Version::from_state(s, reclaimer.clone(), |meta| {
            Ok(Extent::new(meta.clone(), space.file(meta.file)?, name.clone(), reclaimer.clone()))
        })
        .map_err(named)?;
        let Some((newest, older)) = own.split_first() else { continue };
        let (memtable, version) = (newest.clone(), Arc::new(version));
        let table = Table::new(*id, &name, database, own_options, memtable, version, s.persisted_lsn)
            .with_l0_runs(l0_runs);
        table.cut_values(max_batch);
        table.put_behind(older);
        tables.insert(Arc::new(table));
    }
    Ok(tables)
}

/// What executes compaction tasks.
pub(super) fn scheduler(media: &Arc<dyn Media>, options: &Options) -> Scheduler {
    let mut devices = options.compaction_devices.clone();
    let mode = match options.compaction_mode {
        CompactionMode::Cpu if devices.is_empty() => Mode::Cpu,
        CompactionMode::Cpu => Mode::Device,
        CompactionMode::Check => Mode::Check,
    };
    if mode == Mode::Check && devices.is_empty() {
        // Two runs of the processor are compared.
        devices.push(Arc::new(CpuDevice::new(options.compaction_jobs())));
    }
    let scheduling =
        SchedulerOptions { mode, cpu_units: options.compaction_jobs(), ..SchedulerOptions::default() };
    Scheduler::new(media.clone(), scheduling, devices)
}
