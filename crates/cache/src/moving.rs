//! Parts that are opened and closed while the cache is used, and frames that go from one to another.
//!
//! A frame that moves is not copied: the count that the one shard's entry held goes over to the other's. In between it is in neither, and
//! who looks for it then loads it again; of the two, who entered first stays.
//!
//! # Why it is safe
//! Out of the first shard a frame goes as by eviction: unlinked from the table and from its slot under the lock. Readers who found it
//! before are under guards, and its memory is kept by a count, first ours, then the second shard's entry's. When it leaves that one it is
//! retired by epoch, after those guards like all others; and so it is at once, if the second shard does not take it.

use crate::cache::{Cache, retire};
use crate::epoch::Guard;
use crate::key::FrameKey;
use crate::parts::Part;
use crate::shard::{Entered, Gone};

/// What a part of a cache did and holds. Counts go on from what they were for those who had the part before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartStats {
    /// Bytes of frames that can be found in it.
    pub resident_bytes: usize,
    /// Bytes that it is sure of: it may hold more as long as the others use less than theirs.
    pub share_bytes: usize,
    /// Frames that were loaded into it.
    pub inserts: u64,
    /// Frames of it that had to leave for others.
    pub evictions: u64,
    /// Frames that were loaded again so shortly after they had left that with a little more room they would have been there still.
    pub returns: u64,
}

impl Cache {
    /// Opens a part of the cache, with locks and queues of its own and an equal share of the memory, for the keys that name it
    /// ([`FrameKey::part`]); its number. The share is what it is sure of: what one part does not use serves the
    /// others, and shares follow what is missed. `None` if there are 256 already.
    pub fn open_part(&self) -> Option<u16> {
        self.parts().open()
    }

    /// Closes a part; its frames go to the common one, number 0, where keys that name it are looked for from now on. Does nothing if it is
    /// not open.
    pub fn close_part(&self, part: u16) {
        self.parts().close(part, |part| {
            for shard in &part.shards {
                shard.shut();
                loop {
                    let guard = self.pin();
                    let some = shard.drain(&guard);
                    if some.is_empty() {
                        guard.retire(shard.compact(&guard).into());
                        break;
                    }
                    some.into_iter().for_each(|gone| self.take_in(&self.parts().common, gone, &guard));
                }
            }
        });
        self.settle(0);
    }

    /// Moves the frames of `extent` from one part, and from the common one (they are there if that part was closed meanwhile), to another,
    /// which keys name from now on. Costs a short lock for each shard of these parts, and one for each frame.
    pub fn rehome(&self, extent: u64, from: u16, to: u16) {
        let (common, to) = (&self.parts().common, self.parts().get(to));
        let own = self.parts().made(from).filter(|own| !std::ptr::eq(*own, common));
        for part in own.into_iter().chain([common]).filter(|part| !std::ptr::eq(*part, to)) {
            for shard in &part.shards {
                let guard = self.pin();
                let frames = shard.remove_extent(extent, &guard);
                frames.into_iter().for_each(|gone| self.take_in(to, gone, &guard));
            }
        }
        self.settle(FrameKey::new(extent, 0).hash());
    }

    /// What a part did and holds. One that is closed holds nothing.
    pub fn part_stats(&self, part: u16) -> PartStats {
        let Some(part) = self.parts().made(part) else { return PartStats::default() };
        PartStats {
            resident_bytes: part.share.resident(),
            share_bytes: part.share.bytes(),
            inserts: part.share.inserts(),
            evictions: part.share.evictions(),
            returns: part.share.returns(),
        }
    }

    /// A frame that left one part goes to another.
    fn take_in(&self, to: &Part, gone: Gone, guard: &Guard<'_>) {
        let (_, entered) = self.enter(to, &gone.frame, guard, Some(gone.queue));
        match entered {
            // Its entry has a count of its own.
            Entered::Now => gone.slots.into_iter().for_each(|slots| guard.retire(slots.into())),
            _ => retire(guard, gone),
        }
    }

    /// Tables may have grown, and what did not get in waits to be freed.
    fn settle(&self, hash: u64) {
        self.evict(&self.parts().common, hash);
        self.reclaim(&self.pin());
    }
}
