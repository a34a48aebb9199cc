use std::sync::atomic::{AtomicUsize, Ordering};

use terrane_base::ErrorKind;

use super::*;
use crate::{Pool, Signal};

/// Runs ten tasks in each pool; returns their order.
fn order(seed: u64) -> Vec<(Pool, usize)> {
    let m = SimMedia::new(seed);
    let ran = Arc::new(Mutex::new(Vec::new()));
    for i in 0..10 {
        for pool in [Pool::Log, Pool::Flush, Pool::Compaction] {
            let ran = ran.clone();
            m.spawn(pool, "test", Box::new(move || ran.lock().push((pool, i))));
        }
    }
    assert_eq!(m.pending(), 30);
    m.run_all();
    assert_eq!(m.pending(), 0);
    let ran = ran.lock();
    ran.clone()
}

#[test]
fn tasks_interleave_by_seed_and_keep_their_order_within_a_pool() {
    assert_eq!(order(1), order(1));
    assert_ne!(order(1), order(2));
    for pool in [Pool::Log, Pool::Flush, Pool::Compaction] {
        let of_pool: Vec<usize> = order(3).iter().filter(|(p, _)| *p == pool).map(|(_, i)| *i).collect();
        assert_eq!(of_pool, (0..10).collect::<Vec<_>>());
    }
}

#[test]
fn waiting_runs_tasks_until_the_condition_holds_and_no_further() {
    let m = SimMedia::new(1);
    let done = Arc::new(AtomicUsize::new(0));
    for _ in 0..5 {
        let done = done.clone();
        let job = move || {
            done.fetch_add(1, Ordering::Relaxed);
        };
        m.spawn(Pool::Flush, "test", Box::new(job));
    }
    Signal::new().wait_until(&*m, || done.load(Ordering::Relaxed) == 3).unwrap();
    assert_eq!(m.pending(), 2);
}

#[test]
fn waiting_for_what_nobody_will_do_is_an_error() {
    let m = SimMedia::new(1);
    m.spawn(Pool::Flush, "test", Box::new(|| ()));
    let e = Signal::new().wait_until(&*m, || false).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Closed);
}

#[test]
fn a_task_that_needs_another_thread_of_its_full_pool_is_found_out() {
    let m = SimMedia::new(1);
    let (inner, outcome) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(None)));
    let (machine, ran, result) = (m.clone(), inner.clone(), outcome.clone());
    m.spawn(
        Pool::Log,
        "outer",
        Box::new(move || {
            let set = ran.clone();
            machine.spawn(Pool::Log, "inner", Box::new(move || set.store(1, Ordering::Relaxed)));
            *result.lock() =
                Some(Signal::new().wait_until(&*machine, || ran.load(Ordering::Relaxed) == 1).is_err());
        }),
    );
    m.run_all();
    assert_eq!(*outcome.lock(), Some(true), "one log thread cannot wait for itself");
    assert_eq!(inner.load(Ordering::Relaxed), 1, "the task runs once the thread is free");
}

#[test]
fn shutdown_drops_what_has_not_started() {
    for m in [SimMedia::new(1), SimMedia::with_threads(1, &RealOptions::default())] {
        let alive = Arc::new(());
        m.shutdown();
        let held = alive.clone();
        m.spawn(Pool::Log, "test", Box::new(move || drop(held)));
        assert_eq!(Arc::strong_count(&alive), 1);
        assert!(!m.step());
    }
}

#[test]
fn threads_can_run_the_tasks_instead() {
    let m = SimMedia::with_threads(1, &RealOptions::default());
    let (done, signal) = (Arc::new(AtomicUsize::new(0)), Arc::new(Signal::new()));
    for i in 0..300 {
        let (done, signal) = (done.clone(), signal.clone());
        let pool = [Pool::Log, Pool::Flush, Pool::Compaction][i % 3];
        m.spawn(
            pool,
            "test",
            Box::new(move || {
                done.fetch_add(1, Ordering::Relaxed);
                signal.notify_all();
            }),
        );
    }
    signal.wait_until(&*m, || done.load(Ordering::Relaxed) == 300).unwrap();
}
