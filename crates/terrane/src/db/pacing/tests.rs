use super::forecast::{Figures, for_debt};
use super::meter::Meter;
use super::*;
use crate::compact::pick::{MAX_L0_RUNS, READ_L0_RUNS, pass_is_due};

const MIB: u64 = 1 << 20;

fn secs(s: f64) -> Duration {
    Duration::from_secs_f64(s)
}

fn figures() -> Figures {
    Figures {
        budget: 240 * MIB,
        used: 40 * MIB,
        own: 40 * MIB,
        memtable: 80 * MIB,
        l0_due: READ_L0_RUNS,
        runs: Vec::new(),
        l1: 1000 * MIB,
        passes: Some(0.1),
        flush_rate: 400e6,
    }
}

#[test]
fn without_backlog_any_rate_is_admitted_and_nothing_is_written() {
    let p = Pacer::default();
    p.set_rate(figures().outlook().rate());
    assert_eq!(p.rate(BRAKE), None);
    assert!(p.rate(BRAKE + 0.01).is_some(), "the budget is looked at all the same");
}

#[test]
fn memory_lasts_until_the_next_place_comes_free() {
    // Four runs of which half is left, all at the same place: nothing comes free for half a pass of 10 s.
    let runs = vec![(40 * MIB, 80 * MIB); 4];
    let full = Figures { runs, used: 100 * MIB, own: 100 * MIB, ..figures() };
    let until = 6.0 + 80.0 * MIB as f64 / 400e6;
    let want = (240.0 * BRAKE - 100.0) * MIB as f64 / until;
    assert!((full.outlook().lasting() / want - 1.0).abs() < 0.01, "{} {want}", full.outlook().lasting());
    // The less of them is left, the faster; never faster than places turn over.
    let at = |left: u64| Figures { runs: vec![(left * MIB, 80 * MIB); 4], ..full.clone() }.outlook();
    let rates: Vec<f64> = (8..=80).rev().map(|left| at(left).lasting()).collect();
    assert!(rates.windows(2).all(|w| w[1] >= w[0] && w[1] < w[0] * 1.2), "no cliff anywhere");
    assert!(at(1).lasting() > at(1).sustained());
    assert!((at(1).sustained() / (4.0 * 80.0 * MIB as f64 / 10.0) - 1.0).abs() < 0.01);
    // More runs than are due, as when somebody begins to read: they leave in one pass all the same, and none has a place before.
    let more = |n| Figures { runs: vec![(40 * MIB, 80 * MIB); n], ..full.clone() }.outlook();
    assert!((more(7).sustained() / (7.0 * 80.0 * MIB as f64 / 10.0) - 1.0).abs() < 0.01);
    assert!((more(7).lasting() / more(4).lasting() - 1.0).abs() < 0.01);
    // No room left: slow, but not dead.
    let tight = Figures { used: 239 * MIB, own: 239 * MIB, ..full }.outlook();
    assert!(tight.lasting() > 0.0 && tight.lasting() < tight.sustained() / 2.0);
}

#[test]
fn the_rate_falls_steadily_with_the_backlog() {
    let at = |i: u64| {
        let runs = vec![(20 * MIB, 80 * MIB), (i * MIB, 80 * MIB)];
        Figures { runs, used: (60 + i) * MIB, own: (60 + i) * MIB, ..figures() }.outlook().rate()
    };
    let rates: Vec<f64> = (1..80).filter_map(at).collect();
    assert!(rates.len() > 20);
    assert!(rates.windows(2).all(|w| w[1] <= w[0] && w[1] > w[0] * 0.7), "{rates:?}");
    let debts: Vec<f64> = (0..=200).filter_map(|i| for_debt(f64::from(i) / 100.0, 1e8)).collect();
    assert!(debts.len() < 180 && debts.windows(2).all(|w| w[1] <= w[0] && w[1] > w[0] * 0.8));
    assert!(debts[0] > 4e8 && *debts.last().unwrap() < 2e7);
}

#[test]
fn a_small_subtable_does_not_hold_up_the_others() {
    let runs = vec![(8 * MIB, 8 * MIB); 4];
    let alone = Figures { runs, used: 120 * MIB, own: 120 * MIB, ..figures() };
    let small = Figures { own: 12 * MIB, ..alone.clone() };
    assert!(small.outlook().lasting() > alone.outlook().lasting() * 1.5);
}

#[test]
fn a_full_budget_slows_geometrically_and_never_stops() {
    let p = Pacer::default();
    p.set_rate(Some(100e6));
    let rates: Vec<f64> = (70..=120).map(|i| p.rate(f64::from(i) / 100.0).unwrap()).collect();
    assert!(rates.windows(2).all(|w| w[1] <= w[0] && w[1] > w[0] * 0.8), "no cliff anywhere");
    assert!(rates[0] == 100e6 && *rates.last().unwrap() >= FLOOR);
}

