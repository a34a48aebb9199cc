//! Swizzled pointers: direct ways from an extent to its frames, so that a hit needs no search.
//!
//! ```text
//! Slots (in the extent's object) --parent----> frame of the index block
//!        |  \--section--------------------------> frame of the filter section
//!        \--children--> array: per data block   known | frame of the block
//!                              (made with the parent, goes with it)
//! ```
//!
//! A slot is filled by who has found a frame by search (*swizzles* it), and emptied when the frame leaves the cache, before
//! that is retired. So the pool admits, evicts and accounts as ever, and is searched only where a slot is empty. What an array
//! *knows* of each child is the caller's: what a lookup needs beside the frame, so that one cache line has both.
//!
//! # Who may touch what
//! * Readers load slots and arrays under an epoch guard ([`Hold`]); they never write.
//! * A slot is written under the lock of the shard in which its frame lies. There the frame's entry names the slot, so that
//!   whoever takes the frame out can empty it. The entry holds a count of the slots' memory ([`Home`]), never of a frame.
//! * An array is put in place under the lock of the parent's shard, while the parent is in the cache, and taken away when the
//!   parent leaves: with one store all its children are unswizzled, before their parent goes. They stay in the cache, and are
//!   found by search until somebody swizzles them in the next array.
//!
//! # Why a pointer is never stale
//! A frame is retired after its slot was emptied in the array of that moment. Could another array still have it? Under the
//! lock of the frame's shard, who swizzled it loaded the array then current; who evicts it loads the current one later, under the
//! same lock, hence that one or a later one. An earlier array was out of reach before that load, so whoever still reads in it
//! has held a guard since before the frame was retired. A slot that is written in an array that has just been taken away is in nobody's
//! way: it goes with the array, which is freed by epoch like a frame.
//!
//! # Two frames of one slot
//! Each part of the cache may have a frame of the same bytes, while an extent moves from one to another ([`crate::FrameKey::part`]). Both
//! may then be led to by one slot, whoever came last, under two locks. What is said above holds for each of them: only under the lock of
//! its own shard is a frame put into the slot, and nobody does so once it has left. A slot that one empties while another fills it may end
//! up empty: then there is a search. An array is put in place only where there is none, and taken away by one of those who swap it out.
//!
//! Loom models in `model.rs`.
//!
//! Source: the pointer swizzling of X-Engine (Alibaba, "Optimizing X-Engine's In-memory Read Performance"); after G. Graefe et
//! al., "In-Memory Performance for Big Data" (VLDB 2014).

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use terrane_base::sync::atomic::{AtomicPtr, Ordering};

use crate::accounts::Accounts;
use crate::epoch::Guard;
use crate::frame::{Found, Frame, LINE, prefetch};

/// The slot of a parent, and of its section; children have the numbers from 0.
pub(crate) const PARENT: u32 = u32::MAX;
pub(crate) const SECTION: u32 = u32::MAX - 1;

/// Which frames a cache swizzles: each kind costs and gains something of its own, which can be measured so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Swizzling {
    /// None: all are found by search.
    Nothing,
    /// Parents and sections.
    Parents,
    /// Children too.
    #[default]
    Children,
}

/// The swizzle slots of one extent, for one cache; part of the extent's object in memory. Empty at first. `P` is what is known of
/// the parent, `T` of each child.
pub struct Slots<P, T> {
    pub(crate) home: Arc<Home<P, T>>,
    /// Number of the cache that fills them.
    pub(crate) cache: u64,
    /// What is known of children lies behind pointers that hide it.
    _known: PhantomData<Box<(P, T)>>,
}

/// What frames' entries refer to.
pub(crate) struct Home<P, T> {
    parent: AtomicPtr<Frame>,
    section: AtomicPtr<Frame>,
    /// From a box, owned.
    children: AtomicPtr<Array<P, T>>,
}

/// The children's slots.
pub(crate) struct Array<P, T> {
    parent: P,
    children: Box<[Child<T>]>,
    /// Bytes that the accounts know of.
    booked: usize,
    accounts: Arc<Accounts>,
    /// Stands for the memory in models: loom reports a read that races with its release.
    #[cfg(loom)]
    witness: terrane_base::sync::cell::UnsafeCell<()>,
}

// The stand-in is never written but on drop.
#[cfg(loom)]
// SAFETY: everything else in an array is an atomic, or `T`.
unsafe impl<P: Sync, T: Sync> Sync for Array<P, T> {}

