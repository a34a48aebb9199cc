//! What range tombstones looked like after one batch and another: a picture for each stretch of sequences.
//!
//! # Invariants
//! Pictures ascend. Each answers readers at `[from, until)`, and holds all tombstones up to there. Where one has been
//! dropped there is a gap, and whoever reads at a sequence within it is told so: never answered from a neighbour.

use terrane_base::{Error, Result, Seq};

use super::account::Charge;
use super::tree::{Fragment, Maker, Tree};

/// The tombstones as seen from a stretch of sequences. Cloning shares it.
#[derive(Clone, Debug)]
pub(crate) struct Picture {
    from: Seq,
    /// First sequence that sees more; `Seq::MAX` for the newest picture.
    until: Seq,
    tree: Tree,
}

impl Picture {
    /// The newest tombstone that covers `key`; 0 if none does.
    pub(crate) fn covering(&self, key: &[u8]) -> Seq {
        self.tree.find(key).map_or(0, |f| f.seq)
    }

    /// The fragment that covers `key`.
    pub(crate) fn fragment(&self, key: &[u8]) -> Option<Fragment<'_>> {
        self.tree.find(key)
    }

    /// Whether anything in `[lo, hi)` was deleted after `seq`.
    pub(crate) fn newer_than(&self, seq: Seq, lo: &[u8], hi: Option<&[u8]>) -> bool {
        let mut any = false;
        self.tree.newer_than(seq, &mut |f| any |= f.end > lo && hi.is_none_or(|hi| f.start < hi));
        any
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tree.is_empty()
    }
}

/// The sequences at which somebody reads or may yet begin to.
#[derive(Clone, Debug)]
pub(crate) struct Needed {
    /// The newest published sequence, read before the others were collected.
    pub(crate) published: Seq,
    /// The registered ones, ascending.
    pub(crate) snapshots: Vec<Seq>,
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Pictures {
    all: Vec<Picture>,
    _charge: Charge,
}

impl Pictures {
    /// No tombstone, for everyone.
    pub(super) fn new(make: &Maker) -> Self {
        Pictures::of(vec![Picture { from: 0, until: Seq::MAX, tree: Tree::default() }], make)
    }

    fn of(all: Vec<Picture>, make: &Maker) -> Self {
        let charge = make.charge(size_of_val(&all[..]) + size_of::<Pictures>());
        Pictures { all, _charge: charge }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// What a reader at `seq` sees; `None` if that has been dropped.
    pub(super) fn at(&self, seq: Seq) -> Option<&Picture> {
        let next = match self.all.last() {
            Some(p) if p.from <= seq => self.all.len(),
            _ => self.all.partition_point(|p| p.from <= seq),
        };
        self.all.get(next.checked_sub(1)?).filter(|p| seq < p.until)
    }

    /// With [start, end) at `seq` added, of a batch that readers see from `from` on. Later batches may be there already.
    pub(super) fn with(
        &self,
        from: Seq,
        start: &[u8],
        end: &[u8],
        seq: Seq,
        make: &mut Maker,
    ) -> Result<Self> {
        let (start, end) = (make.bound(start), make.bound(end));
        let next = self.all.partition_point(|p| p.from <= from);
        let (before, after) = self.all.split_at(next);
        let Some(base) = before.last().filter(|p| from < p.until) else {
            return Err(Error::corruption(format!(
                "a range tombstone of sequence {seq} comes after readers at its sequence were told there is none"
            )));
        };
        let mut all = Vec::with_capacity(self.all.len() + 1);
        all.extend_from_slice(before);
        let tree = base.tree.lay(&start, &end, seq, make);
        if base.from == from {
            all.pop();
        } else if let Some(last) = all.last_mut() {
            last.until = from;
        }
        all.push(Picture { from, until: base.until, tree });
        for p in after {
            all.push(Picture { tree: p.tree.lay(&start, &end, seq, make), ..*p });
        }
        Ok(Pictures::of(all, make))
    }

    /// With [start, end) at `seq` added for everybody.
    pub(super) fn with_for_all(&self, start: &[u8], end: &[u8], seq: Seq, make: &mut Maker) -> Self {
        let (start, end) = (make.bound(start), make.bound(end));
        let lay = |p: &Picture| Picture { tree: p.tree.lay(&start, &end, seq, make), ..*p };
        let all = self.all.iter().map(lay).collect();
        Pictures::of(all, make)
    }

    /// Without those at whose sequences nobody reads nor will.
    pub(super) fn needed(&self, needed: &Needed, make: &Maker) -> Self {
        let read = |p: &&Picture| {
            let first = needed.snapshots.partition_point(|&s| s < p.from);
            p.until > needed.published || needed.snapshots.get(first).is_some_and(|&s| s < p.until)
        };
        Pictures::of(self.all.iter().filter(read).cloned().collect(), make)
    }

    /// Of each stretch between two of `snapshots` (ascending) the newest tombstones, piece by piece: what merges keep.
    pub(super) fn kept(&self, snapshots: &[Seq]) -> Result<Vec<Fragment<'_>>> {
        let mut kept = Vec::new();
        let mut below = 0;
        let mut last: Option<&Picture> = None;
        for &s in snapshots {
            let p = self.at(s).ok_or_else(|| outdated(s))?;
            if last.is_none_or(|l| !l.tree.is(&p.tree)) {
                // What is at or below the snapshot before was newest there too.
                p.tree.newer_than(below, &mut |f| kept.push(f));
                last = Some(p);
            }
            below = s;
        }
        Ok(kept)
    }
}

/// A reader at a sequence that was never registered, or is no more.
pub(crate) fn outdated(seq: Seq) -> Error {
    Error::corruption(format!("range tombstones as of sequence {seq} are not kept any more"))
        .with_hint("a defect of Terrane, not of the device: please report it")
}
