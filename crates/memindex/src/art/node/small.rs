//! Nodes of up to 4 and 16 children, searched byte by byte within machine words.

use terrane_base::sync::atomic::{AtomicU64, Ordering};

use crate::art::node::{DEPTH, DEPTH_BITS, Header, KEYS_SHIFT, Node};
use crate::art::word::{Kind, Word};

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;
const ONE: u64 = 1 << DEPTH_BITS;

/// The lowest position of `byte` among the eight bytes of `word`.
#[inline]
fn position(word: u64, byte: u8) -> Option<usize> {
    let x = word ^ (LOW * u64::from(byte));
    // Marks the lowest zero byte of x; marks above it may be wrong.
    let zero = x.wrapping_sub(LOW) & !x & HIGH;
    (zero != 0).then(|| zero.trailing_zeros() as usize / 8)
}

/// The position of the smallest of the first `count` bytes that is at or after `from`.
#[inline]
fn smallest<const N: usize>(bytes: [u8; N], count: usize, from: usize) -> Option<usize> {
    let none = ranked(u8::MAX, RANKS - 1);
    let ranks = (0..N).map(|at| match at < count && usize::from(bytes[at]) >= from {
        true => ranked(bytes[at], at),
        false => none,
    });
    let least = ranks.fold(none, i16::min);
    (least != none).then_some(at_of(least))
}

/// The position of the largest of the first `count` bytes that is before `to`.
#[inline]
fn largest<const N: usize>(bytes: [u8; N], count: usize, to: usize) -> Option<usize> {
    let ranks = (0..N).map(|at| match at < count && usize::from(bytes[at]) < to {
        true => ranked(bytes[at], at),
        false => -1,
    });
    let most = ranks.fold(-1, i16::max);
    (most >= 0).then_some(at_of(most))
}

/// Positions that [`ranked`] tells apart; nodes have fewer.
const RANKS: usize = 1 << 7;

/// A byte and its position as one number, so that the least or most of them is found without a branch, in one register. (Pairs of both,
/// compared by the byte, were kept on the stack: a store forwarded for each that was looked at.)
#[inline]
fn ranked(byte: u8, at: usize) -> i16 {
    i16::from(byte) << 7 | at as i16
}

/// The position in what [`ranked`] gave.
#[inline]
fn at_of(rank: i16) -> usize {
    rank as usize % RANKS
}

/// Up to four children. One cache line; the key bytes share a word with the count, so one store publishes both.
#[repr(C, align(64))]
pub(crate) struct Node4 {
    header: Header,
    children: [AtomicU64; 4],
}

impl Node4 {
    #[inline]
    fn child(&self, at: usize) -> Word {
        Word::from_raw(self.children[at].load(Ordering::Acquire))
    }

    #[inline]
    fn keys(&self) -> ([u8; 4], usize) {
        let meta = self.header.meta.load(Ordering::Acquire);
        (((meta >> KEYS_SHIFT) as u32).to_le_bytes(), Header::count(meta).min(4))
    }
}

impl Node for Node4 {
    const KIND: Kind = Kind::N4;

