//! Space in data files, in units of 64 KiB: who has which is known in memory only, and found again at open from what the
//! manifest refers to.
//!
//! # Algorithm
//! An allocation takes the smallest free run of units that fits in the lowest file that has one, so that high files
//! drain and can be removed; else the lowest file that may still grow does, else a new one is made. Freed units keep
//! their place on the device for reuse, up to a sixteenth of what is used; others are punched out, highest files first,
//! and wholly free files, all but one, are removed. Before units without a place are handed out they get one, so that
//! a full device shows in [`Space::alloc`] and not in a write.
//!
//! While there is writing more keep their place, up to a quarter of what is used and 64 MiB: a piece of a merge frees about what the next one
//! takes. To punch that out and get it back is two calls that wait for the file system's journal, and what is written to a fresh place costs
//! the device half as much again, and its flush a third (20 MiB on ext4: 41 and 38 ms, over old places 28 and 28). What that is more than a
//! sixteenth is given back in a [rest](Space::trim), and all of it [when the device is full](Space::give_all_back).
//!
//! Units that could not be written are not free when they are given back, for nobody would have more luck there ([`MOST_BAD`]
//! places at most: a device that takes nothing at all would have files grow for it; if it does so for a moment, they are good
//! ones). The next opening tries them again.
//!
//! # Concurrency
//! One mutex around the maps, held during calls that grow or create files, and during each that punches. Reads and writes find their file
//! without it. Whether there is something to trim is noted beside the maps, under the mutex, and read without it: it says no more than
//! whether it is worth looking. Memory that is kept for extents has a list of its own ([`images`]). Flushes of a file pass one at a time, by a
//! mutex of its own.
//!
//! # After a crash
//! Units that no durable edit refers to are free, whatever was written to them. A file without an owner is removed.

mod file;
mod free;
mod images;
mod survey;
#[cfg(test)]
mod tests;
mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use terrane_base::{Error, ErrorKind, Result};
use terrane_format::extent::{ExtentMeta, Image, UNIT_BYTES};
use terrane_format::value_ref::ValuePiece;
use terrane_media::{Errand, File, Media, Pool, SECTOR};

use super::{Poison, io, names};
use file::{DataFile, Opened};
use images::Images;
pub(crate) use survey::Survey;

const UNIT: u64 = UNIT_BYTES as u64;
/// Places that are kept back because they could not be written.
const MOST_BAD: usize = 16;

/// Adjacent units of one data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Alloc {
    /// The file.
    pub(crate) file: u32,
    /// First unit.
    pub(crate) unit: u32,
    /// How many.
    pub(crate) units: u32,
}

impl Alloc {
    /// Where an extent lies.
    pub(crate) fn of_extent(meta: &ExtentMeta) -> Self {
        Alloc { file: meta.file, unit: meta.unit, units: meta.units }
    }

    /// Where a piece of a value lies.
    pub(crate) fn of_piece(piece: &ValuePiece) -> Self {
        Alloc { file: piece.file, unit: piece.unit, units: piece.units }
    }

    /// First byte within the file.
    pub(crate) fn offset(&self) -> u64 {
        u64::from(self.unit) * UNIT
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.units) * UNIT
    }

    /// First unit behind.
    fn end(&self) -> u32 {
        self.unit.saturating_add(self.units)
    }

    /// Whether a unit is in both.
    fn overlaps(&self, other: &Alloc) -> bool {
        self.file == other.file && self.unit < other.end() && other.unit < self.end()
    }
}

/// How data files grow.
#[derive(Clone, Debug)]
pub(crate) struct SpaceOptions {
    /// Identity of the database.
    pub(crate) uuid: [u8; 16],
    /// Largest data file in bytes; default 1 GiB.
    pub(crate) file_bytes: u64,
    /// Bytes by which a file grows; default 16 MiB.
    pub(crate) grow_bytes: u64,
    /// Free bytes that may keep their place on the device, whatever is used; default 16 MiB.
    pub(crate) idle_bytes: u64,
    /// As many may while there is writing, if they are no more than a quarter of what is used; default 64 MiB.
    pub(crate) busy_bytes: u64,
    /// Memory that is kept for extents while there is writing, in bytes; default 16 MiB.
    pub(crate) image_bytes: usize,
    /// Bytes of an extent; default 2 MiB.
    pub(crate) extent_bytes: usize,
}

