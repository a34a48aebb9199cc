#![allow(clippy::disallowed_methods, reason = "tests use threads of their own")]

use std::sync::Arc;
use std::thread::{JoinHandle, spawn, yield_now};
use std::time::Duration;

use terrane_base::SubtableId;

use super::*;
use Mode::{Exclusive, Shared};
use Patience::{For, Forever, Never};

mod histories;
mod joins;
mod measures;
mod stress;
mod trees;

const T: SubtableId = SubtableId(1);
const U: SubtableId = SubtableId(2);

fn table() -> Arc<LockTable> {
    LockTable::new(LockOptions { shards: 4, escalate_at: usize::MAX })
}

fn busy(holders: &[u64]) -> Result<(), Refusal> {
    Err(Refusal::Busy { holders: holders.to_vec() })
}

/// What is held, and that nobody waits. Each range stands in every shard.
fn quiet(table: &LockTable, keys: u64, ranges: u64) {
    assert!(table.parts().0.all(|mutex| lock(mutex).ranges() == ranges), "{ranges} in every shard");
    let counts = table.counts();
    assert_eq!((counts.keys, counts.ranges, counts.waiting), (keys, ranges, 0), "{counts:?}");
}

fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        yield_now();
    }
}

type Asked = JoinHandle<(Owner, Result<(), Refusal>)>;

/// Asks on a thread, and comes back when the request waits.
fn ask(
    table: &Arc<LockTable>,
    mut owner: Owner,
    f: impl FnOnce(&mut Owner) -> Result<(), Refusal> + Send + 'static,
) -> Asked {
    let before = table.counts().waits;
    let asked = spawn(move || {
        let outcome = f(&mut owner);
        (owner, outcome)
    });
    until(|| table.counts().waits > before);
    asked
}

fn ask_key(table: &Arc<LockTable>, owner: Owner, key: &'static [u8], mode: Mode) -> Asked {
    ask(table, owner, move |owner| owner.lock_key(T, key, mode, Forever))
}

#[test]
fn a_table_and_its_owners_can_change_threads() {
    fn sent<O: Send>() {}
    fn shared<O: Send + Sync>() {}
    sent::<Owner>();
    shared::<LockTable>();
    shared::<Refusal>();
}

#[test]
fn only_shared_gets_along_with_shared() {
    for (held, wanted, together) in [
        (Shared, Shared, true),
        (Shared, Exclusive, false),
        (Exclusive, Shared, false),
        (Exclusive, Exclusive, false),
    ] {
        let table = table();
        let (mut a, mut b) = (table.owner(1), table.owner(2));
        a.lock_key(T, b"k", held, Never).unwrap();
        let expected = if together { Ok(()) } else { busy(&[1]) };
        assert_eq!(b.lock_key(T, b"k", wanted, Never), expected);
        assert_eq!(b.lock_range(T, b"a", None, wanted, Never), expected);
        assert_eq!(b.holds(T, b"k", wanted), together);
        assert_eq!(b.lock_key(U, b"k", wanted, Never), Ok(()), "another subtable");
        assert_eq!(b.lock_key(T, b"k\0", wanted, Never), Ok(()), "another key");
    }
}

#[test]
fn an_owner_never_stands_against_itself() {
    let table = table();
    let mut a = table.owner(1);
    a.lock_key(T, b"k", Shared, Never).unwrap();
    a.lock_range(T, b"a", Some(b"z"), Shared, Never).unwrap();
    a.lock_key(T, b"k", Exclusive, Never).unwrap();
    a.lock_range(T, b"b", None, Exclusive, Never).unwrap();
    assert_eq!(a.len(), 3);
    quiet(&table, 1, 2);
    // Those are held already.
    a.lock_key(T, b"k", Shared, Never).unwrap();
    a.lock_key(T, b"c", Exclusive, Never).unwrap();
    a.lock_range(T, b"c", Some(b"d"), Exclusive, Never).unwrap();
    a.lock_range(T, b"a", Some(b"b"), Shared, Never).unwrap();
    assert_eq!(a.len(), 3);
    drop(a);
    quiet(&table, 0, 0);
}

