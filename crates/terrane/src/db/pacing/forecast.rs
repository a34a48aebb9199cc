//! The forecast: how fast writers may go now so that memtables do not overflow before the background has made room. Pure.
//!
//! Memory comes free in steps, a memtable at a time, when one has been written out; that takes a place in L0, and a place
//! comes free when the pass that merges L0 has gone once through all of a run. When that will be is known: it is the part
//! of the run that is still there. So for every release to come there is a time until which what is free must last, and
//! the fastest even rate that respects all of them is the least of `room / time`. Because it is even over the whole
//! forecast, the runs that arrive meanwhile lie evenly over the pass, and so will the places that come free in the next.

use super::BRAKE;

/// Backlog, as a share of what memtables and the runs that are due in L0 may hold, up to which writers are not held back at all.
const START: f64 = 0.18;
/// The backlog from which on writers get no more than what memory lasts for.
const NEAR: f64 = 0.22;
/// The backlog from which on they get no more than what the background keeps up with in the long run. Below the two they
/// get geometrically more.
const EVEN: f64 = 0.4;
/// How much more where slowing begins.
const BOOST: f64 = 6.0;
/// The least share of what the background sustains that is admitted, whatever the forecast says.
const LEAST: f64 = 0.15;
/// Passes are taken to last this much longer than those before did: what was too cautious is made up for at the end of the
/// pass, what was too bold would have to be taken back there.
const CAUTION: f64 = 1.2;
/// Debt, as a share of what it may be, up to which it holds nobody back.
const DEBT_START: f64 = 0.3;
/// Bytes per second that merges are assumed to get through before any was measured.
pub(crate) const FIRST_MERGE_RATE: f64 = 100e6;
/// A subtable is taken to receive at least this share of what is written: little enough that one which receives a hundredth
/// holds nobody back, enough for one whose memtable was just written out.
const LEAST_SHARE: f64 = 0.005;

/// Where one subtable stands.
#[derive(Clone, Debug)]
pub(crate) struct Figures {
    /// Budget of all memtables, bytes.
    pub(crate) budget: u64,
    /// Bytes in use of it.
    pub(crate) used: u64,
    /// Those in memtables of this subtable.
    pub(crate) own: u64,
    /// Bytes at which a memtable freezes.
    pub(crate) memtable: u64,
    /// Runs of L0 with which its pass goes on in any case.
    pub(crate) l0_due: usize,
    /// Bytes of each run of L0: what is left, what it came with.
    pub(crate) runs: Vec<(u64, u64)>,
    /// Bytes of L1.
    pub(crate) l1: u64,
    /// Passes of L0 through L1 per second, if any was measured.
    pub(crate) passes: Option<f64>,
    /// Bytes of memtables that are written out per second.
    pub(crate) flush_rate: f64,
}

/// What lies ahead of it. Times are in seconds.
#[derive(Clone, Debug)]
pub(crate) struct Outlook {
    /// Bytes that all memtables may still take.
    room: f64,
    /// Bytes that come free when one of the subtable's memtables has been written out.
    memtable: f64,
    /// The subtable's share of what is written, above 0.
    share: f64,
    /// Free places in L0, up to `due`.
    places: usize,
    /// Runs with which its pass goes on in any case, or as many as there are if that is more.
    due: usize,
    /// What is left of each run of L0, as a share of what it came with; ascending.
    left: Vec<f64>,
    /// A pass of L0 through L1.
    pass: f64,
    /// Writing a memtable out.
    flush: f64,
    /// Bytes in memtables and L0 as a share of what these hold with as many runs as are due, or as there are.
    backlog: f64,
}

impl Figures {
    pub(crate) fn outlook(&self) -> Outlook {
        let (budget, used, memtable) = (self.budget as f64, self.used as f64, self.memtable as f64);
        let planned = budget * BRAKE;
        let l0: u64 = self.runs.iter().map(|(left, _)| left).sum();
        let mut left: Vec<f64> =
            self.runs.iter().map(|(left, birth)| *left as f64 / (*birth).max(1) as f64).collect();
        left.sort_by(f64::total_cmp);
        let due = self.l0_due.max(left.len());
        let filled = (l0 as f64 + used) / (budget + memtable * due as f64);
        let pass = match self.passes {
            Some(passes) => 1.0 / passes,
            None => (l0 + self.l1) as f64 / FIRST_MERGE_RATE,
        };
        Outlook {
            room: planned - used,
            memtable,
            share: (self.own as f64 / used.max(1.0)).clamp(LEAST_SHARE, 1.0),
            places: due - left.len(),
            due,
            left,
            pass: pass.max(1e-3),
            flush: (memtable / self.flush_rate).max(1e-3),
            backlog: filled.max(used / planned * EVEN),
        }
    }
}

impl Outlook {
    /// What the background keeps up with in the long run, in bytes per second: as many runs as are due turn over once a pass, or as there
    /// are.
    pub(crate) fn sustained(&self) -> f64 {
        let step = self.memtable / self.share;
        (step / self.flush).min(step * self.due as f64 / self.pass)
    }

    /// The fastest even rate with which memory lasts from each release to the next, in bytes per second.
    pub(crate) fn lasting(&self) -> f64 {
        let step = self.memtable / self.share;
        let releases = self.places + self.left.len();
        let rates = (0..releases).map(|n| {
            let flushes = (n + 1) as f64 * self.flush;
            let at = match n.checked_sub(self.places).and_then(|run| self.left.get(run)) {
                None => flushes,
                Some(left) => (left * self.pass * CAUTION + self.flush).max(flushes),
            };
            (self.room + n as f64 * step) / at
        });
        rates.fold(f64::INFINITY, f64::min).max(self.sustained() * LEAST)
    }

    /// The rate to admit, bytes per second; `None` = any.
    pub(crate) fn rate(&self) -> Option<f64> {
        let boost = |to: f64| BOOST.powf(((to - self.backlog) / (to - START)).max(0.0));
        (self.backlog > START).then(|| (self.lasting() * boost(NEAR)).min(self.sustained() * boost(EVEN)))
    }
}

/// The rate to admit for a debt of merging that is this share of what it may be and is worked off at `drain` bytes per
/// second: from far above it, where the debt begins to matter, to well below it where it is at its limit.
pub(crate) fn for_debt(share: f64, drain: f64) -> Option<f64> {
    let over = (share - DEBT_START) / (1.0 - DEBT_START);
    (over > 0.0).then(|| drain * 8f64.powf(1.0 - 2.0 * over.min(1.0)))
}
