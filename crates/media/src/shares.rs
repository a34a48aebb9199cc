//! Work in pieces that the caller does together with whatever threads of a pool are idle.
//!
//! The caller takes one piece after the other and asks a pool for helpers who do the same. It never waits for a helper that has
//! not begun: where the pool is busy, or is the caller's own, it does all of it by itself. A helper takes one piece and queues up
//! again, so that whatever else the pool has to do has its turn between. Helpers that begin when everything is given out find
//! nothing, and hold nothing of the work meanwhile.
//!
//! # Concurrency
//! All of it is under one mutex, taken three times for each piece, which is to be worth far more than that.

use std::sync::Arc;

use parking_lot::Mutex;
use terrane_base::{Error, Result};

use crate::errand::no_result;
use crate::{Media, Pool, Signal, Thread};

type Work<T> = Arc<dyn Fn(usize) -> Result<T> + Send + Sync>;

struct Shared<T> {
    pieces: usize,
    state: Mutex<State<T>>,
    /// A piece has ended.
    ended: Signal,
}

struct State<T> {
    /// There until the last piece is given out, or one has failed.
    work: Option<Work<T>>,
    /// The next to be given out.
    next: usize,
    under_way: usize,
    done: Vec<Option<T>>,
    failed: Option<Error>,
}

/// As [`in_shares`], with a thread for each of the processors on which the caller may run, of which it is one: for what nobody waits beside, as
/// an opening. They end with the work; where the system gives fewer, there are fewer. A machine that starts no threads (a simulated one) has two of
/// `pool` help.
///
/// # Errors
/// As for [`in_shares`].
pub fn in_shares_of_all<T: Send + 'static>(
    media: &Arc<dyn Media>,
    pool: Pool,
    name: &'static str,
    pieces: usize,
    work: impl Fn(usize) -> Result<T> + Send + Sync + 'static,
) -> Result<Vec<T>> {
    if media.cores().is_empty() {
        return in_shares(media, (pool, 2), name, pieces, work);
    }
    let processors = media.processors();
    let shared = Shared::new(pieces, work);
    let all = All { media: &**media, shared: &shared };
    let mut threads = Vec::new();
    for _ in 1..processors.min(pieces) {
        let theirs = shared.clone();
        // Without it the work is done by fewer.
        let Ok(thread) = media.start_thread(name, None, Box::new(move || while theirs.do_one() {})) else {
            break;
        };
        threads.push(thread);
    }
    while shared.do_one() {}
    let done = all.end();
    threads.into_iter().for_each(Thread::join);
    done
}

/// Does `pieces` pieces of work, with at most `helpers` threads of `pool` beside the caller. Blocks until all are done; returns the results in
/// order. When one fails, no further one begins. When this returns, or panics, nobody has the work any more.
///
/// # Errors
/// That of the first piece to fail; [`terrane_base::ErrorKind::Closed`] if one panicked on a helper.
pub fn in_shares<T: Send + 'static>(
    media: &Arc<dyn Media>,
    (pool, helpers): (Pool, usize),
    name: &'static str,
    pieces: usize,
    work: impl Fn(usize) -> Result<T> + Send + Sync + 'static,
) -> Result<Vec<T>> {
    let shared = Shared::new(pieces, work);
    let all = All { media: &**media, shared: &shared };
    for _ in 0..helpers.min(pieces.saturating_sub(1)) {
        Shared::send_helper(&shared, media, pool, name);
    }
    while shared.do_one() {}
    all.end()
}

/// All of the work: however the caller leaves it, nobody does any of it behind that.
struct All<'a, T> {
    media: &'a dyn Media,
    shared: &'a Shared<T>,
}

impl<T> All<'_, T> {
    fn end(&self) -> Result<Vec<T>> {
        let shared = self.shared;
        // Where it does not come to an end by itself, no further piece begins.
        let waited = shared.ended.wait_until(self.media, || shared.state.lock().under_way == 0);
        // Taken out in any case: helpers that have not begun hold what is left.
        let (failed, done, _work) = {
            let mut state = shared.state.lock();
            (state.failed.take(), std::mem::take(&mut state.done), state.work.take())
        };
        match failed {
            Some(e) => Err(e),
            None => waited.and_then(|()| done.into_iter().collect::<Option<_>>().ok_or_else(no_result)),
        }
    }
}

