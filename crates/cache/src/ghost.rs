//! Ghosts: fingerprints of frames that left unread, remembered for a while. A frame that comes back while its ghost is there
//! was evicted too early.
//!
//! A set-associative array of (fingerprint, birth) words; a ghost is forgotten after as many evictions as there are
//! entries in the shard. A fingerprint that collides lets one frame skip probation undeserved: harmless.

const WAYS: usize = 4;

#[derive(Default)]
pub(crate) struct Ghosts {
    /// Sets of [`WAYS`] words: fingerprint in the high half, birth in the low one. Zero is empty.
    words: Vec<u64>,
    /// Ghosts recorded so far, wrapping, never zero.
    clock: u32,
    window: u32,
}

impl Ghosts {
    pub(crate) fn bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }

    /// Remembers the last `entries` ghosts from now on.
    pub(crate) fn fit(&mut self, entries: usize) {
        self.window = u32::try_from(entries).unwrap_or(u32::MAX / 2);
        if self.words.len() >= entries {
            return;
        }
        let words = entries.next_power_of_two().max(WAYS * 4);
        let old = std::mem::replace(&mut self.words, vec![0; words]);
        for word in old.into_iter().filter(|&w| w != 0) {
            self.place(word);
        }
    }

    /// Records that the frame of `hash` left.
    pub(crate) fn record(&mut self, hash: u64) {
        self.clock = self.clock.wrapping_add(1).max(1);
        if !self.words.is_empty() {
            self.place((hash >> 32 << 32) | u64::from(self.clock));
        }
    }

    /// How many have been recorded since the frame of `hash` left, if that was lately; forgets it.
    pub(crate) fn take(&mut self, hash: u64) -> Option<u32> {
        let (clock, window) = (self.clock, self.window);
        let word = self.set(hash).iter_mut().find(|w| **w != 0 && **w >> 32 == hash >> 32)?;
        let age = clock.wrapping_sub(*word as u32);
        *word = 0;
        (age < window).then_some(age)
    }

    /// The set of a hash or word: chosen by the fingerprint, the half that both share.
    fn set(&mut self, hash: u64) -> &mut [u64] {
        let sets = self.words.len() / WAYS;
        if sets == 0 {
            return &mut [];
        }
        let at = ((hash >> 32) as usize & (sets - 1)) * WAYS;
        &mut self.words[at..at + WAYS]
    }

    /// Puts `word` in the place of the oldest one of its set.
    fn place(&mut self, word: u64) {
        let clock = self.clock;
        let age = |w: u64| if w == 0 { u64::MAX } else { u64::from(clock.wrapping_sub(w as u32)) };
        if let Some(oldest) = self.set(word).iter_mut().max_by_key(|w| age(**w)) {
            *oldest = word;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::key::FrameKey;

    fn hash(offset: u32) -> u64 {
        FrameKey::new(9, offset).hash()
    }

    #[test]
    fn a_ghost_is_taken_once_and_only_while_it_is_recent() {
        let mut g = Ghosts::default();
        g.fit(64);
        g.record(hash(0));
        assert_eq!(g.take(hash(0)), Some(0));
        assert_eq!(g.take(hash(0)), None);
        (0..3).for_each(|i| g.record(hash(i)));
        assert_eq!(g.take(hash(0)), Some(2));
        g.record(hash(1));
        (100..164).for_each(|i| g.record(hash(i)));
        assert_eq!(g.take(hash(1)), None, "forgotten after as many evictions as the window");
    }

    #[test]
    fn most_ghosts_within_the_window_are_remembered_also_after_growing() {
        let mut g = Ghosts::default();
        g.fit(100);
        (0..100).for_each(|i| g.record(hash(i)));
        g.fit(1000);
        let kept = (0..100).filter(|&i| g.take(hash(i)).is_some()).count();
        assert!(kept >= 80, "{kept} of 100");
    }

    #[test]
    fn without_room_nothing_is_remembered() {
        let mut g = Ghosts::default();
        g.record(1);
        assert_eq!(g.take(1), None);
    }
}
