//! Reads and writes of any length and offset over files that want whole aligned sectors.

use std::cell::Cell;

use terrane_base::Result;
use terrane_media::{AlignedBuf, File, ReadRequest, SECTOR};

/// The `len` bytes at `offset`, read in one call.
pub(super) fn read(file: &dyn File, offset: u64, len: usize) -> Result<Vec<u8>> {
    Ok(Window::read(file, offset, len)?.bytes().to_vec())
}

thread_local! {
    /// The memory of the thread's last small window, for its next one.
    static SPARE: Cell<Option<AlignedBuf>> = const { Cell::new(None) };
}

/// Windows up to this size give their memory to the thread's next one.
const SMALL: usize = 32 << 10;

/// The whole sectors in which `len` bytes at `offset` lie: where they begin, how many bytes they are, and how many of them
/// stand in front.
pub(super) fn sectors(offset: u64, len: usize) -> (u64, usize, usize) {
    let skip = (offset % SECTOR as u64) as usize;
    (offset - skip as u64, (skip + len).next_multiple_of(SECTOR), skip)
}

/// Bytes read from a file, with what alignment brought along.
#[derive(Debug)]
pub(crate) struct Window {
    /// At least `whole` bytes; what lies behind is of no meaning.
    buf: AlignedBuf,
    whole: usize,
    at: u64,
    skip: usize,
    len: usize,
}

impl Window {
    /// Room for the `len` bytes at `offset`.
    pub(super) fn prepare(offset: u64, len: usize) -> Self {
        let (at, whole, skip) = sectors(offset, len);
        let spare = if whole <= SMALL {
            SPARE.try_with(Cell::take).ok().flatten().filter(|b| b.len() >= whole)
        } else {
            None
        };
        let buf = spare.unwrap_or_else(|| AlignedBuf::zeroed(whole));
        Window { buf, whole, at, skip, len }
    }

    /// Reads the `len` bytes at `offset`.
    pub(super) fn read(file: &dyn File, offset: u64, len: usize) -> Result<Self> {
        let mut this = Self::prepare(offset, len);
        file.read_at(&mut this.buf[..this.whole], this.at)?;
        Ok(this)
    }

    /// The request that fills a prepared window.
    pub(crate) fn request<'a>(&'a mut self, file: &'a dyn File) -> ReadRequest<'a> {
        ReadRequest { file, offset: self.at, buf: &mut self.buf[..self.whole] }
    }

    /// The bytes asked for.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buf[self.skip..self.skip + self.len]
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        if self.buf.len() <= SMALL {
            // A thread that ends has no next window.
            let _ = SPARE.try_with(|spare| spare.set(Some(std::mem::take(&mut self.buf))));
        }
    }
}

impl AsRef<[u8]> for Window {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

/// Writes `bytes` and zeros up to a whole sector; `offset` is a multiple of the sector.
pub(super) fn write(file: &dyn File, offset: u64, bytes: &[u8]) -> Result<()> {
    let fits = bytes.len().is_multiple_of(SECTOR) && bytes.as_ptr().addr().is_multiple_of(file.align());
    if fits {
        return file.write_at(bytes, offset);
    }
    let mut buf = AlignedBuf::with_capacity(bytes.len());
    buf.extend_from_slice(bytes);
    buf.pad_to(SECTOR);
    file.write_at(&buf, offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_cover_what_is_asked_for() {
        for (offset, len) in
            [(0, 0), (0, 1), (1, SECTOR - 1), (1, SECTOR), (SECTOR as u64 - 1, 2), (12345, 67890)]
        {
            let (at, whole, skip) = sectors(offset, len);
            assert_eq!((at % SECTOR as u64, whole % SECTOR), (0, 0));
            assert_eq!(at + skip as u64, offset);
            assert!(skip < SECTOR && skip + len <= whole && whole < skip + len + SECTOR);
        }
    }
}
