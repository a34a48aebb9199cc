//! What a workload's threads measure: latencies, and operations in each second.

use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use quanta::Clock;
use serde::{Deserialize, Serialize};

use crate::Failure;

/// Latencies are kept from 1 ns to 100 s, to three digits.
const LONGEST_NANOS: u64 = 100_000_000_000;
/// Seconds that are counted one by one.
const MOST_SECONDS: usize = 7200;
const NANOS: u64 = 1_000_000_000;

/// Sets the clock that recorders read by the system's: takes up to 0.2 s, once.
pub(crate) fn set_clock() {
    let _ = Clock::new();
}

/// Whether recorders counted as much time as went by.
///
/// # Errors
/// That they did not: the counter was set by the clock while something was in its way, or does not go evenly.
fn agree(counted: Duration, went_by: Duration) -> Result<(), Failure> {
    // Who reads both may be kept from it in between.
    let most = Duration::from_millis(300) + went_by / 50;
    if counted.abs_diff(went_by) <= most {
        return Ok(());
    }
    Err(format!("the processor's counter says {counted:.3?} where {went_by:.3?} went by: run it again")
        .into())
}

/// One thread's record. No sharing: threads' records are added at the end. Reads the processor's counter where that is a clock, since the
/// system's takes longer than much of what an operation does (46 ns of 2.7 us).
pub(crate) struct Recorder {
    clock: Clock,
    /// What it said when this was made, ...
    made: u64,
    /// ... so many nanoseconds after the run began.
    lead: u64,
    /// Nanoseconds from the beginning to the end of the last operation, ...
    last: u64,
    /// ... and to when the clock was read last.
    seen: u64,
    latencies: Histogram<u64>,
    seconds: Vec<u64>,
    /// Latencies second by second, if that is wanted.
    by_second: Option<Vec<Histogram<u64>>>,
    ops: u64,
    retries: u64,
}

impl Recorder {
    pub(crate) fn new(began: Instant) -> Result<Self, Failure> {
        let latencies = Histogram::new_with_bounds(1, LONGEST_NANOS, 3)?;
        let clock = Clock::new();
        let (made, lead) = (clock.raw(), began.elapsed().as_nanos() as u64);
        Ok(Recorder {
            clock,
            made,
            lead,
            last: 0,
            seen: 0,
            latencies,
            seconds: Vec::new(),
            by_second: None,
            ops: 0,
            retries: 0,
        })
    }

    /// Keeps latencies second by second too.
    pub(crate) fn second_by_second(mut self) -> Self {
        self.by_second = Some(Vec::new());
        self
    }

    /// Before the first operation, and after any pause that is not to count.
    pub(crate) fn start(&mut self) {
        self.last = self.look();
    }

    /// Reads the clock. It never goes back, though the counters of two processors may differ.
    fn look(&mut self) -> u64 {
        self.seen = self.seen.max(self.lead + self.clock.delta_as_nanos(self.made, self.clock.raw()));
        self.seen
    }

    /// After an operation that counts as `n`: it took the time since the one before.
    pub(crate) fn done(&mut self, n: u64) {
        let now = self.look();
        let nanos = now - self.last;
        self.last = now;
        self.latencies.saturating_record(nanos.max(1));
        self.ops += n;
        let second = ((now / NANOS) as usize).min(MOST_SECONDS);
        if second >= self.seconds.len() {
            self.seconds.resize(second + 1, 0);
        }
        self.seconds[second] += n;
        if let Some(all) = &mut self.by_second {
            if all.len() <= second {
                all.resize(second + 1, emptied(&self.latencies));
            }
            all[second].saturating_record(nanos.max(1));
        }
    }

    /// An operation came to nothing, and is tried again: the time goes on.
    pub(crate) fn retry(&mut self) {
        self.retries += 1;
        self.look();
    }

    /// From the beginning of the run to the end of the last operation.
    pub(crate) fn elapsed(&self) -> Duration {
        Duration::from_nanos(self.last)
    }

    /// Whether it counts as much time as went by since the run began: to be asked after the last operation or attempt.
    ///
    /// # Errors
    /// As of [`agree`].
    pub(crate) fn check(&self, began: Instant) -> Result<(), Failure> {
        agree(Duration::from_nanos(self.seen), began.elapsed())
    }

    /// Whether a run of this length, if it has one, was over when the clock was read last: by the last operation or attempt.
    pub(crate) fn is_past(&self, limit: Option<Duration>) -> bool {
        limit.is_some_and(|limit| Duration::from_nanos(self.seen) >= limit)
    }

    pub(crate) fn add(&mut self, other: &Recorder) -> Result<(), Failure> {
        self.latencies.add(&other.latencies)?;
        self.ops += other.ops;
        self.retries += other.retries;
        self.last = self.last.max(other.last);
        if self.seconds.len() < other.seconds.len() {
            self.seconds.resize(other.seconds.len(), 0);
        }
        for (mine, theirs) in self.seconds.iter_mut().zip(&other.seconds) {
            *mine += theirs;
        }
        if let Some(theirs) = &other.by_second {
            let mine = self.by_second.get_or_insert_default();
            mine.resize(mine.len().max(theirs.len()), emptied(&self.latencies));
            for (mine, theirs) in mine.iter_mut().zip(theirs) {
                mine.add(theirs)?;
            }
        }
        Ok(())
    }

