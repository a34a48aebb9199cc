//! A thread that somebody has to himself, bound to a processor if that is wished.

use std::io;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use terrane_base::{Error, ErrorKind, Result};

use crate::Job;

/// A thread of [`crate::Media::start_thread`]. It goes on when this is dropped.
#[derive(Debug)]
pub struct Thread(JoinHandle<()>);

impl Thread {
    /// Waits for its end. A job that panicked has ended too: the panic hook has reported it. On the thread itself this does nothing.
    pub fn join(self) {
        if self.0.thread().id() != thread::current().id() {
            let _reported = self.0.join();
        }
    }

    pub(crate) fn start(name: &str, core: Option<usize>, job: Job) -> Result<Thread> {
        let (say, said) = mpsc::sync_channel(1);
        let begin = move || {
            let bound = core.map_or(Ok(()), bind);
            let go = bound.is_ok();
            // Who started the thread waits for this.
            let _heard = say.send(bound);
            if go {
                job();
            }
        };
        let failed = |what: &str, e: io::Error| {
            Error::new(ErrorKind::Io, format!("{what} thread {name}: {e}"))
                .with_hint("look at the limits of the process, and at the processors it may use")
        };
        let started =
            thread::Builder::new().name(name.to_owned()).spawn(begin).map_err(|e| failed("start", e))?;
        // A thread that ends without a word has panicked.
        let bound = said.recv().unwrap_or_else(|_| Err(io::Error::other("it ended at once")));
        bound.map_err(|e| failed("bind", e))?;
        Ok(Thread(started))
    }
}

/// The processors on which this thread may run.
pub(crate) fn cores() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect(),
        Err(_) => (0..thread::available_parallelism().map_or(1, usize::from)).collect(),
    }
}

/// How many threads of this process run at the same time, by its processors and by quotas; one at least.
pub fn processors() -> usize {
    thread::available_parallelism().map_or_else(|_| cores().len().max(1), usize::from)
}

fn bind(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("there is no processor {core}")));
    }
    let mut only = CpuSet::new();
    only.set(core);
    Ok(sched_setaffinity(None, &only)?)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_thread_runs_where_it_was_bound() {
        for core in cores() {
            let seen = Arc::new(AtomicUsize::new(usize::MAX));
            let for_thread = seen.clone();
            let job = Box::new(move || {
                assert_eq!(cores(), [core]);
                for_thread.store(core, Ordering::Relaxed);
            });
            Thread::start("bound", Some(core), job).unwrap().join();
            assert_eq!(seen.load(Ordering::Relaxed), core);
        }
    }

    #[test]
    fn a_processor_that_is_not_there_is_an_error() {
        for core in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU, usize::MAX] {
            let e = Thread::start("nowhere", Some(core), Box::new(|| panic!("ran"))).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Io);
        }
    }
}
