//! A history that is photographed before every I/O call, and what may be found after a crash at each of them.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use parking_lot::Mutex;
use terrane::media::Media;
use terrane::media::sim::{Image, OpInfo, OpKind, SimMedia};
use terrane::{Db, Durability, Isolation, Options};

use crate::sample::Sample;
use crate::support::*;

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a subtable held at some moment.
#[derive(Clone, Debug)]
struct Held {
    rows: Arc<Rows>,
    hash: u64,
    /// The step that created the subtable.
    born: usize,
}

/// What the database held after a step.
#[derive(Clone, Debug)]
struct State {
    tables: Vec<Option<Held>>,
    /// Prepared transactions: by xid what each would change, as the subtables were born.
    doubt: BTreeMap<Vec<u8>, Arc<Vec<(Change, usize)>>>,
}

/// How far a history had come at a crash point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reached {
    /// Steps up to here had returned.
    pub done: usize,
    /// Steps up to here had returned or were under way.
    pub begun: usize,
    /// Steps up to here survive a power failure.
    pub synced: usize,
}

/// One I/O call of a history.
#[derive(Clone, Debug)]
pub struct Point {
    pub image: Image,
    pub index: u64,
    pub kind: OpKind,
    /// The call, for messages.
    pub call: String,
    pub reached: Reached,
}

/// How a history goes.
#[derive(Clone, Debug)]
pub struct Course {
    pub seed: u64,
    pub ops: u64,
    pub keys: u64,
    pub options: Options,
    /// Of eight commits so many are synced.
    pub synced: u64,
    /// So many of its calls become points, and as many of those made by the steps that do not end with an entry in
    /// the log: of those the log alone has by far the most.
    pub points: usize,
    /// It begins with a memtable that fills up.
    pub fills: bool,
}

/// What kinds of steps there were, and how often.
pub type Counts = BTreeMap<&'static str, u64>;

/// Everything a history went through.
#[derive(Debug)]
pub struct History {
    pub seed: u64,
    pub points: Vec<Point>,
    /// All its calls that change something, points or not.
    pub calls: u64,
    pub counts: Counts,
    states: Vec<State>,
}

