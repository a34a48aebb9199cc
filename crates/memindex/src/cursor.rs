//! Ordered traversal by distinct key, in both directions.

use terrane_base::{MAX_SEQ, Seq};

use crate::art::{self, Path, Way, Word};
use crate::index::{MemIndex, Structure};
use crate::record::{Record, RecordPtr};

/// A position in a [`MemIndex`] that does not borrow it: every method takes the index again, so that an iterator may
/// keep a cursor beside the `Arc` that keeps the index alive. Handing in another index than the one it was positioned in
/// leaves the cursor invalid.
///
/// Each move, be it a seek or a step, sees every insert that happened before it; inserts that run at the same time it may
/// or may not see. The current key's versions are those that were there at the last move, and perhaps later ones. Between
/// two calls a cursor holds nothing that would delay reclamation.
#[derive(Clone, Debug, Default)]
pub struct Cursor {
    /// The index that the rest is about.
    owner: u64,
    /// The current key's leaf; empty when not valid.
    leaf: Leaf,
    /// The version of the current key that was found last.
    shown: Option<RecordPtr>,
    /// How the tree got to the leaf.
    path: Path,
}

/// The current key, as the structure knows it: a leaf of the tree, or the address of any record of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leaf(Word);

impl Default for Leaf {
    fn default() -> Self {
        Leaf(Word::EMPTY)
    }
}

impl From<Option<RecordPtr>> for Leaf {
    fn from(record: Option<RecordPtr>) -> Self {
        Leaf(record.map_or(Word::EMPTY, Word::one))
    }
}

impl Cursor {
    /// A cursor without a position.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is a current key.
    #[inline]
    pub fn valid(&self) -> bool {
        !self.leaf.0.is_empty()
    }

    /// Forgets the position.
    pub fn clear(&mut self) {
        self.stand(Leaf::default());
    }

    #[inline]
    fn stand(&mut self, leaf: Leaf) {
        (self.leaf, self.shown) = (leaf, None);
    }

    /// Forgets the position, and gives back what it holds of memory above `bytes`.
    pub fn rest(&mut self, bytes: usize) {
        self.clear();
        self.path.rest(bytes);
    }

    /// Goes to the first key at or after `key`.
    pub fn seek(&mut self, index: &MemIndex, key: &[u8]) {
        self.owner = index.id();
        let leaf = match index.structure() {
            Structure::Art(art) => Leaf(art.seek(&mut self.path, key, Way::Up)),
            Structure::Skiplist(list) => list.at_or_after(key).into(),
        };
        self.stand(leaf);
    }

