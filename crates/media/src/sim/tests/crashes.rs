use std::collections::BTreeSet;

use super::*;

#[test]
fn synced_data_is_never_lost() {
    let m = machine(1);
    let model: Vec<u8> = (0..20_000u32).map(|i| (i * 7) as u8).collect();
    let f = create_durably(&m, "a", &model);
    // Unsynced neighbours in the same file and elsewhere must not matter.
    f.write_at(&[9; 512], 512 * 40).unwrap();
    create(&m, "b", &[1; 5000]);
    for kind in CrashKind::ALL {
        for seed in SEEDS {
            let after = m.image().crash(kind, seed);
            assert_eq!(content(&after, "a").unwrap()[..20_000], model, "{kind:?} {seed}");
        }
    }
}

#[test]
fn a_process_crash_keeps_everything_and_a_later_power_failure_still_loses_what_was_not_synced() {
    let m = machine(1);
    create_durably(&m, "a", b"old");
    m.open(&path("a"), BUFFERED).unwrap().write_at(b"new", 0).unwrap();
    create(&m, "b", b"x");
    let after = m.image().crash(CrashKind::Process, 7);
    assert_eq!(contents(&after), contents(&m));
    assert_eq!(after.boot_id(), m.boot_id());

    let later = after.image().crash(CrashKind::PowerLost, 7);
    assert_eq!(contents(&later), BTreeMap::from([("a".to_owned(), b"old".to_vec())]));
}

#[test]
fn every_power_failure_changes_the_boot_id() {
    let m = machine(1);
    let mut seen = BTreeSet::from([m.boot_id()]);
    let mut at = m.clone();
    for kind in [CrashKind::PowerLost, CrashKind::PowerKept, CrashKind::PowerTorn] {
        at = at.image().crash(kind, 3);
        assert!(seen.insert(at.boot_id()), "{kind:?}");
    }
}

#[test]
fn power_kept_keeps_everything_for_good() {
    let m = machine(1);
    create_durably(&m, "a", &[1; 3000]).set_len(100).unwrap();
    create(&m, "b", &[2; 3000]);
    m.rename(&path("a"), &path("c")).unwrap();
    let after = m.image().crash(CrashKind::PowerKept, 5);
    assert_eq!(contents(&after), contents(&m));
    assert_eq!(contents(&after.image().crash(CrashKind::PowerLost, 5)), contents(&m));
}

#[test]
fn a_created_file_may_vanish_until_its_directory_is_synced() {
    let m = machine(1);
    create(&m, "a", b"content").sync().unwrap();
    assert_eq!(content(&m.image().crash(CrashKind::PowerLost, 0), "a"), None);
    let fates: BTreeSet<_> = SEEDS.map(|s| content(&m.image().crash(CrashKind::PowerTorn, s), "a")).collect();
    assert_eq!(fates, BTreeSet::from([None, Some(b"content".to_vec())]));

    m.sync_dir(Path::new("/db")).unwrap();
    for kind in CrashKind::ALL {
        for seed in SEEDS {
            assert_eq!(content(&m.image().crash(kind, seed), "a").unwrap(), b"content");
        }
    }
}

#[test]
fn a_name_may_survive_without_the_content_that_was_never_synced() {
    let m = machine(1);
    create(&m, "a", b"content");
    m.sync_dir(Path::new("/db")).unwrap();
    assert_eq!(content(&m.image().crash(CrashKind::PowerLost, 0), "a").unwrap(), b"");
}

#[test]
fn a_directory_may_vanish_with_all_that_is_in_it_until_its_parent_is_synced() {
    let m = SimMedia::new(1);
    m.create_dir_all(Path::new("/x/db")).unwrap();
    let f = m.open(Path::new("/x/db/a"), CREATE).unwrap();
    f.write_at(b"1", 0).unwrap();
    f.sync().unwrap();
    m.sync_dir(Path::new("/x/db")).unwrap();
    m.sync_dir(Path::new("/x")).unwrap();
    let after = m.image().crash(CrashKind::PowerLost, 0);
    assert!(!after.exists(Path::new("/x")).unwrap());
    m.sync_dir(Path::new("/")).unwrap();
    let after = m.image().crash(CrashKind::PowerLost, 0);
    assert!(after.exists(Path::new("/x/db/a")).unwrap());
}

