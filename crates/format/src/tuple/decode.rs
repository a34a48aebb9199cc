//! From a key back to the elements of its tuple.

use std::borrow::Cow;

use terrane_base::{Error, Result};

use super::{
    BYTES, DESCENDING, Direction, END, ESCAPED, Element, FALSE, FLOAT, FLOAT_SIGN, INT, NULL, STR, TRUE,
};
use crate::codec::Reader;

/// Decodes all elements of a key and their directions.
///
/// # Errors
/// [`terrane_base::ErrorKind::Corruption`] if the key is not what [`super::put_element`] writes.
pub fn decode(key: &[u8]) -> Result<Vec<(Element<'_>, Direction)>> {
    Elements::new(key).collect()
}

/// The elements of a key, one after another. Ends at the first error.
#[derive(Clone, Debug)]
pub struct Elements<'a> {
    reader: Reader<'a>,
    failed: bool,
}

impl<'a> Elements<'a> {
    /// Starts at the front of `key`.
    pub fn new(key: &'a [u8]) -> Self {
        Elements { reader: Reader::new(key), failed: false }
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<(Element<'a>, Direction)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.reader.is_at_end() {
            return None;
        }
        let element = element(&mut self.reader);
        self.failed = element.is_err();
        Some(element)
    }
}

fn element<'a>(r: &mut Reader<'a>) -> Result<(Element<'a>, Direction)> {
    let at = r.position() as u64;
    let first = r.u8()?;
    // Complementing is its own inverse: `flip` turns descending bytes into what an ascending element has.
    let (flip, direction) = match first & DESCENDING {
        0 => (0, Direction::Ascending),
        _ => (0xff, Direction::Descending),
    };
    let wrong = |what: &str| Error::corruption(format!("key is not a tuple: {what}")).with_offset(at);
    let element = match first ^ flip {
        NULL => Element::Null,
        FALSE => Element::Bool(false),
        TRUE => Element::Bool(true),
        code @ 0x10..=0x30 => {
            Element::Int(int(r, code, flip)?.ok_or_else(|| wrong("an integer not in its one form"))?)
        }
        FLOAT => {
            let ordered = big_endian(r.bytes(8)?, flip) as u64;
            let bits = if ordered & FLOAT_SIGN == 0 { !ordered } else { ordered & !FLOAT_SIGN };
            Element::Float(f64::from_bits(bits))
        }
        BYTES => Element::Bytes(string(r, flip)?),
        STR => Element::Str(text(string(r, flip)?).ok_or_else(|| wrong("a string that is not UTF-8"))?),
        code => return Err(wrong(&format!("unknown type code {code:#04x}"))),
    };
    Ok((element, direction))
}

fn big_endian(bytes: &[u8], flip: u8) -> u128 {
    bytes.iter().fold(0, |v, b| v << 8 | u128::from(b ^ flip))
}

/// `None` if the integer has leading zero bytes or does not fit in 128 bits.
fn int(r: &mut Reader<'_>, code: u8, flip: u8) -> Result<Option<i128>> {
    let len = code.abs_diff(INT);
    let negative = code < INT;
    let magnitude = big_endian(r.bytes(len.into())?, if negative { !flip } else { flip });
    let significant = (u128::BITS - magnitude.leading_zeros()).div_ceil(8);
    if significant != len.into() {
        return Ok(None);
    }
    Ok(if negative { 0i128.checked_sub_unsigned(magnitude) } else { i128::try_from(magnitude).ok() })
}

/// Reads up to the end mark; borrows where nothing has to be undone.
fn string<'a>(r: &mut Reader<'a>, flip: u8) -> Result<Cow<'a, [u8]>> {
    let at = r.position() as u64;
    let rest = r.clone().bytes(r.remaining())?;
    let mut owned = Vec::new();
    let mut done = 0;
    loop {
        let len = rest[done..].iter().position(|b| *b == flip);
        let mark = len.and_then(|len| rest.get(done + len + 1));
        let (Some(len), Some(mark)) = (len, mark) else {
            return Err(Error::corruption("key is not a tuple: a string without an end").with_offset(at));
        };
        let part = &rest[done..done + len];
        let escaped = match mark ^ flip {
            ESCAPED => true,
            END => false,
            _ => {
                return Err(
                    Error::corruption("key is not a tuple: a string with a bare zero").with_offset(at)
                );
            }
        };
        let first = done == 0;
        done += len + 2;
        if !escaped && first && flip == 0 {
            r.bytes(done)?;
            return Ok(Cow::Borrowed(part));
        }
        owned.extend(part.iter().map(|b| b ^ flip));
        if !escaped {
            r.bytes(done)?;
            return Ok(Cow::Owned(owned));
        }
        owned.push(0);
    }
}

fn text(bytes: Cow<'_, [u8]>) -> Option<Cow<'_, str>> {
    match bytes {
        Cow::Borrowed(b) => std::str::from_utf8(b).ok().map(Cow::Borrowed),
        Cow::Owned(b) => String::from_utf8(b).ok().map(Cow::Owned),
    }
}
