//! What persistent memory has over as a cache: blocks that had to leave the block cache lie in zones that no commit needs, and
//! blocks that were written in the place of such, or of records that were in that memory.
//!
//! Blocks are put one behind the other into zones that are lent; when there is no further zone, the oldest one is emptied and
//! used again. When commits need zones they get the oldest ones back, so how the memory is divided follows the load: a database
//! that is mostly read has nearly all of it for blocks (but for a zone of each subtable that was written to, which stays until
//! writers are short of them), one that is written to a quarter or none. Nothing of it survives a process, and nothing needs to.
//!
//! # Concurrency
//! The zone that is being filled and the order of the others are under one mutex, held to find a place or to let a zone go, not
//! while blocks are copied; it is taken by readers that have missed and had to make room, who come from a device or from here,
//! and by flushes and merges. Places are under one mutex for each sixteenth of the extents. One thread at a time finds a further
//! zone; readers that need one meanwhile keep nothing, flushes and merges wait for it. Whoever copies a block holds a counted
//! reference to its zone, so a zone that is let go is used again, or given back, only behind its last reader.
//!
//! # Damage
//! A block has a checksum here; one that does not match is counted, let go of, and read from where it came.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use terrane_base::metrics::Counter;
use terrane_cache::{Below, FrameKey, Lying};
use terrane_chainlog::{LentZone, Space};
use terrane_format::checksum;

/// Mutexes of places.
const SHARDS: usize = 16;
/// Ordinary memory that a block takes: its place in a map that is half full at times, and its key.
const BLOCK_BYTES: usize = 100;
/// Frames that are smaller are not worth that.
const LEAST: usize = 256;
/// Of how many zones one is left free by what was just written: commits take them first, and have to ask for others back if none is left. What
/// readers evict takes more of them.
const SPARED_OF: u64 = 4;
/// Zones that one reader gives back at most where what is known of their blocks is too much.
const SURPLUS: usize = 4;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Shelf {
    space: Arc<Space>,
    zones: Mutex<Zones>,
    /// Whoever has it finds a further zone.
    extending: Mutex<()>,
    /// Of each extent the blocks that are here, by offset.
    places: [Mutex<HashMap<u64, HashMap<u32, Place>>>; SHARDS],
    /// Bytes of the zones that are lent.
    bytes: AtomicU64,
    /// Blocks that were put into these, and how many are the most: each takes ordinary memory.
    blocks: AtomicUsize,
    most_blocks: usize,
    found: Counter,
    damaged: Counter,
}

/// Zones by age.
#[derive(Debug, Default)]
struct Zones {
    /// The last one is being filled.
    order: VecDeque<Arc<Zone>>,
    /// Bytes of the last one that are given out.
    filled: usize,
    closed: bool,
}

#[derive(Debug)]
struct Zone {
    memory: LentZone,
    /// What was put there; some may be gone. Nothing once it is emptied.
    keys: Mutex<Option<Vec<FrameKey>>>,
}

/// Where a block lies.
#[derive(Clone, Debug)]
struct Place {
    zone: Arc<Zone>,
    at: u32,
    len: u32,
    crc: u32,
    /// Whether it was found there.
    found: bool,
    came: Came,
}

/// Where a block comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// From the cache, which evicted it.
    Evicted,
    /// From who wrote it.
    Written,
}

impl Shelf {
    /// One that takes so many bytes of ordinary memory at most, about, for what it knows of blocks.
    pub(crate) fn new(space: Arc<Space>, index_bytes: usize) -> Self {
        Shelf {
            space,
            zones: Mutex::default(),
            extending: Mutex::default(),
            places: Default::default(),
            bytes: AtomicU64::new(0),
            blocks: AtomicUsize::new(0),
            most_blocks: index_bytes / BLOCK_BYTES,
            found: Counter::new(),
            damaged: Counter::new(),
        }
    }

    /// Bytes of the zones that it has.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Blocks that were found here.
    pub(crate) fn found(&self) -> u64 {
        self.found.get()
    }

    /// Blocks that were here and could not be read, or were not what they had been.
    pub(crate) fn damaged(&self) -> u64 {
        self.damaged.get()
    }