#[test]
fn commits_are_spaced_at_the_admitted_rate_and_wait_for_a_bounded_time() {
    let p = Pacer::default();
    let mut now = secs(1.0);
    for _ in 0..100 {
        now = now.max(p.pay(100_000, 100e6, now));
    }
    let took = (now - secs(1.0)).as_secs_f64();
    assert!((0.09..0.11).contains(&took), "100 milliseconds' worth took {took}");
    for _ in 0..100 {
        assert!(p.pay(1 << 30, FLOOR, now) <= now + LONGEST);
    }
}

#[test]
fn a_meter_counts_only_the_time_in_which_there_was_work() {
    let mut m = Meter::default();
    m.done(1.0, secs(1.0));
    assert_eq!(m.rate(), None, "who knows since when");
    m.done(2.0, secs(2.0));
    assert_eq!(m.rate(), Some(2.0));
    m.rest();
    m.begin(secs(100.0));
    m.begin(secs(100.5));
    m.done(2.0, secs(101.0));
    assert_eq!(m.rate(), Some(2.0));
    (0..100).for_each(|i| m.done(4.0, secs(102.0 + f64::from(i))));
    assert!((m.rate().unwrap() - 4.0).abs() < 0.01);
}

/// A database in a nutshell: a writer who always wants more, one flush and one merge at a time.
struct Sim {
    l0_due: usize,
    rng: u64,
    now: f64,
    pacer: Pacer,
    /// Bytes in the active memtable, and in frozen ones, oldest first.
    active: f64,
    frozen: Vec<f64>,
    /// When the flush at work ends.
    flush: Option<f64>,
    /// What is left of runs, what they came with; oldest first.
    runs: Vec<(f64, f64)>,
    l1: f64,
    /// The merge at work: when it ends, and how far it brings the pass (0: it takes from L1).
    merge: Option<(f64, f64)>,
    passes: Meter,
    /// When the writer is ready for the next commit.
    ready: f64,
    /// Commits that found the budget exhausted.
    stops: u64,
    most_runs: usize,
}

const BUDGET: f64 = 256e6;
const MEMTABLE: f64 = BUDGET / 2.0;
const TARGET: f64 = 4.0 * BUDGET;
const COMMIT: f64 = 20e3;
const WANTED: f64 = 300e6;
const FLUSH: f64 = 250e6;
const MERGE: f64 = 250e6;
const PIECE: f64 = 64e6;

impl Sim {
    fn new(seed: u64, l0_due: usize) -> Self {
        Sim {
            l0_due,
            rng: seed,
            now: 1.0,
            pacer: Pacer::default(),
            active: 0.0,
            frozen: Vec::new(),
            flush: None,
            runs: Vec::new(),
            l1: TARGET,
            merge: None,
            passes: Meter::default(),
            ready: 1.0,
            stops: 0,
            most_runs: 0,
        }
    }

    /// Costs vary by a factor of three.
    fn cost(&mut self) -> f64 {
        self.rng = self.rng.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        0.5 + (self.rng >> 40) as f64 / (1u64 << 24) as f64
    }

    fn used(&self) -> f64 {
        self.active + self.frozen.iter().sum::<f64>()
    }

    fn pass_is_due(&self) -> bool {
        pass_is_due(self.runs.iter().map(|(left, birth)| left / birth), self.l0_due)
    }

    fn forecast(&mut self) {
        if !self.pass_is_due() {
            self.passes.rest();
        }
        let used = self.used() as u64;
        let figures = Figures {
            budget: BUDGET as u64,
            used,
            own: used,
            memtable: MEMTABLE as u64,
            l0_due: self.l0_due,
            runs: self.runs.iter().map(|(left, birth)| (*left as u64, *birth as u64)).collect(),
            l1: self.l1 as u64,
            passes: self.passes.rate(),
            flush_rate: self.pacer.flush_rate(),
        };
        self.pacer.set_rate(figures.outlook().rate());
    }

    fn write(&mut self, until: f64) -> f64 {
        let mut admitted = 0.0;
        while self.ready <= until {
            if self.used() >= BUDGET {
                self.stops += 1;
                self.ready = until + 1e-3;
                break;
            }
            let is_full = self.active >= MEMTABLE && self.runs.len() < MAX_L0_RUNS;
            if (is_full || self.used() > BUDGET * 0.6) && self.frozen.is_empty() {
                self.frozen.push(std::mem::take(&mut self.active));
            }
            let free = self.ready + COMMIT / WANTED;
            self.ready = match self.pacer.rate(self.used() / BUDGET) {
                None => free,
                Some(rate) => self.pacer.pay(COMMIT as u64, rate, secs(self.ready)).as_secs_f64().max(free),
            };
            self.active += COMMIT;
            admitted += COMMIT;
        }
        admitted
    }