struct Child<T> {
    frame: AtomicPtr<Frame>,
    known: T,
}

/// An array that was taken away, to be retired by epoch; it is freed, and no longer paid for, when this is dropped.
pub(crate) struct Detached(
    #[expect(dead_code, reason = "held until it may be freed, not used")] Box<dyn Send>,
);

/// Owns an array that readers may still be in, so not a box yet.
struct Shell<P, T>(NonNull<Array<P, T>>);

// SAFETY: the sole owner of an array, which any thread may free.
unsafe impl<P: Send, T: Send> Send for Shell<P, T> {}

impl<P, T> Drop for Shell<P, T> {
    fn drop(&mut self) {
        // SAFETY: came from a box, was swapped out once, and is dropped when no guard that could reach it is left.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// The slots as the cache's books see them.
pub(crate) trait Unswizzle: Send + Sync {
    /// Empties slot `number` if it leads to `frame`, which is about to leave. The lock of the frame's shard is held, and a guard. An
    /// array that goes with a parent comes back to be retired.
    fn unswizzle(&self, number: u32, frame: *mut Frame, guard: &Guard<'_>) -> Option<Detached>;
}

impl<P, T> Slots<P, T> {
    pub(crate) fn new(cache: u64) -> Slots<P, T> {
        let empty = || AtomicPtr::new(ptr::null_mut());
        let home = Home { parent: empty(), section: empty(), children: AtomicPtr::new(ptr::null_mut()) };
        Slots { home: Arc::new(home), cache, _known: PhantomData }
    }
}

impl<P, T> fmt::Debug for Slots<P, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").field("cache", &self.cache).finish_non_exhaustive()
    }
}

impl<P, T> Home<P, T> {
    /// # Safety
    /// The cache of `guard` is the one that fills these slots.
    pub(crate) unsafe fn parent<'g>(&self, guard: &'g Guard<'_>) -> Option<Found<'g>> {
        // SAFETY: by this function's contract.
        unsafe { read(&self.parent, guard) }
    }

    /// # Safety
    /// As for [`Home::parent`].
    pub(crate) unsafe fn section<'g>(&self, guard: &'g Guard<'_>) -> Option<Found<'g>> {
        // SAFETY: by this function's contract.
        unsafe { read(&self.section, guard) }
    }

    /// # Safety
    /// As for [`Home::parent`].
    pub(crate) unsafe fn children<'g>(&self, guard: &'g Guard<'_>) -> Option<Children<'g, P, T>> {
        // SAFETY: an array outlives every guard that was taken before it was taken away, by the contract. Acquire pairs with the
        // Release with which it was put in place.
        let array = unsafe { self.children.load(Ordering::Acquire).as_ref() }?;
        #[cfg(loom)]
        array.witness.with(|_| ());
        Some(Children { array, guard })
    }

    /// Fills the slot of the parent and puts the array in place, unless there is one. The lock of the parent's shard is held, and the
    /// parent is in it.
    pub(crate) fn swizzle_parent(&self, frame: NonNull<Frame>, array: Box<Array<P, T>>) {
        // Compared and swapped: while its extent moves, a parent may be in two parts, each with a lock of its own.
        let array = Shell(NonNull::from(Box::leak(array)));
        let (empty, new) = (ptr::null_mut(), array.0.as_ptr());
        if self.children.compare_exchange(empty, new, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            std::mem::forget(array);
        }
        self.parent.store(frame.as_ptr(), Ordering::Release);
    }

    /// Fills the slot of the section. The lock of the frame's shard is held, and the frame is in it.
    pub(crate) fn swizzle_section(&self, frame: NonNull<Frame>) {
        self.section.store(frame.as_ptr(), Ordering::Release);
    }

