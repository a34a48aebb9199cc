//! Reads and writes of any length and offset over files that want whole aligned sectors.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

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

/// Buffers grow in these steps, so that one fits where another was.
const STEP: usize = 256 << 10;

/// Memory of large reads that were given up, for the next ones: fresh memory costs a page fault and a zero for each byte.
#[derive(Debug)]
pub(crate) struct Buffers {
    kept: Mutex<Vec<AlignedBuf>>,
    most: usize,
}

impl Buffers {
    /// Keeps up to `most` buffers.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Buffers { kept: Mutex::default(), most })
    }

    /// At least `len` bytes of no meaning.
    pub(super) fn take(self: &Arc<Self>, len: usize) -> Loan {
        let mut kept = self.kept.lock();
        let fits = kept.iter().enumerate().filter(|(_, b)| b.len() >= len).min_by_key(|(_, b)| b.len());
        let buf = match fits.map(|(at, _)| at) {
            Some(at) => kept.swap_remove(at),
            None => {
                // The new one takes the place of one that is too small, so that no more is kept than was in use at a time.
                let small = kept.pop();
                drop(kept);
                drop(small);
                AlignedBuf::zeroed(len.next_multiple_of(STEP))
            }
        };
        Loan { buf, home: Arc::downgrade(self) }
    }
}

/// A buffer that returns to its [`Buffers`] when it is dropped, if they are still there.
#[derive(Debug)]
pub(super) struct Loan {
    buf: AlignedBuf,
    home: Weak<Buffers>,
}

impl Drop for Loan {
    fn drop(&mut self) {
        let Some(home) = self.home.upgrade() else { return };
        let mut kept = home.kept.lock();
        if kept.len() < home.most && !self.buf.is_empty() {
            kept.push(std::mem::take(&mut self.buf));
        }
    }
}

impl Deref for Loan {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.buf
    }
}

impl DerefMut for Loan {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.buf
    }
}

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

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
    fn buffers_come_back_and_no_more_are_kept_than_were_in_use() {
        let buffers = Buffers::new(3);
        let kept = || buffers.kept.lock().iter().map(|b| b.len()).collect::<Vec<_>>();
        drop((buffers.take(0), buffers.take(1)));
        assert_eq!(kept(), [STEP], "nothing is not worth keeping");
        let first = buffers.take(STEP);
        assert_eq!((first.len(), kept().len()), (STEP, 0), "the same one");
        let larger = buffers.take(STEP + 1);
        drop((first, larger));
        assert_eq!(kept(), [STEP, 2 * STEP]);
        assert_eq!(buffers.take(2).len(), STEP, "the smallest that does");
        drop(buffers.take(5 * STEP));
        assert_eq!(kept().len(), 2, "one that was too small has gone for it");
        let many: Vec<_> = (0..5).map(|_| buffers.take(1)).collect();
        drop(many);
        assert_eq!(kept().len(), 3);
        let last = buffers.take(1);
        drop(buffers);
        assert!(!last.is_empty(), "stays when they have gone");
    }

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
