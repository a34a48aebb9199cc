//! Loom models: every interleaving of a few threads on one shard. The frames' and tables' witnesses make loom report a
//! read of freed memory; contents are compared as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use terrane_base::{Error, Result};

use crate::accounts::Accounts;
use crate::cache::{Cache, CacheOptions};
use crate::epoch::{Domain, Guard};
use crate::frame::{Pin, Priority};
use crate::key::FrameKey;
use crate::shard::{Entered, Gone, Shard};
use crate::share::{Share, WHOLE};
use crate::swizzle::{Array, Home, PARENT, Slots};

const A: FrameKey = FrameKey::new(1, 0);
const B: FrameKey = FrameKey::new(1, 4096);

/// The parent of `A` and `B`.
const P: FrameKey = FrameKey::new(1, 8192);

struct World {
    shard: Shard,
    domain: Domain,
    accounts: Arc<Accounts>,
    home: Arc<Home<(), ()>>,
}

fn retire(guard: &Guard<'_>, gone: Gone) {
    guard.retire(gone.frame.into());
    if let Some(slots) = gone.slots {
        guard.retire(slots.into());
    }
}

impl World {
    fn new() -> loom::sync::Arc<World> {
        let accounts = Arc::new(Accounts::new(1 << 30));
        let (shard, home) =
            (Shard::new(1, Arc::new(Share::new(accounts.clone(), WHOLE))), Slots::new(0).home);
        loom::sync::Arc::new(World { shard, domain: Domain::on(std::sync::Arc::default()), accounts, home })
    }

    /// One whose parent is here and swizzled, and `A` here.
    fn with_parent() -> loom::sync::Arc<World> {
        let world = World::new();
        world.enter(P);
        world.swizzle_parent();
        world.enter(A);
        world
    }

    fn enter(&self, key: FrameKey) {
        // The stand-in's guards synchronise. The frame is made after, so that only its publication orders it.
        let guard = self.domain.pin();
        let pin = Pin::new(key, Priority::Data, &key.offset.to_le_bytes(), None);
        let (entered, table) = self.shard.enter(&pin, key.hash(), &guard, None);
        assert!(matches!(entered, Entered::Now) && table.is_none());
    }

    fn evict_one(&self) {
        let guard = self.domain.pin();
        let first = AtomicUsize::new(0);
        let sweep = self.shard.sweep(&guard, &|_| first.fetch_add(1, Ordering::Relaxed) > 0);
        sweep.victims.into_iter().for_each(|gone| retire(&guard, gone));
    }

    fn replace_table(&self) {
        let guard = self.domain.pin();
        guard.retire(self.shard.compact(&guard).into());
    }

    fn remove(&self, key: FrameKey) {
        let guard = self.domain.pin();
        if let Some(gone) = self.shard.remove(key, key.hash(), &guard) {
            retire(&guard, gone);
        }
    }

    fn swizzle_parent(&self) {
        let guard = self.domain.pin();
        let bytes = Array::<(), ()>::bytes(2);
        self.accounts.rebook(0, bytes);
        let array = Box::new(Array::new((), [(), ()].into_iter(), bytes, self.accounts.clone()));
        let (at, home) = ((P, P.hash()), &self.home);
        let fill = |frame| home.swizzle_parent(frame, array);
        let detached = self.shard.swizzle(at, &guard, (home.clone(), PARENT), fill);
        detached.into_iter().for_each(|slots| guard.retire(slots.into()));
    }

    fn swizzle_child(&self, number: u32, key: FrameKey, guard: &Guard<'_>) {
        let home = &self.home;
        let fill = |frame| home.swizzle_child(number, frame, guard);
        let detached = self.shard.swizzle((key, key.hash()), guard, (home.clone(), number), fill);
        assert!(detached.is_none());
    }

    /// Reads a child by its slot if that is filled, or else by search, and fills it. Says whether it was there.
    fn read_child(&self, number: u32, key: FrameKey) -> bool {
        let guard = self.domain.pin();
        // SAFETY: the guard is of the domain in which this home's frames and arrays are retired.
        let children = unsafe { self.home.children(&guard) };
        let by_slot = children.and_then(|children| children.frame(number));
        let Some(found) = by_slot.or_else(|| self.shard.find(key, key.hash(), &guard)) else { return false };
        assert_eq!(found.key(), key);
        if by_slot.is_none() {
            self.swizzle_child(number, key, &guard);
        }
        assert_eq!(found.bytes(), key.offset.to_le_bytes());
        true
    }

