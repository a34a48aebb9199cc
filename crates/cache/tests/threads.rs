//! What the cache promises to many threads at once.
#![cfg(not(loom))]
#![allow(clippy::disallowed_methods)]

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use terrane_base::{Error, ErrorKind};
use terrane_cache::{Cache, CacheOptions, FrameKey, HeatSampler, Priority};

const KEY: FrameKey = FrameKey::new(7, 16384);

fn cache(capacity_bytes: usize, shards: usize) -> Cache {
    Cache::new(CacheOptions { capacity_bytes, shards })
}

/// Runs `work` for each of `n` threads.
fn threads(n: usize, work: impl Fn(usize) + Sync) {
    std::thread::scope(|s| {
        for t in 0..n {
            let work = &work;
            s.spawn(move || work(t));
        }
    });
}

fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 31)
}

#[test]
fn threads_that_miss_one_key_load_it_once() {
    let c = cache(1 << 20, 0);
    let (loads, start) = (AtomicUsize::new(0), Barrier::new(8));
    threads(8, |_| {
        start.wait();
        let pin = c.get_or_load(KEY, Priority::Data, || {
            loads.fetch_add(1, Relaxed);
            // The load ends only when all the others wait for it.
            while c.stats().joins < 7 {
                std::thread::yield_now();
            }
            Ok(b"loaded".to_vec())
        });
        assert_eq!(&*pin.unwrap(), b"loaded");
    });
    assert_eq!(loads.into_inner(), 1);
    let stats = c.stats();
    assert_eq!((stats.misses, stats.joins, stats.inserts), (1, 7, 1));
}

#[test]
fn a_failed_load_fails_all_who_waited_for_it_and_nobody_later() {
    let c = cache(1 << 20, 0);
    let start = Barrier::new(4);
    threads(4, |_| {
        start.wait();
        let got = c.get_or_load(KEY, Priority::Data, || {
            while c.stats().joins < 3 {
                std::thread::yield_now();
            }
            Err::<Vec<u8>, _>(Error::corruption("bad block").with_offset(16384))
        });
        let error = got.unwrap_err();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::Corruption, Some(16384)));
    });
    assert!(c.get_or_load(KEY, Priority::Data, || Ok(vec![1])).is_ok());
}

#[test]
fn a_load_that_panics_leaves_nobody_waiting() {
    let c = cache(1 << 20, 0);
    std::thread::scope(|s| {
        let loader = s.spawn(|| {
            let _ = c.get_or_load::<Vec<u8>>(KEY, Priority::Data, || {
                while c.stats().joins < 2 {
                    std::thread::yield_now();
                }
                panic!("a bug in the caller");
            });
        });
        while c.stats().misses == 0 {
            std::thread::yield_now();
        }
        for _ in 0..2 {
            s.spawn(|| {
                let got = c.get_or_load(KEY, Priority::Data, || Ok(vec![]));
                assert_eq!(got.unwrap_err().kind(), ErrorKind::Closed);
            });
        }
        assert!(loader.join().is_err());
    });
    assert!(c.get_or_load(KEY, Priority::Data, || Ok(vec![1])).is_ok());
}

#[test]
fn contents_and_budget_hold_under_contention() {
    const CAPACITY: usize = 2 << 20;
    for shards in [1, 4] {
        let c = cache(CAPACITY, shards);
        let over = AtomicBool::new(false);
        let expected =
            |k: FrameKey| vec![(k.extent * 31 + u64::from(k.offset)) as u8; 500 + k.offset as usize % 7000];
        threads(8, |t| {
            let mut seed = t as u64;
            let mut held = Vec::new();
            for i in 0..6_000 {
                let r = next(&mut seed);
                // Mostly a small hot set, so that threads meet.
                let n = if r.is_multiple_of(4) { r >> 8 } else { (r >> 8) % 64 };
                let k = FrameKey::new(n % 16, (n / 16 % 256) as u32);
                match (r >> 32) % 100 {
                    0..40 => {
                        if let Some(good) = c.with(k, |b| b == expected(k)) {
                            assert!(good, "{k:?} has foreign bytes");
                        }
                    }
                    40..85 => {
                        let pin = c.get_or_load(k, Priority::Data, || Ok(expected(k))).unwrap();
                        assert_eq!(&*pin, expected(k));
                        if i % 5 == 0 {
                            held.push((k, pin));
                        }
                    }
                    85..93 => assert_eq!(&*c.insert(k, expected(k), Priority::Index), expected(k)),
                    93..98 => c.remove(k),
                    98 => c.remove_extent(k.extent),
                    _ => c.set_capacity(CAPACITY / 2 + (r >> 40) as usize % (CAPACITY / 2)),
                }
                if held.len() > 8 {
                    held.drain(..).for_each(|(k, pin)| assert_eq!(&*pin, expected(k)));
                }
                over.fetch_or(c.stats().used_bytes() > CAPACITY + CAPACITY / 20 + (64 << 10), Relaxed);
            }
        });
        assert!(!over.into_inner(), "over budget: {c:?}");
        let found = (0..16 * 256u64).filter(|n| c.contains(FrameKey::new(n % 16, (n / 16) as u32))).count();
        assert_eq!(found, c.stats().frames);
    }
}

