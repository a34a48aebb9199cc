//! A frame: one immutable byte string with its header, in one piece of memory.
//!
//! Header and bytes lie side by side, so that a hit costs one dependent load less than a boxed slice would. The price is
//! one copy when the frame is made, small beside the read that went before it. The header stands behind the bytes: a block
//! is searched from its end, so both are on the same page of memory, mostly, which the processor has to find only once.
//!
//! # Life of a frame
//! A frame is counted like an `Arc`. The shard's queue entry holds one count and every [`Pin`] one. The lookup table
//! holds none: when a frame is evicted it is unlinked from the table first, and the entry's count is given up only after
//! every epoch guard of that time is gone. A reader that found the frame under a guard may therefore use it, or turn it
//! into a pin with a plain increment, without asking whether it is still alive.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::ptr::NonNull;

use terrane_base::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::accounts::Accounts;
use crate::epoch::Guard;
use crate::key::FrameKey;
use crate::slab::{alloc_alone, charge_alone, free_alone, rounded};

/// What a frame holds, which decides how long it stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A data block. Enters on probation: a scan that reads it once does not push out what is read again and again.
    Data,
    /// A data block that takes the place of others which are here and will leave, as after a merge: it skips probation.
    Heir,
    /// An index block: every read of its extent passes through it, so it skips probation and outlasts data blocks.
    Index,
    /// A filter section; treated as an index block is.
    Filter,
}

/// Bytes of a line of the processor's cache.
pub(crate) const LINE: usize = 64;

/// Asks the processor to load the line at `address`, which may be any.
#[inline]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: a prefetch reads nothing as far as the program can tell, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = address;
}

/// Asks the processor to load what something lies in, or its first line. Never waits for it.
#[inline]
pub fn bring_near<T>(what: &T) {
    prefetch(std::ptr::from_ref(what).cast());
}

/// The header; the bytes precede it, with padding between up to a whole line. One cache line, and aligned to one.
#[repr(C, align(64))]
pub(crate) struct Frame {
    key: FrameKey,
    len: usize,
    refs: AtomicUsize,
    /// Who pays; `None` for a private frame, which belongs to its reader and never enters the cache.
    accounts: Option<std::sync::Arc<Accounts>>,
    /// Entry number in the shard's books; written under the shard's lock, before the frame can be found.
    entry: AtomicU32,
    referenced: AtomicBool,
    priority: Priority,
    /// Stands for the bytes in models: loom reports a read that races with their release.
    #[cfg(loom)]
    witness: terrane_base::sync::cell::UnsafeCell<()>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Frame>() == 64);

impl Frame {
    /// Where the bytes of a frame begin, which is where a line does, if there are `len` of them.
    #[inline]
    fn body(frame: *const Frame, len: usize) -> *const u8 {
        frame.cast::<u8>().wrapping_sub(rounded(len))
    }

    /// Asks the processor to load the header, the first bytes and the last ones of a frame of `len` bytes. The frame may be
    /// gone, and its length another.
    pub(crate) fn prefetch(frame: *const Frame, len: usize) {
        let bytes = Frame::body(frame, len);
        prefetch(bytes.wrapping_add(len.saturating_sub(1)));
        prefetch(frame.cast());
        prefetch(bytes);
    }

    /// Asks the processor to load the header.
    #[inline]
    pub(crate) fn prefetch_header(frame: *const Frame) {
        prefetch(frame.cast());
    }

    /// Asks the processor to load these of the frame's bytes, of which there are `of`.
    #[inline]
    pub(crate) fn prefetch_part(frame: *const Frame, of: u32, part: Range<u32>) {
        let bytes = Frame::body(frame, of as usize);
        let (mut at, end) = (part.start as usize & !(LINE - 1), part.end as usize);
        while at < end {
            prefetch(bytes.wrapping_add(at));
            at += LINE;
        }
    }

    /// Notes an access. Writes only where the bit is clear: the header of a hot frame stays shared among cores.
    fn touch(&self) {
        if !self.referenced.load(Ordering::Relaxed) {
            self.referenced.store(true, Ordering::Relaxed);
        }
    }

