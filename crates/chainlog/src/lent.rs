//! A zone that a process has for itself, for what is to vanish with it: stored and loaded by copies.

use std::sync::Arc;

use terrane_base::{Error, Result};
use terrane_halloc::Lent;

use crate::space::Space;

/// Of how many zones one is not taken, and one more: that is beyond what is left when they are [scarce](Space::is_scarce), in a memory of
/// any size, lest zones go back and forth.
const LEFT_OF: u64 = 24;

/// A zone that is nobody else's until this is dropped, or until the memory is opened again. Any number of threads may store to places
/// of their own and load what was stored; who comes behind whom is theirs to order.
#[derive(Debug)]
pub struct LentZone {
    space: Arc<Space>,
    /// There until it is dropped.
    lent: Option<Lent>,
    at: usize,
}

impl LentZone {
    /// Takes one, if more than one of 24 zones, and one besides, is left to commits.
    pub fn take(space: &Arc<Space>) -> Option<LentZone> {
        if space.free() <= space.zone_count() / LEFT_OF + 1 {
            return None;
        }
        let lent = space.lend().ok()?;
        Some(LentZone { space: space.clone(), at: lent.place(), lent: Some(lent) })
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.space.zone_bytes()
    }

    /// Whether it has none; no zone is like that.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Stores bytes, with zeros behind them up to a multiple of 8, at a place that is one.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::InvalidArgument`] for a place outside of the zone; what the memory fails with.
    pub fn store(&self, at: usize, bytes: &[u8]) -> Result<()> {
        self.check(at, bytes.len().next_multiple_of(8))?;
        let stored = self.space.pmem().write(self.at + at, bytes);
        // Nothing of it may come late, over what the zone's next owner writes.
        self.space.fence();
        stored
    }

    /// Loads what was stored at a place.
    ///
    /// # Errors
    /// As [`LentZone::store`].
    pub fn load(&self, at: usize, bytes: &mut [u8]) -> Result<()> {
        self.check(at, bytes.len())?;
        self.space.pmem().load(self.at + at, bytes)
    }

    fn check(&self, at: usize, len: usize) -> Result<()> {
        match at.checked_add(len).is_some_and(|end| end <= self.len()) {
            true => Ok(()),
            false => Err(Error::invalid(format!("{len} bytes at {at} of a zone of {}", self.len()))),
        }
    }
}

impl Drop for LentZone {
    fn drop(&mut self) {
        if let Some(lent) = self.lent.take() {
            self.space.give_back(lent);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use terrane_halloc::Plan;
    use terrane_media::PmemMode;
    use terrane_media::sim::SimMedia;

    use super::*;

    /// Whoever has the zone next may be another thread, whose fences say nothing of what this one has stored.
    #[test]
    fn what_was_stored_is_in_its_place_before_anybody_else_has_the_zone() {
        let media = SimMedia::new(1);
        let path = Path::new("/pm");
        let plan = Plan { bytes: 4 << 20, subtables: 1, memtables: 4, zone_bytes: 64 << 10 };
        Space::create(&*media, path, &plan, [1; 16], 0).unwrap();
        let space = Space::open(&*media, path, PmemMode::Dax, [1; 16], 0).unwrap();
        let all = space.free();
        std::thread::scope(|s| {
            s.spawn(|| {
                let zone = LentZone::take(&space).unwrap();
                let before = media.image().pm_states(terrane_media::sim::PmModel::Lines);
                zone.store(4096, &[7; 5000]).unwrap();
                assert_eq!(
                    media.image().pm_states(terrane_media::sim::PmModel::Lines),
                    before,
                    "nothing more is on its way"
                );
                let mut found = [0; 5000];
                zone.load(4096, &mut found).unwrap();
                assert_eq!(found, [7; 5000]);
                assert!(
                    zone.store(zone.len() - 8, &[1; 9]).is_err() && zone.load(zone.len(), &mut [0]).is_err()
                );
            });
        });
        assert_eq!(space.free(), all);
        let admission = space.admit(all - all / LEFT_OF - 1).unwrap();
        assert!(LentZone::take(&space).is_none(), "what is left is for commits");
        drop(admission);
        let admission = space.admit(all - all / LEFT_OF - 2).unwrap();
        assert!(LentZone::take(&space).is_some());
        drop(admission);
    }
}
