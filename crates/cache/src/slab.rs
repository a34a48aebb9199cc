//! Memory for frames, from huge pages.
//!
//! Frames come and go between threads: one that reads makes them, one that merges makes others in their place. A
//! general-purpose allocator keeps what each thread gave back for that thread, so that a cache's worth of free memory
//! can lie beside the cache; and it gives small pages, each of which costs a lookup of its own to find. Here frames of
//! similar size share *chunks*. When nothing is left in one, any class may have it next: a few wait for that, and what is
//! beyond them is given back to the system.
//!
//! Sizes are rounded up to *classes*: powers of two from 1 KiB up, and seven steps between two of them, so that at most
//! an eighth is lost (a half of what is smaller than 1 KiB). A piece is charged its part of the chunk. A place is taken
//! from the chunk with the lowest address that has one, so that the others run empty. What lies free in chunks is
//! charged to nobody, so a class gets a further chunk only while that is less than half of the cache; else, and where a
//! cache is too small for chunks, and for sizes that no class takes, the program's allocator serves. (Where the sizes
//! that are asked for change altogether, what is left of the old ones keeps their chunks until it leaves.)
//!
//! # Concurrency
//! One mutex per class, taken when a frame is made and when it is freed, and held for a few loads and stores (and a
//! system call for a chunk that is not among those that wait); never on a hit. Within it, for a chunk, that of those that
//! wait. The two sums of bytes steer and order nothing.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crossbeam_utils::CachePadded;
use terrane_media::{HUGE_PAGE, Mapping};

use crate::frame::Frame;

/// Every piece has room for this beside its body.
const HEADER: usize = size_of::<Frame>();
/// Every piece is aligned to this.
const ALIGN: usize = align_of::<Frame>();
/// What the program's allocator adds to an aligned allocation, roughly.
const ALLOCATOR_OVERHEAD: usize = 32;
/// The smallest class. Bodies below half of it are left to the program's allocator.
const SMALLEST: usize = 1 << 10;
/// Classes from one power of two to the next.
const STEPS: usize = 8;
/// Pieces that a chunk holds at least.
const LEAST_PIECES: usize = 8;
/// A cache with less than this many times a chunk would be mostly chunks that are not full.
const LEAST_CHUNKS: usize = 32;
/// The chunk of a cache that is too small for huge pages.
const SMALL_CHUNK: usize = 256 << 10;
/// One in so many of the cache's bytes may lie free in chunks while a class gets a further one. (Merges free some size
/// and ask for another. With a sixteenth the allocator served more of them, and what it kept lay beside the cache: a load of
/// 10 GiB with 512 MiB of cache and memtables took 755 MiB instead of 541.)
const FREE_SHARE: usize = 2;
/// One in so many of the cache's bytes may be chunks that wait for a class. (A merge puts its output in before its input
/// leaves. The system clears every page that it gives out: while 3.2 M records of 100 bytes were written by one thread,
/// that took a fifth of the time of the threads that write runs.)
const SPARE_SHARE: usize = 32;

/// A place that is free. Lies in the place.
struct Free {
    next: *mut Free,
}

/// Where a chunk stands. (Kept outside of it, so that looking for a place touches none of its pages.)
struct Chunk {
    memory: Mapping,
    /// Pieces in use.
    used: usize,
    /// Places that were never used begin here, as a number.
    fresh: usize,
    free: *mut Free,
}

/// The chunks of one class.
#[derive(Default)]
struct Class {
    /// By address.
    chunks: BTreeMap<usize, Chunk>,
    /// Addresses of those with a place.
    open: BTreeSet<usize>,
}

// SAFETY: the pointers are to chunks that the class owns; whoever has the class may use them on any thread.
unsafe impl Send for Class {}

/// See the module's head.
pub(crate) struct Slab {
    /// Bytes of a chunk, a power of two.
    chunk: usize,
    /// Bytes that may lie free in chunks while a class gets a further one.
    most_free: usize,
    /// Bytes of all chunks.
    mapped: CachePadded<AtomicUsize>,
    /// Those that pieces are charged with.
    used: CachePadded<AtomicUsize>,
    classes: Box<[Mutex<Class>]>,
    /// Chunks that wait for a class, at most so many.
    spare: Mutex<Vec<Mapping>>,
    most_spare: usize,
}

