//! The lookup table of a shard: found without a lock, changed under the shard's.
//!
//! A bucket is one cache line: a word of tags (seven one-byte tags and an overflow count) and seven frame pointers. A
//! lookup compares all tags at once and follows the pointers whose tag matches; the frame's key decides. An entry that
//! finds its bucket full goes to the next one with room and raises the overflow count of every bucket that it passed;
//! a lookup goes on to the next bucket only while that count is not zero. Entries never move: a table that gets too full
//! is replaced by a larger one.
//!
//! # Concurrency
//! Writers hold the shard's lock. Readers hold an epoch guard and race with them:
//! - a slot is stored (`Release`) after the frame was made and read (`Acquire`) before it is looked at;
//! - tags are hints. A reader that sees one before or after its slot changed finds no frame, or a frame of another key:
//!   a miss, which the caller settles under the lock. It never finds a wrong frame, since keys decide and are immutable;
//! - frames and tables are freed by epoch, so that a pointer read under a guard stays good. That holds for a reader in a
//!   *replaced* table too: whoever can still reach the table holds a guard from before it was retired, hence from before
//!   any later eviction.

use std::ptr::{self, NonNull};

use terrane_base::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::epoch::Guard;
use crate::frame::{Found, Frame, Pin};
use crate::key::FrameKey;

const LANES: usize = 7;
/// Entries per bucket, on average, at which a table is replaced by one of twice the size.
const FULL: usize = 5;
/// An overflow count this high has lost count, and stays until the table is replaced.
const SATURATED: u64 = 255;
const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
/// The high bit of each lane's tag.
const LANE_BITS: u64 = 0x0080_8080_8080_8080;

#[repr(align(64))]
struct Bucket {
    tags: AtomicU64,
    slots: [AtomicPtr<Frame>; LANES],
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Bucket>() == 64);

impl Default for Bucket {
    fn default() -> Self {
        Bucket { tags: AtomicU64::new(0), slots: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())) }
    }
}

/// The tag of a hash: its top byte (buckets are chosen by the low bits), zero being kept for "empty".
fn tag(hash: u64) -> u8 {
    ((hash >> 56) as u8).max(1)
}

/// The lanes of `tags` that hold `tag`, as the high bit of each lane. Exact: no carry crosses a byte.
fn lanes_with(tags: u64, tag: u8) -> u64 {
    let diff = tags ^ (u64::from(tag) * 0x0101_0101_0101_0101);
    !(((diff & LOW) + LOW) | diff | LOW) & LANE_BITS
}

fn lane_of(bits: u64) -> usize {
    (bits.trailing_zeros() / 8) as usize
}

fn with_lane(tags: u64, lane: usize, tag: u8) -> u64 {
    (tags & !(0xff << (lane * 8))) | (u64::from(tag) << (lane * 8))
}

fn overflow(tags: u64) -> u64 {
    tags >> 56
}

pub(crate) struct Table {
    buckets: Box<[Bucket]>,
    /// Stands for the buckets in models: loom reports a lookup that races with their release.
    #[cfg(loom)]
    witness: terrane_base::sync::cell::UnsafeCell<()>,
}

// The stand-in is never written but on drop.
#[cfg(loom)]
// SAFETY: everything else in a table is an atomic.
unsafe impl Sync for Table {}

#[cfg(loom)]
impl Drop for Table {
    fn drop(&mut self) {
        self.witness.with_mut(|_| ());
    }
}

impl Table {
    /// An empty table of at least `buckets` buckets.
    pub(crate) fn new(buckets: usize) -> Table {
        let buckets = buckets.max(1).next_power_of_two();
        Table {
            buckets: (0..buckets).map(|_| Bucket::default()).collect(),
            #[cfg(loom)]
            witness: terrane_base::sync::cell::UnsafeCell::new(()),
        }
    }

    /// Buckets for `entries` entries, with room to double.
    pub(crate) fn buckets_for(entries: usize) -> usize {
        (entries * 2).div_ceil(FULL).next_power_of_two()
    }

    /// Whether `entries` entries fit.
    pub(crate) fn has_room_for(&self, entries: usize) -> bool {
        entries <= self.buckets.len() * FULL
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of::<Table>() + self.buckets.len() * size_of::<Bucket>()
    }

    /// The buckets in which an entry of `hash` may be, in the order in which they are tried.
    fn path(&self, hash: u64) -> impl Iterator<Item = &Bucket> {
        let mask = self.buckets.len() - 1;
        let home = hash as usize & mask;
        (0..self.buckets.len()).map(move |i| &self.buckets[(home + i) & mask])
    }

    /// Looks `key` up. May miss a frame that enters or leaves meanwhile.
    pub(crate) fn find<'g>(&self, key: FrameKey, hash: u64, guard: &'g Guard<'_>) -> Option<Found<'g>> {
        #[cfg(loom)]
        self.witness.with(|_| ());
        for bucket in self.path(hash) {
            let tags = bucket.tags.load(Ordering::Acquire);
            let mut lanes = lanes_with(tags, tag(hash));
            while lanes != 0 {
                let slot = bucket.slots[lane_of(lanes)].load(Ordering::Acquire);
                if let Some(frame) = NonNull::new(slot) {
                    // SAFETY: read from a slot under `guard`; whoever inserted it promised the rest.
                    let found = unsafe { Found::new(frame, guard) };
                    if found.key() == key {
                        return Some(found);
                    }
                }
                lanes &= lanes - 1;
            }
            if overflow(tags) == 0 {
                return None;
            }
        }
        None
    }

