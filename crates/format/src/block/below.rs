//! How far a walk forward through a block goes by itself.

use std::cmp::Ordering;

use terrane_base::Seq;

use super::common_prefix;

/// Where a key leaves another one, and with what byte: the greater, the less is the key.
#[inline]
fn divergence(shared: usize, byte: u8) -> usize {
    shared << 8 | usize::from(!byte)
}

/// A key that a walk stays below, and the sequence whose state it shows: see [`super::BlockCursor::next_below`].
///
/// It keeps how much the walk's key has in common with its own. A record that shares more than that with the one before it is below too,
/// and so is one that shares as much and goes on with a lesser byte, which mostly spares the look at the keys.
#[derive(Clone, Debug, Default)]
pub struct Below {
    key: Vec<u8>,
    /// There is no such key: everything is below.
    open: bool,
    matched: usize,
    /// Of what [`divergence`] is greater.
    certain: usize,
    seq: Seq,
    shows_all: bool,
}

impl Below {
    /// The key that the next walk stays below; `None` for one that goes as far as there is anything.
    pub fn set_key(&mut self, key: Option<&[u8]>) {
        self.open = key.is_none();
        self.key.clear();
        self.key.extend_from_slice(key.unwrap_or_default());
    }

    /// Begins a walk on a record with the key `from`, which is below, through a block that has nothing newer than `newest`.
    pub fn begin(&mut self, from: &[u8], seq: Seq, newest: Seq) {
        self.set_matched(common_prefix(from, &self.key));
        (self.seq, self.shows_all) = (seq, newest <= seq);
    }

    /// The walk's key has so much in common with this one.
    fn set_matched(&mut self, matched: usize) {
        self.matched = matched;
        // Of a record that shares nothing, as the first one of each leaf says, nothing is certain: it may have the same key.
        self.certain = match self.key.get(matched) {
            Some(byte) if !self.open => divergence(matched, *byte),
            _ => 0,
        }
        .max(divergence(0, 0));
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

    /// Whether nothing of the block is newer than [`Below::seq`].
    #[inline]
    pub(super) fn shows_all(&self) -> bool {
        self.shows_all
    }

    /// Whether a record that has the first `shared` bytes, and not less than it could, in common with the walk's, and then `byte`, is
    /// below without any further look, and has another key.
    #[inline]
    pub(super) fn certainly_has(&self, shared: usize, byte: u8) -> bool {
        divergence(shared, byte) > self.certain
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
                self.set_matched(shared);
                true
            }
            Ordering::Greater => false,
            Ordering::Equal => {
                let common = common_prefix(suffix, rest);
                let below = suffix.get(common) < rest.get(common);
                if below {
                    self.set_matched(shared + common);
                }
                below
            }
        }
    }
}