    /// As [`Home::swizzle_section`], of a child; does nothing where there is no array.
    pub(crate) fn swizzle_child(&self, number: u32, frame: NonNull<Frame>, _guard: &Guard<'_>) {
        // SAFETY: as in `children`; that it is the same cache's guard is what the shard's lock stands for.
        let array = unsafe { self.children.load(Ordering::Acquire).as_ref() };
        if let Some(child) = array.and_then(|a| a.children.get(number as usize)) {
            child.frame.store(frame.as_ptr(), Ordering::Release);
        }
    }
}

impl<P: Send + Sync + 'static, T: Send + Sync + 'static> Unswizzle for Home<P, T> {
    fn unswizzle(&self, number: u32, frame: *mut Frame, _guard: &Guard<'_>) -> Option<Detached> {
        let empty = |slot: &AtomicPtr<Frame>| {
            let leads_there = slot.load(Ordering::Relaxed) == frame;
            if leads_there {
                slot.store(ptr::null_mut(), Ordering::Release);
            }
            leads_there
        };
        match number {
            PARENT if empty(&self.parent) => {
                let array = self.children.swap(ptr::null_mut(), Ordering::AcqRel);
                return NonNull::new(array).map(|array| Detached(Box::new(Shell(array))));
            }
            PARENT => {}
            SECTION => {
                empty(&self.section);
            }
            child => {
                // SAFETY: as in `swizzle_child`.
                let array = unsafe { self.children.load(Ordering::Acquire).as_ref() };
                array.and_then(|a| a.children.get(child as usize)).map(|child| empty(&child.frame));
            }
        }
        None
    }
}

impl<P, T> Drop for Home<P, T> {
    fn drop(&mut self) {
        // Nobody has the slots any more, so nobody reads in the array.
        if let Some(array) = NonNull::new(self.children.load(Ordering::Acquire)) {
            drop(Shell(array));
        }
    }
}

impl<P, T> Array<P, T> {
    /// Bytes of an array of `children`.
    pub(crate) fn bytes(children: usize) -> usize {
        size_of::<Array<P, T>>() + children * size_of::<Child<T>>()
    }

    /// Empty slots, for which the caller has booked that many bytes.
    pub(crate) fn new(
        parent: P,
        known: impl Iterator<Item = T>,
        booked: usize,
        accounts: Arc<Accounts>,
    ) -> Array<P, T> {
        let children = known.map(|known| Child { frame: AtomicPtr::new(ptr::null_mut()), known }).collect();
        Array {
            parent,
            children,
            booked,
            accounts,
            #[cfg(loom)]
            witness: terrane_base::sync::cell::UnsafeCell::new(()),
        }
    }
}

impl<P, T> Drop for Array<P, T> {
    fn drop(&mut self) {
        #[cfg(loom)]
        self.witness.with_mut(|_| ());
        self.accounts.rebook(self.booked, 0);
    }
}

/// What is known of an extent's children, and the ways to those that are cached; good as long as the hold that it came from.
pub struct Children<'g, P, T> {
    array: &'g Array<P, T>,
    guard: &'g Guard<'g>,
}

impl<P, T> Clone for Children<'_, P, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P, T> Copy for Children<'_, P, T> {}

impl<'g, P, T> Children<'g, P, T> {
    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.array.children.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.array.children.is_empty()
    }

    /// Asks the processor to load these slots.
    #[inline]
    pub(crate) fn prefetch(&self, numbers: Range<u32>) {
        let some = self.array.children.get(numbers.start as usize..).unwrap_or_default();
        let some = &some[..some.len().min(numbers.len())];
        let (first, bytes) = (some.as_ptr().cast::<u8>(), size_of_val(some));
        (0..bytes).step_by(LINE).for_each(|at| prefetch(first.wrapping_add(at)));
    }

    /// What is known of the parent.
    #[inline]
    pub fn parent(&self) -> &'g P {
        &self.array.parent
    }

    /// What is known of one.
    #[inline]
    pub fn known(&self, number: u32) -> Option<&'g T> {
        Some(&self.array.children.get(number as usize)?.known)
    }

    /// The frame of one, if its slot is filled.
    #[inline]
    pub(crate) fn frame(&self, number: u32) -> Option<Found<'g>> {
        let child = self.array.children.get(number as usize)?;
        // SAFETY: the array was reached under this guard, of the cache that fills it.
        unsafe { read(&child.frame, self.guard) }
    }
}

/// # Safety
/// Frames in this slot outlive every guard of the domain of `guard` that was taken before the slot was emptied.
#[inline]
unsafe fn read<'g>(slot: &AtomicPtr<Frame>, guard: &'g Guard<'_>) -> Option<Found<'g>> {
    // Acquire pairs with the Release with which the slot was filled, after the frame was made.
    let frame = NonNull::new(slot.load(Ordering::Acquire))?;
    // SAFETY: by this function's contract.
    Some(unsafe { Found::new(frame, guard) })
}
