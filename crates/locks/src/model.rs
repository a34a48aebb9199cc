//! Loom models: every interleaving of two or three owners. What the locks guard is a cell that loom lets nobody enter while another
//! is in, and a wake-up that is lost leaves all threads asleep, which loom reports. With what the protocol rests on left out
//! ([`Flaw`]), it does.

use std::sync::Arc;
use std::time::Duration;

use terrane_base::SubtableId;
use terrane_base::sync::{UnsafeCell, thread};

use super::*;
use crate::cell::{Cell, Verdict};
use crate::wish::{Reach, Wish};
use Mode::{Exclusive, Shared};
use Patience::{Forever, Never};

const T: SubtableId = SubtableId(1);
/// A wait with a limit may end at any time.
const LIMITED: Patience = Patience::For(Duration::from_secs(1));

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// Who gives a lock back does not look at those who wait.
    Heedless,
    /// It enters the lock of the next, and does not tell.
    Silent,
    /// It tells the next while it still is in.
    Hasty,
    /// A request goes whose time is over, and nobody looks at those behind it.
    Abandoning,
    /// It goes without looking whether it was granted.
    Blind,
    /// Who extends a range takes out what it had before the whole is in.
    Parting,
}

struct Rig {
    table: Arc<LockTable>,
    witness: UnsafeCell<()>,
}

impl Rig {
    fn new(shards: usize) -> Arc<Rig> {
        let table = LockTable::new(LockOptions { shards, ..LockOptions::default() });
        Arc::new(Rig { table, witness: UnsafeCell::new(()) })
    }

    fn visit(&self, mode: Mode) {
        match mode {
            Shared => self.witness.with(|_| ()),
            Exclusive => self.witness.with_mut(|_| ()),
        }
    }

    /// Locks the one key of the models with one shard, and gives it back, perhaps wrongly.
    fn take_turn(&self, owner: u64, mode: Mode, flaw: Flaw) {
        let mut owner = self.table.owner(owner);
        owner.lock_key(T, b"k", mode, Forever).unwrap();
        if flaw == Flaw::Hasty {
            self.give_back_wrongly(owner, flaw);
            self.visit(mode);
            return;
        }
        self.visit(mode);
        if flaw != Flaw::None {
            self.give_back_wrongly(owner, flaw);
        }
    }

    fn give_back_wrongly(&self, owner: Owner, flaw: Flaw) {
        let (mut shards, graph) = self.table.parts();
        let mut shard = lock(shards.next().unwrap());
        shard.remove_key(owner.number(), T, b"k");
        match flaw {
            Flaw::Silent => shard.settle_silently(),
            Flaw::Hasty => shard.settle(graph),
            _ => {}
        }
        drop(shard);
        // It finds nothing to give back any more.
        std::mem::forget(owner);
    }

    /// A request for the one key whose time runs out at once, done wrongly.
    fn lose_patience_wrongly(&self, owner: u64, flaw: Flaw) {
        let wish = Wish {
            owner,
            subtable: T,
            mode: Exclusive,
            start: Arc::from(&b"k"[..]),
            reach: Reach::Key,
            serial: 0,
        };
        let wish = Arc::new(wish);
        let (mut shards, graph) = self.table.parts();
        let mutex = shards.next().unwrap();
        let mut shard = lock(mutex);
        let blockers = shard.blockers(&wish);
        if blockers.is_empty() {
            return;
        }
        let cell = Arc::new(Cell::new());
        shard.push(&wish, &cell);
        lock(graph).enter(&wish, &cell, blockers);
        drop(shard);
        let mut shard = lock(mutex);
        if flaw == Flaw::Blind || matches!(cell.verdict(), Verdict::Waiting) {
            lock(graph).give_up(owner);
            shard.withdraw(&cell);
            if flaw != Flaw::Abandoning {
                shard.settle(graph);
            }
        } else {
            shard.remove_key(owner, T, b"k");
            shard.settle(graph);
        }
    }