    /// Gives zones back, as many as that if it has them.
    pub(crate) fn give_back(&self, zones: usize) {
        for _ in 0..zones {
            if self.bytes() == 0 || self.take_oldest().is_none() {
                return;
            }
        }
    }

    /// Gives all back, and takes none from now on: the memory is about to be closed.
    pub(crate) fn close(&self) {
        self.zones.lock().closed = true;
        while self.take_oldest().is_some() {}
    }

    fn shard(&self, extent: u64) -> &Mutex<HashMap<u64, HashMap<u32, Place>>> {
        &self.places[extent as usize % SHARDS]
    }

    /// A place for so many bytes, in the zone that is being filled, or in a further one.
    fn reserve(&self, len: usize, came: Came) -> Option<(Arc<Zone>, usize)> {
        let bytes = len.next_multiple_of(8);
        if bytes > self.space.zone_bytes() || len < LEAST {
            return None;
        }
        if let Some(place) = self.zones.lock().place(bytes) {
            return Some(place);
        }
        let _extending = match came {
            Came::Evicted => self.extending.try_lock()?,
            // There are more of these, one behind the other, and each that is not kept will be read from the device.
            Came::Written => self.extending.lock(),
        };
        {
            // Somebody may have done it a moment ago.
            let mut zones = self.zones.lock();
            match zones.place(bytes) {
                _ if zones.closed => return None,
                None => {}
                place => return place,
            }
        }
        if self.space.is_scarce() {
            // Commits are short of zones.
            self.give_back(1);
            return None;
        }
        let may_have_more = came == Came::Evicted || self.further() > 0;
        let more = may_have_more && self.blocks.load(Ordering::Relaxed) < self.most_blocks;
        let memory = match more.then(|| LentZone::take(&self.space)).flatten() {
            Some(memory) => memory,
            None => {
                let mut oldest = self.take_oldest()?;
                // Of smaller blocks there is room for fewer zones: one of these has as many as dozens had before, all of which one
                // reader is not to give back.
                for _ in 1..SURPLUS {
                    if self.blocks.load(Ordering::Relaxed) < self.most_blocks {
                        break;
                    }
                    oldest = self.take_oldest()?;
                }
                if self.blocks.load(Ordering::Relaxed) >= self.most_blocks {
                    return None;
                }
                loop {
                    // Where somebody reads it goes back behind him.
                    match Arc::into_inner(oldest) {
                        Some(zone) => break zone.memory,
                        None => oldest = self.take_oldest()?,
                    }
                }
            }
        };
        self.fill_next(memory, bytes)
    }

    /// Zones that what is written may take.
    fn further(&self) -> u64 {
        self.space.free().saturating_sub(self.space.zone_count() / SPARED_OF)
    }

    fn store(&self, key: FrameKey, bytes: &[u8], came: Came) {
        let is_here = || {
            let mut places = self.shard(key.extent).lock();
            let place = places.get_mut(&key.extent)?.get_mut(&key.offset)?;
            if came == Came::Evicted {
                // It was in the cache meanwhile, where nobody sees here who read it.
                place.came = came;
            }
            Some(())
        };
        if is_here().is_some() {
            return;
        }
        let Some((zone, at)) = self.reserve(bytes.len(), came) else { return };
        // It is a copy: where it cannot be stored there is none.
        if zone.memory.store(at, bytes).is_err() {
            return;
        }
        let (at, len, crc) = (at as u32, bytes.len() as u32, checksum::crc(bytes));
        let place = Place { zone: zone.clone(), at, len, crc, found: false, came };
        let mut keys = zone.keys.lock();
        // If it was emptied meanwhile, nobody would take it out again.
        let Some(keys) = &mut *keys else { return };
        keys.push(key);
        self.blocks.fetch_add(1, Ordering::Relaxed);
        self.shard(key.extent).lock().entry(key.extent).or_default().insert(key.offset, place);
    }

    /// The oldest zone, emptied.
    fn take_oldest(&self) -> Option<Arc<Zone>> {
        let oldest = self.zones.lock().take_oldest()?;
        self.empty(&oldest);
        Some(oldest)
    }

