//! The nodes of the tree: 4, 16, 48 or 256 children by the next key byte.
//!
//! ```text
//! header (32 bytes)   version lock | depth, count, (keys of a Node4) | tail | here
//! Node4    64 bytes   header, 4 children
//! Node16  192 bytes   header, 16 key bytes, 16 children
//! Node48  704 bytes   header, 256-bit set of present bytes, 256 indexes, 48 children
//! Node256 2112 bytes  header, 256-bit set of present bytes, 256 children
//! ```
//!
//! A node discriminates at one *depth*, the number of key bytes before its own; all keys below it agree on those. The
//! depth never changes, nor does the *tail*, the last eight bytes before it: splitting a compressed path changes the
//! parent's pointer alone. `here` is the leaf of the key that ends at this node, or else the address of any record
//! below it, from which bytes before the tail can be read.
//!
//! # Concurrency
//! Every field is atomic, and only the holder of the lock stores. There are no deletes, so each change becomes visible
//! with one releasing store: of a child over another, or of what makes a new child findable (count, index, presence bit)
//! after the child itself. Children of small nodes are therefore kept in order of arrival. A reader needs no lock, no
//! version and no retry: whatever it finds was there, and what was there before it came it finds.

mod large;
mod small;

use std::cmp::Ordering as Order;

use terrane_base::sync::atomic::{AtomicU64, Ordering};

use crate::art::lock::VersionLock;
use crate::art::word::{Kind, LINE, Leaf, Word};
use crate::memory::prefetch;
use crate::record::RecordPtr;

pub(crate) use large::{Node48, Node256};
pub(crate) use small::{Node4, Node16};

const DEPTH_BITS: u32 = 24;
const DEPTH: u64 = (1 << DEPTH_BITS) - 1;
const KEYS_SHIFT: u32 = 32;

/// Deepest node that the header can describe.
pub(crate) const MAX_DEPTH: usize = DEPTH as usize;

/// The last bytes of its path that a header has.
pub(crate) const TAIL: usize = size_of::<u64>();

/// What all nodes have. See the module's head.
#[repr(C)]
pub(crate) struct Header {
    pub(crate) lock: VersionLock,
    /// depth (24 bits), count (8 bits), keys of a Node4 (32 bits)
    meta: AtomicU64,
    tail: AtomicU64,
    here: AtomicU64,
}

impl Header {
    fn new() -> Self {
        Header {
            lock: VersionLock::new(),
            meta: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            here: AtomicU64::new(0),
        }
    }

    /// Describes a node without children at the end of `path`. Only for the node's sole owner.
    fn start(&self, path: &[u8], here: Word) {
        self.meta.store(path.len() as u64, Ordering::Relaxed);
        self.tail.store(tail(path, path.len()), Ordering::Relaxed);
        self.here.store(here.raw(), Ordering::Relaxed);
    }

    fn copy_from(&self, other: &Header) {
        self.meta.store(other.meta.load(Ordering::Relaxed) & DEPTH, Ordering::Relaxed);
        self.tail.store(other.tail.load(Ordering::Relaxed), Ordering::Relaxed);
        self.here.store(other.here.load(Ordering::Acquire), Ordering::Relaxed);
    }

    /// Key bytes before the one that this node looks at.
    #[inline]
    pub(crate) fn depth(&self) -> usize {
        (self.meta.load(Ordering::Relaxed) & DEPTH) as usize
    }

    #[inline]
    fn count(meta: u64) -> usize {
        (meta >> DEPTH_BITS) as usize & 0xff
    }

    /// The leaf of the key that ends here, or [`Word::EMPTY`].
    #[inline]
    pub(crate) fn here(&self) -> Word {
        let word = Word::from_raw(self.here.load(Ordering::Acquire));
        if word.is_leaf() { word } else { Word::EMPTY }
    }

    /// Whether the last bytes of a path from `start` to this node's depth, at most eight, are those of `key`. The key
    /// must be at least `depth` long.
    #[inline]
    pub(crate) fn tail_matches(&self, key: &[u8], start: usize, depth: usize) -> bool {
        let bytes = (depth - start).min(TAIL);
        let differing = self.tail.load(Ordering::Relaxed) ^ tail(key, depth);
        // Shifting by 64 in two steps: `bytes` may be 0.
        bytes == 0 || differing << (64 - 8 * bytes) == 0
    }

