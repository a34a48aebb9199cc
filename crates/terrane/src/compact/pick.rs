//! Picking: which piece of the tree to merge next. A pure function of the version; it can be replayed.
//!
//! Several things make a merge worth while. Each gets an urgency; at 1 it is due, below it is done in a rest (see
//! `db::background`):
//! * *L0 runs* slow every read; eight are the limit. They are merged together into L1, piece by piece along a cursor through
//!   the key space, so that L0 shrinks from the front while flushes add to it. Each piece rewrites what is in L1, however
//!   many runs go with it, so a pass waits for four runs, or for eight where nobody reads much, and goes no further ahead than it takes
//!   for the runs to leave one by one as others come. One that meets little of L1 (clustered keys, a small L1) goes at once, and so does
//!   all of L0 once reads have paid for that ([`crate::db::spent`]). Where all of L0 is little beside what it meets, as after flushes long
//!   before a memtable was full, its runs become one in L0 instead, now and then or as soon as reads have paid for that: it rewrites less, and
//!   leaves them one run to look into.
//! * *A level above its target size*: the coldest stretch that meets least below leaves. The further above, the more
//!   urgent, without bound: an L1 that grows makes every merge of L0 dearer, so it must not starve behind them.
//! * *Deletions*: a stretch whose records are mostly tombstones slows scans, unless it lies over many more records than
//!   that; it sinks (or, at the bottom, is rewritten) before all else. The others go in a rest, or once a seek has stepped
//!   over many deletions.
//! * *Dead space*: merges trim what straddles their edges, and an extent takes its space until nothing refers to it. One
//!   of which much is dead is rewritten where it is. That can wait for a rest, until a fifth of the data is dead.
//! * *Superseded records*: what lies above the largest level may all be newer versions of what is in it. When nothing else
//!   is to do and that is more than a tenth, it goes down. So does L1 where L2 would compress it.
//!
//! * *Heat*: what is read much more often than most, and lies in L2, comes up, merged with what L1 has there. So what leaves L1
//!   because it is cold comes back when it is read again. It waits for everything else.
//!
//! Level targets follow the data: L1 is at most 1/11 of it or four times the memtable budget, whichever is more; when
//! 1/111 of the data would still be more than that, a further level appears, and so on: write amplification grows with
//! the logarithm of the data and nothing has to be tuned. Data of up to eight memtable budgets is all in L1: a level below
//! would cost more writing than it saves.

mod heat;
mod l0;

use std::sync::Arc;
use std::time::Duration;

use terrane_base::Seq;

use crate::compact::busy::{BusyRanges, KeyRange};
use crate::compact::claim::Claim;
use crate::compact::dead::Dead;
use crate::levels::{ExtentRef, Run, Version};
use crate::options::Options;
use heat::{hot_from, pick_heat};
#[cfg(test)]
pub(crate) use l0::pass_is_due;
pub(crate) use l0::{l0_goes_down, l0_is_due, l0_is_little};
use l0::{l0_piece, next_of_pass, pick_l0};

/// Most L0 runs a subtable may have.
pub(crate) const MAX_L0_RUNS: usize = 8;
/// With so many L0's pass goes on in any case if L0 is read: see [`crate::db::spent`].
pub(crate) const READ_L0_RUNS: usize = 4;
/// So many more are allowed while a piece of L0 is damaged, for the memtables of that moment: kept in memory, they would
/// hold everybody's memory and log.
pub(crate) const RESCUE_RUNS: usize = 4;
/// Growth of levels below L1.
const FAN_OUT: u64 = 10;
/// Most levels below L0.
const MAX_LEVELS: usize = 7;
/// A stretch with fewer deletions than this is left alone.
const MIN_DELETES: u64 = 512;
/// How long it takes until readers who meet deletions have somebody look again.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// A scan does not mind a deletion among so many records.
pub(crate) const SCATTERED: u64 = 4;
/// How much heat weighs against overlap when choosing who leaves a level.
const HEAT_WEIGHT: f64 = 4.0;
/// Urgency of a level that is twice its target, less 1. With a fifth more than its target it is as urgent as L0: from there
/// on the two take turns piece by piece, so that L0 shrinks evenly and what it gives to L1 is passed on.
const SIZE_WEIGHT: f64 = 10.0;
/// What may lie in other levels than the largest, as a share of that, before it goes down in a rest.
const RESTING: f64 = 0.1;
/// The share of live data at which dead space is due; below it is reclaimed in a rest.
const DEAD_DUE: f64 = 0.2;
/// Worth rewriting is an extent of which one part in so many is dead.
const SPARSE: u64 = 4;
/// A smaller share than this is left alone, and so is less than a 16th of a piece.
const DEAD_NOTED: f64 = 0.02;

