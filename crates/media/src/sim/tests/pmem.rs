use std::collections::BTreeSet;
use std::thread;

use super::*;
use crate::{LINE, Pmem, PmemMode, SECTOR, create_pmem};

/// A machine with durable persistent memory of one page.
fn with_pmem(mode: PmemMode) -> (Arc<SimMedia>, Arc<dyn Pmem>) {
    let m = machine(1);
    create_pmem(&*m, &path("pm"), SECTOR, &[]).unwrap();
    let pm = m.map_pmem(&path("pm"), mode).unwrap();
    (m, pm)
}

/// The first `N` bytes of the memory after each thing that a power failure may leave, and how many things that is.
fn all_that_may_be_left<const N: usize>(image: &Image) -> (BTreeMap<[u8; N], u64>, u64) {
    let mut found = BTreeMap::new();
    for state in 0..image.pm_states(PmModel::Lines) {
        *found.entry(left(&image.crash_to_pm_state(PmModel::Lines, state))).or_default() += 1;
    }
    (found, image.pm_states(PmModel::Lines))
}

fn left<const N: usize>(m: &SimMedia) -> [u8; N] {
    let all = content(m, "pm").unwrap();
    assert_eq!(all.len(), SECTOR);
    all[..N].try_into().unwrap()
}

fn words<const N: usize>(image: &Image) -> Vec<Vec<u8>> {
    let (found, states) = all_that_may_be_left::<N>(image);
    assert_eq!(found.values().sum::<u64>(), states);
    found.into_keys().map(|bytes| bytes.chunks(8).map(|word| word[0]).collect()).collect()
}

#[test]
fn of_one_line_a_prefix_of_the_stores_is_left() {
    let (m, pm) = with_pmem(PmemMode::Dax);
    pm.store_word(8, 1).unwrap();
    pm.store_word(0, 2).unwrap();
    pm.store_word(8, 3).unwrap();
    assert_eq!(words::<16>(&m.image()), [vec![0, 0], vec![0, 1], vec![2, 1], vec![2, 3]]);
}

#[test]
fn lines_know_nothing_of_each_other() {
    let (m, pm) = with_pmem(PmemMode::Dax);
    pm.store_word(0, 1).unwrap();
    pm.store_word(LINE, 1).unwrap();
    let (found, states) = all_that_may_be_left::<72>(&m.image());
    assert_eq!((found.len(), states), (4, 4));
}

#[test]
fn some_of_what_may_be_left_are_all_or_different_ones() {
    let (m, pm) = with_pmem(PmemMode::Dax);
    for store in 0..12 {
        pm.store_word(store % 4 * LINE, store as u64).unwrap();
    }
    // Three stores to each of four lines, each to the same word.
    let image = m.image();
    let all: Vec<_> = [(PmModel::Lines, 256), (PmModel::Words, 16)]
        .into_iter()
        .flat_map(|(model, states)| (0..states).map(move |state| (model, state)))
        .collect();
    for most in [1, 12, 16, 100, 255, 256, 1000] {
        let mut some: Vec<_> = image.some_pm_states(most).collect();
        assert_eq!(some.len() as u64, most.min(256) + most.min(16));
        some.sort_by_key(|(model, state)| (*model == PmModel::Words, *state));
        some.dedup();
        assert_eq!(some.len() as u64, most.min(256) + most.min(16), "different");
        assert!(some.iter().all(|state| all.contains(state)));
    }
    let nothing = machine(1).image();
    assert_eq!(nothing.some_pm_states(12).count(), 2, "what is there");
}

#[test]
fn a_fence_makes_certain_what_its_thread_has_flushed_before_and_nothing_else() {
    let (m, pm) = with_pmem(PmemMode::Dax);
    pm.store_word(0, 1).unwrap();
    pm.fence();
    assert_eq!(m.image().pm_states(PmModel::Lines), 2, "not flushed");
    pm.flush(0, 8).unwrap();
    thread::scope(|s| s.spawn(|| pm.fence()).join().unwrap());
    assert_eq!(m.image().pm_states(PmModel::Lines), 2, "flushed by another thread");
    pm.store_word(8, 2).unwrap();
    pm.fence();
    assert_eq!(words::<16>(&m.image()), [[1, 0], [1, 2]], "stored after the flush");
    pm.write(16, &[3; 8]).unwrap();
    pm.fence();
    assert_eq!(words::<24>(&m.image()), [[1, 2, 3]], "a write flushes its line");
    for kind in CrashKind::WITH_WORDS {
        for seed in SEEDS {
            assert_eq!(left::<24>(&m.image().crash(kind, seed))[16], 3, "{kind:?} {seed}");
        }
    }
}

