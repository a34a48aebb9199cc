//! The zones that nobody has, and who may open how many of them.
//!
//! # Concurrency
//! One count of zones that are neither taken nor set aside. It changes by read-modify-writes and is never below zero, so whoever has an
//! admission finds a zone when it asks for one. What a zone holds is ordered by the allocator, not by the count: relaxed.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use terrane_base::{Error, ErrorKind, Result};
use terrane_format::chain::{GIDX_AT, ITEM_HEADER, MAX_ZONE_BYTES, ZONE_HEADER};
use terrane_format::pm::PoolKind;
use terrane_halloc::{Fresh, Halloc, Known, Lent, Plan, Pool};
use terrane_media::{Media, Pmem, PmemMode, Signal};

/// Of how many zones one is for commits: with fewer, what can wait does.
const SCARCE: u64 = 32;
/// A zone has room for its header and an item at least.
const LEAST_ZONE_BYTES: usize = ZONE_HEADER + ITEM_HEADER + 8;
/// What is known of a memtable ends with its word.
const LEAST_MEMTABLE_BYTES: usize = GIDX_AT + 8;

/// The zones of a persistent memory, for chain logs. It alone has the memory, so that what lies there stays as it is until a chain gives it
/// back: what a [`crate::ChainIndex`] refers to is read without a look.
#[derive(Debug)]
pub struct Space {
    halloc: Arc<Halloc>,
    /// Zones that can still be promised.
    free: AtomicU64,
    /// Chains that there are.
    pub(crate) chains: AtomicU64,
    /// Told when zones become free.
    freed: OnceLock<Arc<Signal>>,
    /// The memory may be another's by now. Held while a zone is lent or given back.
    sealed: Mutex<bool>,
}

impl Space {
    /// Opens a memory: see [`Halloc::open`]. It must not be mapped by anybody else, as long as this is.
    ///
    /// # Errors
    /// As there; [`ErrorKind::InvalidArgument`] if its zones are larger than [`MAX_ZONE_BYTES`]; [`ErrorKind::Corruption`] if objects are too
    /// small for what is in them.
    pub fn open(
        media: &dyn Media,
        path: &Path,
        mode: PmemMode,
        uuid: [u8; 16],
        device: u32,
    ) -> Result<Arc<Space>> {
        Space::open_known(media, path, mode, uuid, device, Known::default(), &mut |_| Ok(()))
    }

    /// As [`Space::open`], of a memory of which its owner keeps where it stands: see [`Halloc::open_known`].
    ///
    /// # Errors
    /// As there.
    pub fn open_known(
        media: &dyn Media,
        path: &Path,
        mode: PmemMode,
        uuid: [u8; 16],
        device: u32,
        known: Known,
        note: &mut dyn FnMut(Known) -> Result<()>,
    ) -> Result<Arc<Space>> {
        if mode != PmemMode::Dax {
            // A large file that is of no use is not read whole, nor stands a sector of it in the way that cannot be.
            Halloc::look(media, path, uuid, device, known)?;
        }
        Space::on(Halloc::open_known(media, media.map_pmem(path, mode)?, uuid, device, known, note)?)
    }

    /// Whether nobody can use a memory any more: see [`Halloc::is_lost`].
    ///
    /// # Errors
    /// As there.
    pub fn is_lost(media: &dyn Media, path: &Path) -> Result<bool> {
        Halloc::is_lost(media, path)
    }

    /// Whether there is nothing in a memory: see [`Halloc::is_unused`].
    ///
    /// # Errors
    /// As there.
    pub fn is_unused(media: &dyn Media, path: &Path) -> Result<bool> {
        Halloc::is_unused(media, path)
    }

    /// The number of this opening: see [`Halloc::opening`].
    pub fn opening(&self) -> u64 {
        self.halloc.opening()
    }

