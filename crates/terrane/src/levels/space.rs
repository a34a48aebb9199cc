//! Space in data files, in units of 64 KiB.

use std::path::Path;
use std::sync::Arc;

use terrane_base::Result;
use terrane_format::extent::ExtentMeta;
use terrane_format::value_ref::{ValuePiece, ValueRef};
use terrane_media::{File, Media};

use super::{DbState, Poison};

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
        todo!()
    }
    /// Length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        todo!()
    }
}

/// How data files grow.
#[derive(Clone, Debug)]
pub(crate) struct SpaceOptions {
    /// Largest data file in bytes.
    pub(crate) file_bytes: u64,
    /// Bytes by which a file grows.
    pub(crate) grow_bytes: u64,
    /// Identity of the database.
    pub(crate) uuid: [u8; 16],
}

/// What is used and what is not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpaceStats {
    /// Data files.
    pub(crate) files: usize,
    /// Units that the files span, headers included.
    pub(crate) units: u64,
    /// Units that have an owner, headers included.
    pub(crate) used: u64,
    /// Free units that still occupy the device.
    pub(crate) idle: u64,
}

/// The data files as found at open, while owners claim their units. Nothing is changed before [`Survey::finish`].
#[derive(Debug)]
pub(crate) struct Survey {}

impl Survey {
    /// Looks at the data files in `dir`, and claims what `state` refers to.
    pub(crate) fn new(
        _media: Arc<dyn Media>,
        _dir: &Path,
        _options: SpaceOptions,
        _state: &DbState,
        _poison: Arc<Poison>,
    ) -> Result<Self> {
        todo!()
    }
    /// Claims units that the manifest does not know yet: those of values that records in the log refer to. False if
    /// they were claimed already.
    pub(crate) fn claim_value(&mut self, _value: &ValueRef) -> Result<bool> {
        todo!()
    }
    /// Frees whatever nobody claimed and opens the space for use.
    pub(crate) fn finish(self) -> Result<Space> {
        todo!()
    }
}

/// The data files.
#[derive(Debug)]
pub(crate) struct Space {}

impl Space {
    /// Adjacent units for the caller alone.
    pub(crate) fn alloc(&self, _units: u32) -> Result<Alloc> {
        todo!()
    }
    /// Gives units back. The caller knows that the edit which frees them is durable and that nobody reads them.
    pub(crate) fn free(&self, _at: Alloc) -> Result<()> {
        todo!()
    }
    /// Writes `bytes` at `offset` of `at`; both multiples of the sector, but for the end, which is padded with zeros.
    pub(crate) fn write(&self, _at: Alloc, _offset: u64, _bytes: &[u8]) -> Result<()> {
        todo!()
    }
    /// Makes all writes to these files durable.
    pub(crate) fn sync_files(&self, _files: impl IntoIterator<Item = u32>) -> Result<()> {
        todo!()
    }
    /// An open data file.
    pub(crate) fn file(&self, _number: u32) -> Result<Arc<dyn File>> {
        todo!()
    }
    /// What is used and what is not.
    pub(crate) fn stats(&self) -> SpaceStats {
        todo!()
    }
    /// Writes a value in pieces of units of its own. Not durable before [`Space::sync_files`] on the pieces' files. On
    /// an error everything allocated is free again.
    pub(crate) fn write_value(&self, _id: u64, _bytes: &[u8]) -> Result<ValueRef> {
        todo!()
    }
    /// Reads a value and verifies its checksums.
    pub(crate) fn read_value(&self, _value: &ValueRef) -> Result<Vec<u8>> {
        todo!()
    }
}