    /// Has a zone be filled from now on. By who has `extending`.
    fn fill_next(&self, memory: LentZone, bytes: usize) -> Option<(Arc<Zone>, usize)> {
        let mut zones = self.zones.lock();
        if zones.closed {
            return None;
        }
        self.bytes.fetch_add(memory.len() as u64, Ordering::Relaxed);
        zones.order.push_back(Arc::new(Zone { memory, keys: Mutex::new(Some(Vec::new())) }));
        zones.filled = 0;
        zones.place(bytes)
    }

    /// Has nobody find what a zone has; it is in the order no more.
    fn empty(&self, zone: &Arc<Zone>) {
        self.bytes.fetch_sub(zone.memory.len() as u64, Ordering::Relaxed);
        let keys = zone.keys.lock().take().unwrap_or_default();
        self.blocks.fetch_sub(keys.len(), Ordering::Relaxed);
        for key in keys {
            self.forget(key, zone, None);
        }
    }

    /// Has nobody find a block that lies in this zone, at this place if one is named. Whether there was one.
    fn forget(&self, key: FrameKey, zone: &Arc<Zone>, at: Option<u32>) -> bool {
        let mut places = self.shard(key.extent).lock();
        let Some(of_extent) = places.get_mut(&key.extent) else { return false };
        let is_it = |place: &Place| Arc::ptr_eq(&place.zone, zone) && at.is_none_or(|at| place.at == at);
        let is_there = of_extent.get(&key.offset).is_some_and(is_it);
        if is_there {
            of_extent.remove(&key.offset);
        }
        if of_extent.is_empty() {
            places.remove(&key.extent);
        }
        is_there
    }
}

impl Zones {
    fn place(&mut self, bytes: usize) -> Option<(Arc<Zone>, usize)> {
        let zone = self.order.back()?;
        let at = self.filled;
        if zone.memory.len() - at < bytes {
            return None;
        }
        self.filled += bytes;
        Some((zone.clone(), at))
    }

    fn take_oldest(&mut self) -> Option<Arc<Zone>> {
        let oldest = self.order.pop_front()?;
        if self.order.is_empty() {
            // It was being filled.
            self.filled = 0;
        }
        Some(oldest)
    }
}

impl Below for Shelf {
    fn keep(&self, key: FrameKey, bytes: &[u8]) {
        self.store(key, bytes, Came::Evicted);
    }

    fn keep_written(&self, key: FrameKey, bytes: &[u8]) {
        self.store(key, bytes, Came::Written);
    }

    fn room_for_written(&self) -> u64 {
        let (bytes, blocks) = (self.bytes(), self.blocks.load(Ordering::Relaxed));
        // As many more as may be known of, each as large as those that are here.
        let left = self.most_blocks.saturating_sub(blocks) as u64;
        let known = bytes.checked_div(blocks as u64).map_or(u64::MAX, |each| left.saturating_mul(each));
        (self.further() * self.space.zone_bytes() as u64).min(known) + bytes / 2
    }

    fn find(&self, key: FrameKey) -> Option<Lying> {
        let place = {
            let mut places = self.shard(key.extent).lock();
            let place = places.get_mut(&key.extent)?.get_mut(&key.offset)?;
            let before = place.clone();
            place.found = true;
            before
        };
        let mut bytes = vec![0; place.len as usize];
        let loaded = place.zone.memory.load(place.at as usize, &mut bytes);
        if loaded.is_err() || checksum::crc(&bytes) != place.crc {
            // It is a copy, which nobody needs; but whoever owns the memory may want to know.
            self.damaged.add(u64::from(self.forget(key, &place.zone, Some(place.at))));
            return None;
        }
        self.found.add(1);
        Some(Lying { bytes, again: place.found })
    }

    fn is_used(&self, key: FrameKey) -> bool {
        let places = self.shard(key.extent).lock();
        let place = places.get(&key.extent).and_then(|of_extent| of_extent.get(&key.offset));
        place.is_some_and(|place| place.found || place.came == Came::Evicted)
    }

