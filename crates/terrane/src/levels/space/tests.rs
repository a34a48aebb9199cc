use proptest::prelude::*;
use terrane_media::sim::{CrashKind, Fault, FaultPlan, OpKind, SimMedia};

use super::*;
use crate::levels::state::DbState;
use crate::levels::testkit::{Film, UUID, add, create, dir, machine, meta};

fn options() -> SpaceOptions {
    SpaceOptions {
        file_bytes: 40 * UNIT,
        grow_bytes: 8 * UNIT,
        idle_bytes: 64 * UNIT,
        ..SpaceOptions::new(UUID)
    }
}

fn survey(media: &Arc<SimMedia>, state: &DbState) -> Result<Survey> {
    Survey::new(media.clone(), dir(), options(), state, Arc::default())
}

fn space(media: &Arc<SimMedia>) -> Space {
    survey(media, &DbState::default()).unwrap().finish().unwrap()
}

/// A state that refers to these units.
fn owning(owned: &[Alloc]) -> DbState {
    let mut state = DbState::default();
    state.apply(&[create(1, "t")]).unwrap();
    for (i, a) in owned.iter().enumerate() {
        let m = (*meta(i as u64, &format!("{i:06}"), &format!("{i:06}x"))).clone();
        let m = Arc::new(ExtentMeta { file: a.file, unit: a.unit, units: a.units, ..m });
        state.apply(&[add(1, 0, &m)]).unwrap();
    }
    state
}

/// What the last sector of each unit of an allocation holds: enough to show that no two share one.
fn content(a: &Alloc) -> Vec<u8> {
    (a.unit..a.end()).flat_map(|unit| [(unit ^ a.unit << 3 ^ a.file << 6) as u8; SECTOR]).collect()
}

fn sectors(a: &Alloc) -> impl Iterator<Item = u64> {
    (1..=u64::from(a.units)).map(|n| n * UNIT - SECTOR as u64)
}

fn write(space: &Space, a: &Alloc) {
    for (offset, bytes) in sectors(a).zip(content(a).chunks(SECTOR)) {
        space.write(*a, offset, bytes).unwrap();
    }
}

fn read(space: &Space, a: &Alloc) -> Vec<u8> {
    let file = space.file(a.file).unwrap();
    sectors(a).flat_map(|offset| io::read(&*file, a.offset() + offset, SECTOR).unwrap()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn no_unit_has_two_owners_and_content_stays(ops in prop::collection::vec((0u8..4, 1u32..20), 1..70), seed: u64) {
        let media = machine(seed);
        let mut s = space(&media);
        let mut owned: Vec<Alloc> = Vec::new();
        for (op, n) in ops {
            if op == 0 && !owned.is_empty() {
                s.free(owned.swap_remove(n as usize % owned.len())).unwrap();
            } else if op == 1 && n < 4 {
                drop(s);
                s = survey(&media, &owning(&owned)).unwrap().finish().unwrap();
            } else {
                let a = s.alloc(n).unwrap();
                prop_assert!(a.unit > 0 && a.units == n && a.end() <= 40);
                prop_assert!(!owned.iter().any(|o| o.overlaps(&a)));
                write(&s, &a);
                owned.push(a);
            }
            let stats = s.stats();
            prop_assert_eq!(stats.used, owned.iter().map(|a| u64::from(a.units)).sum::<u64>());
            prop_assert!(stats.used + stats.idle + stats.files as u64 <= stats.units);
            for a in &owned {
                prop_assert_eq!(read(&s, a), content(a));
            }
        }
        owned.drain(..).for_each(|a| s.free(a).unwrap());
        prop_assert!(s.stats().files <= 1);
    }
}

#[test]
fn freed_units_are_used_again_lowest_file_first() {
    let s = space(&machine(1));
    let all: Vec<Alloc> = (0..6).map(|_| s.alloc(13).unwrap()).collect();
    assert_eq!(all.iter().map(|a| a.file).collect::<Vec<_>>(), [1, 1, 1, 2, 2, 2]);
    s.free(all[4]).unwrap();
    s.free(all[1]).unwrap();
    assert_eq!(s.alloc(13).unwrap(), all[1]);
    assert_eq!(s.alloc(13).unwrap(), all[4]);
    let e = s.free(Alloc { file: 1, unit: 39, units: 2 }).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption, "beyond the file");
    s.free(all[0]).unwrap();
    assert_eq!(s.free(all[0]).unwrap_err().kind(), ErrorKind::Corruption, "freed twice");
    assert_eq!(s.free(Alloc { file: 9, unit: 1, units: 1 }).unwrap_err().kind(), ErrorKind::Corruption);
    assert_eq!(s.alloc(0).unwrap_err().kind(), ErrorKind::LimitExceeded);
    assert_eq!(s.alloc(40).unwrap_err().kind(), ErrorKind::LimitExceeded);
}