    /// # Safety
    /// `frame` is alive.
    unsafe fn bytes<'a>(frame: NonNull<Frame>) -> &'a [u8] {
        // SAFETY: the frame is alive, so its header is initialised and `len` bytes precede it, with what rounds them up, in the
        // same allocation, which `frame` has provenance over. They are never written again.
        unsafe {
            #[cfg(loom)]
            frame.as_ref().witness.with(|_| ());
            let len = frame.as_ref().len;
            std::slice::from_raw_parts(Frame::body(frame.as_ptr(), len), len)
        }
    }
}

/// Keeps one frame's bytes alive, for as long as it likes: an evicted frame is freed with its last pin, and counts as
/// used until then. Dereferences to the bytes. Cloning is one atomic increment.
pub struct Pin(NonNull<Frame>);

// SAFETY: a frame is immutable but for its atomics, and is freed by whoever drops the last count, on any thread.
unsafe impl Send for Pin {}
// SAFETY: as above; `&Pin` gives shared access to immutable bytes and atomics only.
unsafe impl Sync for Pin {}

impl Pin {
    /// Copies `bytes` into a new frame. With `accounts`, the memory is theirs, and the caller has charged
    /// [`Accounts::charge_of`] there; the frame discharges it when freed.
    pub(crate) fn new(
        key: FrameKey,
        priority: Priority,
        bytes: &[u8],
        accounts: Option<std::sync::Arc<Accounts>>,
    ) -> Pin {
        let piece = match &accounts {
            Some(accounts) => accounts.slab.alloc(bytes.len()),
            None => alloc_alone(bytes.len()),
        };
        let header = Frame {
            key,
            len: bytes.len(),
            refs: AtomicUsize::new(1),
            accounts,
            entry: AtomicU32::new(u32::MAX),
            referenced: AtomicBool::new(false),
            priority,
            #[cfg(loom)]
            witness: terrane_base::sync::cell::UnsafeCell::new(()),
        };
        // SAFETY: the allocation is ours alone, aligned, and holds `bytes.len()` bytes, rounded up to the header's alignment, and the
        // header behind them.
        let frame = unsafe {
            piece.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len());
            let frame = piece.add(rounded(bytes.len())).cast::<Frame>();
            frame.write(header);
            frame
        };
        let pin = Pin(frame);
        #[cfg(loom)]
        pin.frame().witness.with_mut(|_| ());
        pin
    }

    fn frame(&self) -> &Frame {
        // SAFETY: this pin's count keeps the frame alive.
        unsafe { self.0.as_ref() }
    }

    pub(crate) fn as_ptr(&self) -> *mut Frame {
        self.0.as_ptr()
    }

    pub(crate) fn key(&self) -> FrameKey {
        self.frame().key
    }

    pub(crate) fn priority(&self) -> Priority {
        self.frame().priority
    }

    /// Memory that it takes.
    pub(crate) fn charge(&self) -> usize {
        let frame = self.frame();
        match &frame.accounts {
            Some(accounts) => accounts.charge_of(frame.len),
            None => charge_alone(frame.len),
        }
    }

    pub(crate) fn set_entry(&self, entry: u32) {
        self.frame().entry.store(entry, Ordering::Relaxed);
    }

    /// Whether anyone but the caller holds the frame. A hint: it may change at any moment.
    pub(crate) fn is_shared(&self) -> bool {
        self.frame().refs.load(Ordering::Relaxed) > 1
    }

    pub(crate) fn referenced(&self) -> bool {
        self.frame().referenced.load(Ordering::Relaxed)
    }

    /// Does to the frame what a lookup does.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn touch(&self) {
        self.frame().touch();
    }

    pub(crate) fn clear_referenced(&self) {
        self.frame().referenced.store(false, Ordering::Relaxed);
    }

    /// Asks the processor to load the cache line of byte `at`, if there is such a byte. Never waits.
    #[inline]
    pub fn prefetch(&self, at: usize) {
        if let Some(byte) = self.get(at) {
            prefetch(byte);
        }
    }

    /// Whether the frame is outside the cache, held by its pins alone.
    pub fn is_private(&self) -> bool {
        self.frame().accounts.is_none()
    }
}

