//! The data files as an open finds them, until every unit has its owner.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use terrane_base::{Error, Result};
use terrane_format::data_file::{DATA_HEADER, DataFileHeader};
use terrane_format::value_ref::ValueRef;
use terrane_media::{Media, OpenMode};

use super::file::DataFile;
use super::images::Images;
use super::{Alloc, Inner, Poison, Space, SpaceOptions, UNIT, io, names};
use crate::levels::state::DbState;

/// The data files while owners claim their units. Nothing is changed before [`Survey::finish`].
#[derive(Debug)]
pub(crate) struct Survey {
    media: Arc<dyn Media>,
    dir: PathBuf,
    options: SpaceOptions,
    poison: Arc<Poison>,
    next_file: u32,
    files: BTreeMap<u32, Found>,
    values: BTreeSet<u64>,
}

#[derive(Debug)]
struct Found {
    units: u32,
    /// Claimed units: end by start.
    claims: BTreeMap<u32, u32>,
}

impl Found {
    /// Whether the units lie within the file.
    fn has(&self, at: Alloc) -> bool {
        at.unit > 0 && at.units > 0 && at.end() <= self.units
    }

    /// Whether somebody has one of the units.
    fn is_taken(&self, at: Alloc) -> bool {
        self.claims.range(..at.end()).next_back().is_some_and(|(_, end)| *end > at.unit)
    }
}

impl Survey {
    /// Looks at the data files in `dir` and claims what `state` refers to. The state must be durable: it comes of an
    /// opened [`crate::levels::ManifestStore`].
    ///
    /// # Errors
    /// Corruption if units have two owners, or an owner but no file.
    pub(crate) fn new(
        media: Arc<dyn Media>,
        dir: &Path,
        options: SpaceOptions,
        state: &DbState,
        poison: Arc<Poison>,
    ) -> Result<Self> {
        let mut files = BTreeMap::new();
        for entry in media.list(dir)? {
            if let Some(number) = names::data_number(&entry.name) {
                let units = (entry.len / UNIT).min(u32::MAX.into()) as u32;
                files.insert(number, Found { units, claims: BTreeMap::new() });
            }
        }
        let behind = files.last_key_value().map_or(1, |(n, _)| n.saturating_add(1));
        let next_file = behind.max(state.next.file);
        let (dir, values) = (dir.to_owned(), BTreeSet::new());
        let mut survey = Survey { media, dir, options, poison, next_file, files, values };
        for (_, meta) in state.extents() {
            survey.claim(Alloc::of_extent(meta))?;
        }
        for value in state.subtables.values().flat_map(|s| s.values.values()) {
            survey.claim_value(value)?;
        }
        for stage in state.stages.values() {
            stage.extents.iter().try_for_each(|(_, meta)| survey.claim(Alloc::of_extent(meta)))?;
            stage.values.iter().try_for_each(|(_, value)| survey.claim_value(value).map(drop))?;
        }
        Ok(survey)
    }

    /// Claims the units of a value that a record in the log refers to and the manifest may not know yet. False if it was
    /// claimed before.
    ///
    /// # Errors
    /// Corruption if units have two owners, or an owner but no file.
    pub(crate) fn claim_value(&mut self, value: &ValueRef) -> Result<bool> {
        if !self.values.insert(value.id) {
            return Ok(false);
        }
        for piece in &value.pieces {
            self.claim(Alloc::of_piece(piece))?;
        }
        Ok(true)
    }

    /// Claims the units of a value, unless something else has one of them, or they are there no more. Whether it has.
    pub(crate) fn claim_if_free(&mut self, value: &ValueRef) -> bool {
        let is_free = |at: Alloc| {
            let found = self.files.get(&at.file);
            found.is_some_and(|found| found.has(at) && !found.is_taken(at))
        };
        let is_free =
            !self.values.contains(&value.id) && value.pieces.iter().map(Alloc::of_piece).all(is_free);
        is_free && self.claim_value(value).is_ok()
    }

    fn claim(&mut self, at: Alloc) -> Result<()> {
        let wrong = |what: &str| {
            Err(Error::corruption(format!("units {} to {} {what}", at.unit, at.end()))
                .with_file(self.dir.join(names::data(at.file)))
                .with_offset(at.offset()))
        };
        let Some(found) = self.files.get_mut(&at.file) else {
            return wrong("have an owner, but their file is missing");
        };
        if !found.has(at) {
            return wrong("have an owner, but lie outside of their file");
        }
        if found.is_taken(at) {
            return wrong("have two owners");
        }
        found.claims.insert(at.unit, at.end());
        Ok(())
    }

    /// Opens the space for use: whatever nobody claimed is free, and files without an owner are removed.
    ///
    /// # Errors
    /// Corruption if a file is damaged at its front or belongs to another database.
    pub(crate) fn finish(self) -> Result<Space> {
        let mut inner =
            Inner { files: BTreeMap::new(), next_file: self.next_file, bad: Vec::new(), used: 0, idle: 0 };
        for (number, found) in &self.files {
            let path = self.dir.join(names::data(*number));
            if found.claims.is_empty() {
                self.media.remove_file(&path)?;
                continue;
            }
            let mut file = self.open(*number, &path, found.units)?;
            let mut at = 1;
            for (start, end) in found.claims.iter().map(|(s, e)| (*s, *e)).chain([(found.units, found.units)])
            {
                if start > at {
                    file.give_back(at, start - at);
                }
                inner.used += u64::from(end - start);
                at = end;
            }
            inner.idle += u64::from(file.idle());
            inner.files.insert(*number, file);
        }
        // What a crash left behind occupies the device for nothing.
        while inner.punch_one() {}
        let Survey { media, dir, options, poison, .. } = self;
        let open = ArcSwap::from_pointee(inner.open_files());
        let images = Images::new(options.image_bytes, options.extent_bytes);
        Ok(Space {
            media,
            dir,
            options,
            poison,
            inner: Mutex::new(inner),
            open,
            untrimmed: AtomicBool::new(false),
            images,
        })
    }

    fn open(&self, number: u32, path: &Path, units: u32) -> Result<DataFile> {
        let file = self.media.open(path, OpenMode::DIRECT)?;
        let page = io::read(&*file, 0, DATA_HEADER)?;
        let header = DataFileHeader::decode(&page).map_err(|e| e.with_file(path).with_offset(0))?;
        if header.uuid != self.options.uuid || header.number != number {
            return Err(Error::corruption("the data file belongs to another database, or to another place")
                .with_file(path));
        }
        Ok(DataFile::new(file, units))
    }
}
