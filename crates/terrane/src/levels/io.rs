//! Reads and writes of any length and offset over files that want whole aligned sectors.

use terrane_base::Result;
use terrane_media::{AlignedBuf, File, SECTOR};

/// The `len` bytes at `offset`, read in one call.
pub(super) fn read(file: &dyn File, offset: u64, len: usize) -> Result<Vec<u8>> {
    Ok(Window::read(file, offset, len)?.bytes().to_vec())
}

/// Bytes read from a file, with what alignment brought along.
pub(super) struct Window {
    buf: AlignedBuf,
    skip: usize,
    len: usize,
}

impl Window {
    /// Reads the `len` bytes at `offset`.
    pub(super) fn read(file: &dyn File, offset: u64, len: usize) -> Result<Self> {
        let skip = (offset % SECTOR as u64) as usize;
        let mut buf = AlignedBuf::zeroed((skip + len).next_multiple_of(SECTOR));
        file.read_at(&mut buf, offset - skip as u64)?;
        Ok(Window { buf, skip, len })
    }

    /// The bytes asked for.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buf[self.skip..self.skip + self.len]
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