    /// As [`Space::open`], of a memory that is open.
    pub(crate) fn on(halloc: Halloc) -> Result<Arc<Space>> {
        let halloc = Arc::new(halloc);
        let zones = halloc.pool(PoolKind::Zones);
        if zones.object_bytes() as u64 > MAX_ZONE_BYTES {
            let what = format!("zones of {} bytes are too large for chain logs", zones.object_bytes());
            return Err(Error::invalid(what).with_file(halloc.pmem().path()));
        }
        let memtables = halloc.pool(PoolKind::Memtables);
        // No plan has such.
        if zones.object_bytes() < LEAST_ZONE_BYTES || memtables.object_bytes() < LEAST_MEMTABLE_BYTES {
            let (zone, memtable) = (zones.object_bytes(), memtables.object_bytes());
            let what = format!(
                "persistent memory has zones of {zone} bytes, and {memtable} for a memtable, which is too little"
            );
            return Err(Error::corruption(what).with_file(halloc.pmem().path()));
        }
        let free = AtomicU64::new(zones.objects() - zones.taken());
        Ok(Arc::new(Space {
            halloc,
            free,
            chains: AtomicU64::new(0),
            freed: OnceLock::new(),
            sealed: Mutex::new(false),
        }))
    }

    /// Makes the file of a memory, as [`Space::open`] takes it: see [`Halloc::create`].
    ///
    /// # Errors
    /// As there.
    pub fn create(media: &dyn Media, path: &Path, plan: &Plan, uuid: [u8; 16], device: u32) -> Result<()> {
        Halloc::create(media, path, plan, uuid, device)
    }

    /// Has `signal` notified from here on when zones become free that were taken or set aside. Once.
    pub fn tell(&self, signal: Arc<Signal>) {
        // Who comes second is not told: nobody does.
        let _first = self.freed.set(signal);
    }

    /// Writes down that the memory was closed in order: see [`Halloc::close`]. Nothing may be stored any more.
    ///
    /// # Errors
    /// As there.
    pub fn close(&self, media: &dyn Media) -> Result<()> {
        self.halloc.close(media)
    }

    /// Nothing that is lent is given back from here on, and nothing more is lent: who has it keeps it as long as it is mapped, and stores
    /// to nothing else. To be called before anybody else may open the memory, for indexes and blocks may be held longer.
    pub fn seal(&self) {
        *self.lock_sealed() = true;
    }

    fn lock_sealed(&self) -> MutexGuard<'_, bool> {
        self.sealed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until what this thread has written and flushed is durable.
    pub fn fence(&self) {
        self.pmem().fence();
    }

    /// How the memory is mapped.
    pub fn mode(&self) -> PmemMode {
        self.pmem().mode()
    }

    /// Whether it is a device of its own, or what stands for one.
    pub fn is_on_device(&self) -> bool {
        self.mode() != PmemMode::PageCache
    }

    /// Whether what zones are left is for commits.
    pub fn is_scarce(&self) -> bool {
        self.is_scarce_without(0)
    }

    /// Whether that is so once somebody has taken so many.
    pub fn is_scarce_without(&self, zones: u64) -> bool {
        self.free() <= self.zone_count() / SCARCE + zones
    }

    /// The memory's file.
    pub fn path(&self) -> &Path {
        self.pmem().path()
    }

    /// Bytes of all of the memory.
    pub fn file_bytes(&self) -> u64 {
        self.pmem().len() as u64
    }

    /// How many zones there are.
    pub fn zone_count(&self) -> u64 {
        self.zones().objects()
    }

    /// How many of them somebody has.
    pub fn taken(&self) -> u64 {
        self.zones().taken()
    }

    /// Bytes of each.
    pub fn zone_bytes(&self) -> usize {
        self.zones().object_bytes()
    }

    pub(crate) fn halloc(&self) -> &Halloc {
        &self.halloc
    }

    pub(crate) fn pmem(&self) -> &dyn Pmem {
        &**self.halloc.pmem()
    }

    /// How many memtables there can be besides those that there are, and how many in all.
    pub fn memtables_left(&self) -> (u64, u64) {
        let memtables = self.halloc.pool(PoolKind::Memtables);
        (memtables.objects().saturating_sub(memtables.taken()), memtables.objects())
    }

    /// Zones that nobody has or may open.
    pub fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// How many zones are set aside for somebody who has not opened them; or a little less, while others take and release.
    pub fn set_aside(&self) -> u64 {
        self.zone_count().saturating_sub(self.taken() + self.free())
    }

