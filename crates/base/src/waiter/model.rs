use super::*;

/// Loom tries another order of two threads where one's access to a word follows directly on the other's, and a plain
/// load of its own in between hides that from it. A change of nothing before such a load shows it again.
fn expose(c: &Completion) {
    c.0.word.fetch_or(0, Ordering::Relaxed);
}

#[test]
fn no_wakeup_is_lost() {
    loom::model(|| {
        let c = Completion::new();
        let d = c.clone();
        let t = loom::thread::spawn(move || d.wait().unwrap());
        expose(&c);
        c.settle(Ok(3));
        assert_eq!(t.join().unwrap(), 3);
    });
}

#[test]
fn who_sleeps_is_woken_later_too() {
    loom::model(|| {
        let c = [Completion::new(), Completion::new()];
        let d = c.clone();
        let t = loom::thread::spawn(move || d.each_ref().map(|d| d.wait().unwrap()));
        let mut wakes = Wakes::new();
        for (c, n) in c.iter().zip(3..) {
            expose(c);
            c.settle_later(Ok(n), &mut wakes);
        }
        drop(wakes);
        assert_eq!(t.join().unwrap(), [3, 4]);
    });
}

#[test]
fn an_error_reaches_the_one_who_waits() {
    loom::model(|| {
        let c = Completion::new();
        let d = c.settler();
        let t = loom::thread::spawn(move || drop(d));
        assert!(c.wait().is_err());
        t.join().unwrap();
    });
}

#[test]
fn of_two_settlers_one_wins_and_the_callback_hears_just_that_outcome() {
    loom::model(|| {
        let c = Completion::new();
        let heard = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let (d, e, h) = (c.clone(), c.clone(), heard.clone());
        let t = loom::thread::spawn(move || d.settle(Ok(1)));
        let u = loom::thread::spawn(move || e.settle(Err(Error::invalid("x"))));
        c.register(Waiter::Callback(Box::new(move |r| h.lock().unwrap().push(r.is_ok()))));
        t.join().unwrap();
        u.join().unwrap();
        assert_eq!(*heard.lock().unwrap(), [c.outcome().unwrap().is_ok()]);
    });
}

#[test]
fn an_election_that_was_promised_is_honoured() {
    static HONOURED: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    loom::model(|| {
        let c = Completion::new();
        let d = c.clone();
        let t = loom::thread::spawn(move || {
            let mut worked = false;
            d.wait_helping(|| worked = true).unwrap();
            worked
        });
        expose(&c);
        let elected = c.elect();
        HONOURED.fetch_add(u64::from(elected), Ordering::Relaxed);
        expose(&c);
        c.settle(Ok(3));
        assert_eq!(t.join().unwrap(), elected);
    });
    assert_ne!(HONOURED.load(Ordering::Relaxed), 0, "no execution had an election");
}

#[test]
fn an_elected_thread_wakes_though_nothing_is_settled() {
    loom::model(|| {
        let c = Completion::new();
        let d = c.clone();
        // Only the elected thread settles, if there is one.
        let t = loom::thread::spawn(move || d.wait_helping(|| d.settle(Ok(1))).unwrap());
        expose(&c);
        if !c.elect() {
            c.settle(Ok(2));
        }
        t.join().unwrap();
    });
}

#[test]
fn the_memory_is_renewed_only_after_the_last_other_handle_is_done() {
    loom::model(|| {
        let mut c = Completion::new();
        let d = c.clone();
        let t = loom::thread::spawn(move || d.settle(Ok(1)));
        assert_eq!(c.wait().unwrap(), 1);
        c.renew();
        assert!(!c.is_settled());
        t.join().unwrap();
        assert!(!c.is_settled());
    });
}

#[test]
fn who_knows_the_outcome_sees_what_was_done_before() {
    loom::model(|| {
        let c = Completion::new();
        let done = crate::sync::Arc::new(AtomicU64::new(0));
        let (d, e) = (c.clone(), done.clone());
        let t = loom::thread::spawn(move || {
            e.store(1, Ordering::Relaxed);
            d.settle(Ok(1));
        });
        expose(&c);
        if c.is_settled() {
            assert_eq!(done.load(Ordering::Relaxed), 1);
        }
        t.join().unwrap();
    });
}
