//! Looking at several frames under one epoch guard, by search and by swizzle slot.

use std::cell::Cell;
use std::fmt;
use std::ops::{Deref, Range};

use crate::cache::Cache;
use crate::epoch::Guard;
use crate::frame::{Found, Frame, LINE, Pin, prefetch};
use crate::key::FrameKey;
use crate::swizzle::{Array, Children, PARENT, SECTION, Slots, Swizzling};

/// Keeps from being freed whatever is found while it lives. See [`Cache::hold`].
#[must_use]
pub struct Hold<'c> {
    cache: &'c Cache,
    guard: Guard<'c>,
    /// Accesses that found their frame: counted for all threads at the end.
    hits: Cell<u64>,
}

/// A frame that was found under a hold, and is good as long as that. Dereferences to the bytes.
#[derive(Clone, Copy)]
pub struct Seen<'h>(Found<'h>);

impl<'c> Hold<'c> {
    pub(crate) fn new(cache: &'c Cache, guard: Guard<'c>) -> Hold<'c> {
        Hold { cache, guard, hits: Cell::new(0) }
    }

    /// The frame of `key`, by search.
    #[inline]
    pub fn find(&self, key: FrameKey) -> Option<Seen<'_>> {
        self.cache.find(key, &self.guard).map(|found| self.see(found))
    }

    /// The parent frame and its children's slots, if the parent is swizzled.
    #[inline]
    pub fn parent<'h, P, T>(&'h self, slots: &'h Slots<P, T>) -> Option<(Seen<'h>, Children<'h, P, T>)> {
        if slots.cache != self.cache.number() {
            return None;
        }
        // SAFETY: the guard is of the cache that fills the slots.
        let (parent, children) =
            unsafe { (slots.home.parent(&self.guard)?, slots.home.children(&self.guard)?) };
        Some((self.see(parent), children))
    }

    /// The frame of the section, if it is swizzled.
    #[inline]
    pub fn section<'h, P, T>(&'h self, slots: &'h Slots<P, T>) -> Option<Seen<'h>> {
        if slots.cache != self.cache.number() {
            return None;
        }
        // SAFETY: the guard is of the cache that fills the slots.
        let section = unsafe { slots.home.section(&self.guard)? };
        Some(self.see(section))
    }

    /// The frame of a child, if it is swizzled.
    #[inline]
    pub fn child<'h, P, T>(&'h self, children: Children<'h, P, T>, number: u32) -> Option<Seen<'h>> {
        children.frame(number).map(|found| self.see(found))
    }

    /// Asks the processor to load these children's slots. Never waits.
    #[inline]
    pub fn prefetch_slots<P, T>(&self, children: Children<'_, P, T>, numbers: Range<u32>) {
        children.prefetch(numbers);
    }

    /// Asks the processor to load these bytes of a child that is swizzled and whose length is `of`, and its header. Does not count as
    /// an access, and what is not within the child is no harm.
    #[inline]
    pub fn prefetch_child<P, T, const N: usize>(
        &self,
        children: Children<'_, P, T>,
        number: u32,
        of: u32,
        parts: [Range<u32>; N],
    ) {
        if let Some(found) = children.frame(number) {
            let frame: *const Frame = found.as_ptr().as_ptr();
            Frame::prefetch_header(frame);
            parts.into_iter().for_each(|part| Frame::prefetch_part(frame, of, part));
        }
    }

    /// As [`Hold::prefetch_child`], of the header, the first bytes and the last ones of a child whose length is `of`.
    #[inline]
    pub fn prefetch_ends<P, T>(&self, children: Children<'_, P, T>, number: u32, of: u32) {
        if let Some(found) = children.frame(number) {
            Frame::prefetch(found.as_ptr().as_ptr(), of as usize);
        }
    }

    /// Asks the processor to load these bytes of a frame that was found. Never waits.
    #[inline]
    pub fn prefetch_bytes(&self, bytes: &[u8]) {
        bytes.chunks(LINE).for_each(|line| prefetch(line.as_ptr()));
    }

    /// Has the parent, if its frame is in the cache, found by its slot from now on, and so each of so many
    /// children that is swizzled then. `known` gives what is known of it, and of each child; it is called if there is room for that.
    pub fn swizzle_parent<P, T, I>(
        &self,
        slots: &Slots<P, T>,
        key: FrameKey,
        children: usize,
        known: impl FnOnce() -> Option<(P, I)>,
    ) where
        P: Send + Sync + 'static,
        T: Send + Sync + 'static,
        I: Iterator<Item = T>,
    {
        let (accounts, booked) = (self.cache.accounts(), Array::<P, T>::bytes(children));
        if !self.may_fill(slots, Swizzling::Parents) || !accounts.book(booked) {
            return;
        }
        let Some((parent, known)) = known() else { return accounts.rebook(booked, 0) };
        let array = Box::new(Array::new(parent, known, booked, accounts.clone()));
        let home = &slots.home;
        self.cache
            .swizzle(key, &self.guard, (home.clone(), PARENT), |frame| home.swizzle_parent(frame, array));
    }

    /// As [`Hold::swizzle_parent`], of the section.
    pub fn swizzle_section<P, T>(&self, slots: &Slots<P, T>, key: FrameKey)
    where
        P: Send + Sync + 'static,
        T: Send + Sync + 'static,
    {
        if self.may_fill(slots, Swizzling::Parents) {
            let home = &slots.home;
            self.cache
                .swizzle(key, &self.guard, (home.clone(), SECTION), |frame| home.swizzle_section(frame));
        }
    }

    /// As [`Hold::swizzle_parent`], of a child whose parent is swizzled.
    pub fn swizzle_child<P, T>(&self, slots: &Slots<P, T>, number: u32, key: FrameKey)
    where
        P: Send + Sync + 'static,
        T: Send + Sync + 'static,
    {
        if self.may_fill(slots, Swizzling::Children) {
            let home = &slots.home;
            let fill = |frame| home.swizzle_child(number, frame, &self.guard);
            self.cache.swizzle(key, &self.guard, (home.clone(), number), fill);
        }
    }

    /// Whether the slots are filled by this cache, and such frames are swizzled.
    fn may_fill<P, T>(&self, slots: &Slots<P, T>, what: Swizzling) -> bool {
        slots.cache == self.cache.number() && what <= self.cache.swizzling()
    }

    /// Notes an access.
    #[inline]
    fn see<'h>(&self, found: Found<'h>) -> Seen<'h> {
        found.touch();
        self.hits.set(self.hits.get() + 1);
        #[cfg(feature = "reference-counts")]
        if self.cache.counts() {
            drop(found.pin());
        }
        Seen(found)
    }
}

impl Drop for Hold<'_> {
    #[inline]
    fn drop(&mut self) {
        self.cache.add_hits(self.hits.get());
    }
}

impl<'h> Seen<'h> {
    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &'h [u8] {
        self.0.bytes()
    }

    /// Keeps the frame beyond the hold.
    pub fn pin(&self) -> Pin {
        self.0.pin()
    }
}

impl Deref for Seen<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl fmt::Debug for Seen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seen").field("key", &self.0.key()).field("len", &self.len()).finish()
    }
}

impl fmt::Debug for Hold<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hold").finish_non_exhaustive()
    }
}
