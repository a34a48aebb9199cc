//! Starts the child, kills it, keeps the record of what it reported, and has the database verified.

use std::io::{ErrorKind, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use clap::ValueEnum;

use crate::child::Report;
use crate::plan::{self, Rng, SoakMedium, WRITERS};
use crate::verify::{Covered, Model, check};
use crate::{Failure, Outcome, SoakArgs};

/// How often progress is printed.
const PROGRESS: Duration = Duration::from_secs(5);

/// No writer may go without progress for so long while the process lives, whatever happens beside it.
const STALL: Duration = Duration::from_secs(10);

/// When each writer was last heard of, and the longest that one was silent.
#[derive(Debug)]
struct Pulse {
    from: Instant,
    /// Milliseconds since `from`; 0 before the first report.
    last: [AtomicU64; WRITERS],
    longest: AtomicU64,
}

impl Pulse {
    fn new() -> Self {
        Pulse { from: Instant::now(), last: Default::default(), longest: AtomicU64::new(0) }
    }

    fn now(&self) -> u64 {
        self.from.elapsed().as_millis().max(1) as u64
    }

    fn beat(&self, writer: usize) {
        let now = self.now();
        let before = self.last[writer].swap(now, Ordering::Relaxed);
        if before > 0 {
            self.longest.fetch_max(now.saturating_sub(before), Ordering::Relaxed);
        }
    }

    /// Fails if a writer that has begun has been silent for too long.
    fn check(&self, limit: Duration) -> Outcome {
        let now = self.now();
        for (writer, last) in self.last.iter().enumerate() {
            let last = last.load(Ordering::Relaxed);
            let silent = Duration::from_millis(now.saturating_sub(last));
            if last > 0 && silent > limit {
                let seconds = silent.as_secs_f64();
                return Err(format!("writer {writer} has made no progress for {seconds:.1} s").into());
            }
        }
        Ok(())
    }
}

/// The record outside the killed process.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// Each writer's last batch known to be committed.
    acknowledged: [u64; WRITERS],
    /// Reports of all rounds.
    reports: u64,
    /// The longest that a writer was silent, in milliseconds.
    longest_pause: u64,
}

impl Record {
    fn take(&mut self, report: Report) -> Outcome {
        match report {
            Report::Found { writer, n } => {
                let known = self.acknowledged[writer];
                if n < known || n > known + 1 {
                    return Err(
                        format!("writer {writer}: reopened at batch {n}, {known} was acknowledged").into()
                    );
                }
                self.acknowledged[writer] = n;
            }
            Report::Acknowledged { writer, n } => {
                let known = self.acknowledged[writer];
                if n != known + 1 {
                    return Err(format!("writer {writer}: batch {n} was reported after {known}").into());
                }
                self.acknowledged[writer] = n;
                self.reports += 1;
            }
        }
        Ok(())
    }

