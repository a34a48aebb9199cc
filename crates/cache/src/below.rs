//! A store under the cache, larger than it and slower, for what has to leave.
//!
//! The cache offers it each frame that leaves for want of room, and asks it before a miss is loaded. A block of records that is found there
//! for the first time stays there alone, and is read as a private frame: were it to enter, another block would have to leave for it, to be
//! copied to where this one still takes its room. One that is asked for again enters, and once it has, each time that it had to leave again.
//! Who writes a block in the place of one that lies there may put it there too ([`Cache::keep_below`]): readers that came to memory for the old
//! one would have to go to the device for the new one.
//! What the store has may then be a copy of what the cache has: frames never go stale, so nobody has to keep the two apart.

use std::fmt;
use std::sync::Arc;

use terrane_base::Result;

use crate::cache::Cache;
use crate::frame::{Pin, Priority};
use crate::key::FrameKey;

/// See the module's head. Called outside of all locks of the cache, by readers on their way under an epoch's guard, and by
/// whoever writes blocks without one: it must not block on I/O, and must not call into the cache.
pub trait Below: fmt::Debug + Send + Sync {
    /// Takes a copy of a frame, or leaves it.
    fn keep(&self, key: FrameKey, bytes: &[u8]);

    /// A frame, as it was, if it has it.
    fn find(&self, key: FrameKey) -> Option<Lying>;

    /// As [`Below::keep`], of a frame that was just written, and never in the cache.
    fn keep_written(&self, key: FrameKey, bytes: &[u8]);

    /// How many bytes of these it would have room for, about, without pushing out most of what it has.
    fn room_for_written(&self) -> u64;

    /// Whether readers use a frame that it has: it came out of the cache, or was found here. Does not count as finding it.
    fn is_used(&self, key: FrameKey) -> bool;

    /// An extent is gone: nobody will ask for its frames.
    fn forget_extent(&self, extent: u64);
}

/// A frame as the store below has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lying {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Whether it was found before, since it was kept.
    pub again: bool,
}

impl Cache {
    /// Sets the store under the cache, once; a second one is not taken.
    pub fn set_below(&self, below: Arc<dyn Below>) {
        // Who comes second changes nothing: that is the contract.
        let _second = self.below.set(below);
    }

    /// Whether there is a store under the cache.
    pub fn has_below(&self) -> bool {
        self.below.get().is_some()
    }

    /// Whether the store under the cache has the frame of `key`, for readers who use it. Does not count as an access.
    pub fn is_used_below(&self, key: FrameKey) -> bool {
        self.below.get().is_some_and(|below| below.is_used(key))
    }

    /// Offers a frame that was just written to the store under the cache, if there is one.
    pub fn keep_below(&self, key: FrameKey, bytes: &[u8]) {
        if let Some(below) = self.below.get() {
            below.keep_written(key, bytes);
        }
    }

    /// For how many bytes of these there is room there: see [`Below::room_for_written`].
    pub fn room_below(&self) -> u64 {
        self.below.get().map_or(0, |below| below.room_for_written())
    }

    /// The frame of `key`, if the store under the cache has it; unless it is a block of records that was not found there before, it enters
    /// the cache. For those who load by themselves what [`Cache::get`] has not.
    pub fn recall(&self, key: FrameKey, priority: Priority) -> Option<Pin> {
        let Lying { bytes, again } = self.below.get()?.find(key)?;
        self.recalled.add(1);
        Some(match priority {
            Priority::Data if !again => Pin::new(key, priority, &bytes, None),
            _ => self.insert(key, bytes, priority),
        })
    }

