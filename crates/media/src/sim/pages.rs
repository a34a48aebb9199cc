//! Content of a file as copy-on-write pages: cloning costs a pointer per [`CHUNK`], and a write after it copies one
//! chunk's pointers and the pages that it touches. Pages of zeros take no memory, so prewritten files are cheap.
//!
//! Which pages occupy space on the simulated device is kept apart from which take memory here: a written zero does
//! occupy space, a hole does not.

use std::ops::Range;
use std::sync::Arc;

pub(super) const PAGE: u64 = 4096;
const CHUNK_PAGES: u64 = 64;
/// Bytes of a chunk.
const CHUNK: u64 = PAGE * CHUNK_PAGES;

type Page = [u8; PAGE as usize];

/// Sparse bytes; everything not written is zero.
#[derive(Clone, Debug, Default)]
pub(super) struct Pages {
    chunks: Vec<Option<Arc<Chunk>>>,
}

#[derive(Clone, Debug)]
struct Chunk {
    /// `None` is a page of zeros.
    pages: [Option<Arc<Page>>; CHUNK_PAGES as usize],
    /// Bit i: page i occupies space.
    allocated: u64,
}

impl Default for Chunk {
    fn default() -> Self {
        Chunk { pages: [const { None }; CHUNK_PAGES as usize], allocated: 0 }
    }
}

impl Pages {
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) {
        for (page, within, part) in pieces(offset, buf.len() as u64) {
            let out = &mut buf[part];
            match self.page(page) {
                Some(p) => out.copy_from_slice(&p[within..within + out.len()]),
                None => out.fill(0),
            }
        }
    }

    /// The pages that are not of zeros, in order, each with its offset.
    pub(super) fn written(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.chunks.iter().zip((0..).step_by(CHUNK as usize)).flat_map(|(chunk, start)| {
            let pages = chunk.iter().flat_map(move |c| c.pages.iter().zip((start..).step_by(PAGE as usize)));
            pages.filter_map(|(page, offset)| Some((offset, page.as_deref()?.as_slice())))
        })
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (page, within, part) in pieces(offset, bytes.len() as u64) {
            let bytes = &bytes[part];
            let (chunk, slot) = self.chunk_mut(page);
            chunk.allocated |= 1 << slot;
            let zero = bytes.iter().all(|b| *b == 0);
            if zero && (bytes.len() as u64 == PAGE || chunk.pages[slot].is_none()) {
                chunk.pages[slot] = None;
                continue;
            }
            let p = chunk.pages[slot].get_or_insert_with(|| Arc::new([0; PAGE as usize]));
            Arc::make_mut(p)[within..within + bytes.len()].copy_from_slice(bytes);
        }
    }

    /// Zeroes a range. Whole pages give their space back if `release`, and take some otherwise.
    pub(super) fn zero(&mut self, offset: u64, len: u64, release: bool) {
        const ZEROS: &Page = &[0; PAGE as usize];
        for (page, within, part) in pieces(offset, len) {
            let n = part.len();
            if n as u64 == PAGE {
                if release && page / CHUNK_PAGES >= self.chunks.len() as u64 {
                    return;
                }
                let (chunk, slot) = self.chunk_mut(page);
                chunk.pages[slot] = None;
                if release {
                    chunk.allocated &= !(1 << slot);
                } else {
                    chunk.allocated |= 1 << slot;
                }
            } else if !release || self.page(page).is_some() {
                self.write(page * PAGE + within as u64, &ZEROS[..n]);
            }
        }
    }

    /// Makes the pages of a range occupy space; content is unchanged.
    pub(super) fn allocate(&mut self, offset: u64, len: u64) {
        for (page, _, _) in pieces(offset, len) {
            let (chunk, slot) = self.chunk_mut(page);
            chunk.allocated |= 1 << slot;
        }
    }

    /// Drops everything from `len` on.
    pub(super) fn truncate(&mut self, len: u64) {
        let end = self.chunks.len() as u64 * CHUNK;
        if len < end {
            self.zero(len, end - len, true);
            self.chunks.truncate(len.div_ceil(CHUNK) as usize);
        }
    }

    /// The end of the longest prefix of a range that `room` more pages of space suffice for.
    pub(super) fn fits(&self, offset: u64, len: u64, mut room: u64) -> u64 {
        for (page, within, part) in pieces(offset, len) {
            if !self.is_allocated(page) {
                if room == 0 {
                    return page * PAGE + within as u64;
                }
                room -= 1;
            }
            debug_assert!(part.len() as u64 <= PAGE);
        }
        offset + len
    }

    /// How many pages occupy space.
    pub(super) fn allocated_pages(&self) -> u64 {
        self.chunks.iter().flatten().map(|c| u64::from(c.allocated.count_ones())).sum()
    }

    fn is_allocated(&self, page: u64) -> bool {
        match self.chunks.get((page / CHUNK_PAGES) as usize) {
            Some(Some(c)) => c.allocated >> (page % CHUNK_PAGES) & 1 == 1,
            _ => false,
        }
    }

    fn page(&self, page: u64) -> Option<&Page> {
        self.chunks.get((page / CHUNK_PAGES) as usize)?.as_ref()?.pages[(page % CHUNK_PAGES) as usize]
            .as_deref()
    }

    fn chunk_mut(&mut self, page: u64) -> (&mut Chunk, usize) {
        let at = (page / CHUNK_PAGES) as usize;
        if self.chunks.len() <= at {
            self.chunks.resize(at + 1, None);
        }
        let chunk = Arc::make_mut(self.chunks[at].get_or_insert_with(Arc::default));
        (chunk, (page % CHUNK_PAGES) as usize)
    }
}