impl Slab {
    /// For a cache of so many bytes.
    pub(crate) fn new(capacity: usize) -> Slab {
        let chunk = match capacity {
            _ if cfg!(loom) => 0,
            c if c / LEAST_CHUNKS >= HUGE_PAGE => HUGE_PAGE,
            c if c / LEAST_CHUNKS >= SMALL_CHUNK => SMALL_CHUNK,
            _ => 0,
        };
        let classes =
            (chunk / LEAST_PIECES / SMALLEST).checked_ilog2().map_or(0, |powers| powers as usize * STEPS);
        let most_free = capacity / FREE_SHARE;
        let most_spare = (capacity / SPARE_SHARE).checked_div(chunk).unwrap_or(0);
        let (mapped, used, spare) = Default::default();
        let classes = (0..classes).map(|_| Mutex::default()).collect();
        Slab { chunk, most_free, mapped, used, classes, spare, most_spare }
    }

    /// The class of a body of `len` bytes, and the size of its bodies.
    fn class(&self, len: usize) -> Option<(&Mutex<Class>, usize)> {
        let power = len.max(SMALLEST).ilog2();
        let step = (1 << power) / STEPS;
        let steps = len.max(SMALLEST).div_ceil(step);
        let at = (power - SMALLEST.ilog2()) as usize * STEPS + (steps - STEPS);
        let small = len < SMALLEST / 2;
        self.classes.get(at).filter(|_| !small).map(|class| (class, steps * step))
    }

    /// Bytes that lie free in chunks.
    pub(crate) fn unused(&self) -> usize {
        self.mapped.load(Relaxed).saturating_sub(self.used.load(Relaxed))
    }

    /// What a piece of a body of this size is charged with.
    fn share(&self, body: usize) -> usize {
        self.chunk / (self.chunk / (HEADER + body))
    }

    /// Memory that a piece with a body of `len` bytes takes.
    pub(crate) fn charge_of(&self, len: usize) -> usize {
        match self.class(len) {
            Some((_, body)) => self.share(body),
            None => charge_alone(len),
        }
    }

    /// A piece with room for a body of `len` bytes, [`rounded`] up, and a header behind it; aligned as a header is.
    pub(crate) fn alloc(&self, len: usize) -> NonNull<u8> {
        let Some((class, body)) = self.class(len) else { return alloc_alone(len) };
        let size = HEADER + body;
        let mut class = lock(class);
        let at = match class.open.first() {
            Some(at) => *at,
            None => {
                let spare = lock(&self.spare).pop();
                if spare.is_none() && self.unused() > self.most_free {
                    return alloc_alone(len);
                }
                let memory = spare.unwrap_or_else(|| self.map());
                // The first one may never be full: of a new one small pages are there only when they are used.
                if self.chunk == HUGE_PAGE && !class.chunks.is_empty() {
                    memory.prefer_huge_pages();
                }
                let at = memory.base().addr().get();
                class.chunks.insert(at, Chunk { memory, used: 0, fresh: 0, free: null_mut() });
                class.open.insert(at);
                at
            }
        };
        let places = self.chunk / size;
        // What is open is among the chunks, and has a place: `open` changes with every one that is taken or given back.
        let Some(chunk) = class.chunks.get_mut(&at) else { return alloc_alone(len) };
        let piece = match NonNull::new(chunk.free) {
            Some(free) => {
                // SAFETY: a free place holds what `free` wrote there; the lock is held.
                chunk.free = unsafe { free.as_ref() }.next;
                free.cast()
            }
            None => {
                let offset = chunk.fresh * size;
                chunk.fresh += 1;
                // SAFETY: `fresh` is below `places`, else the chunk were not open: the place lies within the mapping.
                unsafe { chunk.memory.base().add(offset) }
            }
        };
        chunk.used += 1;
        self.used.fetch_add(self.share(body), Relaxed);
        if chunk.used == places {
            class.open.remove(&at);
        }
        piece
    }

    /// Takes a piece back.
    ///
    /// # Safety
    /// It came from [`Slab::alloc`] of this very slab with this `len`, and nobody uses it any more.
    pub(crate) unsafe fn free(&self, piece: NonNull<u8>, len: usize) {
        let Some((class, body)) = self.class(len) else {
            // SAFETY: per contract; the same length finds the same way.
            return unsafe { free_alone(piece, len) };
        };
        let mut class = lock(class);
        let class = &mut *class;
        // Chunks are aligned to their size.
        let at = piece.addr().get() & !(self.chunk - 1);
        let Some(chunk) = class.chunks.get_mut(&at) else {
            // SAFETY: per contract; what lies in no chunk is the allocator's.
            return unsafe { free_alone(piece, len) };
        };
        let place = piece.cast::<Free>();
        // SAFETY: the piece is nobody's any more, aligned, and larger than this.
        unsafe { place.write(Free { next: chunk.free }) };
        chunk.free = place.as_ptr();
        chunk.used -= 1;
        self.used.fetch_sub(self.share(body), Relaxed);
        class.open.insert(at);
        // One that is open stays, empty or not: a class at an edge would map and unmap at every turn.
        if chunk.used == 0 && class.open.len() > 1 {
            class.open.remove(&at);
            // Nothing of it is in use.
            if let Some(chunk) = class.chunks.remove(&at) {
                self.put_by(chunk.memory);
            }
        }
    }