#[test]
fn a_rename_may_be_lost_until_its_directory_is_synced_but_is_never_half_done() {
    let m = machine(1);
    create_durably(&m, "SUPER", b"old");
    create_durably(&m, "SUPER.tmp", b"new");
    m.rename(&path("SUPER.tmp"), &path("SUPER")).unwrap();
    let before =
        BTreeMap::from([("SUPER".to_owned(), b"old".to_vec()), ("SUPER.tmp".to_owned(), b"new".to_vec())]);
    let after = BTreeMap::from([("SUPER".to_owned(), b"new".to_vec())]);
    let fates: BTreeSet<_> = SEEDS.map(|s| contents(&m.image().crash(CrashKind::PowerTorn, s))).collect();
    assert_eq!(fates, BTreeSet::from([before.clone(), after.clone()]));
    assert_eq!(contents(&m.image().crash(CrashKind::PowerLost, 0)), before);

    m.sync_dir(Path::new("/db")).unwrap();
    for seed in SEEDS {
        assert_eq!(contents(&m.image().crash(CrashKind::PowerTorn, seed)), after);
    }
}

#[test]
fn a_rename_between_directories_never_loses_the_file() {
    let m = machine(1);
    m.create_dir_all(Path::new("/old")).unwrap();
    m.sync_dir(Path::new("/")).unwrap();
    create_durably(&m, "a", b"1");
    m.rename(&path("a"), Path::new("/old/a")).unwrap();
    for synced in ["", "/db", "/old"] {
        if !synced.is_empty() {
            m.sync_dir(Path::new(synced)).unwrap();
        }
        for seed in SEEDS {
            let after = m.image().crash(CrashKind::PowerTorn, seed);
            let places = [path("a"), PathBuf::from("/old/a")].map(|p| after.exists(&p).unwrap());
            assert_eq!(places.iter().filter(|there| **there).count(), 1, "{synced} {seed}");
        }
    }
}

#[test]
fn a_removed_file_may_come_back_until_its_directory_is_synced() {
    let m = machine(1);
    create_durably(&m, "a", b"1");
    m.remove_file(&path("a")).unwrap();
    assert_eq!(content(&m.image().crash(CrashKind::PowerLost, 0), "a").unwrap(), b"1");
    m.sync_dir(Path::new("/db")).unwrap();
    assert_eq!(content(&m.image().crash(CrashKind::PowerLost, 0), "a"), None);
}

#[test]
fn unsynced_names_survive_in_any_combination() {
    let m = machine(1);
    for name in ["a", "b", "c"] {
        create(&m, name, b"");
    }
    let fates: BTreeSet<Vec<String>> =
        SEEDS.map(|s| contents(&m.image().crash(CrashKind::PowerTorn, s)).into_keys().collect()).collect();
    assert_eq!(fates.len(), 8, "{fates:?}");
}

