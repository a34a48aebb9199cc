//! Turning failed calls into [`Error`]s, in the same words for real and simulated machines.

use std::io;
use std::path::Path;

use terrane_base::{Error, ErrorKind, Result};

/// An I/O error with the call and the file in it.
pub(crate) fn io_error(source: io::Error, doing: &str, path: &Path) -> Error {
    if source.kind() == io::ErrorKind::AlreadyExists {
        return Error::new(ErrorKind::AlreadyExists, format!("{doing} failed: {source}")).with_file(path);
    }
    Error::io(source, doing).with_file(path)
}

/// A read that wants more bytes than the file has.
pub(crate) fn short_file(path: &Path, offset: u64, wanted: usize, file_len: u64) -> Error {
    Error::corruption(format!("file ends at byte {file_len}, wanted {wanted} bytes"))
        .with_file(path)
        .with_offset(offset)
}

/// Direct I/O with an offset, length or address that a device would refuse.
pub(crate) fn check_alignment(path: &Path, align: usize, buf: &[u8], offset: u64) -> Result<()> {
    let bad = |what: &str, value: u64| {
        Error::invalid(format!("direct I/O {what} {value} is not a multiple of {align}"))
            .with_file(path)
            .with_offset(offset)
    };
    if !offset.is_multiple_of(align as u64) {
        return Err(bad("offset", offset));
    }
    if !buf.len().is_multiple_of(align) {
        return Err(bad("length", buf.len() as u64));
    }
    if !(buf.as_ptr() as usize).is_multiple_of(align) {
        return Err(bad("buffer address", buf.as_ptr() as u64));
    }
    Ok(())
}

/// A region is made of words, and there is no mapping of nothing.
pub(crate) fn check_map_len(path: &Path, len: usize) -> Result<()> {
    if len == 0 || !len.is_multiple_of(8) {
        let what = format!("a mapped file has a positive multiple of 8 bytes, not {len}");
        return Err(Error::invalid(what).with_file(path));
    }
    Ok(())
}

/// The words of a region that an access of `len` bytes touches, checked against its size.
#[inline]
pub(crate) fn check_region(path: &Path, region_len: usize, offset: usize, len: usize) -> Result<()> {
    let end = len.checked_next_multiple_of(8).and_then(|n| n.checked_add(offset));
    match end {
        Some(end) if end <= region_len && offset.is_multiple_of(8) => Ok(()),
        _ => Err(beyond_region(path, region_len, offset, len)),
    }
}

#[cold]
fn beyond_region(path: &Path, region_len: usize, offset: usize, len: usize) -> Error {
    let what = "offsets are multiples of 8 and the region has";
    Error::invalid(format!("region access of {len} bytes: {what} {region_len} bytes"))
        .with_file(path)
        .with_offset(offset as u64)
}