impl SpaceOptions {
    /// The defaults for a database.
    pub(crate) fn new(uuid: [u8; 16]) -> Self {
        SpaceOptions {
            uuid,
            file_bytes: 1 << 30,
            grow_bytes: 16 << 20,
            idle_bytes: 16 << 20,
            busy_bytes: 64 << 20,
            image_bytes: 16 << 20,
            extent_bytes: 2 << 20,
        }
    }

    fn max_units(&self) -> u32 {
        (self.file_bytes / UNIT).clamp(2, u32::MAX.into()) as u32
    }
}

/// What is used and what is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpaceStats {
    /// Data files.
    pub(crate) files: usize,
    /// Units that the files span, headers included.
    pub(crate) units: u64,
    /// Units that have an owner.
    pub(crate) used: u64,
    /// Free units that still have a place on the device.
    pub(crate) idle: u64,
}

/// The data files of an open database.
#[derive(Debug)]
pub(crate) struct Space {
    media: Arc<dyn Media>,
    dir: PathBuf,
    options: SpaceOptions,
    poison: Arc<Poison>,
    inner: Mutex<Inner>,
    /// The files of `inner`, for those who only read and write.
    open: ArcSwap<BTreeMap<u32, Arc<Opened>>>,
    /// More free units have a place than are kept in a rest, as of the last change of that.
    untrimmed: AtomicBool,
    images: Images,
}

#[derive(Debug)]
struct Inner {
    files: BTreeMap<u32, DataFile>,
    next_file: u32,
    /// What could not be written.
    bad: Vec<Alloc>,
    /// Sums over all files.
    used: u64,
    idle: u64,
}

impl Space {
    /// Adjacent units for the caller alone.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfSpace`] if the device is full, [`ErrorKind::Poisoned`] after a failed flush,
    /// [`ErrorKind::LimitExceeded`] for more than a data file holds.
    pub(crate) fn alloc(&self, units: u32) -> Result<Alloc> {
        self.poison.check()?;
        let most = self.options.max_units() - 1;
        if units == 0 || units > most {
            return Err(Error::limit("units of one allocation", units.into(), most.into()));
        }
        let mut inner = self.inner.lock();
        let taken = match self.take(&mut inner, units) {
            Err(e) if e.kind() == ErrorKind::OutOfSpace && inner.idle > 0 => {
                // Free units of other sizes occupy the device: give them back and look again.
                while inner.punch_one() {}
                self.take(&mut inner, units)
            }
            other => other,
        };
        self.note(&inner);
        taken
    }

    fn take(&self, inner: &mut Inner, units: u32) -> Result<Alloc> {
        let (number, unit) = match inner.fit(units)? {
            Some(found) => found,
            None => self.grow(inner, units)?,
        };
        inner.used += u64::from(units);
        Ok(Alloc { file: number, unit, units })
    }

    /// Grows a file, or makes one, until `units` fit.
    fn grow(&self, inner: &mut Inner, units: u32) -> Result<(u32, u32)> {
        let (max, by) = (self.options.max_units(), self.options.grow_bytes.div_ceil(UNIT) as u32);
        let number = match inner.files.iter().find(|(_, f)| f.can_grow_for(units, max)) {
            Some((n, _)) => *n,
            None => {
                let number = inner.next_file;
                inner.next_file += 1;
                let file = DataFile::create(
                    &*self.media,
                    &self.dir.join(names::data(number)),
                    self.options.uuid,
                    number,
                    &self.poison,
                )?;
                self.media.sync_dir(&self.dir).map_err(|e| self.poison.set(&e))?;
                inner.files.insert(number, file);
                self.open.store(Arc::new(inner.open_files()));
                number
            }
        };
        if let Some(file) = inner.files.get_mut(&number) {
            inner.idle += u64::from(file.grow(units, by, max)?);
        }
        match inner.fit(units)? {
            Some(found) => Ok(found),
            None => Err(Error::corruption(format!("data file {number} grew, but not for {units} units"))),
        }
    }

