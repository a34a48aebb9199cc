//! Pacing: writers slow down before memory or levels overflow, smoothly, and never stop dead while the background can
//! still make progress.
//!
//! What comes in must match what the background can move out. The pacer knows both: how full the memtable budget is,
//! how many L0 runs and how many bytes of merge debt the fullest subtable has, and the rate at which flushes have lately
//! freed memtable memory. While there is room it does nothing. From half of the room on it spaces commits so that the
//! admitted rate falls steadily from far above the drain rate to below it; at equilibrium writers run at the drain rate.
//!
//! The state is a single virtual clock: each commit moves it by the time its bytes are worth, and whoever finds it ahead
//! of real time sleeps the difference. No lock, one `fetch_add`-like step per commit, and only while pressed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use terrane_media::Media;

/// Where slowing begins, as a share of the room.
const START: f64 = 0.6;
/// The rate assumed before any flush has been measured, bytes per second.
const FIRST_RATE: f64 = 200e6;
/// The slowest rate ever admitted while the background works, bytes per second.
const FLOOR: f64 = 1e6;
/// A writer sleeps at most this long per commit, so that a change of pressure is felt soon.
const LONGEST: Duration = Duration::from_millis(50);
/// Below this a sleep costs more than it paces; the debt is carried on.
const SHORTEST: Duration = Duration::from_micros(100);

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Pacer {
    /// Virtual time in nanoseconds up to which admitted bytes have been paid for.
    paid_until: AtomicU64,
    /// Pressure of L0 and of merge debt in 1/1000, as of the last look.
    levels: AtomicU64,
    /// When the last flush ended, nanoseconds.
    last_drain: AtomicU64,
    /// Drain rate in bytes per second.
    drain_rate: AtomicU64,
    /// Time writers were held back in all, nanoseconds.
    delayed: AtomicU64,
}

impl Default for Pacer {
    fn default() -> Self {
        Pacer {
            paid_until: AtomicU64::new(0),
            levels: AtomicU64::new(0),
            last_drain: AtomicU64::new(0),
            drain_rate: AtomicU64::new(FIRST_RATE as u64),
            delayed: AtomicU64::new(0),
        }
    }
}

impl Pacer {
    /// Tells how full the fullest of L0 and merge debt is: 0 = empty, 1 = at its limit.
    pub(crate) fn set_levels(&self, share: f64) {
        self.levels.store((share.clamp(0.0, 2.0) * 1000.0) as u64, Ordering::Relaxed);
    }

    /// Tells that a memtable of `bytes`, frozen at `frozen`, has been written out `now`. Time that it waited for its turn
    /// or for room in L0 counts: what matters is how fast memory comes free while there is a queue.
    pub(crate) fn drained(&self, bytes: u64, frozen: Duration, now: Duration) {
        let last = Duration::from_nanos(self.last_drain.swap(now.as_nanos() as u64, Ordering::Relaxed));
        let time = now.saturating_sub(frozen.max(last));
        let rate = bytes as f64 / time.as_secs_f64().max(1e-4);
        let old = self.drain_rate.load(Ordering::Relaxed) as f64;
        let next = (old * 0.7 + rate * 0.3).clamp(FLOOR, 20e9);
        self.drain_rate.store(next as u64, Ordering::Relaxed);
    }

    /// The admitted rate in bytes per second when the memtable budget is `full` (a share); `None` = unlimited.
    pub(crate) fn rate(&self, full: f64) -> Option<f64> {
        let p = full.max(self.levels.load(Ordering::Relaxed) as f64 / 1000.0);
        if p <= START {
            return None;
        }
        // From 4x the drain rate where slowing begins to 1/4 of it at the limit, geometrically.
        let x = ((p - START) / (1.0 - START)).min(1.2);
        let drain = self.drain_rate.load(Ordering::Relaxed) as f64;
        Some((drain * 4.0 * (1.0f64 / 16.0).powf(x)).max(FLOOR))
    }

    /// How long a commit of `bytes` should wait now.
    pub(crate) fn delay(&self, bytes: u64, full: f64, now: Duration) -> Duration {
        let Some(rate) = self.rate(full) else { return Duration::ZERO };
        let now = now.as_nanos() as u64;
        let cost = (bytes as f64 / rate * 1e9) as u64;
        let longest = LONGEST.as_nanos() as u64;
        let mut at = self.paid_until.load(Ordering::Relaxed);
        loop {
            // Unused time is not saved up, and debt beyond the longest sleep is forgiven: pressure will have changed.
            let next = at.clamp(now, now + longest) + cost.min(longest);
            match self.paid_until.compare_exchange_weak(at, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Duration::from_nanos((next - now).min(longest)),
                Err(seen) => at = seen,
            }
        }
    }

    /// Holds the calling writer back as long as a commit of `bytes` should wait.
    pub(crate) fn admit(&self, bytes: u64, full: f64, media: &dyn Media) {
        if self.rate(full).is_none() {
            return;
        }
        let wait = self.delay(bytes, full, media.now());
        if wait >= SHORTEST {
            self.delayed.fetch_add(wait.as_nanos() as u64, Ordering::Relaxed);
            media.sleep(wait);
        }
    }

    /// Time for which writers were held back, summed over writers.
    pub(crate) fn delayed(&self) -> Duration {
        Duration::from_nanos(self.delayed.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pressure_no_delay() {
        let p = Pacer::default();
        p.set_levels(START);
        assert_eq!(p.delay(1 << 30, START, Duration::from_secs(1)), Duration::ZERO);
    }

    #[test]
    fn the_admitted_rate_falls_steadily_and_crosses_the_drain_rate() {
        let p = Pacer::default();
        p.drained(100 << 20, Duration::ZERO, Duration::from_secs(1));
        let drain = p.drain_rate.load(Ordering::Relaxed) as f64;
        let rates: Vec<f64> = (61..=100).map(|i| p.rate(f64::from(i) / 100.0).unwrap()).collect();
        assert!(rates.windows(2).all(|w| w[1] < w[0] && w[1] > w[0] * 0.8), "no cliff anywhere");
        assert!(rates[0] > drain && *rates.last().unwrap() < drain);
        assert!(*rates.last().unwrap() > FLOOR, "never stopped dead");
    }

    #[test]
    fn commits_are_spaced_at_the_admitted_rate() {
        let p = Pacer::default();
        let rate = p.rate(0.9).unwrap();
        let mut now = Duration::from_secs(1);
        let began = now;
        let bytes = (rate / 1000.0) as u64; // a millisecond's worth
        for _ in 0..100 {
            now += p.delay(bytes, 0.9, now);
        }
        let took = (now - began).as_secs_f64();
        assert!((0.09..0.12).contains(&took), "100 milliseconds' worth took {took}");
    }
}
