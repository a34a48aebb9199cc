//! Order-preserving keys: a tuple of typed elements becomes bytes whose bytewise order is the order of the tuples.
//!
//! Each element starts with a type code and is prefix-free, so elements simply follow one another: tuples compare element
//! by element, and the key of a tuple is a prefix of exactly the keys of the tuples that begin with it (scan by prefix to
//! find them).
//!
//! ```text
//! 02                            NULL
//! 04, 05                        false, true
//! 20-n, complement of n bytes   negative integer whose magnitude has n bytes, big-endian (n = 1..=16)
//! 20                            zero
//! 20+n, n bytes                 positive integer, big-endian, no leading zero byte
//! 38, 8 bytes                   float: its bits, big-endian; sign bit flipped if clear, all bits flipped if set
//! 40, bytes, 00 01              byte string; a zero byte within it is written 00 FF
//! 48, bytes, 00 01              UTF-8 string, likewise
//! ```
//!
//! All codes are below 80. An element that sorts in descending order is written with every byte complemented, so its
//! direction shows in its first byte. Every tuple has exactly one form; [`decode`] refuses any other.

mod decode;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::cmp::Ordering;

pub use decode::{Elements, decode};

const NULL: u8 = 0x02;
const FALSE: u8 = 0x04;
const TRUE: u8 = 0x05;
/// The code of zero; a positive or negative integer adds or subtracts its length.
const INT: u8 = 0x20;
const FLOAT: u8 = 0x38;
const BYTES: u8 = 0x40;
const STR: u8 = 0x48;
/// What follows a zero byte: it was part of the string, or the string has ended.
const ESCAPED: u8 = 0xff;
const END: u8 = 0x01;
/// Codes with this bit belong to complemented elements.
const DESCENDING: u8 = 0x80;
const FLOAT_SIGN: u64 = 1 << 63;

/// An element of a tuple. Its order is that of its key: elements of different types sort in the order of the variants,
/// floats in IEEE total order (-NaN, -infinity ... -0, +0 ... +infinity, +NaN).
#[derive(Clone, Debug)]
pub enum Element<'a> {
    /// SQL's NULL: below everything.
    Null,
    /// False sorts below true.
    Bool(bool),
    /// An integer of any width up to 128 bits; equal numbers have equal keys, whatever type they came from.
    Int(i128),
    /// A float.
    Float(f64),
    /// A byte string, in bytewise order.
    Bytes(Cow<'a, [u8]>),
    /// A UTF-8 string, in bytewise (which is code point) order.
    Str(Cow<'a, str>),
}

/// The direction in which an element sorts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Small before large, NULL first.
    Ascending,
    /// Large before small, NULL last.
    Descending,
}

/// The key of a tuple whose elements all ascend.
pub fn encode<'e>(elements: impl IntoIterator<Item = Element<'e>>) -> Vec<u8> {
    let mut key = Vec::new();
    for element in elements {
        put_element(&mut key, &element, Direction::Ascending);
    }
    key
}

/// Appends one element to a key.
pub fn put_element(key: &mut Vec<u8>, element: &Element<'_>, direction: Direction) {
    let start = key.len();
    match element {
        Element::Null => key.push(NULL),
        Element::Bool(b) => key.push(if *b { TRUE } else { FALSE }),
        Element::Int(v) => put_int(key, *v),
        Element::Float(v) => {
            let bits = v.to_bits();
            let ordered = if bits & FLOAT_SIGN == 0 { bits | FLOAT_SIGN } else { !bits };
            key.push(FLOAT);
            key.extend_from_slice(&ordered.to_be_bytes());
        }
        Element::Bytes(bytes) => put_string(key, BYTES, bytes),
        Element::Str(text) => put_string(key, STR, text.as_bytes()),
    }
    if direction == Direction::Descending {
        for byte in &mut key[start..] {
            *byte = !*byte;
        }
    }
}

fn put_int(key: &mut Vec<u8>, v: i128) {
    let magnitude = v.unsigned_abs();
    let len = (u128::BITS - magnitude.leading_zeros()).div_ceil(8) as usize;
    if v < 0 {
        key.push(INT - len as u8);
        key.extend_from_slice(&(!magnitude).to_be_bytes()[16 - len..]);
    } else {
        key.push(INT + len as u8);
        key.extend_from_slice(&magnitude.to_be_bytes()[16 - len..]);
    }
}

fn put_string(key: &mut Vec<u8>, code: u8, bytes: &[u8]) {
    key.push(code);
    for part in bytes.split_inclusive(|b| *b == 0) {
        key.extend_from_slice(part);
        if part.last() == Some(&0) {
            key.push(ESCAPED);
        }
    }
    key.extend_from_slice(&[0, END]);
}

impl Element<'_> {
    fn rank(&self) -> u8 {
        match self {
            Element::Null => 0,
            Element::Bool(_) => 1,
            Element::Int(_) => 2,
            Element::Float(_) => 3,
            Element::Bytes(_) => 4,
            Element::Str(_) => 5,
        }
    }
}

impl Ord for Element<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Element::Bool(a), Element::Bool(b)) => a.cmp(b),
            (Element::Int(a), Element::Int(b)) => a.cmp(b),
            (Element::Float(a), Element::Float(b)) => a.total_cmp(b),
            (Element::Bytes(a), Element::Bytes(b)) => a.cmp(b),
            (Element::Str(a), Element::Str(b)) => a.cmp(b),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for Element<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Element<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Element<'_> {}

macro_rules! from {
    ($($from:ty => |$v:ident| $element:expr;)*) => {$(
        impl<'a> From<$from> for Element<'a> {
            fn from($v: $from) -> Self {
                $element
            }
        }
    )*};
}

from! {
    bool => |v| Element::Bool(v);
    i32 => |v| Element::Int(v.into());
    u32 => |v| Element::Int(v.into());
    i64 => |v| Element::Int(v.into());
    u64 => |v| Element::Int(v.into());
    i128 => |v| Element::Int(v);
    f32 => |v| Element::Float(v.into());
    f64 => |v| Element::Float(v);
    &'a [u8] => |v| Element::Bytes(v.into());
    Vec<u8> => |v| Element::Bytes(v.into());
    &'a str => |v| Element::Str(v.into());
    String => |v| Element::Str(v.into());
}

/// `None` becomes NULL.
impl<'a, T: Into<Element<'a>>> From<Option<T>> for Element<'a> {
    fn from(v: Option<T>) -> Self {
        v.map_or(Element::Null, Into::into)
    }
}
