use super::*;

#[test]
fn no_wakeup_is_lost() {
    loom::model(|| {
        let c = Completion::new();
        let d = c.clone();
        let t = loom::thread::spawn(move || d.wait().unwrap());
        c.settle(Ok(3));
        assert_eq!(t.join().unwrap(), 3);
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
    loom::model(|| {
        let c = Completion::new();
        let d = c.clone();
        let t = loom::thread::spawn(move || {
            let mut worked = false;
            d.wait_helping(|| worked = true).unwrap();
            worked
        });
        let elected = c.elect();
        c.settle(Ok(3));
        assert_eq!(t.join().unwrap(), elected);
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
