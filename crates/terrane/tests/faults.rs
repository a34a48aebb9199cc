//! An error at every I/O call of a history: each operation succeeds or says what went wrong, nothing acknowledged is
//! lost, nothing wrong is read, and what failed half way has happened whole or not at all. What is prepared is so until an end of
//! it is acknowledged: it is listed, holds its locks, and can be ended after each reopening.
//!
//! `TERRANE_STRIDE` = 1 makes every call fail in turn (default: every 29th, from an offset that follows from the kind of
//! fault), `TERRANE_SEEDS` sets how many histories, `TERRANE_SEED` runs one.

#![allow(clippy::disallowed_methods, reason = "writers are threads")]

mod support;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use support::*;
use terrane::media::Media;
use terrane::media::real::RealOptions;
use terrane::media::sim::{CrashKind, Fault, FaultPlan, OpKind, SimMedia};
use terrane::{Db, Durability, Error, ErrorKind, Isolation, LockWait, Options, TransactionOptions, Tuning};

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn seeds(default: u64) -> Vec<u64> {
    match std::env::var("TERRANE_SEED").ok().and_then(|v| v.parse().ok()) {
        Some(one) => vec![one],
        None => (0..env("TERRANE_SEEDS", default)).collect(),
    }
}

#[derive(Clone, Debug)]
enum Step {
    Op(Op),
    Create(usize),
    Drop(usize),
    Prepare(Vec<u8>, Vec<Change>),
    /// Commits what is prepared, synced or not.
    Commit(Vec<u8>, bool),
    Rollback(Vec<u8>),
    Reopen,
}

/// What a database should show.
#[derive(Clone, Debug)]
struct State {
    rows: Model,
    /// Prepared transactions by xid.
    prepared: BTreeMap<Vec<u8>, Vec<Change>>,
}

/// A history with something of everything.
fn history(seed: u64, len: usize) -> Vec<Step> {
    let mut rng = Rng(seed);
    let mut steps = vec![Step::Reopen];
    let mut in_doubt: Vec<Vec<u8>> = Vec::new();
    steps.extend((0..TABLES).map(Step::Create));
    while steps.len() < len {
        let t = rng.below(TABLES as u64) as usize;
        let next = match rng.below(40) {
            0..=2 => Step::Op(Op::Flush(t)),
            3 => Step::Op(Op::Compact(t)),
            4 => {
                steps.push(Step::Drop(t));
                steps.push(Step::Op(op(&mut rng, 60)));
                Step::Create(t)
            }
            5 => Step::Reopen,
            6..=8 => Step::Op(Op::Background),
            9..=12 => {
                let (xid, changes) = prepared(&mut rng);
                if in_doubt.contains(&xid) {
                    continue;
                }
                in_doubt.push(xid.clone());
                Step::Prepare(xid, changes)
            }
            13..=16 if !in_doubt.is_empty() => {
                let xid = in_doubt.swap_remove(rng.below(in_doubt.len() as u64) as usize);
                match rng.below(3) {
                    0 => Step::Rollback(xid),
                    n => Step::Commit(xid, n == 1),
                }
            }
            17 => Step::Op(ingest(&mut rng, 60)),
            _ => match op(&mut rng, 60) {
                Op::Recreate(_) => Step::Op(Op::Background),
                other => Step::Op(other),
            },
        };
        steps.push(next);
    }
    steps.push(Step::Reopen);
    steps
}

impl State {
    fn empty() -> State {
        State { rows: vec![None; TABLES], prepared: BTreeMap::new() }
    }

    fn after(&self, step: &Step) -> State {
        let mut next = self.clone();
        match step {
            Step::Op(op) => apply(&mut next.rows, op),
            Step::Create(t) => next.rows[*t] = Some(BTreeMap::new()),
            Step::Drop(t) => {
                next.rows[*t] = None;
                // What was prepared for it is left out.
                next.prepared.values_mut().for_each(|changes| changes.retain(|c| c.table() != *t));
            }
            Step::Prepare(xid, changes) => drop(next.prepared.insert(xid.clone(), changes.clone())),
            Step::Commit(xid, sync) => {
                let changes = next.prepared.remove(xid).unwrap_or_default();
                apply(&mut next.rows, &Op::Write { changes, sync: *sync, by: By::Batch });
            }
            Step::Rollback(xid) => drop(next.prepared.remove(xid)),
            Step::Reopen => {}
        }
        next
    }

