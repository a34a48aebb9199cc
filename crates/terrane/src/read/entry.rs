//! The key and the value that a cursor stands on, apart from the scan that found them, which may be taken away at any
//! moment between two calls.
//!
//! Keys are copied, and so are values that are short: where several sources take turns, a pin on another block at each step would
//! cost more. A longer value in a block stays there: the entry pins that one block, and takes another pin only when the value lies in
//! another block than the one before. A value in a memtable is copied, since a memtable is freed as a whole.

use std::ops::Range;

use terrane_cache::Pin;
use terrane_format::Kind;

use crate::read::scan::empty;

/// Most bytes of a value in a block that is not pinned yet which are copied: to count a pin in and out takes as long.
const COPIED: usize = 256;

/// Where a value lies.
#[derive(Debug)]
pub(crate) enum Place<'a> {
    Memory(&'a [u8]),
    Block(&'a Pin, Range<usize>),
}

impl Place<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Place::Memory(bytes) => bytes,
            Place::Block(pin, range) => pin.get(range.clone()).unwrap_or_default(),
        }
    }
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Entry {
    key: Vec<u8>,
    pub(crate) kind: Kind,
    /// The value is there, at `range`; else it is `copy`.
    block: Option<Pin>,
    range: Range<usize>,
    copy: Vec<u8>,
}

impl Entry {
    /// Empty, as is one that was cleared.
    pub(crate) fn new() -> Self {
        Entry { key: Vec::new(), kind: Kind::Delete, block: None, range: 0..0, copy: Vec::new() }
    }

    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// The stored value: an encoded reference for a large one.
    #[inline]
    pub(crate) fn value(&self) -> &[u8] {
        match &self.block {
            Some(b) => b.get(self.range.clone()).unwrap_or_default(),
            None => &self.copy,
        }
    }

    #[inline]
    pub(crate) fn set(&mut self, key: &[u8], kind: Kind, value: Place<'_>) {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.kind = kind;
        match value {
            // Frames do not move, and ours is alive: the same address is the same block.
            Place::Block(pin, range) if self.block.as_deref().is_some_and(|b| std::ptr::eq(b, &**pin)) => {
                self.range = range;
            }
            Place::Block(pin, range) if range.len() > COPIED => {
                (self.block, self.range) = (Some(pin.clone()), range);
            }
            value => {
                self.block = None;
                self.copy.clear();
                self.copy.extend_from_slice(value.bytes());
            }
        }
    }

    /// Keeps `key` alone: what else there is to show lies elsewhere.
    pub(crate) fn set_key(&mut self, key: &[u8]) {
        self.key.clear();
        self.key.extend_from_slice(key);
        self.block = None;
    }

    /// Lets go of the block; keeps its memory for the next key.
    pub(crate) fn clear(&mut self) {
        self.key.clear();
        self.block = None;
        self.copy.clear();
    }

    /// Clears it, and keeps but little memory.
    pub(crate) fn rest(&mut self) {
        self.block = None;
        empty(&mut self.key);
        empty(&mut self.copy);
    }
}