    pub(crate) fn result(&self) -> Measured {
        let seconds = self.elapsed().as_secs_f64().max(1e-9);
        // The last second is not whole; a run shorter than one has no whole second.
        let mut whole = self.seconds[..self.seconds.len().saturating_sub(1)].to_vec();
        whole.sort_unstable();
        let us = |q: f64| self.latencies.value_at_quantile(q) as f64 / 1e3;
        Measured {
            ops: self.ops,
            retries: self.retries,
            seconds,
            ops_per_s: self.ops as f64 / seconds,
            mean_us: self.latencies.mean() / 1e3,
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: self.latencies.max() as f64 / 1e3,
            min_second_ops: whole.first().copied(),
            p5_second_ops: whole.get(whole.len() / 20).copied(),
            median_second_ops: whole.get(whole.len() / 2).copied(),
            fifths: self.fifths(),
            series: self.series(),
        }
    }

    /// Operations a second in each fifth of the whole seconds, the first and the last of which are as long.
    fn fifths(&self) -> Vec<u64> {
        let whole = &self.seconds[..self.seconds.len().saturating_sub(1)];
        let len = whole.len() / 5;
        if len == 0 {
            return Vec::new();
        }
        let begins = (0..5).map(|i| (whole.len() - len) * i / 4);
        begins.map(|at| whole[at..at + len].iter().sum::<u64>() / len as u64).collect()
    }

    fn series(&self) -> Vec<Second> {
        let latencies = self.by_second.iter().flatten();
        let both = self.seconds.iter().zip(latencies);
        let second = |(&ops, latencies): (_, &Histogram<u64>)| {
            let p99_us = latencies.value_at_quantile(0.99) as f64 / 1e3;
            Second { ops, p99_us, misses: None, above: None }
        };
        both.map(second).collect()
    }
}

fn emptied(like: &Histogram<u64>) -> Histogram<u64> {
    let mut empty = like.clone();
    empty.reset();
    empty
}

/// One second of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Second {
    pub(crate) ops: u64,
    pub(crate) p99_us: f64,
    /// Blocks that the engine's cache lacked, if it says so.
    pub(crate) misses: Option<u64>,
    /// The part of the lookups that the two uppermost levels on disk answered, of those that any level did, if the engine says so.
    pub(crate) above: Option<f64>,
}

/// What came of a workload. Latencies are of operations as the workload counts them; a scan's is of one chunk.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) ops: u64,
    /// Times that an operation came to nothing and was tried again.
    pub(crate) retries: u64,
    pub(crate) seconds: f64,
    pub(crate) ops_per_s: f64,
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
    pub(crate) max_us: f64,
    /// The slowest, the 5th-percentile and the median whole second; none if the run was shorter than one.
    pub(crate) min_second_ops: Option<u64>,
    pub(crate) p5_second_ops: Option<u64>,
    pub(crate) median_second_ops: Option<u64>,
    /// Operations a second in each fifth of the time; nothing if that is less than a second.
    pub(crate) fifths: Vec<u64>,
    /// Second by second, for workloads that are about that.
    pub(crate) series: Vec<Second>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_over_by_the_last_operation_or_attempt() {
        let is_past = |act: fn(&mut Recorder)| {
            let mut r = Recorder::new(Instant::now()).unwrap();
            assert!(!r.is_past(Some(Duration::from_nanos(1))), "the clock was not read yet");
            act(&mut r);
            assert!(!r.is_past(None) && !r.is_past(Some(Duration::from_secs(3600))));
            r.is_past(Some(Duration::from_nanos(1)))
        };
        assert!(is_past(|r| r.start()) && is_past(|r| r.done(1)) && is_past(|r| r.retry()));
    }

    #[test]
    fn a_counter_that_goes_wrong_is_told_of() {
        let ms = Duration::from_millis;
        assert!(agree(ms(10_000), ms(10_400)).is_ok() && agree(ms(5), ms(0)).is_ok());
        assert!(agree(ms(10_000), ms(11_000)).is_err() && agree(ms(11_000), ms(10_000)).is_err());
    }

    #[test]
    fn seconds_without_operations_count() {
        let began = Instant::now();
        let mut a = Recorder::new(began).unwrap();
        a.seconds = vec![10, 0, 10, 3];
        let mut b = Recorder::new(began).unwrap();
        b.seconds = vec![10, 0];
        a.add(&b).unwrap();
        let m = a.result();
        assert_eq!((m.min_second_ops, m.median_second_ops), (Some(0), Some(10)));
        assert!(m.fifths.is_empty());
        a.seconds = vec![10, 1, 1, 1, 4, 0];
        assert_eq!(a.result().fifths, [10, 1, 1, 1, 4]);
        a.seconds = vec![10, 20, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4, 6, 0];
        assert_eq!(a.result().fifths, [15, 3, 3, 3, 5]);
    }
}
