//! Memory of extents that are written, for those that are written next: fresh memory costs a page fault every 4 KiB, and a zero for each byte.
//!
//! # Concurrency
//! Any thread takes and any gives; the mutex guards the list alone. How many bytes there are is read without it, and says no more than whether
//! it is worth looking.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use terrane_format::extent::Image;

/// Images that nobody uses just now.
#[derive(Debug)]
pub(super) struct Images {
    kept: Mutex<Vec<Image>>,
    /// Their bytes, and the most that is kept.
    bytes: AtomicUsize,
    most: usize,
    /// Smaller ones would have to grow.
    least: usize,
}

impl Images {
    /// Keeps up to `most` bytes, of images of `least` bytes or more.
    pub(super) fn new(most: usize, least: usize) -> Self {
        Images { kept: Mutex::default(), bytes: AtomicUsize::new(0), most, least }
    }

    /// One of them, if there is any.
    pub(super) fn take(&self) -> Option<Image> {
        let mut kept = self.kept.lock();
        let image = kept.pop()?;
        self.bytes.fetch_sub(image.room(), Ordering::Relaxed);
        Some(image)
    }

    /// Keeps one, unless there are enough.
    pub(super) fn give(&self, image: Image) {
        let mut kept = self.kept.lock();
        if image.room() >= self.least && self.bytes.load(Ordering::Relaxed) + image.room() <= self.most {
            self.bytes.fetch_add(image.room(), Ordering::Relaxed);
            kept.push(image);
        }
    }

    /// Whether there is any.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.load(Ordering::Relaxed) == 0
    }

    /// Lets go of all of them.
    pub(super) fn clear(&self) {
        let mut kept = self.kept.lock();
        self.bytes.store(0, Ordering::Relaxed);
        let all = std::mem::take(&mut *kept);
        drop(kept);
        drop(all);
    }
}

#[cfg(test)]
mod tests {
    use terrane_base::ExtentId;
    use terrane_format::extent::{ExtentBuilder, ExtentForm};
    use terrane_format::tombstone::RangeTombstones;

    use super::*;

    fn image() -> Image {
        let mut builder = ExtentBuilder::new(ExtentForm::default()).unwrap();
        builder.set_tombstones(&RangeTombstones::from_ranges([("a", "b", 1)]));
        builder.finish(ExtentId(1)).unwrap().bytes
    }

    #[test]
    fn as_many_are_kept_as_there_is_room_for() {
        let room = image().room();
        let images = Images::new(2 * room, room);
        assert!(images.is_empty() && images.take().is_none());
        (0..3).for_each(|_| images.give(image()));
        assert_eq!(images.kept.lock().len(), 2);
        assert!(images.take().is_some() && images.take().is_some() && images.take().is_none());
        assert!(images.is_empty());
        images.give(image());
        assert!(!images.is_empty());
        images.clear();
        assert!(images.is_empty() && images.take().is_none());
        let larger = Images::new(2 * room, room + 1);
        larger.give(image());
        assert!(larger.is_empty(), "it would have to grow");
    }
}
