//! Starts the child, kills it, keeps the record of what it reported, and has the database verified.

use std::io::{ErrorKind, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use terrane::Db;

use super::SoakArgs;
use super::child::Report;
use super::plan::{self, Rng, WRITERS};
use super::verify::{Covered, Model, check};
use crate::{Failure, Outcome};

/// How often progress is printed.
const PROGRESS: Duration = Duration::from_secs(5);

/// The record outside the killed process.
#[derive(Clone, Copy, Debug, Default)]
struct Record {
    /// Each writer's last batch known to be committed.
    acknowledged: [u64; WRITERS],
    /// Reports of all rounds.
    reports: u64,
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
    fn follow(mut self, mut from: ChildStdout) -> Result<Record, Failure> {
        let mut bytes = [0; Report::BYTES];
        loop {
            match from.read_exact(&mut bytes) {
                Ok(()) => self.take(Report::decode(&bytes).ok_or("the child reports nonsense")?)?,
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(self),
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
             check clean {} times",
            self.kills,
            from.elapsed().as_secs_f64(),
            record.reports,
            self.covered.operations,
            self.covered.records,
            self.verified
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
        record = kill_one(seed, round, dir, record, &mut rng).map_err(|e| format!("round {round}: {e}"))?;
        pending += 1;
        let done = args.kills.is_some_and(|k| tally.kills + pending >= k)
            || minutes.is_some_and(|m| from.elapsed().as_secs_f64() >= m * 60.0);
        // Now and then the next process meets what the killed one left, and is killed in turn.
        if !done && rng.one_in(5) {
            continue;
        }
        verify(dir, &mut model, &mut record, &mut tally.covered, &mut rng)
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
fn kill_one(seed: u64, round: u64, dir: &Path, record: Record, rng: &mut Rng) -> Result<Record, Failure> {
    let mut child = start(seed, round, dir)?;
    let out = child.stdout.take().ok_or("the child has no standard output")?;
    let follower = std::thread::spawn(move || record.follow(out));
    let alive = match rng.below(8) {
        // In the opening, or soon after.
        0 => rng.below(30),
        1..=3 => 30 + rng.below(300),
        _ => 300 + rng.below(2500),
    };
    let until = Instant::now() + Duration::from_millis(alive);
    let mut ended = None;
    while ended.is_none() && Instant::now() < until && !follower.is_finished() {
        std::thread::sleep(until.saturating_duration_since(Instant::now()).min(Duration::from_millis(20)));
        ended = child.try_wait()?;
    }
    // A child that ended by itself is gone already; that is told below.
    let _ = child.kill();
    let status = child.wait()?;
    let record = follower.join().map_err(|_| "the follower panicked")??;
    match ended {
        Some(_) => Err(format!("the child ended by itself: {status}; what it said stands above").into()),
        None => Ok(record),
    }
}

fn start(seed: u64, round: u64, dir: &Path) -> Result<Child, Failure> {
    Ok(Command::new(std::env::current_exe()?)
        .arg("soak-child")
        .arg("--db")
        .arg(dir)
        .args(["--seed", &seed.to_string(), "--round", &round.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?)
}

fn verify(
    dir: &Path,
    model: &mut Model,
    record: &mut Record,
    covered: &mut Covered,
    rng: &mut Rng,
) -> Outcome {
    let db = Db::open(dir, plan::options(rng)).map_err(|e| format!("open: {e}"))?;
    let tables = plan::subtables(&db, rng)?;
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
