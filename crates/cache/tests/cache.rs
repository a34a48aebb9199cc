//! What the cache promises to one caller at a time.
#![cfg(not(loom))]

use proptest::prelude::*;
use terrane_base::Error;
use terrane_cache::{Cache, CacheOptions, FrameKey, Pin, Priority};

fn cache(capacity_bytes: usize) -> Cache {
    Cache::new(CacheOptions::for_processors(capacity_bytes, 2))
}

fn key(n: u64) -> FrameKey {
    FrameKey::new(n / 128, (n % 128) as u32 * 16384)
}

/// Bytes that only `key` has.
fn bytes(key: FrameKey, len: usize) -> Vec<u8> {
    let mut v = vec![(key.extent ^ u64::from(key.offset >> 14)) as u8; len];
    v.iter_mut()
        .zip(key.extent.to_le_bytes().into_iter().chain(key.offset.to_le_bytes()))
        .for_each(|(b, k)| *b = k);
    v
}

fn load(cache: &Cache, n: u64, len: usize) -> Pin {
    cache.get_or_load(key(n), Priority::Data, || Ok(bytes(key(n), len))).unwrap()
}

/// A generator of numbers, for a fixed seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Small numbers more often: about a Zipf distribution with exponent one.
    fn skewed(&mut self, n: u64) -> u64 {
        let u = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        ((n as f64).powf(u) as u64).min(n) - 1
    }
}

#[test]
fn bringing_near_is_no_access_and_may_ask_for_anything() {
    let cache = cache(1 << 20);
    let pin = load(&cache, 1, 1000);
    let before = cache.stats();
    for n in 0..200 {
        cache.prefetch(key(n), 1000);
        cache.prefetch(key(n), usize::MAX);
        cache.prefetch(key(n), 0);
    }
    [0, 999, 1000, usize::MAX].into_iter().for_each(|at| pin.prefetch(at));
    assert_eq!(cache.stats(), before);
    assert_eq!(cache.is_read(key(1)), Some(false));
}

#[test]
fn what_was_inserted_is_found_by_its_key_alone() {
    let c = cache(1 << 20);
    c.insert(key(1), b"one", Priority::Data);
    c.insert(key(2), b"", Priority::Filter);
    assert_eq!(c.with(key(1), |b| b.to_vec()).as_deref(), Some(&b"one"[..]));
    assert_eq!(&*c.get(key(2)).unwrap(), b"", "an empty frame is legal");
    assert!(c.get(key(3)).is_none() && !c.contains(key(3)));
    assert!(!c.contains(FrameKey { extent: 1, ..key(1) }), "the same offset in another extent");
    let stats = c.stats();
    assert_eq!((stats.hits, stats.inserts, stats.frames), (2, 2, 2));
}

#[test]
fn a_second_insertion_of_a_key_gives_the_frame_that_is_there() {
    let c = cache(1 << 20);
    let first = c.insert(key(1), b"first", Priority::Data);
    let second = c.insert(key(1), b"second", Priority::Data);
    assert_eq!(first.as_ptr(), second.as_ptr());
    assert_eq!(c.stats().frames, 1);
}

#[test]
fn a_pin_outlives_eviction_and_the_cache() {
    let c = cache(1 << 20);
    let removed = load(&c, 0, 5000);
    let kept = load(&c, 1, 5000);
    c.remove(key(0));
    (2..1000).for_each(|n| drop(load(&c, n, 5000)));
    c.set_capacity(0);
    assert!(!c.contains(key(0)));
    drop(c);
    assert_eq!(&*removed, bytes(key(0), 5000));
    assert_eq!(&*kept.clone(), bytes(key(1), 5000));
}

