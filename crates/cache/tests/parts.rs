//! Parts of a cache: what each is sure of, what it may have beside that, and what happens when they come and go.
#![cfg(not(loom))]

use std::ops::Range;

use terrane_cache::{Cache, CacheOptions, FrameKey, PartStats, Priority};

const BLOCK: usize = 16 << 10;
const CAPACITY: usize = 16 << 20;

fn cache(capacity_bytes: usize) -> Cache {
    Cache::new(CacheOptions::for_processors(capacity_bytes, 2))
}

fn key(part: u16, n: u64) -> FrameKey {
    FrameKey::new(n / 128, (n % 128) as u32 * BLOCK as u32).part(part)
}

fn load(cache: &Cache, part: u16, numbers: Range<u64>) {
    for n in numbers {
        let pin = cache.get_or_load(key(part, n), Priority::Data, || Ok(vec![n as u8; BLOCK])).unwrap();
        assert!(pin.len() == BLOCK && pin[0] == n as u8);
    }
}

fn kept(cache: &Cache, part: u16, numbers: Range<u64>) -> usize {
    numbers.filter(|&n| cache.contains(key(part, n))).count()
}

fn shares(cache: &Cache, parts: &[u16]) -> Vec<usize> {
    parts.iter().map(|&part| cache.part_stats(part).share_bytes).collect()
}

#[test]
fn a_scan_in_one_part_leaves_what_another_is_sure_of() {
    let c = cache(CAPACITY);
    let (a, b) = (c.open_part().unwrap(), c.open_part().unwrap());
    // Read once, as the scan: it is the share that keeps it.
    load(&c, a, 0..200);
    load(&c, b, 10_000..15_000);
    assert_eq!(kept(&c, a, 0..200), 200);
    assert_eq!(
        (c.part_stats(a).evictions, c.part_stats(0)),
        (0, PartStats { share_bytes: c.part_stats(0).share_bytes, ..PartStats::default() })
    );
    assert_eq!(c.stats().evictions, c.part_stats(b).evictions);
    let whole = cache(CAPACITY);
    load(&whole, 0, 0..200);
    load(&whole, 0, 10_000..15_000);
    assert_eq!(kept(&whole, 0, 0..200), 0, "without parts the scan pushes it out");
}

#[test]
fn what_one_part_does_not_use_serves_others_until_it_does() {
    let c = cache(CAPACITY);
    let (a, b) = (c.open_part().unwrap(), c.open_part().unwrap());
    load(&c, a, 0..850);
    let alone = c.part_stats(a);
    assert!(alone.resident_bytes > 2 * alone.share_bytes && c.part_stats(a).evictions == 0);
    load(&c, b, 10_000..10_850);
    let [one, other] = [a, b].map(|part| c.part_stats(part));
    // The common part uses nothing of its share; the two others have that between them.
    assert!(one.resident_bytes + BLOCK * 4 >= one.share_bytes, "{one:?}");
    assert!(other.resident_bytes + BLOCK * 4 >= other.share_bytes, "{other:?}");
    let stats = c.stats();
    assert!(stats.used_bytes() > CAPACITY * 9 / 10 && stats.used_bytes() <= CAPACITY * 21 / 20, "{stats:?}");
}

#[test]
fn shares_follow_what_is_missed_and_come_back() {
    let c = cache(CAPACITY);
    let (a, b) = (c.open_part().unwrap(), c.open_part().unwrap());
    let parts = [0, a, b];
    let equal = shares(&c, &parts);
    assert!(equal.iter().all(|s| s.abs_diff(equal[0]) < BLOCK), "{equal:?}");
    // One reads at random more than it can have, the other one scans: both fill what they have.
    let mut seed = 1u64;
    let mut reads = |needy: u16, scanner: u16, from: u64| {
        for n in from..from + 60_000 {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let one = (seed >> 33) % 1200;
            load(&c, needy, one..one + 1);
            load(&c, scanner, n..n + 1);
        }
    };
    reads(a, b, 10_000);
    let moved = shares(&c, &parts);
    assert!(moved[1] > equal[1] * 3 / 2 && moved[2] < equal[2] / 2, "{equal:?} {moved:?}");
    assert!(moved[2] > equal[2] / 5, "a quarter stays: {equal:?} {moved:?}");
    assert!(moved[0] < equal[0] / 2, "and of what nobody uses");
    assert!(moved.iter().sum::<usize>().abs_diff(equal.iter().sum()) < CAPACITY / 50);
    reads(b, a, 100_000);
    let back = shares(&c, &parts);
    assert!(back[2] > equal[2] && back[1] < moved[1] * 2 / 3, "{moved:?} {back:?}");
}

#[test]
fn who_fits_into_its_share_does_not_lose_it_to_who_never_fits() {
    let c = cache(CAPACITY);
    let (a, b) = (0, c.open_part().unwrap());
    let share = c.part_stats(b).share_bytes;
    let hot = (share / (BLOCK + 64)) as u64;
    let mut seed = 1u64;
    let mut read = |part: u16, of: u64| {
        seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        let n = (seed >> 33) % of;
        load(&c, part, n..n + 1);
    };
    for _ in 0..40_000 {
        read(a, 3000);
        read(b, hot);
    }
    let before = c.part_stats(b);
    for _ in 0..20_000 {
        read(a, 3000);
        read(b, hot);
    }
    let after = c.part_stats(b);
    assert!(after.share_bytes > share * 9 / 10, "{after:?}");
    assert!(after.inserts - before.inserts < 20_000 / 10, "{before:?} {after:?}");
}

