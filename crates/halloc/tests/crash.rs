//! Who has what after a crash at any point.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex};

use terrane_base::{Error, ErrorKind, Result};
use terrane_format::pm::{PoolKind, STATE_BYTES, STATE_SLOTS};
use terrane_halloc::{Halloc, Known, Plan};
use terrane_media::sim::{
    CountingPmem, CrashKind, Fault, FaultPlan, Image, OpInfo, OpKind, PmemCounts, SimMedia,
};
use terrane_media::{Media, PmemMode};

const PLAN: Plan = Plan { bytes: 128 << 10, subtables: 4, memtables: 4, zone_bytes: 4 << 10 };
const UUID: [u8; 16] = *b"0123456789abcdef";

fn path() -> &'static Path {
    Path::new("/pm")
}

fn machine() -> Arc<SimMedia> {
    let media = SimMedia::new(1);
    Halloc::create(&*media, path(), &PLAN, UUID, 3).unwrap();
    media
}

fn open(media: &SimMedia, mode: PmemMode) -> Result<Halloc> {
    Halloc::open(media, path(), mode, UUID, 3)
}

/// What is certain at a moment, and what is on its way: object -> tag.
#[derive(Clone, Debug, Default)]
struct Model {
    committed: BTreeMap<u32, u64>,
    /// Objects whose commit, with this tag, or release (`None`) was begun and has not returned.
    moving: BTreeMap<u32, Option<u64>>,
}

impl Model {
    /// Compares with what a machine has that comes up after a crash, and uses it on.
    fn check(&self, media: &SimMedia, what: &str) {
        let halloc = open(media, PmemMode::Dax).unwrap();
        let zones = halloc.pool(PoolKind::Zones);
        let found: BTreeMap<u32, u64> = zones.committed().collect::<Result<_>>().unwrap();
        assert_eq!(found.len() as u64, zones.taken(), "{what}");
        for number in 0..zones.objects() as u32 {
            let (before, now) = (self.committed.get(&number), found.get(&number));
            match self.moving.get(&number) {
                None => assert_eq!(now, before, "{what}: object {number}"),
                Some(after) => {
                    assert!(now == before || now == after.as_ref(), "{what}: object {number} is {now:?}")
                }
            }
        }
        // What a recovery has read stays so, also if power fails right behind it.
        for kind in [CrashKind::PowerLost, CrashKind::PowerWords] {
            let again = open(&media.image().crash(kind, 1), PmemMode::Dax).unwrap();
            let again: BTreeMap<u32, u64> =
                again.pool(PoolKind::Zones).committed().collect::<Result<_>>().unwrap();
            assert_eq!(again, found, "{what}: after another crash");
        }
        for (number, tag) in &found {
            let mut content = [0; 8];
            halloc.pmem().load(zones.place(*number).unwrap(), &mut content).unwrap();
            assert_eq!(u64::from_le_bytes(content), *tag, "{what}: content of a committed object");
        }
        // All that is free can be taken, once each, and nothing else.
        let mut fresh = Vec::new();
        let e = loop {
            match zones.get() {
                Ok(f) => fresh.push(f),
                Err(e) => break e,
            }
        };
        assert_eq!(e.kind(), ErrorKind::OutOfSpace);
        let numbers: BTreeSet<_> = fresh.iter().map(|f| f.number()).collect();
        assert_eq!(numbers.len() + found.len(), zones.objects() as usize, "{what}");
        assert!(numbers.iter().all(|n| !found.contains_key(n)), "{what}");
        drop(fresh);
        assert_eq!(zones.taken(), found.len() as u64);
    }
}

