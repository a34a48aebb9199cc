//! A client's way to the cores: for each of them a ring of requests and one of answers, which nobody else uses.
//!
//! # Concurrency
//! A ring has one producer and one consumer (rtrb): a request costs a store with release and a load with acquire, no atomic
//! read-modify-write. Who may sleep has to be woken: that takes a fence, on the client's side for each call, however many keys that is for,
//! and on the core's once for all answers of a turn.
//!
//! *The end.* A core that leaves sets `left` of each of its lanes (Release), when it has answered all it will, and then wakes the client. The
//! client reads it (Acquire) only where it would wait or ask: who sees it sees all answers that there will ever be.
//!
//! *Back-pressure.* A lane has no more requests under way at a core than its rings hold, counting answers that were not taken. So a core
//! always has room for an answer, and never waits for a client.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rtrb::{Consumer, Producer, RingBuffer};
use terrane_base::{Error, ErrorKind, Kept, Result};
use terrane_media::Signal;

use crate::Subtable;
use crate::exec::core::Core;
use crate::exec::placement::Placement;
use crate::exec::request::{Answer, Request, Work};
use crate::exec::shared::{Arrival, Shared};

/// How often a client that waits looks before it sleeps.
const LOOKS: usize = 64;

/// Most requests under way at one core.
const MAX_DEPTH: usize = 1 << 16;

/// Most memory that a lane keeps of a key or value, for the next ones.
const KEEP_BYTES: usize = 4 << 10;

/// A client's rings to all cores of an executor; see [`crate::Executor::lane`]. One thread uses it at a time.
///
/// Requests of one lane for keys of one core are carried out in the order in which they were made, and each sees what those before it have
/// written, and nothing of those behind it; but a read that has to wait for the medium is answered later than what follows it. When a lane
/// is dropped, what it has asked for is carried out all the same, and nobody is told.
///
/// A core must not wait for a lane, [`Lane::wait`]: what it waits for may be its own to do.
pub struct Lane {
    shared: Arc<Shared>,
    ends: Vec<ClientEnd>,
    signal: Arc<Signal>,
    placement: Option<Kept<Placement>>,
    /// Memory of keys and values, to be used again.
    spare: Vec<Vec<u8>>,
}

struct ClientEnd {
    requests: Producer<Request>,
    answers: Consumer<Answer>,
    /// Requests whose answers were not taken.
    under_way: usize,
    /// There are requests that the core was not told of.
    untold: bool,
    /// The core has left.
    left: Arc<AtomicBool>,
}

/// A core's side of a lane.
pub(super) struct CoreEnd {
    /// Tells the lanes of a core apart.
    pub(super) number: u64,
    pub(super) requests: Consumer<Request>,
    answers: Producer<Answer>,
    client: Arc<Signal>,
    left: Arc<AtomicBool>,
    /// There are answers that the client was not told of.
    untold: bool,
}

/// Whether a lane took a request.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It will be answered.
    Yes,
    /// There are as many requests under way as there may be at that core: take answers first.
    Full,
}

impl Lane {
    pub(super) fn new(shared: Arc<Shared>, depth: usize) -> Result<Self> {
        if !(1..=MAX_DEPTH).contains(&depth) {
            return Err(Error::invalid(format!("a lane of depth {depth}: allowed are 1 to {MAX_DEPTH}")));
        }
        let signal = Arc::new(Signal::new());
        let number = shared.lanes.fetch_add(1, Ordering::Relaxed);
        let mut ends = Vec::with_capacity(shared.cores.len());
        for core in 0..shared.cores.len() {
            let (requests, for_core) = RingBuffer::new(depth);
            let (from_core, answers) = RingBuffer::new(depth);
            let left = Arc::new(AtomicBool::new(false));
            let end = CoreEnd {
                number,
                requests: for_core,
                answers: from_core,
                client: signal.clone(),
                left: left.clone(),
                untold: false,
            };
            shared.arrive(core, Arrival::Lane(end))?;
            ends.push(ClientEnd { requests, answers, under_way: 0, untold: false, left });
        }
        Ok(Lane { shared, ends, signal, placement: None, spare: Vec::new() })
    }

    /// Has the core that owns `key` look it up. The answer comes with `token`. Never blocks.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a subtable of another database, [`ErrorKind::Closed`] if the executor ends or has ended. What goes
    /// wrong later is the answer: so is [`ErrorKind::Closed`] if the database was closed before a block was read.
    pub fn get(&mut self, table: &Subtable, key: &[u8], token: u64) -> Result<Taken> {
        self.ask(table, key, token, None)
    }

    /// Has the cores that own `keys` look them up, as [`Lane::get`] would one by one, but that each core is told once, of all that is for
    /// it: cheaper by a fence for each key. The answers come with `token` and the numbers that follow it. Says how many keys were taken:
    /// all, or those before the first for which there was no room. Never blocks.
    ///
    /// # Errors
    /// As for [`Lane::get`]; those before the key that failed are under way.
    pub fn multi_get(&mut self, table: &Subtable, keys: &[impl AsRef<[u8]>], token: u64) -> Result<usize> {
        /// Tells the cores, whatever happens.
        struct Telling<'l>(&'l mut Lane);