    fn of(db: &Db) -> terrane::Result<Seen> {
        Ok(Seen { rows: contents(db)?, xids: db.prepared() })
    }

    /// How what a database shows differs from it.
    fn differs(&self, seen: &Seen) -> Option<String> {
        let listed = seen.xids.iter().eq(self.prepared.keys());
        let wanted = self.prepared.keys().collect::<Vec<_>>();
        let prepared = (!listed).then(|| format!("prepared are {:?}, wanted {wanted:?}", seen.xids));
        difference(&seen.rows, &self.rows).or(prepared)
    }
}

/// What a database shows.
struct Seen {
    rows: Model,
    xids: Vec<Vec<u8>>,
}

/// What a run came to.
#[derive(Debug, Default)]
struct Tally {
    runs: u64,
    errors: BTreeMap<&'static str, u64>,
    /// Runs that ended because stored bytes were damaged, and were found out.
    found_out: u64,
    steps: BTreeMap<&'static str, u64>,
    failures: Vec<String>,
}

/// A history under a fault.
struct Run {
    media: Arc<SimMedia>,
    fault: Fault,
    db: Option<Db>,
    /// What was acknowledged.
    model: State,
    /// The one operation that failed: it may turn out to have happened once reopened.
    doubt: Option<Step>,
    /// What is safe from a power failure, and what came since.
    synced: State,
    since: Vec<Step>,
    errors: BTreeMap<&'static str, u64>,
    /// What came of the steps.
    steps: BTreeMap<&'static str, u64>,
    /// A call failed.
    hit: bool,
}

/// Stored bytes are damaged, by a flip that was asked for: the run ends.
enum Stop {
    FoundOut,
    Wrong(String),
}

type Outcome<T> = Result<T, Stop>;

fn wrong<T>(what: impl Into<String>) -> Outcome<T> {
    Err(Stop::Wrong(what.into()))
}

impl Run {
    fn new(seed: u64, plan: FaultPlan, fault: Fault) -> Run {
        let media = SimMedia::new(seed);
        media.set_fault(Some(plan));
        let model = State::empty();
        Run {
            media,
            fault,
            db: None,
            doubt: None,
            synced: model.clone(),
            since: Vec::new(),
            model,
            errors: BTreeMap::new(),
            steps: BTreeMap::new(),
            hit: false,
        }
    }

    /// Counts an error in; only some kinds make sense.
    fn typed(&mut self, e: &Error, what: &str) -> Outcome<()> {
        *self.errors.entry(e.kind().as_str()).or_default() += 1;
        match e.kind() {
            ErrorKind::Io | ErrorKind::OutOfSpace | ErrorKind::Poisoned => Ok(()),
            ErrorKind::Corruption | ErrorKind::NewerFormat if self.fault == Fault::BitFlip => Ok(()),
            _ => wrong(format!("{what}: an error of the wrong kind: {e}")),
        }
    }

    /// What the open database shows. A read may fail once; then it must go on.
    fn shown(&mut self) -> Outcome<Seen> {
        let Some(db) = &self.db else { return wrong("not open") };
        let e = match State::of(db) {
            Ok(seen) => return Ok(seen),
            Err(e) => e,
        };
        let again = State::of(db);
        self.typed(&e, "reading")?;
        match again {
            Ok(seen) => Ok(seen),
            Err(e) if self.fault == Fault::BitFlip => {
                self.typed(&e, "reading again")?;
                Err(Stop::FoundOut)
            }
            Err(e) => wrong(format!("reads do not go on: {e}")),
        }
    }