impl Clone for Pin {
    fn clone(&self) -> Pin {
        // Relaxed, as in `Arc`: the count that we hold keeps the frame alive meanwhile. It cannot overflow: memory would
        // have to be full of pins.
        self.frame().refs.fetch_add(1, Ordering::Relaxed);
        Pin(self.0)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // Release: our reads come before the count is given up. Acquire: the one who frees comes after all of them.
        if self.frame().refs.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        #[cfg(loom)]
        self.frame().witness.with_mut(|_| ());
        let (charge, len) = (self.charge(), self.frame().len);
        // SAFETY: that was the last count. No table slot leads here any more either: the entry's count is given up only
        // after the frame was unlinked and the guards of that time are gone.
        let accounts = unsafe { self.0.as_ptr().read() }.accounts;
        // SAFETY: the piece begins so far before its header.
        let piece = unsafe { self.0.cast::<u8>().sub(rounded(len)) };
        match accounts {
            Some(accounts) => {
                // SAFETY: from there in `new`, with the same length; the header was moved out above.
                unsafe { accounts.slab.free(piece, len) };
                accounts.discharge(charge);
            }
            // SAFETY: as above.
            None => unsafe { free_alone(piece, len) },
        }
    }
}

impl Deref for Pin {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: this pin's count keeps the frame alive as long as the borrow.
        unsafe { Frame::bytes(self.0) }
    }
}

impl AsRef<[u8]> for Pin {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pin").field("key", &self.key()).field("len", &self.len()).finish()
    }
}

/// A frame found under an epoch guard, good as long as the guard.
#[derive(Clone, Copy)]
pub(crate) struct Found<'g> {
    frame: NonNull<Frame>,
    guard: PhantomData<&'g Guard<'g>>,
}

impl<'g> Found<'g> {
    /// # Safety
    /// `frame` was read from a table slot under `_guard`, and frames in that table outlive every guard that was taken
    /// before they were unlinked.
    pub(crate) unsafe fn new(frame: NonNull<Frame>, _guard: &'g Guard<'_>) -> Found<'g> {
        Found { frame, guard: PhantomData }
    }

    fn frame(&self) -> &'g Frame {
        // SAFETY: alive under the guard, by the contract of `new`.
        unsafe { self.frame.as_ref() }
    }

    pub(crate) fn key(&self) -> FrameKey {
        self.frame().key
    }

    pub(crate) fn as_ptr(&self) -> NonNull<Frame> {
        self.frame
    }

    pub(crate) fn bytes(&self) -> &'g [u8] {
        // SAFETY: alive under the guard, by the contract of `new`.
        unsafe { Frame::bytes(self.frame) }
    }

    pub(crate) fn touch(&self) {
        self.frame().touch();
    }

    pub(crate) fn referenced(&self) -> bool {
        self.frame().referenced.load(Ordering::Relaxed)
    }

    pub(crate) fn pin(&self) -> Pin {
        // The guard keeps the entry's count in place, so the count is not zero here.
        self.frame().refs.fetch_add(1, Ordering::Relaxed);
        Pin(self.frame)
    }

    pub(crate) fn entry(&self) -> u32 {
        self.frame().entry.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_header_stands_right_behind_the_bytes_whatever_their_number() {
        for len in [0, 1, 63, 64, 65, 1000, 16_384usize] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let pin = Pin::new(FrameKey { extent: 1, offset: 0, part: 0 }, Priority::Data, &bytes, None);
            assert_eq!(*pin, *bytes);
            let gap = pin.as_ptr().addr() - pin.as_ref().as_ptr().addr();
            assert_eq!(gap, len.next_multiple_of(LINE));
            assert!(pin.as_ref().as_ptr().addr().is_multiple_of(LINE));
        }
    }
}
