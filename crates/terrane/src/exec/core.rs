//! A core: a thread bound to a processor that carries out what comes through its rings, turn by turn.
//!
//! A turn takes what each lane has, up to a bound; looks up all keys that were asked for together, so that they wait for memory at the same
//! time ([`crate::read::turns`]); runs the work that was sent; and asks its pollers.
//!
//! # Nothing shared is written
//! The thread *stays* inside of the epochs and renews its stay between turns, and before each poller and lookup of theirs, so guards cost
//! it no atomic read-modify-write and no fence ([`terrane_base::reclaim`]); for work that was sent, which may wait for locks or for a
//! flush, it leaves; it keeps the states of the subtables that it reads, and looks at one word of each to see whether they are still the
//! newest ([`terrane_base::Current::refresh`]). Flushes, merges and writes come from outside and put new states in place. What it brings
//! into the cache lies in a part with books of its own, in which other cores have no business. What it keeps would keep memtables and
//! extents from being freed: every [`SWEEP`] turns it lets go of what is outdated, and of all of it before it sleeps.
//!
//! # What memory does not hold
//! is read by background tasks, which send the answers ([`late`](super::late)): a core goes on meanwhile.

use std::fmt;
use std::ops::Range;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use terrane_base::reclaim::Stay;
use terrane_base::waiter::unharmed;
use terrane_base::{Error, Result, SubtableId};
use terrane_format::Kind;

use crate::Subtable;
use crate::exec::balance::{Load, Served};
use crate::exec::lane::{CoreEnd, Lane};
use crate::exec::late;
use crate::exec::request::{Answer, Request};
use crate::exec::shared::{Arrival, Seat, Shared};
use crate::read::kept::KeptStates;
use crate::read::lookup::View;
use crate::read::turns::{self, Said};

/// Takes nothing any more once this is dropped.
struct Closing<'s>(&'s Seat);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        drop(self.0.close());
    }
}

/// So full may memory be before cores let go of it each time they do what is sent to them.
const SHORT: f64 = 0.3;

/// Requests that a turn takes of each lane.
const TAKE: usize = 64;
/// A value above that is kept by itself until it is answered.
const LARGE: usize = 4 << 10;
/// Most memory that is kept for the other values of a turn.
const KEEP_VALUES: usize = 1 << 20;
/// Turns without anything to do before a core sleeps: some microseconds.
const SPINS: u32 = 200;
/// Turns after which a core lets go of states that are outdated, and looks at the time.
const SWEEP: u32 = 1024;
/// How often it reports what it has done.
const REPORT: Duration = Duration::from_millis(100);

/// Runs on a core again and again; see [`crate::Executor::poll_on`].
pub(super) type Poller = Box<dyn FnMut(&mut Core<'_>) -> Polled + Send>;

/// What a poller says.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// It has done something and wants to be asked again at once.
    Again,
    /// There was nothing to do: the core may sleep until a request comes, or [`crate::Executor::wake`].
    Idle,
    /// It is not to be asked any more.
    Done,
}

/// A core, as the work that runs on it sees it.
pub struct Core<'e> {
    shared: &'e Arc<Shared>,
    number: usize,
    /// None while it sleeps, and in work that does not read.
    stay: Option<Stay<'e>>,
    tables: KeptStates<Served>,
    load: Load,
}

impl<'e> Core<'e> {
    /// Its number, from 0.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Whether it owns `key`. Any core may read and write any key: the owner has it in its processor's caches.
    pub fn owns(&self, table: &Subtable, key: &[u8]) -> bool {
        self.shared.placement.load().owner(table.table().id, key) == self.number
    }

    /// Calls `f` with the value of `key`, if it has one: as [`Subtable::get_with`], but that nothing is written that other threads read or
    /// write, if memory holds what is needed. If not it blocks, and the core with it.
    ///
    /// # Errors
    /// As for [`Subtable::get_with`]; [`crate::ErrorKind::InvalidArgument`] for a subtable of another database.
    pub fn get_with<R>(
        &mut self,
        table: &Subtable,
        key: &[u8],
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        let engine = &self.shared.engine;
        engine.check_is_own(table.table())?;
        self.stay();
        let (kept, served) = self.tables.of(table.table());
        served.count(key);
        self.load.count();
        kept.get_with(engine, key, f)
    }

    /// The value of `key`, as [`Core::get_with`].
    ///
    /// # Errors
    /// As for [`Core::get_with`].
    pub fn get(&mut self, table: &Subtable, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.get_with(table, key, <[u8]>::to_vec)
    }

    /// A lane from this core to all, for a poller that needs what others own. It takes answers when it is asked again, and never waits.
    ///
    /// # Errors
    /// As for [`crate::Executor::lane`].
    pub fn lane(&self, depth: usize) -> Result<Lane> {
        Lane::new(self.shared.clone(), depth)
    }