    fn open(&mut self) -> Outcome<()> {
        let db = match open(&self.media, &tiny()) {
            Ok(db) => db,
            Err(e) => {
                self.typed(&e, "opening")?;
                match open(&self.media, &tiny()) {
                    Ok(db) => db,
                    Err(e) if self.fault == Fault::BitFlip => {
                        self.typed(&e, "opening again")?;
                        return Err(Stop::FoundOut);
                    }
                    Err(e) => return wrong(format!("does not open after a failed opening: {e}")),
                }
            }
        };
        self.db = Some(db);
        let got = self.shown()?;
        if let Some(d) = self.model.differs(&got) {
            match self.doubt.take().map(|step| self.model.after(&step)) {
                Some(doubt) if doubt.differs(&got).is_none() => self.model = doubt,
                Some(doubt) => {
                    let e = doubt.differs(&got);
                    return wrong(format!("after opening: {d}; with the failed operation: {e:?}"));
                }
                None => return wrong(format!("after opening: {d}")),
            }
        }
        self.doubt = None;
        self.count("found in doubt when opened", self.model.prepared.len() as u64);
        self.check_locks()?;
        // Recovery makes durable what it found.
        self.synced = self.model.clone();
        self.since.clear();
        Ok(())
    }

    fn count(&mut self, what: &'static str, n: u64) {
        *self.steps.entry(what).or_default() += n;
    }

    /// Nobody else writes what a prepared transaction has written.
    fn check_locks(&mut self) -> Outcome<()> {
        let Some(db) = &self.db else { return wrong("not open") };
        for (xid, changes) in &self.model.prepared {
            for c in changes {
                let (Change::Put { key, .. }
                | Change::Delete { key, .. }
                | Change::DeleteRange { start: key, .. }) = c;
                let options =
                    TransactionOptions::new().isolation(Isolation::ReadCommitted).lock_wait(LockWait::No);
                let written =
                    db.subtable(&name(c.table())).and_then(|t| db.begin(options)?.put(&t, key, b""));
                if !matches!(&written, Err(e) if e.kind() == ErrorKind::LockBusy) {
                    return wrong(format!("{} holds no lock of {c:?}: {written:?}", xid.escape_ascii()));
                }
            }
        }
        Ok(())
    }

    fn close(&mut self) -> Outcome<()> {
        let Some(db) = self.db.take() else { return Ok(()) };
        // One that still takes writes knows for certain that what failed has not happened.
        if self.doubt.is_some() && db.sync().is_ok() {
            self.doubt = None;
        }
        let closed = db.close();
        self.media.run_all();
        match closed {
            Ok(()) => {
                self.synced = self.model.clone();
                self.since.clear();
                Ok(())
            }
            Err(e) => self.typed(&e, "closing"),
        }
    }

    fn acknowledged(&mut self, step: &Step, sync: bool) {
        self.model = self.model.after(step);
        // Had the one before failed for good it would be refused now: so it has not happened.
        self.doubt = None;
        if sync {
            self.synced = self.model.clone();
            self.since.clear();
        } else {
            self.since.push(step.clone());
        }
    }