#[test]
fn a_fence_on_its_way_makes_nothing_certain() {
    let (m, pm) = with_pmem(PmemMode::Dax);
    let images = record(&m);
    pm.write(0, &[1; 8]).unwrap();
    pm.fence();
    let states: Vec<_> =
        images.lock().iter().map(|(kind, image)| (*kind, image.pm_states(PmModel::Lines))).collect();
    // Before the store as after it: a hook sees what a crash in the middle may leave.
    assert_eq!(states, [(OpKind::Store, 2), (OpKind::Fence, 2)]);
    assert_eq!(m.image().pm_states(PmModel::Lines), 1);
}

#[test]
fn what_goes_around_the_caches_is_left_word_by_word() {
    let (m, pm) = with_pmem(PmemMode::Dax);
    // Of nine lines the first and the last are written in part, so by the caches.
    pm.write(56, &[7; 8 + 7 * LINE + 8 + 48]).unwrap();
    let image = m.image();
    // One word, seven lines of eight words that know nothing of each other, seven words in order.
    assert_eq!(image.pm_states(PmModel::Lines), 2 * (1 << 56) * 8);
    let prefixes = SEEDS.filter(|seed| {
        let all = content(&image.crash(CrashKind::PowerTorn, *seed), "pm").unwrap();
        all[LINE..2 * LINE].chunks(8).map(|w| w[0]).is_sorted_by(|a, b| a >= b)
    });
    assert!((1..SEEDS.end as usize).contains(&prefixes.count()), "some are prefixes, and some are not");
    pm.fence();
    assert_eq!(m.image().pm_states(PmModel::Lines), 1);
}

#[test]
fn the_judges_model_tosses_a_coin_for_each_word() {
    let (m, pm) = with_pmem(PmemMode::Dax);
    for word in 0..3 {
        pm.store_word(8 * word, 1).unwrap();
    }
    let image = m.image();
    let found: BTreeSet<[u8; 24]> =
        SEEDS.map(|seed| left(&image.crash(CrashKind::PowerWords, seed))).collect();
    assert_eq!(found.len(), 8, "every combination, holes too");
}

