//! Persistent memory: a mapped file whose stores become durable by instructions of the processor, without a system call.
//!
//! # What a store is worth
//! | [`PmemMode`] | after `write` and [`Pmem::fence`] it survives |
//! |---|---|
//! | `Dax` | power failure |
//! | `StandIn` | the death of the process; it costs what the instructions cost on ordinary memory |
//! | `PageCache` | the death of the process; flushes and fences cost nothing, for they would add nothing |
//!
//! # Order
//! A processor writes lines of [`LINE`] bytes back whenever it likes, and no two of them in order. What must be durable before
//! something else is stored is written, flushed ([`Pmem::write`] does that itself) and fenced before. A fence holds for what the
//! calling thread has written and flushed, and for nothing else. Words of eight bytes are never torn.
//!
//! [`Pmem::write`] may go around the processor's caches, so another thread may read what it wrote only if a fence of this thread lies
//! between the write and whatever tells the other one of it.

pub(crate) mod copy;
mod cost;
pub(crate) mod writeback;

#[cfg(test)]
mod tests;

pub use cost::{CostlyPmem, PmemCost};

use std::fmt::Debug;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use terrane_base::{Error, ErrorKind, Result};

use crate::{Media, OpenMode, SECTOR};

/// What a processor flushes at a time, in bytes.
pub const LINE: usize = 64;

/// What persistent memory reads and writes inside, in bytes (Optane DCPMM: Yang et al., "An empirical guide to the behavior and
/// use of scalable persistent memory", FAST 2020). Less than that costs as much.
pub const PM_BLOCK: usize = 256;

/// So many bytes behind a memory may be read too, and are zero: as far as two lengths of four bytes lead that are damaged, and what stands in front
/// of them. Addresses are all that they take.
pub const READABLE_BEHIND: usize = (2 << 32) + 4096;

/// What whoever uses a memory stores to first; zeros until then.
const UNUSED: Range<usize> = SECTOR..3 * SECTOR;

/// How much of a new file one write fills with zeros.
const PREWRITE: usize = 1 << 20;

/// How a file is used as persistent memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PmemMode {
    /// A file on a file system that maps a device itself (`mount -o dax`, on a device that is persistent memory). Refused elsewhere.
    Dax,
    /// Any file, with every instruction that a device would need: for measuring and developing where there is no device. It costs what
    /// these cost on ordinary memory. What was stored survives the process; of a power failure nothing is known.
    StandIn,
    /// Any file. What was stored survives the process; a power failure leaves any of its pages old. (A database has a log behind it, which
    /// survives that.)
    PageCache,
}

/// A mapped file of persistent memory. All methods may be called from any number of threads at once; stores of several to the same
/// words leave some mixture of them.
///
/// Offsets are multiples of eight, and a last partial word is padded with zeros.
pub trait Pmem: Send + Sync + Debug {
    /// The file.
    fn path(&self) -> &Path;
    /// How it is used.
    fn mode(&self) -> PmemMode;
    /// Length in bytes.
    fn len(&self) -> usize;
    /// Whether the length is zero, which it never is.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Where it begins: a multiple of 4096. For loads, in rooms that may do without this trait's checks, and for stores to what
    /// the caller alone has and no crash needs; it stays mapped as long as this value lives, and so do [`READABLE_BEHIND`] bytes
    /// behind it.
    fn base(&self) -> NonNull<u8>;
    /// Copies bytes in and has them written back: they are durable once this thread has fenced.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a range that is not within the memory; nothing is stored then.
    fn write(&self, offset: usize, bytes: &[u8]) -> Result<()>;
    /// Stores one word, whole; with release, so that who loads it sees what this thread stored before. Not flushed.
    ///
    /// # Errors
    /// As [`Pmem::write`].
    fn store_word(&self, offset: usize, word: u64) -> Result<()>;
    /// Stores `to` where `from` stands, in one step, with acquire and release; false, and nothing is stored, where another word stands.
    /// Not flushed.
    ///
    /// # Errors
    /// As [`Pmem::write`].
    fn compare_exchange_word(&self, offset: usize, from: u64, to: u64) -> Result<bool>;
    /// Loads one word, whole, with acquire.
    ///
    /// # Errors
    /// As [`Pmem::write`].
    fn load_word(&self, offset: usize) -> Result<u64>;
    /// Copies bytes out.
    ///
    /// # Errors
    /// As [`Pmem::write`].
    fn load(&self, offset: usize, buf: &mut [u8]) -> Result<()>;
    /// Whether it costs more than the memory it lies in ([`CostlyPmem`]). It never changes.
    fn is_costly(&self) -> bool {
        false
    }
    /// Says that a range is read through [`Pmem::base`]: for memories that [cost more](Pmem::is_costly). Of others it need not be said.
    fn touch(&self, offset: usize, len: usize) {
        let _ = (offset, len);
    }
    /// Has the lines of a range written back: durable once this thread has fenced.
    ///
    /// # Errors
    /// As [`Pmem::write`].
    fn flush(&self, offset: usize, len: usize) -> Result<()>;
    /// Waits until what this thread has written and flushed is durable.
    fn fence(&self);
    /// Has all of the file written to its device, and waits: where the memory is the page cache, and a fence says nothing about a power
    /// failure, a system call; on a device a fence.
    ///
    /// # Errors
    /// What the system fails with; what is on the device is unknown then, also if a later call succeeds.
    fn sync(&self) -> Result<()>;
}