/// Where the next piece of each level begins.
#[derive(Debug, Default)]
pub(crate) struct Cursors {
    pub(crate) l0: Option<Vec<u8>>,
}

/// Why a piece was picked; for statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    L0,
    /// Runs of L0 become one there.
    Join,
    Size,
    Deletes,
    Space,
    Rest,
    Heat,
}

/// A piece to merge: `range` of level `from` (0: all L0 runs) and of level `to`, which may be the one above, or the same.
#[derive(Clone, Debug)]
pub(crate) struct Pick {
    pub(crate) from: u8,
    pub(crate) to: u8,
    pub(crate) range: KeyRange,
    pub(crate) reason: Reason,
    pub(crate) urgency: f64,
}

/// Deletions in `[lo, hi)` that were there at `seq`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Met {
    pub(crate) lo: Vec<u8>,
    pub(crate) hi: Option<Vec<u8>>,
    pub(crate) seq: Seq,
}

/// What seeks have asked to have cleared away.
#[derive(Debug, Default)]
pub(crate) struct Clearing {
    pub(crate) met: Option<Met>,
    /// When they had somebody look last.
    asked: Option<Duration>,
}

/// What picking looks at.
pub(crate) struct Picture<'a> {
    pub(crate) version: &'a Version,
    pub(crate) busy: &'a BusyRanges,
    pub(crate) cursors: &'a Cursors,
    /// Budget of all memtables, bytes.
    pub(crate) memtable_bytes: u64,
    /// Runs of L0 with which its pass goes on in any case.
    pub(crate) l0_due: usize,
    pub(crate) piece_bytes: u64,
    /// Records at or below it have no snapshot that could need their older versions.
    pub(crate) oldest_snapshot: Seq,
    /// L2 and below are compressed.
    pub(crate) compresses: bool,
    /// Deletions that a seek has stepped over, many of them.
    pub(crate) met: Option<&'a Met>,
    /// By reads: see [`crate::db::spent`].
    pub(crate) paid: PaidFor,
}

/// What has been paid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PaidFor {
    Nothing,
    /// That the runs of L0 become one.
    Join,
    /// That L0 is emptied.
    Pass,
}

impl Picture<'_> {
    /// Whether a merge of `[lo, hi)` of `from` into `to` touches nothing that somebody else works on.
    fn is_free(&self, from: u8, to: u8, lo: &[u8], hi: Option<&[u8]>) -> bool {
        self.busy.is_idle() || self.busy.admits(&Claim::of_merge(self.version, from, to, lo, hi))
    }
}

/// Target sizes of L1, L2, ... in bytes for `total` bytes in all levels; the last one is unbounded.
pub(crate) fn targets(total: u64, memtable_bytes: u64) -> Vec<u64> {
    let least = 4 * memtable_bytes;
    let mut levels = 2;
    let mut denominator = 1 + FAN_OUT;
    let mut power = FAN_OUT;
    while levels < MAX_LEVELS {
        power *= FAN_OUT;
        if total / (denominator + power) < least {
            break;
        }
        denominator += power;
        levels += 1;
    }
    let all = 2 * least;
    // From there on it comes down to what it is when there is more, steadily.
    let small = all.saturating_sub(total.saturating_sub(all));
    let mut size = (total / denominator).max(least).max(small);
    let mut out = Vec::with_capacity(levels);
    for _ in 1..levels {
        out.push(size);
        size = size.saturating_mul(FAN_OUT);
    }
    out.push(u64::MAX);
    out
}