impl<T> Drop for All<'_, T> {
    fn drop(&mut self) {
        // Nothing is left of it, unless a piece of the caller's panicked.
        let _ = self.end();
    }
}

impl<T: Send + 'static> Shared<T> {
    fn new(pieces: usize, work: impl Fn(usize) -> Result<T> + Send + Sync + 'static) -> Arc<Self> {
        let state = State {
            work: (pieces > 0).then(|| Arc::new(work) as Work<T>),
            next: 0,
            under_way: 0,
            done: (0..pieces).map(|_| None).collect(),
            failed: None,
        };
        Arc::new(Shared { pieces, state: Mutex::new(state), ended: Signal::new() })
    }

    /// Has a thread of the pool do a piece, and the next one in its turn.
    fn send_helper(shared: &Arc<Self>, media: &Arc<dyn Media>, pool: Pool, name: &'static str) {
        let (shared, again) = (shared.clone(), media.clone());
        let help = move || {
            if shared.do_one() && shared.state.lock().work.is_some() {
                Shared::send_helper(&shared, &again, pool, name);
            }
        };
        media.spawn(pool, name, Box::new(help));
    }
}

impl<T> Shared<T> {
    /// Does a piece, if there is one.
    fn do_one(&self) -> bool {
        let taken = {
            let mut state = self.state.lock();
            let Some(work) = state.work.clone() else { return false };
            let piece = state.next;
            state.next += 1;
            state.under_way += 1;
            if state.next == self.pieces {
                state.work = None;
            }
            Taken { shared: self, work: Some(work), piece, result: None }
        };
        taken.carry_out();
        true
    }
}

/// A piece that somebody works on: however that ends, the caller is told.
struct Taken<'s, T> {
    shared: &'s Shared<T>,
    work: Option<Work<T>>,
    piece: usize,
    result: Option<Result<T>>,
}

