//! The machine that comes up after a crash, and what must be true of the database on it.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::btree_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use terrane::media::Media;
use terrane::media::sim::{CrashKind, Image, PmModel, SimMedia};
use terrane::{Db, Durability, Options};

use crate::history::{History, Point};
use crate::sample::Sample;
use crate::support::*;

/// How the machine stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    By(CrashKind),
    /// Power fails and leaves that one of the states that persistent memory may have by a model; of files it leaves all that returned.
    InState(PmModel, u64),
}

impl Stop {
    fn crash(self, image: &Image, seed: u64) -> Arc<SimMedia> {
        match self {
            Stop::By(kind) => image.crash(kind, seed),
            Stop::InState(by, state) => image.crash_to_pm_state(by, state),
        }
    }

    pub fn is_power(self) -> bool {
        match self {
            Stop::By(kind) => is_power(kind),
            Stop::InState(..) => true,
        }
    }
}

/// One crash of a history.
#[derive(Clone, Copy)]
pub struct Survivor<'a> {
    pub history: &'a History,
    pub point: &'a Point,
    pub stop: Stop,
    pub seed: u64,
    /// What each opening afterwards has for options.
    pub options: fn(&mut Rng) -> Options,
}

/// What was in doubt when the survivor came up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    pub prepared: u64,
    /// Of those the ones whose records are in extents.
    pub staged: u64,
}

fn is_power(kind: CrashKind) -> bool {
    !matches!(kind, CrashKind::Process | CrashKind::ProcessTorn)
}

fn told(doing: &'static str) -> impl Fn(terrane::Error) -> String {
    move |e| format!("{doing}: {e}")
}

/// Leaves a machine behind as a crash does.
fn abandon(media: &SimMedia, db: Db) {
    media.on_op(None);
    media.shutdown();
    drop(db);
}

/// What it holds, and how many transactions are staged.
fn verified(db: &Db, when: &str) -> Result<(Model, u64), String> {
    let got = contents(db).map_err(|e| format!("reading {when}: {e}"))?;
    let report = db.check(|_| true).map_err(|e| format!("checking {when}: {e}"))?;
    match report.is_clean() {
        true => Ok((got, report.staged)),
        false => Err(format!("check {when} finds {:?}", report.damage)),
    }
}