    /// A chunk from the system.
    fn map(&self) -> Mapping {
        let Some(memory) = Mapping::new(self.chunk, self.chunk) else {
            handle_alloc_error(layout(self.chunk))
        };
        self.mapped.fetch_add(self.chunk, Relaxed);
        memory
    }

    /// Has a chunk in which nothing is in use wait for a class, or gives it back to the system.
    fn put_by(&self, memory: Mapping) {
        let mut spare = lock(&self.spare);
        if spare.len() < self.most_spare {
            spare.push(memory);
            return;
        }
        drop(spare);
        self.mapped.fetch_sub(self.chunk, Relaxed);
    }

    /// Chunks of classes.
    #[cfg(all(test, not(loom)))]
    fn chunks(&self) -> usize {
        self.classes.iter().map(|c| lock(c).chunks.len()).sum()
    }

    /// Chunks that wait for a class.
    #[cfg(all(test, not(loom)))]
    fn spares(&self) -> usize {
        lock(&self.spare).len()
    }
}

impl Drop for Slab {
    fn drop(&mut self) {
        for class in &self.classes {
            let mut class = lock(class);
            for chunk in std::mem::take(&mut class.chunks).into_values() {
                debug_assert_eq!(chunk.used, 0, "a frame outlives its accounts");
                if chunk.used > 0 {
                    std::mem::forget(chunk.memory);
                }
            }
        }
    }
}

impl fmt::Debug for Slab {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab").field("chunk", &self.chunk).finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing in here panics half way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes that a body of `len` takes, so that a header can stand behind it.
pub(crate) fn rounded(len: usize) -> usize {
    // In three instructions, for every look at a frame passes here. What does not fit is more than any layout has.
    len.saturating_add(ALIGN - 1) & !(ALIGN - 1)
}

fn layout(len: usize) -> Layout {
    match HEADER.checked_add(rounded(len)).map(|size| Layout::from_size_align(size, ALIGN)) {
        Some(Ok(layout)) => layout,
        // Beyond the address space. Ends the process, as running out of memory does.
        _ => handle_alloc_error(Layout::new::<Free>()),
    }
}

/// Memory that a piece of the program's allocator takes.
pub(crate) fn charge_alone(len: usize) -> usize {
    rounded(len).saturating_add(HEADER + ALLOCATOR_OVERHEAD)
}

/// A piece of the program's allocator.
pub(crate) fn alloc_alone(len: usize) -> NonNull<u8> {
    let layout = layout(len);
    // SAFETY: the layout has the header's size at least.
    NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout))
}