/// The pieces in which everything that is in level `from` now (0: all L0 runs) goes into the one below.
pub(crate) fn pieces(version: &Version, from: u8, options: &Options) -> Vec<KeyRange> {
    let mut out = Vec::new();
    let mut lo = Vec::new();
    while let Some(range) = next_piece(version, from, &lo, options) {
        let hi = range.hi.clone();
        out.push(range);
        match hi {
            Some(hi) => lo = hi,
            None => break,
        }
    }
    let ends = version.runs().filter(|(level, _)| *level == from).filter_map(|(_, run)| span(run));
    if let Some(last) = out.last_mut() {
        // What is put behind it meanwhile is none of its business.
        last.hi = last.hi.take().or_else(|| ends.map(|(_, hi)| hi.to_vec()).max());
    }
    out
}

fn next_piece(version: &Version, from: u8, lo: &[u8], options: &Options) -> Option<KeyRange> {
    let (busy, cursors) = (BusyRanges::default(), Cursors::default());
    let p = Picture {
        version,
        busy: &busy,
        cursors: &cursors,
        memtable_bytes: options.memtable_bytes as u64,
        l0_due: READ_L0_RUNS,
        piece_bytes: options.tuning.piece_bytes,
        oldest_snapshot: 0,
        compresses: false,
        met: None,
        paid: PaidFor::Nothing,
    };
    if from == 0 {
        return l0_piece(&p, lo, p.piece_bytes);
    }
    let refs = overlapping(level(version, from), lo, None);
    let mut size = 0;
    let first = refs.first()?.lo.clone();
    for r in refs {
        if size >= p.piece_bytes {
            return Some(KeyRange { lo: first.to_vec(), hi: Some(r.lo.to_vec()) });
        }
        size += r.bytes();
    }
    Some(KeyRange { lo: first.to_vec(), hi: None })
}

/// The most urgent piece, if any is due.
pub(crate) fn pick(p: &Picture<'_>) -> Option<Pick> {
    let dead = Dead::of(p.version);
    [pick_deletes(p), pick_l0(p), pick_size(p), pick_space(p, &dead), pick_heat(p), pick_rest(p, &dead)]
        .into_iter()
        .flatten()
        .max_by(|a, b| a.urgency.total_cmp(&b.urgency))
}

/// What levels have beyond their targets, as a share of what they may have: 1 = writers must not be faster than merges.
pub(crate) fn debt(version: &Version, memtable_bytes: u64) -> f64 {
    let total: u64 = version.levels.iter().map(|r| r.bytes()).sum();
    let targets = targets(total, memtable_bytes);
    let over = |(run, target): (&Arc<Run>, &u64)| run.bytes().saturating_sub(*target);
    let debt: u64 = version.levels.iter().zip(&targets).map(over).sum();
    // It presses when it reaches twice what may be in L1 anyway.
    debt as f64 / (2.0 * targets[0] as f64)
}

fn bytes(refs: &[Arc<ExtentRef>]) -> u64 {
    refs.iter().map(|r| r.bytes()).sum()
}

fn level(version: &Version, level: u8) -> &[Arc<ExtentRef>] {
    match level {
        0 => &[],
        n => version.levels.get(n as usize - 1).map_or(&[], |r| r.refs()),
    }
}

fn overlapping<'a>(refs: &'a [Arc<ExtentRef>], lo: &[u8], hi: Option<&[u8]>) -> &'a [Arc<ExtentRef>] {
    let from = refs.partition_point(|r| *r.hi <= *lo);
    let to = hi.map_or(refs.len(), |hi| refs.partition_point(|r| *r.lo < *hi));
    &refs[from..to.max(from)]
}

