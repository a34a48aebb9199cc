//! How far a walk forward through a block goes by itself.

use std::cmp::Ordering;

use terrane_base::Seq;

use super::common_prefix;

/// A key that a walk stays below, and the sequence whose state it shows: see [`super::BlockCursor::next_below`].
///
/// It keeps how much the walk's key has in common with its own. A record that shares more than that with the one before it is below too,
/// which mostly spares the look at the keys.
#[derive(Clone, Debug, Default)]
pub struct Below {
    key: Vec<u8>,
    /// There is no such key: everything is below.
    open: bool,
    matched: usize,
    seq: Seq,
}

impl Below {
    /// The key that the next walk stays below; `None` for one that goes as far as there is anything.
    pub fn set_key(&mut self, key: Option<&[u8]>) {
        self.open = key.is_none();
        self.key.clear();
        self.key.extend_from_slice(key.unwrap_or_default());
    }

    /// Begins a walk on a record with the key `from`, which is below.
    pub fn begin(&mut self, from: &[u8], seq: Seq) {
        (self.matched, self.seq) = (common_prefix(from, &self.key), seq);
    }

    /// Gives back memory above `bytes`.
    pub fn rest(&mut self, bytes: usize) {
        self.key.clear();
        self.key.shrink_to(bytes);
    }

    /// The sequence whose state is shown.
    #[inline]
    pub(super) fn seq(&self) -> Seq {
        self.seq
    }

    /// Whether the record behind the walk's is below too: its key has the first `shared` bytes in common with that one's, and then the
    /// `suffix`. If it is, the walk goes there.
    #[inline]
    pub(super) fn admits(&mut self, shared: usize, suffix: &[u8]) -> bool {
        if self.open || shared > self.matched {
            return true;
        }
        // It differs from the key before, hence perhaps from the end, earlier than that did. Mostly the first byte tells.
        let rest = self.key.get(shared..).unwrap_or_default();
        match suffix.first().cmp(&rest.first()) {
            Ordering::Less => {
                self.matched = shared;
                true
            }
            Ordering::Greater => false,
            Ordering::Equal => {
                let common = common_prefix(suffix, rest);
                let below = suffix.get(common) < rest.get(common);
                if below {
                    self.matched = shared + common;
                }
                below
            }
        }
    }
}