    /// Compares the path from `start` to this node's depth with the same stretch of `key`: how many bytes agree, and
    /// how the path orders against the key (`Greater` if the key ends within the path).
    ///
    /// # Safety
    /// As for [`Word::leaf`].
    pub(crate) unsafe fn compare_path(&self, key: &[u8], start: usize) -> (usize, Order) {
        let depth = self.depth();
        if key.len() >= depth && depth - start <= TAIL && self.tail_matches(key, start, depth) {
            return (depth - start, Order::Equal);
        }
        let tail = self.tail.load(Ordering::Relaxed).to_be_bytes();
        // Bytes of the path that are not here, but in a record alone.
        let before = (depth - start).saturating_sub(TAIL);
        let sample = match before {
            0 => None,
            // SAFETY: per contract.
            _ => unsafe { self.sample() },
        };
        let key = &key[start..key.len().min(depth)];
        let (first, last) = key.split_at(before.min(key.len()));
        // A record that was damaged since may be too short to say: those bytes count as the key's then, for what is here still tells.
        let path = sample.and_then(|sample| sample.get(start..start + before)).unwrap_or(first);
        match compare(path, first) {
            (same, Order::Equal) if first.len() == before => {
                let (more, order) = compare(&tail[TAIL - (depth - start - before)..], last);
                (same + more, order)
            }
            (same, Order::Equal) => (same, Order::Greater),
            differing => differing,
        }
    }

    /// The byte at `at`, before this node's depth, of all keys below it.
    ///
    /// # Safety
    /// As for [`Word::leaf`].
    pub(crate) unsafe fn path_byte(&self, at: usize) -> u8 {
        let depth = self.depth();
        if depth - at <= 8 {
            return self.tail.load(Ordering::Relaxed).to_be_bytes()[8 - (depth - at)];
        }
        // SAFETY: per contract.
        let sample = unsafe { self.sample() };
        sample.and_then(|key| key.get(at).copied()).unwrap_or(0)
    }

    /// The record whose key says what the path from `start` is, where the header has not all of it.
    ///
    /// # Safety
    /// As for [`Word::leaf`].
    #[inline]
    pub(crate) unsafe fn path_record(&self, start: usize) -> Option<RecordPtr> {
        // SAFETY: per contract.
        if self.depth() - start > TAIL { unsafe { self.sample_record() } } else { None }
    }

    /// The key of some record below this node.
    ///
    /// # Safety
    /// As for [`Word::leaf`].
    pub(crate) unsafe fn sample<'a>(&self) -> Option<&'a [u8]> {
        // SAFETY: per contract; records live as long as the index.
        unsafe { self.sample_record().map(|record| record.read().key) }
    }

    /// Some record below this node.
    ///
    /// # Safety
    /// As for [`Word::leaf`].
    unsafe fn sample_record(&self) -> Option<RecordPtr> {
        let word = Word::from_raw(self.here.load(Ordering::Acquire));
        // SAFETY: per contract.
        match unsafe { word.leaf() } {
            Some(Leaf::One(record)) => Some(record),
            Some(Leaf::Many(list)) => list.newest(),
            None => RecordPtr::from_address(word.raw()),
        }
    }
}

/// How many bytes agree of a stretch of a path and one of a key, which is no longer; and how the first orders against the second
/// (`Greater` if the key ends within it).
#[inline]
fn compare(path: &[u8], key: &[u8]) -> (usize, Order) {
    let same = path.iter().zip(key).take_while(|(a, b)| a == b).count();
    let order = match (path.get(same), key.get(same)) {
        (Some(a), Some(b)) => a.cmp(b),
        (Some(_), None) => Order::Greater,
        (None, _) => Order::Equal,
    };
    (same, order)
}

/// The up to eight bytes of `key` before `end`, the last one lowest.
#[inline]
fn tail(key: &[u8], end: usize) -> u64 {
    if let Some(bytes) = key[..end].last_chunk::<8>() {
        return u64::from_be_bytes(*bytes);
    }
    if let Some(bytes) = key.first_chunk::<8>() {
        return u64::from_be_bytes(*bytes).checked_shr(64 - 8 * end as u32).unwrap_or(0);
    }
    key[..end].iter().fold(0, |tail, &byte| tail << 8 | u64::from(byte))
}

/// Where in a node a leaf or child hangs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slot {
    /// The key that ends at the node.
    Here,
    /// Below this byte.
    Byte(u8),
}

/// What the four kinds can do. See [`NodeRef`] for the meanings; storing methods are for the lock's holder or, before
/// the node is published, its sole owner.
pub(crate) trait Node {
    const KIND: Kind;
    fn new() -> Self;
    fn header(&self) -> &Header;
    /// Forgets all children.
    fn clear(&self);
    fn find(&self, byte: u8) -> Word;
    fn at_or_after(&self, byte: usize) -> Option<(u8, Word)>;
    fn before(&self, byte: usize) -> Option<(u8, Word)>;
    fn is_full(&self) -> bool;
    fn add(&self, byte: u8, child: Word);
    fn replace(&self, byte: u8, child: Word);
}