    /// Asks the processor to load what is likely the frame of `hash`, of `len` bytes, without waiting for it.
    pub(crate) fn prefetch(&self, hash: u64, len: usize) {
        let Some(home) = self.path(hash).next() else { return };
        let lanes = lanes_with(home.tags.load(Ordering::Relaxed), tag(hash));
        if lanes != 0 {
            Frame::prefetch(home.slots[lane_of(lanes)].load(Ordering::Relaxed), len);
        }
    }

    /// Makes `frame` findable. The caller holds the shard's lock, and the table has room.
    ///
    /// # Safety
    /// A count of `frame` is kept until it was removed from this table, and from every table built from it, and every
    /// epoch guard of that moment is gone.
    pub(crate) unsafe fn insert(&self, frame: &Pin, hash: u64) {
        for bucket in self.path(hash) {
            let tags = bucket.tags.load(Ordering::Relaxed);
            let empty = lanes_with(tags, 0);
            if empty != 0 {
                let lane = lane_of(empty);
                bucket.slots[lane].store(frame.as_ptr(), Ordering::Release);
                bucket.tags.store(with_lane(tags, lane, tag(hash)), Ordering::Release);
                return;
            }
            let passed = (overflow(tags) + 1).min(SATURATED);
            bucket.tags.store(with_lane(tags, LANES, passed as u8), Ordering::Release);
        }
        debug_assert!(false, "inserted into a full table");
    }

    /// Makes `frame` unfindable for whoever looks from now on. The caller holds the shard's lock, and then retires the
    /// frame by epoch.
    pub(crate) fn remove(&self, frame: &Pin, hash: u64) {
        let holds =
            |bucket: &Bucket, lane: usize| bucket.slots[lane].load(Ordering::Relaxed) == frame.as_ptr();
        let Some(distance) = self.path(hash).position(|b| (0..LANES).any(|lane| holds(b, lane))) else {
            debug_assert!(false, "removed a frame that is not in the table");
            return;
        };
        for (i, bucket) in self.path(hash).take(distance + 1).enumerate() {
            let tags = bucket.tags.load(Ordering::Relaxed);
            if i == distance {
                for lane in (0..LANES).filter(|&lane| holds(bucket, lane)) {
                    bucket.tags.store(with_lane(tags, lane, 0), Ordering::Release);
                    bucket.slots[lane].store(ptr::null_mut(), Ordering::Release);
                }
            } else if overflow(tags) < SATURATED {
                let passed = overflow(tags).saturating_sub(1);
                bucket.tags.store(with_lane(tags, LANES, passed as u8), Ordering::Release);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::epoch::Domain;
    use crate::frame::Priority;

    fn frame(offset: u32) -> Pin {
        Pin::new(FrameKey::new(1, offset), Priority::Data, &offset.to_le_bytes(), None)
    }

    #[test]
    fn tags_match_exactly() {
        let tags = 0xff_01_00_80_7f_81_01_fe;
        assert_eq!(lanes_with(tags, 0x01), 0x0080_0000_0000_8000);
        assert_eq!(lanes_with(tags, 0x80), 0x0000_0080_0000_0000);
        assert_eq!(lanes_with(tags, 0xff), 0, "the overflow count is not a lane");
        assert_eq!(lanes_with(0, 0), LANE_BITS);
    }

    #[test]
    fn entries_of_one_home_overflow_and_are_found_until_removed() {
        let domain = Domain::new();
        let guard = domain.pin();
        let table = Table::new(8);
        let frames: Vec<Pin> = (0..40).map(frame).collect();
        // All start in the last bucket, so that the path wraps around; half of them share a tag.
        let hash = |i: usize| 7 | ((i as u64 % 2) << 56);
        for (i, f) in frames.iter().enumerate() {
            // SAFETY: `frames` outlives the table's use.
            unsafe { table.insert(f, hash(i)) };
        }
        for gone in 0..frames.len() {
            for (i, f) in frames.iter().enumerate() {
                let found = table.find(f.key(), hash(i), &guard);
                assert_eq!(found.is_some(), i >= gone, "entry {i} after {gone} removals");
            }
            table.remove(&frames[gone], hash(gone));
        }
        let counts = table.buckets.iter().map(|b| b.tags.load(Ordering::Relaxed));
        assert!(counts.into_iter().all(|tags| tags == 0), "overflow counts went back to zero");
    }

    #[test]
    fn a_saturated_overflow_count_never_hides_an_entry() {
        let domain = Domain::new();
        let guard = domain.pin();
        let table = Table::new(64);
        let frames: Vec<Pin> = (0..300).map(frame).collect();
        for f in &frames {
            // SAFETY: `frames` outlives the table's use.
            unsafe { table.insert(f, 1 << 56) };
        }
        for f in &frames[..299] {
            table.remove(f, 1 << 56);
        }
        assert!(table.find(frames[299].key(), 1 << 56, &guard).is_some());
    }
}
