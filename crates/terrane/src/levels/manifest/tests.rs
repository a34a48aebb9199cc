use std::sync::atomic::{AtomicUsize, Ordering};

use terrane_base::SubtableId;
use terrane_media::sim::{CrashKind, Fault, FaultPlan, OpKind, SimMedia};

use super::*;
use crate::levels::testkit::{Film, T, UUID, add, create, dir, machine, meta, remove};

fn new_store(media: &Arc<SimMedia>) -> ManifestStore {
    ManifestStore::create(media.clone(), dir(), UUID, Arc::new(Poison::new())).unwrap()
}

fn open(media: &Arc<SimMedia>) -> Result<ManifestStore> {
    ManifestStore::open(media.clone(), dir(), Arc::new(Poison::new()))
}

fn state(store: &ManifestStore) -> DbState {
    store.with_state(DbState::clone)
}

/// A history of groups, some larger than a page, and the state after each.
fn history(groups: usize) -> (Vec<Vec<Edit>>, Vec<DbState>) {
    let mut edits = vec![vec![create(1, "t")]];
    for i in 1..groups as u64 {
        let wide = |n: u64| meta(n, &format!("{n:04}{}", "k".repeat(700)), &format!("{n:04}l"));
        edits.push(match i % 4 {
            0 => vec![remove(0, i - 1, &meta(1000 + i - 1, "a", "b"))],
            3 => vec![add(0, i, &meta(1000 + i, "a", "b")), Edit::Persisted { subtable: T, lsn: 5000 + i }],
            _ => (0..6).map(|j| add(1, 0, &wide(i * 10 + j))).collect(),
        });
    }
    let mut states = vec![DbState::default()];
    for group in &edits {
        let mut next = states[states.len() - 1].clone();
        next.apply(group).unwrap();
        states.push(next);
    }
    (edits, states)
}

/// Has `n` threads append a group each while the manifest is being written, so that all of them wait together.
fn together(store: &ManifestStore, n: usize, group: impl Fn(usize) -> Vec<Edit> + Sync) -> Vec<Result<()>> {
    let held = store.inner.lock();
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..n)
            .map(|i| {
                let t = s.spawn({
                    let group = &group;
                    move || store.append(&group(i))
                });
                // One after another, so that the order is known.
                while store.waiting.lock().len() <= i {
                    std::thread::yield_now();
                }
                t
            })
            .collect();
        drop(held);
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Counts the calls of these kinds from now on.
fn count(media: &Arc<SimMedia>, kind: OpKind) -> Arc<AtomicUsize> {
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    media.on_op(Some(Arc::new(move |_, op| {
        counter.fetch_add(usize::from(op.kind == kind), Ordering::Relaxed);
    })));
    calls
}

#[test]
fn groups_that_wait_together_share_one_flush_and_keep_their_order() {
    let media = machine(20);
    let store = new_store(&media);
    store.append(&[create(1, "t")]).unwrap();
    let (before, syncs) = (store.bytes(), count(&media, OpKind::Sync));
    // Each replaces what the one before it added.
    let group = |i: usize| {
        let m = |i: usize| meta(i as u64, "a", "b");
        let mut edits = vec![add(1, 0, &m(i))];
        if i > 0 {
            edits.insert(0, remove(1, 0, &m(i - 1)));
        }
        edits
    };
    assert!(together(&store, 16, group).iter().all(Result::is_ok));
    assert_eq!(syncs.load(Ordering::Relaxed), 1);
    assert_eq!(store.bytes() - before, 4096, "one frame");
    // Alone, each has a flush of its own.
    for i in 16..20 {
        store.append(&group(i)).unwrap();
    }
    assert_eq!(syncs.load(Ordering::Relaxed), 5);
    let held = state(&store);
    assert_eq!(held.extents().map(|(_, m)| m.id.0).collect::<Vec<_>>(), [19]);
    drop(store);
    assert_eq!(state(&open(&media).unwrap()), held);
}

