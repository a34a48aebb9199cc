//! Work in pieces that the caller does together with whatever threads of a pool are idle.
//!
//! The caller takes one piece after the other and asks a pool for helpers who do the same. It never waits for a helper that has not begun:
//! where the pool is busy, or is the caller's own, it does all of it by itself. Helpers that begin when everything is given out find nothing,
//! and hold nothing of the work meanwhile.
//!
//! # Concurrency
//! All of it is under one mutex, taken twice for each piece, which is to be worth far more than that.

use std::sync::Arc;

use parking_lot::Mutex;
use terrane_base::{Error, Result};

use crate::errand::no_result;
use crate::{Media, Pool, Signal};

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

/// Does `pieces` pieces of work, with at most `helpers` threads of `pool` beside the caller. Blocks until all are done; returns the results in
/// order. When one fails, no further one begins.
///
/// # Errors
/// That of the first piece to fail; [`terrane_base::ErrorKind::Closed`] if one panicked.
pub fn in_shares<T: Send + 'static>(
    media: &dyn Media,
    (pool, helpers): (Pool, usize),
    name: &'static str,
    pieces: usize,
    work: impl Fn(usize) -> Result<T> + Send + Sync + 'static,
) -> Result<Vec<T>> {
    let state = State {
        work: (pieces > 0).then(|| Arc::new(work) as Work<T>),
        next: 0,
        under_way: 0,
        done: (0..pieces).map(|_| None).collect(),
        failed: None,
    };
    let shared = Arc::new(Shared { pieces, state: Mutex::new(state), ended: Signal::new() });
    for _ in 0..helpers.min(pieces.saturating_sub(1)) {
        let shared = shared.clone();
        media.spawn(pool, name, Box::new(move || shared.help()));
    }
    shared.help();
    let waited = shared.ended.wait_until(media, || shared.state.lock().under_way == 0);
    // Taken out in any case: helpers that have not begun hold what is left.
    let (failed, done, _work) = {
        let mut state = shared.state.lock();
        (state.failed.take(), std::mem::take(&mut state.done), state.work.take())
    };
    match failed {
        Some(e) => Err(e),
        None => waited.map(|()| done.into_iter().flatten().collect()),
    }
}

impl<T> Shared<T> {
    fn help(&self) {
        while let Some((piece, work)) = self.take() {
            let mut taken = Taken { shared: self, piece, result: None };
            taken.result = Some(work(piece));
            // What it holds is let go of before the caller hears that all is done.
            drop(work);
        }
    }

    fn take(&self) -> Option<(usize, Work<T>)> {
        let mut state = self.state.lock();
        let work = state.work.clone()?;
        let piece = state.next;
        state.next += 1;
        state.under_way += 1;
        if state.next == self.pieces {
            state.work = None;
        }
        Some((piece, work))
    }
}

/// A piece that somebody works on: however that ends, the caller is told.
struct Taken<'s, T> {
    shared: &'s Shared<T>,
    piece: usize,
    result: Option<Result<T>>,
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        let result = self.result.take().unwrap_or_else(|| Err(no_result()));
        let unneeded = {
            let mut state = self.shared.state.lock();
            state.under_way -= 1;
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
        // Without the lock: whatever it holds goes with it.
        drop(unneeded);
        self.shared.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Barrier, mpsc};

    use terrane_base::ErrorKind;

    use super::*;
    use crate::real::{RealMedia, RealOptions};
    use crate::sim::SimMedia;

    fn threads(flush_threads: usize) -> Arc<RealMedia> {
        RealMedia::new(RealOptions { flush_threads, ..RealOptions::default() }).unwrap()
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
        assert_eq!(in_shares(&*media, (Pool::Flush, 2), "share", 3, met).unwrap(), [0, 10, 20]);
    }

    #[test]
    fn without_idle_threads_the_caller_does_all_and_late_helpers_hold_nothing() {
        let media = threads(1);
        let (go, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        media.spawn(Pool::Flush, "busy", Box::new(move || wait.lock().recv().unwrap_or_default()));
        let held = Arc::new(());
        let in_work = held.clone();
        let work = move |n| {
            let _held = &in_work;
            Ok(n)
        };
        assert_eq!(in_shares(&*media, (Pool::Flush, 4), "share", 5, work).unwrap(), [0, 1, 2, 3, 4]);
        assert_eq!(Arc::strong_count(&held), 1, "helpers are queued still");
        let done = held.clone();
        let work = move |n| match n {
            2 => Err(Error::new(ErrorKind::OutOfSpace, "full")),
            _ => Ok(done.clone()),
        };
        assert!(in_shares(&*media, (Pool::Flush, 4), "share", 5, work).is_err());
        assert_eq!(Arc::strong_count(&held), 1, "of the results neither");
        drop(go);
        assert_eq!(in_shares(&*media, (Pool::Flush, 4), "share", 0, |_| Ok(())).unwrap(), []);
    }

    #[test]
    fn after_a_failure_or_a_panic_no_further_piece_begins() {
        for panics in [false, true] {
            let media = SimMedia::new(1);
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
            let run = || in_shares(&*media, (Pool::Flush, 2), "share", 9, work);
            match std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) {
                Ok(result) => assert_eq!(result.unwrap_err().kind(), ErrorKind::OutOfSpace),
                Err(_) => assert!(panics),
            }
            assert_eq!(begun.load(Ordering::Relaxed), 3);
            media.run_all();
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
        let e = in_shares(&*media, (Pool::Flush, 1), "share", 2, work).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Closed, "{e}");
    }
}