    fn step(&mut self, step: &Step) -> Outcome<()> {
        let exists = |t: &usize| self.model.rows[*t].is_some();
        let alive = |c: &Change| exists(&c.table());
        let step = match step {
            Step::Reopen => {
                self.close()?;
                return self.open();
            }
            Step::Create(t) if exists(t) => return Ok(()),
            Step::Drop(t) if !exists(t) => return Ok(()),
            Step::Op(Op::Flush(t) | Op::Compact(t)) if !exists(t) => return Ok(()),
            Step::Op(Op::Write { changes, sync, by }) => {
                let mut changes = changes.clone();
                changes.retain(alive);
                if changes.is_empty() && *by == By::Ingest {
                    return Ok(());
                }
                &Step::Op(Op::Write { changes, sync: *sync, by: *by })
            }
            // The end of the one before failed.
            Step::Prepare(xid, _) if self.model.prepared.contains_key(xid) => return Ok(()),
            Step::Prepare(xid, changes) => {
                &Step::Prepare(xid.clone(), changes.iter().filter(|c| alive(c)).cloned().collect())
            }
            // It was not prepared, for an error.
            Step::Commit(xid, _) | Step::Rollback(xid) if !self.model.prepared.contains_key(xid) => {
                return Ok(());
            }
            other => other,
        };
        let Some(db) = &self.db else { return wrong("not open") };
        let done = match step {
            Step::Op(op) => run(db, &self.media, op),
            Step::Create(t) => db.create_subtable(&name(*t), tiny_table()).map(|_| ()),
            Step::Drop(t) => db.drop_subtable(&name(*t)),
            Step::Prepare(xid, changes) => prepare(db, xid, changes),
            Step::Commit(xid, sync) => {
                let durability = if *sync { Durability::Sync } else { Durability::Buffered };
                db.commit_prepared(xid, durability).map(drop)
            }
            Step::Rollback(xid) => db.rollback_prepared(xid),
            Step::Reopen => Ok(()),
        };
        let [did, failed] = match step {
            Step::Prepare(..) => ["prepared", "prepares failed"],
            Step::Commit(..) => ["committed", "commits failed"],
            Step::Rollback(_) => ["rolled back", "rollbacks failed"],
            Step::Op(Op::Write { by: By::Ingest, .. }) => ["ingested", "ingests failed"],
            _ => ["others", "others failed"],
        };
        self.count(if done.is_ok() { did } else { failed }, 1);
        let changes = !matches!(step, Step::Op(Op::Flush(_) | Op::Compact(_) | Op::Sync | Op::Background));
        match done {
            Ok(()) if changes => {
                // A prepare and a rollback are durable, and so is what came before.
                let sync = matches!(
                    step,
                    Step::Op(Op::Write { sync: true, .. })
                        | Step::Prepare(..)
                        | Step::Commit(_, true)
                        | Step::Rollback(_)
                );
                self.acknowledged(step, sync);
            }
            Ok(()) if matches!(step, Step::Op(Op::Sync)) => {
                self.synced = self.model.clone();
                self.since.clear();
            }
            Ok(()) => {}
            Err(e) => {
                self.typed(&e, "an operation")?;
                // One that a poisoned database refuses was not begun.
                if changes && (self.doubt.is_none() || e.kind() != ErrorKind::Poisoned) {
                    self.doubt = Some(step.clone());
                }
            }
        }
        Ok(())
    }

    fn check_shown(&mut self, when: &str) -> Outcome<()> {
        let got = self.shown()?;
        match self.model.differs(&got) {
            None => Ok(()),
            Some(d) => wrong(format!("{when}: {d}")),
        }
    }

    /// Ends what is prepared, one way or the other, in a database that nothing fails any more.
    fn end_all(db: &Db, mut model: State, when: &str) -> Outcome<State> {
        let xids: Vec<_> = model.prepared.keys().cloned().collect();
        for (n, xid) in xids.into_iter().enumerate() {
            let (step, ended) = match n % 3 {
                2 => (Step::Rollback(xid.clone()), db.rollback_prepared(&xid)),
                _ => {
                    let ended = db.commit_prepared(&xid, Durability::Buffered).map(drop);
                    (Step::Commit(xid.clone(), false), ended)
                }
            };
            if let Err(e) = ended {
                return wrong(format!("{when}: ending {}: {e}", xid.escape_ascii()));
            }
            model = model.after(&step);
        }
        match State::of(db).map(|got| model.differs(&got)) {
            Ok(None) => Ok(model),
            other => wrong(format!("{when}: with what was prepared ended: {other:?}")),
        }
    }