#[test]
fn memory_stays_within_five_percent_whatever_enters() {
    for capacity in [100 << 10, 1 << 20, 5_000_000, 32 << 20] {
        let c = cache(capacity);
        let mut random = Random(capacity as u64);
        let mut pins = Vec::new();
        for _ in 0..20_000 {
            let n = random.below(10_000);
            let len = [100, 4000, 16_000, 16_384, 60_000][random.below(5) as usize];
            let pin = load(&c, n, len);
            if random.below(10) == 0 {
                pins.push(pin);
                if pins.len() > 50 {
                    pins.swap_remove(random.below(50) as usize);
                }
            }
            let used = c.stats().used_bytes();
            assert!(used <= capacity + capacity / 20, "{used} of {capacity}: {c:?}");
        }
        let stats = c.stats();
        assert!(stats.evictions > 0, "{stats:?}");
        let part = if capacity < 2 << 20 { 4 } else { 2 };
        assert!(stats.resident_bytes > capacity / part, "{stats:?}");
    }
}

#[test]
fn a_full_cache_keeps_taking_frames_in_rather_than_going_private() {
    let c = cache(16 << 20);
    (0..5000).for_each(|n| drop(load(&c, n, 16_384)));
    let stats = c.stats();
    assert_eq!((stats.inserts, stats.private), (5000, 0), "{stats:?}");
    assert!(stats.resident_bytes > 15 << 20, "{stats:?}");
}

#[test]
fn the_same_calls_leave_the_same_cache() {
    let run = || {
        let c = cache(2 << 20);
        let mut random = Random(7);
        (0..10_000).for_each(|_| drop(load(&c, random.skewed(1000), 10_000)));
        (c.stats(), (0..1000).filter(|&n| c.contains(key(n))).collect::<Vec<_>>())
    };
    assert_eq!(run(), run());
}

#[test]
fn while_nothing_can_be_freed_misses_are_private_and_the_cache_stays_as_it_is() {
    let c = cache(4 << 20);
    (0..1000).for_each(|n| drop(load(&c, n, 16_384)));
    load(&c, 5000, 100);
    let before = c.stats();
    c.with(key(5000), |_| {
        // The guard under which this runs keeps every frame that is evicted.
        for n in 1000..2000 {
            assert_eq!(&*load(&c, n, 16_384), bytes(key(n), 16_384));
        }
    })
    .unwrap();
    let during = c.stats();
    assert!(during.private > before.private + 900, "{during:?}");
    assert!(during.used_bytes() <= (4 << 20) + (4 << 20) / 20);
    assert!(during.resident_bytes > before.resident_bytes / 10 * 9, "{before:?} {during:?}");
    (2000..3000).for_each(|n| drop(load(&c, n, 16_384)));
    assert!(c.stats().inserts > during.inserts, "{:?}", c.stats());
}

#[test]
fn what_leaves_during_a_hold_is_freed_after_it() {
    let c = cache(1 << 20);
    drop(c.insert(key(1), vec![1; 4096], Priority::Data));
    let hold = c.hold();
    assert_eq!(c.with(key(1), |b| b[0]), Some(1));
    c.remove(key(1));
    // Resizing frees all that can be freed.
    c.set_capacity(1 << 19);
    assert!(c.stats().awaiting_bytes >= 4096, "{:?}", c.stats());
    drop(hold);
    c.set_capacity(1 << 18);
    assert_eq!(c.stats().awaiting_bytes, 0);
}

#[test]
fn pinned_frames_do_not_leave_and_others_are_served_privately() {
    let c = cache(2 << 20);
    let pins: Vec<_> = (0..200).map(|n| (n, load(&c, n, 16_384))).collect();
    let private = pins.iter().filter(|(_, pin)| pin.is_private()).count();
    assert!(private > 0 && private < 150, "{private} private");
    assert!(pins.iter().all(|(n, pin)| c.contains(key(*n)) != pin.is_private()));
    assert!(c.stats().used_bytes() <= (2 << 20) + (2 << 20) / 20);
}