    /// Stays inside, and holds nothing of what was read before.
    #[inline]
    fn stay(&mut self) {
        self.stay.get_or_insert_with(|| self.shared.engine.clock.stay()).renew();
    }

    /// Tells the balance what was done, if it is time.
    fn report(&mut self) {
        let now = self.shared.engine.media.now();
        if let Some(total) = self.load.take(now, REPORT) {
            let tables = self.tables.notes().map(|(id, served)| (id, served.take())).collect();
            match self.shared.balance.report(self.number, total, tables, &self.shared.placement) {
                true => self.shared.owners_changed(),
                false => self.shared.forget_dropped(),
            }
        }
    }
}

impl fmt::Debug for Core<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("number", &self.number).finish_non_exhaustive()
    }
}

/// What a lookup of a turn came to.
enum Reply {
    /// Not all that is needed is in memory.
    Lacking,
    /// This part of the turn's values, if there is a value.
    Value(Option<Range<usize>>),
    /// A value that is too large to be copied twice.
    Large(Vec<u8>),
    Failed(Error),
}

/// The requests of a turn, with those that follow one another for the same subtable together.
fn by_table(batch: &[(usize, Request)]) -> impl Iterator<Item = (SubtableId, &[(usize, Request)])> {
    let groups = batch.chunk_by(|(_, a), (_, b)| a.table == b.table);
    groups.filter_map(|group| Some((group.first()?.1.table, group)))
}

/// A core at work.
pub(super) struct Running<'e> {
    core: Core<'e>,
    lanes: Vec<CoreEnd>,
    pollers: Vec<Poller>,
    /// Lookups of the turn, with the place of their lane.
    batch: Vec<(usize, Request)>,
    said: Vec<Reply>,
    /// Values that they refer to.
    values: Vec<u8>,
    /// Requests that wait for the medium.
    late: usize,
    turns: u32,
}

impl<'e> Running<'e> {
    pub(super) fn new(shared: &'e Arc<Shared>, number: usize) -> Self {
        let core = Core { shared, number, stay: None, tables: KeptStates::new(), load: Load::default() };
        Running {
            core,
            lanes: Vec::new(),
            pollers: Vec::new(),
            batch: Vec::new(),
            said: Vec::new(),
            values: Vec::new(),
            late: 0,
            turns: 0,
        }
    }

    /// Goes on until the executor ends and all that is under way is answered.
    pub(super) fn run(mut self) {
        let shared = self.core.shared;
        // However it ends, nothing comes to it any more. Lanes that arrive too late learn that from their end being dropped.
        let seat = &shared.cores[self.core.number];
        let _closed = Closing(seat);
        let mut idle = 0;
        loop {
            self.core.stay();
            let ending = shared.ending.load(Ordering::Acquire);
            if self.turn(ending) {
                idle = 0;
                continue;
            }
            if ending && self.late == 0 {
                break;
            }
            idle += 1;
            if idle < SPINS {
                std::hint::spin_loop();
                continue;
            }
            self.core.stay = None;
            self.core.tables.let_go(true);
            self.core.report();
            // (It waits for ever only on a simulated machine, and on that there is no such thread.)
            let woken = seat.sleeper.sleep(&*shared.engine.media, || {
                self.lanes.iter().any(|lane| !lane.requests.is_empty())
                    || (self.late == 0 && shared.ending.load(Ordering::Acquire))
            });
            if woken.is_err() {
                break;
            }
            idle = 0;
        }
    }

    /// Does what there is to do; whether that was anything.
    fn turn(&mut self, ending: bool) -> bool {
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(SWEEP) {
            self.core.tables.let_go(false);
            self.core.report();
            // What was asked before the client went is carried out.
            self.lanes.retain(|lane| !lane.is_abandoned() || !lane.requests.is_empty());
        }
        let mut busy = self.arrivals();
        for at in 0..self.lanes.len() {
            for _ in 0..TAKE {
                let Ok(request) = self.lanes[at].requests.pop() else { break };
                busy = true;
                match request.work {
                    None => self.batch.push((at, request)),
                    Some(_) => {
                        // In the order in which they were made. It may wait for somebody who waits for an answer.
                        self.look_up();
                        self.tell();
                        self.work(at, request);
                    }
                }
            }
        }
        self.look_up();
        self.tell();
        if !ending {
            busy |= self.poll();
        }
        busy
    }

    /// Tells clients of answers.
    fn tell(&mut self) {
        self.lanes.iter_mut().for_each(CoreEnd::tell);
    }