/// Numbers from a seed.
fn next(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

#[test]
fn who_has_what_is_known_after_a_crash_at_any_point() {
    let histories = std::env::var("TERRANE_SEEDS").map_or(6, |n| n.parse().unwrap());
    let (mut points, mut images) = (0, 0);
    for history in 0..histories {
        let media = machine();
        let halloc = open(&media, PmemMode::Dax).unwrap();
        let zones = halloc.pool(PoolKind::Zones);
        let model = Arc::new(Mutex::new(Model::default()));
        let seen: Arc<Mutex<Vec<(Image, Model)>>> = Arc::default();
        let (into, from) = (seen.clone(), model.clone());
        media.on_op(Some(Arc::new(move |m: &SimMedia, _: &OpInfo<'_>| {
            into.lock().unwrap().push((m.image(), from.lock().unwrap().clone()));
        })));
        let mut seed = history;
        for step in 0..30u64 {
            let held: Vec<u32> = model.lock().unwrap().committed.keys().copied().collect();
            if next(&mut seed, 3) > 0 || held.is_empty() {
                let Ok(fresh) = zones.get() else { continue };
                let (number, tag) = (fresh.number(), step + 1);
                fresh.write(0, &tag.to_le_bytes()).unwrap();
                if next(&mut seed, 4) == 0 {
                    continue;
                }
                model.lock().unwrap().moving.insert(number, Some(tag));
                fresh.commit(tag).unwrap();
                let mut m = model.lock().unwrap();
                m.moving.clear();
                m.committed.insert(number, tag);
            } else {
                let count = 1 + next(&mut seed, held.len() as u64) as usize;
                let gone = &held[held.len() - count..];
                model.lock().unwrap().moving.extend(gone.iter().map(|n| (*n, None)));
                zones.release(gone).unwrap();
                let mut m = model.lock().unwrap();
                m.moving.clear();
                m.committed.retain(|n, _| !gone.contains(n));
            }
        }
        media.on_op(None);
        for (at, (image, model)) in seen.lock().unwrap().iter().enumerate() {
            points += 1;
            for (by, state) in image.some_pm_states(64) {
                let what = format!("history {history}, call {at}, state {state} by {by:?}");
                model.check(&image.crash_to_pm_state(by, state), &what);
                images += 1;
            }
            for kind in CrashKind::WITH_WORDS {
                for seed in 0..4 {
                    let what = format!("history {history}, call {at}, {kind:?}, seed {seed}");
                    model.check(&image.crash(kind, seed), &what);
                    images += 1;
                }
            }
        }
    }
    println!("{images} crashes at {points} points");
    assert!(points > 100);
}