/// A node of any kind.
#[derive(Clone, Copy)]
pub(crate) enum NodeRef<'a> {
    N4(&'a Node4),
    N16(&'a Node16),
    N48(&'a Node48),
    N256(&'a Node256),
}

macro_rules! each {
    ($self:expr, $node:ident => $body:expr) => {
        match $self {
            NodeRef::N4($node) => $body,
            NodeRef::N16($node) => $body,
            NodeRef::N48($node) => $body,
            NodeRef::N256($node) => $body,
        }
    };
}

impl<'a> NodeRef<'a> {
    #[inline]
    pub(crate) fn header(self) -> &'a Header {
        each!(self, node => node.header())
    }

    pub(crate) fn kind(self) -> Kind {
        match self {
            NodeRef::N4(_) => Kind::N4,
            NodeRef::N16(_) => Kind::N16,
            NodeRef::N48(_) => Kind::N48,
            NodeRef::N256(_) => Kind::N256,
        }
    }

    pub(crate) fn address(self) -> usize {
        each!(self, node => std::ptr::from_ref(node).expose_provenance())
    }

    /// A word for this node.
    pub(crate) fn word(self, prefix: usize) -> Word {
        Word::node(self.address(), self.kind(), prefix)
    }

    /// The child below `byte`, or [`Word::EMPTY`].
    #[inline]
    pub(crate) fn find(self, byte: u8) -> Word {
        each!(self, node => node.find(byte))
    }

    /// Asks the processor for what [`NodeRef::find`] of `byte` will look at, and for the header. The node may have gone from the tree.
    #[inline]
    pub(crate) fn prefetch(self, byte: Option<u8>) {
        let at = self.address() as u64;
        prefetch(at);
        match (self, byte) {
            (NodeRef::N4(_), _) => {}
            (NodeRef::N16(_), _) => {
                (1..size_of::<Node16>() as u64 / LINE).for_each(|n| prefetch(at + n * LINE))
            }
            (NodeRef::N48(_), Some(byte)) => prefetch(at + Node48::looks_at(byte)),
            (NodeRef::N256(_), Some(byte)) => prefetch(at + Node256::looks_at(byte)),
            (NodeRef::N48(_) | NodeRef::N256(_), None) => {}
        }
    }

    /// Asks the processor for what steps from the child of `byte` to those behind it look at in this node, as far as the search for that
    /// one has not been there.
    pub(crate) fn prefetch_steps(self, byte: u8) {
        let at = self.address() as u64;
        match self {
            // All of it was asked for.
            NodeRef::N4(_) | NodeRef::N16(_) => {}
            // They lie in the order in which they were added.
            NodeRef::N48(_) => Node48::children_lines().for_each(|line| prefetch(at + line)),
            NodeRef::N256(_) => prefetch(at + Node256::looks_at(byte) + LINE),
        }
    }

    /// The child with the smallest byte at or after `byte` (which may be 256).
    pub(crate) fn at_or_after(self, byte: usize) -> Option<(u8, Word)> {
        each!(self, node => node.at_or_after(byte))
    }

    /// The child with the largest byte before `byte` (which may be 256).
    pub(crate) fn before(self, byte: usize) -> Option<(u8, Word)> {
        each!(self, node => node.before(byte))
    }

    /// Whether only a larger node can take another child.
    pub(crate) fn is_full(self) -> bool {
        each!(self, node => node.is_full())
    }

    /// Adds a child below a byte that has none. The node must not be full.
    pub(crate) fn add(self, byte: u8, child: Word) {
        each!(self, node => node.add(byte, child));
    }

    /// Stores over what hangs in `slot`; a byte must have a child already.
    pub(crate) fn set(self, slot: Slot, word: Word) {
        match slot {
            Slot::Here => self.header().here.store(word.raw(), Ordering::Release),
            Slot::Byte(byte) => each!(self, node => node.replace(byte, word)),
        }
    }

    /// Makes this node the childless end of `path`.
    pub(crate) fn start(self, path: &[u8], here: Word) {
        each!(self, node => node.clear());
        self.header().start(path, here);
    }

    /// Makes this node what the smaller `other` is. The other one must be locked by the caller.
    pub(crate) fn start_as(self, other: NodeRef<'_>) {
        each!(self, node => node.clear());
        self.header().copy_from(other.header());
        let mut from = 0;
        while let Some((byte, child)) = other.at_or_after(from) {
            self.add(byte, child);
            from = usize::from(byte) + 1;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
