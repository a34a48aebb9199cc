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
use crate::swizzle::{Array, Home, PARENT, Slots};

const A: FrameKey = FrameKey { extent: 1, offset: 0 };
const B: FrameKey = FrameKey { extent: 1, offset: 4096 };

/// The parent of `A` and `B`.
const P: FrameKey = FrameKey { extent: 1, offset: 8192 };

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
        let (shard, home) = (Shard::new(1, &accounts), Slots::new(0).home);
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
        let (entered, table) = self.shard.enter(&pin, key.hash(), &guard, &self.accounts);
        assert!(matches!(entered, Some(Entered::Now)) && table.is_none());
    }

    fn evict_one(&self) {
        let guard = self.domain.pin();
        let first = AtomicUsize::new(0);
        let sweep = self.shard.sweep(&self.accounts, &guard, &|_| first.fetch_add(1, Ordering::Relaxed) > 0);
        sweep.victims.into_iter().for_each(|gone| retire(&guard, gone));
    }

    fn replace_table(&self) {
        let guard = self.domain.pin();
        guard.retire(self.shard.compact(&guard, &self.accounts).into());
    }

    fn remove(&self, key: FrameKey) {
        let guard = self.domain.pin();
        if let Some(gone) = self.shard.remove(key, key.hash(), &guard, &self.accounts) {
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
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
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
