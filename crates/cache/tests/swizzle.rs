//! What the cache promises of direct pointers to its frames.
#![cfg(not(loom))]
#![allow(clippy::disallowed_methods)]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use terrane_cache::{Cache, CacheOptions, FrameKey, Hold, Priority, Slots, Swizzling};

const PARENT: FrameKey = FrameKey::new(7, u32::MAX);

fn cache(capacity_bytes: usize) -> Cache {
    Cache::new(CacheOptions::for_processors(capacity_bytes, 2))
}

fn child(extent: u64, number: u32) -> FrameKey {
    FrameKey::new(extent, number * 4096)
}

/// What a frame holds: its key, over and over.
fn content(key: FrameKey, len: usize) -> Vec<u8> {
    let word = (key.extent << 32 | u64::from(key.offset)).to_le_bytes();
    word.iter().copied().cycle().take(len).collect()
}

fn insert(c: &Cache, key: FrameKey, len: usize) {
    drop(c.insert(key, content(key, len), Priority::Data));
}

/// The extent's parent in the cache, with its slots, and what is known of three children.
fn extent(c: &Cache) -> Slots<u8, u32> {
    insert(c, PARENT, 100);
    let slots = c.slots();
    c.hold().swizzle_parent(&slots, PARENT, 3, || Some((9, [10, 11, 12].into_iter())));
    slots
}

/// Whether slot `number` leads to its frame.
fn leads(hold: &Hold<'_>, slots: &Slots<u8, u32>, number: u32) -> bool {
    let Some((_, children)) = hold.parent(slots) else { return false };
    hold.child(children, number).is_some_and(|seen| seen.bytes() == content(child(7, number), 4096))
}

#[test]
fn a_slot_leads_to_a_frame_until_that_leaves() {
    let c = cache(4 << 20);
    let slots = extent(&c);
    let hold = c.hold();
    let (parent, children) = hold.parent(&slots).unwrap();
    assert_eq!(&*parent, content(PARENT, 100));
    assert_eq!((children.len(), children.known(2), children.known(3)), (3, Some(&12), None));
    assert_eq!(*children.parent(), 9);
    hold.swizzle_child(&slots, 1, child(7, 1));
    assert!(!leads(&hold, &slots, 1), "what is not in the cache is not swizzled");
    insert(&c, child(7, 1), 4096);
    assert!(!leads(&hold, &slots, 1));
    hold.swizzle_child(&slots, 1, child(7, 1));
    assert!(leads(&hold, &slots, 1) && !leads(&hold, &slots, 0));
    let seen = hold.child(children, 1).unwrap();
    c.remove(child(7, 1));
    assert!(!leads(&hold, &slots, 1));
    assert_eq!(seen.bytes(), content(child(7, 1), 4096), "what was seen stays as long as the hold");
    insert(&c, child(7, 1), 4096);
    hold.swizzle_child(&slots, 1, child(7, 1));
    assert!(leads(&hold, &slots, 1));
}

#[test]
fn with_their_parent_all_children_are_unswizzled() {
    let c = cache(4 << 20);
    let slots = extent(&c);
    (0..3).for_each(|n| insert(&c, child(7, n), 4096));
    (0..3).for_each(|n| c.hold().swizzle_child(&slots, n, child(7, n)));
    assert!((0..3).all(|n| leads(&c.hold(), &slots, n)));
    c.remove(PARENT);
    let hold = c.hold();
    assert!(hold.parent(&slots).is_none());
    assert!(hold.find(child(7, 2)).is_some(), "they stay");
    hold.swizzle_child(&slots, 2, child(7, 2));
    insert(&c, PARENT, 100);
    hold.swizzle_parent(&slots, PARENT, 3, || Some((9, [20, 21, 22].into_iter())));
    assert!((0..3).all(|n| !leads(&hold, &slots, n)));
    hold.swizzle_child(&slots, 2, child(7, 2));
    assert!(leads(&hold, &slots, 2));
    drop(hold);
    c.remove_extent(7);
    assert!(c.hold().parent(&slots).is_none());
}

#[test]
fn a_section_has_a_slot_of_its_own() {
    let c = cache(4 << 20);
    let slots = extent(&c);
    let section = FrameKey::new(7, 77);
    c.hold().swizzle_section(&slots, section);
    assert!(c.hold().section(&slots).is_none());
    insert(&c, section, 50);
    c.hold().swizzle_section(&slots, section);
    assert_eq!(&*c.hold().section(&slots).unwrap(), content(section, 50));
    c.remove(PARENT);
    assert!(c.hold().section(&slots).is_some());
    c.remove(section);
    assert!(c.hold().section(&slots).is_none());
}

#[test]
fn slots_of_another_cache_lead_nowhere() {
    let (c, other) = (cache(4 << 20), cache(4 << 20));
    let slots = extent(&c);
    insert(&other, PARENT, 100);
    let hold = other.hold();
    assert!(hold.parent(&slots).is_none() && hold.section(&slots).is_none());
    hold.swizzle_parent(&slots, PARENT, 1, || -> Option<(u8, std::vec::IntoIter<u32>)> { unreachable!() });
    assert!(c.hold().parent(&slots).is_some());
}

#[test]
fn a_cache_swizzles_no_more_than_it_is_told() {
    let c = cache(4 << 20).with_swizzling(Swizzling::Nothing);
    assert!(c.hold().parent(&extent(&c)).is_none());
    let c = cache(4 << 20).with_swizzling(Swizzling::Parents);
    let slots = extent(&c);
    insert(&c, child(7, 1), 4096);
    c.hold().swizzle_child(&slots, 1, child(7, 1));
    assert!(c.hold().parent(&slots).is_some() && !leads(&c.hold(), &slots, 1));
}