    /// Reads under a guard, then through a pin that outlives it.
    fn read(&self, key: FrameKey) {
        let guard = self.domain.pin();
        let Some(found) = self.shard.find(key, key.hash(), &guard) else { return };
        found.touch();
        assert_eq!(found.bytes(), key.offset.to_le_bytes());
        let pin = found.pin();
        drop(guard);
        assert_eq!(&*pin, key.offset.to_le_bytes());
    }
}

#[test]
fn model_a_reader_never_sees_a_freed_or_foreign_frame_while_its_slot_is_reused() {
    explore(|| {
        let world = World::new();
        world.enter(A);
        let w = world.clone();
        let reader = loom::thread::spawn(move || w.read(A));
        world.evict_one();
        world.enter(B);
        reader.join().unwrap();
        world.read(B);
    });
}

#[test]
fn model_a_reader_in_a_replaced_table_is_safe_from_what_leaves_the_new_one() {
    explore(|| {
        let world = World::new();
        world.enter(A);
        let w = world.clone();
        let reader = loom::thread::spawn(move || w.read(A));
        world.replace_table();
        world.remove(A);
        reader.join().unwrap();
    });
}

#[test]
fn model_an_entering_frame_is_seen_whole_or_not_at_all() {
    explore(|| {
        let world = World::new();
        let w = world.clone();
        let reader = loom::thread::spawn(move || w.read(B));
        world.enter(B);
        reader.join().unwrap();
    });
}

#[test]
fn model_a_child_that_is_read_by_its_slot_is_never_freed_or_foreign() {
    explore(|| {
        let world = World::with_parent();
        assert!(world.read_child(0, A));
        let w = world.clone();
        let reader = loom::thread::spawn(move || w.read_child(0, A));
        world.remove(A);
        world.enter(A);
        reader.join().unwrap();
        assert!(world.read_child(0, A));
    });
}

#[test]
fn model_a_child_that_is_swizzled_while_it_leaves_leaves_no_pointer_behind() {
    explore(|| {
        let world = World::with_parent();
        let w = world.clone();
        let reader = loom::thread::spawn(move || w.read_child(0, A));
        world.remove(A);
        assert!(!world.read_child(0, A));
        reader.join().unwrap();
        assert!(!world.read_child(0, A));
    });
}

#[test]
fn model_children_are_unswizzled_with_their_parent_and_swizzled_again_in_the_next_array() {
    explore(|| {
        let world = World::with_parent();
        let w = world.clone();
        let reader = loom::thread::spawn(move || w.read_child(0, A));
        world.remove(P);
        world.enter(P);
        world.swizzle_parent();
        reader.join().unwrap();
        assert!(world.read_child(0, A));
        world.remove(A);
        assert!(!world.read_child(0, A), "the new array's slot is emptied too");
    });
}

#[test]
fn model_a_child_and_its_parent_leave_at_the_same_time() {
    explore(|| {
        let world = World::with_parent();
        assert!(world.read_child(0, A));
        let (w, v) = (world.clone(), world.clone());
        let reader = loom::thread::spawn(move || w.read_child(0, A));
        let other = loom::thread::spawn(move || v.remove(A));
        world.remove(P);
        reader.join().unwrap();
        other.join().unwrap();
        world.enter(P);
        world.swizzle_parent();
        assert!(!world.read_child(0, A));
    });
}

/// Explores every interleaving with up to three preemptions, which is where such protocols break.
fn explore(model: impl Fn() + Sync + Send + 'static) {
    terrane_base::sync::bounded(3).check(model);
}

fn load_twice(
    outcome: fn() -> Result<Vec<u8>>,
    check: fn(Result<Pin>),
    loads: std::ops::RangeInclusive<usize>,
) {
    explore(move || {
        let cache = loom::sync::Arc::new(Cache::new(CacheOptions { capacity_bytes: 1 << 20, shards: 1 }));
        let loaded = Arc::new(AtomicUsize::new(0));
        let miss = move |cache: &Cache, loaded: &AtomicUsize| {
            check(cache.get_or_load(A, Priority::Data, || {
                loaded.fetch_add(1, Ordering::Relaxed);
                outcome()
            }));
        };
        let (c, l) = (cache.clone(), loaded.clone());
        let other = loom::thread::spawn(move || miss(&c, &l));
        miss(&cache, &loaded);
        other.join().unwrap();
        assert!(loads.contains(&loaded.load(Ordering::Relaxed)));
    });
}

