//! Order-preserving encoding of typed tuples as keys.

use std::borrow::Cow;

use terrane_base::Result;

/// An element of a tuple. Values of different types sort in the order of the variants.
#[derive(Clone, Debug)]
pub enum Element<'a> {
    /// SQL's NULL: below everything.
    Null,
    /// False sorts below true.
    Bool(bool),
    /// An integer of any width up to 128 bits.
    Int(i128),
    /// A float, in IEEE total order.
    Float(f64),
    /// A byte string, in bytewise order.
    Bytes(Cow<'a, [u8]>),
    /// A UTF-8 string, in bytewise (code point) order.
    Str(Cow<'a, str>),
}

/// The direction in which an element sorts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Small before large.
    Ascending,
    /// Large before small.
    Descending,
}

/// Appends the key form of `element`.
pub fn put_element(_out: &mut Vec<u8>, _element: &Element<'_>, _direction: Direction) {
    todo!()
}

/// Decodes all elements of a key and their directions.
pub fn decode(_key: &[u8]) -> Result<Vec<(Element<'_>, Direction)>> {
    todo!()
}