#[test]
fn a_hot_set_survives_a_long_scan() {
    let c = cache(16 << 20);
    let hot = 300u64;
    for _ in 0..3 {
        (0..hot).for_each(|n| drop(load(&c, n, 16_384)));
    }
    (100_000..110_000).for_each(|n| drop(load(&c, n, 16_384)));
    let left = (0..hot).filter(|&n| c.contains(key(n))).count();
    assert!(left >= 285, "{left} of {hot} left after a scan of ten times the capacity");
}

#[test]
fn index_blocks_and_filters_outlast_data_that_is_read_as_often() {
    let c = cache(16 << 20);
    for n in 0..2500u64 {
        let priority = match n % 10 {
            0 => Priority::Index,
            1 => Priority::Filter,
            _ => Priority::Data,
        };
        c.insert(key(n), bytes(key(n), 16_384), priority);
    }
    let (mut upper, mut data) = (0, 0);
    for n in (0..2500).filter(|&n| c.contains(key(n))) {
        *(if n % 10 < 2 { &mut upper } else { &mut data }) += 1;
    }
    assert!(upper > 450, "{upper} of 500 index blocks and filters, {data} of 2000 data blocks");
}

#[test]
fn skewed_reads_hit_more_often_than_in_a_least_recently_used_cache() {
    let (capacity, frames, reads) = (8 << 20, 5_000, 60_000);
    let c = cache(capacity);
    let mut random = Random(42);
    let mut lru = Vec::<u64>::new();
    let mut lru_hits = 0;
    for _ in 0..reads {
        let n = random.skewed(frames);
        drop(load(&c, n, 16_384));
        if let Some(at) = lru.iter().rposition(|&m| m == n) {
            lru.remove(at);
            lru_hits += 1;
        } else if lru.len() == capacity / (16_384 + 96) {
            lru.remove(0);
        }
        lru.push(n);
    }
    let hits = c.stats().hits;
    assert!(hits as f64 >= f64::from(lru_hits), "{hits} hits, {lru_hits} in an LRU cache");
}

#[test]
fn what_is_too_large_is_served_but_not_kept() {
    let c = cache(1 << 20);
    let pin = load(&c, 1, 1 << 20);
    assert!(pin.is_private());
    assert_eq!(pin.len(), 1 << 20);
    let none = cache(0);
    assert_eq!(&*load(&none, 1, 100), bytes(key(1), 100));
    assert_eq!((none.stats().frames, none.stats().private), (0, 1));
}

#[test]
fn removing_an_extent_takes_all_its_frames_and_no_others() {
    let c = cache(32 << 20);
    (0..128 * 5).for_each(|n| drop(load(&c, n, 1000)));
    c.remove_extent(2);
    c.remove_extent(99);
    c.remove(key(0));
    c.remove(key(128 * 5));
    let left: Vec<u64> = (0..128 * 5).filter(|&n| !c.contains(key(n))).collect();
    assert_eq!(left, std::iter::once(0).chain(256..384).collect::<Vec<_>>());
    assert_eq!(c.stats().frames, 128 * 4 - 1);
    assert_eq!(c.stats().evictions, 0, "a removal is not an eviction");
}

#[test]
fn a_new_capacity_holds_at_once() {
    let c = cache(32 << 20);
    (0..10_000).for_each(|n| drop(load(&c, n, 3000)));
    let before = c.stats();
    for capacity in [8 << 20, 1 << 20, 64 << 10, 0] {
        c.set_capacity(capacity);
        let stats = c.stats();
        assert!(stats.resident_bytes <= capacity, "{stats:?}");
        assert!(stats.bookkeeping_bytes <= (capacity / 20).max(16 << 10), "{stats:?}");
    }
    c.set_capacity(32 << 20);
    (0..10_000).for_each(|n| drop(load(&c, n, 3000)));
    let after = c.stats();
    assert!(after.frames > before.frames / 10 * 9, "{before:?} {after:?}");
}