#[test]
fn an_unsynced_overwrite_may_be_kept_lost_torn_or_zeroed_sector_by_sector() {
    let m = machine(1);
    let f = create_durably(&m, "a", &[b'o'; 4096]);
    f.write_at(&[b'n'; 1024], 1024).unwrap();
    let (mut kept, mut lost, mut torn, mut zeroed, mut apart) = (false, false, false, false, false);
    for seed in SEEDS {
        let c = content(&m.image().crash(CrashKind::PowerTorn, seed), "a").unwrap();
        assert!(c[..1024].iter().chain(&c[2048..]).all(|b| *b == b'o'), "sectors not written are untouched");
        let (first, second) = (&c[1024..1536], &c[1536..2048]);
        for s in [first, second] {
            kept |= s.iter().all(|b| *b == b'n');
            lost |= s.iter().all(|b| *b == b'o');
            zeroed |= s.iter().all(|b| *b == 0);
            torn |= s.contains(&b'n') && s.contains(&b'o');
        }
        apart |= first[0] == b'o' && second[0] == b'n';
    }
    assert!(kept && lost && torn && zeroed, "{kept} {lost} {torn} {zeroed}");
    assert!(apart, "the later sector may survive without the earlier one");
    assert!(content(&m.image().crash(CrashKind::PowerLost, 0), "a").unwrap().iter().all(|b| *b == b'o'));
}

#[test]
fn writes_may_reach_the_device_in_another_order() {
    let m = machine(1);
    let f = create_durably(&m, "a", &[b'o'; 4096]);
    let g = create_durably(&m, "b", &[b'o'; 4096]);
    f.write_at(&[b'n'; 512], 0).unwrap();
    g.write_at(&[b'n'; 512], 0).unwrap();
    let first = |m: &SimMedia, name| content(m, name).unwrap()[0];
    let fates: BTreeSet<_> = SEEDS
        .map(|s| m.image().crash(CrashKind::PowerTorn, s))
        .map(|after| (first(&after, "a"), first(&after, "b")))
        .collect();
    assert!(fates.contains(&(b'o', b'n')), "the later without the earlier");
    assert!(fates.contains(&(b'n', b'o')), "the earlier without the later");
}

#[test]
fn an_older_unsynced_state_of_a_sector_may_survive_a_newer_one() {
    let m = machine(1);
    let f = create_durably(&m, "a", &[0; 512]);
    f.write_at(&[1; 512], 0).unwrap();
    f.write_at(&[2; 512], 0).unwrap();
    let fates: BTreeSet<u8> =
        SEEDS.map(|s| content(&m.image().crash(CrashKind::PowerTorn, s), "a").unwrap()[511]).collect();
    assert_eq!(fates, BTreeSet::from([0, 1, 2]));
}

#[test]
fn an_unsynced_length_may_be_kept_or_lost() {
    let m = machine(1);
    let f = create_durably(&m, "a", &[5; 1000]);
    f.set_len(3000).unwrap();
    f.set_len(10).unwrap();
    let len = |s, kind| content(&m.image().crash(kind, s), "a").unwrap().len();
    assert_eq!(len(0, CrashKind::PowerLost), 1000);
    assert_eq!(len(0, CrashKind::PowerKept), 10);
    let fates: BTreeSet<usize> = SEEDS.map(|s| len(s, CrashKind::PowerTorn)).collect();
    assert_eq!(fates, BTreeSet::from([10, 1000, 3000]));
    f.sync().unwrap();
    assert!(SEEDS.map(|s| len(s, CrashKind::PowerTorn)).all(|n| n == 10));
}

#[test]
fn a_write_in_flight_is_cut_at_a_sector_when_the_process_dies() {
    let m = machine(1);
    let f = create_durably(&m, "a", &[b'o'; 4096]);
    let images = record(&m);
    f.write_at(&[b'n'; 2000], 100).unwrap();
    m.on_op(None);
    let (_, image) = images.lock().pop().unwrap();
    let mut cuts = BTreeSet::new();
    for seed in SEEDS {
        let c = content(&image.crash(CrashKind::ProcessTorn, seed), "a").unwrap();
        let new = c.iter().filter(|b| **b == b'n').count();
        assert!(c[100..100 + new].iter().all(|b| *b == b'n'), "a prefix");
        cuts.insert(new);
    }
    assert_eq!(cuts, BTreeSet::from([0, 412, 924, 1436, 1948, 2000]));
    let before = content(&image.crash(CrashKind::Process, 0), "a").unwrap();
    assert!(before.iter().all(|b| *b == b'o'), "without tearing the announced call has not happened");
}

