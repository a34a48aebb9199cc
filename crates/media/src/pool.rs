//! Threads that run background tasks.
//!
//! Each [`Pool`] has its own queue and threads, so that long compactions cannot hold up the log. Threads start when there
//! is work for them, up to the pool's number, and stay until the pools close. A task that is to run later waits beside the
//! queue; a thread with nothing else to do sleeps until the first of them is due.
//!
//! # Concurrency
//! A mutex and a condition variable per pool. Closing drops what is queued, then joins every thread but the calling one,
//! because the last handle of a machine may well be dropped by one of its own tasks.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::real::RealOptions;
use crate::{Job, Pool};

/// Merging goes on for seconds on end, and nobody waits for a piece of it: where there are more threads than processors, those who do wait
/// come first. Not by much, for a piece holds locks of the cache now and then.
const COMPACTION_NICE: i32 = 5;

/// The threads of one machine.
#[derive(Debug)]
pub(crate) struct Pools {
    pools: [Arc<Shared>; 5],
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Shared {
    name: &'static str,
    limit: usize,
    /// How much its threads give way to others: see [`give_way`].
    nice: i32,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    /// Tasks that are not due yet: a few at most.
    later: Vec<(Instant, Job)>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Pools {
    pub(crate) fn new(options: &RealOptions) -> Self {
        let pool = |name, limit: usize, nice| {
            let state = Mutex::new(State::default());
            Arc::new(Shared { name, limit: limit.max(1), nice, state, wake: Condvar::new() })
        };
        Pools {
            pools: [
                pool("terrane-log", options.log_threads, 0),
                pool("terrane-io", options.io_threads, 0),
                pool("terrane-read", options.read_threads, 0),
                pool("terrane-flush", options.flush_threads, 0),
                pool("terrane-merge", options.compaction_threads, COMPACTION_NICE),
            ],
            threads: Mutex::new(Vec::new()),
        }
    }

    /// Queues a task, or drops it if the pools are closed.
    pub(crate) fn push(&self, pool: Pool, job: Job) {
        self.add(pool, None, job);
    }

    /// Queues a task once `delay` has passed, or drops it if the pools are closed.
    pub(crate) fn push_after(&self, pool: Pool, delay: Duration, job: Job) {
        self.add(pool, Some(Instant::now() + delay), job);
    }

    fn add(&self, pool: Pool, due: Option<Instant>, job: Job) {
        let shared = &self.pools[pool as usize];
        let mut s = shared.state.lock();
        if s.closed {
            // The job's own drop may come back to this machine.
            drop(s);
            drop(job);
            return;
        }
        match due {
            Some(at) => s.later.push((at, job)),
            None => s.queue.push_back(job),
        }
        // A thread for each that can run, and one that keeps an eye on those that wait for their time.
        let wanted = s.queue.len() + usize::from(!s.later.is_empty());
        if s.idle >= wanted || s.threads >= shared.limit {
            shared.wake.notify_one();
            return;
        }
        s.threads += 1;
        drop(s);
        self.start(shared);
    }

    /// How many tasks wait to run.
    pub(crate) fn pending(&self) -> usize {
        self.pools.iter().map(|p| p.state.lock().queue.len()).sum()
    }

    /// Drops queued tasks and joins the threads.
    pub(crate) fn close(&self) {
        for shared in &self.pools {
            let dropped = {
                let mut s = shared.state.lock();
                s.closed = true;
                (std::mem::take(&mut s.queue), std::mem::take(&mut s.later))
            };
            shared.wake.notify_all();
            drop(dropped);
        }
        let threads = std::mem::take(&mut *self.threads.lock());
        for t in threads {
            if t.thread().id() != thread::current().id() {
                // A thread catches the panics of its tasks, so there is no outcome to look at.
                let _joined = t.join();
            }
        }
    }

    /// Starts the thread that was counted in already.
    fn start(&self, shared: &Arc<Shared>) {
        let for_thread = shared.clone();
        match thread::Builder::new().name(shared.name.to_owned()).spawn(move || for_thread.work()) {
            Ok(handle) => self.threads.lock().push(handle),
            Err(_) => {
                // No thread to be had. With none at all the work is done here, so that nobody waits for ever.
                let alone = {
                    let mut s = shared.state.lock();
                    s.threads -= 1;
                    s.threads == 0
                };
                while alone && let Some(job) = shared.pop() {
                    run(job);
                }
            }
        }
    }
}

impl Drop for Pools {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn work(&self) {
        give_way(self.nice);
        let mut s = self.state.lock();
        loop {
            let (came_due, next_due) = s.queue_due();
            if let Some(job) = s.queue.pop_front() {
                if (came_due || next_due.is_some()) && s.idle > 0 {
                    // While this one works, another one keeps an eye on them.
                    self.wake.notify_one();
                }
                drop(s);
                run(job);
                s = self.state.lock();
            } else if s.closed {
                return;
            } else {
                s.idle += 1;
                match next_due {
                    Some(at) => drop(self.wake.wait_until(&mut s, at)),
                    None => self.wake.wait(&mut s),
                }
                s.idle -= 1;
            }
        }
    }

    fn pop(&self) -> Option<Job> {
        self.state.lock().queue.pop_front()
    }
}

impl State {
    /// Queues the tasks that are due by now. Says whether there were any, and when the next one will be due.
    fn queue_due(&mut self) -> (bool, Option<Instant>) {
        if self.later.is_empty() {
            return (false, None);
        }
        let now = Instant::now();
        self.later.sort_by_key(|(at, _)| *at);
        let due = self.later.partition_point(|(at, _)| *at <= now);
        self.queue.extend(self.later.drain(..due).map(|(_, job)| job));
        (due > 0, self.later.first().map(|(at, _)| *at))
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let s = self.state.lock();
        write!(f, "{}: {} threads, {} tasks queued", self.name, s.threads, s.queue.len())
    }
}

/// Has the calling thread take less of a processor than others that want it, as much less as `nice` more of niceness says.
fn give_way(nice: i32) {
    #[cfg(target_os = "linux")]
    if nice != 0
        && let Ok(now) = rustix::process::getpriority_process(None)
    {
        // On Linux that is the calling thread's alone (sched(7)). Refused it costs speed only.
        let _refused_without_harm = rustix::process::setpriority_process(None, now + nice);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = nice;
}

/// A task that panics has a bug, and the panic hook has reported it; the pool's other tasks still must run.
///
/// A function of its own in the program too: what looks into a running process knows background work by its name.
#[inline(never)]
fn run(job: Job) {
    let _reported = catch_unwind(AssertUnwindSafe(job));
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::sync::mpsc;

    use rustix::process::getpriority_process;

    use super::*;

    #[test]
    fn merging_gives_way_and_what_others_wait_for_does_not() {
        let pools = Pools::new(&RealOptions::default());
        let (say, said) = mpsc::channel();
        for pool in [Pool::Log, Pool::Io, Pool::Read, Pool::Flush, Pool::Compaction] {
            let say = say.clone();
            pools.push(pool, Box::new(move || say.send((pool, getpriority_process(None).unwrap())).unwrap()));
        }
        let own = getpriority_process(None).unwrap();
        for (pool, nice) in said.iter().take(5) {
            let more = if pool == Pool::Compaction { COMPACTION_NICE } else { 0 };
            assert_eq!(nice, (own + more).min(19), "{pool:?}");
        }
        pools.close();
    }
}