/// Pictures of a machine before each call of some work that changes something.
fn pictures(media: &SimMedia, work: impl FnOnce()) -> Vec<Image> {
    let seen: Arc<Mutex<Vec<Image>>> = Arc::default();
    let into = seen.clone();
    media.on_op(Some(Arc::new(move |m: &SimMedia, _: &OpInfo<'_>| into.lock().unwrap().push(m.image()))));
    work();
    media.on_op(None);
    std::mem::take(&mut *seen.lock().unwrap())
}

#[test]
fn a_memory_is_made_whole_or_not_at_all() {
    let media = SimMedia::new(1);
    for image in pictures(&media, || Halloc::create(&*media, path(), &PLAN, UUID, 3).unwrap()) {
        for kind in CrashKind::ALL {
            for seed in 0..10 {
                let after = image.crash(kind, seed);
                match open(&after, PmemMode::Dax) {
                    Ok(h) => assert_eq!((h.uuid(), h.device()), (UUID, 3)),
                    Err(e) => {
                        assert_eq!(e.kind(), ErrorKind::NotFound, "{kind:?} {seed}");
                        Halloc::create(&*after, path(), &PLAN, UUID, 3).unwrap();
                    }
                }
            }
        }
    }
}

/// Pictures before each store and fence of an opening.
fn opening(media: &SimMedia) -> Vec<Image> {
    pictures(media, || drop(open(media, PmemMode::Dax).unwrap()))
}

#[test]
fn a_crash_of_an_opening_and_one_of_the_next_leave_a_copy_of_the_state() {
    let media = machine();
    open(&media, PmemMode::Dax).unwrap().pool(PoolKind::Zones).get().unwrap().commit(1).unwrap();
    let kinds = [CrashKind::ProcessTorn, CrashKind::PowerTorn, CrashKind::PowerWords];
    let mut crashes = 0;
    for first in opening(&media.image().crash(CrashKind::Process, 0)) {
        for (kind, seed) in kinds.into_iter().flat_map(|kind| (0..8).map(move |seed| (kind, seed))) {
            for (at, second) in opening(&first.crash(kind, seed)).iter().enumerate() {
                for again in kinds {
                    let after = second.crash(again, seed);
                    let opened = open(&after, PmemMode::Dax)
                        .unwrap_or_else(|e| panic!("{kind:?} {seed}, call {at}, {again:?}: {e:?}"));
                    assert_eq!(opened.pool(PoolKind::Zones).taken(), 1);
                    crashes += 1;
                }
            }
        }
    }
    assert!(crashes > 500, "{crashes}");
}

/// Opens a memory as who keeps where it stands.
fn open_known(media: &SimMedia, known: &Mutex<Known>) -> Result<Halloc> {
    let pmem = media.map_pmem(path(), PmemMode::Dax)?;
    let noted = *known.lock().unwrap();
    let note = &mut |k| {
        *known.lock().unwrap() = k;
        Ok(())
    };
    let halloc = Halloc::open_known(media, pmem, UUID, 3, noted, note)?;
    *known.lock().unwrap() = Known { opening: halloc.opening(), before: None };
    Ok(halloc)
}

/// What its owner knows finds a memory after a crash at every call of an opening, of the next one and of a close; what another owner knows that was
/// a copy does not find it any more.
#[test]
fn an_owner_finds_its_memory_after_a_crash_anywhere_and_a_copy_of_it_does_not() {
    let media = machine();
    let known = Arc::new(Mutex::new(Known::default()));
    let pictures = |media: &SimMedia, known: &Arc<Mutex<Known>>, close: bool| {
        let seen: Arc<Mutex<Vec<_>>> = Arc::default();
        let (into, noted) = (seen.clone(), known.clone());
        media.on_op(Some(Arc::new(move |m: &SimMedia, _: &OpInfo<'_>| {
            into.lock().unwrap().push((m.image(), *noted.lock().unwrap()));
        })));
        let halloc = open_known(media, known).unwrap();
        if close {
            halloc.close(media).unwrap();
        }
        media.on_op(None);
        std::mem::take(&mut *seen.lock().unwrap())
    };
    let kinds = [CrashKind::ProcessTorn, CrashKind::PowerTorn, CrashKind::PowerWords];
    let mut crashes = 0;
    for (first, noted) in pictures(&media, &known, true) {
        for (kind, seed) in kinds.into_iter().flat_map(|kind| (0..8).map(move |seed| (kind, seed))) {
            let of_first = Arc::new(Mutex::new(noted));
            for (second, noted) in pictures(&first.crash(kind, seed), &of_first, seed % 2 == 0) {
                for again in kinds {
                    // With another seed, for machines of one seed take the same steps.
                    let after = second.crash(again, seed + 100);
                    let of_second = Mutex::new(noted);
                    open_known(&after, &of_second)
                        .unwrap_or_else(|e| panic!("{kind:?} {seed}: {e:?}"))
                        .close(&*after)
                        .unwrap();
                    // Where it stood is known no more, nor to who died in an opening that this one came behind.
                    let e = open_known(&after, &Mutex::new(noted)).map(drop);
                    match noted.opening {
                        0 => e.unwrap(),
                        _ => assert_eq!(e.unwrap_err().kind(), ErrorKind::Stale, "{kind:?} {seed}"),
                    }
                    crashes += 1;
                }
            }
        }
    }
    assert!(crashes > 500, "{crashes}");
    // Who cannot write down where it will stand leaves it where it stands.
    let before = *known.lock().unwrap();
    let refused = |_| Err(Error::new(ErrorKind::Io, "full"));
    for _ in 0..2 {
        let pmem = media.map_pmem(path(), PmemMode::Dax).unwrap();
        let e = Halloc::open_known(&*media, pmem, UUID, 3, before, &mut { refused }).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Io);
    }
    open_known(&media, &known).unwrap();
}

#[test]
fn the_page_cache_is_trusted_until_power_fails_and_again_after_a_close() {
    let media = machine();
    let halloc = open(&media, PmemMode::PageCache).unwrap();
    halloc.pool(PoolKind::Zones).get().unwrap().commit(1).unwrap();
    let in_use = media.image();
    let again = open(&in_use.crash(CrashKind::Process, 1), PmemMode::PageCache).unwrap();
    assert_eq!(again.pool(PoolKind::Zones).taken(), 1);
    for kind in [CrashKind::PowerLost, CrashKind::PowerKept, CrashKind::PowerTorn] {
        for seed in 0..50 {
            let e = open(&in_use.crash(kind, seed), PmemMode::PageCache).map(drop).unwrap_err();
            assert_eq!((e.kind(), e.file()), (ErrorKind::Stale, Some(path())), "{kind:?}");
            assert!(e.hint().is_some());
        }
    }
    // While it is being closed it is either trusted and whole, or not trusted.
    for image in pictures(&media, || halloc.close(&*media).unwrap()) {
        for seed in 0..50 {
            if let Ok(h) = open(&image.crash(CrashKind::PowerTorn, seed), PmemMode::PageCache) {
                assert_eq!(h.pool(PoolKind::Zones).taken(), 1);
            }
        }
    }
    for seed in 0..50 {
        let after = media.image().crash(CrashKind::PowerLost, seed);
        assert_eq!(open(&after, PmemMode::PageCache).unwrap().pool(PoolKind::Zones).taken(), 1);
        // Opening alone makes it distrusted after the next power failure: what is stored then is not known.
        assert!(open(&after.image().crash(CrashKind::PowerLost, seed), PmemMode::PageCache).is_err());
    }
}

#[test]
fn what_a_memory_is_worth_follows_from_how_it_was_open_not_from_how_it_is_opened() {
    for (was, survives) in [(PmemMode::Dax, true), (PmemMode::StandIn, false), (PmemMode::PageCache, false)] {
        let media = machine();
        let halloc = open(&media, was).unwrap();
        halloc.pool(PoolKind::Zones).get().unwrap().commit(1).unwrap();
        for now in [PmemMode::Dax, PmemMode::StandIn, PmemMode::PageCache] {
            for seed in 0..20 {
                let after = media.image().crash(CrashKind::PowerTorn, seed);
                let opened = open(&after, now).map(|h| h.pool(PoolKind::Zones).taken()).ok();
                assert_eq!(opened, survives.then_some(1), "{was:?}, then {now:?}");
            }
        }
    }
}

#[test]
fn once_a_flush_has_failed_a_memory_in_the_page_cache_is_trusted_no_more() {
    for failing in 0..3 {
        let media = machine();
        let halloc = open(&media, PmemMode::PageCache).unwrap();
        halloc.pool(PoolKind::Zones).get().unwrap().commit(1).unwrap();
        media.set_fault(Some(FaultPlan::nth(failing, Fault::Io).only(&[OpKind::Sync])));
        if failing == 0 {
            assert_eq!(halloc.sync().unwrap_err().kind(), ErrorKind::Io);
            assert_eq!(halloc.close(&*media).unwrap_err().kind(), ErrorKind::Poisoned);
        } else {
            assert_eq!(halloc.close(&*media).unwrap_err().kind(), ErrorKind::Io);
        }
        media.set_fault(None);
        let e = open(&media, PmemMode::PageCache).map(drop).unwrap_err();
        assert_eq!((e.kind(), e.file()), (ErrorKind::Stale, Some(path())), "flush {failing}");
        for seed in 0..20 {
            let after = media.image().crash(CrashKind::PowerLost, seed);
            if let Ok(halloc) = open(&after, PmemMode::PageCache) {
                // All that was stored had reached the device, and so had a copy of the state that says so.
                assert!(failing > 0);
                assert_eq!(halloc.pool(PoolKind::Zones).taken(), 1);
            }
        }
    }
}

#[test]
fn a_flush_that_fails_while_a_memory_is_opened_counts_as_well() {
    for (closed, failing) in [false, true].into_iter().flat_map(|closed| (0..3).map(move |n| (closed, n))) {
        let media = machine();
        let halloc = open(&media, PmemMode::PageCache).unwrap();
        halloc.pool(PoolKind::Zones).get().unwrap().commit(1).unwrap();
        if closed {
            halloc.close(&*media).unwrap();
        }
        let media = media.image().crash(CrashKind::Process, failing);
        media.set_fault(Some(FaultPlan::nth(failing, Fault::Io).only(&[OpKind::Sync])));
        assert_eq!(open(&media, PmemMode::PageCache).map(drop).unwrap_err().kind(), ErrorKind::Stale);
        media.set_fault(None);
        let e = open(&media, PmemMode::PageCache).map(drop).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Stale, "closed: {closed}, flush {failing}");
        for seed in 0..20 {
            let after = media.image().crash(CrashKind::PowerLost, seed);
            if let Ok(halloc) = open(&after, PmemMode::PageCache) {
                // What was closed in order, and has not changed since.
                assert!(closed);
                assert_eq!(halloc.pool(PoolKind::Zones).taken(), 1);
            }
        }
    }
}