    /// What is to be loaded, from the store below or else by `load`.
    pub(crate) fn fetch<B: AsRef<[u8]>>(
        &self,
        key: FrameKey,
        priority: Priority,
        load: impl FnOnce() -> Result<B>,
    ) -> Result<Pin> {
        if let Some(pin) = self.recall(key, priority) {
            return Ok(pin);
        }
        self.misses.add(1);
        load().map(|bytes| self.insert(key, bytes, priority))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::{HashMap, HashSet};
    use std::sync::Mutex;

    use terrane_base::{Error, ErrorKind};

    use super::*;
    use crate::cache::CacheOptions;

    #[derive(Debug, Default)]
    struct Shelf(Mutex<HashMap<FrameKey, Lying>>);

    impl Shelf {
        fn keys(&self) -> HashSet<FrameKey> {
            self.0.lock().unwrap().keys().copied().collect()
        }
    }

    impl Below for Shelf {
        fn keep(&self, key: FrameKey, bytes: &[u8]) {
            self.0.lock().unwrap().entry(key).or_insert(Lying { bytes: bytes.to_vec(), again: false });
        }

        fn find(&self, key: FrameKey) -> Option<Lying> {
            let mut lying = self.0.lock().unwrap();
            let found = lying.get_mut(&key)?;
            let before = found.clone();
            found.again = true;
            Some(before)
        }

        fn keep_written(&self, key: FrameKey, bytes: &[u8]) {
            self.keep(key, bytes);
        }

        fn room_for_written(&self) -> u64 {
            1 << 20
        }

        fn is_used(&self, key: FrameKey) -> bool {
            self.0.lock().unwrap().get(&key).is_some_and(|lying| lying.again)
        }

        fn forget_extent(&self, extent: u64) {
            self.0.lock().unwrap().retain(|key, _| key.extent != extent);
        }
    }

    #[test]
    fn what_leaves_is_found_below_and_not_loaded_again() {
        let cache = Cache::new(CacheOptions { capacity_bytes: 64 << 10, shards: 1 });
        let shelf = Arc::new(Shelf::default());
        cache.set_below(shelf.clone());
        let content = |n: u32| vec![n as u8; 4000];
        let mut loads = 0;
        for round in 0..3 {
            for n in 0..100u32 {
                let pin = cache.get_or_load(FrameKey::new(7, n), Priority::Data, || {
                    loads += 1;
                    Ok(content(n))
                });
                assert_eq!(*pin.unwrap(), content(n)[..], "{n} in round {round}");
            }
        }
        assert_eq!(loads, 100, "each was loaded once");
        let stats = cache.stats();
        assert_eq!(stats.misses, 100);
        assert_eq!(stats.recalled + stats.hits, 200);
        assert!(stats.recalled > 100);
        cache.remove_extent(7);
        assert!(shelf.0.lock().unwrap().is_empty());
        let failed = || Err::<Vec<u8>, _>(Error::new(ErrorKind::Io, "gone"));
        assert!(cache.get_or_load(FrameKey::new(7, 1), Priority::Data, failed).is_err());
        assert!(cache.recall(FrameKey::new(7, 1), Priority::Data).is_none());
    }

    #[test]
    fn what_is_put_below_is_found_there_and_took_no_room() {
        let cache = Cache::new(CacheOptions { capacity_bytes: 64 << 10, shards: 1 });
        let (key, empty) = (FrameKey::new(7, 1), cache.stats().used_bytes());
        // Nobody is there to take it.
        cache.keep_below(key, &[1; 4000]);
        assert!(!cache.has_below() && cache.room_below() == 0 && !cache.is_used_below(key));
        cache.set_below(Arc::new(Shelf::default()));
        cache.keep_below(key, &[1; 4000]);
        assert!(cache.has_below() && cache.room_below() > 0 && !cache.is_used_below(key));
        assert!(!cache.contains(key) && cache.stats().used_bytes() == empty);
        let loaded = || Err::<Vec<u8>, _>(Error::new(ErrorKind::Io, "it was to be found below"));
        let pin = cache.get_or_load(key, Priority::Data, loaded).unwrap();
        assert_eq!(*pin, [1; 4000][..]);
        assert!(
            !cache.contains(key) && cache.is_used_below(key),
            "the first time: `is_used_below` did not count"
        );
    }

    #[test]
    fn a_block_that_is_found_below_enters_when_it_is_asked_for_again() {
        let cache = Cache::new(CacheOptions { capacity_bytes: 64 << 10, shards: 1 });
        let shelf = Arc::new(Shelf::default());
        cache.set_below(shelf.clone());
        let get = |n: u32, priority| {
            let pin = cache.get_or_load(FrameKey::new(7, n), priority, || Ok(vec![n as u8; 4000])).unwrap();
            assert_eq!(*pin, vec![n as u8; 4000][..]);
        };
        (0..100).for_each(|n| get(n, Priority::Data));
        let evicted = shelf.keys();
        let absent: Vec<u32> = (0..100).filter(|n| !cache.contains(FrameKey::new(7, *n))).collect();
        assert!(absent.len() > 80);
        absent[2..].iter().for_each(|n| get(*n, Priority::Data));
        assert!(absent.iter().all(|n| !cache.contains(FrameKey::new(7, *n))));
        assert_eq!(shelf.keys(), evicted, "nothing had to leave");
        get(absent[2], Priority::Data);
        assert!(cache.contains(FrameKey::new(7, absent[2])), "found a second time");
        for (n, priority) in [(absent[0], Priority::Index), (absent[1], Priority::Filter)] {
            get(n, priority);
            assert!(cache.contains(FrameKey::new(7, n)), "the first time: no block of records");
        }
    }
}