#[test]
fn a_range_covers_keys_and_gaps_from_its_start_to_before_its_end() {
    let table = table();
    let (mut a, mut b) = (table.owner(1), table.owner(2));
    a.lock_range(T, b"b", Some(b"d"), Exclusive, Never).unwrap();
    for (key, covered) in
        [(&b""[..], false), (b"a\xff", false), (b"b", true), (b"bb", true), (b"c\xff", true), (b"d", false)]
    {
        assert_eq!(a.holds(T, key, Exclusive), covered);
        assert_eq!(b.lock_key(T, key, Shared, Never).is_err(), covered, "{key:?}");
        assert_eq!(a.lock_key(T, key, Exclusive, Never).is_err(), !covered, "{key:?}");
    }
    for (start, end, meets) in [
        (&b"a"[..], Some(&b"b"[..]), false),
        (b"a", Some(b"b\0"), true),
        (b"c", Some(b"c\0"), true),
        (b"d", None, false),
        (b"a", None, true),
        (b"c", Some(b"c"), false),
        (b"c", Some(b"b"), false),
    ] {
        assert_eq!(table.owner(3).lock_range(T, start, end, Shared, Never).is_err(), meets, "{start:?}");
    }
    let mut c = table.owner(3);
    c.lock_range(U, b"x", None, Shared, Never).unwrap();
    assert_eq!(b.lock_key(U, b"\xff\xff", Exclusive, Never), busy(&[3]));
    assert_eq!(b.lock_key(U, b"w", Exclusive, Never), Ok(()));
}

#[test]
fn a_range_that_is_refused_in_one_shard_stays_in_none() {
    let table = table();
    let (mut a, mut b) = (table.owner(1), table.owner(2));
    for key in 0..32u8 {
        a.lock_key(T, &[key], Exclusive, Never).unwrap();
        assert_eq!(b.lock_range(T, b"", None, Shared, Never), busy(&[1]));
        assert_eq!(
            b.lock_range(T, b"", None, Shared, For(Duration::from_nanos(1))),
            Err(Refusal::TimedOut { holders: vec![1] })
        );
        a.release_all();
        quiet(&table, 0, 0);
    }
    assert!(b.is_empty());
}

#[test]
fn who_comes_later_does_not_overtake() {
    let table = table();
    let (mut a, mut c) = (table.owner(1), table.owner(3));
    a.lock_key(T, b"k", Shared, Never).unwrap();
    let b = ask_key(&table, table.owner(2), b"k", Exclusive);
    assert_eq!(c.lock_key(T, b"k", Shared, Never), busy(&[2]));
    assert_eq!(c.lock_range(T, b"a", None, Shared, Never), busy(&[2]));
    let c = ask_key(&table, c, b"k", Shared);
    drop(a);
    let (b, outcome) = b.join().unwrap();
    assert_eq!(outcome, Ok(()));
    assert_eq!(table.counts().waiting, 1, "granted to one, and the other goes on waiting");
    drop(b);
    let (c, outcome) = c.join().unwrap();
    assert_eq!(outcome, Ok(()));
    assert!(c.holds(T, b"k", Shared));
    quiet(&table, 1, 0);
}

#[test]
fn a_request_that_goes_lets_those_behind_it_pass() {
    let table = table();
    let mut a = table.owner(1);
    a.lock_key(T, b"k", Shared, Never).unwrap();
    let mut b = table.owner(2);
    b.lock_key(T, b"l", Exclusive, Never).unwrap();
    let b = ask_key(&table, b, b"k", Exclusive);
    let c = ask_key(&table, table.owner(3), b"k", Shared);
    // Closes a circle with the one in front, whose owner is the youngest.
    let a = ask(&table, a, |a| a.lock_key(T, b"l", Exclusive, Forever));
    let (mut b, outcome) = b.join().unwrap();
    assert!(matches!(outcome, Err(Refusal::Deadlock { .. })), "{outcome:?}");
    let (c, outcome) = c.join().unwrap();
    assert_eq!(outcome, Ok(()));
    b.release_all();
    let (a, outcome) = a.join().unwrap();
    assert_eq!(outcome, Ok(()));
    assert_eq!(table.counts().deadlocks, 1);
    drop((a, b, c));
    quiet(&table, 0, 0);
}

