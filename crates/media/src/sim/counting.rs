//! A memory that counts what costs time there.

use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrane_base::Result;

use crate::{Pmem, PmemMode};

/// What a [`CountingPmem`] was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PmemCounts {
    /// Calls that read it: [`Pmem::load_word`], [`Pmem::compare_exchange_word`], [`Pmem::load`].
    pub reads: u64,
    /// Calls that write lines back: [`Pmem::write`], [`Pmem::flush`].
    pub flushes: u64,
    /// Calls of [`Pmem::fence`].
    pub fences: u64,
    /// Calls of [`Pmem::base`]: what is read there is not counted.
    pub bases: u64,
    /// Bytes that [`Pmem::touch`] was told of.
    pub touched: u64,
}

/// A memory that counts what costs time there. It is [costly](Pmem::is_costly) if that is wanted, or if the one below is.
#[derive(Debug)]
pub struct CountingPmem {
    inner: Arc<dyn Pmem>,
    costly: bool,
    reads: AtomicU64,
    flushes: AtomicU64,
    fences: AtomicU64,
    bases: AtomicU64,
    touched: AtomicU64,
}

impl CountingPmem {
    /// Over `inner`.
    pub fn new(inner: Arc<dyn Pmem>, costly: bool) -> Self {
        let [reads, flushes, fences, bases, touched] = [const { AtomicU64::new(0) }; 5];
        CountingPmem { inner, costly, reads, flushes, fences, bases, touched }
    }

    /// What `work` asks it for. One at a time.
    pub fn of<T>(&self, work: impl FnOnce() -> T) -> (T, PmemCounts) {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        let all = || PmemCounts {
            reads: take(&self.reads),
            flushes: take(&self.flushes),
            fences: take(&self.fences),
            bases: take(&self.bases),
            touched: take(&self.touched),
        };
        all();
        (work(), all())
    }
}

fn one(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

impl Pmem for CountingPmem {
    fn path(&self) -> &Path {
        self.inner.path()
    }

    fn mode(&self) -> PmemMode {
        self.inner.mode()
    }

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn base(&self) -> NonNull<u8> {
        one(&self.bases);
        self.inner.base()
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        one(&self.flushes);
        self.inner.write(offset, bytes)
    }

    fn store_word(&self, offset: usize, word: u64) -> Result<()> {
        self.inner.store_word(offset, word)
    }

    fn compare_exchange_word(&self, offset: usize, from: u64, to: u64) -> Result<bool> {
        one(&self.reads);
        self.inner.compare_exchange_word(offset, from, to)
    }

    fn load_word(&self, offset: usize) -> Result<u64> {
        one(&self.reads);
        self.inner.load_word(offset)
    }

    fn load(&self, offset: usize, buf: &mut [u8]) -> Result<()> {
        one(&self.reads);
        self.inner.load(offset, buf)
    }

    fn is_costly(&self) -> bool {
        self.costly || self.inner.is_costly()
    }

    fn touch(&self, offset: usize, len: usize) {
        self.touched.fetch_add(len as u64, Ordering::Relaxed);
        self.inner.touch(offset, len);
    }

    fn flush(&self, offset: usize, len: usize) -> Result<()> {
        one(&self.flushes);
        self.inner.flush(offset, len)
    }

    fn fence(&self) {
        one(&self.fences);
        self.inner.fence();
    }

    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }
}