#[test]
fn a_process_that_dies_leaves_every_store_and_of_the_last_one_a_prefix() {
    for mode in [PmemMode::Dax, PmemMode::PageCache] {
        let (m, pm) = with_pmem(mode);
        pm.store_word(0, 1).unwrap();
        let images = record(&m);
        pm.write(8, &[2; 16]).unwrap();
        let (_, image) = images.lock()[0].clone();
        assert_eq!(
            left::<24>(&image.crash(CrashKind::Process, 0))[..16],
            [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        let torn: BTreeSet<_> = SEEDS
            .map(|seed| left::<24>(&image.crash(CrashKind::ProcessTorn, seed)))
            .map(|b| [b[0], b[8], b[16]])
            .collect();
        assert_eq!(torn, BTreeSet::from([[1, 0, 0], [1, 2, 0], [1, 2, 2]]));
        // A power failure later on knows what was certain all the same.
        let after = m.image().crash(CrashKind::Process, 0);
        let lost: BTreeSet<_> =
            SEEDS.map(|seed| left::<8>(&after.image().crash(CrashKind::PowerLost, seed))[0]).collect();
        assert!(lost.contains(&0), "{mode:?}");
    }
}

#[test]
fn what_a_dead_process_sent_on_its_way_does_not_come_over_what_was_stored_since() {
    let (m, pm) = with_pmem(PmemMode::Dax);
    let fenced_by_nobody = || std::thread::scope(|s| s.spawn(|| pm.write(0, &[1; 8 * LINE])).join().unwrap());
    fenced_by_nobody().unwrap();
    let m = m.image().crash(CrashKind::Process, 0);
    let pm = m.map_pmem(&path("pm"), PmemMode::Dax).unwrap();
    pm.write(0, &[2; LINE / 2]).unwrap();
    let uncertain: BTreeSet<_> =
        SEEDS.map(|seed| left::<1>(&m.image().crash(CrashKind::PowerTorn, seed))[0]).collect();
    assert_eq!(uncertain, BTreeSet::from([0, 1, 2]));
    pm.fence();
    for kind in [CrashKind::PowerTorn, CrashKind::PowerWords, CrashKind::PowerKept] {
        let left: BTreeSet<_> = SEEDS.map(|seed| left::<LINE>(&m.image().crash(kind, seed))).collect();
        assert!(left.iter().all(|line| line[..LINE / 2] == [2; LINE / 2]), "{kind:?}");
        // What nobody stored to since is as uncertain as it was.
        assert!(left.len() > 1 || kind == CrashKind::PowerKept, "{kind:?}");
    }
}

#[test]
fn the_page_cache_promises_nothing_when_power_fails_however_often_one_fences() {
    let (m, pm) = with_pmem(PmemMode::PageCache);
    pm.write(0, &[1; 8]).unwrap();
    pm.fence();
    let found: BTreeSet<_> = SEEDS.map(|s| left::<8>(&m.image().crash(CrashKind::PowerLost, s))[0]).collect();
    assert_eq!(found, BTreeSet::from([0, 1]));
}

#[test]
fn two_memories_fail_each_in_its_own_way() {
    let (m, pm) = with_pmem(PmemMode::Dax);
    create_pmem(&*m, &path("pm2"), SECTOR, &[]).unwrap();
    let second = m.map_pmem(&path("pm2"), PmemMode::Dax).unwrap();
    for word in 0..2 {
        pm.store_word(8 * word, 1).unwrap();
        second.store_word(8 * word, 1).unwrap();
    }
    let image = m.image();
    let count =
        |m: &SimMedia, name: &str| content(m, name).unwrap()[..16].iter().filter(|b| **b == 1).count();
    let found: BTreeSet<_> = (0..image.pm_states(PmModel::Lines))
        .map(|s| image.crash_to_pm_state(PmModel::Lines, s))
        .map(|m| (count(&m, "pm"), count(&m, "pm2")))
        .collect();
    assert_eq!((found.len(), image.pm_states(PmModel::Lines)), (9, 9));
}

#[test]
fn a_memory_is_there_whole_or_not_at_all_wherever_its_making_is_cut_short() {
    let m = machine(1);
    let images = record(&m);
    create_pmem(&*m, &path("pm"), SECTOR, &[]).unwrap();
    for (at, (_, image)) in images.lock().iter().enumerate() {
        for kind in CrashKind::ALL {
            for seed in 0..20 {
                let after = image.crash(kind, seed);
                match after.map_pmem(&path("pm"), PmemMode::Dax) {
                    Ok(pm) => assert_eq!(pm.len(), SECTOR, "{at} {kind:?} {seed}"),
                    Err(_) => create_pmem(&*after, &path("pm"), SECTOR, &[]).unwrap(),
                }
            }
        }
    }
    assert!(m.image().crash(CrashKind::PowerLost, 0).map_pmem(&path("pm"), PmemMode::Dax).is_ok());
}

#[test]
fn by_words_each_is_what_was_stored_last_or_what_was_certain() {
    let (m, pm) = with_pmem(PmemMode::Dax);
    pm.store_word(0, 1).unwrap();
    pm.flush(0, 8).unwrap();
    pm.fence();
    // Two stores to one word, one to another of its line, one to another line: three words, whatever their order is.
    for (word, value) in [(0, 2), (3, 3), (0, 4), (8, 5)] {
        pm.store_word(8 * word, value).unwrap();
    }
    let image = m.image();
    let found: BTreeSet<_> = (0..image.pm_states(PmModel::Words))
        .map(|state| left::<72>(&image.crash_to_pm_state(PmModel::Words, state)))
        .map(|bytes| [0, 24, 64].map(|at| bytes[at]))
        .collect();
    let wanted: BTreeSet<_> = [1, 4]
        .into_iter()
        .flat_map(|a| [0, 3].into_iter().flat_map(move |b| [0, 5].map(|c| [a, b, c])))
        .collect();
    assert_eq!((found, image.pm_states(PmModel::Words)), (wanted, 8));
    // The last one has all that was stored.
    assert_eq!(left::<72>(&image.crash_to_pm_state(PmModel::Words, 7))[0], 4);
}