        impl Drop for Telling<'_> {
            fn drop(&mut self) {
                let Lane { shared, ends, .. } = &mut *self.0;
                for (end, core) in ends.iter_mut().zip(&shared.cores) {
                    if std::mem::take(&mut end.untold) {
                        core.sleeper.wake();
                    }
                }
            }
        }

        let telling = Telling(self);
        let lane = &mut *telling.0;
        for (number, key) in keys.iter().enumerate() {
            let Some(core) = lane.push(table, key.as_ref(), token.wrapping_add(number as u64), None)? else {
                return Ok(number);
            };
            lane.ends[core].untold = true;
        }
        Ok(keys.len())
    }

    /// Has the core that owns `key` run `work`, which is given the key. What it returns is the answer. It should not last: nothing else is
    /// done on that core meanwhile. A panic in it is an error to the client and no harm to the core. Never blocks.
    ///
    /// # Errors
    /// As for [`Lane::get`].
    pub fn run(
        &mut self,
        table: &Subtable,
        key: &[u8],
        token: u64,
        work: impl FnOnce(&mut Core<'_>, &[u8]) -> Result<Option<Vec<u8>>> + Send + 'static,
    ) -> Result<Taken> {
        self.ask(table, key, token, Some(Box::new(work)))
    }

    fn ask(&mut self, table: &Subtable, key: &[u8], token: u64, work: Option<Work>) -> Result<Taken> {
        let Some(core) = self.push(table, key, token, work)? else { return Ok(Taken::Full) };
        self.shared.cores[core].sleeper.wake();
        Ok(Taken::Yes)
    }

    /// Puts a request into the ring to the core that owns the key; that core, which is to be told, or `None` if there is no room.
    fn push(
        &mut self,
        table: &Subtable,
        key: &[u8],
        token: u64,
        work: Option<Work>,
    ) -> Result<Option<usize>> {
        self.shared.engine.check_is_own(table.table())?;
        let table = table.table().id;
        let core = self.shared.placement.refresh(&mut self.placement).owner(table, key);
        let end = &mut self.ends[core];
        if self.shared.ending.load(Ordering::Acquire) || end.left.load(Ordering::Acquire) {
            return Err(ended());
        }
        if end.under_way == end.requests.buffer().capacity() {
            return Ok(None);
        }
        let mut memory = self.spare.pop().unwrap_or_default();
        memory.clear();
        memory.extend_from_slice(key);
        let request = Request { token, table, key: memory, work };
        if end.requests.push(request).is_err() {
            // It holds as many as may be under way.
            return Ok(None);
        }
        end.under_way += 1;
        Ok(Some(core))
    }

    /// Requests whose answers were not taken.
    pub fn under_way(&self) -> usize {
        self.ends.iter().map(|end| end.under_way).sum()
    }

    /// Calls `each` with the token and the outcome of every answer that is there, and says how many there were. Never blocks.
    pub fn answers(&mut self, mut each: impl FnMut(u64, Result<Option<&[u8]>>)) -> usize {
        let mut taken = 0;
        for end in &mut self.ends {
            while let Ok(Answer { token, outcome, value }) = end.answers.pop() {
                end.under_way -= 1;
                taken += 1;
                each(token, outcome.map(|there| there.then_some(&value[..])));
                if value.capacity() <= KEEP_BYTES {
                    self.spare.push(value);
                }
            }
        }
        taken
    }

    /// Waits until there is an answer to be taken. Returns at once if nothing is under way. Not for use on a core.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the executor has ended without an answer.
    pub fn wait(&self) -> Result<()> {
        let there = || self.ends.iter().any(|end| !end.answers.is_empty());
        for _ in 0..LOOKS {
            if there() || self.under_way() == 0 {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let lost = || self.ends.iter().any(|end| end.under_way > 0 && end.left.load(Ordering::Acquire));
        self.signal.wait_until(&*self.shared.engine.media, || there() || lost())?;
        if there() { Ok(()) } else { Err(ended()) }
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("under_way", &self.under_way()).finish_non_exhaustive()
    }
}

impl CoreEnd {
    /// Puts an answer into the ring. There is room: see the module's head. If the client has gone, nobody wants it.
    pub(super) fn answer(&mut self, answer: Answer) {
        let _nobody = self.answers.push(answer);
        self.untold = true;
    }

    /// Tells the client of what is new.
    pub(super) fn tell(&mut self) {
        if std::mem::take(&mut self.untold) {
            self.client.notify_all();
        }
    }

    /// Whether the client has gone.
    pub(super) fn is_abandoned(&self) -> bool {
        self.requests.is_abandoned()
    }
}

impl Drop for CoreEnd {
    fn drop(&mut self) {
        self.left.store(true, Ordering::Release);
        self.client.notify_all();
    }
}

/// What is asked of an executor that has ended.
pub(super) fn ended() -> Error {
    Error::new(ErrorKind::Closed, "the executor has ended")
}
