//! Some of many things that come one by one, each as likely as any other to be among them.

use crate::support::Rng;

#[derive(Debug)]
pub struct Sample<T> {
    room: usize,
    seen: u64,
    rng: Rng,
    kept: Vec<T>,
}

impl<T> Sample<T> {
    /// Keeps `room` things; with room for all it keeps them in order.
    pub fn new(room: usize, seed: u64) -> Self {
        Sample { room, seen: 0, rng: Rng(seed ^ 0x7361_6d70), kept: Vec::new() }
    }

    /// `thing` is made only if it is kept, for now.
    pub fn offer(&mut self, thing: impl FnOnce() -> T) {
        self.seen += 1;
        if self.kept.len() < self.room {
            self.kept.push(thing());
            return;
        }
        let place = self.rng.below(self.seen) as usize;
        if let Some(kept) = self.kept.get_mut(place) {
            *kept = thing();
        }
    }

    pub fn take(&mut self) -> Vec<T> {
        std::mem::take(&mut self.kept)
    }
}
