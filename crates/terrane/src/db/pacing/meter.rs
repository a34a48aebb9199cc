//! A rate, smoothed over time. Pure: the clock is told.

use std::time::Duration;

/// Seconds over which a rate is smoothed: several pieces of a compaction.
const SMOOTHING: f64 = 8.0;

/// Longer than the longest piece of another level takes that comes in between.
const PAUSE: Duration = Duration::from_secs(10);

/// Measures work that comes in portions, and only the time in which there was any to do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    rate: Option<f64>,
    /// Since when there is work of which nothing has been counted.
    since: Option<Duration>,
}

impl Meter {
    /// There is work to do, from `now` on or since before. What is long past was a pause.
    pub(crate) fn begin(&mut self, now: Duration) {
        self.since = self.since.filter(|since| now.saturating_sub(*since) < PAUSE).or(Some(now));
    }

    /// There is none.
    pub(crate) fn rest(&mut self) {
        self.since = None;
    }

    /// A portion is done; there may be more.
    pub(crate) fn done(&mut self, amount: f64, now: Duration) {
        let Some(since) = self.since.replace(now) else { return };
        let seconds = now.saturating_sub(since).as_secs_f64().max(1e-4);
        let weight = 1.0 - (-seconds / SMOOTHING).exp();
        let old = self.rate.unwrap_or(amount / seconds);
        self.rate = Some(old + (amount / seconds - old) * weight);
    }

    /// Amount per second of work, once something was measured.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.rate.filter(|r| *r > 0.0)
    }
}