    /// Power fails: what was synced is there, of the rest a prefix.
    fn check_power_failure(&mut self, when: &str) -> Outcome<()> {
        // The newest frame of the log, if damaged, looks like one that was never flushed.
        if self.fault == Fault::BitFlip {
            return Ok(());
        }
        let media = self.media.image().crash(CrashKind::PowerLost, 5);
        let seen = open(&media, &tiny()).and_then(|db| State::of(&db).map(|seen| (db, seen)));
        let (db, got) = match seen {
            Ok(seen) => seen,
            Err(e) => return wrong(format!("{when}: {e}")),
        };
        for k in (0..=self.since.len()).rev() {
            let mut model = self.synced.clone();
            for (i, s) in self.since.iter().enumerate() {
                // What creates and drops subtables is durable by itself.
                if i < k || matches!(s, Step::Create(_) | Step::Drop(_)) {
                    model = model.after(s);
                }
            }
            let doubt = self.doubt.iter().map(|step| model.after(step));
            if let Some(model) = doubt.chain([model.clone()]).find(|m| m.differs(&got).is_none()) {
                return Run::end_all(&db, model, when).map(drop);
            }
        }
        wrong(format!("{when}: {:?}", self.model.differs(&got)))
    }

    fn go(&mut self, steps: &[Step]) -> Outcome<()> {
        for (i, step) in steps.iter().enumerate() {
            let at = |s: Stop| match s {
                Stop::Wrong(e) => Stop::Wrong(format!("step {i} {:.60}: {e}", format!("{step:?}"))),
                other => other,
            };
            let done = self.step(step);
            let first = !self.hit && self.media.faults_hit() > 0;
            self.hit |= first;
            done.map_err(at)?;
            if first {
                self.check_shown("after the fault").map_err(at)?;
                self.check_power_failure("a power failure after the fault").map_err(at)?;
            }
        }
        self.check_shown("at the end")?;
        self.media.set_fault(None);
        self.close()?;
        self.open()?;
        let Some(db) = &self.db else { return wrong("not open") };
        if let Err(e) = db.sync() {
            return wrong(format!("a reopened database takes no writes: {e}"));
        }
        let report = db.check(|_| true);
        match report {
            Ok(r) if r.is_clean() => {}
            Ok(_) if self.fault == Fault::BitFlip => return Err(Stop::FoundOut),
            other => return wrong(format!("check: {other:?}")),
        }
        self.model = Run::end_all(db, self.model.clone(), "at the end")?;
        if let Err(e) = db.sync() {
            return wrong(format!("what was prepared is ended, and then: {e}"));
        }
        self.synced = self.model.clone();
        // This device loses what it failed to flush although it still reads back: recovery writes anew what was not proved.
        self.check_power_failure("a power failure after reopening")
    }
}

/// Runs `steps` under `plan`; false if no call failed.
fn under(seed: u64, steps: &[Step], plan: FaultPlan, fault: Fault, tally: &mut Tally) -> bool {
    let what = format!("seed {seed} {plan:?}");
    let mut run = Run::new(seed, plan, fault);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let outcome = run.go(steps);
        run.db = None;
        outcome
    }));
    tally.runs += 1;
    for (kind, n) in std::mem::take(&mut run.errors) {
        *tally.errors.entry(kind).or_default() += n;
    }
    for (what, n) in std::mem::take(&mut run.steps) {
        *tally.steps.entry(what).or_default() += n;
    }
    match outcome {
        Ok(Ok(())) => {}
        Ok(Err(Stop::FoundOut)) => tally.found_out += 1,
        Ok(Err(Stop::Wrong(e))) => tally.failures.push(format!("{what}: {e}")),
        Err(_) => {
            tally.failures.push(format!("{what}: panic"));
            std::mem::forget(run.db.take());
        }
    }
    run.hit
}