#[test]
fn freed_space_goes_back_to_the_file_system() {
    let media = machine(2);
    let s = Survey::new(
        media.clone(),
        dir(),
        SpaceOptions { idle_bytes: 4 * UNIT, grow_bytes: UNIT, ..options() },
        &DbState::default(),
        Arc::default(),
    )
    .unwrap()
    .finish()
    .unwrap();
    let all: Vec<Alloc> = (0..12).map(|_| s.alloc(10).unwrap()).collect();
    all.iter().for_each(|a| write(&s, a));
    s.sync_files([1, 2, 3, 4]).unwrap();
    let full = media.used_bytes();
    assert_eq!(s.stats().files, 4);
    all[1..].iter().for_each(|a| s.free(*a).unwrap());
    let stats = s.stats();
    assert!(stats.files <= 2 && stats.idle <= 4, "{stats:?}");
    assert!(media.used_bytes() < full / 4);
    assert_eq!(read(&s, &all[0]), content(&all[0]));
    let again: Vec<Alloc> = (0..11).map(|_| s.alloc(10).unwrap()).collect();
    again.iter().for_each(|a| write(&s, a));
    again.iter().for_each(|a| assert_eq!(read(&s, a), content(a)));
}

#[test]
fn what_writing_frees_keeps_its_place_for_what_is_written_next_until_a_rest() {
    let media = machine(13);
    let options = SpaceOptions { idle_bytes: 4 * UNIT, grow_bytes: UNIT, ..options() };
    let s = Survey::new(media.clone(), dir(), options, &DbState::default(), Arc::default()).unwrap();
    let s = s.finish().unwrap();
    let all: Vec<Alloc> = (0..12).map(|_| s.alloc(10).unwrap()).collect();
    all.iter().for_each(|a| write(&s, a));
    let full = media.used_bytes();
    all[4..6].iter().for_each(|a| s.free(*a).unwrap());
    assert_eq!(
        (s.stats().idle, media.used_bytes(), s.is_untrimmed()),
        (20, full, true),
        "a quarter of what is used may"
    );
    assert_eq!(s.alloc(10).unwrap(), all[4]);
    s.free(all[4]).unwrap();
    s.trim();
    assert!(s.stats().idle <= 6 && media.used_bytes() < full && !s.is_untrimmed(), "{:?}", s.stats());
    s.give_all_back();
    let a = s.alloc(3).unwrap();
    s.free(a).unwrap();
    assert!(s.stats().idle == 3 && s.give_all_back() && s.stats().idle == 0 && !s.give_all_back());
    // And no more than a quarter.
    all[6..10].iter().for_each(|a| s.free(*a).unwrap());
    assert!(s.stats().idle <= s.stats().used / 4, "{:?}", s.stats());
}