#[test]
fn an_upgrade_comes_before_those_who_wait_for_its_owner() {
    let table = table();
    let mut a = table.owner(1);
    a.lock_key(T, b"k", Shared, Never).unwrap();
    let b = ask_key(&table, table.owner(2), b"k", Exclusive);
    // Waits for the one before, and thereby for the first.
    let c = ask_key(&table, table.owner(3), b"k", Shared);
    assert_eq!(a.lock_key(T, b"k", Exclusive, Never), Ok(()));
    assert!(a.holds(T, b"k", Exclusive));
    a.lock_range(T, b"a", None, Exclusive, Never).unwrap();
    drop(a);
    drop(b.join().unwrap().0);
    assert_eq!(c.join().unwrap().1, Ok(()));
    assert_eq!(table.counts().deadlocks, 0);
    quiet(&table, 0, 0);
}

#[test]
fn an_upgrade_waits_for_others_who_share() {
    let table = table();
    let (mut a, mut b) = (table.owner(1), table.owner(2));
    a.lock_key(T, b"k", Shared, Never).unwrap();
    b.lock_key(T, b"k", Shared, Never).unwrap();
    assert_eq!(a.lock_key(T, b"k", Exclusive, Never), busy(&[2]));
    let a = ask_key(&table, a, b"k", Exclusive);
    b.release_all();
    let (a, outcome) = a.join().unwrap();
    assert_eq!(outcome, Ok(()));
    assert_eq!((a.len(), a.holds(T, b"k", Exclusive)), (1, true));
    assert_eq!(b.lock_key(T, b"k", Shared, Never), busy(&[1]));
}

fn cycle(outcome: Result<(), Refusal>) -> Vec<(u64, Vec<u8>, u64)> {
    match outcome {
        Err(Refusal::Deadlock { cycle }) => {
            cycle.iter().map(|step| (step.owner, step.start.to_vec(), step.held_by)).collect()
        }
        other => panic!("no deadlock: {other:?}"),
    }
}

#[test]
fn of_two_who_upgrade_the_younger_gives_way() {
    let table = table();
    let (mut a, mut b) = (table.owner(1), table.owner(2));
    a.lock_key(T, b"k", Shared, Never).unwrap();
    b.lock_key(T, b"k", Shared, Never).unwrap();
    let a = ask_key(&table, a, b"k", Exclusive);
    let outcome = b.lock_key(T, b"k", Exclusive, Forever);
    assert_eq!(cycle(outcome), [(2, b"k".to_vec(), 1), (1, b"k".to_vec(), 2)]);
    assert!(b.holds(T, b"k", Shared), "what it held it holds");
    drop(b);
    assert_eq!(a.join().unwrap().1, Ok(()));
    quiet(&table, 0, 0);
}