fn span(run: &Run) -> Option<(&[u8], &[u8])> {
    Some((&run.refs().first()?.lo, &run.refs().last()?.hi))
}

fn pick_size(p: &Picture<'_>) -> Option<Pick> {
    let sizes: Vec<u64> = p.version.levels.iter().map(|r| r.bytes()).collect();
    let targets = targets(sizes.iter().sum(), p.memtable_bytes);
    let mut best: Option<Pick> = None;
    for (i, (&size, &target)) in sizes.iter().zip(&targets).enumerate() {
        let urgency = 1.0 + (size as f64 / target as f64 - 1.0) * SIZE_WEIGHT;
        if urgency <= 1.0 || best.as_ref().is_some_and(|b| b.urgency >= urgency) {
            continue;
        }
        let from = i as u8 + 1;
        let surplus = size - target;
        if let Some(range) = leaving(p, from, surplus) {
            best = Some(Pick { from, to: from + 1, range, reason: Reason::Size, urgency });
        }
    }
    best
}

/// The stretch of `from`, up to the surplus and a piece, that is coldest and meets least below. What is hot leaves L1 last, the coldest of
/// that first: else it would come up again at once ([`pick_heat`]).
fn leaving(p: &Picture<'_>, from: u8, surplus: u64) -> Option<KeyRange> {
    let refs = level(p.version, from);
    let below = level(p.version, from + 1);
    let want = surplus.clamp(1, (p.piece_bytes / 4).max(1));
    let hottest = refs.iter().map(heat::heat).max().unwrap_or(0).max(1);
    let hot = if from == 1 { hot_from(p) } else { u32::MAX };
    let mut best: Option<((bool, f64), KeyRange)> = None;
    let mut i = 0;
    while i < refs.len() {
        let mut j = i;
        let (mut size, mut heat) = (0, 0u64);
        // What is hot goes by itself: hot extents may lie everywhere.
        let is_hot = heat::heat(&refs[i]) >= hot;
        while j < refs.len() && (size < want || j == i) && (heat::heat(&refs[j]) >= hot) == is_hot {
            size += refs[j].bytes();
            heat += u64::from(heat::heat(&refs[j]));
            j += 1;
        }
        let (lo, hi) = (&refs[i].lo, &refs[j - 1].hi);
        if p.is_free(from, from + 1, lo, Some(hi)) {
            let meets = bytes(overlapping(below, lo, Some(hi)));
            let heat = heat as f64 / (j - i) as f64 / f64::from(hottest);
            let score = match is_hot {
                true => (true, heat),
                false => (false, meets as f64 / size.max(1) as f64 + HEAT_WEIGHT * heat),
            };
            if best.as_ref().is_none_or(|(s, _)| score < *s) {
                best = Some((score, capped(below, lo, hi, p.piece_bytes)));
            }
        }
        // Half-overlapping windows: fine enough, and linear.
        i += ((j - i) / 2).max(1);
    }
    best.map(|(_, range)| range)
}

/// Whether most of a part's records are deletions.
pub(crate) fn is_mostly_deletes(r: &ExtentRef) -> bool {
    r.size.deletes >= MIN_DELETES && r.size.deletes * 2 >= r.size.rows
}

/// Whether scans mind the deletions of a part of level `from`, wherever they are in it.
fn is_dense(p: &Picture<'_>, from: u8, r: &ExtentRef) -> bool {
    let below = p.version.levels.iter().skip(from as usize);
    let rows = below.flat_map(|run| overlapping(run.refs(), &r.lo, Some(&r.hi))).map(|r| r.size.rows);
    r.size.deletes * SCATTERED > rows.sum()
}

impl Met {
    /// Whether a part can have some of them.
    fn concerns(&self, r: &ExtentRef) -> bool {
        r.extent.meta.min_seq <= self.seq
            && *r.hi > *self.lo
            && self.hi.as_ref().is_none_or(|hi| *r.lo < **hi)
    }

