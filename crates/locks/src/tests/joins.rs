//! Ranges that become one, and locks that become ranges.

use super::*;

/// The ranges that an owner holds, in order.
fn ranges(owner: &Owner) -> Vec<(Vec<u8>, Option<Vec<u8>>, Mode)> {
    let mut seen = Vec::new();
    owner.for_each(&mut |held| {
        if !held.is_key {
            seen.push((held.start.to_vec(), held.end.map(<[u8]>::to_vec), held.mode));
        }
    });
    seen
}

fn range(start: &[u8], end: &[u8], mode: Mode) -> (Vec<u8>, Option<Vec<u8>>, Mode) {
    (start.to_vec(), Some(end.to_vec()), mode)
}

#[test]
fn windows_of_a_scan_become_one_range() {
    for backward in [false, true] {
        let table = table();
        let mut a = table.owner(1);
        for i in 0..1000 {
            let i = if backward { 999 - i } else { i };
            a.lock_range(T, &number(i), Some(&number(i + 1)), Shared, Never).unwrap();
            assert_eq!(a.len(), 1);
        }
        quiet(&table, 0, 1);
        assert_eq!(ranges(&a), [range(&number(0), &number(1000), Shared)]);
        a.lock_range(T, &number(500), None, Shared, Never).unwrap();
        assert_eq!(ranges(&a), [(number(0).to_vec(), None, Shared)]);
        quiet(&table, 0, 1);
        drop(a);
        quiet(&table, 0, 0);
    }
}

#[test]
fn ranges_join_in_one_mode_and_subtable_only_if_they_touch() {
    let table = table();
    let mut a = table.owner(1);
    a.lock_range(T, b"b", Some(b"c"), Shared, Never).unwrap();
    a.lock_range(T, b"c", Some(b"d"), Exclusive, Never).unwrap();
    a.lock_range(U, b"c", Some(b"d"), Shared, Never).unwrap();
    a.lock_range(T, b"e", Some(b"f"), Shared, Never).unwrap();
    a.lock_range(T, b"g", Some(b"h"), Shared, Never).unwrap();
    assert_eq!(a.len(), 5);
    // What is held exclusively is not taken again.
    a.lock_range(T, b"c", Some(b"e"), Shared, Never).unwrap();
    a.lock_range(T, b"e\0", Some(b"g"), Shared, Never).unwrap();
    let expected = [
        range(b"b", b"c", Shared),
        range(b"d", b"h", Shared),
        range(b"c", b"d", Exclusive),
        range(b"c", b"d", Shared),
    ];
    assert_eq!(ranges(&a), expected);
    quiet(&table, 0, 4);
}

#[test]
fn a_mark_keeps_ranges_apart_until_it_is_forgotten() {
    let table = table();
    let (mut a, mut b) = (table.owner(1), table.owner(2));
    a.lock_range(T, b"b", Some(b"c"), Shared, Never).unwrap();
    let outer = a.mark();
    a.lock_range(T, b"c", Some(b"d"), Shared, Never).unwrap();
    let inner = a.mark();
    a.lock_range(T, b"c", Some(b"e"), Shared, Never).unwrap();
    a.lock_range(T, b"e", Some(b"f"), Shared, Never).unwrap();
    let parts = [range(b"b", b"c", Shared), range(b"c", b"d", Shared), range(b"d", b"f", Shared)];
    assert_eq!(ranges(&a), parts);
    a.forget(inner);
    assert_eq!(ranges(&a), [range(b"b", b"c", Shared), range(b"c", b"f", Shared)]);
    a.release_to(inner);
    assert_eq!(a.len(), 2, "it is not good any more");
    a.release_to(outer);
    assert_eq!(ranges(&a), [range(b"b", b"c", Shared)]);
    assert_eq!(b.lock_range(T, b"c", None, Exclusive, Never), Ok(()));
    b.release_all();
    a.lock_range(T, b"a", Some(b"d"), Shared, Never).unwrap();
    a.release_to(outer);
    assert_eq!(ranges(&a), [range(b"b", b"c", Shared)], "a mark is good for several ways back");
    a.lock_range(T, b"a", Some(b"d"), Shared, Never).unwrap();
    a.forget(outer);
    assert_eq!(ranges(&a), [range(b"a", b"d", Shared)]);
    quiet(&table, 0, 1);
}

#[test]
fn two_marks_at_one_moment_are_two() {
    let table = table();
    let mut a = table.owner(1);
    let (outer, inner) = (a.mark(), a.mark());
    a.forget(inner);
    a.lock_range(T, b"b", Some(b"c"), Shared, Never).unwrap();
    a.lock_key(T, b"k", Shared, Never).unwrap();
    a.release_to(outer);
    assert!(a.is_empty());
    let stale = a.mark();
    a.lock_key(T, b"k", Shared, Never).unwrap();
    a.release_all();
    a.lock_key(T, b"k", Shared, Never).unwrap();
    a.release_to(stale);
    assert_eq!(a.len(), 1);
}