#[test]
fn in_a_circle_of_three_the_youngest_gives_way_wherever_it_waits() {
    for youngest in 0..3 {
        let table = table();
        let keys: [&'static [u8]; 3] = [b"p", b"q", b"r"];
        let number = |i: usize| if i == youngest { 9 } else { 1 + i as u64 };
        let mut owners = [0, 1, 2].map(|i| table.owner(number(i)));
        for (owner, key) in owners.iter_mut().zip(keys) {
            owner.lock_key(T, key, Exclusive, Never).unwrap();
        }
        let mut asked: Vec<Asked> = Vec::new();
        for (i, owner) in owners.into_iter().enumerate() {
            asked.push(ask_key(&table, owner, keys[(i + 1) % 3], Exclusive));
        }
        let (victim, outcome) = asked.remove(youngest).join().unwrap();
        if let Err(refusal) = &outcome {
            let next = (youngest + 1) % 3;
            let text = refusal.to_string();
            let first = format!("deadlock: owner 9 waits for owner {}, to lock the key", number(next));
            assert!(text.starts_with(&first), "{text}");
            assert!(text.contains(&format!("\"{}\" of t1 exclusive", keys[next].escape_ascii())), "{text}");
        }
        let expected: Vec<_> = (youngest..youngest + 3)
            .map(|i| (number(i % 3), keys[(i + 1) % 3].to_vec(), number((i + 1) % 3)))
            .collect();
        assert_eq!(cycle(outcome), expected);
        drop(victim);
        // The one that waited for the victim first, then the one that waits for that.
        let mut order = asked;
        if youngest != 1 {
            order.reverse();
        }
        for asked in order {
            assert_eq!(asked.join().unwrap().1, Ok(()));
        }
        assert_eq!(table.counts().deadlocks, 1);
        quiet(&table, 0, 0);
    }
}

#[test]
fn a_deadlock_through_a_range_is_found() {
    let table = table();
    let (mut a, mut b) = (table.owner(1), table.owner(2));
    a.lock_range(T, b"a", Some(b"m"), Exclusive, Never).unwrap();
    b.lock_key(T, b"x", Exclusive, Never).unwrap();
    let b = ask_key(&table, b, b"c", Shared);
    let a = ask(&table, a, |a| a.lock_range(T, b"n", None, Shared, Forever));
    let (b, outcome) = b.join().unwrap();
    assert_eq!(cycle(outcome), [(2, b"c".to_vec(), 1), (1, b"n".to_vec(), 2)]);
    drop(b);
    assert_eq!(a.join().unwrap().1, Ok(()));
    quiet(&table, 0, 0);
}

#[test]
fn one_edge_may_close_two_circles() {
    let table = table();
    let (mut a, mut b, mut c) = (table.owner(1), table.owner(8), table.owner(9));
    b.lock_key(T, b"s", Shared, Never).unwrap();
    c.lock_key(T, b"s", Shared, Never).unwrap();
    a.lock_key(T, b"x", Exclusive, Never).unwrap();
    let b = ask_key(&table, b, b"x", Shared);
    let c = ask_key(&table, c, b"x", Shared);
    let a = ask_key(&table, a, b"s", Exclusive);
    for asked in [b, c] {
        assert_eq!(cycle(asked.join().unwrap().1).len(), 2);
    }
    assert_eq!(a.join().unwrap().1, Ok(()));
    assert_eq!(table.counts().deadlocks, 2);
    quiet(&table, 0, 0);
}

#[test]
fn a_circle_that_closes_when_a_request_goes_is_found() {
    let table = LockTable::new(LockOptions { shards: 1, ..LockOptions::default() });
    let [mut a, mut h, mut z, reader, mut goes] = [1, 2, 3, 4, 9].map(|number| table.owner(number));
    a.lock_key(T, b"k", Shared, Never).unwrap();
    h.lock_key(T, b"k", Shared, Never).unwrap();
    a.lock_key(T, b"p", Exclusive, Never).unwrap();
    z.lock_key(T, b"l", Exclusive, Never).unwrap();
    goes.lock_key(T, b"q", Exclusive, Never).unwrap();
    let goes = ask_key(&table, goes, b"k", Exclusive);
    let reader = ask(&table, reader, |r| r.lock_range(T, b"k", Some(b"m"), Shared, Forever));
    let z = ask_key(&table, z, b"p", Shared);
    // Does not wait for the reader, which is behind a request that waits for this very owner.
    let a = ask_key(&table, a, b"k", Exclusive);
    assert_eq!(table.counts().deadlocks, 0);
    let h = ask_key(&table, h, b"q", Shared);
    let (goes, outcome) = goes.join().unwrap();
    assert_eq!(cycle(outcome)[0].0, 9);
    // Now it does: the reader stands in front, and waits for one who waits for the upgrade.
    let (reader, outcome) = reader.join().unwrap();
    let expected = [(4, b"k".to_vec(), 3), (3, b"p".to_vec(), 1), (1, b"k".to_vec(), 4)];
    assert_eq!(cycle(outcome), expected);
    drop((goes, reader));
    let (h, outcome) = h.join().unwrap();
    assert_eq!(outcome, Ok(()));
    drop(h);
    assert_eq!(a.join().unwrap().1, Ok(()));
    assert_eq!(z.join().unwrap().1, Ok(()));
    quiet(&table, 0, 0);
}

#[test]
fn a_time_out_leaves_nothing_behind() {
    let table = table();
    let (mut a, mut b, mut c) = (table.owner(1), table.owner(2), table.owner(3));
    a.lock_key(T, b"k", Shared, Never).unwrap();
    b.lock_key(T, b"b", Exclusive, Never).unwrap();
    for patience in [Duration::ZERO, Duration::from_millis(2)] {
        let timed_out = Err(Refusal::TimedOut { holders: vec![1] });
        assert_eq!(b.lock_key(T, b"k", Exclusive, For(patience)), timed_out);
        assert_eq!(b.lock_range(T, b"c", None, Exclusive, For(patience)), timed_out);
        assert!(b.holds(T, b"b", Exclusive) && b.len() == 1);
    }
    assert_eq!(c.lock_key(T, b"k", Shared, Never), Ok(()), "nobody waits any more");
    assert_eq!(table.counts().timeouts, 4);
    drop((a, b, c));
    quiet(&table, 0, 0);
}

#[test]
fn who_waits_with_a_limit_is_granted_before_it() {
    let table = table();
    let mut a = table.owner(1);
    a.lock_key(T, b"k", Shared, Never).unwrap();
    let long = For(Duration::from_secs(3600));
    let b = ask(&table, table.owner(2), move |b| b.lock_range(T, b"", None, Exclusive, long));
    drop(a);
    assert_eq!(b.join().unwrap().1, Ok(()));
    quiet(&table, 0, 0);
}

#[test]
fn a_savepoint_gives_back_what_came_after() {
    let table = table();
    let (mut a, mut b) = (table.owner(1), table.owner(2));
    a.lock_key(T, b"old", Exclusive, Never).unwrap();
    a.lock_key(T, b"up", Shared, Never).unwrap();
    a.lock_range(T, b"r", Some(b"s"), Shared, Never).unwrap();
    let mark = a.mark();
    a.lock_key(T, b"up", Exclusive, Never).unwrap();
    a.lock_key(T, b"new", Shared, Never).unwrap();
    a.lock_key(T, b"new", Exclusive, Never).unwrap();
    a.lock_range(T, b"t", Some(b"v"), Exclusive, Never).unwrap();
    a.lock_key(T, b"old", Shared, Never).unwrap();
    assert_eq!(b.lock_key(T, b"up", Shared, Never), busy(&[1]));
    let waits = ask_key(&table, b, b"up", Shared);
    a.release_to(mark);
    let (mut b, outcome) = waits.join().unwrap();
    assert_eq!(outcome, Ok(()), "a downgrade lets others in");
    assert_eq!(a.len(), 3);
    quiet(&table, 3, 1);
    assert!(a.holds(T, b"up", Shared) && !a.holds(T, b"up", Exclusive) && !a.holds(T, b"new", Shared));
    assert_eq!(b.lock_key(T, b"up", Exclusive, Never), busy(&[1]));
    assert_eq!(b.lock_key(T, b"old", Shared, Never), busy(&[1]));
    assert_eq!(b.lock_key(T, b"new", Exclusive, Never), Ok(()));
    assert_eq!(b.lock_key(T, b"u", Exclusive, Never), Ok(()));
    assert_eq!(b.lock_key(T, b"r", Exclusive, Never), busy(&[1]));
    let mut seen = Vec::new();
    a.for_each(&mut |held| {
        seen.push((held.start.to_vec(), held.end.map(<[u8]>::to_vec), held.mode, held.is_key))
    });
    let expected = [
        (b"old".to_vec(), None, Exclusive, true),
        (b"up".to_vec(), None, Shared, true),
        (b"r".to_vec(), Some(b"s".to_vec()), Shared, false),
    ];
    assert_eq!(seen, expected);
    a.release_to(mark);
    assert_eq!(a.len(), 3);
}

fn number(i: u32) -> [u8; 4] {
    i.to_be_bytes()
}

#[test]
fn locks_that_are_taken_as_they_were_leave_the_gaps_to_others() {
    let table = LockTable::new(LockOptions { shards: 4, escalate_at: 16 });
    let mut owners = [1, 2].map(|n| table.owner(n));
    for (o, owner) in owners.iter_mut().enumerate() {
        owner.lock_exactly();
        for i in 0..100 {
            let key = number(4 * i + o as u32);
            owner.lock_key(T, &key, Exclusive, Never).unwrap();
            let (from, to) = (number(4 * i + 2 + o as u32), number(4 * i + 3 + o as u32));
            owner.lock_range(T, &from, Some(&to), Exclusive, Never).unwrap();
        }
        assert_eq!(owner.len(), 200);
    }
    assert_eq!(table.counts().escalations, 0);
}

#[test]
fn locks_on_long_keys_become_ranges_sooner() {
    let table = LockTable::new(LockOptions { shards: 4, escalate_at: 100 });
    let mut a = table.owner(1);
    let key = |i: u32| [&number(i)[..], &[7; 1000]].concat();
    // Each weighs eight.
    (0..12).for_each(|i| a.lock_key(T, &key(i), Shared, Never).unwrap());
    assert_eq!((a.len(), table.counts().escalations), (12, 0));
    a.lock_key(T, &key(12), Exclusive, Never).unwrap();
    assert_eq!((a.len(), table.counts().escalations), (13, 0), "modes are counted apart");
    a.lock_key(T, &key(13), Shared, Never).unwrap();
    assert_eq!(table.counts().escalations, 1);
    assert!(a.len() <= 9, "{a:?}");
    assert!((0..14).all(|i| a.holds(T, &key(i), Shared)));
    a.release_all();
    quiet(&table, 0, 0);
}

#[test]
fn many_key_locks_become_few_ranges() {
    let table = LockTable::new(LockOptions { shards: 4, escalate_at: 100 });
    let (mut a, mut b) = (table.owner(1), table.owner(2));
    let mark = a.mark();
    a.lock_key(U, b"elsewhere", Exclusive, Never).unwrap();
    for i in 0..99 {
        a.lock_key(T, &number(2 * i), Exclusive, Never).unwrap();
    }
    a.lock_key(T, &number(3), Shared, Never).unwrap();
    assert_eq!((a.len(), table.counts().escalations), (101, 0));
    a.lock_key(T, &number(1000), Exclusive, Never).unwrap();
    let counts = table.counts();
    assert_eq!((counts.escalations, counts.ranges), (1, 8));
    assert!(a.len() <= 10, "{a:?}");
    (0..99).for_each(|i| assert!(a.holds(T, &number(2 * i), Exclusive)));
    // Between them it holds what it did not ask for.
    assert!(a.holds(T, &number(5), Exclusive) && !a.asked_for(T, &number(5)));
    assert!(a.holds(T, &number(1000), Exclusive) && a.holds(U, b"elsewhere", Exclusive));
    assert!(!a.holds(T, &number(1001), Shared));
    assert_eq!(b.lock_key(T, &number(2), Shared, Never), busy(&[1]));
    a.lock_key(T, &number(2), Exclusive, Never).unwrap();
    let later = a.mark();
    a.lock_key(T, b"later", Exclusive, Never).unwrap();
    a.release_to(later);
    assert!(!a.holds(T, b"later", Shared));
    a.release_to(mark);
    assert_eq!(a.len(), 8, "ranges stay");
    assert!(a.holds(T, &number(2), Exclusive));
    a.release_all();
    quiet(&table, 0, 0);
}

#[test]
fn a_range_that_is_busy_puts_escalation_off() {
    let table = LockTable::new(LockOptions { shards: 4, escalate_at: 64 });
    let mut a = table.owner(1);
    // In a gap between each two of the first 128 keys, and none of them has many.
    let mut others = [2, 3, 4].map(|number| table.owner(number));
    for i in 0..128 {
        others[i as usize % 3].lock_key(T, &number(2 * i + 1), Shared, Never).unwrap();
    }
    for i in 0..127 {
        a.lock_key(T, &number(2 * i), Exclusive, Never).unwrap();
        assert_eq!((table.counts().escalations, a.len()), (0, i as usize + 1));
    }
    drop(others);
    a.lock_key(T, &number(2 * 127), Exclusive, Never).unwrap();
    assert_eq!((table.counts().escalations, a.len()), (1, 8), "when they have become twice as many");
    (0..128).for_each(|i| assert!(a.holds(T, &number(2 * i), Exclusive)));
    quiet(&table, 0, 8);
}

#[test]
fn one_busy_range_leaves_its_keys_and_takes_the_others() {
    let table = LockTable::new(LockOptions { shards: 4, escalate_at: 64 });
    let (mut a, mut b) = (table.owner(1), table.owner(2));
    b.lock_key(T, &number(1), Shared, Never).unwrap();
    // Waits for a key that becomes part of a range.
    a.lock_key(T, &number(60), Exclusive, Never).unwrap();
    let waits = ask(&table, table.owner(3), |c| c.lock_key(T, &number(60), Shared, Forever));
    (0..64).for_each(|i| a.lock_key(T, &number(2 * i), Exclusive, Never).unwrap());
    assert_eq!((table.counts().escalations, a.len()), (1, 7 + 8));
    (0..64).for_each(|i| assert!(a.holds(T, &number(2 * i), Exclusive)));
    assert_eq!(table.counts().waiting, 1);
    a.release_all();
    assert_eq!(waits.join().unwrap().1, Ok(()));
    drop(b);
    quiet(&table, 0, 0);
}
