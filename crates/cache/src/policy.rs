//! Who stays and who leaves: the decision, apart from how it is carried out.
//!
//! Two first-in-first-out queues per shard, after the observation that most of what enters a cache is never read again. A
//! data block enters the *small* queue, a tenth of the bytes. If it was read again by the time it reaches the end, it
//! moves to the *main* queue; if not, it leaves and its ghost is remembered. A block that comes back while its ghost is
//! there, one that takes the place of cached ones, and every index block and filter, enters the main queue directly. At
//! the end of the main queue a frame that was read since it was last there goes round again; an index block or filter goes
//! round once more unread.
//!
//! A scan so passes through a tenth of the cache, reads cost no queue work at all (one bit per frame, rule 10), and an
//! eviction looks at a bounded number of frames: every pass clears what kept a frame.
//!
//! # Concurrency
//! Guarded by the shard's lock. The reference bit is set by readers at any time; losing a race with one costs one
//! eviction that was a little early.

use crate::entries::{Entries, Home, Leaving, NIL, Queue};
use crate::frame::{Pin, Priority};
use crate::ghost::Ghosts;

/// The small queue's share of the bytes is one in this many.
const SMALL_SHARE: usize = 10;

#[derive(Default)]
pub(crate) struct Policy {
    entries: Entries,
    /// Of frames that left probation.
    ghosts: Ghosts,
    /// Of those that left the main queue, where that is asked for: not to decide who stays, but to know what more room would be worth.
    proven: Ghosts,
}

/// A frame that comes back before one in this many of those that are here have left would have stayed with a little more room.
const SOON: usize = 8;

/// Rounds that a frame survives unread in the main queue.
fn credit(priority: Priority) -> u8 {
    match priority {
        Priority::Data | Priority::Heir => 0,
        Priority::Index | Priority::Filter => 1,
    }
}

impl Policy {
    pub(crate) fn entries(&self) -> &Entries {
        &self.entries
    }

    pub(crate) fn bytes(&self) -> usize {
        self.entries.bytes() + self.ghosts.bytes() + self.proven.bytes()
    }

    /// Bytes of the frames that are here.
    pub(crate) fn resident(&self) -> usize {
        self.entries.list(Queue::Small).bytes + self.entries.list(Queue::Main).bytes
    }

    /// Takes in `frame`; the caller has made room and checked [`Entries::has_room`]. Says whether it would have stayed with a little more
    /// room.
    pub(crate) fn admit(&mut self, frame: Pin, hash: u64) -> bool {
        let is_data = frame.priority() == Priority::Data;
        let (ghost, proven) = (self.ghosts.take(hash).filter(|_| is_data), self.proven.take(hash));
        self.add(frame, hash, if is_data && ghost.is_none() { Queue::Small } else { Queue::Main });
        let soon = |age: Option<u32>| age.is_some_and(|age| age as usize * SOON < self.entries.len());
        soon(ghost) || soon(proven)
    }

    /// Takes in `frame` as the newest of `queue`.
    pub(crate) fn add(&mut self, frame: Pin, hash: u64, queue: Queue) {
        let credit = credit(frame.priority());
        self.entries.add(frame, hash, queue, credit);
        self.ghosts.fit(self.entries.len());
    }

    /// The frame that has been here longest, those on probation first.
    pub(crate) fn oldest(&self) -> Option<u32> {
        let tails = [Queue::Small, Queue::Main].map(|queue| self.entries.list(queue).tail);
        tails.into_iter().find(|&id| id != NIL)
    }

    /// Chooses a frame to leave and takes it out. Looks at no more than `steps` frames, and counts them down; `None` if
    /// that was not enough, or nothing is here. With `shared` room, remembers the proven ones that leave too.
    pub(crate) fn evict(&mut self, steps: &mut usize, shared: bool) -> Option<Leaving> {
        while *steps > 0 {
            *steps -= 1;
            let (small, main) = (self.entries.list(Queue::Small), self.entries.list(Queue::Main));
            let take_small = small.bytes * SMALL_SHARE > small.bytes + main.bytes || main.tail == NIL;
            let id = if take_small { small.tail } else { main.tail };
            let frame = self.entries.frame(id)?;
            let fresh = credit(frame.priority());
            let on_probation = self.entries.queue_of(id) == Queue::Small;
            // A pinned frame is in use, and evicting it would free nothing yet.
            if frame.referenced() || frame.is_shared() {
                frame.clear_referenced();
                self.entries.entry_mut(id).credit = fresh;
                self.entries.requeue(id, Queue::Main);
            } else if self.entries.entry_mut(id).credit > 0 {
                self.entries.entry_mut(id).credit -= 1;
                self.entries.requeue(id, Queue::Main);
            } else {
                let leaving = self.entries.remove(id)?;
                if on_probation {
                    self.ghosts.record(leaving.hash);
                } else if shared {
                    self.proven.fit(self.entries.len());
                    self.proven.record(leaving.hash);
                }
                return Some(leaving);
            }
        }
        None
    }

