//! Memory that is handed out piece by piece and given back as a whole.
//!
//! *Chunks* come from the allocator, 4 KiB at first and doubling up to 2 MiB or a sixteenth of the budget, so that a
//! thousand small indexes cost little, a large one gets huge pages, and none takes much of a small budget at once.
//! Threads do not bump one shared pointer: a thread takes a *span* of the current chunk for its stripe and carves
//! pieces from that; a span is at most a sixty-fourth of the whole. Pieces that are large for a span are carved from
//! the chunk, and very large ones get a chunk of their own. Chunks of 2 MiB are kept for the next index (`spare`). Chunks of
//! one length may come from elsewhere instead ([`ChunkSource`]).
//!
//! # Concurrency
//! Carving from a span is one `fetch_add`, and ranges that it hands out are disjoint. A new span is published with
//! release, so whoever sees it sees its bounds. Chunks and spans are changed under one mutex, once per span.

use std::alloc::{Layout, alloc, handle_alloc_error};
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, PoisonError};

use crossbeam_utils::CachePadded;
use terrane_base::MemoryBudget;
use terrane_base::metrics::{STRIPES, stripe};
use terrane_base::sync::Mutex;
use terrane_base::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::spare::{LAYOUT, User};

const FIRST_CHUNK: usize = 4 << 10;
pub(crate) const HUGE_PAGE: usize = 2 << 20;
const MIN_SPAN: usize = 2 << 10;
const MAX_SPAN: usize = 64 << 10;
const LINE: usize = 64;

/// Addresses stay below this, so that the index may keep sixteen bits of its own beside one. User space of the machines
/// we run on lies below it unless a program asks for more by name; a chunk beyond counts as a failed allocation.
pub(crate) const ADDRESS_LIMIT: usize = 1 << 48;

/// The part of a chunk that one stripe carves from. Lies at the start of the part.
struct Span {
    /// Address of the next free byte; runs past `end` when the span is used up.
    next: AtomicUsize,
    end: usize,
    /// Pieces above this size leave the span alone: their failure to fit would waste too much of its tail.
    largest: usize,
}

impl Span {
    /// Asks for lines that pieces after this one will be written to.
    #[inline]
    fn ask_ahead(&self, at: usize, size: usize) {
        let from = at + size.max(AHEAD);
        let lines = size.div_ceil(LINE).min(LINES_AHEAD);
        (0..lines)
            .map(|n| from + n * LINE)
            .filter(|line| *line < self.end)
            .for_each(|line| prefetch(line as u64));
    }
}

/// Where chunks come from instead of the allocator.
///
/// # Safety
/// Whatever [`ChunkSource::take`] gives begins at a multiple of 64 and has [`ChunkSource::chunk_bytes`] bytes, always the same number. Nobody
/// but the taker reads or writes them until it gives them back or the source is gone, which it is not while somebody has a chunk.
pub unsafe trait ChunkSource: Send + Sync {
    /// Length of each.
    fn chunk_bytes(&self) -> usize;
    /// Bytes that whoever takes chunks has from the allocator before: where many are small, and a chunk is large for them.
    fn allocated_first(&self) -> usize {
        0
    }
    /// One more; `None` if there is none left: then the allocator is asked.
    fn take(&self) -> Option<NonNull<u8>>;
    /// Takes one back.
    ///
    /// # Safety
    /// It was taken here and not given back since, and nobody reads or writes it any more.
    unsafe fn give_back(&self, chunk: NonNull<u8>);
}

/// Where an index takes its memory.
#[derive(Clone)]
pub(crate) struct Home {
    /// Charged for what the allocator gives.
    pub(crate) budget: MemoryBudget,
    pub(crate) source: Option<Arc<dyn ChunkSource>>,
}

impl From<MemoryBudget> for Home {
    fn from(budget: MemoryBudget) -> Self {
        Home { budget, source: None }
    }
}

/// How far ahead of a piece's beginning, or behind the end of a larger one, lines of the span are asked for that the next pieces will be
/// written to. What another index has left is in no cache, unlike what the system has just cleared: without that a writer waited for each
/// line. (Two threads that overwrite: 569 and 617, with it 743 and 716 thousand records per second.)
const AHEAD: usize = 1 << 10;
/// Most lines asked for at once.
const LINES_AHEAD: usize = 4;