/// What a step that changes something does.
enum Step<'a> {
    Write(&'a Op),
    /// Commits what was written some steps before.
    Finish(Written, &'a [Change], Durability),
    Prepare(&'a [u8], &'a [Change]),
    /// Ends what was prepared.
    Commit(&'a [u8], Durability),
    Rollback(&'a [u8]),
    Drop(usize),
    Create(usize),
}

fn hash(rows: &Rows) -> u64 {
    let mut h = DefaultHasher::new();
    rows.hash(&mut h);
    h.finish()
}

impl State {
    fn change(&mut self, changes: &[Change]) {
        let mut model: Model = vec![None; TABLES];
        for table in changes.iter().map(Change::table) {
            if model[table].is_none() {
                model[table] = self.tables[table].as_ref().map(|h| (*h.rows).clone());
            }
        }
        apply(&mut model, &Op::Write { changes: changes.to_vec(), sync: false, by: By::Batch });
        for (held, rows) in self.tables.iter_mut().zip(model) {
            if let (Some(held), Some(rows)) = (held, rows) {
                held.hash = hash(&rows);
                held.rows = Arc::new(rows);
            }
        }
    }
}

impl Step<'_> {
    /// Whether an entry in the log alone may make it happen.
    fn is_logged(&self) -> bool {
        match self {
            Step::Write(Op::Write { by, .. }) => *by == By::Batch,
            _ => false,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Step::Write(Op::Write { by: By::Ingest, .. }) => "ingests",
            Step::Write(Op::Write { by: By::Batch, .. }) => "batches",
            Step::Write(_) => "transactions",
            Step::Finish(..) => "transactions, overtaken",
            Step::Prepare(..) => "prepared",
            Step::Commit(..) => "prepared, committed",
            Step::Rollback(_) => "prepared, rolled back",
            Step::Drop(_) => "subtables dropped",
            Step::Create(_) => "subtables created",
        }
    }
}

/// What is shared with the hook.
struct Recorder {
    reached: Reached,
    /// The step under way is more than an entry in the log.
    special: bool,
    points: Sample<Point>,
    special_points: Sample<Point>,
}

impl Recorder {
    fn new(course: &Course) -> Self {
        Recorder {
            reached: Reached { done: 0, begun: 0, synced: 0 },
            special: false,
            points: Sample::new(course.points, course.seed),
            special_points: Sample::new(course.points, !course.seed),
        }
    }

    fn call(&mut self, media: &SimMedia, info: &OpInfo<'_>) {
        let reached = self.reached;
        let point = || {
            let call = format!("{:?} {}", info.kind, info.path.display());
            Point { image: media.image(), index: info.index, kind: info.kind, call, reached }
        };
        match self.special {
            true => self.special_points.offer(point),
            false => self.points.offer(point),
        }
    }

    fn all_points(&mut self) -> Vec<Point> {
        let mut all = self.points.take();
        all.append(&mut self.special_points.take());
        all.sort_by_key(|p| p.index);
        all
    }
}

/// Whether a memtable waits to be written out.
fn has_frozen(db: &Db) -> bool {
    db.stats().subtables.iter().any(|t| t.memtables > 1)
}

/// A random step of a history, synced as often as that wants it.
fn next(rng: &mut Rng, course: &Course) -> Op {
    let mut next = op(rng, course.keys);
    if let Op::Write { sync, by, .. } = &mut next
        && *by != By::Ingest
    {
        *sync = rng.below(8) < course.synced;
    }
    next
}

fn durability(rng: &mut Rng) -> (Durability, bool) {
    match rng.below(2) {
        0 => (Durability::Buffered, false),
        _ => (Durability::Sync, true),
    }
}

/// What nobody else writes, so that it may take its time.
fn overtaken(rng: &mut Rng) -> Vec<Change> {
    let n = 1 + rng.below(12);
    let mut change = |_| {
        let table = rng.below(TABLES as u64) as usize;
        let key = format!("q{}", rng.below(20)).into_bytes();
        match rng.below(5) {
            0 => Change::Delete { table, key },
            _ => Change::Put { table, key, value: vec![rng.next() as u8; rng.below(600) as usize] },
        }
    };
    (0..n).map(&mut change).collect()
}

impl History {
    /// Runs a random history from the very first call that creates the database to the last of its closing.
    pub fn record(course: &Course) -> Result<History, String> {
        let &Course { seed, ops, ref options, .. } = course;
        let err = |e: terrane::Error| format!("seed {seed}: the history itself failed: {e}");
        let recorder = Arc::new(Mutex::new(Recorder::new(course)));
        let media = SimMedia::new(seed);
        let hook = {
            let recorder = recorder.clone();
            move |m: &SimMedia, info: &OpInfo<'_>| recorder.lock().call(m, info)
        };
        media.on_op(Some(Arc::new(hook)));
        let mut history = History {
            seed,
            points: Vec::new(),
            calls: 0,
            counts: Counts::new(),
            states: vec![State { tables: vec![None; TABLES], doubt: BTreeMap::new() }],
        };
        let db = open(&media, options).map_err(err)?;
        let mut rng = Rng(seed);
        let at = |step: Step<'_>, sync: bool, history: &mut History| {
            history.states.push(history.after(&step));
            *history.counts.entry(step.kind()).or_default() += 1;
            {
                let mut r = recorder.lock();
                r.reached.begun += 1;
                r.special = !step.is_logged();
            }
            match step {
                Step::Write(op) => run(&db, &media, op)?,
                Step::Finish(written, _, durability) => drop(written.commit(&db, durability)?),
                Step::Prepare(xid, changes) => prepare(&db, xid, changes)?,
                Step::Commit(xid, durability) => db.commit_prepared(xid, durability).map(drop)?,
                Step::Rollback(xid) => db.rollback_prepared(xid)?,
                Step::Drop(t) => db.drop_subtable(&name(t))?,
                Step::Create(t) => db.create_subtable(&name(t), options_of(t)).map(drop)?,
            }
            let mut r = recorder.lock();
            r.special = false;
            r.reached.done = r.reached.begun;
            if sync {
                r.reached.synced = r.reached.done;
            }
            Ok(())
        };
        for t in 0..TABLES {
            at(Step::Create(t), true, &mut history).map_err(err)?;
        }
        // Later on, large transactions and loads have memtables written out before they are full.
        while course.fills && !has_frozen(&db) && history.states.len() < 200 {
            let n = history.states.len();
            let put =
                |i| Change::Put { table: 0, key: format!("f{n}{i}").into_bytes(), value: vec![i; 2400] };
            let changes = (0..3).map(put).collect();
            at(Step::Write(&Op::Write { changes, sync: false, by: By::Batch }), false, &mut history)
                .map_err(err)?;
            *history.counts.entry("memtables frozen").or_default() += u64::from(has_frozen(&db));
        }
        let mut held: Option<(Written, Vec<Change>)> = None;
        for _ in 0..ops {
            // A transaction that others overtake. What it has spilled is nobody's meanwhile.
            held = match held {
                None if rng.below(12) == 0 => {
                    let changes = overtaken(&mut rng);
                    let written = write(&db, &changes, By::Transaction(Isolation::Snapshot)).map_err(err)?;
                    Some((written, changes))
                }
                Some((written, changes)) if rng.below(6) == 0 => {
                    let (durability, sync) = durability(&mut rng);
                    at(Step::Finish(written, &changes, durability), sync, &mut history).map_err(err)?;
                    None
                }
                other => other,
            };
            // A life between the two phases, and ends in any order.
            if rng.below(12) == 0 {
                let (xid, changes) = prepared(&mut rng);
                if !history.states[history.states.len() - 1].doubt.contains_key(&xid) {
                    at(Step::Prepare(&xid, &changes), true, &mut history).map_err(err)?;
                }
            }
            let open: Vec<Vec<u8>> = history.states[history.states.len() - 1].doubt.keys().cloned().collect();
            if !open.is_empty() && rng.below(16) == 0 {
                let xid = &open[rng.below(open.len() as u64) as usize];
                let (durability, sync) = durability(&mut rng);
                match rng.below(3) {
                    0 => at(Step::Rollback(xid), true, &mut history).map_err(err)?,
                    _ => at(Step::Commit(xid, durability), sync, &mut history).map_err(err)?,
                }
            }
            // Changes of the schema more often than other histories have them: much hangs on their order.
            let step = match rng.below(12) {
                0 => Op::Recreate(rng.below(TABLES as u64) as usize),
                _ => next(&mut rng, course),
            };
            match step {
                ref w @ Op::Write { sync, .. } => at(Step::Write(w), sync, &mut history).map_err(err)?,
                Op::Recreate(t) => {
                    // It could not be committed.
                    held = held.filter(|(_, changes)| changes.iter().all(|c| c.table() != t));
                    at(Step::Drop(t), true, &mut history).map_err(err)?;
                    // Life goes on without it for a while.
                    for _ in 0..rng.below(3) {
                        let Op::Write { mut changes, sync, by } = next(&mut rng, course) else { continue };
                        changes.retain(|c| c.table() != t);
                        if changes.is_empty() && by == By::Ingest {
                            continue;
                        }
                        let w = Op::Write { changes, sync, by };
                        at(Step::Write(&w), sync, &mut history).map_err(err)?;
                    }
                    at(Step::Create(t), true, &mut history).map_err(err)?;
                }
                Op::Sync => {
                    run(&db, &media, &Op::Sync).map_err(err)?;
                    let mut r = recorder.lock();
                    r.reached.synced = r.reached.done;
                }
                other => run(&db, &media, &other).map_err(err)?,
            }
        }
        drop(held);
        let stats = db.stats();
        history.counts.extend([("runs attached", stats.attached), ("flushes", stats.flushes)]);
        history.counts.insert("compactions", stats.compactions);
        db.close().map_err(err)?;
        media.on_op(None);
        media.shutdown();
        history.calls = media.op_count();
        history.points = recorder.lock().all_points();
        Ok(history)
    }

    /// The state after one more step.
    fn after(&self, step: &Step<'_>) -> State {
        let mut state = self.states[self.states.len() - 1].clone();
        match step {
            Step::Drop(t) => state.tables[*t] = None,
            Step::Create(t) => {
                let rows = Arc::new(Rows::new());
                state.tables[*t] = Some(Held { hash: hash(&rows), rows, born: self.states.len() });
            }
            Step::Write(Op::Write { changes, .. }) => state.change(changes),
            Step::Finish(_, changes, _) => state.change(changes),
            Step::Write(_) => {}
            Step::Prepare(xid, changes) => {
                let born = |c: &Change| state.tables[c.table()].as_ref().map(|held| held.born);
                let changes = changes.iter().filter_map(|c| Some((c.clone(), born(c)?))).collect();
                state.doubt.insert(xid.to_vec(), Arc::new(changes));
            }
            Step::Commit(xid, _) => {
                let changes = state.doubt.remove(*xid).unwrap_or_default();
                let alive = |(c, born): &(Change, usize)| {
                    state.tables[c.table()].as_ref().is_some_and(|held| held.born == *born).then(|| c.clone())
                };
                let changes: Vec<Change> = changes.iter().filter_map(alive).collect();
                state.change(&changes);
            }
            Step::Rollback(xid) => drop(state.doubt.remove(*xid)),
        }
        state
    }

    /// Whether `got` may be found after a crash. A process that dies loses nothing that returned; a power failure loses
    /// at most a suffix of the commits that were not synced. Creating and dropping a subtable syncs what came before. Of those
    /// prepared transactions that are there still (`xids`), gives what each would change.
    pub fn allows(
        &self,
        got: &Model,
        xids: &[Vec<u8>],
        reached: Reached,
        power: bool,
    ) -> Result<BTreeMap<Vec<u8>, Vec<Change>>, String> {
        let hashes: Vec<Option<u64>> = got.iter().map(|t| t.as_ref().map(hash)).collect();
        // In persistent memory what has returned is durable.
        let first = if power && !in_memory() { reached.synced } else { reached.done };
        for schema in (reached.done..=reached.begun).rev() {
            let matches = |commits: &usize| {
                self.states[*commits].doubt.keys().eq(xids)
                    && (0..TABLES).all(|t| self.held(t, *commits, schema).map(|h| h.hash) == hashes[t])
            };
            if let Some(commits) = (first..=schema).rev().find(matches) {
                let tables = &self.states[schema].tables;
                let alive = |(c, born): &(Change, usize)| {
                    tables[c.table()].as_ref().is_some_and(|held| held.born == *born).then(|| c.clone())
                };
                let doubt = self.states[commits].doubt.iter();
                return Ok(doubt.map(|(x, c)| (x.clone(), c.iter().filter_map(alive).collect())).collect());
            }
        }
        let wanted = |commits: usize| -> Model {
            (0..TABLES).map(|t| self.held(t, commits, reached.done).map(|h| (*h.rows).clone())).collect()
        };
        // Say for each subtable alone which prefixes would explain it.
        let alone: Vec<String> = (0..TABLES)
            .map(|t| {
                let fits = (0..self.states.len())
                    .filter(|p| self.held(t, *p, reached.done.max(*p)).map(|h| h.hash) == hashes[t]);
                let fits: Vec<usize> = fits.collect();
                format!("t{t} as after {:?}..{:?}", fits.first(), fits.last())
            })
            .collect();
        Err(format!(
            "no prefix from {first} explains it ({reached:?}; prepared {xids:?}; {}): {}",
            alone.join(", "),
            difference(got, &wanted(reached.done)).unwrap_or_default()
        ))
    }

    /// A subtable as a crash leaves it that keeps the commits before `commits` and the schema after step `schema`.
    fn held(&self, table: usize, commits: usize, schema: usize) -> Option<&Held> {
        let born = self.states[schema].tables[table].as_ref()?.born;
        self.states[commits.max(born)].tables[table].as_ref()
    }
}
