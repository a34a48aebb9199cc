use super::*;

fn pins(entered: &[(&[u8], Option<u64>)]) -> Pins<()> {
    let pins = Pins::default();
    for (xid, from) in entered {
        assert!(pins.enter(xid, *from, Arc::new(())));
    }
    pins
}

#[test]
fn the_oldest_in_doubt_counts() {
    let pins = pins(&[(b"b", Some(30)), (b"a", Some(20)), (b"staged", None)]);
    assert_eq!(pins.oldest(100), Some(20));
    assert_eq!(pins.xids(), [&b"a"[..], b"b", b"staged"]);
    pins.end(b"a", None);
    assert_eq!(pins.oldest(100), Some(30));
    pins.end(b"b", None);
    assert_eq!((pins.oldest(100), pins.len()), (None, 1));
}

#[test]
fn an_xid_is_given_once() {
    let pins = pins(&[(b"x", Some(20))]);
    assert!(!pins.enter(b"x", Some(10), Arc::new(())));
    assert_eq!(pins.oldest(100), Some(20));
    pins.end(b"x", None);
    assert!(pins.get(b"x").is_none() && pins.is_empty());
    assert!(pins.enter(b"x", Some(10), Arc::new(())));
}

#[test]
fn a_commit_that_is_not_durable_keeps_its_prepare() {
    let pins = pins(&[(b"x", Some(20))]);
    pins.end(b"x", Some(50));
    assert_eq!(pins.oldest(49), Some(20));
    assert_eq!(pins.oldest(50), None);
}

#[test]
fn one_that_is_staged_leaves_nothing_in_the_log() {
    let pins = pins(&[(b"x", None)]);
    assert_eq!(pins.oldest(0), None);
    pins.end(b"x", Some(50));
    assert_eq!(pins.oldest(0), None);
}

#[test]
fn renewing_fails_or_moves() {
    let pins = pins(&[(b"x", Some(20)), (b"y", Some(60))]);
    assert_eq!(pins.before(60).len(), 1);
    assert_eq!(pins.renew(b"x", 70, || Err("full")), Err("full"));
    assert_eq!(pins.oldest(100), Some(20));
    assert_eq!(pins.renew(b"x", 70, || Ok::<_, ()>(())), Ok(()));
    assert_eq!(pins.oldest(100), Some(60));
    assert!(pins.before(60).is_empty());
}

#[test]
fn the_lowest_of_all_is_needed() {
    let pins = pins(&[(b"x", Some(20))]);
    assert_eq!(pins.needed(100, [30, 40].into_iter()), 20);
    assert_eq!(pins.needed(100, [10, 40].into_iter()), 10);
    assert_eq!(pins.needed(5, [10, 40].into_iter()), 5);
    pins.end(b"x", None);
    assert_eq!(pins.needed(100, std::iter::empty()), 100);
}

#[test]
fn any_number_of_commits_that_are_not_durable_takes_little_and_keeps_all() {
    let pins = pins(&[]);
    for n in 0..1000 {
        let xid = u64::to_le_bytes(n);
        pins.enter(&xid, Some(n), Arc::new(()));
        pins.end(&xid, Some(2000 + n));
        assert!(pins.lock().ended.len() <= ENDED);
    }
    // Each that is not durable is behind the answer.
    for durable in (1990..3000_u64).step_by(7) {
        let first = (durable + 1).saturating_sub(2000);
        let oldest = pins.oldest(durable);
        assert!(first >= 1000 || oldest.is_some_and(|from| from <= first), "{durable}: {oldest:?}");
    }
    assert_eq!(pins.oldest(3000), None);
}
