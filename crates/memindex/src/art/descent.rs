//! A point lookup in steps: each asks the processor for what the next one looks at, for whoever has something else to do until that is
//! near. Many of them in turn wait for memory at the same time instead of one after the other.

use terrane_base::Seq;

use crate::art::reclaim::Guard;
use crate::art::word::{Leaf, Word};
use crate::art::{Art, Next, Place};
use crate::record::Record;

/// See the module's head. Keeps its thread pinned.
pub(crate) struct Descent<'a> {
    art: &'a Art,
    guard: Guard<'a>,
    at: Next,
}

impl<'a> Descent<'a> {
    pub(crate) fn new(art: &'a Art, key: &[u8]) -> Self {
        let guard = art.domain.pin();
        let root = art.root_place();
        art.prefetch(root, key);
        Descent { art, guard, at: Next::Node(root) }
    }

    /// Goes one node down; whether there is more to come before [`Descent::finish`] has all near.
    #[inline]
    pub(crate) fn step(&mut self, key: &[u8]) -> bool {
        let Next::Node(place) = self.at else { return false };
        self.at = self.art.toward(place, key, &self.guard);
        match self.at {
            Next::Node(place) => self.art.prefetch(place, key),
            Next::Leaf(word) if word.is_empty() => return false,
            Next::Leaf(word) => word.prefetch_leaf(),
        }
        true
    }

    /// As [`Art::get`].
    #[inline]
    pub(crate) fn finish(mut self, key: &[u8], snapshot: Seq) -> Option<Record<'a>> {
        while let Next::Node(place) = self.at {
            self.at = self.art.toward(place, key, &self.guard);
        }
        let Next::Leaf(leaf) = self.at else { return None };
        self.art.newest(leaf, key, snapshot, &self.guard)
    }
}

impl Art {
    /// Asks the processor for what the way through a node begins with.
    #[inline]
    pub(super) fn prefetch(&self, place: Place, key: &[u8]) {
        // (A node that has to say itself how deep it is waits for its header.)
        let byte = place.depth().and_then(|depth| key.get(depth)).copied();
        self.node(place.word).prefetch(byte);
    }
}

impl Word {
    /// Asks the processor for what reading this leaf begins with.
    #[inline]
    fn prefetch_leaf(self) {
        self.prefetch();
        // SAFETY: the word is one that the tree holds.
        if let Some(Leaf::One(_)) = unsafe { self.leaf() } {
            // A key may go on there.
            self.prefetch_next();
        }
    }
}
