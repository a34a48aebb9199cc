//! What recovery hands on: entries, many at a time, in the memory that they were read into.

use std::sync::Arc;

use bytes::Bytes;
use terrane_base::{Error, Result};
use terrane_format::batch::{ENTRY_HEADER, EntryHeader};
use terrane_format::log::LOG_SECTOR;
use terrane_media::File;

/// Entries that lie in one piece of memory. Their headers are verified; their bodies are verified as they are given
/// out, so that this work can be done elsewhere than where the log is read.
#[derive(Debug)]
pub(crate) struct Piece {
    bytes: Bytes,
    /// Where each lies in `bytes`, whole.
    entries: Vec<(usize, EntryHeader)>,
    /// File and offset that had been read when the last of them was whole, for errors.
    place: Option<(Arc<dyn File>, u64)>,
}

impl Piece {
    pub(super) fn new(
        bytes: Bytes,
        entries: Vec<(usize, EntryHeader)>,
        place: Option<(Arc<dyn File>, u64)>,
    ) -> Self {
        Piece { bytes, entries, place }
    }

    /// Header and body of each entry, in order.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::Corruption`] where a body is damaged.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&EntryHeader, Result<&[u8]>)> {
        self.entries.iter().map(|(at, header)| {
            let body = body(header, &self.bytes[*at..]);
            (header, header.check_body(body).map(|()| body).map_err(|e| self.placed(e)))
        })
    }

    /// Memory that it keeps, about: a frame that holds little takes a sector all the same.
    pub(crate) fn memory(&self) -> usize {
        self.bytes.len().max(LOG_SECTOR)
    }

    /// Adds file and offset to an error about an entry.
    pub(crate) fn placed(&self, e: Error) -> Error {
        match &self.place {
            Some((file, offset)) => e.with_file(file.path()).with_offset(*offset),
            None => e,
        }
    }
}

/// The body of the entry at the front of `bytes`, which has all of it.
pub(super) fn body<'b>(header: &EntryHeader, bytes: &'b [u8]) -> &'b [u8] {
    &bytes[ENTRY_HEADER..ENTRY_HEADER + header.body_len as usize]
}