#[test]
fn who_waits_for_a_range_that_grows_gets_it_in_the_end() {
    let table = table();
    let mut a = table.owner(1);
    a.lock_range(T, b"b", Some(b"d"), Shared, Never).unwrap();
    let mark = a.mark();
    let b = ask_key(&table, table.owner(2), b"c", Exclusive);
    a.lock_range(T, b"d", Some(b"e"), Shared, Never).unwrap();
    a.forget(mark);
    assert_eq!(ranges(&a), [range(b"b", b"e", Shared)]);
    assert_eq!(table.counts().waiting, 1);
    drop(a);
    let (b, outcome) = b.join().unwrap();
    assert_eq!(outcome, Ok(()));
    quiet(&table, 1, 0);
    drop(b);
}

#[test]
fn a_range_that_is_refused_where_it_would_grow_leaves_what_was_held() {
    let table = table();
    let (mut a, mut b) = (table.owner(1), table.owner(2));
    a.lock_range(T, &[8], Some(&[16]), Shared, Never).unwrap();
    a.lock_range(T, &[20], Some(&[24]), Shared, Never).unwrap();
    for key in (16..20).chain(24..40) {
        b.lock_key(T, &[key], Exclusive, Never).unwrap();
        assert_eq!(a.lock_range(T, &[12], Some(&[40]), Shared, Never), busy(&[2]));
        let timed_out = Err(Refusal::TimedOut { holders: vec![2] });
        assert_eq!(a.lock_range(T, &[12], Some(&[40]), Shared, For(Duration::from_nanos(1))), timed_out);
        assert_eq!(ranges(&a), [range(&[8], &[16], Shared), range(&[20], &[24], Shared)]);
        quiet(&table, 1, 2);
        b.release_all();
        for key in 0..48 {
            let held = (8..16).contains(&key) || (20..24).contains(&key);
            let expected = if held { busy(&[1]) } else { Ok(()) };
            assert_eq!(table.owner(3).lock_key(T, &[key], Exclusive, Never), expected, "{key}");
        }
    }
}

#[test]
fn a_range_that_has_to_wait_where_it_would_grow_is_one_in_the_end() {
    for key in 16..24 {
        let table = table();
        let (mut a, mut b) = (table.owner(1), table.owner(2));
        a.lock_range(T, &[8], Some(&[16]), Shared, Never).unwrap();
        a.lock_range(T, &[24], Some(&[32]), Shared, Never).unwrap();
        b.lock_key(T, &[key], Exclusive, Never).unwrap();
        let a = ask(&table, a, |a| a.lock_range(T, &[16], Some(&[24]), Shared, Forever));
        drop(b);
        let (a, outcome) = a.join().unwrap();
        assert_eq!((outcome, ranges(&a)), (Ok(()), vec![range(&[8], &[32], Shared)]));
        quiet(&table, 0, 1);
        drop(a);
        quiet(&table, 0, 0);
    }
}

#[test]
fn many_shared_key_locks_become_shared_ranges() {
    let table = LockTable::new(LockOptions { shards: 4, escalate_at: 100 });
    let (mut a, mut b) = (table.owner(1), table.owner(2));
    let early = a.mark();
    a.lock_key(T, &number(7), Exclusive, Never).unwrap();
    let mark = a.mark();
    (0..100).for_each(|i| a.lock_key(T, &number(2 * i), Shared, Never).unwrap());
    assert_eq!((table.counts().escalations, a.len()), (1, 8 + 1), "the exclusive one stays as it is");
    (0..100)
        .for_each(|i| assert!(a.holds(T, &number(2 * i), Shared) && !a.holds(T, &number(2 * i), Exclusive)));
    assert!(a.holds(T, &number(7), Exclusive) && a.holds(T, &number(9), Shared));
    assert!(a.asked_for(T, &number(7)) && !a.asked_for(T, &number(8)));
    assert_eq!(b.lock_key(T, &number(8), Shared, Never), Ok(()), "no more than shared");
    assert_eq!(b.lock_key(T, &number(10), Exclusive, Never), busy(&[1]));
    assert_eq!(a.lock_key(T, &number(8), Exclusive, Never), busy(&[2]));
    b.release_all();
    a.lock_key(T, &number(8), Exclusive, Never).unwrap();
    a.release_to(mark);
    assert!(!a.holds(T, &number(8), Exclusive) && a.holds(T, &number(8), Shared), "ranges stay");
    assert!(a.holds(T, &number(7), Exclusive));
    a.release_to(early);
    assert!(!a.holds(T, &number(7), Exclusive));
    quiet(&table, 0, 8);
}