    fn arrivals(&mut self) -> bool {
        let seat = &self.core.shared.cores[self.core.number];
        if !seat.sleeper.heed() {
            return false;
        }
        for arrival in seat.take() {
            match arrival {
                Arrival::Lane(end) => self.lanes.push(end),
                Arrival::Poller(poller) => self.pollers.push(poller),
                Arrival::Late(answers) => {
                    self.late -= answers.len();
                    for (number, answer) in answers {
                        // The client may have gone.
                        if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.number == number) {
                            lane.answer(answer);
                        }
                    }
                }
            }
        }
        true
    }

    /// Asks the pollers; whether one has done something.
    fn poll(&mut self) -> bool {
        let (mut busy, mut at) = (false, 0);
        while let Some(poller) = self.pollers.get_mut(at) {
            self.core.stay();
            let core = &mut self.core;
            // Who panics is not asked again.
            let polled = unharmed(|| poller(core)).unwrap_or(Polled::Done);
            busy |= polled == Polled::Again;
            match polled {
                Polled::Done => {
                    let done = self.pollers.remove(at);
                    unharmed(|| drop(done));
                }
                Polled::Again | Polled::Idle => at += 1,
            }
        }
        busy
    }

    fn work(&mut self, lane: usize, Request { token, table, key, work }: Request) {
        let Some(work) = work else { return };
        if let Ok((_, served)) = self.core.tables.by_id(table, &self.core.shared.engine) {
            served.count(&key);
        }
        self.core.load.count();
        // It may take its time, and wait for memory that states keep.
        self.core.stay = None;
        if self.core.shared.engine.memory.fullness() > SHORT {
            self.core.tables.let_go(true);
        }
        let core = &mut self.core;
        let outcome = unharmed(|| work(core, &key)).unwrap_or_else(|| {
            Err(Error::invalid("the work that was sent to a core panicked")
                .with_hint("the panic was reported"))
        });
        self.lanes[lane].answer(Answer::new(token, key, outcome));
        self.core.stay();
    }

    /// Looks up all keys of the batch together.
    fn look_up(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let core = &mut self.core;
        self.said.clear();
        for (table, of_table) in by_table(&self.batch) {
            let alive = core.tables.by_id(table, &core.shared.engine).and_then(|(kept, served)| {
                of_table.iter().for_each(|(_, request)| served.count(&request.key));
                kept.refresh();
                // After the state was taken: that of a dropped table may be the empty one.
                kept.table().check_alive()
            });
            self.said.extend(of_table.iter().map(|_| {
                core.load.count();
                alive.as_ref().err().map_or(Reply::Lacking, |e| Reply::Failed(e.clone()))
            }));
        }
        let engine = &*core.shared.engine;
        // After the states.
        let seq = engine.visible();
        let (said, values) = (&mut self.said, &mut self.values);
        let mut keys = Vec::with_capacity(self.batch.len());
        let mut replies = said.iter().enumerate();
        for (table, of_table) in by_table(&self.batch) {
            let state = core.tables.get(table).and_then(|(kept, _)| kept.state());
            for ((_, request), (at, reply)) in of_table.iter().zip(&mut replies) {
                if let (Some(state), Reply::Lacking) = (state, reply) {
                    let view =
                        View { state, cache: &engine.cache, heat: &engine.heat, rows: engine.rows.as_ref() };
                    keys.push((at, view, &request.key[..]));
                }
            }
        }
        // Those of one table together: they take turns.
        keys.sort_by_key(|(_, view, _)| ptr::from_ref(view.state).addr());
        let hold = engine.cache.hold();
        turns::look_up(&hold, seq, keys.into_iter(), |at, outcome| {
            said[at] = match outcome {
                Ok(Said::Value(None)) => Reply::Value(None),
                Ok(Said::Value(Some((kind, value)))) if kind != Kind::ValueRef => {
                    if value.len() > LARGE {
                        said[at] = Reply::Large(value.into_owned());
                        return;
                    }
                    let start = values.len();
                    values.extend_from_slice(&value);
                    Reply::Value(Some(start..values.len()))
                }
                Ok(_) => return,
                Err(e) => Reply::Failed(e),
            };
        });
        drop(hold);
        let mut lacking = Vec::new();
        for ((lane, request), said) in self.batch.drain(..).zip(self.said.drain(..)) {
            let lane = &mut self.lanes[lane];
            let outcome = match said {
                Reply::Value(value) => Ok(value.map(|at| &self.values[at])),
                Reply::Large(value) => {
                    lane.answer(Answer { token: request.token, outcome: Ok(true), value });
                    continue;
                }
                Reply::Failed(e) => Err(e),
                Reply::Lacking => {
                    lacking.push((lane.number, request));
                    continue;
                }
            };
            lane.answer(Answer::new(request.token, request.key, outcome));
        }
        self.values.clear();
        self.values.shrink_to(KEEP_VALUES);
        if !lacking.is_empty() {
            self.late += lacking.len();
            late::look_up(core.shared, core.number, lacking);
        }
    }
}
