//! Persistent memory of the operating system: a mapped file, and the instructions that write its lines back.
//!
//! # Concurrency
//! Stores are relaxed atomic words, or go around the caches (`pmem::copy`); one word is stored with release, and loaded with acquire.
//! On x86 stores of one thread become visible in order, but for those that go around the caches: these are ordered by a fence alone,
//! which the trait asks of its callers.

use std::fmt;
use std::fs::File;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use terrane_base::Result;

use super::mapped::{Mapped, fill_holes};
use crate::error::{check_region, io_error};
use crate::pmem::writeback::WriteBack;
use crate::pmem::{READABLE_BEHIND, copy, mapped_len, not_dax};
use crate::{LINE, Pmem, PmemMode};

const WORD: usize = size_of::<u64>();

pub(super) struct RealPmem {
    mapped: Mapped,
    mode: PmemMode,
    back: WriteBack,
}

impl RealPmem {
    /// Maps all of a file.
    pub(super) fn map(path: &Path, mode: PmemMode) -> Result<Self> {
        let back = match mode {
            PmemMode::PageCache => WriteBack::Nothing,
            _ => WriteBack::of_this_machine()
                .ok_or_else(|| not_dax(path, "Terrane knows no instructions for it on this processor"))?,
        };
        let file =
            File::options().read(true).write(true).open(path).map_err(|e| io_error(e, "open", path))?;
        let len = file.metadata().map_err(|e| io_error(e, "look-up", path))?.len();
        let len = mapped_len(path, len)?;
        fill_holes(&file, len as u64, path)?;
        let mapped = Mapped::new(&file, path, len, READABLE_BEHIND, mode == PmemMode::Dax)?;
        mapped.base().as_ptr().expose_provenance();
        Ok(RealPmem { mapped, mode, back })
    }

    fn word(&self, offset: usize) -> Result<&AtomicU64> {
        let at = self.mapped.place(offset, WORD)?;
        // SAFETY: the word lies within the mapping, which lives as long as `self`; mappings begin at a page and the offset is a
        // multiple of eight, so it is aligned.
        Ok(unsafe { AtomicU64::from_ptr(at.cast()) })
    }
}

impl Pmem for RealPmem {
    fn path(&self) -> &Path {
        self.mapped.path()
    }

    fn mode(&self) -> PmemMode {
        self.mode
    }

    fn len(&self) -> usize {
        self.mapped.len()
    }

    fn base(&self) -> NonNull<u8> {
        self.mapped.base()
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let at = self.mapped.place(offset, bytes.len())?;
        // SAFETY: the range lies within the mapping and begins at a word.
        unsafe { copy::copy_in(at, bytes, self.back) };
        copy::ask_ahead(at, bytes.len());
        Ok(())
    }

    fn store_word(&self, offset: usize, word: u64) -> Result<()> {
        self.word(offset)?.store(word.to_le(), Ordering::Release);
        Ok(())
    }

    fn compare_exchange_word(&self, offset: usize, from: u64, to: u64) -> Result<bool> {
        let word = self.word(offset)?;
        Ok(word.compare_exchange(from.to_le(), to.to_le(), Ordering::AcqRel, Ordering::Relaxed).is_ok())
    }

    fn load_word(&self, offset: usize) -> Result<u64> {
        Ok(u64::from_le(self.word(offset)?.load(Ordering::Acquire)))
    }

    fn load(&self, offset: usize, buf: &mut [u8]) -> Result<()> {
        let at = self.mapped.place(offset, buf.len())?;
        // SAFETY: the range lies within the mapping and begins at a word.
        unsafe { copy::copy_out(at, buf) };
        Ok(())
    }

    fn flush(&self, offset: usize, len: usize) -> Result<()> {
        check_region(self.path(), self.len(), offset, len)?;
        if len > 0 && self.back != WriteBack::Nothing {
            let first = offset / LINE * LINE;
            for line in (first..offset + len).step_by(LINE) {
                // SAFETY: the line lies within the mapping, which is made of whole lines.
                unsafe { self.back.line(self.base().as_ptr().add(line)) };
            }
        }
        Ok(())
    }

    fn fence(&self) {
        self.back.fence();
    }

    fn sync(&self) -> Result<()> {
        if self.mode == PmemMode::Dax {
            self.fence();
            return Ok(());
        }
        self.mapped.sync()
    }
}

impl fmt::Debug for RealPmem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RealPmem({:?}, {:?}, {:?})", self.mapped, self.mode, self.back)
    }
}