    fn new() -> Self {
        Node4 { header: Header::new(), children: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    #[inline]
    fn header(&self) -> &Header {
        &self.header
    }

    fn clear(&self) {
        self.header.meta.store(0, Ordering::Relaxed);
    }

    #[inline]
    fn find(&self, byte: u8) -> Word {
        let meta = self.header.meta.load(Ordering::Acquire);
        match position(meta >> KEYS_SHIFT, byte) {
            Some(at) if at < Header::count(meta).min(4) => self.child(at),
            _ => Word::EMPTY,
        }
    }

    fn at_or_after(&self, byte: usize) -> Option<(u8, Word)> {
        let (keys, count) = self.keys();
        smallest(keys, count, byte).map(|at| (keys[at], self.child(at)))
    }

    fn before(&self, byte: usize) -> Option<(u8, Word)> {
        let (keys, count) = self.keys();
        largest(keys, count, byte).map(|at| (keys[at], self.child(at)))
    }

    fn is_full(&self) -> bool {
        self.keys().1 == 4
    }

    fn add(&self, byte: u8, child: Word) {
        let meta = self.header.meta.load(Ordering::Relaxed);
        let at = Header::count(meta);
        debug_assert!(at < 4);
        self.children[at].store(child.raw(), Ordering::Release);
        let meta = (meta + ONE) | u64::from(byte) << (KEYS_SHIFT as usize + 8 * at);
        self.header.meta.store(meta, Ordering::Release);
    }

    fn replace(&self, byte: u8, child: Word) {
        let meta = self.header.meta.load(Ordering::Relaxed);
        if let Some(at) = position(meta >> KEYS_SHIFT, byte).filter(|at| *at < 4) {
            self.children[at].store(child.raw(), Ordering::Release);
        }
    }
}

/// Up to sixteen children.
#[repr(C, align(64))]
pub(crate) struct Node16 {
    header: Header,
    keys: [AtomicU64; 2],
    children: [AtomicU64; 16],
}

impl Node16 {
    #[inline]
    fn child(&self, at: usize) -> Word {
        Word::from_raw(self.children[at].load(Ordering::Acquire))
    }

    #[inline]
    fn count(&self) -> usize {
        Header::count(self.header.meta.load(Ordering::Acquire)).min(16)
    }

    #[inline]
    fn position(&self, byte: u8) -> Option<usize> {
        let count = self.count();
        let at = match position(self.keys[0].load(Ordering::Relaxed), byte) {
            Some(at) => at,
            None => 8 + position(self.keys[1].load(Ordering::Relaxed), byte)?,
        };
        // A byte that is absent may equal the zero of a place not yet taken.
        (at < count).then_some(at)
    }

    #[inline]
    fn keys(&self) -> [u8; 16] {
        let low = u128::from(self.keys[0].load(Ordering::Relaxed));
        let high = u128::from(self.keys[1].load(Ordering::Relaxed));
        (low | high << 64).to_le_bytes()
    }
}

impl Node for Node16 {
    const KIND: Kind = Kind::N16;

    fn new() -> Self {
        Node16 {
            header: Header::new(),
            keys: std::array::from_fn(|_| AtomicU64::new(0)),
            children: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }

    #[inline]
    fn header(&self) -> &Header {
        &self.header
    }

    fn clear(&self) {
        self.header.meta.store(0, Ordering::Relaxed);
        self.keys.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    #[inline]
    fn find(&self, byte: u8) -> Word {
        self.position(byte).map_or(Word::EMPTY, |at| self.child(at))
    }

    fn at_or_after(&self, byte: usize) -> Option<(u8, Word)> {
        let count = self.count();
        let keys = self.keys();
        smallest(keys, count, byte).map(|at| (keys[at], self.child(at)))
    }

    fn before(&self, byte: usize) -> Option<(u8, Word)> {
        let count = self.count();
        let keys = self.keys();
        largest(keys, count, byte).map(|at| (keys[at], self.child(at)))
    }

    fn is_full(&self) -> bool {
        self.count() == 16
    }

    fn add(&self, byte: u8, child: Word) {
        let meta = self.header.meta.load(Ordering::Relaxed);
        let at = Header::count(meta);
        debug_assert!(at < 16);
        self.children[at].store(child.raw(), Ordering::Release);
        let word = &self.keys[at / 8];
        let keys = word.load(Ordering::Relaxed) | u64::from(byte) << (8 * (at % 8));
        word.store(keys, Ordering::Relaxed);
        self.header.meta.store(meta + ONE, Ordering::Release);
        debug_assert_eq!(meta & DEPTH, self.header.depth() as u64);
    }

    fn replace(&self, byte: u8, child: Word) {
        if let Some(at) = self.position(byte) {
            self.children[at].store(child.raw(), Ordering::Release);
        }
    }
}