#[test]
fn the_last_slot_that_was_filled_is_the_one_that_is_emptied() {
    let c = cache(4 << 20);
    let slots = extent(&c);
    insert(&c, child(7, 0), 4096);
    c.hold().swizzle_child(&slots, 0, child(7, 0));
    c.hold().swizzle_child(&slots, 2, child(7, 0));
    let hold = c.hold();
    let (_, children) = hold.parent(&slots).unwrap();
    assert!(hold.child(children, 0).is_none(), "one frame has one slot");
    assert!(hold.child(children, 2).is_some());
}

#[test]
fn arrays_are_paid_for_and_given_back() {
    let c = cache(4 << 20);
    let before = c.stats().bookkeeping_bytes;
    let many: Vec<Slots<u8, u32>> = (0..50)
        .map(|extent| {
            let key = FrameKey::new(extent, 1);
            insert(&c, key, 100);
            let slots = c.slots();
            c.hold()
                .swizzle_parent(&slots, key, 100, || Some((9, (0..100u32).collect::<Vec<_>>().into_iter())));
            slots
        })
        .collect();
    assert!(c.stats().bookkeeping_bytes >= before + 50 * 100 * 16);
    let with_arrays = c.stats().bookkeeping_bytes;
    drop(many);
    (0..50).for_each(|extent| c.remove_extent(extent));
    // Has what waits for readers freed.
    c.set_capacity(3 << 20);
    assert!(c.stats().bookkeeping_bytes + 50 * 100 * 16 <= with_arrays);
    let full = cache(0);
    insert(&full, PARENT, 10);
    let slots = full.slots();
    full.hold().swizzle_parent(&slots, PARENT, 1, || Some((9u8, [1u32].into_iter())));
    assert!(full.hold().parent(&slots).is_none(), "where there is no room there are no slots");
}

fn next(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (*seed ^ (*seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 31)
}

/// Thirty-two readers and removers over twenty times as much as there is room for.
fn contend(extents: u64) {
    const CHILDREN: u32 = 64;
    const THREADS: u64 = 32;
    const ROUNDS: u64 = if cfg!(debug_assertions) { 1000 } else { 4000 };
    let c = cache((extents * u64::from(CHILDREN) * 4096 / 20) as usize);
    let slots: Vec<Slots<u8, u32>> = (0..extents).map(|_| c.slots()).collect();
    let parent = |extent| FrameKey::new(extent, u32::MAX);
    let (by_slot, most) = (AtomicU64::new(0), AtomicUsize::new(0));
    std::thread::scope(|s| {
        for thread in 0..THREADS {
            let (c, slots, by_slot, most) = (&c, &slots, &by_slot, &most);
            s.spawn(move || {
                let mut seed = thread;
                for round in 0..ROUNDS {
                    let x = next(&mut seed);
                    // Half of the reads are of a few.
                    let (extent, number) = match x & 1 {
                        0 => (x >> 8 & 1, (x >> 32) as u32 % 8),
                        _ => ((x >> 8) % extents, (x >> 32) as u32 % CHILDREN),
                    };
                    let (own, key) = (&slots[extent as usize], child(extent, number));
                    if c.hold().parent(own).is_none() {
                        let load = || Ok(content(parent(extent), 2000));
                        drop(c.get_or_load(parent(extent), Priority::Index, load).unwrap());
                        c.hold().swizzle_parent(own, parent(extent), CHILDREN as usize, || {
                            Some((9, 0..CHILDREN))
                        });
                    }
                    let hold = c.hold();
                    let seen = hold.parent(own).and_then(|(seen, children)| {
                        assert_eq!(seen.bytes(), content(parent(extent), 2000));
                        assert_eq!(children.known(number), Some(&number));
                        hold.child(children, number)
                    });
                    match seen {
                        Some(seen) => {
                            by_slot.fetch_add(1, Relaxed);
                            assert_eq!(seen.bytes(), content(key, 4096));
                        }
                        None => {
                            drop(hold);
                            let pin = c.get_or_load(key, Priority::Data, || Ok(content(key, 4096))).unwrap();
                            assert_eq!(&*pin, content(key, 4096));
                            c.hold().swizzle_child(own, number, key);
                        }
                    }
                    match round % 500 {
                        100 => c.remove(parent(extent)),
                        200 => c.remove(key),
                        300 => c.remove_extent(extent),
                        _ => {}
                    }
                    most.fetch_max(c.stats().used_bytes(), Relaxed);
                }
            });
        }
    });
    let stats = c.stats();
    assert!(by_slot.into_inner() > THREADS * ROUNDS / 8, "{stats:?}");
    let most = most.into_inner();
    assert!(most <= stats.capacity_bytes + stats.capacity_bytes / 20, "{most} bytes: {stats:?}");
    assert!(stats.free_bytes <= stats.capacity_bytes / 2 + (256 << 10), "{stats:?}");
    // Once all has left nothing is held but what threads that ended did not hand over, which is bounded and goes with the cache.
    (0..extents).for_each(|extent| c.remove_extent(extent));
    drop(slots);
    let stats = c.stats();
    assert_eq!((stats.frames, stats.resident_bytes), (0, 0), "{stats:?}");
    assert!(stats.awaiting_bytes <= (stats.capacity_bytes / 20).max(128 << 10), "{stats:?}");
}

#[test]
fn what_a_slot_leads_to_is_right_and_memory_is_bounded_under_contention() {
    contend(40);
}

#[test]
fn so_it_is_where_frames_lie_in_chunks() {
    contend(640);
}