    /// Steps within which [`Policy::evict`] comes to a frame that may leave, unless all are in use.
    pub(crate) fn patience(&self) -> usize {
        // From the small queue into the main one, a round for the bit, one for the credit, and the last.
        self.entries.len() * 4 + 1
    }

    /// Takes entry `id` out.
    pub(crate) fn remove(&mut self, id: u32) -> Option<Leaving> {
        self.entries.remove(id)
    }

    /// As [`Entries::set_home`].
    pub(crate) fn set_home(&mut self, id: u32, home: Home) -> Option<Home> {
        self.entries.set_home(id, home)
    }

    /// Gives back the memory of entries that are gone, and forgets the ghosts.
    pub(crate) fn compact(&mut self) {
        self.entries.compact();
        (self.ghosts, self.proven) = Default::default();
        self.ghosts.fit(self.entries.len());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::key::FrameKey;

    fn frame(offset: u32, priority: Priority) -> (Pin, u64) {
        let key = FrameKey::new(u64::from(offset % 5), offset);
        (Pin::new(key, priority, &[0; 100], None), key.hash())
    }

    fn policy(frames: impl IntoIterator<Item = (Pin, u64)>) -> Policy {
        let mut p = Policy::default();
        frames.into_iter().for_each(|(f, h)| assert!(!p.admit(f, h)));
        p
    }

    fn evict(p: &mut Policy) -> Option<u32> {
        let mut steps = p.patience();
        p.evict(&mut steps, true).map(|left| left.frame.key().offset)
    }

    /// Reads a frame as a lookup does.
    fn read(p: &Policy, offset: u32) {
        p.entries.frames().find(|(f, _)| f.key().offset == offset).unwrap().0.touch();
    }

    #[test]
    fn data_read_once_leaves_in_order_of_arrival() {
        let mut p = policy((0..20).map(|i| frame(i, Priority::Data)));
        let left: Vec<_> = std::iter::from_fn(|| evict(&mut p)).collect();
        assert_eq!(left, (0..20).collect::<Vec<_>>());
        assert_eq!(p.entries.len(), 0);
    }

    #[test]
    fn what_was_read_again_outlives_a_scan() {
        let mut p = policy((0..10).map(|i| frame(i, Priority::Data)));
        (0..5).for_each(|i| read(&p, i));
        for i in 100..1000 {
            let (f, h) = frame(i, Priority::Data);
            p.admit(f, h);
            let left = evict(&mut p).unwrap();
            assert!(left >= 5, "{left} left during the scan");
        }
    }

    #[test]
    fn a_frame_that_comes_back_soon_skips_probation() {
        let mut p = policy((0..10).map(|i| frame(i, Priority::Data)));
        assert_eq!(evict(&mut p), Some(0));
        let (f, h) = frame(0, Priority::Data);
        p.admit(f, h);
        assert_eq!(p.entries.list(Queue::Main).bytes, Pin::charge(p.entries.frame(0).unwrap()));
    }

    #[test]
    fn an_heir_skips_probation() {
        let mut p = policy([frame(0, Priority::Heir)]);
        assert_eq!(p.entries.list(Queue::Small).bytes, 0);
        let (f, h) = frame(1, Priority::Data);
        p.admit(f, h);
        assert_eq!(evict(&mut p), Some(1));
        assert_eq!(evict(&mut p), Some(0), "it has no credit beyond");
    }

    #[test]
    fn an_unread_index_block_outlasts_a_round_of_unread_data() {
        let mut p = policy([frame(0, Priority::Index), frame(1, Priority::Filter)]);
        for i in 2..12 {
            let (f, h) = frame(i, Priority::Data);
            p.admit(f, h);
            read(&p, i);
        }
        let left: Vec<_> = (0..10).map(|_| evict(&mut p).unwrap()).collect();
        assert!(!left[..8].contains(&0) && !left[..8].contains(&1), "{left:?}");
    }

    #[test]
    fn what_is_in_use_stays_and_the_search_for_a_victim_ends() {
        let frames: Vec<_> = (0..10).map(|i| frame(i, Priority::Data)).collect();
        let mut p = policy(frames.clone());
        assert_eq!(evict(&mut p), None);
        drop(frames);
        assert!(evict(&mut p).is_some());
    }

    #[test]
    fn compaction_keeps_order_and_extents() {
        let mut p = policy((0..50).map(|i| frame(i, Priority::Data)));
        (0..30).for_each(|i| assert_eq!(evict(&mut p), Some(i)));
        let before = p.bytes();
        p.compact();
        assert!(p.bytes() < before);
        let id = p.entries.first_of(3).unwrap();
        assert_eq!(p.remove(id).unwrap().frame.key().extent, 3);
        let left: Vec<_> = std::iter::from_fn(|| evict(&mut p)).collect();
        assert_eq!(left.len(), 19);
        assert!(left.is_sorted());
    }
}