    /// Gives units back, but for those that are bad. The caller knows that the edit which frees them is durable and that nobody reads them.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] if they are not allocated; nothing is changed then.
    pub(crate) fn free(&self, at: Alloc) -> Result<()> {
        let mut inner = self.inner.lock();
        if inner.bad.iter().any(|bad| bad.overlaps(&at)) {
            // Nobody's, and not free.
            inner.used -= u64::from(at.units);
            self.note(&inner);
            return Ok(());
        }
        let file = inner.files.get_mut(&at.file);
        let Some(empty) = file.and_then(|f| f.give_back(at.unit, at.units).then(|| f.is_empty())) else {
            return Err(Error::corruption(format!("units {} to {} are freed twice", at.unit, at.end()))
                .with_file(self.dir.join(names::data(at.file))));
        };
        inner.used -= u64::from(at.units);
        inner.idle += u64::from(at.units);
        let doomed = if empty { inner.remove_spare_file() } else { None };
        if doomed.is_some() {
            self.open.store(Arc::new(inner.open_files()));
        }
        let keep = self.resting(&inner).max((inner.used / 4).min(self.options.busy_bytes / UNIT));
        let too_much = inner.idle > keep;
        self.note(&inner);
        drop(inner);
        if too_much {
            self.punch_down_to(|_| keep / 2);
        }
        if let Some(number) = doomed {
            // If this fails the next open removes it.
            let _ = self.media.remove_file(&self.dir.join(names::data(number)));
        }
        Ok(())
    }

    /// Free units that may keep their place when nothing is written.
    fn resting(&self, inner: &Inner) -> u64 {
        (inner.used / 16).max(self.options.idle_bytes / UNIT)
    }

    /// To be called after each change of what is used or free.
    fn note(&self, inner: &Inner) {
        self.untrimmed.store(inner.idle > self.resting(inner), Ordering::Relaxed);
    }

    /// Whether [`Space::trim`] has something to give back.
    pub(crate) fn is_untrimmed(&self) -> bool {
        self.keeps_places() || !self.images.is_empty()
    }

    /// Whether more free units have a place than in a rest.
    pub(crate) fn keeps_places(&self) -> bool {
        self.untrimmed.load(Ordering::Relaxed)
    }

    /// Gives the place of free units back that is kept only while there is writing, and memory.
    pub(crate) fn trim(&self) {
        if self.keeps_places() {
            self.punch_down_to(|inner| self.resting(inner));
        }
        self.images.clear();
    }

    /// Gives the place of all free units back: others have none. Says whether there was any.
    pub(crate) fn give_all_back(&self) -> bool {
        self.punch_down_to(|_| 0)
    }

    /// Punches free units out until no more than `keep` have a place on the device; says whether any were. Others have their turns in between.
    fn punch_down_to(&self, keep: impl Fn(&Inner) -> u64) -> bool {
        let mut any = false;
        loop {
            let mut inner = self.inner.lock();
            if inner.idle <= keep(&inner) || !inner.punch_one() {
                return any;
            }
            self.note(&inner);
            any = true;
        }
    }

    /// Writes `bytes` at `offset` of `at`; `offset` is a multiple of the sector, and the last sector is padded with
    /// zeros. Not durable before [`Space::sync_files`].
    pub(crate) fn write(&self, at: Alloc, offset: u64, bytes: &[u8]) -> Result<()> {
        self.poison.check()?;
        if !offset.is_multiple_of(SECTOR as u64) || offset + bytes.len() as u64 > at.bytes() {
            return Err(Error::invalid(format!("{} bytes at {offset} do not fit the units", bytes.len())));
        }
        let written = io::write(&*self.file(at.file)?, at.offset() + offset, bytes);
        if written.as_ref().is_err_and(|e| e.kind() == ErrorKind::Io) {
            let mut inner = self.inner.lock();
            if inner.bad.len() < MOST_BAD {
                inner.bad.push(at);
            }
        }
        written
    }

