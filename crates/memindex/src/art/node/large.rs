//! Nodes of up to 48 and 256 children, addressed by the byte.

use std::mem::offset_of;

use terrane_base::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::art::node::{DEPTH_BITS, Header, Node};
use crate::art::word::{Kind, LINE, Word};

const ONE: u64 = 1 << DEPTH_BITS;

/// Which bytes have a child: what ordered traversal goes by, and the last thing that adding a child stores.
struct Present([AtomicU64; 4]);

impl Present {
    fn new() -> Self {
        Present(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    fn clear(&self) {
        self.0.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    fn insert(&self, byte: u8) {
        let word = &self.0[usize::from(byte / 64)];
        word.store(word.load(Ordering::Relaxed) | 1 << (byte % 64), Ordering::Release);
    }

    fn at_or_after(&self, from: usize) -> Option<u8> {
        let mut mask = u64::MAX << (from % 64);
        for (i, word) in self.0.iter().enumerate().skip(from / 64) {
            let bits = word.load(Ordering::Acquire) & mask;
            if bits != 0 {
                return Some((64 * i) as u8 + bits.trailing_zeros() as u8);
            }
            mask = u64::MAX;
        }
        None
    }

    fn before(&self, to: usize) -> Option<u8> {
        let mask = (1u64 << (to % 64)) - 1;
        for (i, word) in self.0.iter().enumerate().take(to / 64 + 1).rev() {
            let bits = word.load(Ordering::Acquire) & if i == to / 64 { mask } else { u64::MAX };
            if bits != 0 {
                return Some((64 * i + 63) as u8 - bits.leading_zeros() as u8);
            }
        }
        None
    }
}

/// Up to 48 children, found through a byte-wide index of places.
#[repr(C, align(64))]
pub(crate) struct Node48 {
    header: Header,
    present: Present,
    /// Place in `children` plus one; zero for none.
    index: [AtomicU8; 256],
    children: [AtomicU64; 48],
}

impl Node48 {
    /// Where within the node a search for `byte` begins.
    pub(crate) fn looks_at(byte: u8) -> u64 {
        (offset_of!(Node48, index) + usize::from(byte)) as u64
    }

    /// Where within the node its children lie, line by line.
    pub(crate) fn children_lines() -> impl Iterator<Item = u64> {
        let first = offset_of!(Node48, children) as u64;
        (first..size_of::<Node48>() as u64).step_by(LINE as usize)
    }

    fn place(&self, byte: u8) -> Option<&AtomicU64> {
        let place = self.index[usize::from(byte)].load(Ordering::Acquire);
        self.children.get(usize::from(place).wrapping_sub(1))
    }
}

impl Node for Node48 {
    const KIND: Kind = Kind::N48;

    fn new() -> Self {
        Node48 {
            header: Header::new(),
            present: Present::new(),
            index: std::array::from_fn(|_| AtomicU8::new(0)),
            children: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    #[inline]
    fn header(&self) -> &Header {
        &self.header
    }

    fn clear(&self) {
        self.header.meta.store(0, Ordering::Relaxed);
        self.present.clear();
        self.index.iter().for_each(|place| place.store(0, Ordering::Relaxed));
    }

    #[inline]
    fn find(&self, byte: u8) -> Word {
        self.place(byte).map_or(Word::EMPTY, |child| Word::from_raw(child.load(Ordering::Acquire)))
    }

    fn at_or_after(&self, byte: usize) -> Option<(u8, Word)> {
        self.present.at_or_after(byte).map(|byte| (byte, self.find(byte)))
    }

    fn before(&self, byte: usize) -> Option<(u8, Word)> {
        self.present.before(byte).map(|byte| (byte, self.find(byte)))
    }

    fn is_full(&self) -> bool {
        Header::count(self.header.meta.load(Ordering::Acquire)) == 48
    }

    fn add(&self, byte: u8, child: Word) {
        let meta = self.header.meta.load(Ordering::Relaxed);
        let at = Header::count(meta);
        debug_assert!(at < 48);
        self.children[at].store(child.raw(), Ordering::Release);
        self.index[usize::from(byte)].store(at as u8 + 1, Ordering::Release);
        self.present.insert(byte);
        self.header.meta.store(meta + ONE, Ordering::Release);
    }

    fn replace(&self, byte: u8, child: Word) {
        if let Some(place) = self.place(byte) {
            place.store(child.raw(), Ordering::Release);
        }
    }
}

/// Any number of children.
#[repr(C, align(64))]
pub(crate) struct Node256 {
    header: Header,
    present: Present,
    children: [AtomicU64; 256],
}

impl Node256 {
    /// Where within the node a search for `byte` looks.
    pub(crate) fn looks_at(byte: u8) -> u64 {
        (offset_of!(Node256, children) + usize::from(byte) * size_of::<AtomicU64>()) as u64
    }
}

impl Node for Node256 {
    const KIND: Kind = Kind::N256;

    fn new() -> Self {
        Node256 {
            header: Header::new(),
            present: Present::new(),
            children: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    #[inline]
    fn header(&self) -> &Header {
        &self.header
    }

    fn clear(&self) {
        self.header.meta.store(0, Ordering::Relaxed);
        self.present.clear();
        self.children.iter().for_each(|child| child.store(0, Ordering::Relaxed));
    }

    #[inline]
    fn find(&self, byte: u8) -> Word {
        Word::from_raw(self.children[usize::from(byte)].load(Ordering::Acquire))
    }

    fn at_or_after(&self, byte: usize) -> Option<(u8, Word)> {
        self.present.at_or_after(byte).map(|byte| (byte, self.find(byte)))
    }

    fn before(&self, byte: usize) -> Option<(u8, Word)> {
        self.present.before(byte).map(|byte| (byte, self.find(byte)))
    }

    fn is_full(&self) -> bool {
        false
    }

    fn add(&self, byte: u8, child: Word) {
        self.children[usize::from(byte)].store(child.raw(), Ordering::Release);
        self.present.insert(byte);
    }

    fn replace(&self, byte: u8, child: Word) {
        self.children[usize::from(byte)].store(child.raw(), Ordering::Release);
    }
}