#[test]
fn a_damaged_copy_of_the_state_brings_back_no_older_one() {
    let media = machine();
    open(&media, PmemMode::PageCache).unwrap().close(&*media).unwrap();
    let _in_use = open(&media, PmemMode::PageCache).unwrap();
    for at in STATE_SLOTS {
        for bit in 0..STATE_BYTES as u64 * 8 {
            let after = media.image().crash(CrashKind::PowerKept, bit);
            after.flip_bit(path(), at * 8 + bit).unwrap();
            assert!(open(&after, PmemMode::PageCache).is_err(), "bit {bit} of the copy at {at}");
        }
    }
    let after = media.image().crash(CrashKind::Process, 0);
    STATE_SLOTS.into_iter().for_each(|at| after.flip_bit(path(), at * 8).unwrap());
    assert_eq!(open(&after, PmemMode::Dax).map(drop).unwrap_err().kind(), ErrorKind::Corruption);
}

#[test]
fn damage_of_a_word_is_reported_and_gives_nobody_what_another_one_has() {
    let media = machine();
    let halloc = open(&media, PmemMode::Dax).unwrap();
    let zones = halloc.pool(PoolKind::Zones);
    let number = zones.get().unwrap().commit(77).unwrap();
    // Pools lie one behind the other; the words of the zones are those before the page at which their objects begin.
    let words_at = (zones.place(0).unwrap() - 4096) as u64;
    for bit in 0..64 {
        let damaged = media.image().crash(CrashKind::Process, 0);
        damaged.flip_bit(path(), words_at * 8 + u64::from(number) * 64 + bit).unwrap();
        let e = open(&damaged, PmemMode::Dax).map(drop).unwrap_err();
        assert_eq!((e.kind(), e.offset()), (ErrorKind::Corruption, Some(words_at + 8 * u64::from(number))));
    }
    // While it is open: the topmost free object's word says that somebody has it.
    let free = zones.get().unwrap().number();
    halloc.pmem().store_word(words_at as usize + 8 * free as usize, 1 << 62).unwrap();
    assert_eq!(zones.get().unwrap_err().kind(), ErrorKind::Corruption);
}

