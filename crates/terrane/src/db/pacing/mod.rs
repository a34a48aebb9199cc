//! Pacing: writers slow down before memory or levels overflow, smoothly, and never stop dead while the background can
//! still make progress.
//!
//! Whenever background work ends, the engine makes a [forecast](forecast): when places in L0, and with them memory, will
//! come free, and so how fast writers may go until then. That rate stands until the next piece of work ends. Between two
//! forecasts only one thing is looked at, how full the memtables are: above [`BRAKE`] the rate falls geometrically, so
//! that a hiccup of the background slows writers down more and more instead of stopping them.
//!
//! The rate is kept by a virtual clock: each commit moves it on by the time that its bytes are worth, and waits until real
//! time has come so far. No lock; one compare-exchange per commit, and only while there is a rate. Unpressed writers read
//! one number and write nothing that is shared.

pub(crate) mod forecast;
pub(crate) mod meter;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use terrane_media::Media;

/// How full memtables are planned to get, as a share of their budget; above it the rate falls.
pub(crate) const BRAKE: f64 = 0.7;
/// What is left of the rate when the budget is exhausted.
const LEAST_BRAKED: f64 = 0.15;
/// The rate assumed for flushes before any was measured, bytes per second.
const FIRST_RATE: f64 = 200e6;
/// Bytes from which on a flush says fully how fast flushes are.
const TELLING: f64 = 4e6;
/// The slowest rate ever admitted, bytes per second.
const FLOOR: f64 = 1e6;
/// Nobody waits longer than this: a rate that demands more will have changed.
const LONGEST: Duration = Duration::from_secs(1);
/// Waiting is done in steps of this, so that a change of rate is felt soon.
const STEP: Duration = Duration::from_millis(50);
/// Below this a sleep costs more than it paces; the debt is carried on.
const SHORTEST: Duration = Duration::from_micros(200);
/// Time that may be caught up on: sleeps last longer than asked for.
const CREDIT: Duration = Duration::from_millis(5);
/// Stands for "any rate".
const ANY: u64 = u64::MAX;

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Pacer {
    /// The rate of the last forecast in bytes per second, or [`ANY`].
    rate: AtomicU64,
    /// Virtual time in nanoseconds up to which admitted bytes have been paid for.
    paid_until: AtomicU64,
    /// The rate of flushes, bytes of memtables per second.
    flush_rate: AtomicU64,
    /// Time writers were held back in all, nanoseconds.
    delayed: AtomicU64,
}

impl Default for Pacer {
    fn default() -> Self {
        Pacer {
            rate: AtomicU64::new(ANY),
            paid_until: AtomicU64::new(0),
            flush_rate: AtomicU64::new(FIRST_RATE as u64),
            delayed: AtomicU64::new(0),
        }
    }
}

impl Pacer {
    /// Admits `rate` bytes per second from now on; `None` = any.
    pub(crate) fn set_rate(&self, rate: Option<f64>) {
        self.rate.store(rate.map_or(ANY, |r| r.max(FLOOR) as u64), Ordering::Relaxed);
    }

    /// A memtable of `bytes` has been written out in `time`.
    pub(crate) fn flushed(&self, bytes: u64, time: Duration) {
        let rate = bytes as f64 / time.as_secs_f64().max(1e-4);
        let old = self.flush_rate.load(Ordering::Relaxed) as f64;
        // Small ones say little: most of their time is the flush of the device.
        let weight = 0.3 * (bytes as f64 / TELLING).min(1.0);
        self.flush_rate
            .store((old * (1.0 - weight) + rate * weight).clamp(FLOOR, 20e9) as u64, Ordering::Relaxed);
    }

    /// Bytes of memtables that flushes write out per second.
    pub(crate) fn flush_rate(&self) -> f64 {
        self.flush_rate.load(Ordering::Relaxed) as f64
    }

    /// The rate to admit when memtables are `full` (a share of their budget); `None` = any.
    fn rate(&self, full: f64) -> Option<f64> {
        let forecast = match self.rate.load(Ordering::Relaxed) {
            ANY if full <= BRAKE => return None,
            // Faster than any forecast so far: the next one will know.
            ANY => self.flush_rate(),
            rate => rate as f64,
        };
        let over = ((full - BRAKE) / (1.0 - BRAKE)).clamp(0.0, 1.0);
        Some((forecast * LEAST_BRAKED.powf(over)).max(FLOOR))
    }

    /// Moves the virtual clock on by a commit of `bytes`, and says until when it has to wait.
    fn pay(&self, bytes: u64, rate: f64, now: Duration) -> Duration {
        let now = now.as_nanos() as u64;
        let cost = (bytes as f64 / rate * 1e9) as u64;
        let earliest = now.saturating_sub(CREDIT.as_nanos() as u64);
        let latest = now + LONGEST.as_nanos() as u64;
        let mut at = self.paid_until.load(Ordering::Relaxed);
        loop {
            let next = at.max(earliest).saturating_add(cost).min(latest);
            match self.paid_until.compare_exchange_weak(at, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Duration::from_nanos(next),
                Err(seen) => at = seen,
            }
        }
    }

    /// Holds the calling writer back as long as a commit of `bytes` should wait.
    pub(crate) fn admit(&self, bytes: u64, full: f64, media: &dyn Media) {
        let Some(rate) = self.rate(full) else { return };
        let began = media.now();
        let until = self.pay(bytes, rate, began);
        let mut now = began;
        while now + SHORTEST <= until {
            media.sleep((until - now).min(STEP));
            now = media.now();
            if self.rate.load(Ordering::Relaxed) == ANY {
                break;
            }
        }
        self.delayed.fetch_add(now.saturating_sub(began).as_nanos() as u64, Ordering::Relaxed);
    }

    /// Time for which writers were held back, summed over writers.
    pub(crate) fn delayed(&self) -> Duration {
        Duration::from_nanos(self.delayed.load(Ordering::Relaxed))
    }
}