#[test]
fn a_frame_is_shared_only_as_far_as_it_goes() {
    let media = machine(21);
    let store = new_store(&media);
    store.append(&[create(1, "t")]).unwrap();
    let syncs = count(&media, OpKind::Sync);
    // Of 300 edits each: no two fit together.
    let done = together(&store, 3, |i| {
        let ids = (0..300).map(|j| (i * 300 + j) as u64);
        ids.map(|id| add(1, 0, &meta(id, &format!("{id:04}a"), &format!("{id:04}b")))).collect()
    });
    assert!(done.iter().all(Result::is_ok));
    assert!(syncs.load(Ordering::Relaxed) >= 3);
    let held = state(&store);
    assert_eq!(held.extents().count(), 900);
    drop(store);
    assert_eq!(state(&open(&media).unwrap()), held);
}

#[test]
fn a_group_that_makes_no_sense_fails_alone_among_others() {
    let media = machine(22);
    let store = new_store(&media);
    // The third has the first one's name.
    let names = ["a", "b", "a", "c"];
    let done = together(&store, 4, |i| vec![create(i as u32 + 1, names[i])]);
    let kinds: Vec<_> = done.iter().map(|r| r.as_ref().err().map(Error::kind)).collect();
    assert_eq!(kinds, [None, None, Some(ErrorKind::AlreadyExists), None]);
    let held = state(&store);
    assert_eq!(held.subtables.keys().map(|id| id.0).collect::<Vec<_>>(), [1, 2, 4]);
    drop(store);
    assert_eq!(state(&open(&media).unwrap()), held);
}

#[test]
fn what_fails_the_frame_fails_all_that_share_it() {
    for (kind, poisons) in [(OpKind::Write, false), (OpKind::Sync, true)] {
        let media = machine(23);
        let store = new_store(&media);
        store.append(&[create(1, "t")]).unwrap();
        let before = state(&store);
        media.set_fault(Some(FaultPlan::nth(0, Fault::Io).only(&[kind])));
        let group = |i: usize| vec![create(i as u32 + 2, &format!("n{i}"))];
        let wanted = if poisons { ErrorKind::Poisoned } else { ErrorKind::Io };
        for done in together(&store, 5, group) {
            assert_eq!(done.unwrap_err().kind(), wanted);
        }
        assert_eq!(state(&store), before, "nothing of it is left behind");
        assert_eq!(store.append(&group(9)).is_err(), poisons);
        media.set_fault(None);
        if !poisons {
            assert!(together(&store, 5, group).iter().all(Result::is_ok));
            let held = state(&store);
            drop(store);
            assert_eq!(state(&open(&media).unwrap()), held);
        }
    }
}

#[test]
fn a_crash_keeps_all_groups_of_a_frame_or_none() {
    let media = machine(24);
    let store = new_store(&media);
    store.append(&[create(1, "t")]).unwrap();
    let before = state(&store);
    let film = Film::of(&media);
    let wide = |n: usize| meta(n as u64, &format!("{n:04}{}", "k".repeat(900)), &format!("{n:04}l"));
    // More than a page, so that it can be torn.
    assert!(together(&store, 12, |i| vec![add(1, 0, &wide(i))]).iter().all(Result::is_ok));
    film.acknowledge();
    media.create_dir_all(Path::new("/elsewhere")).unwrap();
    media.on_op(None);
    let after = state(&store);
    film.crashes(4, |media, acknowledged, label| {
        let found = state(&open(&media).unwrap());
        assert!(found == after || (acknowledged == 0 && found == before), "{label}");
    });
}

/// Makes files roll after every few groups.
fn roll_often(store: &ManifestStore) {
    let mut inner = store.inner.lock();
    inner.min_roll = 0;
    inner.roll_at = 0;
}

