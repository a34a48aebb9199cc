#![allow(clippy::disallowed_methods)]

use super::*;
use std::sync::atomic::AtomicUsize;
use std::task::Wake;

#[test]
fn a_blocked_thread_is_woken() {
    let c = Completion::new();
    let d = c.clone();
    let waiter = std::thread::spawn(move || d.wait());
    while c.0.word.load(Ordering::Relaxed) & SLEEPING == 0 {
        std::thread::yield_now();
    }
    c.settle(Ok(7));
    assert_eq!(waiter.join().unwrap().unwrap(), 7);
}

#[test]
fn a_callback_hears_of_the_outcome_whether_it_registers_before_or_after() {
    let hits = std::sync::Arc::new(AtomicUsize::new(0));
    for early in [true, false] {
        let c = Completion::new();
        let h = hits.clone();
        let cb = Waiter::Callback(Box::new(move |r| {
            assert_eq!(r.unwrap_err().kind(), ErrorKind::InvalidArgument);
            h.fetch_add(1, Ordering::Relaxed);
        }));
        if early {
            c.register(cb);
            c.settle(Err(Error::invalid("no")));
        } else {
            c.settle(Err(Error::invalid("no")));
            c.register(cb);
        }
    }
    assert_eq!(hits.load(Ordering::Relaxed), 2);
}

#[test]
fn a_waker_is_woken_once() {
    #[derive(Default)]
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let count = std::sync::Arc::new(Count::default());
    let c = Completion::new();
    c.register(Waiter::Waker(Waker::from(count.clone())));
    c.settle(Ok(1));
    c.settle(Ok(1));
    assert_eq!(count.0.load(Ordering::Relaxed), 1);
}

#[test]
fn the_first_outcome_stays() {
    let c = Completion::new();
    c.settle(Ok(1));
    c.settle(Ok(2));
    c.settle(Err(Error::invalid("late")));
    assert_eq!(c.wait().unwrap(), 1);

    let c = Completion::new();
    c.settle(Err(Error::invalid("early")));
    c.settle(Ok(2));
    assert_eq!(c.wait().unwrap_err().message(), "early");
}

#[test]
fn every_number_survives_beside_the_flags() {
    for n in [0, 1, INLINE_LIMIT - 1, INLINE_LIMIT, u64::MAX] {
        let c = Completion::new();
        assert!(c.outcome().is_none());
        c.settle(Ok(n));
        assert_eq!(c.outcome().unwrap().unwrap(), n);
        assert_eq!(c.wait().unwrap(), n);
    }
}

#[test]
fn a_renewed_completion_is_pending_and_has_forgotten_its_waiter() {
    let hits = std::sync::Arc::new(AtomicUsize::new(0));
    let mut c = Completion::new();
    let h = hits.clone();
    c.register(Waiter::Callback(Box::new(move |_| {
        h.fetch_add(1, Ordering::Relaxed);
    })));
    c.renew();
    assert!(!c.is_settled());
    c.settle(Err(Error::invalid("x")));
    c.renew();
    c.settle(Ok(5));
    assert_eq!(c.wait().unwrap(), 5);
    assert_eq!(hits.load(Ordering::Relaxed), 0);
}

#[test]
fn renewing_takes_new_memory_only_while_another_handle_lives() {
    let mut c = Completion::new();
    let place = Arc::as_ptr(&c.0);
    c.settle(Ok(1));
    c.renew();
    assert_eq!(Arc::as_ptr(&c.0), place);

    let other = c.clone();
    other.settle(Ok(2));
    c.renew();
    assert!(!c.is_settled());
    assert_eq!(other.outcome().unwrap().unwrap(), 2);
}

#[test]
fn a_dropped_settler_tells_its_waiter() {
    let c = Completion::new();
    drop(c.settler());
    assert_eq!(c.wait().unwrap_err().kind(), ErrorKind::Closed);

    let c = Completion::new();
    c.settler().settle(Ok(3));
    assert_eq!(c.wait().unwrap(), 3);
}

#[test]
fn a_panicking_callback_stops_neither_the_settler_nor_the_outcome() {
    struct Worse;
    impl Drop for Worse {
        fn drop(&mut self) {
            panic!("a worse one, on purpose");
        }
    }
    let hosts: [Waiter; 2] = [
        Waiter::Callback(Box::new(|_| panic!("a host's bug, on purpose"))),
        Waiter::Callback(Box::new(|_| std::panic::panic_any(Worse))),
    ];
    for host in hosts {
        let c = Completion::new();
        c.register(host);
        c.settle(Ok(9));
        assert_eq!(c.wait().unwrap(), 9);
    }
}

#[test]
fn a_thread_that_helps_is_elected_while_it_blocks_and_not_before_or_after() {
    let c = Completion::new();
    let settler = c.settler();
    assert!(!c.elect() && settler.willing().is_none());
    let d = c.clone();
    let waiter = std::thread::spawn(move || {
        let mut worked = 0;
        d.wait_helping(|| worked += 1).map(|n| (n, worked))
    });
    while !c.elect() {
        std::thread::yield_now();
    }
    while !settler.willing().is_some_and(|c| c.elect()) {
        std::thread::yield_now();
    }
    c.settle(Ok(4));
    assert!(!c.elect() && settler.willing().is_none());
    assert_eq!(waiter.join().unwrap().unwrap(), (4, 2));
}

#[test]
fn a_thread_that_only_waits_is_never_elected() {
    let c = Completion::new();
    let d = c.clone();
    let waiter = std::thread::spawn(move || d.wait());
    while c.0.word.load(Ordering::Relaxed) & SLEEPING == 0 {
        std::thread::yield_now();
    }
    assert!(!c.elect());
    c.settle(Ok(4));
    assert_eq!(waiter.join().unwrap().unwrap(), 4);
}

#[test]
fn an_outcome_that_came_too_late_does_not_outlive_a_renewal() {
    let mut c = Completion::new();
    c.settle(Ok(1));
    c.settle(Err(Error::invalid("late")));
    c.renew();
    c.settle(Err(Error::invalid("next")));
    assert_eq!(c.outcome().unwrap().unwrap_err().message(), "next");
}
