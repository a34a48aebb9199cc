//! Which versions of a key are still needed.
//!
//! # Algorithm
//! The registered snapshots cut the sequences into *stripes*: the stripe of a sequence is the smallest snapshot that
//! sees it, or infinity. Of the versions in one stripe only the newest is ever read: whoever sees an older one sees the
//! newer one too. The same holds for range tombstones, and a version that a tombstone of its own stripe covers is never
//! read either. At the bottom, where nothing older is left to hide, deletes and tombstones of the lowest stripe go too,
//! and what survives of that stripe is seen by everyone, so its sequence says nothing more and becomes zero.

use terrane_base::Seq;
use terrane_format::Kind;
use terrane_format::tombstone::{Fragment, RangeTombstones};

use crate::task::Task;

/// Stripe of what no registered snapshot sees.
const LATEST: Seq = Seq::MAX;

/// What becomes of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It stays, with this sequence.
    Keep(Seq),
    /// A newer version hides it from every snapshot.
    Superseded,
    /// A range tombstone hides it from every snapshot.
    RangeDeleted,
    /// It is a delete and there is nothing left to delete.
    DeleteDropped,
}

/// Judges the versions of one key after another, in internal order. Used by merges and by whatever else writes sorted
/// records.
#[derive(Debug)]
pub struct Retention<'a> {
    snapshots: &'a [Seq],
    bottom: bool,
    /// Fragments that end behind the current key.
    fragments: &'a [Fragment],
    /// Tombstones that cover the current key, newest first.
    covering: &'a [Seq],
    /// Stripe of the version of the current key that was judged last.
    stripe: Option<Seq>,
}

impl<'a> Retention<'a> {
    /// Rules for these ascending `snapshots`, `tombstones` and, if `bottom`, nothing older below.
    pub fn new(snapshots: &'a [Seq], tombstones: &'a RangeTombstones, bottom: bool) -> Self {
        Retention { snapshots, bottom, fragments: tombstones.fragments(), covering: &[], stripe: None }
    }

    /// The rules of a task.
    pub fn of(task: &'a Task) -> Self {
        Retention::new(&task.snapshots, &task.tombstones, task.bottom)
    }

    /// Turns to the next key; keys ascend.
    #[inline]
    pub fn begin_key(&mut self, key: &[u8]) {
        self.stripe = None;
        if self.fragments.is_empty() {
            return;
        }
        while let Some((first, behind)) = self.fragments.split_first()
            && first.end.as_slice() <= key
        {
            self.fragments = behind;
        }
        self.covering = match self.fragments.first() {
            Some(f) if f.start.as_slice() <= key => &f.seqs,
            _ => &[],
        };
    }

    /// Judges the next version of the current key; versions come newest first.
    #[inline]
    pub fn judge(&mut self, seq: Seq, kind: Kind) -> Verdict {
        let stripe = stripe(self.snapshots, seq);
        if self.stripe == Some(stripe) {
            return Verdict::Superseded;
        }
        self.stripe = Some(stripe);
        if self.covering.iter().find(|&&t| t <= stripe).is_some_and(|&t| t > seq) {
            return Verdict::RangeDeleted;
        }
        if self.bottom && stripe == lowest(self.snapshots) {
            return if kind.is_delete() { Verdict::DeleteDropped } else { Verdict::Keep(0) };
        }
        Verdict::Keep(seq)
    }
}

/// The range tombstones that are still needed once a task has run, clipped to its range.
pub fn kept_tombstones(task: &Task) -> RangeTombstones {
    let clipped = task.tombstones.clip(&task.lo, task.hi.as_deref());
    if clipped.is_empty() {
        return clipped;
    }
    let mut kept = Vec::new();
    for f in clipped.fragments() {
        let mut newer = None;
        for &seq in &f.seqs {
            let stripe = stripe(&task.snapshots, seq);
            let vanishes = task.bottom && stripe == lowest(&task.snapshots);
            if newer != Some(stripe) && !vanishes {
                kept.push((&f.start, &f.end, seq));
            }
            newer = Some(stripe);
        }
    }
    RangeTombstones::from_ranges(kept)
}

/// The smallest snapshot that sees `seq`.
#[inline]
fn stripe(snapshots: &[Seq], seq: Seq) -> Seq {
    if snapshots.is_empty() {
        return LATEST;
    }
    snapshots.get(snapshots.partition_point(|&s| s < seq)).copied().unwrap_or(LATEST)
}

/// The stripe that every snapshot sees.
#[inline]
fn lowest(snapshots: &[Seq]) -> Seq {
    snapshots.first().copied().unwrap_or(LATEST)
}

#[cfg(test)]
mod tests;
