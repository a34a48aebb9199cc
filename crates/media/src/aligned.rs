//! Bytes at addresses that direct I/O accepts.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::{HUGE_PAGE, Mapping, SECTOR};

/// From this capacity on, memory comes from the kernel and returns there: buffers that are read into by one thread and
/// given up by another would leave an allocator that keeps memory by thread with gaps that nothing fits.
const MAPPED: usize = 128 << 10;

/// Gives dangling pointers the alignment of real ones, so that an empty buffer is as good for direct I/O as any other.
#[repr(align(4096))]
struct Sector;

const _: () = assert!(align_of::<Sector>() == SECTOR);

/// A growable byte buffer whose start is aligned to [`SECTOR`] and whose capacity is a multiple of it.
///
/// Growing fills with zeros, and bytes between the length and the capacity are always zero, so that padding a buffer up
/// to a whole sector ([`AlignedBuf::pad_to`]) never lets old bytes reach a disk.
pub struct AlignedBuf {
    /// Dangling, but aligned, while `cap` is zero.
    ptr: NonNull<u8>,
    len: usize,
    /// A multiple of [`SECTOR`].
    cap: usize,
    /// What `ptr` points to, if the program's allocator did not give it.
    mapping: Option<Mapping>,
}

// SAFETY: the buffer owns its memory alone, as a `Vec<u8>` does.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access only reads.
unsafe impl Sync for AlignedBuf {}

impl AlignedBuf {
    /// An empty buffer; allocates nothing.
    pub const fn new() -> Self {
        AlignedBuf { ptr: NonNull::<Sector>::dangling().cast(), len: 0, cap: 0, mapping: None }
    }

    /// An empty buffer with room for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        let mut b = AlignedBuf::new();
        b.reserve(capacity);
        b
    }

    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        let mut b = AlignedBuf::with_capacity(len);
        b.len = len;
        b
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut b = AlignedBuf::with_capacity(bytes.len());
        b.extend_from_slice(bytes);
        b
    }

    /// How many bytes fit without allocating.
    pub fn capacity(&self) -> usize {
        self.cap
    }

    /// Makes room for `additional` more bytes.
    pub fn reserve(&mut self, additional: usize) {
        let want = self.len.saturating_add(additional);
        if want > self.cap {
            self.grow(want.max(self.cap.saturating_mul(2)));
        }
    }

    /// Sets the length; new bytes are zero.
    pub fn resize(&mut self, len: usize) {
        if len < self.len {
            let old = self.len;
            self[len..old].fill(0);
        } else {
            self.reserve(len - self.len);
        }
        self.len = len;
    }

    /// Appends `bytes`.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let at = self.len;
        self.reserve(bytes.len());
        self.len += bytes.len();
        self[at..].copy_from_slice(bytes);
    }

    /// Appends zeros until the length is a multiple of `align`.
    pub fn pad_to(&mut self, align: usize) {
        self.resize(self.len.next_multiple_of(align));
    }

    /// Makes it empty; keeps the memory.
    pub fn clear(&mut self) {
        self.resize(0);
    }

    fn grow(&mut self, want: usize) {
        let layout = Self::layout(want);
        let (ptr, mapping) = if layout.size() < MAPPED {
            // SAFETY: the size is not zero, since only growing beyond the capacity comes here.
            (NonNull::new(unsafe { alloc_zeroed(layout) }), None)
        } else {
            let align = if layout.size() < HUGE_PAGE { SECTOR } else { HUGE_PAGE };
            // Direct I/O looks up and pins page by page.
            let mapping = Mapping::new(layout.size(), align).inspect(Mapping::prefer_huge_pages);
            (mapping.as_ref().map(Mapping::base), mapping)
        };
        let Some(ptr) = ptr else { handle_alloc_error(layout) };
        let grown = AlignedBuf { ptr, len: self.len, cap: layout.size(), mapping };
        // SAFETY: both are allocations of at least `len` bytes, and the new one is nobody else's.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr.as_ptr(), grown.ptr.as_ptr(), self.len) };
        *self = grown;
    }

    /// Sizes beyond `isize::MAX` cannot be allocated by anyone; as for a `Vec`, asking for one ends the program.
    fn layout(bytes: usize) -> Layout {
        let rounded = bytes.checked_next_multiple_of(SECTOR).unwrap_or(usize::MAX);
        match Layout::from_size_align(rounded, SECTOR) {
            Ok(layout) => layout,
            Err(_) => handle_alloc_error(Layout::new::<[u8; SECTOR]>()),
        }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if self.mapping.is_none() && self.cap > 0 {
            // SAFETY: allocated by `grow` with this very layout, which is a function of the capacity.
            unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.cap)) };
        }
    }
}

impl Default for AlignedBuf {
    fn default() -> Self {
        AlignedBuf::new()
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> Self {
        AlignedBuf::copy_of(self)
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes are allocated and initialised (memory comes zeroed); an empty slice may dangle.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<&[u8]> for AlignedBuf {
    fn from(bytes: &[u8]) -> Self {
        AlignedBuf::copy_of(bytes)
    }
}

impl PartialEq for AlignedBuf {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for AlignedBuf {}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlignedBuf({} of {} bytes)", self.len, self.cap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_growth_keeps_content_and_alignment() {
        let mut b = AlignedBuf::new();
        let mut model = Vec::new();
        for i in 0..3000u32 {
            b.extend_from_slice(&i.to_le_bytes());
            model.extend_from_slice(&i.to_le_bytes());
            assert_eq!(b.as_ptr() as usize % SECTOR, 0);
            assert_eq!(b.capacity() % SECTOR, 0);
        }
        assert_eq!(*b, *model);
        assert_eq!(b.clone(), b);
    }

    #[test]
    fn large_ones_are_no_different() {
        let mut b = AlignedBuf::zeroed(MAPPED - SECTOR);
        b[7] = 7;
        let lens = [MAPPED, 2 * MAPPED, 5 * MAPPED, HUGE_PAGE - SECTOR, HUGE_PAGE, HUGE_PAGE + MAPPED];
        for len in lens {
            b.resize(len);
            b[len - 1] = 1;
            assert_eq!((b[7], b[len - 2], b[len - 1]), (7, 0, 1));
            assert_eq!((b.as_ptr() as usize % SECTOR, b.capacity() % SECTOR), (0, 0));
        }
        assert_eq!(b.iter().map(|&x| usize::from(x)).sum::<usize>(), 7 + lens.len());
    }

    #[test]
    fn bytes_that_come_back_after_shrinking_are_zero() {
        let mut b = AlignedBuf::copy_of(&[7; 100]);
        b.resize(10);
        b.pad_to(64);
        assert_eq!(b[..10], [7; 10]);
        assert_eq!(b[10..], [0; 54]);
        b.clear();
        b.resize(100);
        assert_eq!(*b, [0; 100]);
    }

    #[test]
    fn an_empty_buffer_is_an_empty_slice() {
        let b = AlignedBuf::new();
        assert!(b.is_empty());
        assert_eq!(b.clone(), AlignedBuf::zeroed(0));
    }
}
