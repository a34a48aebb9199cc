//! Memory of extents that are written, for those that are written next: fresh memory costs a page fault every 4 KiB, and a zero for each byte.
//!
//! # Concurrency
//! Any thread takes and any gives; the mutex guards the list alone.

use parking_lot::Mutex;
use terrane_format::extent::Image;

/// Images that nobody uses just now.
#[derive(Debug)]
pub(super) struct Images {
    kept: Mutex<Vec<Image>>,
    /// Bytes of them that are kept at most.
    most: usize,
    /// Smaller ones would have to grow.
    least: usize,
}

impl Images {
    /// Keeps up to `most` bytes, of images of `least` bytes or more.
    pub(super) fn new(most: usize, least: usize) -> Self {
        Images { kept: Mutex::default(), most, least }
    }

    /// One of them, if there is any.
    pub(super) fn take(&self) -> Option<Image> {
        self.kept.lock().pop()
    }

    /// Keeps one, unless there are enough.
    pub(super) fn give(&self, image: Image) {
        let mut kept = self.kept.lock();
        let bytes: usize = kept.iter().map(Image::room).sum();
        if image.room() >= self.least && bytes + image.room() <= self.most {
            kept.push(image);
        }
    }

    /// Whether there is any.
    pub(super) fn is_empty(&self) -> bool {
        self.kept.lock().is_empty()
    }

    /// Lets go of all of them.
    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *self.kept.lock());
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
        // (How much memory an image has depends on where the allocator put it.)
        let (two, third) = ([image(), image()], image());
        let most = two.iter().map(Image::room).sum();
        let images = Images::new(most, two.iter().map(Image::room).min().unwrap());
        assert!(images.is_empty() && images.take().is_none());
        two.into_iter().for_each(|image| images.give(image));
        images.give(third);
        assert_eq!(images.kept.lock().len(), 2);
        assert!(images.take().is_some() && images.take().is_some() && images.take().is_none());
        assert!(images.is_empty());
        let another = Images::new(most, 1);
        another.give(image());
        assert!(!another.is_empty());
        another.clear();
        assert!(another.is_empty() && another.take().is_none());
        let image = image();
        let larger = Images::new(2 * image.room(), image.room() + 1);
        larger.give(image);
        assert!(larger.is_empty(), "it would have to grow");
    }
}
