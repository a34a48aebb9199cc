//! The ranges that are held in one subtable, by mode: of all owners in a shard, or of one.

use std::ops::ControlFlow::{Break, Continue};
use std::sync::Arc;

use crate::mode::Mode;
use crate::tree::RangeTree;
use crate::wish::Wish;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    shared: RangeTree,
    exclusive: RangeTree,
}

impl Ranges {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.shared.is_empty() && self.exclusive.is_empty()
    }

    pub(crate) fn of(&self, mode: Mode) -> &RangeTree {
        match mode {
            Mode::Shared => &self.shared,
            Mode::Exclusive => &self.exclusive,
        }
    }

    pub(crate) fn insert(&mut self, range: Arc<Wish>) {
        self.of_mut(range.mode).insert(range);
    }

    pub(crate) fn remove(&mut self, range: &Wish) -> bool {
        self.of_mut(range.mode).remove(range)
    }

    /// Puts a range in the place of another of its mode. Whether that was there.
    pub(crate) fn replace(&mut self, range: &Wish, other: &Arc<Wish>) -> bool {
        self.of_mut(range.mode).replace(range, other)
    }

    /// Shows the owners of those that conflict with a wish, some perhaps several times.
    pub(crate) fn against(&self, wish: &Wish, mut f: impl FnMut(u64)) {
        for range in self.conflicting(wish.mode) {
            range.find(
                |start| wish.reaches(start),
                |reach| reach.is_past(&wish.start),
                |range| {
                    if range.owner != wish.owner {
                        f(range.owner);
                    }
                    Continue::<()>(())
                },
            );
        }
    }

    /// Whether one of another owner stands against a lock on a key.
    #[inline]
    pub(crate) fn is_against(&self, owner: u64, key: &[u8], mode: Mode) -> bool {
        let others = |range: &Arc<Wish>| if range.owner == owner { Continue(()) } else { Break(()) };
        self.conflicting(mode).any(|ranges| ranges.find_at(key, others).is_some())
    }

    /// Whether one covers a key in such a mode.
    #[inline]
    pub(crate) fn covers(&self, key: &[u8], mode: Mode) -> bool {
        self.including(mode).any(|ranges| ranges.find_at(key, |_| Break(())).is_some())
    }

    /// Those that could conflict with something in this mode.
    fn conflicting(&self, mode: Mode) -> impl Iterator<Item = &RangeTree> {
        [Some(&self.exclusive), (mode == Mode::Exclusive).then_some(&self.shared)].into_iter().flatten()
    }

    /// Those that allow all that this mode does.
    pub(crate) fn including(&self, mode: Mode) -> impl Iterator<Item = &RangeTree> {
        [Some(&self.exclusive), (mode == Mode::Shared).then_some(&self.shared)].into_iter().flatten()
    }

    fn of_mut(&mut self, mode: Mode) -> &mut RangeTree {
        match mode {
            Mode::Shared => &mut self.shared,
            Mode::Exclusive => &mut self.exclusive,
        }
    }
}
