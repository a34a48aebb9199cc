//! What allocating persistent memory takes: on ordinary memory with every instruction that a device would need, and with what a device
//! costs beside (both are simulated); and what opening a memory of a million objects takes, all free or as a process leaves them that dies.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use terrane::media::real::{RealMedia, RealOptions};
use terrane::media::{CostlyPmem, Media, PmemCost, PmemMode, create_pmem};
use terrane_format::pm::{POOLS_AT, PmHeader, PoolKind, PoolShape};
use terrane_halloc::{Halloc, Lent, Plan};

use crate::Failure;
use crate::args::ReproArgs;
use crate::report::median;
use crate::repro::Line;
#[cfg(feature = "pmdk")]
use crate::repro::pm::peers;
use crate::scratch::Scratch;

const FIGURE: &str = "pm-halloc";
const UUID: [u8; 16] = *b"terrane-bench-pm";
/// Objects of 128 bytes, in a memory of their own, for the engine has no such pool.
const TINY: u64 = 1_000_000;
const TINY_BYTES: u64 = 128;
/// Objects of 256 bytes, of 2 KiB, and zones of 16 KiB: a GiB in all.
const SMALL: u64 = 1_000_000;
const MIDDLE: u64 = 150_000;
const ZONES: u64 = 28_000;
const ZONE_BYTES: u64 = 16 << 10;
/// How many are released with one fence.
const RELEASED_AT_ONCE: usize = 64;
const ROUNDS: usize = 3;
const KINDS: [PoolKind; 3] = [PoolKind::Subtables, PoolKind::Memtables, PoolKind::Zones];
/// Below this an allocation is to take, in nanoseconds.
const MOST: f64 = 1000.0;

/// What one allocation of each size and one release took, in nanoseconds.
type Taken = Vec<(String, f64)>;

/// Measures; `see` gets each line as it comes.
pub(super) fn measure(
    a: &ReproArgs,
    see: &mut dyn FnMut(Line) -> Result<(), Failure>,
) -> Result<(), Failure> {
    #[cfg(feature = "pmdk")]
    if peers::begin_anew()? {
        return Ok(());
    }
    let scaled = |n: u64| ((n as f64 * a.scale) as u64).max(1000);
    let (tiny, subtables, memtables, zones) = (scaled(TINY), scaled(SMALL), scaled(MIDDLE), scaled(ZONES));
    let bytes = subtables * (256 + 8) + memtables * (2048 + 8) + zones * (ZONE_BYTES + 8) + (64 << 10);
    let plan = Plan { bytes, subtables, memtables, zone_bytes: ZONE_BYTES };
    let dir = Scratch::of_memory(a.pm_dir.as_deref(), a.dir.as_deref(), 2 * bytes)?;
    let (tiny_path, path) = (dir.path().join("tiny"), dir.path().join("pm"));
    let media = RealMedia::new(RealOptions::default())?;
    create_tiny(&*media, &tiny_path, tiny)?;
    Halloc::create(&*media, &path, &plan, UUID, 0)?;
    let round = |cost: Option<PmemCost>| -> Result<Taken, Failure> {
        let mut taken = Vec::new();
        for (path, kinds) in [(&tiny_path, &KINDS[..1]), (&path, &KINDS)] {
            let mut pmem = media.map_pmem(path, a.pm_mode())?;
            if let Some(cost) = cost {
                pmem = Arc::new(CostlyPmem::new(pmem, cost));
            }
            let halloc = Halloc::open_on(&*media, pmem, UUID, 0)?;
            taken.extend(allocate(&halloc, kinds)?);
            halloc.close(&*media)?;
        }
        Ok(taken)
    };
    let (mut opened, mut left) = (Vec::new(), Vec::new());
    let (mut plain, mut costly) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (halloc, millis) = open(&media, &path, a.pm_mode())?;
        opened.push(millis);
        halloc.close(&*media)?;
        left.push(reopen(&media, &path, a.pm_mode())?);
        plain.push(round(None)?);
        // A device has its own.
        if a.pm_dir.is_none() {
            costly.push(round(Some(PmemCost::OPTANE))?);
        }
    }
    let optane = "simulated: as before, and one Optane module's time for blocks of 256 bytes";
    for (rounds, note) in [(&plain, a.pm_and_instructions()), (&costly, optane)] {
        for (at, (what, _)) in rounds.first().into_iter().flatten().enumerate() {
            let nanos = median(rounds.iter().map(|r| r[at].1).collect());
            let claimed = what.starts_with("take").then_some(MOST);
            see(line(what.clone(), claimed, nanos, "ns", note.to_owned()))?;
        }
    }
    let objects = subtables + memtables + zones;
    let memory = a.pm_in_words();
    let note = format!("{memory}; {objects} objects, all free; with three flushes of the file");
    see(line("opening a memory".to_owned(), None, median(opened), "ms", note))?;
    let Left { taken, leaked, .. } = left[0];
    let free = objects - taken - leaked;
    let note = format!(
        "{memory}; {taken} objects taken, {leaked} leaked, {free} free; with three flushes of the file"
    );
    let millis = median(left.iter().map(|l| l.millis).collect());
    see(line("opening a memory that was not closed".to_owned(), None, millis, "ms", note))?;
    #[cfg(feature = "pmdk")]
    beside_others(a, dir.path(), [tiny, subtables, memtables, zones], &plain, see)?;
    Ok(())
}

