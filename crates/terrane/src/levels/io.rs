//! Reads and writes of any length and offset over files that want whole aligned sectors.

use terrane_base::Result;
use terrane_media::{AlignedBuf, File, ReadRequest, SECTOR};

/// The `len` bytes at `offset`, read in one call.
pub(super) fn read(file: &dyn File, offset: u64, len: usize) -> Result<Vec<u8>> {
    Ok(Window::read(file, offset, len)?.bytes().to_vec())
}

/// Bytes read from a file, with what alignment brought along.
#[derive(Debug)]
pub(crate) struct Window {
    buf: AlignedBuf,
    at: u64,
    skip: usize,
    len: usize,
}

impl Window {
    /// Room for the `len` bytes at `offset`.
    pub(super) fn prepare(offset: u64, len: usize) -> Self {
        let skip = (offset % SECTOR as u64) as usize;
        let buf = AlignedBuf::zeroed((skip + len).next_multiple_of(SECTOR));
        Window { buf, at: offset - skip as u64, skip, len }
    }

    /// Reads the `len` bytes at `offset`.
    pub(super) fn read(file: &dyn File, offset: u64, len: usize) -> Result<Self> {
        let mut this = Self::prepare(offset, len);
        file.read_at(&mut this.buf, this.at)?;
        Ok(this)
    }

    /// The request that fills a prepared window.
    pub(crate) fn request<'a>(&'a mut self, file: &'a dyn File) -> ReadRequest<'a> {
        ReadRequest { file, offset: self.at, buf: &mut self.buf }
    }

    /// The bytes asked for.
    pub(crate) fn bytes(&self) -> &[u8] {
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