#[test]
fn shrinking_takes_evenly_from_what_is_least_read() {
    let c = cache(32 << 20);
    (0..1500).for_each(|n| drop(load(&c, n, 16_384)));
    (0..300).for_each(|n| assert!(c.get(key(n)).is_some()));
    c.set_capacity(16 << 20);
    let kept = (0..300).filter(|&n| c.contains(key(n))).count();
    assert!(kept > 290, "{kept} of 300");
}

#[test]
fn a_failed_load_is_not_remembered() {
    let c = cache(1 << 20);
    let bad = c.get_or_load(key(1), Priority::Data, || Err::<Vec<u8>, _>(Error::corruption("checksum")));
    assert_eq!(bad.unwrap_err().message(), "checksum");
    assert_eq!(&*load(&c, 1, 10), bytes(key(1), 10));
}

#[test]
fn a_load_that_asks_for_itself_or_for_another_does_not_wait_forever() {
    let c = cache(1 << 20);
    let outer = c.get_or_load(key(1), Priority::Data, || {
        let other = load(&c, 2, 10);
        let own = c.get_or_load(key(1), Priority::Data, || Ok(vec![1]))?;
        Ok([&*own, &*other].concat())
    });
    assert_eq!(outer.unwrap().len(), 11);
    assert!(c.contains(key(1)) && c.contains(key(2)));
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u64, u16, bool),
    Load(u64, u16),
    Read(u64),
    Remove(u64),
    RemoveExtent(u64),
    Capacity(u32),
    Hold(u64),
    Release,
}

fn op() -> impl Strategy<Value = Op> {
    let n = 0..400u64;
    prop_oneof![
        4 => (n.clone(), any::<u16>(), any::<bool>()).prop_map(|(n, len, index)| Op::Insert(n, len, index)),
        8 => (n.clone(), any::<u16>()).prop_map(|(n, len)| Op::Load(n, len)),
        8 => n.clone().prop_map(Op::Read),
        2 => n.clone().prop_map(Op::Remove),
        1 => (0..4u64).prop_map(Op::RemoveExtent),
        1 => (0..4_000_000u32).prop_map(Op::Capacity),
        2 => n.prop_map(Op::Hold),
        1 => Just(Op::Release),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_history_keeps_contents_counts_and_budget(
        shards in 1..8usize,
        ops in prop::collection::vec(op(), 1..600),
    ) {
        let mut capacity = 2 << 20;
        let c = Cache::new(CacheOptions { capacity_bytes: capacity, shards });
        let mut held = Vec::new();
        let good = |n: u64, b: &[u8]| b == bytes(key(n), b.len());
        for op in ops {
            match op {
                Op::Insert(n, len, index) => {
                    let priority = if index { Priority::Index } else { Priority::Data };
                    prop_assert!(good(n, &c.insert(key(n), bytes(key(n), len.into()), priority)));
                }
                Op::Load(n, len) => prop_assert!(good(n, &load(&c, n, len.into()))),
                Op::Read(n) => {
                    let here = c.contains(key(n));
                    prop_assert_eq!(c.with(key(n), |b| good(n, b)), here.then_some(true));
                }
                Op::Remove(n) => {
                    c.remove(key(n));
                    prop_assert!(!c.contains(key(n)));
                }
                Op::RemoveExtent(extent) => {
                    c.remove_extent(extent);
                    prop_assert!((0..400).all(|n| key(n).extent != extent || !c.contains(key(n))));
                }
                Op::Capacity(bytes) => {
                    // Pinned frames cannot be freed, so only a growing capacity bounds them at once.
                    held.clear();
                    capacity = bytes as usize;
                    c.set_capacity(capacity);
                }
                Op::Hold(n) => held.extend(c.get(key(n)).map(|pin| (n, pin))),
                Op::Release => held.clear(),
            }
            prop_assert!(held.iter().all(|(n, pin)| good(*n, pin)));
            let stats = c.stats();
            prop_assert_eq!(stats.frames, (0..400).filter(|&n| c.contains(key(n))).count());
            prop_assert!(stats.resident_bytes <= capacity + capacity / 20, "{:?}", stats);
        }
    }
}