/// Makes a memory for objects of [`TINY_BYTES`]. It is no [`Plan`] of the engine, but the allocator takes objects of any size that a
/// memory's header has.
fn create_tiny(media: &dyn Media, path: &Path, objects: u64) -> Result<(), Failure> {
    const PAGE: u64 = 4096;
    let mut at = POOLS_AT;
    let pools = [(TINY_BYTES, objects), (2048, 1), (ZONE_BYTES, 1)];
    let pools = KINDS.into_iter().zip(pools).map(|(kind, (object_bytes, objects))| {
        let (words_at, objects_at) = (at, at + (objects * 8).next_multiple_of(PAGE));
        at = objects_at + (objects * object_bytes).next_multiple_of(PAGE);
        PoolShape { kind, object_bytes, objects, words_at, objects_at }
    });
    let pools = pools.collect();
    let header = PmHeader { uuid: UUID, device: 0, file_bytes: at, pools };
    Ok(create_pmem(media, path, at as usize, &header.encode())?)
}

/// Opens a memory that is mapped; how many milliseconds that takes.
fn open(media: &Arc<RealMedia>, path: &Path, mode: PmemMode) -> Result<(Arc<Halloc>, f64), Failure> {
    let pmem = media.map_pmem(path, mode)?;
    let began = Instant::now();
    let halloc = Halloc::open_on(&**media, pmem, UUID, 0)?;
    Ok((Arc::new(halloc), began.elapsed().as_secs_f64() * 1e3))
}

/// How a memory was left, and how many milliseconds opening it took.
struct Left {
    taken: u64,
    leaked: u64,
    millis: f64,
}

/// Leaves a memory as a process does that dies, with objects that were committed, that were taken and not committed, and that are free, in
/// no order; and opens it.
fn reopen(media: &Arc<RealMedia>, path: &Path, mode: PmemMode) -> Result<Left, Failure> {
    let (halloc, _) = open(media, path, mode)?;
    let (mut taken, mut leaked) = (0, 0);
    for pool in KINDS.map(|kind| halloc.pool(kind)) {
        let mut released = Vec::new();
        for tag in 0..pool.objects() * 9 / 10 {
            match tag % 9 {
                0 => released.push(pool.get()?.commit(tag)?),
                1 | 2 => {
                    Lent::take(&halloc, pool.kind())?.leave();
                    leaked += 1;
                }
                _ => {
                    pool.get()?.commit(tag)?;
                    taken += 1;
                }
            }
        }
        released.chunks(RELEASED_AT_ONCE).try_for_each(|some| pool.release(some))?;
    }
    drop(halloc);
    let (halloc, millis) = open(media, path, mode)?;
    let mut found = 0;
    for pool in KINDS.map(|kind| halloc.pool(kind)) {
        let committed: Vec<u32> =
            pool.committed().map(|c| c.map(|(number, _)| number)).collect::<Result<_, _>>()?;
        if pool.taken() != committed.len() as u64 {
            return Err("an object is lost that nobody has".into());
        }
        found += pool.taken();
        committed.chunks(RELEASED_AT_ONCE).try_for_each(|some| pool.release(some))?;
    }
    if found != taken {
        return Err(format!("{found} of {taken} objects were found").into());
    }
    halloc.close(&**media)?;
    Ok(Left { taken, leaked, millis })
}