fn each_call(fault: Fault, offset: u64, plan: impl Fn(FaultPlan) -> FaultPlan) {
    let stride = env("TERRANE_STRIDE", 29);
    let mut tally = Tally::default();
    let mut calls = 0;
    for seed in seeds(1) {
        let steps = history(seed, 70);
        let plain = Run::new(seed, FaultPlan::nth(u64::MAX, fault), fault).go(&steps);
        if let Err(Stop::Wrong(e)) = plain {
            panic!("seed {seed}, without a fault: {e}");
        }
        let mut n = offset % stride;
        while under(seed, &steps, plan(FaultPlan::nth(n, fault)), fault, &mut tally) {
            n += stride;
        }
        calls += n;
    }
    eprintln!(
        "{fault:?}: {} runs over {calls} calls, {} found out, errors {:?}, steps {:?}, {} failures",
        tally.runs,
        tally.found_out,
        tally.errors,
        tally.steps,
        tally.failures.len()
    );
    let some = &tally.failures[..tally.failures.len().min(12)];
    assert!(tally.failures.is_empty(), "{} failures:\n{}", tally.failures.len(), some.join("\n"));
}

#[test]
fn an_io_error_at_any_call_loses_nothing() {
    each_call(Fault::Io, 3, |p| p);
}

#[test]
fn a_full_device_at_any_call_loses_nothing() {
    each_call(Fault::NoSpace, 11, |p| p);
}

#[test]
fn a_short_transfer_at_any_call_loses_nothing() {
    each_call(Fault::Short, 17, |p| p);
}

#[test]
fn a_bit_flipped_at_any_call_is_found_out() {
    each_call(Fault::BitFlip, 23, |p| p);
}

/// After a failed flush nothing is acknowledged any more that a power failure could take.
#[test]
fn a_failed_flush_at_any_call_never_acknowledges_what_is_not_safe() {
    each_call(Fault::Io, 0, |p| p.only(&[OpKind::Sync, OpKind::SyncDir]));
}

/// A value stored apart that the tail alone refers to, a flush that fails and loses it, and the end of the process: what still
/// reads back is safe once the database is open again.
#[test]
fn a_large_value_whose_flush_failed_is_safe_once_reopened() {
    for seed in 0..20 {
        let (media, db) = fresh(seed, &tiny_logged()).unwrap();
        let t = db.subtable("t0").unwrap();
        t.put(b"before", &[1; 10_000]).unwrap();
        db.sync().unwrap();
        let value = |n: u8| -> Vec<u8> { (0..20_000u32).map(|i| n.wrapping_add((i / 512) as u8)).collect() };
        for n in 2..6 {
            t.put(&[n], &value(n)).unwrap();
        }
        media.set_fault(Some(FaultPlan::nth(0, Fault::Io).only(&[OpKind::Sync]).files("data-")));
        assert_eq!(db.sync().unwrap_err().kind(), ErrorKind::Poisoned);
        assert_eq!(media.faults_hit(), 1);
        media.set_fault(None);
        // It dies; and so may the next one while it recovers.
        let media = media.image().crash(CrashKind::Process, seed);
        drop((t, db));
        let halves: Arc<std::sync::Mutex<Vec<Arc<SimMedia>>>> = Arc::default();
        let seen = halves.clone();
        media.on_op(Some(Arc::new(move |media, _| {
            let mut seen = seen.lock().unwrap();
            let kind = CrashKind::ALL[seen.len() % 2];
            seen.push(media.image().crash(kind, seed));
        })));
        let check = |media: &Arc<SimMedia>, what: &str| {
            drop(open(media, &tiny_logged()).unwrap());
            let media = media.image().crash(CrashKind::PowerLost, seed);
            let db = open(&media, &tiny_logged()).unwrap();
            let t = db.subtable("t0").unwrap();
            assert_eq!(t.get(b"before").unwrap(), Some(vec![1; 10_000]), "seed {seed}, {what}");
            for n in 2..6 {
                let got = t.get(&[n]);
                assert!(
                    got.as_ref().is_ok_and(|v| *v == Some(value(n))),
                    "seed {seed}, {what}, {n}: {got:?}"
                );
            }
        };
        check(&media, "recovered at once");
        let halves = std::mem::take(&mut *halves.lock().unwrap());
        for (at, half) in halves.iter().enumerate().skip(seed as usize % 7).step_by(7) {
            check(half, &format!("recovery cut off at call {at}"));
        }
    }
}