#[test]
fn a_key_stays_locked_if_only_what_goes_before_it_covers_it() {
    let table = LockTable::new(LockOptions { shards: 4, escalate_at: 16 });
    let (mut a, mut b) = (table.owner(1), table.owner(2));
    b.lock_key(T, &number(1), Exclusive, Never).unwrap();
    (0..15).for_each(|i| a.lock_key(T, &number(2 * i), Exclusive, Never).unwrap());
    let mark = a.mark();
    a.lock_range(T, &number(0), Some(&number(1)), Exclusive, Never).unwrap();
    a.lock_key(T, &number(30), Exclusive, Never).unwrap();
    assert_eq!(table.counts().escalations, 1);
    a.release_to(mark);
    (0..15).for_each(|i| assert!(a.holds(T, &number(2 * i), Exclusive), "{i}"));
    assert_eq!(b.lock_key(T, &number(0), Shared, Never), busy(&[1]));
}

#[test]
fn an_upgrade_outlives_the_key_locks_that_become_shared_ranges() {
    let table = LockTable::new(LockOptions { shards: 4, escalate_at: 32 });
    let mut a = table.owner(1);
    a.lock_key(T, &number(5), Shared, Never).unwrap();
    let mark = a.mark();
    a.lock_key(T, &number(5), Exclusive, Never).unwrap();
    (100..131).for_each(|i| a.lock_key(T, &number(2 * i), Shared, Never).unwrap());
    assert_eq!(table.counts().escalations, 0, "those of one mode are too few");
    a.lock_key(T, &number(0), Shared, Never).unwrap();
    assert_eq!((table.counts().escalations, table.counts().keys), (1, 1));
    assert!(a.holds(T, &number(5), Exclusive));
    a.release_to(mark);
    assert!(a.holds(T, &number(5), Shared) && !a.holds(T, &number(5), Exclusive));
    assert!(a.holds(T, &number(200), Shared));
}

#[test]
fn escalations_one_after_the_other_hold_few_ranges() {
    let table = LockTable::new(LockOptions { shards: 2, escalate_at: 64 });
    for mode in [Shared, Exclusive] {
        let mut a = table.owner(1);
        for i in 0..20_000 {
            a.lock_key(T, &number(2 * i), mode, Never).unwrap();
            assert!(a.len() < 64 + 2 * 16, "{a:?} at {i}");
        }
        (0..20_000).for_each(|i| assert!(a.holds(T, &number(2 * i), mode)));
        assert!(!a.holds(T, &number(2 * 20_000), Shared));
    }
    quiet(&table, 0, 0);
}

#[test]
fn ranges_that_do_not_touch_become_few_if_nobody_is_between() {
    let table = LockTable::new(LockOptions { shards: 2, escalate_at: 64 });
    let (mut a, mut b) = (table.owner(1), table.owner(2));
    a.lock_range(U, b"x", None, Shared, Never).unwrap();
    let mark = a.mark();
    b.lock_key(T, &number(3), Exclusive, Never).unwrap();
    let window = |i: u32| (number(4 * i), number(4 * i + 2));
    for i in 0..16 {
        assert_eq!(table.counts().escalations, 0);
        let (start, end) = window(i);
        a.lock_range(T, &start, Some(&end), Shared, Never).unwrap();
    }
    // The two beside the key of the other owner stay as they are.
    assert_eq!((table.counts().escalations, a.len()), (1, 1 + 2 + 7));
    assert_eq!(b.lock_key(T, &number(2), Exclusive, Never), Ok(()));
    assert_eq!(b.lock_key(T, &number(4), Exclusive, Never), busy(&[1]));
    assert_eq!(b.lock_key(T, &number(10), Exclusive, Never), busy(&[1]), "between two that became one");
    assert!(a.asked_for(T, &number(4)) && a.holds(T, &number(8), Shared) && !a.asked_for(T, &number(8)));
    a.release_to(mark);
    assert!(!a.holds(T, &number(4), Shared) && a.holds(T, &number(8), Shared), "what took their place stays");
    drop((a, b));
    quiet(&table, 0, 0);
}

#[test]
fn keys_are_locked_beside_ranges_that_do_not_stand_against_them() {
    let table = table();
    let (mut a, mut b, mut c) = (table.owner(1), table.owner(2), table.owner(3));
    a.lock_range(T, b"b", Some(b"d"), Shared, Never).unwrap();
    b.lock_range(T, b"b", Some(b"e"), Shared, Never).unwrap();
    c.lock_range(T, b"x", None, Exclusive, Never).unwrap();
    for (key, mode, outcome) in [
        (&b"c"[..], Shared, Ok(())),
        (b"c", Exclusive, busy(&[1, 2])),
        (b"d", Exclusive, busy(&[2])),
        (b"e", Exclusive, Ok(())),
        (b"x", Shared, busy(&[3])),
    ] {
        assert_eq!(table.owner(4).lock_key(T, key, mode, Never), outcome, "{key:?}");
    }
    assert_eq!(a.lock_key(T, b"d", Exclusive, Never), busy(&[2]));
    assert_eq!(b.lock_key(T, b"d", Exclusive, Never), Ok(()), "its own range is none against it");
}