#[test]
fn what_was_appended_is_there_after_reopening() {
    let media = machine(1);
    let (groups, states) = history(12);
    let store = new_store(&media);
    assert_eq!(open(&machine(2)).unwrap_err().kind(), ErrorKind::NotFound);
    groups.iter().for_each(|g| store.append(g).unwrap());
    assert_eq!(state(&store), states[12]);
    drop(store);
    for _ in 0..3 {
        let store = open(&media).unwrap();
        assert_eq!(state(&store), states[12]);
        assert_eq!(store.superblock().uuid, UUID);
    }
    let names: Vec<String> = media.list(dir()).unwrap().into_iter().map(|e| e.name).collect();
    assert_eq!(names, ["SUPER", "manifest-000004"], "each open writes the next one and removes the last");
    let again = ManifestStore::create(media.clone(), dir(), UUID, Arc::default());
    assert_eq!(again.unwrap_err().kind(), ErrorKind::AlreadyExists);
}

#[test]
fn a_group_that_makes_no_sense_changes_nothing() {
    let media = machine(1);
    let store = new_store(&media);
    store.append(&[create(1, "t")]).unwrap();
    let before = state(&store);
    let calls = media.op_count();
    assert_eq!(store.append(&[create(2, "u"), create(3, "t")]).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!((state(&store), media.op_count()), (before.clone(), calls));
    assert_eq!(state(&open(&media).unwrap()), before);
}

#[test]
fn a_crash_at_any_call_leaves_all_that_was_acknowledged_and_no_half_group() {
    for often in [false, true] {
        let media = machine(3);
        let (groups, states) = history(9);
        let film = Film::of(&media);
        let store = new_store(&media);
        film.acknowledge();
        if often {
            roll_often(&store);
        }
        for g in &groups {
            store.append(g).unwrap();
            film.acknowledge();
        }
        media.on_op(None);
        film.crashes(3, |media, acknowledged, label| match open(&media) {
            Err(e) => assert!(acknowledged == 0 && e.kind() == ErrorKind::NotFound, "{label}: {e}"),
            Ok(store) => {
                let s = state(&store);
                // Acknowledged steps: the creation, then the groups. The one in flight may have happened.
                let done = acknowledged.max(1) - 1;
                let next = (done + 1).min(groups.len());
                assert!(s == states[done] || s == states[next], "{label}");
                store.append(&[create(99, "after the crash")]).unwrap();
                drop(store);
                assert!(state(&open(&media).unwrap()).subtables.contains_key(&SubtableId(99)), "{label}");
            }
        });
    }
}

#[test]
fn a_crash_during_recovery_loses_nothing() {
    let media = machine(4);
    let (groups, states) = history(3);
    let store = new_store(&media);
    let film = Film::of(&media);
    for g in &groups {
        store.append(g).unwrap();
        film.acknowledge();
    }
    media.on_op(None);
    film.crashes(1, |media, done, label| {
        let film = Film::of(&media);
        let found = state(&open(&media).unwrap());
        film.acknowledge();
        // One more call, to be filmed after the recovery.
        media.create_dir_all(Path::new("/elsewhere")).unwrap();
        media.on_op(None);
        film.crashes(1, |media, recovered, inner| {
            let again = state(&open(&media).unwrap());
            let legal = again == states[done] || again == states[(done + 1).min(groups.len())];
            assert!(legal && (recovered == 0 || again == found), "{label}, then {inner}");
        });
    });
}

#[test]
fn an_interrupted_creation_can_be_repeated() {
    let media = machine(5);
    let film = Film::of(&media);
    drop(new_store(&media));
    media.on_op(None);
    film.crashes(2, |media, _, label| {
        if !ManifestStore::exists(&*media, dir()).unwrap() {
            drop(new_store(&media));
        }
        assert_eq!(state(&open(&media).unwrap()), DbState::default(), "{label}");
    });
}

#[test]
fn data_files_without_a_superblock_are_not_taken_for_a_new_database() {
    let media = machine(6);
    media.open(&dir().join("data-000001"), terrane_media::OpenMode::CREATE_DIRECT).unwrap();
    let e = ManifestStore::create(media, dir(), UUID, Arc::default()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Corruption);
    assert!(e.hint().unwrap().contains("SUPER"));
}

#[test]
fn every_flipped_bit_is_corruption_or_changes_nothing() {
    let media = machine(7);
    let (groups, states) = history(6);
    let store = new_store(&media);
    groups.iter().for_each(|g| store.append(g).unwrap());
    let written = store.bytes();
    drop(store);
    let image = media.image();
    for (file, bytes) in [("manifest-000001", written + 4096), ("SUPER", 80)] {
        for byte in (0..bytes).filter(|b| b % 4096 < 64 || b % 97 == 0) {
            let media = image.crash(CrashKind::Process, 0);
            media.flip_bit(&dir().join(file), byte * 8 + byte % 8).unwrap();
            match open(&media) {
                // Padding, or the seal itself.
                Ok(store) => assert_eq!(state(&store), states[6], "{file}, byte {byte}"),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::Corruption, "{file}, byte {byte}: {e}");
                    assert!(e.file().is_some(), "{e}");
                }
            }
        }
    }
}

