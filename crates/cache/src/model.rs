//! Loom models: every interleaving of a few threads on one shard. The frames' and tables' witnesses make loom report a
//! read of freed memory; contents are compared as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use terrane_base::{Error, Result};

use crate::accounts::Accounts;
use crate::cache::{Cache, CacheOptions};
use crate::epoch::Domain;
use crate::frame::{Pin, Priority};
use crate::key::FrameKey;
use crate::shard::{Entered, Shard};

const A: FrameKey = FrameKey { extent: 1, offset: 0 };
const B: FrameKey = FrameKey { extent: 1, offset: 4096 };

struct World {
    shard: Shard,
    domain: Domain,
    accounts: Arc<Accounts>,
}

impl World {
    fn new() -> loom::sync::Arc<World> {
        let accounts = Arc::new(Accounts::new(1 << 30));
        let world = World { shard: Shard::new(1, &accounts), domain: Domain::new(), accounts };
        loom::sync::Arc::new(world)
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
        sweep.victims.into_iter().for_each(|frame| guard.retire(frame.into()));
    }

    fn replace_table(&self) {
        let guard = self.domain.pin();
        guard.retire(self.shard.compact(&guard, &self.accounts).into());
    }

    fn remove(&self, key: FrameKey) {
        let guard = self.domain.pin();
        if let Some(frame) = self.shard.remove(key, key.hash(), &guard, &self.accounts) {
            guard.retire(frame.into());
        }
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