impl Survivor<'_> {
    /// The machine that comes up.
    pub fn machine(&self) -> Arc<SimMedia> {
        self.stop.crash(&self.point.image, self.seed)
    }

    /// Opens, compares, checks, writes on, stops in some way, opens and compares again.
    pub fn lives(&self) -> Result<Found, String> {
        self.lives_on(self.machine())
    }

    /// As [`Survivor::lives`], on its machine.
    pub fn lives_on(&self, media: Arc<SimMedia>) -> Result<Found, String> {
        let db = self.open(&media, 0)?;
        self.goes_on(media, db, self.stop.is_power())
    }

    /// The `n`th opening.
    fn open(&self, media: &Arc<SimMedia>, n: u64) -> Result<Db, String> {
        open(media, &(self.options)(&mut Rng(self.seed ^ n << 32))).map_err(told("opening"))
    }

    fn goes_on(&self, media: Arc<SimMedia>, db: Db, power: bool) -> Result<Found, String> {
        let (mut model, staged) = verified(&db, "after the crash")?;
        let found = Found { prepared: db.prepared().len() as u64, staged };
        let mut doubt = self.history.allows(&model, &db.prepared(), self.point.reached, power)?;
        let mut rng = Rng(self.seed ^ 0x6c69_7665);
        for (t, held) in model.iter_mut().enumerate() {
            if held.is_none() {
                db.create_subtable(&name(t), options_of(t)).map_err(told("creating a subtable"))?;
                *held = Some(Default::default());
            }
        }
        for _ in 0..4 + rng.below(8) {
            if rng.below(2) == 0
                && let Some((xid, changes)) = doubt.pop_first()
            {
                match rng.below(3) {
                    0 => db.rollback_prepared(&xid).map_err(told("rolling back what was prepared"))?,
                    _ => {
                        db.commit_prepared(&xid, Durability::Buffered)
                            .map_err(told("committing what was prepared"))?;
                        apply(&mut model, &Op::Write { changes, sync: false, by: By::Batch });
                    }
                }
            }
            if rng.below(4) == 0 {
                let (xid, changes) = prepared(&mut rng);
                if let Entry::Vacant(free) = doubt.entry(xid) {
                    prepare(&db, free.key(), &changes).map_err(told("preparing"))?;
                    free.insert(changes);
                }
            }
            let step = op(&mut rng, 120);
            run(&db, &media, &step).map_err(|e| format!("writing on, {step:?}: {e}"))?;
            apply(&mut model, &step);
            if let Op::Recreate(t) = step {
                // What was prepared for it is left out.
                doubt.values_mut().for_each(|changes| changes.retain(|c| c.table() != t));
            }
        }
        let again = match rng.below(4) {
            0 => {
                db.close().map_err(told("closing"))?;
                media.clone()
            }
            1 => {
                let image = media.image();
                abandon(&media, db);
                image.crash(CrashKind::Process, self.seed)
            }
            n => {
                if !in_memory() {
                    db.sync().map_err(told("syncing"))?;
                }
                let image = media.image();
                abandon(&media, db);
                let kind = if n == 2 { CrashKind::PowerLost } else { CrashKind::PowerTorn };
                image.crash(kind, self.seed)
            }
        };
        media.run_all();
        let db = self.open(&again, 1).map_err(|e| format!("the second time: {e}"))?;
        let (got, _) = verified(&db, "the second time")?;
        if !db.prepared().iter().eq(doubt.keys()) {
            return Err(format!("prepared are {:?}, wanted {:?}", db.prepared(), doubt.keys()));
        }
        abandon(&again, db);
        media.shutdown();
        match difference(&got, &model) {
            None => Ok(found),
            Some(d) => Err(format!("after writing on: {d}")),
        }
    }

    /// Crashes once, then `times` times more, each time at some call of the recovery, and then lives.
    pub fn crashes_in_a_row(&self, times: u64) -> Result<Found, String> {
        let mut rng = Rng(self.seed ^ 0x726f_7721);
        let mut media = self.stop.crash(&self.point.image, self.seed);
        let mut power = self.stop.is_power();
        let mut so_far = String::new();
        for n in 0..times {
            let pictures = self.recovery(&media, 1, rng.next()).map_err(|e| format!("{so_far}{e}"))?;
            let Some((call, image)) = pictures.first() else { break };
            let kind = crash_kind(&mut rng);
            so_far += &format!("crashed again at call {call} of recovery {n}, {kind:?}: ");
            power |= is_power(kind);
            media = image.crash(kind, rng.next());
        }
        let db = self.open(&media, times).map_err(|e| format!("{so_far}{e}"))?;
        self.goes_on(media, db, power).map_err(|e| format!("{so_far}{e}"))
    }

    /// Crashes at some calls of the recovery, twice over, and then lives. Returns how many crashes that were.
    pub fn crashes_again(&self) -> Result<u64, String> {
        let images = self.recovery(&self.stop.crash(&self.point.image, self.seed), usize::MAX, 0)?;
        let mut rng = Rng(self.seed ^ 0x6167_6169);
        let mut crashes = 0;
        for (n, image) in &images {
            let kind = crash_kind(&mut rng);
            let seed = rng.next();
            let told =
                |e| format!("crashed again at call {n} of the recovery, {kind:?}, crash seed {seed}: {e}");
            let media = image.crash(kind, seed);
            let mut power = self.stop.is_power() || is_power(kind);
            crashes += 1;
            let (media, db) = match rng.below(4) {
                0 => {
                    let third = self.recovery(&media, 1, rng.next()).map_err(told)?;
                    let Some((_, image)) = third.first() else { continue };
                    let kind = crash_kind(&mut rng);
                    power |= is_power(kind);
                    crashes += 1;
                    let media = image.crash(kind, rng.next());
                    let db =
                        self.open(&media, 2).map_err(|e| told(format!("and once more, {kind:?}: {e}")))?;
                    (media, db)
                }
                _ => {
                    let db = self.open(&media, 2).map_err(told)?;
                    (media, db)
                }
            };
            self.goes_on(media, db, power).map_err(told)?;
        }
        Ok(crashes)
    }

    /// Opens the database; pictures of `room` of the calls that does, by number.
    fn recovery(&self, media: &Arc<SimMedia>, room: usize, seed: u64) -> Result<Vec<(u64, Image)>, String> {
        let pictures = Arc::new(Mutex::new(Sample::new(room, seed)));
        let sink = pictures.clone();
        media.on_op(Some(Arc::new(move |m, info| sink.lock().offer(|| (info.index, m.image())))));
        let db = self.open(media, seed)?;
        abandon(media, db);
        Ok(pictures.lock().take())
    }
}