#[test]
fn what_is_released_can_be_taken_only_once_that_is_durable() {
    let media = machine();
    let halloc = Arc::new(open(&media, PmemMode::Dax).unwrap());
    let held: Vec<u32> =
        (0..5).map(|_| halloc.pool(PoolKind::Zones).get().unwrap().commit(1).unwrap()).collect();
    let (taker, fences) = (halloc.clone(), Arc::new(Mutex::new(0)));
    let (held_by, seen) = (held.clone(), fences.clone());
    media.on_op(Some(Arc::new(move |_: &SimMedia, op: &OpInfo<'_>| {
        let Ok(mut seen) = seen.try_lock() else { return };
        if op.kind == OpKind::Fence {
            *seen += 1;
            let zones = taker.pool(PoolKind::Zones);
            let free: Vec<_> = std::iter::from_fn(|| zones.get().ok()).collect();
            assert!(free.iter().all(|f| !held_by.contains(&f.number())));
        }
    })));
    halloc.pool(PoolKind::Zones).release(&held).unwrap();
    media.on_op(None);
    assert_eq!(*fences.lock().unwrap(), 1, "one for all");
    assert_eq!(halloc.pool(PoolKind::Zones).taken(), 0);
}

/// Reads, flushes and fences of some work.
fn costs<T>(pmem: &CountingPmem, work: impl FnOnce() -> T) -> (T, [u64; 3]) {
    let (done, PmemCounts { reads, flushes, fences, bases, touched }) = pmem.of(work);
    assert_eq!((bases, touched), (0, 0), "what is read past it is not counted");
    (done, [reads, flushes, fences])
}

