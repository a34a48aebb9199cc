//! Memory that large reads were made into, kept for the next ones.
//!
//! # Concurrency
//! Any thread takes and any returns; the mutex guards the list alone, and no read is made under it. A buffer that is out
//! outlives its home.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use terrane_media::AlignedBuf;

/// Buffers grow in these steps, so that one fits where another was.
const STEP: usize = 256 << 10;

/// Buffers that nobody uses just now: fresh memory costs page faults, and a zero for each byte.
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
    pub(crate) fn take(self: &Arc<Self>, len: usize) -> Loan {
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
pub(crate) struct Loan {
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
}