    /// Locks a range, which is done, and then what touches it, and visits before and after. Then it perhaps goes back to where it was,
    /// and visits once more.
    fn extend(&self, number: u64, goes_back: bool, flaw: Flaw) {
        let mut owner = self.table.owner(number);
        owner.lock_range(T, b"", Some(b"\x80"), Shared, Forever).unwrap();
        self.visit(Shared);
        let mark = goes_back.then(|| owner.mark());
        if flaw == Flaw::Parting {
            return self.extend_wrongly(&owner);
        }
        owner.lock_range(T, b"\x80", None, Shared, Forever).unwrap();
        self.visit(Shared);
        if let Some(mark) = mark {
            assert_eq!(owner.len(), 2);
            owner.release_to(mark);
            self.visit(Shared);
        }
        assert_eq!(owner.len(), 1);
    }

    fn extend_wrongly(&self, owner: &Owner) {
        let wish = |reach| {
            let start = Arc::from(&b""[..]);
            Wish { owner: owner.number(), subtable: T, mode: Shared, start, reach, serial: 1 }
        };
        let part = Arc::new(wish(Reach::Before(Arc::from(&b"\x80"[..]))));
        let whole = Arc::new(wish(Reach::End));
        for mutex in self.table.parts().0 {
            lock(mutex).remove_range(&part);
            lock(mutex).enter(&whole);
        }
        self.visit(Shared);
        // What it finds to give back is what it knows.
        self.table.join_ranges(&[whole], &part);
    }

    fn is_quiet(&self) {
        let counts = self.table.counts();
        assert_eq!((counts.keys, counts.ranges, counts.waiting), (0, 0, 0), "something stays: {counts:?}");
    }
}

/// A key that falls to the given one of two shards.
fn key_in(shard: u64) -> [u8; 1] {
    let here = |key: &[u8; 1]| owner::hash(T, key) >> 63 == shard;
    (0..=255).map(|key| [key]).find(here).unwrap()
}

fn explore(bound: usize, f: impl Fn() + Sync + Send + 'static) {
    terrane_base::sync::bounded(bound).check(f);
}

/// How often something came out one way and the other, over all interleavings: a model that never gets there shows nothing.
#[derive(Clone, Default)]
struct Ways(Arc<[std::sync::atomic::AtomicUsize; 2]>);

