//! What becomes of L0's runs: they become one there as long as they are little, and else go down into L1 together, piece by piece along a
//! cursor (*the pass*).

use std::sync::Arc;

use super::{PaidFor, Pick, Picture, Reason, bytes, level, overlapping, span};
use crate::compact::busy::KeyRange;
use crate::levels::{Run, Version};

/// Urgency of an L0 that is due.
pub(super) const L0_URGENCY: f64 = 3.0;
/// All of L0 is little if it is one part in so many of what memtables may hold, ...
const LITTLE: u64 = 4;
/// ... and meets so many times as much in L1.
const MEETS: u64 = 16;
/// A piece of a pass is one part in so many of L0 and L1 (but of what a piece may be one part in as many at least, and all of it at most). Runs
/// that come meanwhile share what is still to be rewritten of L1, and each is to leave a quarter of a pass after the one before it, or an eighth
/// where eight are due, which takes pieces no larger than that.
const PIECES: u64 = 8;

pub(super) fn pick_l0(p: &Picture<'_>) -> Option<Pick> {
    let runs = &p.version.l0;
    if runs.is_empty() || p.busy.level_is_busy(0) {
        return None;
    }
    let all = All::of(p.version)?;
    let is_little = all.is_little(p.memtable_bytes);
    let passes = p.paid == PaidFor::Pass;
    if runs.len() > 1 && !passes && is_little {
        let range = all.range();
        if p.busy.barred(0, &range).is_none() {
            return join(p, range);
        }
    }
    let is_due = is_due(p.version, is_little, p.l0_due);
    let urgency = match runs.len() {
        _ if passes && !is_due => 1.0,
        // Straight down if that rewrites little more than itself.
        1 if all.meets() * 3 <= all.own * 4 => 1.0,
        1 => 0.0,
        // It does not grow with what is left of them: else L0 would be neglected when a pass nears its end, just before it makes
        // room.
        _ if is_due => L0_URGENCY,
        _ => 0.0,
    };
    if urgency < 1.0 {
        return None;
    }
    next_of_pass(p, urgency)
}

/// All of L0, which is `range`, to become one run there: once what has come since the largest run came is half as much, or there are as
/// many as are due, so that each byte is rewritten a few times; or if reads have paid for it.
fn join(p: &Picture<'_>, range: KeyRange) -> Option<Pick> {
    let sizes = || p.version.l0.iter().map(|r| r.bytes());
    let is_full = p.version.l0.len() >= p.l0_due;
    let is_worth_it = p.paid == PaidFor::Join || sizes().sum::<u64>() * 2 >= sizes().max()? * 3;
    if !is_full && !is_worth_it || !p.is_free(0, 0, &range.lo, range.hi.as_deref()) {
        return None;
    }
    let urgency = if is_full { L0_URGENCY } else { 1.0 };
    Some(Pick { from: 0, to: 0, range, reason: Reason::Join, urgency })
}

/// All of L0, from key to key.
struct All<'a> {
    version: &'a Version,
    lo: &'a [u8],
    hi: &'a [u8],
    own: u64,
}

impl<'a> All<'a> {
    fn of(version: &'a Version) -> Option<Self> {
        let spans = || version.l0.iter().filter_map(|r| span(r));
        let (lo, hi) = (spans().map(|s| s.0).min()?, spans().map(|s| s.1).max()?);
        let own = version.l0.iter().map(|r| r.bytes()).sum();
        Some(All { version, lo, hi, own })
    }

    /// Bytes of L1 that it meets.
    fn meets(&self) -> u64 {
        bytes(overlapping(level(self.version, 1), self.lo, Some(self.hi)))
    }

    fn range(&self) -> KeyRange {
        KeyRange { lo: self.lo.to_vec(), hi: Some(self.hi.to_vec()) }
    }

    fn is_little(&self, memtable_bytes: u64) -> bool {
        self.own <= memtable_bytes / LITTLE && self.own.saturating_mul(MEETS) <= self.meets()
    }
}

/// Whether L0 waits for merges: for its pass through L1 to go on or, as long as it is little beside L1 and what memtables may hold, for
/// its runs to become one. With `due` runs it does in any case.
pub(crate) fn l0_is_due(version: &Version, memtable_bytes: u64, due: usize) -> bool {
    is_due(version, l0_is_little(version, memtable_bytes), due)
}

/// Whether L0's pass through L1 is to go on.
pub(crate) fn l0_goes_down(version: &Version, memtable_bytes: u64, due: usize) -> bool {
    !l0_is_little(version, memtable_bytes) && is_due(version, false, due)
}

/// Whether all of L0 is little beside L1 and what memtables may hold.
pub(crate) fn l0_is_little(version: &Version, memtable_bytes: u64) -> bool {
    All::of(version).is_some_and(|all| all.is_little(memtable_bytes))
}

