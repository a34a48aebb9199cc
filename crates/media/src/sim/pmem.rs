//! Persistent memory of a simulated machine: memory of its own, whose stores are entered in the file behind it.
//!
//! Loads look at the memory and nothing else, so that rooms which read through [`Pmem::base`] read what they read on a real machine.
//! Each store and each fence is a crash point. Memory that is not opened as a device is a mapped file, whose dirty pages may reach the disk
//! at any time, and fences do nothing.

use std::fmt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use terrane_base::{Error, ErrorKind, Result};

use super::OpKind;
use super::disk::{Effect, PmStore};
use super::file::Handle;
use crate::error::check_region;
use crate::pmem::writeback::WriteBack;
use crate::pmem::{READABLE_BEHIND, copy, mapped_len};
use crate::{Mapping, Pmem, PmemMode, SECTOR};

const WORD: usize = size_of::<u64>();

pub(super) struct SimPmem {
    handle: Handle,
    memory: Mapping,
    len: usize,
    mode: PmemMode,
}

impl SimPmem {
    /// Maps the file of a handle, which has `len` bytes.
    pub(super) fn new(handle: Handle, len: u64, mode: PmemMode) -> Result<Self> {
        let len = mapped_len(&handle.path, len)?;
        let room = Mapping::readable(len + READABLE_BEHIND, SECTOR).filter(|room| room.make_writable(len));
        let memory = room.ok_or_else(|| {
            Error::new(ErrorKind::Io, "the system has no memory for a simulated device")
                .with_file(&handle.path)
        })?;
        memory.base().as_ptr().expose_provenance();
        // The rest of a new mapping is zero, and takes no memory while nobody looks at it: machines come up by the million.
        handle.machine.load_written(handle.inode, |offset, page| {
            let at = (offset as usize).min(len);
            let page = &page[..page.len().min(len - at)];
            // SAFETY: the mapping is new, of `len` bytes, in which the page lies, and nobody else knows of it.
            unsafe { copy::copy_in(memory.base().as_ptr().add(at), page, WriteBack::Nothing) };
        });
        Ok(SimPmem { handle, memory, len, mode })
    }

    fn store(&self, offset: usize, bytes: &[u8], written_back: bool) -> Result<()> {
        let h = &self.handle;
        check_region(&h.path, self.len, offset, bytes.len())?;
        let mut words = bytes.to_vec();
        words.resize(bytes.len().next_multiple_of(WORD), 0);
        let (words, at): (Arc<[u8]>, _) = (words.into(), offset as u64);
        if self.mode != PmemMode::Dax {
            return h
                .machine
                .change(OpKind::Store, &h.path, |_| Ok(Effect::Store(h.inode, at, words.clone())));
        }
        let streamed = if written_back { copy::streamed(offset, bytes.len()) } else { 0..0 };
        let store = PmStore { inode: h.inode, offset: at, words, streamed, thread: thread::current().id() };
        h.machine.change(OpKind::Store, &h.path, |_| Ok(Effect::PmStore(store.clone())))
    }

    fn word(&self, offset: usize) -> Result<&AtomicU64> {
        check_region(&self.handle.path, self.len, offset, WORD)?;
        // SAFETY: the word lies within the mapping, which lives as long as `self`, and is aligned: the mapping begins at a page and
        // the offset is a multiple of eight. All accesses are atomic.
        Ok(unsafe { AtomicU64::from_ptr(self.memory.base().as_ptr().add(offset).cast()) })
    }
}

impl Pmem for SimPmem {
    fn path(&self) -> &Path {
        &self.handle.path
    }

    fn mode(&self) -> PmemMode {
        self.mode
    }

    fn len(&self) -> usize {
        self.len
    }

    fn base(&self) -> NonNull<u8> {
        self.memory.base()
    }

    fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        self.store(offset, bytes, true)?;
        // SAFETY: the store has found the range within the memory, and the offset a multiple of eight.
        unsafe { copy::copy_in(self.memory.base().as_ptr().add(offset), bytes, WriteBack::Nothing) };
        self.flush(offset, bytes.len())
    }

    fn store_word(&self, offset: usize, word: u64) -> Result<()> {
        self.store(offset, &word.to_le_bytes(), false)?;
        self.word(offset)?.store(word.to_le(), Ordering::Release);
        Ok(())
    }

    fn compare_exchange_word(&self, offset: usize, from: u64, to: u64) -> Result<bool> {
        let exchanged = self
            .word(offset)?
            .compare_exchange(from.to_le(), to.to_le(), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if exchanged {
            self.store(offset, &to.to_le_bytes(), false)?;
        }
        Ok(exchanged)
    }

    fn load_word(&self, offset: usize) -> Result<u64> {
        Ok(u64::from_le(self.word(offset)?.load(Ordering::Acquire)))
    }

    fn load(&self, offset: usize, buf: &mut [u8]) -> Result<()> {
        check_region(&self.handle.path, self.len, offset, buf.len())?;
        // SAFETY: the range lies within the memory and begins at a word.
        unsafe { copy::copy_out(self.memory.base().as_ptr().add(offset), buf) };
        Ok(())
    }

    fn flush(&self, offset: usize, len: usize) -> Result<()> {
        let h = &self.handle;
        check_region(&h.path, self.len, offset, len)?;
        if self.mode == PmemMode::Dax {
            h.machine.flush_lines(h.inode, offset as u64, len as u64);
        }
        Ok(())
    }

    fn fence(&self) {
        let h = &self.handle;
        if self.mode == PmemMode::Dax {
            h.machine.fence(h.inode, &h.path);
        }
    }

    fn sync(&self) -> Result<()> {
        let h = &self.handle;
        if self.mode == PmemMode::Dax {
            self.fence();
            return Ok(());
        }
        h.machine.change(OpKind::Sync, &h.path, |_| Ok(Effect::Sync(h.inode)))
    }
}

impl fmt::Debug for SimPmem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimPmem({}, {} bytes, {:?})", self.handle.path.display(), self.len, self.mode)
    }
}