/// Makes the file `path` of `len` bytes, `beginning` and zeros behind it, durably and all at once: after a crash it is there
/// whole or not at all. All of it is written, so that no store can fail for want of space. Map it with [`Media::map_pmem`]. Until
/// it is whole it is `path.new`. What an attempt has left there that was cut short is removed: a file that begins with zeros or
/// the same eight bytes, and has nothing in its second and third sector, one of which is the first that is to be stored to when
/// it is used.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`] if there is such a file, or another one of that other name; [`ErrorKind::InvalidArgument`] unless
/// `len` is a positive multiple of 4096 that has room for the beginning; [`ErrorKind::OutOfSpace`], before anything is written, if there is
/// no room for it; what the medium fails with.
pub fn create_pmem(media: &dyn Media, path: &Path, len: usize, beginning: &[u8]) -> Result<()> {
    if len == 0 || !len.is_multiple_of(SECTOR) || beginning.len() > len {
        let what = format!("persistent memory has a positive multiple of {SECTOR} bytes, not {len}");
        return Err(Error::invalid(what).with_file(path));
    }
    if media.exists(path)? {
        return Err(
            Error::new(ErrorKind::AlreadyExists, "a file of this name is there already").with_file(path)
        );
    }
    let unfinished = beside(media, path, ".new", beginning)?;
    // To find that out by writing would fill the device, and fail whoever else writes to it.
    let free = media.free_space(path.parent().unwrap_or(Path::new("")))?;
    if free < len as u64 {
        let what = format!("a persistent memory of {len} bytes is wanted, and {free} are free");
        return Err(Error::new(ErrorKind::OutOfSpace, what)
            .with_file(path)
            .with_hint("make it smaller, or make room"));
    }
    let made = fill(media, &unfinished, len, beginning).and_then(|()| media.rename(&unfinished, path));
    if let Err(e) = made {
        // A full device is to have its space back; what matters to the caller is why it failed.
        let _left_behind = media.remove_file(&unfinished);
        return Err(e);
    }
    media.sync_dir(path.parent().unwrap_or(Path::new("")))
}

/// Finds out whether a file at `path` could be mapped in this mode, with a small one, `path.try`, that is made and removed: a large one takes minutes
/// to be written before it is mapped.
///
/// # Errors
/// As [`Media::map_pmem`], [`ErrorKind::Unsupported`] among them; what making a file fails with; [`ErrorKind::AlreadyExists`] if there is a file of
/// that other name that is not what an attempt left.
pub fn try_pmem(media: &dyn Media, path: &Path, mode: PmemMode) -> Result<()> {
    let small = beside(media, path, ".try", &[])?;
    let tried = fill(media, &small, SECTOR, &[]).and_then(|()| media.map_pmem(&small, mode).map(drop));
    let removed = if media.exists(&small)? { media.remove_file(&small) } else { Ok(()) };
    // The caller knows of the file that it wants.
    tried.and(removed).map_err(|e| e.about_file(path))
}

/// The name of a file that is made beside `path`, with this `beginning`; what a crash has left there is removed.
fn beside(media: &dyn Media, path: &Path, suffix: &str, beginning: &[u8]) -> Result<PathBuf> {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    let name = PathBuf::from(name);
    if media.exists(&name)? {
        // Nobody has it open, as somebody may who gave a memory such a name.
        let _nobodys = media.lock(&name)?;
        if !is_left_over(media, &name, beginning)? {
            let what =
                "a file lies where one is to be made, and is not what an attempt before this one has left";
            return Err(Error::new(ErrorKind::AlreadyExists, what)
                .with_file(name)
                .with_hint("move it away, or remove it if it is of no use"));
        }
        media.remove_file(&name)?;
    }
    Ok(name)
}

/// Whether a file may be what is left of making one with such a `beginning`, the same or another: it begins as that does or was not written yet, and
/// nobody has used it.
fn is_left_over(media: &dyn Media, path: &Path, beginning: &[u8]) -> Result<bool> {
    let file = media.open(path, OpenMode::READ)?;
    let mut found = vec![0; UNUSED.end.min(usize::try_from(file.len()?).unwrap_or(UNUSED.end))];
    file.read_at(&mut found, 0)?;
    let (first, unused) = found.split_at(found.len().min(UNUSED.start));
    let begins = match beginning.first_chunk::<8>() {
        Some(magic) => first.iter().zip(magic).all(|(found, magic)| *found == 0 || found == magic),
        None => first.iter().all(|b| *b == 0),
    };
    Ok(begins && unused.iter().all(|b| *b == 0))
}

fn fill(media: &dyn Media, path: &Path, len: usize, beginning: &[u8]) -> Result<()> {
    let file = media.open(path, OpenMode { write: true, create_new: true, direct: false })?;
    let zeros = vec![0; PREWRITE.min(len)];
    for at in (0..len).step_by(PREWRITE) {
        file.write_at(&zeros[..PREWRITE.min(len - at)], at as u64)?;
    }
    file.write_at(beginning, 0)?;
    file.sync()
}

/// The length of a file that is to be mapped.
pub(crate) fn mapped_len(path: &Path, len: u64) -> Result<usize> {
    usize::try_from(len).ok().filter(|n| *n > 0 && n.is_multiple_of(SECTOR)).ok_or_else(|| {
        let what =
            format!("persistent memory has a positive multiple of {SECTOR} bytes, and this file {len}");
        Error::corruption(what).with_file(path)
    })
}

/// Why a file is no persistent memory that is mapped without the page cache.
pub(crate) fn not_dax(path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("this file cannot be mapped as persistent memory: {why}"))
        .with_file(path)
        .with_hint(
            "put it on a file system mounted with -o dax, or make the database with PmemMode::PageCache, where a power failure \
             leaves what has been flushed elsewhere",
        )
}