#[test]
fn a_full_device_shows_when_space_is_allocated_and_passes() {
    let media = machine(3);
    let s = space(&media);
    let first = s.alloc(10).unwrap();
    media.set_capacity(Some(media.used_bytes() + 12 * UNIT));
    let mut owned = Vec::new();
    let e = loop {
        match s.alloc(5) {
            Ok(a) => {
                write(&s, &a);
                owned.push(a);
            }
            Err(e) => break e,
        }
    };
    assert_eq!(e.kind(), ErrorKind::OutOfSpace);
    assert!(owned.len() >= 2);
    assert_eq!(s.stats().used, 10 + 5 * owned.len() as u64);
    s.free(first).unwrap();
    assert!(s.alloc(9).is_ok());
    media.set_capacity(None);
    assert!(s.alloc(39).is_ok());
}

#[test]
fn idle_units_are_given_up_before_a_full_device_refuses() {
    let media = machine(4);
    let s = space(&media);
    let all: Vec<Alloc> = (0..19).map(|_| s.alloc(2).unwrap()).collect();
    all.iter().step_by(2).for_each(|a| s.free(*a).unwrap());
    media.set_capacity(Some(media.used_bytes() + 2 * UNIT));
    assert!(s.stats().idle >= 18);
    let a = s.alloc(9).expect("no nine free units lie side by side, but twenty may be punched out");
    write(&s, &a);
}

#[test]
fn owners_that_contradict_each_other_or_the_files_are_corruption() {
    let media = machine(5);
    let s = space(&media);
    let a = s.alloc(4).unwrap();
    drop(s);
    let kind = |owned: &[Alloc]| survey(&media, &owning(owned)).unwrap_err();
    for owned in [
        vec![a, Alloc { unit: a.unit + 3, ..a }],
        vec![Alloc { unit: 3, units: 1, ..a }, Alloc { unit: 1, units: 3, ..a }],
        vec![Alloc { units: 400, ..a }],
        vec![Alloc { unit: 0, ..a }],
        vec![Alloc { file: 7, ..a }],
    ] {
        let e = kind(&owned);
        assert!(e.kind() == ErrorKind::Corruption && e.file().is_some(), "{e}");
    }
    media.flip_bit(&dir().join("data-000001"), 100).unwrap();
    let e = survey(&media, &owning(&[a])).unwrap().finish().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption);
    let other = SpaceOptions { uuid: [8; 16], ..options() };
    media.flip_bit(&dir().join("data-000001"), 100).unwrap();
    let foreign = Survey::new(media, dir(), other, &owning(&[a]), Arc::default()).unwrap().finish();
    assert_eq!(foreign.unwrap_err().kind(), ErrorKind::Corruption);
}

#[test]
fn files_without_an_owner_are_removed_and_those_of_others_are_not() {
    let media = machine(6);
    let s = space(&media);
    let all: Vec<Alloc> = (0..3).map(|_| s.alloc(39).unwrap()).collect();
    drop(s);
    media.open(&dir().join("data-5.bak"), terrane_media::OpenMode::CREATE_DIRECT).unwrap();
    let s = survey(&media, &owning(&all[1..2])).unwrap().finish().unwrap();
    let names: Vec<String> = media.list(dir()).unwrap().into_iter().map(|e| e.name).collect();
    assert_eq!(names, ["data-000002", "data-5.bak"]);
    assert_eq!(s.alloc(39).unwrap().file, 4, "numbers of removed files do not come again soon");
}