#[test]
fn damage_to_the_last_group_is_told_by_the_seal_behind_it() {
    let media = machine(8);
    let store = new_store(&media);
    store.append(&[create(1, "t")]).unwrap();
    let end = store.bytes();
    drop(store);
    media.flip_bit(&dir().join("manifest-000001"), (end - 4096 + 30) * 8).unwrap();
    let e = open(&media).unwrap_err();
    assert_eq!((e.kind(), e.offset()), (ErrorKind::Corruption, Some(end - 4096)));
}

/// Runs the history with one call failing, and checks that what was acknowledged, and only that, is there.
fn history_with_fault(plan: FaultPlan) -> u64 {
    let media = machine(9);
    let (groups, states) = history(8);
    let store = new_store(&media);
    roll_often(&store);
    media.set_fault(Some(plan.clone()));
    let mut done = 0;
    let mut doubt = false;
    for g in &groups {
        match store.append(g) {
            Ok(()) => done += 1,
            Err(e) if e.kind() == ErrorKind::Poisoned => {
                doubt = true;
                assert_eq!(store.append(g).unwrap_err().kind(), ErrorKind::Poisoned);
                break;
            }
            Err(_) => {
                assert_eq!(state(&store), states[done], "{plan:?}");
                store.append(g).unwrap();
                done += 1;
            }
        }
    }
    let hits = media.faults_hit();
    media.set_fault(None);
    drop(store);
    for kind in [CrashKind::Process, CrashKind::PowerLost] {
        let s = state(&open(&media.image().crash(kind, 0)).unwrap());
        assert!(s == states[done] || (doubt && s == states[done + 1]), "{plan:?} {kind:?}");
    }
    hits
}

#[test]
fn a_failure_of_any_call_fails_cleanly_or_poisons() {
    for fault in [Fault::Io, Fault::NoSpace, Fault::Short] {
        let mut n = 0;
        while history_with_fault(FaultPlan::nth(n, fault)) > 0 {
            n += 1;
        }
        assert!(n > 50, "only {n} calls were made");
    }
}

#[test]
fn a_failed_flush_poisons_and_a_failed_write_does_not() {
    for (kinds, poisoned) in [([OpKind::Sync], true), ([OpKind::Write], false)] {
        let media = machine(10);
        let poison = Arc::new(Poison::new());
        let store = ManifestStore::create(media.clone(), dir(), UUID, poison.clone()).unwrap();
        media.set_fault(Some(FaultPlan::nth(0, Fault::Io).only(&kinds)));
        assert!(store.append(&[create(1, "t")]).is_err());
        assert_eq!(poison.is_set(), poisoned);
        assert_eq!(store.append(&[create(1, "t")]).is_err(), poisoned);
    }
}