    /// Ten milliseconds; returns what was admitted.
    fn step(&mut self, hiccup: bool) -> f64 {
        let admitted = self.write(self.now);
        self.now += 0.01;
        if self.flush.is_some_and(|end| end <= self.now) {
            let bytes = self.frozen.remove(0);
            self.runs.push((bytes * 0.9, bytes * 0.9));
            self.most_runs = self.most_runs.max(self.runs.len());
            self.pacer.flushed(bytes as u64, secs(bytes / FLUSH));
            self.flush = None;
            self.forecast();
        }
        if let Some((end, progress)) = self.merge
            && end <= self.now
        {
            self.merge = None;
            if progress > 0.0 {
                for (left, birth) in &mut self.runs {
                    let gone = (*birth * progress).min(*left);
                    *left -= gone;
                    self.l1 += gone;
                }
                self.runs.retain(|(left, _)| *left > 1.0);
                self.passes.done(progress, secs(self.now));
            } else {
                self.l1 -= PIECE / 4.0;
            }
            self.forecast();
        }
        if self.flush.is_none() && self.runs.len() < MAX_L0_RUNS && !self.frozen.is_empty() {
            self.flush = Some(self.now + self.frozen[0] / FLUSH);
        }
        if self.merge.is_none() && !hiccup {
            let l0 = if self.pass_is_due() { 3.0 } else { 0.0 };
            let size = 1.0 + (self.l1 / TARGET - 1.0) * 10.0;
            let cost = self.cost();
            if l0 > size.max(1.0) {
                self.passes.begin(secs(self.now));
                let births: f64 = self.runs.iter().map(|(_, birth)| birth).sum();
                self.merge = Some((self.now + PIECE / MERGE * cost, PIECE / (births + self.l1)));
            } else if size > 1.0 {
                self.merge = Some((self.now + PIECE * 1.25 / MERGE * cost, 0.0));
            }
        }
        admitted
    }

    /// What was admitted in each second.
    fn run(&mut self, seconds: usize, hiccup: impl Fn(f64) -> bool) -> Vec<f64> {
        (0..seconds).map(|_| (0..100).map(|_| self.step(hiccup(self.now))).sum()).collect()
    }
}

/// Least, fifth percentile and median.
fn evenness(mut seconds: Vec<f64>) -> (f64, f64, f64) {
    seconds.sort_by(f64::total_cmp);
    let at = |share: usize| seconds[seconds.len() * share / 100];
    (at(0), at(5), at(50))
}

/// Seeds, and runs of L0 for which its pass waits.
fn cases() -> impl Iterator<Item = (u64, usize)> {
    (0..20).flat_map(|seed| [READ_L0_RUNS, MAX_L0_RUNS].map(|due| (seed, due)))
}

#[test]
fn writers_run_at_the_drain_rate_and_never_stop() {
    for (seed, due) in cases() {
        let mut sim = Sim::new(seed, due);
        let first = sim.run(60, |_| false);
        assert!(first[0] > WANTED * 0.5, "nothing is held back before it has to");
        sim.most_runs = 0;
        let seconds = sim.run(300, |_| false);
        let mean = seconds.iter().sum::<f64>() / 300.0;
        let (least, p5, median) = evenness([first, seconds].concat());
        let about = format!(
            "seed {seed}, {due} due: least {least:.2e}, 5 % {p5:.2e}, median {median:.2e}, mean {mean:.2e}"
        );
        assert_eq!(sim.stops, 0, "{about}");
        assert!(p5 > median * 0.7 && least > median * 0.15, "{about}");
        // What came at first, unhindered, took what places there are.
        assert!(sim.most_runs <= due + 1, "{about}: {} runs", sim.most_runs);
        // What merging gets through if it never rests and as many runs as are due go along: L0 with L1, and from L1 on with five times
        // as much.
        let runs = due as f64 * MEMTABLE;
        let best = MERGE / ((runs * 0.9 + TARGET * 1.2) / runs + 0.9 * 5.0);
        assert!(mean > best * 0.95, "{about}, {best:.2e} was possible");
    }
}

#[test]
fn a_hiccup_of_the_background_slows_writers_and_does_not_stop_them() {
    for (seed, due) in cases() {
        let mut sim = Sim::new(seed, due);
        let seconds = sim.run(200, |now| now % 25.0 < 3.0);
        let (least, p5, median) = evenness(seconds);
        let about = format!("seed {seed}, {due} due: least {least:.2e}, 5 % {p5:.2e}, median {median:.2e}");
        assert_eq!(sim.stops, 0, "{about}");
        assert!(p5 > median * 0.3 && least > median * 0.05, "{about}");
    }
}