/// Asks the processor to load the line of this address. Never waits.
#[inline]
pub(crate) fn prefetch(address: u64) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: a prefetch reads nothing as far as the program can tell, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address as usize));
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = address;
}

struct Chunks {
    owned: Vec<(NonNull<u8>, Layout)>,
    /// Of the source.
    lent: Vec<NonNull<u8>>,
    next: usize,
    end: usize,
}

/// Bump memory of one alignment. See the module's head.
pub(crate) struct Memory {
    align: usize,
    spans: Box<[CachePadded<AtomicPtr<Span>>]>,
    chunks: Mutex<Chunks>,
    /// From the allocator, and charged.
    bytes: AtomicUsize,
    /// From the source.
    lent_bytes: AtomicUsize,
    home: Home,
    spare: User,
}

// SAFETY: the raw pointers are to memory that `Memory` owns, or was lent; what threads share of it is atomic or behind the mutex, and
// the pieces handed out are disjoint.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Memory whose pieces are aligned to `align` (a power of two, at most a cache line).
    pub(crate) fn new(align: usize, home: impl Into<Home>) -> Self {
        let home = home.into();
        debug_assert!(align.is_power_of_two() && align <= LINE);
        Memory {
            align,
            spans: (0..STRIPES).map(|_| CachePadded::new(AtomicPtr::new(null_mut()))).collect(),
            chunks: Mutex::new(Chunks { owned: Vec::new(), lent: Vec::new(), next: 0, end: 0 }),
            bytes: AtomicUsize::new(0),
            lent_bytes: AtomicUsize::new(0),
            home,
            spare: User::new(),
        }
    }

    /// Bytes taken from the allocator, and charged to the budget.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes taken from the source.
    pub(crate) fn lent_bytes(&self) -> usize {
        self.lent_bytes.load(Ordering::Relaxed)
    }

    /// Bytes in all.
    fn all_bytes(&self) -> usize {
        self.bytes() + self.lent_bytes()
    }

    /// `size` uninitialised bytes that are the caller's until this memory is dropped.
    #[inline]
    pub(crate) fn alloc(&self, size: usize) -> NonNull<u8> {
        let size = size.next_multiple_of(self.align);
        let stripe = &self.spans[stripe()];
        loop {
            let current = stripe.load(Ordering::Acquire);
            // SAFETY: a span, once published, is valid until `self` is dropped.
            if let Some(span) = unsafe { current.as_ref() }
                && size <= span.largest
            {
                let at = span.next.fetch_add(size, Ordering::Relaxed);
                if let Some(piece) = piece(at).filter(|_| at + size <= span.end) {
                    span.ask_ahead(at, size);
                    return piece;
                }
            }
            if let Some(piece) = self.refill(stripe, current, size) {
                return piece;
            }
        }
    }

    /// Replaces the span `seen`, or carves a piece that is too large for spans.
    #[cold]
    fn refill(&self, stripe: &AtomicPtr<Span>, seen: *mut Span, size: usize) -> Option<NonNull<u8>> {
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        let mut length = (self.all_bytes() / (4 * STRIPES)).clamp(MIN_SPAN, MAX_SPAN).next_multiple_of(LINE);
        if let Some(source) = &self.home.source {
            // A span is to come from there too.
            length = length.min(source.chunk_bytes() / 8 / LINE * LINE).max(MIN_SPAN);
        }
        let largest = length / 8;
        if size > largest {
            return Some(self.carve(&mut chunks, size));
        }
        if stripe.load(Ordering::Relaxed) != seen {
            return None;
        }
        let head = size_of::<Span>().next_multiple_of(LINE);
        let at = self.carve(&mut chunks, head + length);
        let start = at.addr().get() + head;
        let span = at.cast::<Span>();
        // SAFETY: the memory is ours, large enough, and aligned to a cache line.
        unsafe { span.write(Span { next: AtomicUsize::new(start), end: start + length, largest }) };
        stripe.store(span.as_ptr(), Ordering::Release);
        None
    }

    /// `size` bytes, aligned to a cache line, of the current chunk or of a new one.
    fn carve(&self, chunks: &mut Chunks, size: usize) -> NonNull<u8> {
        let size = size.next_multiple_of(LINE);
        if let Some(at) = piece(chunks.next).filter(|_| size <= chunks.end - chunks.next) {
            chunks.next += size;
            return at;
        }
        if let Some(source) = &self.home.source
            && size <= source.chunk_bytes() / 4
            && self.bytes() >= source.allocated_first()
            && let Some(at) = self.lend(chunks, &**source)
        {
            chunks.next = at.addr().get() + size;
            chunks.end = at.addr().get() + source.chunk_bytes();
            return at;
        }
        let most = match self.home.budget.limit() {
            0 => HUGE_PAGE,
            limit => 1 << (limit / 16).clamp(FIRST_CHUNK, HUGE_PAGE).ilog2(),
        };
        let usual = self.all_bytes().next_power_of_two().clamp(FIRST_CHUNK, most);
        if size > usual / 4 {
            return self.chunk(chunks, size);
        }
        let at = self.chunk(chunks, usual);
        chunks.next = at.addr().get() + size;
        chunks.end = at.addr().get() + usual;
        at
    }

    /// A chunk of the source.
    fn lend(&self, chunks: &mut Chunks, source: &dyn ChunkSource) -> Option<NonNull<u8>> {
        let at = source.take()?;
        let (from, bytes) = (at.as_ptr().expose_provenance(), source.chunk_bytes());
        if from + bytes > ADDRESS_LIMIT {
            // SAFETY: taken a moment ago, and used by nobody.
            unsafe { source.give_back(at) };
            return None;
        }
        chunks.lent.push(at);
        self.lent_bytes.fetch_add(bytes, Ordering::Relaxed);
        Some(at)
    }

    fn chunk(&self, chunks: &mut Chunks, size: usize) -> NonNull<u8> {
        let layout = if size == HUGE_PAGE { Ok(LAYOUT) } else { Layout::from_size_align(size, LINE) };
        let Ok(layout) = layout else { handle_alloc_error(Layout::new::<u8>()) };
        self.home.budget.charge(size);
        let at = self.spare.take(layout, &self.home.budget).unwrap_or_else(|| {
            // SAFETY: the size is not zero.
            let at = NonNull::new(unsafe { alloc(layout) });
            let Some(at) = at.filter(|at| at.addr().get() + size <= ADDRESS_LIMIT) else {
                handle_alloc_error(layout)
            };
            if size == HUGE_PAGE {
                advise_huge(at);
            }
            at
        });
        at.as_ptr().expose_provenance();
        chunks.owned.push((at, layout));
        self.bytes.fetch_add(size, Ordering::Relaxed);
        at
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        self.home.budget.release(self.bytes());
        for &(at, layout) in &chunks.owned {
            // SAFETY: allocated with this layout, and given back nowhere else.
            unsafe { self.spare.give(at, layout, &self.home.budget) };
        }
        if let Some(source) = &self.home.source {
            for at in &chunks.lent {
                // SAFETY: taken there, and whoever was given a piece of it borrowed from `self`.
                unsafe { source.give_back(*at) };
            }
        }
    }
}

