//! Mapped files.
//!
//! # Concurrency
//! Every access is made of relaxed atomic loads and stores of 8-byte words, so threads may race on a region without
//! undefined behaviour. Nothing here orders one word before another: whoever publishes a range does that by an atomic of
//! its own.

use std::fmt;
use std::path::Path;

use terrane_base::Result;

use super::file::RealFile;
use super::mapped::{Mapped, fill_holes};
use crate::pmem::copy;
use crate::pmem::writeback::WriteBack;
use crate::{File, Region};

pub(super) struct RealRegion(Mapped);

impl RealRegion {
    /// Maps a file of `len` bytes, a positive multiple of 8; makes it anew unless it has just this length.
    pub(super) fn map(path: &Path, len: usize) -> Result<Self> {
        let file = RealFile::open_or_create(path)?;
        if file.len()? == len as u64 {
            fill_holes(&file, len as u64, path)?;
        } else {
            // The length is right only when all zeros are there, so an interrupted preparation is done again.
            file.set_len(0)?;
            file.write_zeros(0, len as u64)?;
            file.sync()?;
        }
        Mapped::new(&file, path, len, 0, false).map(RealRegion)
    }
}

impl Region for RealRegion {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn store(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let at = self.0.place(offset, bytes.len())?;
        // SAFETY: the range lies within the mapping and begins at a word.
        unsafe { copy::copy_in(at, bytes, WriteBack::Nothing) };
        copy::ask_ahead(at, bytes.len());
        Ok(())
    }

    fn load(&self, offset: usize, buf: &mut [u8]) -> Result<()> {
        let at = self.0.place(offset, buf.len())?;
        // SAFETY: the range lies within the mapping and begins at a word.
        unsafe { copy::copy_out(at, buf) };
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        self.0.sync()
    }
}

impl fmt::Debug for RealRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RealRegion({:?})", self.0)
    }
}
