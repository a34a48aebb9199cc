//! Reading and writing of small integers and byte strings. Varints are LEB128, at most ten bytes.

use terrane_base::{Error, Result};

/// Appends `v` as a varint.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

/// Bytes that [`put_varint`] takes for `v`.
#[inline]
pub fn varint_len(v: u64) -> usize {
    (70 - (v | 1).leading_zeros() as usize) / 7
}

/// Appends a varint length and the bytes.
#[inline]
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads a varint from the front of `bytes`: the value and the bytes it took. `None` if cut short or longer than 64
/// bits.
#[inline]
pub fn read_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    if let Some(&b) = bytes.first()
        && b < 0x80
    {
        return Some((u64::from(b), 1));
    }
    if let Some(&eight) = bytes.first_chunk::<8>() {
        let word = u64::from_le_bytes(eight);
        let stops = !word & 0x8080_8080_8080_8080;
        if stops != 0 {
            let len = stops.trailing_zeros() / 8 + 1;
            return Some((gather(word & (u64::MAX >> (64 - 8 * len))), len as usize));
        }
    }
    let mut v = 0u64;
    for (i, &b) in bytes.iter().enumerate().take(10) {
        if i == 9 && b > 1 {
            return None;
        }
        v |= u64::from(b & 0x7f) << (7 * i);
        if b < 0x80 {
            return Some((v, i + 1));
        }
    }
    None
}

/// The low seven bits of each byte, side by side.
#[inline]
fn gather(bytes: u64) -> u64 {
    let by_7 = bytes & 0x7f7f_7f7f_7f7f_7f7f;
    let by_14 = by_7 & 0x007f_007f_007f_007f | (by_7 & 0x7f00_7f00_7f00_7f00) >> 1;
    let by_28 = by_14 & 0x0000_3fff_0000_3fff | (by_14 & 0x3fff_0000_3fff_0000) >> 2;
    by_28 & 0x0fff_ffff | (by_28 & 0x0fff_ffff_0000_0000) >> 4
}

/// Reads fields one after another from a byte slice; every read is bounds-checked and typed.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> Reader<'a> {
    /// Starts at the front of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Reader { bytes, pos: 0 }
    }

    /// Bytes read so far.
    pub fn position(&self) -> usize {
        self.pos
    }

    /// Bytes left.
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.pos
    }

    /// Whether all is read.
    pub fn is_at_end(&self) -> bool {
        self.remaining() == 0
    }

    /// The next `n` bytes.
    #[inline]
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8]> {
        match self.bytes.get(self.pos..).and_then(|b| b.get(..n)) {
            Some(b) => {
                self.pos += n;
                Ok(b)
            }
            None => Err(self.truncated(n)),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        match self.bytes.get(self.pos..).and_then(|b| b.first_chunk::<N>()) {
            Some(b) => {
                self.pos += N;
                Ok(*b)
            }
            None => Err(self.truncated(N)),
        }
    }

    /// One byte.
    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    /// Two bytes, little-endian.
    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    /// Four bytes, little-endian.
    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Eight bytes, little-endian.
    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A varint.
    #[inline]
    pub fn varint(&mut self) -> Result<u64> {
        match read_varint(&self.bytes[self.pos..]) {
            Some((v, n)) => {
                self.pos += n;
                Ok(v)
            }
            None => Err(self.bad_varint()),
        }
    }

    #[cold]
    fn bad_varint(&self) -> Error {
        Error::corruption("bad varint").with_offset(self.pos as u64)
    }

    /// A varint that must fit in `max`; `what` names it in the error.
    #[inline]
    pub fn varint_max(&mut self, max: u64, what: &str) -> Result<u64> {
        let at = self.pos;
        let v = self.varint()?;
        if v > max {
            return Err(above(what, v, max).with_offset(at as u64));
        }
        Ok(v)
    }

    /// A varint length and that many bytes, at most `max`; `what` names the field in the error.
    #[inline]
    pub fn prefixed(&mut self, max: usize, what: &str) -> Result<&'a [u8]> {
        let n = self.varint_max(max as u64, what)?;
        self.bytes(n as usize)
    }

    /// Fails unless all is read; `what` names the record in the error.
    pub fn finish(&self, what: &str) -> Result<()> {
        if self.is_at_end() {
            return Ok(());
        }
        Err(Error::corruption(format!("{} bytes too many in {what}", self.remaining()))
            .with_offset(self.pos as u64))
    }

    #[cold]
    fn truncated(&self, wanted: usize) -> Error {
        Error::corruption(format!("cut short: {wanted} bytes wanted, {} left", self.remaining()))
            .with_offset(self.pos as u64)
    }
}

#[cold]
fn above(what: &str, v: u64, max: u64) -> Error {
    Error::corruption(format!("{what} is {v}, above the limit {max}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_round_trip_and_have_the_stated_length() {
        for shift in 0..64 {
            for v in [(1u64 << shift) - 1, 1 << shift, (1 << shift) + 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                put_varint(&mut out, v);
                assert_eq!(out.len(), varint_len(v), "{v}");
                assert_eq!(read_varint(&out), Some((v, out.len())));
                assert_eq!(read_varint(&out[..out.len() - 1]), None);
                out.extend_from_slice(&[0xff; 8]);
                assert_eq!(read_varint(&out), Some((v, varint_len(v))), "with more behind it");
            }
        }
        assert_eq!(read_varint(&[0xff; 11]), None);
    }

    #[test]
    fn reads_past_the_end_are_typed_errors() {
        let mut r = Reader::new(&[1, 2, 3]);
        assert!(r.u32().is_err());
        assert_eq!(r.u16().unwrap(), 0x0201);
        assert!(r.finish("test").is_err());
        assert!(r.prefixed(10, "key").is_err(), "3 bytes are announced, none is there");
    }
}