#[test]
fn a_group_whose_write_failed_has_not_happened_even_if_all_its_edits_reached_the_device() {
    let media = machine(15);
    let store = new_store(&media);
    let before = state(&store);
    // Half of a page holds the whole of a small group.
    media.set_fault(Some(FaultPlan::nth(0, Fault::Short).only(&[OpKind::Write])));
    assert_eq!(store.append(&[create(1, "t")]).unwrap_err().kind(), ErrorKind::Io);
    drop(store);
    for kind in [CrashKind::Process, CrashKind::PowerKept, CrashKind::PowerLost] {
        assert_eq!(state(&open(&media.image().crash(kind, 0)).unwrap()), before, "{kind:?}");
    }
}

#[test]
fn a_dead_device_poisons_instead_of_leaving_a_group_in_doubt_unnoticed() {
    let media = machine(11);
    let store = new_store(&media);
    media.set_fault(Some(FaultPlan::nth(0, Fault::Io).only(&[OpKind::Write]).sticky()));
    assert_eq!(store.append(&[create(1, "t")]).unwrap_err().kind(), ErrorKind::Poisoned);
}

#[test]
fn a_full_disk_keeps_the_old_file_going_and_writing_resumes() {
    let media = machine(12);
    let store = new_store(&media);
    store.append(&[create(1, "t")]).unwrap();
    roll_often(&store);
    media.set_capacity(Some(media.used_bytes()));
    let before = store.superblock().manifest;
    store.append(&[create(2, "u")]).expect("prewritten space is enough, even if a new file cannot be made");
    assert_eq!(store.superblock().manifest, before);
    let mut failed = 0;
    for i in 3..200 {
        failed += usize::from(store.append(&[create(i, &format!("n{i}"))]).is_err());
    }
    assert!(failed > 0, "prewritten space does not last for ever");
    media.set_capacity(None);
    store.append(&[create(999, "room again")]).unwrap();
    drop(store);
    assert!(state(&open(&media).unwrap()).subtables.contains_key(&SubtableId(999)));
}

#[test]
fn the_file_stays_in_proportion_to_its_checkpoint() {
    let media = machine(13);
    let store = new_store(&media);
    store.append(&[create(1, "t")]).unwrap();
    for i in 0..600 {
        let m = meta(i, "a", "b");
        store.append(&[add(1, 0, &m)]).unwrap();
        store.append(&[remove(1, 0, &m)]).unwrap();
    }
    assert!(store.superblock().manifest > 1);
    assert!(store.bytes() <= MIN_ROLL_BYTES + 8192, "{}", store.bytes());
}

#[test]
fn groups_of_a_checkpoint_are_bounded_in_bytes_too() {
    let media = machine(14);
    let store = new_store(&media);
    store.append(&[create(1, "t")]).unwrap();
    for i in 0..100u64 {
        let (lo, hi) = (format!("{i:03}a{}", "k".repeat(20_000)), format!("{i:03}b{}", "k".repeat(20_000)));
        store.append(&[add(1, 0, &meta(i, &lo, &hi))]).unwrap();
    }
    let wanted = state(&store);
    drop(store);
    let store = open(&media).unwrap();
    assert_eq!(state(&store), wanted);
    let superblock = store.superblock();
    let path = dir().join(names::manifest(superblock.manifest));
    let mut reader = ManifestReader::open(&*media, &path, &superblock).unwrap();
    let mut sizes = Vec::new();
    while let Some(edits) = reader.next_group().unwrap() {
        let mut bytes = Vec::new();
        edits.unwrap().iter().for_each(|e| e.encode(&mut bytes));
        sizes.push(bytes.len());
    }
    assert!(sizes.len() > 3 && sizes.iter().all(|s| *s <= file::CHECKPOINT_BYTES), "{sizes:?}");
}

#[test]
fn a_superblock_that_forbids_writing_is_refused() {
    let media = machine(14);
    drop(new_store(&media));
    let mut sb = superblock::read(&*media, dir()).unwrap();
    sb.features.read_only = 1;
    superblock::write(&*media, dir(), &sb, &Poison::new()).unwrap();
    assert_eq!(open(&media).unwrap_err().kind(), ErrorKind::NewerFormat);
}