    /// [`Cursor::seek`] in steps, for whoever has something else to do between them: each asks the processor for what the next one looks
    /// at. In a skiplist there is none. The cursor is not valid until the end.
    #[inline]
    pub fn seek_in_steps<'a>(&'a mut self, index: &'a MemIndex, key: &'a [u8]) -> Seeking<'a> {
        self.owner = index.id();
        self.clear();
        let tree = match index.structure() {
            Structure::Art(art) => Some(art::Seeking::new(art, &mut self.path)),
            Structure::Skiplist(_) => None,
        };
        Seeking { index, key, cursor: self, tree }
    }

    /// Goes to the last key at or before `key`.
    pub fn seek_for_prev(&mut self, index: &MemIndex, key: &[u8]) {
        self.owner = index.id();
        let leaf = match index.structure() {
            Structure::Art(art) => Leaf(art.seek(&mut self.path, key, Way::Down)),
            Structure::Skiplist(list) => list.at_or_before(key).into(),
        };
        self.stand(leaf);
    }

    /// Goes to the smallest key.
    pub fn seek_first(&mut self, index: &MemIndex) {
        self.owner = index.id();
        let leaf = match index.structure() {
            Structure::Art(art) => Leaf(art.seek_end(&mut self.path, Way::Up)),
            Structure::Skiplist(list) => list.at_or_after(&[]).into(),
        };
        self.stand(leaf);
    }

    /// Goes to the largest key.
    pub fn seek_last(&mut self, index: &MemIndex) {
        self.owner = index.id();
        let leaf = match index.structure() {
            Structure::Art(art) => Leaf(art.seek_end(&mut self.path, Way::Down)),
            Structure::Skiplist(list) => list.last_key().into(),
        };
        self.stand(leaf);
    }

    /// Goes to the next larger key. Does nothing when not valid.
    #[inline]
    pub fn next(&mut self, index: &MemIndex) {
        self.step(index, Way::Up);
    }

    /// Goes to the next smaller key. Does nothing when not valid.
    #[inline]
    pub fn prev(&mut self, index: &MemIndex) {
        self.step(index, Way::Down);
    }

    fn step(&mut self, index: &MemIndex, way: Way) {
        let leaf = match (index.structure(), self.leaf_in(index)) {
            (_, Word::EMPTY) => Leaf::default(),
            (Structure::Art(art), leaf) => Leaf(art.step(&mut self.path, leaf, way)),
            (Structure::Skiplist(list), _) if way == Way::Up => list.after(self.key(index)).into(),
            (Structure::Skiplist(list), _) => list.before(self.key(index)).into(),
        };
        self.stand(leaf);
    }

    /// The current key; empty when not valid.
    #[inline]
    pub fn key<'a>(&self, index: &'a MemIndex) -> &'a [u8] {
        let leaf = self.leaf_in(index);
        let key = match index.structure() {
            Structure::Art(art) => art.key(leaf),
            Structure::Skiplist(list) => list.key(leaf),
        };
        key.unwrap_or(&[])
    }

    /// Whether it steps by the current key, and not by where that has its place.
    #[inline]
    pub fn steps_by_key(&self, index: &MemIndex) -> bool {
        matches!(index.structure(), Structure::Skiplist(_))
    }

    /// The record that [`Cursor::key`] is read from. Where records may be damaged, whoever goes on from a key looks at it first: a damaged key
    /// may lead anywhere, back too.
    #[inline]
    pub fn landed<'a>(&self, index: &'a MemIndex) -> Option<Record<'a>> {
        let at = match (index.structure(), self.leaf_in(index)) {
            (_, Word::EMPTY) => None,
            (Structure::Art(art), leaf) => art.newest_of(leaf),
            (Structure::Skiplist(list), leaf) => list.of(leaf),
        };
        at.map(|at| index.record(at))
    }

    /// Whether it may be in the wrong place, or have passed over something, for a record by which it came there, or by which others were put
    /// there, was damaged ([`MemIndex::check_with`]). Also where it has come to an end.
    #[inline]
    pub fn is_doubtful(&self, index: &MemIndex) -> bool {
        match index.structure() {
            Structure::Art(art) => self.path.is_doubtful() || art.is_misled(),
            Structure::Skiplist(_) => false,
        }
    }

    /// The newest version of the current key with a sequence at or below `snapshot`.
    #[inline]
    pub fn version<'a>(&self, index: &'a MemIndex, snapshot: Seq) -> Option<Record<'a>> {
        self.find(index, snapshot).map(|at| index.record(at))
    }

    /// [`Cursor::version`], kept for [`Cursor::shown`] until the next move.
    #[inline]
    pub fn show<'a>(&mut self, index: &'a MemIndex, snapshot: Seq) -> Option<Record<'a>> {
        self.shown = self.find(index, snapshot);
        self.shown(index)
    }

    /// What [`Cursor::show`] has found of the current key, without a search.
    #[inline]
    pub fn shown<'a>(&self, index: &'a MemIndex) -> Option<Record<'a>> {
        let at = self.shown.filter(|_| self.owner == index.id())?;
        Some(index.record(at))
    }

    #[inline]
    fn find(&self, index: &MemIndex, snapshot: Seq) -> Option<RecordPtr> {
        match (index.structure(), self.leaf_in(index)) {
            (_, Word::EMPTY) => None,
            (Structure::Art(art), leaf) => art.version(leaf, snapshot),
            (Structure::Skiplist(list), leaf) => list.version(list.key(leaf)?, snapshot),
        }
    }

    /// All versions of the current key, newest first.
    pub fn versions<'a>(&self, index: &'a MemIndex) -> Versions<'a> {
        let at = Cursor { owner: self.owner, leaf: self.leaf, ..Cursor::default() };
        Versions { index, at, bound: Some(MAX_SEQ) }
    }

    /// The leaf, if it is one of `index`: addresses mean something to their own index alone.
    #[inline]
    fn leaf_in(&self, index: &MemIndex) -> Word {
        if self.owner == index.id() { self.leaf.0 } else { Word::EMPTY }
    }
}

/// A seek under way; see [`Cursor::seek_in_steps`]. It stays with its thread, and what the index replaces meanwhile is used again only
/// after it has ended: it should not last.
pub struct Seeking<'a> {
    index: &'a MemIndex,
    key: &'a [u8],
    cursor: &'a mut Cursor,
    /// None in a skiplist.
    tree: Option<art::Seeking<'a>>,
}

impl Seeking<'_> {
    /// Takes a step. Whether it is worth giving what that has asked for the time to come near.
    #[inline]
    pub fn step(&mut self) -> bool {
        self.tree.as_mut().is_some_and(|tree| tree.step(&mut self.cursor.path, self.key))
    }

    /// Has the cursor where it was to go, whatever steps were taken.
    #[inline]
    pub fn finish(self) {
        match self.tree {
            Some(tree) => {
                let leaf = tree.finish(&mut self.cursor.path, self.key);
                self.cursor.stand(Leaf(leaf));
            }
            None => self.cursor.seek(self.index, self.key),
        }
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

/// The versions of one key, newest first. Where records may be damaged, whoever goes on from one looks at it first: a damaged sequence may lead
/// back to where it was.
pub struct Versions<'a> {
    index: &'a MemIndex,
    at: Cursor,
    /// The largest sequence still to be looked for.
    bound: Option<Seq>,
}

impl<'a> Iterator for Versions<'a> {
    type Item = Record<'a>;

    fn next(&mut self) -> Option<Record<'a>> {
        let found = self.bound.and_then(|bound| self.at.version(self.index, bound));
        self.bound = found.and_then(|record| record.seq.checked_sub(1));
        found
    }
}
