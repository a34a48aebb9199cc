//! Reads and writes of any length and offset over files that want whole aligned sectors.

use std::cell::Cell;
use std::sync::Arc;

use parking_lot::Mutex;
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

/// Buffers that a [`Buffers`] keeps at most.
const KEPT: usize = 16;

/// Buffers grow in these steps, so that one fits where another was.
const STEP: usize = 128 << 10;

/// Memory of windows that were given up, for the next ones: fresh memory costs a page fault and a zero for each byte.
#[derive(Debug, Default)]
pub(crate) struct Buffers(Mutex<Vec<AlignedBuf>>);

impl Buffers {
    /// The smallest of at least `len` bytes, or a new one.
    fn take(&self, len: usize) -> AlignedBuf {
        let mut kept = self.0.lock();
        let fits = kept.iter().enumerate().filter(|(_, b)| b.len() >= len).min_by_key(|(_, b)| b.len());
        match fits.map(|(at, _)| at) {
            Some(at) => kept.swap_remove(at),
            None => {
                drop(kept);
                AlignedBuf::zeroed(len.next_multiple_of(STEP))
            }
        }
    }

    fn give_back(&self, buf: AlignedBuf) {
        let mut kept = self.0.lock();
        if kept.len() == KEPT {
            // The largest ones serve most.
            kept.sort_unstable_by_key(|b| std::cmp::Reverse(b.len()));
            kept.pop();
        }
        kept.push(buf);
    }
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
    /// Where the memory goes in the end.
    home: Option<Arc<Buffers>>,
}

impl Window {
    /// Room for the `len` bytes at `offset`.
    pub(super) fn prepare(offset: u64, len: usize) -> Self {
        let skip = (offset % SECTOR as u64) as usize;
        let whole = (skip + len).next_multiple_of(SECTOR);
        let spare = if whole <= SMALL {
            SPARE.try_with(Cell::take).ok().flatten().filter(|b| b.len() >= whole)
        } else {
            None
        };
        let buf = spare.unwrap_or_else(|| AlignedBuf::zeroed(whole));
        Window { buf, whole, at: offset - skip as u64, skip, len, home: None }
    }

    /// As [`Window::prepare`], in memory of `home`, where it returns.
    pub(super) fn prepare_in(home: &Arc<Buffers>, offset: u64, len: usize) -> Self {
        let skip = (offset % SECTOR as u64) as usize;
        let whole = (skip + len).next_multiple_of(SECTOR);
        let buf = home.take(whole);
        Window { buf, whole, at: offset - skip as u64, skip, len, home: Some(home.clone()) }
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
        let buf = std::mem::take(&mut self.buf);
        if let Some(home) = self.home.take() {
            home.give_back(buf);
        } else if buf.len() <= SMALL {
            // A thread that ends has no next window.
            let _ = SPARE.try_with(|spare| spare.set(Some(buf)));
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