    /// Reads reports until the pipe ends.
    fn follow(mut self, mut from: ChildStdout, pulse: &Pulse) -> Result<Record, Failure> {
        let mut bytes = [0; Report::BYTES];
        loop {
            match from.read_exact(&mut bytes) {
                Ok(()) => {
                    let report = Report::decode(&bytes).ok_or("the child reports nonsense")?;
                    let (Report::Found { writer, .. } | Report::Acknowledged { writer, .. }) = report;
                    pulse.beat(writer);
                    self.take(report)?;
                }
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => {
                    self.longest_pause = self.longest_pause.max(pulse.longest.load(Ordering::Relaxed));
                    return Ok(self);
                }
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// How far the soak has come.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    kills: u64,
    verified: u64,
    covered: Covered,
}

impl Tally {
    fn line(&self, record: &Record, from: Instant) -> String {
        format!(
            "{} kills survived in {:.0} s, {} acknowledged batches, {} operations checked, {} records compared, \
             check clean {} times, longest pause of a writer {:.1} s",
            self.kills,
            from.elapsed().as_secs_f64(),
            record.reports,
            self.covered.operations,
            self.covered.records,
            self.verified,
            record.longest_pause as f64 / 1e3
        )
    }
}

pub(crate) fn run(args: &SoakArgs) -> Outcome {
    let clock =
        || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64);
    let seed = args.seed.unwrap_or_else(clock);
    let mut builder = tempfile::Builder::new();
    builder.prefix("terrane-soak-");
    let dir = match &args.dir {
        Some(parent) => builder.tempdir_in(parent)?,
        None => builder.tempdir()?,
    };
    println!("soak: seed {seed}, database in {}", dir.path().display());
    match soak(args, seed, &dir.path().join("db")) {
        Ok(line) => {
            println!("soak: {line}; seed {seed}");
            Ok(())
        }
        Err(e) => {
            let kept = dir.keep();
            Err(format!("soak failed: {e}\nseed {seed}; the database is kept in {}", kept.display()).into())
        }
    }
}

fn soak(args: &SoakArgs, seed: u64, dir: &Path) -> Result<String, Failure> {
    let minutes = args.minutes.or(if args.kills.is_none() { Some(2.0) } else { None });
    let from = Instant::now();
    let mut said = from;
    let mut rng = Rng::new(&[seed]);
    let mut model = Model::new(seed);
    let mut record = Record::default();
    let mut tally = Tally::default();
    let mut round = 0;
    // Kills that are not verified yet.
    let mut pending = 0;
    loop {
        round += 1;
        record = kill_one(args.medium, (seed, round), dir, record, &mut rng)
            .map_err(|e| format!("round {round}: {e}"))?;
        pending += 1;
        let done = args.kills.is_some_and(|k| tally.kills + pending >= k)
            || minutes.is_some_and(|m| from.elapsed().as_secs_f64() >= m * 60.0);
        // Now and then the next process meets what the killed one left, and is killed in turn.
        if !done && rng.one_in(5) {
            continue;
        }
        verify(args.medium, dir, &mut model, &mut record, &mut tally.covered, &mut rng)
            .map_err(|e| format!("after kill {}, round {round}: {e}", tally.kills + pending))?;
        tally.kills += std::mem::take(&mut pending);
        tally.verified += 1;
        if done {
            return Ok(tally.line(&record, from));
        }
        if said.elapsed() > PROGRESS {
            said = Instant::now();
            println!("soak: {}", tally.line(&record, from));
        }
    }
}

/// Lets a child write for a while, and kills it.
fn kill_one(
    medium: SoakMedium,
    (seed, round): (u64, u64),
    dir: &Path,
    record: Record,
    rng: &mut Rng,
) -> Result<Record, Failure> {
    let memory = dir.join("pmem");
    let has_log = matches!(medium, SoakMedium::PageCache | SoakMedium::PmemLog);
    if has_log && rng.one_in(8) && memory.exists() {
        // As a reboot does where it lay in memory, and a device that fails.
        std::fs::remove_file(&memory)?;
    }
    let mut child = start(medium, seed, round, dir)?;
    let out = child.stdout.take().ok_or("the child has no standard output")?;
    let pulse = Arc::new(Pulse::new());
    let heard = pulse.clone();
    let follower = std::thread::spawn(move || record.follow(out, &heard));
    let alive = match rng.below(8) {
        // Long enough for a writer that stands still to be noticed.
        _ if rng.one_in(40) => STALL.as_millis() as u64 + 2000 + rng.below(4000),
        // In the opening, or soon after.
        0 => rng.below(30),
        1..=3 => 30 + rng.below(300),
        _ => 300 + rng.below(2500),
    };
    let until = Instant::now() + Duration::from_millis(alive);
    let mut ended = None;
    let mut moving = Ok(());
    while ended.is_none() && moving.is_ok() && Instant::now() < until && !follower.is_finished() {
        std::thread::sleep(until.saturating_duration_since(Instant::now()).min(Duration::from_millis(20)));
        ended = child.try_wait()?;
        moving = pulse.check(STALL);
    }
    // A child that ended by itself is gone already; that is told below.
    let _ = child.kill();
    let status = child.wait()?;
    let record = follower.join().map_err(|_| "the follower panicked")??;
    moving?;
    match ended {
        Some(_) => Err(format!("the child ended by itself: {status}; what it said stands above").into()),
        None => Ok(record),
    }
}

fn start(medium: SoakMedium, seed: u64, round: u64, dir: &Path) -> Result<Child, Failure> {
    let medium = medium.to_possible_value().ok_or("a medium without a name")?;
    Ok(Command::new(std::env::current_exe()?)
        .arg("child")
        .arg("--db")
        .arg(dir)
        .args(["--seed", &seed.to_string(), "--round", &round.to_string(), "--medium", medium.get_name()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?)
}

fn verify(
    medium: SoakMedium,
    dir: &Path,
    model: &mut Model,
    record: &mut Record,
    covered: &mut Covered,
    rng: &mut Rng,
) -> Outcome {
    let db = plan::open(medium, dir, rng)?;
    let tables = plan::subtables(&db, rng)?;
    plan::end_in_doubt(&db, rng)?;
    for (writer, acknowledged) in record.acknowledged.iter_mut().enumerate() {
        *acknowledged = model.verify(writer, *acknowledged, &tables, covered)?;
    }
    check(&db)?;
    drop(tables);
    if rng.one_in(2) {
        db.close()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_that_stands_still_is_noticed_once_it_has_begun() {
        let pulse = Pulse { from: Instant::now() - Duration::from_secs(20), ..Pulse::new() };
        pulse.check(STALL).expect("nobody has begun");
        (0..WRITERS).for_each(|w| pulse.beat(w));
        pulse.check(STALL).expect("all have just been heard of");
        pulse.last[1].store(5000, Ordering::Relaxed);
        let e = pulse.check(STALL).expect_err("15 seconds").to_string();
        assert!(e.contains("writer 1") && e.contains("no progress"), "{e}");
        pulse.beat(1);
        pulse.check(STALL).expect("it goes on");
        assert!(pulse.longest.load(Ordering::Relaxed) >= 14_000);
    }
}