#[test]
fn an_allocation_takes_one_read_one_flush_and_one_fence() {
    let media = machine();
    let inner = media.map_pmem(path(), PmemMode::Dax).unwrap();
    let pmem = Arc::new(CountingPmem::new(inner, false));
    let (halloc, _) = costs(&pmem, || Halloc::open_on(&*media, pmem.clone(), UUID, 3).unwrap());
    let zones = halloc.pool(PoolKind::Zones);
    for _ in 0..3 {
        // The link to the next free one is the only thing that is read.
        let (fresh, taken) = costs(&pmem, || zones.get().unwrap());
        assert_eq!(taken, [1, 0, 0]);
        let (first, committed) = costs(&pmem, || fresh.commit(1).unwrap());
        assert_eq!(committed, [0, 1, 1]);
        // What is written into it is durable before its word says that somebody has it: a fence of its own, for all of it.
        let fresh = zones.get().unwrap();
        let (_, filled) = costs(&pmem, || [0, 64, 512].map(|at| fresh.write(at, &[7; 64]).unwrap()));
        assert_eq!(filled, [0, 3, 0]);
        let (second, committed) = costs(&pmem, || fresh.commit(1).unwrap());
        assert_eq!(committed, [0, 1, 2]);
        // What was not written into costs nothing to give back, and what was is over before its next owner writes.
        let (_, unused) = costs(&pmem, || drop(zones.get().unwrap()));
        assert_eq!(unused, [1, 0, 0]);
        let fresh = zones.get().unwrap();
        fresh.write(0, &[8; 8]).unwrap();
        let (_, given_back) = costs(&pmem, || drop(fresh));
        assert_eq!(given_back, [0, 0, 1]);
        // Each word is read twice: whether somebody has it, and whether still.
        let (_, released) = costs(&pmem, || zones.release(&[first, second]).unwrap());
        assert_eq!(released, [4, 2, 1]);
    }
}

#[test]
fn another_memory_is_refused_and_left_as_it_was() {
    let media = machine();
    let before = media.op_count();
    for (uuid, device, kind) in [(UUID, 2, ErrorKind::Stale), ([0; 16], 3, ErrorKind::InvalidArgument)] {
        let e = Halloc::open(&*media, path(), PmemMode::Dax, uuid, device).map(drop).unwrap_err();
        assert_eq!((e.kind(), e.file()), (kind, Some(path())));
    }
    assert_eq!(media.op_count(), before, "nothing is stored");
}