/// Fills the device with `spare` bytes left, carries on for a while, makes room, and so on.
fn fill_and_make_room(seed: u64, spare: u64) -> Outcome<Run> {
    let mut run = Run::new(seed, FaultPlan::nth(u64::MAX, Fault::NoSpace), Fault::NoSpace);
    let mut rng = Rng(seed);
    for step in history(seed, 80) {
        run.step(&step)?;
    }
    let (mut refused, mut rounds, mut n) = (0, 0, 0);
    while rounds < 3 {
        rounds += 1;
        run.media.set_capacity(Some(run.media.used_bytes() + spare));
        let mut after = 0;
        for _ in 0..3000 {
            n += 1;
            let fresh = Change::Put {
                table: n % TABLES,
                key: format!("n{n:06}").into_bytes(),
                value: vec![n as u8; rng.below(if n % 9 == 0 { 12_000 } else { 2_500 }) as usize],
            };
            run.step(&match rng.below(300) {
                0..=9 => Step::Op(Op::Flush(n % TABLES)),
                10 => Step::Drop(n % TABLES),
                11..=39 => Step::Create(n % TABLES),
                40..=79 => Step::Op(Op::Background),
                80..=139 => match op(&mut rng, 60) {
                    Op::Recreate(_) => Step::Op(Op::Background),
                    other => Step::Op(other),
                },
                _ => Step::Op(Op::Write { changes: vec![fresh], sync: rng.below(8) == 0, by: By::Batch }),
            })?;
            let errors = run.errors.values().sum::<u64>();
            after += u64::from(errors > refused);
            if after > 40 {
                break;
            }
        }
        let errors = run.errors.values().sum::<u64>();
        if errors == refused {
            return wrong("the device never filled up");
        }
        run.check_shown("while the device is full")?;
        if rng.below(2) == 0 {
            // Opening wants some room of its own: it says so, and changes nothing.
            run.close()?;
            match open(&run.media, &tiny()) {
                Ok(db) => drop(db),
                Err(e) if e.kind() == ErrorKind::OutOfSpace => {}
                Err(e) => return wrong(format!("opening on a full device: {e}")),
            }
            run.media.run_all();
            run.media.set_capacity(None);
            run.open()?;
        }
        refused = run.errors.values().sum();
        run.media.set_capacity(None);
        for t in 0..TABLES {
            run.step(&Step::Create(t))?;
        }
        let put = Change::Put { table: 0, key: b"room".to_vec(), value: vec![rounds; 100] };
        run.step(&Step::Op(Op::Write { changes: vec![put], sync: rounds % 2 == 0, by: By::Batch }))?;
        if run.errors.values().sum::<u64>() > refused {
            return wrong(format!("there is room again, but {:?}", run.errors));
        }
        run.check_shown("with room again")?;
    }
    for t in 0..TABLES {
        run.step(&Step::Op(Op::Flush(t)))?;
        run.step(&Step::Op(Op::Compact(t)))?;
    }
    if run.errors.values().sum::<u64>() > refused || run.errors.len() != 1 {
        return wrong(format!("in the end: {:?}", run.errors));
    }
    if let Some(trouble) = run.db.as_ref().and_then(|db| db.stats().trouble) {
        return wrong(format!("still in trouble: {trouble}"));
    }
    run.check_shown("in the end")?;
    run.step(&Step::Reopen)?;
    run.check_power_failure("a power failure in the end")?;
    Ok(run)
}

#[test]
fn a_full_device_refuses_writes_until_there_is_room() {
    let mut refused = 0;
    for seed in seeds(3) {
        for spare in [0, 64 << 10, 300 << 10, 1 << 20] {
            match catch_unwind(AssertUnwindSafe(|| fill_and_make_room(seed, spare))) {
                Ok(Ok(run)) => refused += run.errors.values().sum::<u64>(),
                Ok(Err(Stop::Wrong(e))) => panic!("seed {seed}, {spare} bytes left: {e}"),
                Ok(Err(Stop::FoundOut)) => panic!("seed {seed}, {spare} bytes left: damage"),
                Err(_) => panic!("seed {seed}, {spare} bytes left: panic"),
            }
        }
    }
    eprintln!("{refused} operations were refused");
}

