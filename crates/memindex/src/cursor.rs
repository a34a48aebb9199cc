//! Ordered traversal by distinct key, in both directions.

use std::marker::PhantomData;

use terrane_base::Seq;

use crate::index::MemIndex;
use crate::record::Record;

/// A position in a [`MemIndex`] that does not borrow it: every method takes the index again, so that an iterator may
/// keep a cursor beside the `Arc` that keeps the index alive. Handing in another index than the one it was positioned in
/// leaves the cursor invalid.
///
/// A cursor sees every insert that happened before it was positioned; later ones it may or may not see. Between two
/// calls it holds nothing that would delay reclamation.
#[derive(Clone, Debug, Default)]
pub struct Cursor {}

impl Cursor {
    /// A cursor without a position.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is a current key.
    pub fn valid(&self) -> bool {
        todo!()
    }

    /// Forgets the position.
    pub fn clear(&mut self) {
        todo!()
    }

    /// Goes to the first key at or after `key`.
    pub fn seek(&mut self, _index: &MemIndex, _key: &[u8]) {
        todo!()
    }

    /// Goes to the last key at or before `key`.
    pub fn seek_for_prev(&mut self, _index: &MemIndex, _key: &[u8]) {
        todo!()
    }

    /// Goes to the smallest key.
    pub fn seek_first(&mut self, _index: &MemIndex) {
        todo!()
    }

    /// Goes to the largest key.
    pub fn seek_last(&mut self, _index: &MemIndex) {
        todo!()
    }

    /// Goes to the next larger key. Does nothing when not valid.
    pub fn next(&mut self, _index: &MemIndex) {
        todo!()
    }

    /// Goes to the next smaller key. Does nothing when not valid.
    pub fn prev(&mut self, _index: &MemIndex) {
        todo!()
    }

    /// The current key; empty when not valid.
    pub fn key<'a>(&self, _index: &'a MemIndex) -> &'a [u8] {
        todo!()
    }

    /// The newest version of the current key with a sequence at or below `snapshot`.
    pub fn version<'a>(&self, _index: &'a MemIndex, _snapshot: Seq) -> Option<Record<'a>> {
        todo!()
    }

    /// All versions of the current key, newest first.
    pub fn versions<'a>(&self, _index: &'a MemIndex) -> Versions<'a> {
        todo!()
    }
}

/// A [`Cursor`] together with the index it walks.
#[derive(Clone)]
pub struct IndexCursor<'a> {
    index: &'a MemIndex,
    cursor: Cursor,
}

impl<'a> IndexCursor<'a> {
    pub(crate) fn new(index: &'a MemIndex) -> Self {
        IndexCursor { index, cursor: Cursor::new() }
    }

    /// Whether there is a current key.
    pub fn valid(&self) -> bool {
        self.cursor.valid()
    }

    /// Goes to the first key at or after `key`.
    pub fn seek(&mut self, key: &[u8]) {
        self.cursor.seek(self.index, key);
    }

    /// Goes to the last key at or before `key`.
    pub fn seek_for_prev(&mut self, key: &[u8]) {
        self.cursor.seek_for_prev(self.index, key);
    }

    /// Goes to the smallest key.
    pub fn seek_first(&mut self) {
        self.cursor.seek_first(self.index);
    }

    /// Goes to the largest key.
    pub fn seek_last(&mut self) {
        self.cursor.seek_last(self.index);
    }

    /// Goes to the next larger key. Does nothing when not valid.
    pub fn next(&mut self) {
        self.cursor.next(self.index);
    }

    /// Goes to the next smaller key. Does nothing when not valid.
    pub fn prev(&mut self) {
        self.cursor.prev(self.index);
    }

    /// The current key; empty when not valid.
    pub fn key(&self) -> &'a [u8] {
        self.cursor.key(self.index)
    }

    /// The newest version of the current key with a sequence at or below `snapshot`.
    pub fn version(&self, snapshot: Seq) -> Option<Record<'a>> {
        self.cursor.version(self.index, snapshot)
    }

    /// All versions of the current key, newest first.
    pub fn versions(&self) -> Versions<'a> {
        self.cursor.versions(self.index)
    }
}

/// The versions of one key, newest first.
pub struct Versions<'a> {
    index: PhantomData<&'a MemIndex>,
}

impl<'a> Iterator for Versions<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let _ = self.index;
        todo!()
    }
}
