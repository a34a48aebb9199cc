//! The machine that comes up after a crash, and what must be true of the database on it.

use std::sync::Arc;

use parking_lot::Mutex;
use terrane::media::Media;
use terrane::media::sim::{CrashKind, Image, SimMedia};
use terrane::{Db, Durability};

use crate::history::{History, Point};
use crate::support::*;

/// One crash of a history.
#[derive(Clone, Copy)]
pub struct Survivor<'a> {
    pub history: &'a History,
    pub point: &'a Point,
    pub kind: CrashKind,
    pub seed: u64,
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

fn verified(db: &Db, when: &str) -> Result<Model, String> {
    let got = contents(db).map_err(|e| format!("reading {when}: {e}"))?;
    let report = db.check(|_| true).map_err(|e| format!("checking {when}: {e}"))?;
    match report.is_clean() {
        true => Ok(got),
        false => Err(format!("check {when} finds {:?}", report.damage)),
    }
}

impl Survivor<'_> {
    /// Opens, compares, checks, writes on, stops in some way, opens and compares again.
    pub fn lives(&self) -> Result<(), String> {
        let media = self.point.image.crash(self.kind, self.seed);
        let db = open(&media, &tiny()).map_err(told("opening"))?;
        self.goes_on(media, db, is_power(self.kind))
    }

    fn goes_on(&self, media: Arc<SimMedia>, db: Db, power: bool) -> Result<(), String> {
        let mut model = verified(&db, "after the crash")?;
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
            let step = op(&mut rng, 120);
            run(&db, &media, &step).map_err(|e| format!("writing on, {step:?}: {e}"))?;
            apply(&mut model, &step);
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
                db.sync().map_err(told("syncing"))?;
                let image = media.image();
                abandon(&media, db);
                let kind = if n == 2 { CrashKind::PowerLost } else { CrashKind::PowerTorn };
                image.crash(kind, self.seed)
            }
        };
        media.run_all();
        let db = open(&again, &tiny()).map_err(told("opening the second time"))?;
        let got = verified(&db, "the second time")?;
        if !db.prepared().iter().eq(doubt.keys()) {
            return Err(format!("prepared are {:?}, wanted {:?}", db.prepared(), doubt.keys()));
        }
        abandon(&again, db);
        media.shutdown();
        match difference(&got, &model) {
            None => Ok(()),
            Some(d) => Err(format!("after writing on: {d}")),
        }
    }

    /// Crashes at some calls of the recovery, twice over, and then lives. Returns how many crashes that were.
    pub fn crashes_again(&self) -> Result<u64, String> {
        let images = self.recovery(&self.point.image.crash(self.kind, self.seed))?;
        let mut rng = Rng(self.seed ^ 0x6167_6169);
        let mut crashes = 0;
        for (n, image) in images.iter().enumerate() {
            let kind = CrashKind::ALL[rng.below(5) as usize];
            let seed = rng.next();
            let told =
                |e| format!("crashed again at call {n} of the recovery, {kind:?}, crash seed {seed}: {e}");
            let media = image.crash(kind, seed);
            let mut power = is_power(self.kind) || is_power(kind);
            crashes += 1;
            let (media, db) = match rng.below(4) {
                0 => {
                    let third = self.recovery(&media).map_err(told)?;
                    let Some(image) = third.get(rng.below(third.len() as u64) as usize) else { continue };
                    let kind = CrashKind::ALL[rng.below(5) as usize];
                    power |= is_power(kind);
                    crashes += 1;
                    let media = image.crash(kind, rng.next());
                    let db =
                        open(&media, &tiny()).map_err(|e| told(format!("and once more, {kind:?}: {e}")))?;
                    (media, db)
                }
                _ => {
                    let db = open(&media, &tiny()).map_err(|e| told(e.to_string()))?;
                    (media, db)
                }
            };
            self.goes_on(media, db, power).map_err(told)?;
        }
        Ok(crashes)
    }

    /// Opens the database; a picture of each call that does.
    fn recovery(&self, media: &Arc<SimMedia>) -> Result<Vec<Image>, String> {
        let images = Arc::new(Mutex::new(Vec::new()));
        let sink = images.clone();
        media.on_op(Some(Arc::new(move |m, _| sink.lock().push(m.image()))));
        let db = open(media, &tiny()).map_err(told("opening"))?;
        abandon(media, db);
        Ok(std::mem::take(&mut images.lock()))
    }
}