    /// Memory for the bytes of an extent, of one that was written, if there is any.
    pub(crate) fn take_image(&self) -> Option<Image> {
        self.images.take()
    }

    /// Writes the bytes of an extent in the background. When that is done, what was written to `synced` before is durable.
    pub(crate) fn write_behind(
        self: &Arc<Self>,
        at: Alloc,
        bytes: Image,
        synced: BTreeSet<u32>,
    ) -> Errand<()> {
        let space = self.clone();
        Errand::send(&*self.media, Pool::Io, "extent", move || {
            space.write(at, 0, &bytes)?;
            space.images.give(bytes);
            space.sync_files(synced)
        })
    }

    /// Waits for [`Space::write_behind`].
    ///
    /// # Errors
    /// Those of [`Space::write`] and [`Space::sync_files`].
    pub(crate) fn written(&self, errand: Errand<()>) -> Result<()> {
        errand.wait(&*self.media)
    }

    /// Makes all writes to these files durable.
    ///
    /// # Errors
    /// [`ErrorKind::Poisoned`] if a flush fails.
    pub(crate) fn sync_files(&self, files: impl IntoIterator<Item = u32>) -> Result<()> {
        let open = self.open.load_full();
        for number in files.into_iter().collect::<BTreeSet<u32>>() {
            match open.get(&number) {
                Some(f) => f.sync(&self.poison)?,
                None => return Err(self.missing(number)),
            }
        }
        self.poison.check()
    }

    /// Makes all writes to all files durable, as [`Space::sync_files`].
    pub(crate) fn sync_all(&self) -> Result<()> {
        // The files as they are now: one that is removed meanwhile holds nothing that anybody needs.
        self.open.load_full().values().try_for_each(|f| f.sync(&self.poison))?;
        self.poison.check()
    }

    /// An open data file.
    pub(crate) fn file(&self, number: u32) -> Result<Arc<dyn File>> {
        match self.open.load().get(&number) {
            Some(f) => Ok(f.file.clone()),
            None => Err(self.missing(number)),
        }
    }

    fn missing(&self, number: u32) -> Error {
        Error::corruption("this data file is referred to, but not there")
            .with_file(self.dir.join(names::data(number)))
            .with_hint("restore the file from a backup; `terrane check` lists what else is missing")
    }

    /// What is used and what is not.
    pub(crate) fn stats(&self) -> SpaceStats {
        let inner = self.inner.lock();
        SpaceStats {
            files: inner.files.len(),
            units: inner.files.values().map(|f| u64::from(f.units())).sum(),
            used: inner.used,
            idle: inner.idle,
        }
    }
}

impl Inner {
    fn open_files(&self) -> BTreeMap<u32, Arc<Opened>> {
        self.files.iter().map(|(number, f)| (*number, f.opened())).collect()
    }

    /// Takes units that some file has free.
    fn fit(&mut self, units: u32) -> Result<Option<(u32, u32)>> {
        for (number, file) in &mut self.files {
            if let Some((unit, had_place)) = file.take(units)? {
                self.idle -= u64::from(had_place);
                return Ok(Some((*number, unit)));
            }
        }
        Ok(None)
    }

    /// Punches units out that lie side by side, of the highest file that has free ones with a place on the device. Says whether there were any.
    fn punch_one(&mut self) -> bool {
        let punched = self.files.values_mut().rev().find_map(DataFile::punch_one);
        self.idle -= u64::from(punched.unwrap_or(0));
        punched.is_some()
    }

    /// Forgets the highest of the wholly free files if there is another one, and names it.
    fn remove_spare_file(&mut self) -> Option<u32> {
        let mut empty = self.files.iter().filter(|(_, f)| f.is_empty()).map(|(n, _)| *n);
        let (_spare, doomed) = (empty.next()?, empty.next_back()?);
        let file = self.files.remove(&doomed)?;
        self.idle -= u64::from(file.idle());
        Some(doomed)
    }
}