    fn forget_extent(&self, extent: u64) {
        let gone = self.shard(extent).lock().remove(&extent);
        // Without the lock: zones may go with it.
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use terrane_media::real::{RealMedia, RealOptions};
    use terrane_media::sim::SimMedia;
    use terrane_media::{Media, PmemMode};

    use super::*;
    use crate::options::PmemOptions;

    const BLOCK: usize = 5000;

    fn shelf(media: &dyn Media, path: &Path, mode: PmemMode) -> Shelf {
        let plan = PmemOptions::new(2 << 20).zone_bytes(32 << 10).plan();
        Space::create(media, path, &plan, [1; 16], 0).unwrap();
        Shelf::new(Space::open(media, path, mode, [1; 16], 0).unwrap(), 1 << 20)
    }

    fn in_sim() -> Shelf {
        let media = SimMedia::new(1);
        media.create_dir_all(Path::new("/db")).unwrap();
        shelf(&*media, Path::new("/db/pm"), PmemMode::Dax)
    }

    fn key(n: u64) -> FrameKey {
        FrameKey::new(n / 10, (n % 10) as u32 * 4096)
    }

    fn content(n: u64) -> Vec<u8> {
        vec![n as u8; BLOCK + n as usize % 7]
    }

    #[test]
    fn the_newest_blocks_are_found_and_zones_are_left_to_commits() {
        let shelf = in_sim();
        let all = shelf.space.zone_count();
        for n in 0..1000 {
            shelf.keep(key(n), &content(n));
            shelf.keep(key(n), &content(n));
            for again in [false, true, true] {
                assert_eq!(shelf.find(key(n)), Some(Lying { bytes: content(n), again }));
            }
        }
        let there: Vec<u64> = (0..1000).filter(|n| shelf.find(key(*n)).is_some()).collect();
        let zones = shelf.bytes() / (32 << 10);
        assert_eq!(shelf.space.free(), all - zones);
        assert!(zones > all / 2 && !shelf.space.is_scarce());
        // Six to a zone.
        assert!((zones * 6 - 6..=zones * 6).contains(&(there.len() as u64)), "{} in {zones}", there.len());
        assert!(there.iter().eq(&(1000 - there.len() as u64..1000).collect::<Vec<_>>()), "the newest");

        shelf.forget_extent(99);
        assert!((990..1000).all(|n| shelf.find(key(n)).is_none()) && shelf.find(key(989)).is_some());
        shelf.give_back(5);
        assert_eq!((shelf.bytes() / (32 << 10), shelf.space.free()), (zones - 5, all - zones + 5));
        // Commits have nearly all: what they have not goes back to them, and nothing is kept meanwhile.
        let admission = shelf.space.admit(shelf.space.free()).unwrap();
        (2000..2100).for_each(|n| shelf.keep(key(n), &content(n)));
        assert!(!shelf.space.is_scarce() && shelf.bytes() > 0);
        assert_eq!(shelf.bytes() / (32 << 10) + shelf.space.free() + admission.left(), all);
        drop(admission);
        shelf.close();
        assert_eq!((shelf.bytes(), shelf.space.free()), (0, all));
        shelf.keep(key(1), &content(1));
        assert_eq!((shelf.find(key(1)), shelf.space.free()), (None, all));
    }

    #[test]
    fn what_is_written_leaves_zones_free_and_is_used_when_it_is_found() {
        let shelf = in_sim();
        let (all, zone) = (shelf.space.zone_count(), 32 << 10);
        let room = shelf.room_for_written();
        assert_eq!(room, (all - all / SPARED_OF) * zone);
        (0..1000).for_each(|n| shelf.keep_written(key(n), &content(n)));
        assert_eq!(shelf.space.free(), all / SPARED_OF);
        assert_eq!(shelf.room_for_written(), shelf.bytes() / 2);
        assert!(shelf.find(key(0)).is_none() && !shelf.is_used(key(999)));
        assert_eq!(shelf.find(key(999)), Some(Lying { bytes: content(999), again: false }));
        assert!(shelf.is_used(key(999)) && !shelf.is_used(key(998)));
        // What was evicted was in the cache, and takes more.
        shelf.keep(key(2000), &content(2000));
        shelf.keep(key(998), &content(998));
        assert!(shelf.is_used(key(2000)) && shelf.is_used(key(998)) && !shelf.is_used(key(997)));
        (2001..3000).for_each(|n| shelf.keep(key(n), &content(n)));
        assert!(shelf.space.free() < all / SPARED_OF && !shelf.space.is_scarce());
        // Where it has all that, what is written goes in the place of what is oldest.
        let free = shelf.space.free();
        (3000..3010).for_each(|n| shelf.keep_written(key(n), &content(n)));
        assert_eq!(shelf.space.free(), free);
        assert!((3000..3010).all(|n| shelf.find(key(n)).is_some()));
    }

    /// Zones of few blocks, so that threads come to the end of one at the same time all the while.
    #[test]
    fn threads_that_write_lose_nothing_to_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let media = RealMedia::new(RealOptions::default()).unwrap();
        let shelf = shelf(&*media, &dir.path().join("pm"), PmemMode::StandIn);
        let (fits, threads) = (shelf.further(), 4);
        std::thread::scope(|s| {
            for t in 0..threads {
                let shelf = &shelf;
                // One to a zone.
                s.spawn(move || {
                    (t..fits).step_by(4).for_each(|n| shelf.keep_written(key(n), &[n as u8; 20_000]))
                });
            }
        });
        assert!(fits > 20 && (0..fits).all(|n| shelf.find(key(n)).is_some()));
    }

