//! The bytes of an extent, where direct I/O can take them.

use std::ops::Deref;

/// What the memory of an extent is aligned to, as far as the allocator's answer allows: whoever writes with direct I/O
/// looks, and copies what is not.
const ALIGN: usize = 4096;

/// A growing byte string that begins at a multiple of 4096 in memory.
#[derive(Clone, Debug, Default)]
pub struct Image {
    buf: Vec<u8>,
    /// Bytes in front of the first one.
    skip: usize,
}

impl Image {
    /// An empty one with room for `bytes`.
    pub(crate) fn with_room(bytes: usize) -> Self {
        let mut buf: Vec<u8> = Vec::with_capacity(bytes.saturating_add(ALIGN));
        let skip = buf.as_ptr().align_offset(ALIGN).min(ALIGN - 1);
        buf.resize(skip, 0);
        Image { buf, skip }
    }

    /// Bytes of memory that it holds.
    pub fn room(&self) -> usize {
        self.buf.capacity()
    }

    /// Empty again, in the same memory.
    pub(crate) fn clear(&mut self) {
        self.buf.truncate(self.skip);
    }

    pub(crate) fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.make_room(bytes.len());
        self.buf.extend_from_slice(bytes);
    }

    /// Appends zeros up to a multiple of `step`.
    pub(crate) fn pad_to(&mut self, step: usize) {
        let len = self.len().next_multiple_of(step);
        self.make_room(len - self.len());
        self.buf.resize(self.skip + len, 0);
    }

    /// Growing moves the bytes, so they are placed anew.
    fn make_room(&mut self, more: usize) {
        if self.buf.capacity() - self.buf.len() < more {
            let mut larger = Image::with_room((self.len() + more).max(self.len() * 2));
            larger.buf.extend_from_slice(self);
            *self = larger;
        }
    }
}

impl Deref for Image {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buf[self.skip..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_at_a_sector_however_it_grows() {
        let mut image = Image::default();
        let mut model = Vec::new();
        for i in 0..2000u32 {
            let more = vec![i as u8; i as usize % 97];
            image.extend_from_slice(&more);
            model.extend_from_slice(&more);
            assert!(image.is_empty() || image.as_ptr().addr().is_multiple_of(ALIGN), "after {i} pieces");
        }
        image.pad_to(512);
        model.resize(model.len().next_multiple_of(512), 0);
        assert_eq!(*image, *model);
    }

    #[test]
    fn enough_room_is_not_left_again() {
        let mut image = Image::with_room(10_000);
        let at = image.as_ptr();
        image.extend_from_slice(&[1; 9_000]);
        image.pad_to(1000);
        assert_eq!(image.as_ptr(), at);
    }
}
