//! Background tasks of a simulated machine: queued, and run one at a time by whoever steps or waits.
//!
//! As many tasks of a pool may be under way (each waiting, by way of [`crate::Media::help`], for the one run inside it) as
//! a real machine by default has threads for it. A task that waits for another one of its own pool with no thread left to
//! run it would hang there; here the wait ends with an error.

use std::collections::VecDeque;

use parking_lot::Mutex;

use super::rng::Rng;
use crate::{Job, Pool};

const POOLS: usize = 5;

/// Tasks of each pool that may be under way at once.
const LIMITS: [usize; POOLS] = [1, 2, 2, 2, 2];

#[derive(Debug)]
pub(super) struct Tasks(Mutex<State>);

struct State {
    queues: [VecDeque<(&'static str, Job)>; POOLS],
    running: [usize; POOLS],
    rng: Rng,
    closed: bool,
}

impl Tasks {
    pub(super) fn new(rng: Rng) -> Self {
        Tasks(Mutex::new(State { queues: Default::default(), running: [0; POOLS], rng, closed: false }))
    }

    pub(super) fn push(&self, pool: Pool, name: &'static str, job: Job) {
        let mut s = self.0.lock();
        if s.closed {
            // The job's own drop may come back to this machine.
            drop(s);
            drop(job);
        } else {
            s.queues[pool as usize].push_back((name, job));
        }
    }

    pub(super) fn pending(&self) -> usize {
        self.0.lock().queues.iter().map(VecDeque::len).sum()
    }

    /// Runs the first task of a pool chosen by seed. False if none may run.
    pub(super) fn step(&self) -> bool {
        let Some((pool, job)) = self.take() else { return false };
        let _running = Running(self, pool);
        job();
        true
    }

    /// Drops what is queued, and whatever is queued later.
    pub(super) fn close(&self) {
        let dropped = {
            let mut s = self.0.lock();
            s.closed = true;
            std::mem::take(&mut s.queues)
        };
        drop(dropped);
    }

    fn take(&self) -> Option<(usize, Job)> {
        let mut s = self.0.lock();
        let ready: Vec<usize> =
            (0..LIMITS.len()).filter(|p| !s.queues[*p].is_empty() && s.running[*p] < LIMITS[*p]).collect();
        let pool = match ready.len() {
            0 => return None,
            1 => ready[0],
            n => ready[s.rng.below(n as u64) as usize],
        };
        let (_, job) = s.queues[pool].pop_front()?;
        s.running[pool] += 1;
        Some((pool, job))
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.queues.iter().flatten().map(|(name, _)| name);
        f.write_str("pending ")?;
        f.debug_list().entries(names).finish()
    }
}

/// Counts a running task out, even if it panics.
struct Running<'a>(&'a Tasks, usize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.0.lock().running[self.1] -= 1;
    }
}