#[test]
fn contents_and_budget_hold_while_parts_come_and_go_and_extents_move() {
    const CAPACITY: usize = 4 << 20;
    const EXTENTS: u64 = 16;
    let c = cache(CAPACITY, 4);
    let homes: Vec<AtomicUsize> = (0..EXTENTS).map(|_| AtomicUsize::new(0)).collect();
    let (over, live) = (AtomicBool::new(false), AtomicUsize::new(6));
    let expected =
        |k: FrameKey| vec![(k.extent * 31 + u64::from(k.offset)) as u8; 500 + k.offset as usize % 7000];
    threads(8, |t| {
        let mut seed = t as u64;
        if t >= 6 {
            // One opens and closes, one moves: as long as the others read.
            let mut open = Vec::new();
            while live.load(Relaxed) > 0 {
                let r = next(&mut seed);
                let extent = r % EXTENTS;
                match t {
                    6 if open.len() < 4 && !r.is_multiple_of(3) => open.extend(c.open_part()),
                    6 if !open.is_empty() => c.close_part(open.swap_remove(r as usize % open.len())),
                    7 => {
                        let to = (r >> 32) as u16 % 6;
                        let from = homes[extent as usize].swap(to.into(), Relaxed) as u16;
                        c.rehome(extent, from, to);
                    }
                    _ => {}
                }
                std::thread::yield_now();
            }
            return;
        }
        let mut held = Vec::new();
        for i in 0..6_000 {
            let r = next(&mut seed);
            let n = if r.is_multiple_of(4) { r >> 8 } else { (r >> 8) % 64 };
            let extent = n % EXTENTS;
            let part = homes[extent as usize].load(Relaxed) as u16;
            let k = FrameKey::new(extent, (n / 16 % 256) as u32).part(part);
            match (r >> 32) % 100 {
                0..40 => assert_ne!(c.with(k, |b| b == expected(k)), Some(false), "{k:?} has foreign bytes"),
                40..90 => {
                    let pin = c.get_or_load(k, Priority::Data, || Ok(expected(k))).unwrap();
                    assert_eq!(&*pin, expected(k));
                    if i % 5 == 0 {
                        held.push((k, pin));
                    }
                }
                90..98 => assert_eq!(&*c.insert(k, expected(k), Priority::Index), expected(k)),
                _ => c.remove_extent(extent),
            }
            if held.len() > 8 {
                held.drain(..).for_each(|(k, pin)| assert_eq!(&*pin, expected(k)));
            }
            over.fetch_or(c.stats().used_bytes() > CAPACITY + CAPACITY / 20 + (64 << 10), Relaxed);
        }
        live.fetch_sub(1, Relaxed);
    });
    assert!(!over.into_inner(), "over budget: {c:?}");
    let sum = |part: u16| c.part_stats(part).resident_bytes;
    assert_eq!((0..=256).map(sum).sum::<usize>(), c.stats().resident_bytes);
    (1..=256).for_each(|part| c.close_part(part));
    assert_eq!(sum(0), c.stats().resident_bytes, "all of it is in the common part");
    (0..EXTENTS).for_each(|extent| c.remove_extent(extent));
    assert_eq!((c.stats().frames, sum(0)), (0, 0));
}

#[test]
fn lookups_go_on_while_tables_grow() {
    let c = cache(64 << 20, 1);
    let key = |n: u64| FrameKey::new(n, 0);
    for n in 0..100 {
        c.insert(key(n), n.to_le_bytes(), Priority::Data);
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while !done.load(Relaxed) {
                    for n in 0..100 {
                        assert_eq!(c.with(key(n), |b| b == n.to_le_bytes()), Some(true), "{n} got lost");
                    }
                }
            });
        }
        for n in 100..50_000 {
            c.insert(key(n), n.to_le_bytes(), Priority::Data);
        }
        done.store(true, Relaxed);
    });
    assert_eq!(c.stats().frames, 50_000);
}

#[test]
fn heat_may_be_folded_while_it_is_recorded() {
    let heat = HeatSampler::new();
    let (samples, live) = (AtomicUsize::new(0), AtomicUsize::new(4));
    let start = Barrier::new(4);
    let fold = || {
        heat.fold(|extent, n| {
            assert!(extent < 4);
            samples.fetch_add(n as usize, Relaxed);
        })
    };
    threads(5, |t| {
        if t == 4 {
            while live.load(Relaxed) > 0 {
                fold();
                std::thread::yield_now();
            }
            return;
        }
        // All at once, so that each thread has a buffer of its own; and few enough samples that no buffer forgets any,
        // however late the fold comes.
        heat.touch(t as u64);
        start.wait();
        for _ in 1..8000 {
            heat.touch(t as u64);
        }
        live.fetch_sub(1, Relaxed);
    });
    fold();
    let n = samples.into_inner();
    assert!((900..1100).contains(&n), "{n} samples of 32000 accesses");
}
