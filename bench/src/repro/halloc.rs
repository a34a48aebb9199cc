//! What allocating persistent memory takes: on ordinary memory with every instruction that a device would need, and with what a device
//! costs beside (both are simulated); and what opening a memory of a million objects takes.

use std::sync::Arc;
use std::time::Instant;

use terrane::media::real::{RealMedia, RealOptions};
use terrane::media::{CostlyPmem, Media, Pmem, PmemCost, PmemMode};
use terrane_format::pm::PoolKind;
use terrane_halloc::{Halloc, Plan};

use crate::args::ReproArgs;
use crate::report::median;
use crate::repro::Line;
#[cfg(feature = "pmdk")]
use crate::repro::pm::peers;
use crate::{Failure, run};

const FIGURE: &str = "pm-halloc";
const UUID: [u8; 16] = *b"terrane-bench-pm";
/// Objects of 256 bytes, of 2 KiB, and zones of 16 KiB: a GiB in all.
const SMALL: u64 = 1_000_000;
const MIDDLE: u64 = 150_000;
const ZONES: u64 = 28_000;
const ZONE_BYTES: u64 = 16 << 10;
/// How many are released with one fence.
const RELEASED_AT_ONCE: usize = 64;
const ROUNDS: usize = 3;
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
    let (subtables, memtables, zones) = (scaled(SMALL), scaled(MIDDLE), scaled(ZONES));
    let bytes = subtables * (256 + 8) + memtables * (2048 + 8) + zones * (ZONE_BYTES + 8) + (64 << 10);
    let plan = Plan { bytes, subtables, memtables, zone_bytes: ZONE_BYTES };
    let dir = run::scratch(a.dir.as_deref())?;
    let path = dir.path().join("pm");
    let media = RealMedia::new(RealOptions::default())?;
    Halloc::create(&*media, &path, &plan, UUID, 0)?;
    let map = || media.map_pmem(&path, PmemMode::StandIn);
    let (mut opened, mut plain, mut costly) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let pmem = map()?;
        let began = Instant::now();
        let halloc = Halloc::open_on(&*media, pmem, UUID, 0)?;
        opened.push(began.elapsed().as_secs_f64() * 1e3);
        plain.push(allocate(&halloc)?);
        halloc.close(&*media)?;
        let pmem: Arc<dyn Pmem> = Arc::new(CostlyPmem::new(map()?, PmemCost::OPTANE));
        let halloc = Halloc::open_on(&*media, pmem, UUID, 0)?;
        costly.push(allocate(&halloc)?);
        halloc.close(&*media)?;
    }
    let device = "simulated: on ordinary memory, with a device's instructions";
    let optane = "simulated: as before, and one Optane module's time for blocks of 256 bytes";
    for (rounds, note) in [(&plain, device), (&costly, optane)] {
        for (at, (what, _)) in rounds[0].iter().enumerate() {
            let nanos = median(rounds.iter().map(|r| r[at].1).collect());
            let claimed = what.starts_with("take").then_some(MOST);
            see(line(what.clone(), claimed, nanos, "ns", note.to_owned()))?;
        }
    }
    let objects = subtables + memtables + zones;
    let note = format!("{objects} objects, all free; with two flushes of the file");
    see(line("opening a memory".to_owned(), None, median(opened), "ms", note))?;
    #[cfg(feature = "pmdk")]
    beside_others(dir.path(), [subtables, memtables, zones], &plain, see)?;
    Ok(())
}

/// The same with other allocators.
#[cfg(feature = "pmdk")]
fn beside_others(
    dir: &std::path::Path,
    objects: [u64; 3],
    ours: &[Taken],
    see: &mut dyn FnMut(Line) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let ours = |at: usize| median(ours.iter().map(|r| r[at].1).collect());
    for (at, (bytes, objects)) in [256, 2048, ZONE_BYTES as usize].into_iter().zip(objects).enumerate() {
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
            let note = format!("simulated: libpmemobj {theirs:.0} ns, ours {:.0}", ours(at));
            let measured = theirs / ours(at);
            let (unit, holds) = ("x libpmemobj".to_owned(), measured >= 1.0);
            see(Line { figure: FIGURE, row, claimed: Some(1.0), measured, unit, note, holds })?;
        }
        let note = "ordinary memory, which forgets".to_owned();
        let taken = of(&jemalloc, |t| t.take);
        see(line(format!("take {bytes} bytes of jemalloc"), None, taken, "ns", note))?;
        let note = format!("simulated; {count} objects of {bytes} bytes");
        see(line("opening a pool of libpmemobj".to_owned(), None, of(&pmdk, |t| t.open) / 1e6, "ms", note))?;
    }
    Ok(())
}

fn line(row: String, claimed: Option<f64>, measured: f64, unit: &str, note: String) -> Line {
    let holds = claimed.is_none_or(|most| measured <= most);
    Line { figure: FIGURE, row, claimed, measured, unit: unit.to_owned(), note, holds }
}

/// Takes, commits and releases most objects of each pool.
fn allocate(halloc: &Halloc) -> Result<Taken, Failure> {
    let mut taken = Vec::new();
    for kind in [PoolKind::Subtables, PoolKind::Memtables, PoolKind::Zones] {
        let pool = halloc.pool(kind);
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