impl<T> Taken<'_, T> {
    fn carry_out(mut self) {
        self.result = self.work.as_ref().map(|work| work(self.piece));
    }
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        let result = self.result.take().unwrap_or_else(|| Err(no_result()));
        let unneeded = {
            let mut state = self.shared.state.lock();
            match result {
                Ok(done) => {
                    if let Some(place) = state.done.get_mut(self.piece) {
                        *place = Some(done);
                    }
                    None
                }
                Err(e) => {
                    state.failed.get_or_insert(e);
                    state.work.take()
                }
            }
        };
        // Whatever it holds is let go of before the caller hears that all is done, and without the lock.
        drop((unneeded, self.work.take()));
        self.shared.state.lock().under_way -= 1;
        self.shared.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{Barrier, mpsc};

    use terrane_base::ErrorKind;

    use super::*;
    use crate::real::{RealMedia, RealOptions};
    use crate::sim::SimMedia;

    fn threads(flush_threads: usize) -> Arc<dyn Media> {
        RealMedia::new(RealOptions { flush_threads, ..RealOptions::default() }).unwrap()
    }

    /// A machine whose pool is busy until what comes with it is dropped.
    fn busy() -> (Arc<dyn Media>, mpsc::Sender<()>) {
        let media = threads(1);
        let (go, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        media.spawn(Pool::Flush, "busy", Box::new(move || wait.lock().recv().unwrap_or_default()));
        (media, go)
    }

    #[test]
    fn idle_threads_take_pieces_at_the_same_time() {
        let media = threads(2);
        // Nobody passes alone.
        let three = Barrier::new(3);
        let met = move |n| {
            three.wait();
            Ok(n * 10)
        };
        assert_eq!(in_shares(&media, (Pool::Flush, 2), "share", 3, met).unwrap(), [0, 10, 20]);
    }

    #[test]
    fn all_processors_take_pieces_at_the_same_time_whatever_the_pools_do() {
        let (media, go) = busy();
        let processors = crate::processors();
        let all = Barrier::new(processors);
        let held = Arc::new(());
        let in_work = held.clone();
        let met = move |n| {
            let _held = &in_work;
            all.wait();
            Ok(n)
        };
        let done = in_shares_of_all(&media, Pool::Flush, "share", processors, met).unwrap();
        assert!(done.into_iter().eq(0..processors));
        assert_eq!(Arc::strong_count(&held), 1);
        drop(go);
        // A simulated machine has its pool.
        let media = SimMedia::new(1) as Arc<dyn Media>;
        assert_eq!(in_shares_of_all(&media, Pool::Flush, "share", 4, Ok).unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn without_idle_threads_the_caller_does_all_and_late_helpers_hold_nothing() {
        let (media, go) = busy();
        let held = Arc::new(());
        let in_work = held.clone();
        let work = move |n| {
            let _held = &in_work;
            Ok(n)
        };
        assert_eq!(in_shares(&media, (Pool::Flush, 4), "share", 5, work).unwrap(), [0, 1, 2, 3, 4]);
        assert_eq!(Arc::strong_count(&held), 1, "helpers are queued still");
        let done = held.clone();
        let work = move |n| match n {
            2 => Err(Error::new(ErrorKind::OutOfSpace, "full")),
            _ => Ok(done.clone()),
        };
        assert!(in_shares(&media, (Pool::Flush, 4), "share", 5, work).is_err());
        assert_eq!(Arc::strong_count(&held), 1, "of the results neither");
        drop(go);
        assert_eq!(in_shares(&media, (Pool::Flush, 4), "share", 0, |_| Ok(())).unwrap(), []);
    }

    #[test]
    fn what_else_a_pool_has_to_do_has_its_turn_between_pieces() {
        let media = threads(1);
        let (begun, besides) = (AtomicBool::new(false), Arc::new(AtomicBool::new(false)));
        let (pool, caller) = (media.clone(), std::thread::current().id());
        let work = move |_| {
            if std::thread::current().id() == caller {
                while !besides.load(Ordering::Acquire) {
                    std::thread::yield_now();
                }
            } else if !begun.swap(true, Ordering::Relaxed) {
                let besides = besides.clone();
                pool.spawn(Pool::Flush, "besides", Box::new(move || besides.store(true, Ordering::Release)));
            } else {
                assert!(besides.load(Ordering::Acquire), "the helper was first again");
            }
            Ok(())
        };
        in_shares(&media, (Pool::Flush, 1), "share", 4, work).unwrap();
    }

    #[test]
    fn after_a_failure_or_a_panic_no_further_piece_begins() {
        for panics in [false, true] {
            let sim = SimMedia::new(1);
            let media = sim.clone() as Arc<dyn Media>;
            let begun = Arc::new(AtomicUsize::new(0));
            let count = begun.clone();
            let work = move |n: usize| {
                count.fetch_add(1, Ordering::Relaxed);
                match n {
                    2 if panics => panic!("on purpose"),
                    2 => Err(Error::new(ErrorKind::OutOfSpace, "full")),
                    _ => Ok(n),
                }
            };
            let run = || in_shares(&media, (Pool::Flush, 2), "share", 9, work);
            match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
                Ok(result) => assert_eq!(result.unwrap_err().kind(), ErrorKind::OutOfSpace),
                Err(_) => assert!(panics),
            }
            assert_eq!(begun.load(Ordering::Relaxed), 3);
            sim.run_all();
            assert_eq!(begun.load(Ordering::Relaxed), 3, "helpers find nothing");
        }
        // A helper's panic is the caller's error.
        let media = threads(1);
        let both = Barrier::new(2);
        let caller = std::thread::current().id();
        let work = move |_| {
            both.wait();
            assert!(std::thread::current().id() == caller, "on purpose");
            Ok(())
        };
        let e = in_shares(&media, (Pool::Flush, 1), "share", 2, work).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Closed, "{e}");
    }
}
