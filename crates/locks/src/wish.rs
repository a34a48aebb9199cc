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
    /// Of a range, when its owner took it, as that counts: see [`crate::stretches`]. Says nothing of a key.
    pub(crate) serial: u64,
}

/// How far a wish reaches from its start. The farther, the greater.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    /// The start alone, which is a key.
    Key,
    /// All before this key.
    Before(Arc<[u8]>),
    /// All that follows.
    End,
}

impl Reach {
    /// Whether a range that reaches so far, and starts at `key` or before, covers it.
    #[inline]
    pub(crate) fn is_past(&self, key: &[u8]) -> bool {
        match self {
            Reach::Key => false,
            Reach::Before(end) => *key < **end,
            Reach::End => true,
        }
    }

    /// Whether a range that reaches so far goes on from `key` or farther.
    pub(crate) fn is_up_to(&self, key: &[u8]) -> bool {
        match self {
            Reach::Key => false,
            Reach::Before(end) => *key <= **end,
            Reach::End => true,
        }
    }
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
    pub(crate) fn reaches(&self, key: &[u8]) -> bool {
        self.reach.is_past(key) || self.is_key() && *key <= *self.start
    }

    /// A range of the same owner from where the first of this and others starts to where the farthest ends.
    pub(crate) fn and(&self, others: &[Arc<Wish>], serial: u64) -> Wish {
        let Wish { owner, subtable, mode, .. } = *self;
        let start = others.iter().map(|other| &other.start).fold(&self.start, Ord::min).clone();
        let reach = others.iter().map(|other| &other.reach).fold(&self.reach, Ord::max).clone();
        Wish { owner, subtable, mode, start, reach, serial }
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
