//! The word that points at something in the tree, with what a reader wants to know before it goes there.
//!
//! ```text
//! 0                    nothing
//! ...address...    01  leaf: a record, the only version of its key
//! ...address...    11  leaf: the list of a key's versions
//! prefix address kk00  node of kind kk (bits 2 and 3); prefix (bits 48 to 63): the key bytes that lead from the
//!                      parent's child byte to the node, 0xffff if there are as many or more
//! ```
//!
//! Kind and prefix length stand in the pointer so that a reader can compute the child's address inside a large node
//! without waiting for the node's first cache line.

use std::ptr::with_exposed_provenance;

use crate::art::node::{Node4, Node16, Node48, Node256, NodeRef};
use crate::art::versions::VersionList;
use crate::memory::prefetch;
use crate::record::RecordPtr;

const LEAF: u64 = 0b01;
const MANY: u64 = 0b10;
const KIND_SHIFT: u32 = 2;
const PREFIX_SHIFT: u32 = 48;
const LONG_PREFIX: u64 = 0xffff;
const ADDRESS: u64 = (1 << PREFIX_SHIFT) - 1;
const RECORD_ADDRESS: u64 = ADDRESS & !(crate::record::RECORD_ALIGN as u64 - 1);
const NODE_ADDRESS: u64 = ADDRESS & !63;

/// See the module's head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Word(u64);

/// What a leaf points at.
pub(crate) enum Leaf<'a> {
    One(RecordPtr),
    Many(&'a VersionList),
}

/// The sizes of nodes, as named by the paper.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    N4 = 0,
    N16 = 1,
    N48 = 2,
    N256 = 3,
}

impl Word {
    pub(crate) const EMPTY: Word = Word(0);

    pub(crate) fn from_raw(raw: u64) -> Word {
        Word(raw)
    }

    pub(crate) fn raw(self) -> u64 {
        self.0
    }

    pub(crate) fn one(record: RecordPtr) -> Word {
        Word(record.address() | LEAF)
    }

    pub(crate) fn many(list: &VersionList) -> Word {
        Word(std::ptr::from_ref(list).expose_provenance() as u64 | LEAF | MANY)
    }

    /// A word for the node at `address`, `prefix` bytes below its parent's child byte.
    pub(crate) fn node(address: usize, kind: Kind, prefix: usize) -> Word {
        let prefix = (prefix as u64).min(LONG_PREFIX);
        Word(address as u64 | (kind as u64) << KIND_SHIFT | prefix << PREFIX_SHIFT)
    }

    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline]
    pub(crate) fn is_leaf(self) -> bool {
        self.0 & LEAF != 0
    }

    /// The leaf that this word points at; `None` for a node or nothing.
    ///
    /// # Safety
    /// The word must have been read from a live index, with acquire ordering, and the index must outlive `'a`.
    #[inline]
    pub(crate) unsafe fn leaf<'a>(self) -> Option<Leaf<'a>> {
        if !self.is_leaf() {
            return None;
        }
        if self.0 & MANY == 0 {
            return RecordPtr::from_address(self.0 & RECORD_ADDRESS).map(Leaf::One);
        }
        // SAFETY: a word tagged so points at a version list, and those live as long as the index.
        Some(Leaf::Many(unsafe { &*with_exposed_provenance((self.0 & NODE_ADDRESS) as usize) }))
    }

    /// The node that this word points at. Must be a node's word.
    ///
    /// # Safety
    /// As for [`Word::leaf`]. The memory stays a node of this kind as long as the index lives; that it is still *this*
    /// node is certain only as long as the thread stays pinned since before it read the word.
    #[inline]
    pub(crate) unsafe fn as_node<'a>(self) -> NodeRef<'a> {
        debug_assert!(!self.is_empty() && !self.is_leaf());
        let at = (self.0 & NODE_ADDRESS) as usize;
        // SAFETY: the kind in the word is the kind of the node at the address, and node memory never changes its kind.
        unsafe {
            match (self.0 >> KIND_SHIFT) & 3 {
                0 => NodeRef::N4(&*with_exposed_provenance::<Node4>(at)),
                1 => NodeRef::N16(&*with_exposed_provenance::<Node16>(at)),
                2 => NodeRef::N48(&*with_exposed_provenance::<Node48>(at)),
                _ => NodeRef::N256(&*with_exposed_provenance::<Node256>(at)),
            }
        }
    }

    /// Prefix bytes between the parent's child byte and the node; `None` if the node itself must say.
    #[inline]
    pub(crate) fn prefix(self) -> Option<usize> {
        let prefix = self.0 >> PREFIX_SHIFT;
        (prefix != LONG_PREFIX).then_some(prefix as usize)
    }

    /// The same node seen from `prefix` bytes away.
    pub(crate) fn with_prefix(self, prefix: usize) -> Word {
        Word(self.0 & ADDRESS | (prefix as u64).min(LONG_PREFIX) << PREFIX_SHIFT)
    }

    /// Asks the processor to load what the word points at.
    #[inline]
    pub(crate) fn prefetch(self) {
        prefetch(self.0 & RECORD_ADDRESS & !(LINE - 1));
    }

    /// As [`Word::prefetch`], of as many lines as most records have.
    #[inline]
    pub(crate) fn prefetch_record(self) {
        let first = self.0 & RECORD_ADDRESS & !(LINE - 1);
        (0..RECORD_LINES).for_each(|n| prefetch(first + n * LINE));
    }

    /// As [`Word::prefetch`], of the line behind, where what it points at may go on.
    #[inline]
    pub(crate) fn prefetch_next(self) {
        prefetch((self.0 & RECORD_ADDRESS & !(LINE - 1)) + LINE);
    }
}

/// Lines that are asked for of a record whose size is not known yet.
const RECORD_LINES: u64 = 3;

/// Bytes of a line of the processor's cache.
pub(crate) const LINE: u64 = 64;