/// The same with other allocators.
#[cfg(feature = "pmdk")]
fn beside_others(
    a: &ReproArgs,
    dir: &Path,
    objects: [u64; 4],
    ours: &[Taken],
    see: &mut dyn FnMut(Line) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let ours = |at: usize| median(ours.iter().map(|r| r[at].1).collect());
    for (at, (bytes, objects)) in
        [TINY_BYTES as usize, 256, 2048, ZONE_BYTES as usize].into_iter().zip(objects).enumerate()
    {
        let count = objects as usize * 9 / 10;
        let (mut pmdk, mut jemalloc) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            match peers::pmemobj(dir, bytes, count)? {
                Some(taken) => pmdk.push(taken),
                None => return Err("the machine has no libpmemobj: install libpmemobj1".into()),
            }
            jemalloc.push(peers::jemalloc(bytes, count)?);
        }
        let of =
            |all: &[peers::Taken], which: fn(&peers::Taken) -> f64| median(all.iter().map(which).collect());
        for (what, theirs, at) in [
            ("take and commit", of(&pmdk, |t| t.take), 2 * at),
            ("release", of(&pmdk, |t| t.release), 2 * at + 1),
        ] {
            let row = format!("{what} {bytes} bytes");
            let note = format!("{}: libpmemobj {theirs:.0} ns, ours {:.0}", a.pm_in_words(), ours(at));
            let measured = theirs / ours(at);
            let (unit, holds) = ("x libpmemobj".to_owned(), measured >= 1.0);
            see(Line { figure: FIGURE, row, claimed: Some(1.0), measured, unit, note, holds })?;
        }
        let note = "ordinary memory, which forgets".to_owned();
        let taken = of(&jemalloc, |t| t.take);
        see(line(format!("take {bytes} bytes of jemalloc"), None, taken, "ns", note))?;
        let note = format!("{}; {count} objects of {bytes} bytes", a.pm_in_words());
        see(line("opening a pool of libpmemobj".to_owned(), None, of(&pmdk, |t| t.open) / 1e6, "ms", note))?;
    }
    Ok(())
}

fn line(row: String, claimed: Option<f64>, measured: f64, unit: &str, note: String) -> Line {
    let holds = claimed.is_none_or(|most| measured <= most);
    Line { figure: FIGURE, row, claimed, measured, unit: unit.to_owned(), note, holds }
}

/// Takes, commits and releases most objects of some pools.
fn allocate(halloc: &Halloc, kinds: &[PoolKind]) -> Result<Taken, Failure> {
    let mut taken = Vec::new();
    for pool in kinds.iter().map(|kind| halloc.pool(*kind)) {
        let count = pool.objects() * 9 / 10;
        let size = pool.object_bytes();
        let mut numbers = Vec::with_capacity(count as usize);
        let began = Instant::now();
        for tag in 0..count {
            numbers.push(pool.get()?.commit(tag)?);
        }
        let each = |began: Instant| began.elapsed().as_nanos() as f64 / count as f64;
        taken.push((format!("take and commit {size} bytes"), each(began)));
        let began = Instant::now();
        numbers.chunks(RELEASED_AT_ONCE).try_for_each(|some| pool.release(some))?;
        taken.push((format!("release one of {RELEASED_AT_ONCE}, {size} bytes"), each(began)));
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_that_was_left_has_what_was_taken_and_nothing_that_leaked() {
        let dir = Scratch::of_memory(None, None, 8 << 20).unwrap();
        let path = dir.path().join("pm");
        let media = RealMedia::new(RealOptions::default()).unwrap();
        let plan = Plan { bytes: 1 << 20, subtables: 1000, memtables: 100, zone_bytes: 4096 };
        Halloc::create(&*media, &path, &plan, UUID, 0).unwrap();
        // (It counts what is there, and fails otherwise.)
        for _ in 0..2 {
            let left = reopen(&media, &path, PmemMode::StandIn).unwrap();
            assert!(left.taken > 700 && left.leaked > 200, "{} {}", left.taken, left.leaked);
        }
    }

    #[test]
    fn objects_of_128_bytes_lie_side_by_side() {
        let dir = Scratch::of_memory(None, None, 8 << 20).unwrap();
        let path = dir.path().join("tiny");
        let media = RealMedia::new(RealOptions::default()).unwrap();
        create_tiny(&*media, &path, 1000).unwrap();
        let (halloc, _) = open(&media, &path, PmemMode::StandIn).unwrap();
        let pool = halloc.pool(PoolKind::Subtables);
        assert_eq!((pool.objects(), pool.object_bytes()), (1000, 128));
        assert_eq!(pool.place(999).unwrap() - pool.place(0).unwrap(), 999 * 128);
        let taken = allocate(&halloc, &KINDS[..1]).unwrap();
        assert_eq!(taken[0].0, "take and commit 128 bytes");
    }
}