    #[test]
    fn what_it_knows_of_blocks_stays_within_its_memory() {
        let Shelf { space, .. } = in_sim();
        let shelf = Shelf::new(space, 30 * BLOCK_BYTES);
        (0..200).for_each(|n| shelf.keep(key(n), &content(n)));
        let known =
            || shelf.places.iter().flat_map(|p| p.lock().values().map(HashMap::len).collect::<Vec<_>>());
        assert_eq!(known().sum::<usize>(), shelf.blocks.load(Ordering::Relaxed));
        assert!(shelf.room_for_written() <= shelf.bytes() / 2 + 6 * (32 << 10), "no more may be known of");
        // A zone more or less than these fill.
        assert!((24..=36).contains(&known().sum::<usize>()), "{}", known().sum::<usize>());
        assert!(shelf.find(key(199)).is_some());
        // Of small ones there is room for as many in one zone, and the others go back.
        for n in 200..2000 {
            shelf.keep(key(n), &[n as u8; LEAST]);
            assert!(known().sum::<usize>() <= 30 + (32 << 10) / LEAST, "{}", known().sum::<usize>());
        }
        assert!(shelf.bytes() <= 2 * (32 << 10) && shelf.find(key(1999)).is_some());
    }

    #[test]
    fn what_is_damaged_or_too_large_is_not_there() {
        let shelf = in_sim();
        shelf.keep(key(1), &content(1));
        for len in [64 << 10, LEAST - 1] {
            shelf.keep(key(2), &vec![0; len]);
            assert_eq!(shelf.find(key(2)), None);
        }
        let zone = shelf.zones.lock().order[0].clone();
        zone.memory.store(4096, &[0; 8]).unwrap();
        // That is said once: it is not looked at again, and may come again.
        assert_eq!((shelf.find(key(1)), shelf.find(key(1)), shelf.damaged()), (None, None, 1));
        shelf.keep(key(1), &content(1));
        assert_eq!(shelf.find(key(1)).map(|found| found.bytes), Some(content(1)));
    }

    #[test]
    fn threads_find_what_was_kept_or_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let media = RealMedia::new(RealOptions::default()).unwrap();
        let shelf = shelf(&*media, &dir.path().join("pm"), PmemMode::StandIn);
        let all = shelf.space.zone_count();
        std::thread::scope(|s| {
            for t in 0..4u64 {
                let shelf = &shelf;
                s.spawn(move || {
                    let mut n = t;
                    for round in 0..20_000 {
                        n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        let number = (n >> 33) % 600;
                        match round % 64 {
                            0 => shelf.give_back(2),
                            1 => shelf.forget_extent(number / 10),
                            _ if (n >> 20) % 6 == 0 => shelf.keep(key(number), &content(number)),
                            _ if (n >> 20) % 6 == 3 => shelf.keep_written(key(number), &content(number)),
                            _ => {
                                assert!(
                                    shelf
                                        .find(key(number))
                                        .is_none_or(|found| found.bytes == content(number))
                                )
                            }
                        }
                    }
                });
            }
        });
        assert!(shelf.found() > 1000);
        shelf.close();
        assert_eq!((shelf.bytes(), shelf.space.free()), (0, all), "no zone is lost");
    }
}