#[test]
fn a_write_in_flight_may_reach_the_device_in_part_when_power_fails() {
    let m = machine(1);
    let f = create_durably(&m, "a", &[b'o'; 2048]);
    let images = record(&m);
    f.write_at(&[b'n'; 2048], 0).unwrap();
    m.on_op(None);
    let (_, image) = images.lock().pop().unwrap();
    let partly = SEEDS
        .map(|s| content(&image.crash(CrashKind::PowerTorn, s), "a").unwrap())
        .any(|c| c.contains(&b'n') && c.contains(&b'o'));
    assert!(partly);
}

#[test]
fn a_sync_in_flight_has_made_nothing_certain() {
    let m = machine(1);
    let f = create_durably(&m, "a", &[b'o'; 512]);
    f.write_at(&[b'n'; 512], 0).unwrap();
    let images = record(&m);
    f.sync().unwrap();
    let (kind, image) = images.lock().pop().unwrap();
    assert_eq!(kind, OpKind::Sync);
    let fates: BTreeSet<u8> =
        SEEDS.map(|s| content(&image.crash(CrashKind::PowerTorn, s), "a").unwrap()[0]).collect();
    assert!(fates.contains(&b'o') && fates.contains(&b'n'));
}

#[test]
fn pages_of_a_region_survive_power_loss_in_any_combination_and_process_death_whole() {
    let m = machine(1);
    let r = m.map(&path("tail"), 4 * 4096).unwrap();
    m.sync_dir(Path::new("/db")).unwrap();
    for page in 0..4 {
        r.store(page * 4096, &[7; 16]).unwrap();
    }
    let pages = |kind, seed| {
        let c = content(&m.image().crash(kind, seed), "tail").unwrap();
        [0, 1, 2, 3].map(|p| c[p * 4096] == 7)
    };
    assert_eq!(pages(CrashKind::Process, 0), [true; 4]);
    assert_eq!(pages(CrashKind::PowerKept, 0), [true; 4]);
    let fates: BTreeSet<_> = SEEDS.map(|s| pages(CrashKind::PowerLost, s)).collect();
    assert_eq!(fates.len(), 16);
    r.sync().unwrap();
    assert!(SEEDS.map(|s| pages(CrashKind::PowerLost, s)).all(|p| p == [true; 4]));
}

#[test]
fn a_store_in_flight_is_cut_between_words_when_the_process_dies() {
    let m = machine(1);
    let r = m.map(&path("tail"), 4096).unwrap();
    let images = record(&m);
    r.store(8, &[7; 24]).unwrap();
    m.on_op(None);
    let (_, image) = images.lock().pop().unwrap();
    let stored = |s| {
        let c = content(&image.crash(CrashKind::ProcessTorn, s), "tail").unwrap();
        c.iter().filter(|b| **b == 7).count()
    };
    assert_eq!(SEEDS.map(stored).collect::<BTreeSet<_>>(), BTreeSet::from([0, 8, 16, 24]));
}

#[test]
fn an_image_stays_as_it_was_while_the_machine_goes_on() {
    let m = machine(1);
    let f = create_durably(&m, "a", &vec![0; 1 << 20]);
    let mut images = Vec::new();
    for i in 0..2000u64 {
        images.push(m.image());
        f.write_at(&i.to_le_bytes(), i * 520).unwrap();
        if i % 50 == 0 {
            f.sync().unwrap();
        }
    }
    for i in [0, 1, 77, 1999] {
        let c = content(&images[i].crash(CrashKind::Process, 0), "a").unwrap();
        let written = (0..2000).filter(|n| c[n * 520..][..8] == (*n as u64).to_le_bytes()).count();
        // Entry 0 is zeros before and after it is written.
        assert_eq!(written, i.max(1), "image {i}");
    }
}