    /// Sets `zones` aside. One for each item is enough: an item is never larger than a zone has room for.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfSpace`] if there are not so many: memtables must be emptied first.
    pub fn admit(self: &Arc<Self>, zones: u64) -> Result<Admission> {
        let taken =
            self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |free| free.checked_sub(zones));
        if taken.is_err() {
            let what = format!("the persistent memory has fewer than {zones} zones left");
            return Err(Error::new(ErrorKind::OutOfSpace, what)
                .with_file(self.halloc.pmem().path())
                .with_hint("wait until memtables are written out, or give it more memory"));
        }
        Ok(Admission { space: self.clone(), left: zones })
    }

    /// Gives zones back that nothing refers to any more: durable when this returns.
    ///
    /// # Errors
    /// As [`Pool::release`].
    pub(crate) fn release(&self, zones: &[u32]) -> Result<()> {
        self.zones().release(zones)?;
        self.add_free(zones.len() as u64);
        Ok(())
    }

    /// Takes a zone for as long as this process has use for it, unless they are [scarce](Space::is_scarce).
    ///
    /// # Errors
    /// As [`Space::admit`].
    pub(crate) fn lend(self: &Arc<Self>) -> Result<Lent> {
        let sealed = self.lock_sealed();
        if *sealed || self.is_scarce() {
            return Err(Error::new(ErrorKind::OutOfSpace, "what zones are left is for commits"));
        }
        let mut admission = self.admit(1)?;
        let lent = Lent::take(&self.halloc, PoolKind::Zones)?;
        admission.left = 0;
        Ok(lent)
    }

    /// Takes one back that was lent.
    pub(crate) fn give_back(&self, lent: Lent) {
        match *self.lock_sealed() {
            true => lent.leave(),
            false => drop(lent),
        }
        self.add_free(1);
    }

    fn add_free(&self, zones: u64) {
        self.free.fetch_add(zones, Ordering::Relaxed);
        if let Some(signal) = self.freed.get() {
            signal.notify_all();
        }
    }

    /// An error that says which memory it is about.
    pub(crate) fn in_file(&self, e: Error) -> Error {
        e.with_file(self.halloc.pmem().path())
    }

    /// An error that says where in which memory it is.
    pub(crate) fn in_place(&self, e: Error, at: usize) -> Error {
        self.in_file(e).with_offset(at as u64)
    }

    pub(crate) fn zones(&self) -> &Pool {
        self.halloc.pool(PoolKind::Zones)
    }
}

/// Zones that are set aside for somebody. Those that it has not opened go back when it is dropped.
#[derive(Debug)]
#[must_use = "dropping it gives the zones back"]
pub struct Admission {
    space: Arc<Space>,
    left: u64,
}

impl Admission {
    /// How many have not been opened.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Takes one of the zones.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if all are taken; [`ErrorKind::Corruption`] of the allocator.
    pub(crate) fn open<'s>(&mut self, space: &'s Space) -> Result<Fresh<'s>> {
        if self.left == 0 || !std::ptr::eq(&*self.space, space) {
            return Err(Error::invalid("a zone is opened that was not set aside"));
        }
        let fresh = space.zones().get()?;
        self.left -= 1;
        Ok(fresh)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.space.add_free(self.left);
    }
}

#[cfg(test)]
mod tests {
    use terrane_format::pm::{MAX_HEADER, PmHeader};
    use terrane_media::OpenMode;
    use terrane_media::sim::SimMedia;

    use super::*;

    /// What no plan has may still be written down, with a checksum that matches.
    #[test]
    fn objects_too_small_for_what_is_in_them_are_damage() {
        for small in [PoolKind::Zones, PoolKind::Memtables] {
            let media = SimMedia::new(1);
            let path = Path::new("/pm");
            let plan = Plan { bytes: 4 << 20, subtables: 1, memtables: 4, zone_bytes: 64 << 10 };
            Space::create(&*media, path, &plan, [1; 16], 0).unwrap();
            let open = || Space::open(&*media, path, PmemMode::Dax, [1; 16], 0);
            drop(open().unwrap());
            let file = media.open(path, OpenMode { write: true, create_new: false, direct: false }).unwrap();
            let mut beginning = [0; MAX_HEADER];
            file.read_at(&mut beginning, 0).unwrap();
            let mut header = PmHeader::decode(&beginning).unwrap();
            for pool in header.pools.iter_mut().filter(|pool| pool.kind == small) {
                pool.object_bytes = 64;
            }
            file.write_at(&header.encode(), 0).unwrap();
            drop(file);
            let e = open().unwrap_err();
            assert_eq!((e.kind(), e.file()), (ErrorKind::Corruption, Some(path)), "{e}");
            assert!(e.message().contains("too little"), "{e}");
        }
    }
}