#[test]
fn closing_on_a_full_device_still_makes_the_log_durable() {
    let tuning = Tuning { segment_bytes: 8 << 20, tail_bytes: 2 << 20, ..Tuning::default() };
    let options = Options::new().memtable_bytes(64 << 20).tuning(tuning);
    let media = SimMedia::new(1);
    let db = open(&media, &options).unwrap();
    let t = db.create_subtable("t", tiny_table()).unwrap();
    for i in 0..12_000u32 {
        t.put(&i.to_be_bytes(), &[i as u8; 1000]).unwrap();
    }
    media.set_capacity(Some(media.used_bytes()));
    assert_eq!(db.close().unwrap_err().kind(), ErrorKind::OutOfSpace);
    assert_eq!(t.put(b"k", b"v").unwrap_err().kind(), ErrorKind::Closed);
    let media = media.image().crash(CrashKind::PowerLost, 1);
    media.set_capacity(None);
    let db = open(&media, &options).unwrap();
    let t = db.subtable("t").unwrap();
    assert!((0..12_000u32).all(|i| t.get(&i.to_be_bytes()).unwrap() == Some(vec![i as u8; 1000])));
}

#[test]
fn writers_on_many_threads_get_over_a_full_device() {
    const WRITERS: usize = 3;
    let threads = RealOptions {
        log_threads: 1,
        io_threads: 1,
        read_threads: 1,
        flush_threads: 2,
        compaction_threads: 1,
    };
    let media = SimMedia::with_threads(1, &threads);
    let db = open(&media, &tiny()).unwrap();
    let t = db.create_subtable("t", tiny_table()).unwrap();
    media.set_capacity(Some(media.used_bytes() + (4 << 20)));
    let stuck = std::sync::Barrier::new(WRITERS + 1);
    let free = std::sync::Barrier::new(WRITERS + 1);
    std::thread::scope(|s| {
        for w in 0..WRITERS {
            let (t, stuck, free) = (&t, &stuck, &free);
            s.spawn(move || {
                let mut written = Vec::new();
                let mut refusals = 0;
                for i in 0u64.. {
                    let key = [&[w as u8][..], &i.to_be_bytes()].concat();
                    match t.put(&key, &vec![i as u8; (i % 3000) as usize]) {
                        Ok(()) => written.push(i),
                        Err(e) => {
                            assert_eq!(e.kind(), ErrorKind::OutOfSpace, "{e}");
                            refusals += 1;
                        }
                    }
                    if refusals == 20 {
                        break;
                    }
                }
                stuck.wait();
                free.wait();
                // Whoever asks now may still hear of an attempt that began before; soon nobody does.
                let key = [&[w as u8][..], &u64::MAX.to_be_bytes()].concat();
                while let Err(e) = t.put(&key, b"again") {
                    assert_eq!(e.kind(), ErrorKind::OutOfSpace, "{e}");
                    std::thread::yield_now();
                }
                for i in written {
                    let key = [&[w as u8][..], &i.to_be_bytes()].concat();
                    assert_eq!(t.get(&key).unwrap(), Some(vec![i as u8; (i % 3000) as usize]));
                }
                assert_eq!(t.get(&key).unwrap().as_deref(), Some(&b"again"[..]));
            });
        }
        stuck.wait();
        media.set_capacity(None);
        free.wait();
    });
    let mut flushed = t.flush();
    // There a writer may have been let in while this is still told of an attempt that began before.
    while in_page_cache()
        && let Err(e) = &flushed
    {
        assert_eq!(e.kind(), ErrorKind::OutOfSpace, "{e}");
        std::thread::yield_now();
        flushed = t.flush();
    }
    flushed.unwrap();
    t.compact().unwrap();
    assert!(db.check(|_| true).unwrap().is_clean());
    db.close().unwrap();
    media.shutdown();
}
