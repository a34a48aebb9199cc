//! Memory that comes from the operating system as it is, and returns there.

use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// The size of a huge page on x86-64, and on aarch64 where pages have 4 KiB. (Elsewhere they are larger, and asking for them
/// changes nothing.)
pub const HUGE_PAGE: usize = 2 << 20;

/// Whole pages of memory, zeroed at first, that nobody else uses. Those that were never touched take no memory.
///
/// What lies in it may be read and written through [`Mapping::base`] by whoever owns the mapping; dropping it gives the
/// memory back.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned memory; the pointer says nothing about a thread.
unsafe impl Send for Mapping {}
// SAFETY: a shared mapping only tells where it is.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// At least `len` bytes, which are not none, at a multiple of `align`, a power of two. `None` if the system refuses.
    pub fn new(len: usize, align: usize) -> Option<Mapping> {
        Self::with(len, align, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
    }

    /// As [`Mapping::new`], to be read alone: it stays zero, and the system sets no memory aside for it, so there may be more than there is. What
    /// the owner maps over it goes with it.
    pub(crate) fn readable(len: usize, align: usize) -> Option<Mapping> {
        Self::with(len, align, ProtFlags::READ, MapFlags::PRIVATE | MapFlags::NORESERVE)
    }

    /// Has the first `len` bytes of a [readable](Mapping::readable) one written too. False if the system refuses.
    pub(crate) fn make_writable(&self, len: usize) -> bool {
        debug_assert!(len <= self.len);
        // SAFETY: the range is this mapping's, and what may be done with it only grows.
        unsafe {
            rustix::mm::mprotect(
                self.base.as_ptr().cast(),
                len,
                rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE,
            )
        }
        .is_ok()
    }

    /// Gives all of it back but the first `len` bytes, which may be somebody else's by now: whoever tried to map over them has failed.
    pub(crate) fn leave_beginning(self, len: usize) {
        let page = rustix::param::page_size();
        let kept = len.next_multiple_of(page).min(self.len);
        let rest = std::mem::ManuallyDrop::new(self);
        // SAFETY: the end of this mapping, whose owner gives it up.
        unsafe { unmap(rest.base.add(kept), rest.len - kept) };
    }

    fn with(len: usize, align: usize, access: ProtFlags, flags: MapFlags) -> Option<Mapping> {
        debug_assert!(len > 0 && align.is_power_of_two());
        let page = rustix::param::page_size();
        let len = len.checked_next_multiple_of(page)?;
        // Every mapping begins at a page.
        let slack = if align <= page { 0 } else { align };
        let whole = len.checked_add(slack)?;
        // SAFETY: a new mapping wherever the kernel has room for one touches nothing that is there.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), whole, access, flags) };
        let start = NonNull::new(start.ok()?.cast::<u8>())?;
        let in_front = start.addr().get().next_multiple_of(align) - start.addr().get();
        // SAFETY: both lie within the mapping, which is `slack` bytes longer than `len`.
        let (base, end) = unsafe { (start.add(in_front), start.add(in_front + len)) };
        // SAFETY: the parts on both sides of what is kept; nobody knows of them.
        unsafe {
            unmap(start, in_front);
            unmap(end, slack - in_front);
        }
        Some(Mapping { base, len })
    }

    /// Asks for huge pages for all of it that makes whole ones, if it is aligned to them. A system without them leaves it at
    /// small ones: that costs speed only.
    pub fn prefer_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        {
            let whole = self.len / HUGE_PAGE * HUGE_PAGE;
            if whole > 0 {
                let advice = rustix::mm::Advice::LinuxHugepage;
                // SAFETY: the range is this mapping's, and the advice does not change its content.
                let _refused_without_harm =
                    unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), whole, advice) };
            }
        }
    }

    /// Where it begins.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which only its owner knows of.
        unsafe { unmap(self.base, self.len) };
    }
}

/// # Safety
/// The range is a part of a mapping that nobody uses any more.
unsafe fn unmap(base: NonNull<u8>, len: usize) {
    if len > 0 {
        // SAFETY: per contract.
        let unmapped = unsafe { munmap(base.as_ptr().cast(), len) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_aligned_zeroed_and_their_own() {
        let mut all: Vec<Mapping> = [1, 4 << 10, 64 << 10, HUGE_PAGE, 4 * HUGE_PAGE]
            .into_iter()
            .flat_map(|align| [1, 3 * 4096, HUGE_PAGE + 4096].map(|len| (len, align)))
            .map(|(len, align)| {
                let m = Mapping::new(len, align).unwrap();
                m.prefer_huge_pages();
                assert_eq!(m.len, len.next_multiple_of(rustix::param::page_size()));
                assert_eq!(m.base().addr().get() % align, 0);
                m
            })
            .collect();
        for m in &all {
            // SAFETY: the mapping has so many bytes, and nobody else looks at them.
            let bytes = unsafe { std::slice::from_raw_parts_mut(m.base().as_ptr(), m.len) };
            assert!(bytes.iter().all(|&b| b == 0));
            bytes.fill(7);
        }
        all.sort_unstable_by_key(Mapping::base);
        assert!(all.windows(2).all(|p| p[0].base().addr().get() + p[0].len <= p[1].base().addr().get()));
    }

    #[test]
    fn of_much_that_may_be_read_a_part_may_be_written() {
        let m = Mapping::readable(8 << 30, HUGE_PAGE).unwrap();
        assert!(m.make_writable(8192));
        // SAFETY: the mapping is as long, and nobody else looks at it.
        let (written, read) = unsafe {
            (std::slice::from_raw_parts_mut(m.base().as_ptr(), 8192), m.base().add((8 << 30) - 1).read())
        };
        written.fill(7);
        assert_eq!((written[8191], read), (7, 0));
    }

    #[test]
    fn what_nobody_has_is_refused() {
        assert!(Mapping::new(isize::MAX as usize, 1).is_none());
        assert!(Mapping::new(usize::MAX, HUGE_PAGE).is_none());
    }
}
