//! Who is in rotation: free units, failures, probes.
//!
//! Failures are weighed, not counted in a row: each adds [`WEIGHT`], each success takes one away. A device that fails
//! now and then recovers; one that fails more than one task in `WEIGHT + 1` for good goes out at some point, however
//! its failures are spread. One that comes back is on probation: its next failure takes it out again.

use super::SchedulerOptions;
use super::stats::DeviceStats;

const WEIGHT: u64 = 8;

/// How an execution ended, for the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Accepted,
    Failed,
    TimedOut,
    Late,
    Lost,
    Unsupported,
    Invalid,
    Mismatched,
    Cancelled,
}

/// One device, or the CPU.
#[derive(Debug)]
pub(super) struct Slot {
    busy: Vec<bool>,
    /// Counters; name and units are filled in when they are asked for.
    pub(super) stats: DeviceStats,
    trouble: u64,
    /// Trouble that takes the device out; the CPU's cannot be reached.
    limit: u64,
    /// `None` while in rotation; otherwise tasks still to start before a probe.
    out: Option<u64>,
    probing: bool,
    probe_after: u64,
}

impl Slot {
    /// A device in rotation.
    pub(super) fn new(units: usize, options: &SchedulerOptions) -> Self {
        Slot {
            busy: vec![false; units.max(1)],
            stats: DeviceStats::default(),
            trouble: 0,
            limit: u64::from(options.failures.max(1)) * WEIGHT,
            out: None,
            probing: false,
            probe_after: options.probe_after.max(1),
        }
    }

    /// The CPU: it has nobody to stand in for it.
    pub(super) fn cpu(units: usize, options: &SchedulerOptions) -> Self {
        Slot { limit: u64::MAX, ..Slot::new(units, options) }
    }

    pub(super) fn is_live(&self) -> bool {
        self.out.is_none()
    }

    /// Takes a free unit.
    pub(super) fn take_unit(&mut self) -> Option<usize> {
        let unit = self.busy.iter().position(|b| !b)?;
        self.busy[unit] = true;
        self.stats.tasks += 1;
        Some(unit)
    }

    pub(super) fn free_unit(&mut self, unit: usize) {
        self.busy[unit] = false;
    }

    /// Books the end of an execution on a device.
    pub(super) fn book(&mut self, ending: Ending) {
        let s = &mut self.stats;
        let count = match ending {
            Ending::Accepted => &mut s.accepted,
            Ending::Failed => &mut s.failed,
            Ending::TimedOut => &mut s.timed_out,
            Ending::Late => &mut s.late,
            Ending::Lost => &mut s.lost,
            Ending::Unsupported => &mut s.unsupported,
            Ending::Invalid => &mut s.invalid,
            Ending::Mismatched => &mut s.mismatched,
            Ending::Cancelled => &mut s.cancelled,
        };
        *count += 1;
        match ending {
            Ending::Accepted => self.trouble = self.trouble.saturating_sub(1),
            // Nobody's fault.
            Ending::Unsupported | Ending::Cancelled => {}
            Ending::Lost => self.leave(),
            _ => {
                self.trouble = self.trouble.saturating_add(WEIGHT);
                if self.trouble >= self.limit {
                    self.leave();
                }
            }
        }
    }

    fn leave(&mut self) {
        self.out = Some(self.probe_after);
    }

    /// Counts a task that was started somewhere. True when it is time for a probe, which the caller then makes.
    pub(super) fn count_task(&mut self) -> bool {
        if self.probing {
            return false;
        }
        let Some(left) = &mut self.out else { return false };
        *left = left.saturating_sub(1);
        self.probing = *left == 0;
        if self.probing {
            self.stats.probes += 1;
        }
        self.probing
    }

    /// Books the outcome of a probe.
    pub(super) fn probed(&mut self, works: bool) {
        self.probing = false;
        if works {
            self.out = None;
            self.trouble = self.limit - WEIGHT;
            self.stats.returns += 1;
        } else {
            self.leave();
        }
    }

    pub(super) fn stats(&self, name: &str) -> DeviceStats {
        DeviceStats {
            name: name.to_owned(),
            units: self.busy.len(),
            busy: self.busy.iter().filter(|b| **b).count(),
            live: self.is_live(),
            ..self.stats.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot() -> Slot {
        Slot::new(1, &SchedulerOptions { failures: 3, probe_after: 2, ..SchedulerOptions::default() })
    }

    #[test]
    fn failures_in_a_row_and_a_high_failure_rate_both_take_a_device_out() {
        let mut s = slot();
        s.book(Ending::Failed);
        s.book(Ending::Invalid);
        assert!(s.is_live());
        s.book(Ending::TimedOut);
        assert!(!s.is_live());

        let mut often = slot();
        for _ in 0..200 {
            often.book(Ending::Failed);
            (0..4).for_each(|_| often.book(Ending::Accepted));
        }
        assert!(!often.is_live(), "every fifth task fails");

        let mut seldom = slot();
        for _ in 0..200 {
            seldom.book(Ending::Failed);
            (0..20).for_each(|_| seldom.book(Ending::Accepted));
        }
        assert!(seldom.is_live(), "every twenty-first task fails");
    }

    #[test]
    fn a_device_that_comes_back_is_on_probation() {
        let mut s = slot();
        s.book(Ending::Lost);
        assert!(!s.count_task());
        assert!(s.count_task(), "the second task calls for a probe");
        assert!(!s.count_task(), "which is under way");
        s.probed(false);
        assert!(!s.count_task());
        assert!(s.count_task());
        s.probed(true);
        assert!(s.is_live());
        s.book(Ending::Failed);
        assert!(!s.is_live());
    }

    #[test]
    fn what_a_device_does_not_take_is_not_held_against_it() {
        let mut s = slot();
        (0..100).for_each(|_| s.book(Ending::Unsupported));
        (0..100).for_each(|_| s.book(Ending::Cancelled));
        assert!(s.is_live());
    }
}