impl Ways {
    fn count(&self, way: bool) {
        self.0[usize::from(way)].fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    fn were_both_seen(&self) {
        assert!(
            self.0.iter().all(|seen| seen.load(std::sync::atomic::Ordering::Relaxed) > 0),
            "{:?}",
            self.0
        );
    }
}

fn hand_over(flaw: Flaw) {
    explore(3, move || {
        let rig = Rig::new(1);
        let other = rig.clone();
        let second = thread::spawn(move || other.take_turn(2, Exclusive, flaw));
        rig.take_turn(1, Exclusive, flaw);
        second.join().unwrap();
        rig.is_quiet();
    });
}

#[test]
fn two_owners_hand_a_key_over() {
    hand_over(Flaw::None);
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_gives_back_must_look_at_those_who_wait() {
    hand_over(Flaw::Heedless);
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_is_granted_a_lock_must_be_told() {
    hand_over(Flaw::Silent);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_lock_given_back_too_early_excludes_nobody() {
    hand_over(Flaw::Hasty);
}

#[test]
fn readers_and_a_writer_hand_a_key_over() {
    explore(2, || {
        let rig = Rig::new(1);
        let (second, third) = (rig.clone(), rig.clone());
        let second = thread::spawn(move || second.take_turn(2, Exclusive, Flaw::None));
        let third = thread::spawn(move || third.take_turn(3, Shared, Flaw::None));
        rig.take_turn(1, Shared, Flaw::None);
        second.join().unwrap();
        third.join().unwrap();
        rig.is_quiet();
    });
}

#[test]
fn a_key_and_a_range_exclude_each_other_in_either_shard() {
    for shard in 0..2 {
        explore(3, move || {
            let rig = Rig::new(2);
            let other = rig.clone();
            let ranger = thread::spawn(move || {
                let mut owner = other.table.owner(2);
                owner.lock_range(T, b"", None, Exclusive, Forever).unwrap();
                other.visit(Exclusive);
            });
            let mut owner = rig.table.owner(1);
            owner.lock_key(T, &key_in(shard), Exclusive, Forever).unwrap();
            rig.visit(Exclusive);
            drop(owner);
            ranger.join().unwrap();
            rig.is_quiet();
        });
    }
}

/// One extends a range that it holds, while another wants a key that lies in it from the beginning.
fn extension(shards: usize, goes_back: bool, flaw: Flaw) {
    explore(3, move || {
        let rig = Rig::new(shards);
        let other = rig.clone();
        let second = thread::spawn(move || {
            let mut owner = other.table.owner(2);
            owner.lock_key(T, &key_in(0), Exclusive, Forever).unwrap();
            other.visit(Exclusive);
        });
        rig.extend(1, goes_back, flaw);
        second.join().unwrap();
        rig.is_quiet();
    });
}

#[test]
fn a_range_is_extended_while_another_wants_what_it_covers() {
    extension(1, false, Flaw::None);
    extension(2, false, Flaw::None);
}

#[test]
fn a_range_that_was_extended_goes_back_to_what_it_was() {
    extension(1, true, Flaw::None);
    extension(2, true, Flaw::None);
}

/// One extends a range to where another has a key, or is about to.
fn extension_in_the_way(shard: u64, patience: Patience) {
    let ways = Ways::default();
    let ways_of_all = ways.clone();
    explore(3, move || {
        let rig = Rig::new(2);
        let other = rig.clone();
        let second = thread::spawn(move || {
            let mut owner = other.table.owner(2);
            owner.lock_key(T, &key_in(shard), Exclusive, Forever).unwrap();
            other.visit(Exclusive);
        });
        let mut owner = rig.table.owner(1);
        owner.lock_range(T, b"\xff", None, Shared, Forever).unwrap();
        let outcome = owner.lock_range(T, b"", Some(b"\xff\x80"), Shared, patience);
        ways.count(outcome.is_ok());
        if outcome.is_ok() {
            rig.visit(Shared);
        }
        assert_eq!((owner.len(), owner.holds(T, &key_in(shard), Shared)), (1, outcome.is_ok()));
        assert_eq!(rig.table.counts().ranges, 1);
        drop(owner);
        second.join().unwrap();
        rig.is_quiet();
    });
    match patience {
        Forever => {}
        _ => ways_of_all.were_both_seen(),
    }
}

#[test]
fn a_range_waits_where_it_would_grow() {
    extension_in_the_way(0, Forever);
    extension_in_the_way(1, Forever);
}

#[test]
fn a_range_that_may_not_grow_is_what_it_was() {
    extension_in_the_way(0, LIMITED);
    extension_in_the_way(1, LIMITED);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn the_whole_of_a_range_must_be_in_before_its_part_goes() {
    extension(1, false, Flaw::Parting);
}

/// Locks two things one after the other. Whether it got both.
fn two_locks(rig: &Rig, number: u64, locks: [impl Fn(&mut Owner) -> Result<(), Refusal>; 2]) -> bool {
    let mut owner = rig.table.owner(number);
    let outcome = locks.iter().try_for_each(|lock| lock(&mut owner));
    match outcome {
        Ok(()) => rig.visit(Exclusive),
        Err(refusal) => {
            let Refusal::Deadlock { cycle } = refusal else { panic!("no deadlock: {refusal}") };
            let steps: Vec<_> = cycle.iter().map(|step| (step.owner, step.held_by)).collect();
            assert_eq!(steps, [(2, 1), (1, 2)]);
            return false;
        }
    }
    true
}

#[test]
fn of_two_in_a_deadlock_the_younger_alone_gives_way() {
    let ways = Ways::default();
    let ways_of_all = ways.clone();
    explore(3, move || {
        let rig = Rig::new(2);
        let other = rig.clone();
        let key = |shard| move |owner: &mut Owner| owner.lock_key(T, &key_in(shard), Exclusive, Forever);
        let younger = thread::spawn(move || two_locks(&other, 2, [key(1), key(0)]));
        assert!(two_locks(&rig, 1, [key(0), key(1)]), "the older gets both");
        let got_both = younger.join().unwrap();
        assert_eq!(rig.table.counts().deadlocks, u64::from(!got_both));
        ways.count(got_both);
        rig.is_quiet();
    });
    ways_of_all.were_both_seen();
}

#[test]
fn a_range_between_two_shards_may_be_in_a_deadlock() {
    let ways = Ways::default();
    let ways_of_all = ways.clone();
    explore(3, move || {
        let rig = Rig::new(2);
        let other = rig.clone();
        let younger = thread::spawn(move || {
            let mut owner = other.table.owner(2);
            let outcome = owner.lock_range(T, b"", None, Exclusive, Forever);
            if outcome.is_ok() {
                other.visit(Exclusive);
            }
            outcome.is_ok()
        });
        let key = |shard| move |owner: &mut Owner| owner.lock_key(T, &key_in(shard), Exclusive, Forever);
        assert!(two_locks(&rig, 1, [key(1), key(0)]), "the older gets both");
        let got_range = younger.join().unwrap();
        assert_eq!(rig.table.counts().deadlocks, u64::from(!got_range));
        ways.count(got_range);
        rig.is_quiet();
    });
    ways_of_all.were_both_seen();
}

/// One holds the key, a second runs out of patience or does not, and a third may wait behind it.
fn time_out(flaw: Flaw, third: bool) {
    let ways = Ways::default();
    let ways_of_all = ways.clone();
    explore(2, move || {
        let ways = ways.clone();
        let rig = Rig::new(1);
        let mut owner = rig.table.owner(1);
        owner.lock_key(T, b"k", Shared, Never).unwrap();
        let (hasty, patient) = (rig.clone(), rig.clone());
        let hasty = thread::spawn(move || {
            if flaw != Flaw::None {
                return hasty.lose_patience_wrongly(2, flaw);
            }
            let mut owner = hasty.table.owner(2);
            let outcome = owner.lock_key(T, b"k", Exclusive, LIMITED);
            ways.count(outcome.is_ok());
            match outcome {
                Ok(()) => hasty.visit(Exclusive),
                Err(refusal) => {
                    assert!(matches!(refusal, Refusal::TimedOut { .. }), "{refusal}");
                    assert!(owner.is_empty());
                }
            }
        });
        let patient = third.then(|| thread::spawn(move || patient.take_turn(3, Shared, Flaw::None)));
        if third {
            // The third does not need the first to give way, only the second not to be forgotten.
            patient.into_iter().for_each(|patient| patient.join().unwrap());
            drop(owner);
        } else {
            rig.visit(Shared);
            drop(owner);
        }
        hasty.join().unwrap();
        rig.is_quiet();
    });
    if !third {
        ways_of_all.were_both_seen();
    }
}

#[test]
fn a_time_out_meets_a_grant() {
    time_out(Flaw::None, false);
}

#[test]
fn who_waits_behind_one_whose_time_is_over_goes_on() {
    time_out(Flaw::None, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_withdraws_must_look_at_those_behind() {
    time_out(Flaw::Abandoning, true);
}

#[test]
#[should_panic(expected = "something stays")]
fn who_withdraws_must_look_whether_it_was_granted() {
    time_out(Flaw::Blind, false);
}