/// The piece at an address within one of our chunks, whose provenance was exposed when it was allocated.
fn piece(at: usize) -> Option<NonNull<u8>> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(at))
}

/// Random loads from a large index miss the TLB on small pages. A refusal costs speed only.
fn advise_huge(at: NonNull<u8>) {
    #[cfg(target_os = "linux")]
    // SAFETY: the range is one whole chunk of ours, and the advice does not change its content.
    let _ = unsafe { rustix::mm::madvise(at.as_ptr().cast(), HUGE_PAGE, rustix::mm::Advice::LinuxHugepage) };
    #[cfg(not(target_os = "linux"))]
    let _ = at;
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::disallowed_methods)]

    use std::alloc::dealloc;

    use super::*;

    #[test]
    fn pieces_are_aligned_disjoint_and_paid_for() {
        let budget = MemoryBudget::new(0);
        for align in [8, 64] {
            let memory = Memory::new(align, budget.clone());
            let mut pieces = Vec::new();
            std::thread::scope(|s| {
                let threads: Vec<_> = (1..=4usize)
                    .map(|t| {
                        let memory = &memory;
                        s.spawn(move || {
                            let sizes =
                                (0..3000).map(|i| if i % 500 == 7 { 100_000 * t } else { i % 97 + t });
                            sizes.map(|n| (memory.alloc(n).addr().get(), n)).collect::<Vec<_>>()
                        })
                    })
                    .collect();
                threads.into_iter().for_each(|t| pieces.extend(t.join().unwrap()));
            });
            pieces.sort_unstable();
            assert!(pieces.iter().all(|(at, _)| at % align == 0));
            assert!(pieces.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
            assert_eq!(budget.used(), memory.bytes());
            assert!(memory.bytes() >= pieces.iter().map(|p| p.1).sum());
        }
        assert_eq!(budget.used(), 0);
    }

    /// Chunks of 256 KiB, so many as are left.
    struct Chunked {
        first: usize,
        left: Mutex<usize>,
        out: Mutex<Vec<(NonNull<u8>, Layout)>>,
    }

    // SAFETY: each is an allocation of its own.
    unsafe impl ChunkSource for Chunked {
        fn chunk_bytes(&self) -> usize {
            256 << 10
        }

        fn allocated_first(&self) -> usize {
            self.first
        }

        fn take(&self) -> Option<NonNull<u8>> {
            let mut left = self.left.lock().unwrap();
            *left = left.checked_sub(1)?;
            let layout = Layout::from_size_align(self.chunk_bytes(), LINE).unwrap();
            // SAFETY: its length is not zero.
            let at = NonNull::new(unsafe { alloc(layout) }).unwrap();
            self.out.lock().unwrap().push((at, layout));
            Some(at)
        }

        unsafe fn give_back(&self, chunk: NonNull<u8>) {
            let mut out = self.out.lock().unwrap();
            let at = out.iter().position(|(at, _)| *at == chunk).expect("taken here");
            let (at, layout) = out.swap_remove(at);
            // SAFETY: allocated with this layout.
            unsafe { dealloc(at.as_ptr(), layout) };
        }
    }

    // SAFETY: the pointers are to memory that nobody reads here.
    unsafe impl Send for Chunked {}
    // SAFETY: as above, and they are behind a mutex.
    unsafe impl Sync for Chunked {}

    #[test]
    fn chunks_come_from_a_source_as_long_as_it_has_any() {
        let source = Arc::new(Chunked { first: 0, left: Mutex::new(64), out: Mutex::default() });
        let budget = MemoryBudget::new(0);
        let memory = Memory::new(64, Home { budget: budget.clone(), source: Some(source.clone()) });
        while *source.left.lock().unwrap() > 0 {
            memory.alloc(192);
            assert_eq!((memory.bytes(), budget.used()), (0, 0));
        }
        assert_eq!(memory.all_bytes(), 64 * source.chunk_bytes());
        // What is large for a chunk, and what comes when there is none left, is the allocator's.
        memory.alloc(source.chunk_bytes());
        let large = memory.bytes();
        assert!(large >= source.chunk_bytes());
        while memory.bytes() == large {
            memory.alloc(192);
        }
        assert_eq!(budget.used(), memory.bytes());
        drop(memory);
        assert!(source.out.lock().unwrap().is_empty());
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn who_needs_little_takes_no_chunk() {
        let source = Arc::new(Chunked { first: 64 << 10, left: Mutex::new(64), out: Mutex::default() });
        let budget = MemoryBudget::new(0);
        let memory = Memory::new(64, Home { budget: budget.clone(), source: Some(source.clone()) });
        while memory.lent_bytes() == 0 {
            let before = memory.bytes();
            memory.alloc(192);
            assert!(before < 128 << 10 && (memory.lent_bytes() == 0 || before >= 64 << 10), "{before}");
        }
        assert_eq!(budget.used(), memory.bytes());
    }

    #[test]
    fn a_small_user_costs_little_and_a_large_one_wastes_little() {
        let memory = Memory::new(8, MemoryBudget::new(0));
        memory.alloc(100);
        assert!(memory.bytes() <= FIRST_CHUNK);
        for _ in 0..200_000 {
            memory.alloc(100);
        }
        assert!(memory.bytes() < 104 * 200_000 * 5 / 4, "{}", memory.bytes());
    }
}