#[test]
fn values_are_found_again_by_the_log_alone() {
    let media = machine(7);
    let s = space(&media);
    let bytes: Vec<u8> = (0..5_000_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
    let s = Space { options: SpaceOptions::new(UUID), ..s };
    let value = s.write_value(5, &bytes).unwrap();
    s.sync_values(std::slice::from_ref(&value)).unwrap();
    assert_eq!(value.pieces.len(), 3);
    drop(s);
    let media = media.image().crash(CrashKind::PowerLost, 0);
    let mut claims = survey(&media, &DbState::default()).unwrap();
    assert!(claims.claim_value(&value).unwrap());
    assert!(!claims.claim_value(&value).unwrap(), "the log may name it again");
    let s = claims.finish().unwrap();
    assert_eq!(s.read_value(&value).unwrap(), bytes);
    let piece = value.pieces[1];
    media.flip_bit(&dir().join("data-000001"), (u64::from(piece.unit) * UNIT + 99) * 8).unwrap();
    let e = s.read_value(&value).unwrap_err();
    assert_eq!((e.kind(), e.offset()), (ErrorKind::Corruption, Some(u64::from(piece.unit) * UNIT)));
    s.free_value(&value).unwrap();
    assert_eq!(s.stats().used, 0);
    let empty = s.write_value(6, b"").unwrap();
    assert_eq!(s.read_value(&empty).unwrap(), b"");
}

#[test]
fn a_failure_of_any_call_leaves_nothing_allocated() {
    for fault in [Fault::Io, Fault::NoSpace, Fault::Short] {
        for n in 0.. {
            let media = machine(8);
            let poison = Arc::new(Poison::new());
            let s = Survey::new(media.clone(), dir(), options(), &DbState::default(), poison.clone());
            let s = s.unwrap().finish().unwrap();
            media.set_fault(Some(FaultPlan::nth(n, fault)));
            let bytes = vec![7; 3 << 19];
            let written =
                s.write_value(1, &bytes).and_then(|v| s.sync_values(std::slice::from_ref(&v)).map(|()| v));
            if media.faults_hit() == 0 {
                assert!(n > 5);
                break;
            }
            media.set_fault(None);
            match written {
                Ok(v) => assert_eq!(s.read_value(&v).unwrap(), bytes),
                Err(e) if e.kind() == ErrorKind::Poisoned => assert!(s.alloc(1).is_err() && poison.is_set()),
                Err(_) => {
                    assert_eq!(s.stats().used, 0, "call {n}");
                    assert!(s.write_value(2, &bytes).is_ok(), "call {n}");
                }
            }
        }
    }
}

#[test]
fn where_nothing_can_be_written_nothing_is_put_again_until_the_next_opening() {
    let media = machine(13);
    let s = space(&media);
    let fail = |fault| media.set_fault(Some(FaultPlan::nth(0, fault).only(&[OpKind::Write])));
    let attempt = |fault| {
        let a = s.alloc(4).unwrap();
        fail(fault);
        assert!(s.write(a, 0, &[1; SECTOR]).is_err());
        s.free(a).unwrap();
        a
    };
    let full = attempt(Fault::NoSpace);
    let bad = attempt(Fault::Io);
    assert_eq!(bad, full, "there may be room again");
    let torn = attempt(Fault::Short);
    assert!(!torn.overlaps(&bad));
    let good = s.alloc(4).unwrap();
    assert!(!good.overlaps(&bad) && !good.overlaps(&torn));
    write(&s, &good);
    assert_eq!((read(&s, &good), s.stats().used), (content(&good), 4));
    // A device that takes nothing does not have files grow for ever.
    let places = (2..40).map(|_| attempt(Fault::Io)).collect::<BTreeSet<_>>();
    assert_eq!((places.len(), s.stats().used), (MOST_BAD - 1, 4));
    drop(s);
    let s = survey(&media, &owning(&[good])).unwrap().finish().unwrap();
    assert_eq!((s.alloc(4).unwrap(), s.stats().used), (bad, 8));
}

#[test]
fn units_that_cannot_be_given_a_place_stay_free() {
    let media = machine(12);
    let options = SpaceOptions { idle_bytes: 0, grow_bytes: UNIT, ..options() };
    let s = Survey::new(media.clone(), dir(), options, &DbState::default(), Arc::default()).unwrap();
    let s = s.finish().unwrap();
    let (a, _b) = (s.alloc(5).unwrap(), s.alloc(5).unwrap());
    s.free(a).unwrap();
    assert_eq!(s.stats().idle, 0, "punched out");
    let before = s.stats();
    media.set_fault(Some(FaultPlan::nth(0, Fault::NoSpace).only(&[OpKind::Allocate])));
    assert_eq!(s.alloc(5).unwrap_err().kind(), ErrorKind::OutOfSpace);
    assert_eq!(s.stats(), before);
    assert_eq!(s.alloc(5).unwrap(), a);
}

#[test]
fn a_failed_flush_stops_allocation_but_not_reading() {
    let media = machine(9);
    let s = space(&media);
    let a = s.alloc(1).unwrap();
    write(&s, &a);
    media.set_fault(Some(FaultPlan::nth(0, Fault::Io).only(&[OpKind::Sync])));
    assert_eq!(s.sync_files([a.file]).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(s.alloc(1).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(s.write(a, 0, &[0; 4096]).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(read(&s, &a), content(&a));
}

#[test]
#[allow(clippy::disallowed_methods, reason = "two threads flush at a time")]
fn no_flush_passes_beside_one_that_fails() {
    let media = machine(8);
    let s = Arc::new(space(&media));
    let a = s.alloc(1).unwrap();
    write(&s, &a);
    media.set_fault(Some(FaultPlan::nth(0, Fault::Io).only(&[OpKind::Sync])));
    // While the first flush is under way another one is asked for, and gets some time to pass.
    let (told, outcome) = std::sync::mpsc::channel();
    let again = Mutex::new(Some((s.clone(), told)));
    media.on_op(Some(Arc::new(move |_, _| {
        let Some((s, told)) = again.lock().take() else { return };
        let beside = std::thread::spawn(move || told.send(s.sync_files([a.file]).map_err(|e| e.kind())));
        for _ in 0..1000 {
            std::thread::yield_now();
        }
        drop(beside);
    })));
    assert_eq!(s.sync_files([a.file]).unwrap_err().kind(), ErrorKind::Poisoned);
    assert_eq!(outcome.recv().unwrap(), Err(ErrorKind::Poisoned));
    media.on_op(None);
}

#[test]
fn a_crash_at_any_call_keeps_what_was_synced() {
    let media = machine(10);
    let film = Film::of(&media);
    let s = space(&media);
    let mut owned = Vec::new();
    for _ in 0..5 {
        let a = s.alloc(17).unwrap();
        write(&s, &a);
        s.sync_files([a.file]).unwrap();
        owned.push(a);
        film.acknowledge();
    }
    media.on_op(None);
    film.crashes(2, |media, done, label| {
        let owned = &owned[..done];
        let s = survey(&media, &owning(owned))
            .and_then(Survey::finish)
            .unwrap_or_else(|e| panic!("{label}: {e}"));
        owned.iter().for_each(|a| assert!(read(&s, a) == content(a), "{label}"));
        let a = s.alloc(20).unwrap();
        assert!(!owned.iter().any(|o| o.overlaps(&a)), "{label}");
        write(&s, &a);
        owned.iter().for_each(|a| assert!(read(&s, a) == content(a), "{label}"));
    });
}

#[test]
fn a_write_outside_of_its_units_is_refused() {
    let s = space(&machine(11));
    let a = s.alloc(1).unwrap();
    for (offset, len) in [(0, 65537), (4096, 65536 - 4095), (100, 10)] {
        assert_eq!(s.write(a, offset, &vec![0; len]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }
    assert!(s.write(a, 61440, &[1; 4096]).is_ok());
}

#[test]
fn flushing_all_files_goes_on_while_one_is_emptied_and_removed() {
    let media = machine(11);
    let s = Arc::new(space(&media));
    // Three files, full.
    let all: Vec<Alloc> = (0..3).map(|_| s.alloc(39).unwrap()).collect();
    assert_eq!(all.iter().map(|a| a.file).collect::<Vec<_>>(), [1, 2, 3]);
    s.free(all[1]).unwrap();
    let (freeing, last) = (s.clone(), all[2]);
    let once = std::sync::atomic::AtomicBool::new(false);
    media.on_op(Some(Arc::new(move |_: &SimMedia, op: &terrane_media::sim::OpInfo<'_>| {
        if op.kind == OpKind::Sync && !once.swap(true, std::sync::atomic::Ordering::SeqCst) {
            freeing.free(last).unwrap();
        }
    })));
    s.sync_all().unwrap();
    media.on_op(None);
    assert_eq!(s.stats().files, 2, "the hook removed the third");
}