fn is_due(version: &Version, is_little: bool, due: usize) -> bool {
    if is_little {
        return version.l0.len() >= due;
    }
    // A run that has nothing but range tombstones is there until a pass has gone round.
    let share = |r: &Arc<Run>| match r.birth_bytes() {
        0 => 1.0,
        birth => r.bytes() as f64 / birth as f64,
    };
    pass_is_due(version.l0.iter().map(share), due)
}

/// Whether a pass is to go on, by the share that is left of each run. `due` runs leave one by one as others come if there is that part
/// of a pass for each that comes: of four, the newest has three quarters left then, the one before it two, and so on. With so many it goes
/// on in any case.
pub(crate) fn pass_is_due(left: impl Iterator<Item = f64>, due: usize) -> bool {
    let mut left: Vec<f64> = left.collect();
    left.sort_by(|a, b| b.total_cmp(a));
    let most = |came_since: usize| 1.0 - (came_since + 1) as f64 / due as f64;
    left.len() >= due
        || left.len() >= 2 && left.iter().enumerate().any(|(came_since, left)| *left > most(came_since))
}

/// The next piece of the pass of L0 through L1.
pub(super) fn next_of_pass(p: &Picture<'_>, urgency: f64) -> Option<Pick> {
    let start = p.cursors.l0.clone().unwrap_or_default();
    let bytes = piece_of_pass(p);
    let range = open_l0_piece(p, &start, bytes).or_else(|| open_l0_piece(p, &[], bytes))?;
    if p.busy.level_is_busy(0) || !p.is_free(0, 1, &range.lo, range.hi.as_deref()) {
        return None;
    }
    Some(Pick { from: 0, to: 1, range, reason: Reason::L0, urgency })
}

/// Bytes of a piece of the pass.
fn piece_of_pass(p: &Picture<'_>) -> u64 {
    let runs = p.version.l0.iter().chain(p.version.levels.first());
    (runs.map(|r| r.bytes()).sum::<u64>() / PIECES).clamp(p.piece_bytes / PIECES, p.piece_bytes)
}

/// As [`l0_piece`], and nothing of it is barred.
fn open_l0_piece(p: &Picture<'_>, start: &[u8], about: u64) -> Option<KeyRange> {
    let mut range = l0_piece(p, start, about)?;
    while let Some(barred) = p.busy.barred(0, &range).or_else(|| p.busy.barred(1, &range)) {
        let in_front = KeyRange { lo: range.lo.clone(), hi: Some(barred.lo.clone()) };
        let is_there =
            |run: &Arc<Run>| !overlapping(run.refs(), &in_front.lo, in_front.hi.as_deref()).is_empty();
        if range.lo < barred.lo && p.version.l0.iter().any(is_there) {
            range = in_front;
        } else {
            range = l0_piece(p, barred.hi.as_ref()?, about)?;
        }
    }
    Some(range)
}

/// An edge of an extent, at which some of its bytes count. Of edges at one key what ends comes first: it belongs to the piece that ends there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Edge {
    /// Where one of L0 ends. It may reach over many of L1 and over the end of the piece, so half of it counts here.
    EndOfL0,
    /// Where one of L0 begins.
    OfL0,
    /// Where one of L1 begins: a piece may end in front of it and take nothing of it.
    OfL1,
}

/// The piece of L0 and L1 that begins at `start` and holds about so many bytes, some of them L0's. It ends where an extent of L1 begins if
/// one does within reach, so that L1 is not trimmed.
pub(super) fn l0_piece(p: &Picture<'_>, start: &[u8], about: u64) -> Option<KeyRange> {
    let l1 = overlapping(level(p.version, 1), start, None);
    let l0: Vec<_> = p.version.l0.iter().flat_map(|r| overlapping(r.refs(), start, None)).collect();
    // Where L0 is met. L1 extents in front meet nothing and are not touched: they cost nothing. If that is the start, none is in front,
    // though some may have begun before.
    let met = start.max(l0.iter().map(|r| &*r.lo).min()?);
    let mut edges: Vec<(&[u8], u64, Edge)> = l1.iter().map(|r| (&*r.lo, r.bytes(), Edge::OfL1)).collect();
    for r in &l0 {
        let half = r.bytes() / 2;
        edges.extend([(&*r.lo, r.bytes() - half, Edge::OfL0), (&*r.hi, half, Edge::EndOfL0)]);
    }
    edges.sort_by_key(|&(key, _, edge)| (key, edge));
    let mut gathered = 0;
    for (key, bytes, edge) in edges {
        if *key > *met {
            let due = gathered >= about && edge == Edge::OfL1;
            let overdue = gathered >= about.saturating_mul(2) && edge != Edge::EndOfL0;
            if due || overdue {
                return Some(KeyRange { lo: start.to_vec(), hi: Some(key.to_vec()) });
            }
        }
        if *key >= *met || *met == *start {
            gathered += bytes;
        }
    }
    Some(KeyRange { lo: start.to_vec(), hi: None })
}
