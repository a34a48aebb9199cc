//! One data file: its free units, and which of its units have a place on the device.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use terrane_base::{ErrorKind, Result};
use terrane_format::data_file::DataFileHeader;
use terrane_media::{File, Media, OpenMode};

use super::free::FreeMap;
use super::{Poison, UNIT, io};

/// An open data file as those see it who read, write and flush it.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: Arc<dyn File>,
    flushing: Mutex<()>,
}

impl Opened {
    /// Makes all writes to it durable. One flush at a time: a failed one is reported once, and another that was under way
    /// beside it could succeed although bytes of its own were lost.
    pub(super) fn sync(&self, poison: &Poison) -> Result<()> {
        let _turn = self.flushing.lock();
        poison.check()?;
        self.file.sync().map_err(|e| poison.set(&e))
    }
}

/// An open data file with its units.
#[derive(Debug)]
pub(super) struct DataFile {
    opened: Arc<Opened>,
    /// Units that the file spans, its header included.
    units: u32,
    free: FreeMap,
    free_units: u32,
    /// One bit per unit: free and punched out, so that it needs a place before it is written.
    holes: Vec<u64>,
    hole_units: u32,
}

impl DataFile {
    /// Makes a file; durable on return, but for its name.
    pub(super) fn create(
        media: &dyn Media,
        path: &Path,
        uuid: [u8; 16],
        number: u32,
        poison: &Poison,
    ) -> Result<Self> {
        let file = media.open(path, OpenMode::CREATE_DIRECT)?;
        let header = DataFileHeader { uuid, number }.encode();
        let made = file
            .allocate(0, UNIT)
            .and_then(|()| io::write(&*file, 0, &header))
            .and_then(|()| file.sync().map_err(|e| poison.set(&e)));
        if let Err(e) = made {
            let _ = media.remove_file(path);
            return Err(e);
        }
        Ok(DataFile::new(file, 1))
    }

    /// A file of `units`, all used.
    pub(super) fn new(file: Arc<dyn File>, units: u32) -> Self {
        let opened = Arc::new(Opened { file, flushing: Mutex::new(()) });
        DataFile { opened, units, free: FreeMap::default(), free_units: 0, holes: Vec::new(), hole_units: 0 }
    }

    /// The file itself.
    pub(super) fn opened(&self) -> Arc<Opened> {
        self.opened.clone()
    }

    /// Units that the file spans, its header included.
    pub(super) fn units(&self) -> u32 {
        self.units
    }

    /// Free units that have a place on the device.
    pub(super) fn idle(&self) -> u32 {
        self.free_units - self.hole_units
    }

    /// Whether all but the header is free.
    pub(super) fn is_empty(&self) -> bool {
        self.free_units + 1 == self.units
    }

    /// Takes units if there are so many free side by side; gives the first one, and how many had a place on the device.
    pub(super) fn take(&mut self, units: u32) -> Result<Option<(u32, u32)>> {
        let Some(start) = self.free.take(units) else { return Ok(None) };
        let holes = (start..start + units).filter(|u| self.is_hole(*u)).count() as u32;
        if holes > 0
            && let Err(e) = self.opened.file.allocate(u64::from(start) * UNIT, u64::from(units) * UNIT)
        {
            self.free.insert(start, units);
            return Err(e);
        }
        (start..start + units).for_each(|u| self.set_hole(u, false));
        self.free_units -= units;
        Ok(Some((start, units - holes)))
    }

    /// Frees units. False, and nothing changed, if they are not all used.
    pub(super) fn give_back(&mut self, start: u32, units: u32) -> bool {
        let inside = start > 0 && units > 0 && start.checked_add(units).is_some_and(|end| end <= self.units);
        if !inside || !self.free.insert(start, units) {
            return false;
        }
        self.free_units += units;
        true
    }

    /// Whether the file may grow so far that `units` fit at its end.
    pub(super) fn can_grow_for(&self, units: u32, max: u32) -> bool {
        u64::from(self.units - self.free.ending_at(self.units)) + u64::from(units) <= u64::from(max)
    }

    /// Grows until `units` fit at the end, by `by` if there is room; gives how many free units with a place came in.
    pub(super) fn grow(&mut self, units: u32, by: u32, max: u32) -> Result<u32> {
        let need = units.saturating_sub(self.free.ending_at(self.units));
        let wish = need.max(by).min(max.saturating_sub(self.units)).max(need);
        let at = u64::from(self.units) * UNIT;
        let grown = match self.opened.file.allocate(at, u64::from(wish) * UNIT) {
            Ok(()) => wish,
            Err(e) if e.kind() == ErrorKind::OutOfSpace && need < wish => {
                self.opened.file.allocate(at, u64::from(need) * UNIT)?;
                need
            }
            Err(e) => return Err(e),
        };
        self.free.insert(self.units, grown);
        self.units += grown;
        self.free_units += grown;
        Ok(grown)
    }

    /// Gives the place of the highest free run that has one back to the file system; how many units that were. `None`
    /// if there is nothing to give, or the file system does not take it.
    pub(super) fn punch_one(&mut self) -> Option<u32> {
        let mut with_place = self.free.descending().filter(|(s, l)| (*s..s + l).any(|u| !self.is_hole(u)));
        let (start, len) = with_place.next()?;
        drop(with_place);
        self.opened.file.punch(u64::from(start) * UNIT, u64::from(len) * UNIT).ok()?;
        let before = self.hole_units;
        (start..start + len).for_each(|u| self.set_hole(u, true));
        Some(self.hole_units - before)
    }

    fn is_hole(&self, unit: u32) -> bool {
        self.holes.get(unit as usize / 64).is_some_and(|w| w >> (unit % 64) & 1 == 1)
    }

    fn set_hole(&mut self, unit: u32, hole: bool) {
        if self.is_hole(unit) == hole {
            return;
        }
        let word = unit as usize / 64;
        if self.holes.len() <= word {
            self.holes.resize(word + 1, 0);
        }
        self.holes[word] ^= 1 << (unit % 64);
        if hole {
            self.hole_units += 1;
        } else {
            self.hole_units -= 1;
        }
    }
}