/// Cuts a range at page boundaries: (page number, offset within the page, range within the whole).
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    cut(offset, len, PAGE)
}

/// Cuts a range at multiples of `unit`: (unit number, offset within the unit, range within the whole).
pub(super) fn cut(offset: u64, len: u64, unit: u64) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at == len {
            return None;
        }
        let (number, within) = ((offset + at) / unit, (offset + at) % unit);
        let start = at;
        at = (at + unit - within).min(len);
        Some((number, within as usize, start as usize..at as usize))
    })
}

#[cfg(test)]
mod tests {
    use super::super::rng::Rng;
    use super::*;

    /// Random writes, zeroes and truncations against a flat buffer, with clones that must not change.
    #[test]
    fn agrees_with_a_flat_buffer_and_clones_stay_as_they_were() {
        const SIZE: u64 = 3 * CHUNK;
        for seed in 0..8 {
            let mut rng = Rng::new(seed);
            let (mut pages, mut model) = (Pages::default(), vec![0u8; SIZE as usize]);
            let mut kept: Vec<(Pages, Vec<u8>)> = Vec::new();
            for _ in 0..60 {
                let offset = rng.below(SIZE);
                let len = rng.below((SIZE - offset).min(5 * PAGE) + 1);
                let range = offset as usize..(offset + len) as usize;
                match rng.below(6) {
                    0 => {
                        pages.truncate(offset);
                        model[offset as usize..].fill(0);
                    }
                    1 => {
                        pages.zero(offset, len, rng.below(2) == 0);
                        model[range].fill(0);
                    }
                    2 => kept.push((pages.clone(), model.clone())),
                    3 => pages.allocate(offset, len),
                    _ => {
                        let bytes: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
                        pages.write(offset, &bytes);
                        model[range].copy_from_slice(&bytes);
                    }
                }
                kept.push((pages.clone(), model.clone()));
                kept.truncate(6);
            }
            for (pages, model) in kept {
                let mut all = vec![1; SIZE as usize];
                pages.read(0, &mut all);
                assert!(all == model, "seed {seed}");
                let mut sparse = vec![0; SIZE as usize];
                for (offset, page) in pages.written() {
                    sparse[offset as usize..][..page.len()].copy_from_slice(page);
                }
                assert!(sparse == model, "seed {seed}");
            }
        }
    }

    #[test]
    fn written_zeros_occupy_space_and_holes_do_not() {
        let mut p = Pages::default();
        p.zero(0, 4 * PAGE, false);
        assert_eq!(p.allocated_pages(), 4);
        p.zero(PAGE, 2 * PAGE, true);
        assert_eq!(p.allocated_pages(), 2);
        p.write(100 * PAGE + 5, &[0; 10]);
        assert_eq!(p.allocated_pages(), 3);
        assert_eq!(p.fits(0, 4 * PAGE, 1), 2 * PAGE);
        assert_eq!(p.fits(0, 4 * PAGE, 2), 4 * PAGE);
        p.truncate(0);
        assert_eq!(p.allocated_pages(), 0);
    }
}