#[test]
fn model_two_misses_of_one_key_load_once() {
    load_twice(|| Ok(vec![7]), |pin| assert_eq!(&*pin.unwrap(), [7]), 1..=1);
}

#[test]
fn model_a_failed_load_reaches_whoever_waits_and_blocks_nobody() {
    load_twice(|| Err(Error::corruption("bad block")), |pin| assert!(pin.is_err()), 1..=2);
}

/// A cache with a part beside the common one, its number.
fn with_part() -> (loom::sync::Arc<Cache>, u16) {
    let cache = Cache::new(CacheOptions { capacity_bytes: 1 << 20, shards: 1 });
    let part = cache.open_part().unwrap();
    (loom::sync::Arc::new(cache), part)
}

fn put(cache: &Cache, key: FrameKey) {
    drop(cache.insert(key, key.offset.to_le_bytes(), Priority::Data));
}

/// Reads a frame in `part` by its slot, or by search, and has the slot lead to it then.
fn read_parent(cache: &Cache, slots: &Slots<(), ()>, part: u16) {
    let hold = cache.hold();
    let key = P.part(part);
    if let Some((seen, _)) = hold.parent(slots) {
        assert_eq!(&*seen, P.offset.to_le_bytes());
    } else if let Some(seen) = hold.find(key) {
        hold.swizzle_parent(slots, key, 1, || Some(((), std::iter::once(()))));
        assert_eq!(&*seen, P.offset.to_le_bytes());
    }
}

#[test]
fn model_a_frame_that_moves_is_found_whole_or_missed_and_leaves_like_others() {
    explore(|| {
        let (cache, part) = with_part();
        put(&cache, A.part(part));
        let c = cache.clone();
        let reader = loom::thread::spawn(move || {
            let pin = c.get(A.part(part)).or_else(|| c.get(A));
            pin.inspect(|pin| assert_eq!(&**pin, A.offset.to_le_bytes()));
        });
        cache.rehome(A.extent, part, 0);
        cache.remove(A);
        reader.join().unwrap();
        assert_eq!((cache.stats().frames, cache.stats().resident_bytes), (0, 0));
    });
}

#[test]
fn model_a_frame_that_is_swizzled_while_it_moves_leaves_no_pointer_behind() {
    explore(|| {
        let (cache, part) = with_part();
        let slots = loom::sync::Arc::new(cache.slots());
        put(&cache, P.part(part));
        // What the books of the other part need for an entry is there already.
        put(&cache, A);
        let booked = cache.stats().bookkeeping_bytes;
        let (c, s) = (cache.clone(), slots.clone());
        let reader = loom::thread::spawn(move || read_parent(&c, &s, part));
        cache.rehome(P.extent, part, 0);
        read_parent(&cache, &slots, 0);
        reader.join().unwrap();
        cache.remove_extent(P.extent);
        assert!(cache.hold().parent(&slots).is_none());
        assert_eq!(cache.stats().bookkeeping_bytes, booked);
    });
}

#[test]
fn model_two_frames_of_one_slot_in_two_parts_share_an_array_and_leave_nothing() {
    explore(|| {
        let (cache, part) = with_part();
        let slots = loom::sync::Arc::new(cache.slots());
        put(&cache, P);
        put(&cache, P.part(part));
        let booked = cache.stats().bookkeeping_bytes;
        let (c, s) = (cache.clone(), slots.clone());
        let other = loom::thread::spawn(move || {
            read_parent(&c, &s, part);
            c.remove(P.part(part));
        });
        read_parent(&cache, &slots, 0);
        other.join().unwrap();
        cache.remove(P);
        assert!(cache.hold().parent(&slots).is_none());
        assert_eq!(cache.stats().bookkeeping_bytes, booked);
    });
}

#[test]
fn model_what_enters_a_part_that_closes_is_in_the_common_one() {
    explore(|| {
        let (cache, part) = with_part();
        let c = cache.clone();
        let other = loom::thread::spawn(move || put(&c, A.part(part)));
        cache.close_part(part);
        other.join().unwrap();
        assert_eq!(cache.part_stats(part).resident_bytes, 0);
        assert!(cache.contains(A) && cache.contains(A.part(part)));
        assert_eq!(cache.stats().frames, 1);
    });
}