#[test]
fn what_nobody_has_is_not_released_and_no_part_of_a_wrong_call_is_done() {
    let media = machine();
    let halloc = open(&media, PmemMode::Dax).unwrap();
    let zones = halloc.pool(PoolKind::Zones);
    let (a, b) = (zones.get().unwrap().commit(1).unwrap(), zones.get().unwrap().commit(2).unwrap());
    let free = zones.get().unwrap().number();
    for wrong in [&[a, a][..], &[a, free], &[a, b, a]] {
        assert_eq!(zones.release(wrong).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    assert_eq!(zones.release(&[a, 9999]).unwrap_err().kind(), ErrorKind::Corruption);
    assert_eq!((zones.check(a).unwrap(), zones.check(b).unwrap(), zones.taken()), (Some(1), Some(2), 2));
    zones.release(&[a, b]).unwrap();
    zones.release(&[]).unwrap();
    assert_eq!(zones.taken(), 0);
    let fresh = zones.get().unwrap();
    assert_eq!(
        fresh.write(zones.object_bytes() - 8, &[1; 16]).unwrap_err().kind(),
        ErrorKind::InvalidArgument
    );
    assert_eq!(fresh.commit(1 << 63).unwrap_err().kind(), ErrorKind::LimitExceeded);
    assert_eq!(zones.taken(), 0);
}

#[test]
fn plans_that_make_no_sense_are_refused() {
    let media = SimMedia::new(1);
    for plan in [
        Plan { bytes: 0, ..PLAN },
        Plan { bytes: 40 << 10, ..PLAN },
        Plan { subtables: 0, ..PLAN },
        Plan { memtables: u64::MAX, ..PLAN },
        Plan { zone_bytes: 0, ..PLAN },
        Plan { zone_bytes: 5000, ..PLAN },
        Plan { zone_bytes: u64::MAX / 4096 * 4096, ..PLAN },
    ] {
        let e = Halloc::create(&*media, path(), &plan, UUID, 0).unwrap_err();
        assert_eq!((e.kind(), e.file()), (ErrorKind::InvalidArgument, Some(path())), "{plan:?}");
        assert!(!media.exists(path()).unwrap());
    }
}

#[test]
fn damage_of_the_header_is_reported() {
    let media = machine();
    let mut reported = HashSet::new();
    for bit in 0..180 * 8 {
        let damaged = media.image().crash(CrashKind::Process, 0);
        damaged.flip_bit(path(), bit).unwrap();
        let e = open(&damaged, PmemMode::Dax).map(drop).unwrap_err();
        reported.insert(e.kind());
        assert_eq!(e.file(), Some(path()));
    }
    assert_eq!(reported, HashSet::from([ErrorKind::Corruption]));
}

#[test]
fn threads_that_take_and_give_never_have_one_object_together() {
    let dir = tempfile::tempdir().unwrap();
    let media = terrane_media::real::RealMedia::new(terrane_media::real::RealOptions::default()).unwrap();
    let path = dir.path().join("pm");
    Halloc::create(&*media, &path, &PLAN, UUID, 0).unwrap();
    let halloc = Halloc::open(&*media, &path, PmemMode::StandIn, UUID, 0).unwrap();
    let (shared, zones) = (&halloc, halloc.pool(PoolKind::Zones));
    let rounds = 20_000u64;
    std::thread::scope(|s| {
        for t in 1..=4u64 {
            s.spawn(move || {
                for i in 0..rounds {
                    let Ok(fresh) = zones.get() else { continue };
                    let place = zones.place(fresh.number()).unwrap();
                    let mine = t << 32 | i;
                    fresh.write(0, &mine.to_le_bytes()).unwrap();
                    if i % 3 == 0 {
                        assert_eq!(word(shared, place), mine);
                        continue;
                    }
                    let number = fresh.commit(t).unwrap();
                    assert_eq!(zones.check(number).unwrap(), Some(t));
                    assert_eq!(word(shared, place), mine);
                    zones.release(&[number]).unwrap();
                }
            });
        }
    });
    assert_eq!(zones.taken(), 0);
    halloc.close(&*media).unwrap();
    let again = Halloc::open(&*media, &path, PmemMode::StandIn, UUID, 0).unwrap();
    assert_eq!(again.pool(PoolKind::Zones).taken(), 0);
}

fn word(halloc: &Halloc, place: usize) -> u64 {
    halloc.pmem().load_word(place).unwrap()
}