/// # Safety
/// It came from [`alloc_alone`] with this `len`, and nobody uses it any more.
pub(crate) unsafe fn free_alone(piece: NonNull<u8>, len: usize) {
    // SAFETY: per contract.
    unsafe { dealloc(piece.as_ptr(), layout(len)) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::disallowed_methods)]

    use super::*;

    const LARGE: usize = LEAST_CHUNKS * HUGE_PAGE;

    #[test]
    fn little_is_lost_by_rounding_and_all_of_it_is_charged() {
        let slab = Slab::new(LARGE);
        for len in (SMALLEST..HUGE_PAGE / LEAST_PIECES).step_by(13) {
            let charge = slab.charge_of(len);
            assert!(charge >= rounded(len) + HEADER && charge < (len + HEADER) * 5 / 4, "{len}: {charge}");
        }
        assert_eq!(slab.charge_of(16 << 10), HUGE_PAGE / 127);
        assert_eq!(slab.charge_of(100), 128 + HEADER + ALLOCATOR_OVERHEAD);
        assert_eq!(slab.charge_of(1 << 20), (1 << 20) + HEADER + ALLOCATOR_OVERHEAD);
        assert_eq!(Slab::new(1 << 20).charge_of(4096), 4096 + HEADER + ALLOCATOR_OVERHEAD);
    }

    /// A piece, filled.
    struct Piece(NonNull<u8>, usize, u8);

    // SAFETY: a piece belongs to who has it.
    unsafe impl Send for Piece {}

    impl Piece {
        fn new(slab: &Slab, len: usize, mark: u8) -> Piece {
            let at = slab.alloc(len);
            assert_eq!(at.addr().get() % ALIGN, 0);
            // SAFETY: the piece is ours, and has room for body and header.
            unsafe { at.write_bytes(mark, rounded(len) + HEADER) };
            Piece(at, len, mark)
        }

        fn free(self, slab: &Slab) {
            // SAFETY: the piece is ours and was filled.
            let bytes = unsafe { std::slice::from_raw_parts(self.0.as_ptr(), rounded(self.1) + HEADER) };
            assert!(bytes.iter().all(|b| *b == self.2), "somebody else wrote to it");
            // SAFETY: from this slab, with this length, and nobody knows it any more.
            unsafe { slab.free(self.0, self.1) };
        }
    }

    #[test]
    fn pieces_are_disjoint_and_their_memory_comes_back() {
        for capacity in [1 << 20, LEAST_CHUNKS * SMALL_CHUNK, LARGE] {
            let slab = Slab::new(capacity);
            let mut held = Vec::new();
            let mut rng = 1u64;
            let mut most = 0;
            for i in 0..6000usize {
                rng = rng.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let n = (rng >> 33) as usize;
                // First it grows, then it shrinks.
                if held.is_empty() || n % 100 < if i < 3000 { 70 } else { 30 } {
                    let len = [0, 10, 900, 4096, 15_000, 16_384, 16_384, 30_000, 300_000][n % 9];
                    held.push(Piece::new(&slab, len, i as u8));
                } else {
                    held.swap_remove(n % held.len()).free(&slab);
                }
                most = most.max(slab.chunks());
            }
            held.drain(..).for_each(|p| p.free(&slab));
            assert!(slab.chunks() <= 6, "one of each class is kept: {}", slab.chunks());
            assert_eq!(slab.used.load(Relaxed), 0);
            assert_eq!(slab.mapped.load(Relaxed), (slab.chunks() + slab.spares()) * slab.chunk);
            assert_eq!(capacity > 1 << 20, most > 2, "{most}");
            assert_eq!(slab.spares(), slab.most_spare, "as many as may wait");
        }
    }

    #[test]
    fn a_class_takes_what_another_has_left_before_the_system_is_asked() {
        let slab = Slab::new(2 * LARGE);
        let fill = |len: usize, chunks: usize| -> Vec<Piece> {
            (0..chunks * (HUGE_PAGE / slab.share(len))).map(|i| Piece::new(&slab, len, i as u8)).collect()
        };
        fill(16 << 10, 4).into_iter().for_each(|p| p.free(&slab));
        assert_eq!((slab.chunks(), slab.spares()), (1, 2), "one stays, two wait, one is given back");
        let (mapped, held) = (slab.mapped.load(Relaxed), fill(4 << 10, 2));
        assert_eq!((slab.chunks(), slab.spares(), slab.mapped.load(Relaxed)), (3, 0, mapped));
        held.into_iter().for_each(|p| p.free(&slab));
        assert_eq!((slab.chunks(), slab.spares(), slab.mapped.load(Relaxed)), (2, 1, mapped));
    }

    #[test]
    fn many_classes_with_little_in_them_get_few_chunks() {
        let slab = Slab::new(LARGE);
        let lens = (0..64).map(|i| 1000 + i * 4000);
        let held: Vec<_> = lens.map(|len| Piece::new(&slab, len, len as u8)).collect();
        let free = slab.mapped.load(Relaxed) - slab.used.load(Relaxed);
        assert!(free <= slab.most_free + HUGE_PAGE, "{free}");
        // Which of the two a piece came from is found out when it is freed.
        held.into_iter().for_each(|p| p.free(&slab));
        assert_eq!(slab.used.load(Relaxed), 0);
    }

    #[test]
    fn threads_free_what_others_made() {
        let slab = Slab::new(LARGE);
        let (send, receive) = std::sync::mpsc::sync_channel::<Piece>(64);
        let receive = Mutex::new(receive);
        std::thread::scope(|s| {
            for t in 0..3usize {
                let (send, slab) = (send.clone(), &slab);
                s.spawn(move || {
                    for i in 0..2000 {
                        let len = [4096, 16_384, 12_000][(i + t) % 3];
                        send.send(Piece::new(slab, len, (i + t) as u8)).unwrap();
                    }
                });
            }
            drop(send);
            for _ in 0..2 {
                s.spawn(|| {
                    while let Some(p) = { receive.lock().unwrap().recv().ok() } {
                        p.free(&slab);
                    }
                });
            }
        });
        assert!(slab.chunks() <= 3);
    }
}
