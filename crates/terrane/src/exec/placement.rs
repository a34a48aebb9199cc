//! Which core owns which keys. A matter of speed alone: every core, and every other thread, may read and write any key.

use std::collections::BTreeMap;

use terrane_base::{Epoch, SubtableId};

/// Most pieces that a subtable is split into, for each core.
pub(super) const PIECES: usize = 4;

/// The owners of all keys. Immutable: a change makes the next one.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    cores: usize,
    /// Subtables that are not where their number puts them: cuts in the order of keys. The first begins at the empty key.
    moved: BTreeMap<SubtableId, Vec<Piece>>,
    version: u64,
}

/// From `start` on, up to the next piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: Box<[u8]>,
    pub(crate) core: usize,
}

impl Epoch for Placement {
    fn epoch(&self) -> u64 {
        self.version
    }
}

impl Placement {
    pub(super) fn new(cores: usize) -> Self {
        Placement { cores, moved: BTreeMap::new(), version: 0 }
    }

    /// The core that owns `key`.
    #[inline]
    pub(super) fn owner(&self, table: SubtableId, key: &[u8]) -> usize {
        match self.moved.get(&table) {
            None => table.0 as usize % self.cores,
            Some(pieces) => pieces[at(pieces, key)].core,
        }
    }

    /// The pieces of a subtable, in the order of keys.
    pub(crate) fn pieces(&self, table: SubtableId) -> Vec<Piece> {
        self.moved
            .get(&table)
            .cloned()
            .unwrap_or_else(|| vec![Piece { start: Box::default(), core: self.whole(table) }])
    }

    fn whole(&self, table: SubtableId) -> usize {
        table.0 as usize % self.cores
    }

    /// Gives all of a subtable to `core`.
    pub(super) fn assign(&self, table: SubtableId, core: usize) -> Self {
        self.with(table, vec![Piece { start: Box::default(), core }])
    }

    /// Gives `core` the keys from `start` on, up to where the piece ends that `start` is in. `None` if there are too many pieces.
    pub(super) fn split(&self, table: SubtableId, start: &[u8], core: usize) -> Option<Self> {
        let mut pieces = self.pieces(table);
        let found = at(&pieces, start);
        if *pieces[found].start == *start {
            pieces[found].core = core;
        } else {
            pieces.insert(found + 1, Piece { start: start.into(), core });
        }
        // Neighbours of one owner are one piece.
        pieces.dedup_by(|next, piece| next.core == piece.core);
        (pieces.len() <= PIECES * self.cores).then(|| self.with(table, pieces))
    }

    /// Gives `to` the piece that `key` is in.
    pub(super) fn hand_over(&self, table: SubtableId, key: &[u8], to: usize) -> Self {
        let mut pieces = self.pieces(table);
        let found = at(&pieces, key);
        pieces[found].core = to;
        pieces.dedup_by(|next, piece| next.core == piece.core);
        self.with(table, pieces)
    }

    /// Subtables that have a place of their own.
    pub(super) fn len(&self) -> usize {
        self.moved.len()
    }

    /// Of these subtables alone.
    pub(super) fn only(&self, alive: impl Fn(SubtableId) -> bool) -> Self {
        let mut next = self.clone();
        next.version += 1;
        next.moved.retain(|id, _| alive(*id));
        next
    }

    fn with(&self, table: SubtableId, pieces: Vec<Piece>) -> Self {
        let mut next = self.clone();
        next.version += 1;
        next.moved.insert(table, pieces);
        next
    }
}

/// The piece that `key` is in. There is one that begins at the empty key.
fn at(pieces: &[Piece], key: &[u8]) -> usize {
    pieces.partition_point(|p| *p.start <= *key).saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: SubtableId = SubtableId(5);

    fn owners(p: &Placement) -> Vec<usize> {
        [&b""[..], b"c", b"f", b"m", b"z"].map(|key| p.owner(TABLE, key)).to_vec()
    }

    #[test]
    fn pieces_go_where_they_are_told() {
        let p = Placement::new(3);
        assert_eq!(owners(&p), [2; 5]);
        let p = p.split(TABLE, b"f", 0).unwrap();
        assert_eq!(owners(&p), [2, 2, 0, 0, 0]);
        let p = p.split(TABLE, b"g", 1).unwrap().hand_over(TABLE, b"fa", 1);
        assert_eq!(owners(&p), [2, 2, 1, 1, 1]);
        assert_eq!(p.pieces(TABLE).len(), 2, "neighbours of one owner are one piece");
        let p = p.split(TABLE, b"", 1).unwrap();
        assert_eq!((owners(&p), p.pieces(TABLE).len()), (vec![1; 5], 1));
        assert_eq!(owners(&p.assign(TABLE, 0)), [0; 5]);
        assert_eq!(p.owner(SubtableId(6), b"x"), 0, "others stay where their number puts them");
        assert_eq!(p.epoch(), 4);
        assert_eq!((p.only(|id| id == TABLE).len(), p.only(|id| id != TABLE).len()), (1, 0));
    }

    #[test]
    fn the_number_of_pieces_is_bounded() {
        let mut p = Placement::new(2);
        for n in 0..=u8::MAX {
            match p.split(TABLE, &[n, 1], usize::from(n % 2)) {
                Some(next) => p = next,
                None => break,
            }
        }
        assert_eq!(p.pieces(TABLE).len(), PIECES * 2);
    }
}