#[test]
fn an_extent_moves_with_what_it_has_and_is_no_longer_where_it_was() {
    let c = cache(CAPACITY);
    let (a, b) = (c.open_part().unwrap(), c.open_part().unwrap());
    load(&c, a, 0..256);
    let before = c.stats();
    c.rehome(1, a, b);
    assert_eq!((kept(&c, a, 0..256), kept(&c, b, 0..256)), (128, 128));
    assert_eq!(c.part_stats(a).resident_bytes, c.part_stats(b).resident_bytes);
    assert_eq!(c.part_stats(b).inserts, 0, "nothing was loaded");
    assert_eq!(c.stats().resident_bytes, before.resident_bytes);
    // What is there already stays as it is.
    load(&c, a, 128..130);
    c.rehome(1, a, b);
    assert_eq!((c.stats().frames, kept(&c, b, 128..256)), (256, 128));
    c.rehome(1, b, b);
    c.rehome(77, a, b);
    c.rehome(1, b, 999);
    assert_eq!((kept(&c, 0, 0..256), kept(&c, 999, 128..256)), (128, 128), "no such part: the common one");
    (0..2).for_each(|extent| c.remove_extent(extent));
    assert_eq!((c.stats().frames, c.stats().resident_bytes), (0, 0));
}

#[test]
fn what_was_proven_stays_so_in_another_part() {
    let c = cache(CAPACITY);
    let a = c.open_part().unwrap();
    load(&c, a, 0..64);
    // Over the goal once, so that what was read is on its way to the main queue.
    load(&c, a, 0..64);
    load(&c, a, 10_000..12_000);
    assert_eq!(kept(&c, a, 0..64), 64);
    c.rehome(0, a, 0);
    load(&c, 0, 20_000..22_000);
    assert_eq!(kept(&c, 0, 0..64), 64);
}

#[test]
fn a_closed_part_is_the_common_one_and_its_memory_goes_back() {
    let c = cache(CAPACITY);
    let whole = c.part_stats(0).share_bytes;
    let a = c.open_part().unwrap();
    load(&c, a, 0..300);
    let before = c.stats();
    c.close_part(a);
    c.close_part(a);
    c.close_part(0);
    assert_eq!((kept(&c, a, 0..300), kept(&c, 0, 0..300)), (300, 300));
    assert_eq!(c.part_stats(a), PartStats { inserts: 300, ..PartStats::default() });
    assert_eq!((c.stats().frames, c.stats().resident_bytes), (300, before.resident_bytes));
    assert_eq!((c.stats().evictions, c.stats().inserts), (0, 300));
    assert!(c.part_stats(0).share_bytes.abs_diff(whole) < CAPACITY / 100, "the whole share");
    load(&c, a, 300..301);
    assert!(c.contains(key(0, 300)), "what enters it enters the common one");
    let again = c.open_part().unwrap();
    assert_eq!(again, a);
    assert_eq!(kept(&c, again, 0..301), 0, "a new part is empty");
    load(&c, again, 0..10);
    assert_eq!(c.part_stats(again).resident_bytes / 10, c.part_stats(0).resident_bytes / 301);
    assert_eq!(c.stats().frames, 311, "a frame may be in two parts while nobody has moved it");
}

#[test]
fn there_are_256_parts_and_they_share_fairly() {
    let c = cache(64 << 20);
    let parts: Vec<u16> = std::iter::from_fn(|| c.open_part()).collect();
    assert_eq!(parts, (1..=256).collect::<Vec<_>>());
    let equal = (64 << 20) / 257;
    for part in 0..=256 {
        let share = c.part_stats(part).share_bytes;
        assert!(share > equal * 8 / 10 && share < equal * 11 / 10, "{part}: {share}");
    }
    parts.iter().for_each(|&part| c.close_part(part));
    assert!(c.part_stats(0).share_bytes > 60 << 20);
}

#[test]
fn without_memory_nothing_is_kept_and_all_is_served() {
    for capacity in [0, 1, 4096, 300 << 10] {
        let c = cache(capacity);
        let parts: Vec<u16> = (0..4).filter_map(|_| c.open_part()).collect();
        for round in 0..20 {
            for &part in &parts {
                load(&c, part, round * 7..round * 7 + 20);
            }
            c.rehome(0, parts[round as usize % 4], parts[(round as usize + 1) % 4]);
            assert!(c.stats().resident_bytes <= capacity + capacity / 20, "{:?}", c.stats());
        }
        parts.iter().for_each(|&part| c.close_part(part));
        assert_eq!(c.part_stats(0).resident_bytes, c.stats().resident_bytes);
    }
}

#[test]
fn the_capacity_may_change_with_parts() {
    let c = cache(CAPACITY);
    let a = c.open_part().unwrap();
    load(&c, a, 0..400);
    load(&c, 0, 1000..1400);
    c.set_capacity(CAPACITY / 4);
    assert!(c.stats().used_bytes() <= CAPACITY / 4 * 21 / 20, "{:?}", c.stats());
    let [common, part] = [0, a].map(|p| c.part_stats(p).resident_bytes);
    assert!(common > CAPACITY / 16 && part > CAPACITY / 16, "{common} {part}");
}