    /// Whether any part of the version that is mostly deletions can have some.
    pub(crate) fn are_in(&self, version: &Version) -> bool {
        let mut parts = version.runs().flat_map(|(_, run)| run.refs());
        parts.any(|r| is_mostly_deletes(r) && self.concerns(r))
    }

    fn extend(&mut self, other: Met) {
        self.lo = std::mem::take(&mut self.lo).min(other.lo);
        self.hi = self.hi.take().zip(other.hi).map(|(a, b)| a.max(b));
        self.seq = self.seq.max(other.seq);
    }

    /// What of a part lies where they are.
    fn clip(&self, r: &ExtentRef) -> (Vec<u8>, Vec<u8>) {
        let hi = self.hi.as_ref().map_or(&*r.hi, |hi| hi.as_slice().min(&r.hi));
        ((&*r.lo).max(&self.lo).to_vec(), hi.to_vec())
    }
}

impl Clearing {
    /// Adds what a seek has met at a time. Says whether somebody should look what is to do: readers who meet deletions one
    /// after the other need not each, whether or not they can be cleared away.
    pub(crate) fn add(&mut self, met: Met, now: Duration) -> bool {
        match &mut self.met {
            Some(all) => all.extend(met),
            None => self.met = Some(met),
        }
        let due = self.asked.is_none_or(|asked| now >= asked + ASK_AGAIN);
        if due {
            self.asked = Some(now);
        }
        due
    }
}

/// The front of `[lo, hi)` in which `refs` hold about two pieces: however wide an extent is, a job stays bounded. What is
/// left is picked again.
fn capped(refs: &[Arc<ExtentRef>], lo: &[u8], hi: &[u8], piece_bytes: u64) -> KeyRange {
    let mut gathered = 0;
    for r in overlapping(refs, lo, Some(hi)) {
        if gathered >= 2 * piece_bytes && *r.lo > *lo {
            return KeyRange { lo: lo.to_vec(), hi: Some(r.lo.to_vec()) };
        }
        gathered += r.bytes();
    }
    KeyRange { lo: lo.to_vec(), hi: Some(hi.to_vec()) }
}

fn pick_deletes(p: &Picture<'_>) -> Option<Pick> {
    let whole = |r: &ExtentRef| (r.lo.to_vec(), r.hi.to_vec());
    deletes_of(p, |from, r| is_dense(p, from, r).then(|| whole(r)))
        .or_else(|| {
            let met = p.met?;
            deletes_of(p, |_, r| met.concerns(r).then(|| met.clip(r)))
        })
        .or_else(|| deletes_of(p, |_, r| Some(whole(r))).map(|pick| Pick { urgency: 0.3, ..pick }))
}

/// A part that is mostly deletions, or what is wanted of it.
fn deletes_of(
    p: &Picture<'_>,
    wanted: impl Fn(u8, &ExtentRef) -> Option<(Vec<u8>, Vec<u8>)>,
) -> Option<Pick> {
    let wanted = |from: u8, r: &ExtentRef| is_mostly_deletes(r).then(|| wanted(from, r)).flatten();
    if !p.busy.level_is_busy(0)
        && let Some((lo, hi)) = {
            let mut parts = p.version.l0.iter().flat_map(|run| run.refs()).filter_map(|r| wanted(0, r));
            parts.find(|(lo, hi)| p.is_free(0, 1, lo, Some(hi)))
        }
    {
        let range = capped(level(p.version, 1), &lo, &hi, p.piece_bytes);
        return Some(Pick { from: 0, to: 1, range, reason: Reason::Deletes, urgency: 4.5 });
    }
    for (i, run) in p.version.levels.iter().enumerate() {
        let from = i as u8 + 1;
        for r in run.refs() {
            let Some((lo, hi)) = wanted(from, r) else { continue };
            let deeper = p.version.levels[i + 1..]
                .iter()
                .any(|below| !overlapping(below.refs(), &lo, Some(&hi)).is_empty());
            let to = if deeper { from + 1 } else { from };
            // At the bottom a rewrite helps only if nothing holds the tombstones there.
            let useful = deeper || r.extent.meta.max_seq <= p.oldest_snapshot;
            if useful && p.is_free(from, to, &lo, Some(&hi)) {
                let range = capped(level(p.version, to), &lo, &hi, p.piece_bytes);
                return Some(Pick { from, to, range, reason: Reason::Deletes, urgency: 4.2 });
            }
        }
    }
    None
}

