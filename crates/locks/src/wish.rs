//! What an owner wants: a key or a range, in a mode. A range that is held is the wish that was granted.

use std::sync::Arc;

use terrane_base::SubtableId;

use crate::mode::Mode;

/// See the module's head. Never empty.
#[derive(Debug)]
pub(crate) struct Wish {
    pub(crate) owner: u64,
    pub(crate) subtable: SubtableId,
    pub(crate) mode: Mode,
    pub(crate) start: Arc<[u8]>,
    pub(crate) reach: Reach,
}

/// How far a wish reaches from its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The start alone, which is a key.
    Key,
    /// All before this key.
    Before(Arc<[u8]>),
    /// All that follows.
    End,
}

impl Wish {
    pub(crate) fn is_key(&self) -> bool {
        self.reach == Reach::Key
    }

    /// The end of a range that has one.
    pub(crate) fn end(&self) -> Option<&Arc<[u8]>> {
        match &self.reach {
            Reach::Before(end) => Some(end),
            Reach::Key | Reach::End => None,
        }
    }

    /// Whether `key` lies before the end.
    fn reaches(&self, key: &[u8]) -> bool {
        match &self.reach {
            Reach::Key => *key <= *self.start,
            Reach::Before(end) => *key < **end,
            Reach::End => true,
        }
    }

    pub(crate) fn covers(&self, subtable: SubtableId, key: &[u8]) -> bool {
        self.subtable == subtable && *self.start <= *key && self.reaches(key)
    }

    /// Whether all of `other` lies within.
    pub(crate) fn includes(&self, other: &Wish) -> bool {
        self.covers(other.subtable, &other.start)
            && match (&self.reach, &other.reach) {
                (_, Reach::Key) | (Reach::End, _) => true,
                (Reach::Before(end), Reach::Before(others)) => others <= end,
                (Reach::Key, _) | (Reach::Before(_), Reach::End) => false,
            }
    }

    /// Whether the two cannot both be granted.
    pub(crate) fn conflicts_with(&self, other: &Wish) -> bool {
        self.owner != other.owner
            && self.mode.conflicts_with(other.mode)
            && self.subtable == other.subtable
            && self.reaches(&other.start)
            && other.reaches(&self.start)
    }

    /// Whether both want the same keys.
    pub(crate) fn is_of_the_same(&self, other: &Wish) -> bool {
        self.subtable == other.subtable && self.start == other.start && self.reach == other.reach
    }
}