/// Extents of a level from L1 on of which much is dead, side by side, to be rewritten in place: those that free most
/// for what is rewritten. (L0 shrinks by itself.)
fn pick_space(p: &Picture<'_>, dead: &Dead) -> Option<Pick> {
    let live: u64 = p.version.runs().map(|(_, run)| run.bytes()).sum();
    let share = dead.bytes() as f64 / live.max(1) as f64;
    if share < DEAD_NOTED || dead.bytes() < p.piece_bytes / 16 {
        return None;
    }
    let urgency = if share < DEAD_DUE { share / DEAD_DUE } else { 1.0 + (share - DEAD_DUE) * 20.0 };
    let free = |level: u8, r: &ExtentRef| !p.busy.is_busy(level, &r.lo, Some(&r.hi));
    let mut best: Option<(f64, u8, &Arc<ExtentRef>)> = None;
    for (level, run) in (1..).zip(&p.version.levels) {
        for r in run.trimmed().filter(|r| dead.is_sparse(r, SPARSE) && free(level, r)) {
            let score = dead.bytes_beside(r) as f64 / (r.bytes() + 1) as f64;
            if best.as_ref().is_none_or(|(s, ..)| score > *s) {
                best = Some((score, level, r));
            }
        }
    }
    let (_, from, first) = best?;
    let mut hi = first.hi.to_vec();
    let mut gathered = first.bytes();
    for r in overlapping(level(p.version, from), &first.hi, None) {
        if gathered >= p.piece_bytes || !dead.is_sparse(r, SPARSE) || !free(from, r) {
            break;
        }
        gathered += r.bytes();
        hi = r.hi.to_vec();
    }
    if p.busy.is_busy(from, &first.lo, Some(&hi)) {
        return None;
    }
    let range = KeyRange { lo: first.lo.to_vec(), hi: Some(hi) };
    Some(Pick { from, to: from, range, reason: Reason::Space, urgency })
}

/// The upper levels, where they may hold much that supersedes what is below: the data then takes up to
/// `1 + RESTING` times its space.
fn pick_rest(p: &Picture<'_>, dead: &Dead) -> Option<Pick> {
    // Of runs through which a pass has gone half, what is dead comes free only with the rest.
    let trimmed = p.version.l0.iter().flat_map(|r| r.trimmed());
    let l0 = p.version.l0.iter().map(|r| r.bytes()).sum::<u64>() + dead.bytes_of(trimmed);
    let levels: Vec<u64> = p.version.levels.iter().map(|r| r.bytes()).collect();
    // Where L2 compresses, L1 is to be small beside it, whichever is larger.
    let resting = if p.compresses { levels.get(1..).unwrap_or_default() } else { &levels };
    let largest = resting.iter().max().copied().unwrap_or(0);
    let all = l0 + levels.iter().sum::<u64>();
    if (all - largest) as f64 <= largest as f64 * RESTING {
        return None;
    }
    if l0 as f64 > largest as f64 * RESTING / 2.0 {
        return next_of_pass(p, 0.2);
    }
    // The shallowest one that has anything; from the last one nothing leaves.
    let last = if p.compresses { levels.len().max(2) } else { levels.len() } - 1;
    let at = levels.iter().position(|b| *b > 0).filter(|at| *at < last)?;
    let from = at as u8 + 1;
    let range = leaving(p, from, levels[at])?;
    Some(Pick { from, to: from + 1, range, reason: Reason::Rest, urgency: 0.1 })
}

#[cfg(test)]
mod tests;
