//! Behaviour that real threads, or one, can show. Interleavings are the models' business (`model.rs`).
#![allow(clippy::disallowed_methods)]

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;

use terrane_base::{Completion, ErrorKind, Settler, Wakes};

use crate::word::{POS_SPAN, Place, TICKETS};
use crate::{Boundary, Buckets, Filled, Limits, MAX_SLOTS, MAX_UNITS, Orderer, Ring, Role};

/// An orderer made of a closure.
struct With<F>(F);

impl<E, F: Fn(&mut [Filled<E>])> Orderer<E> for With<F> {
    fn settle(&self, group: &mut [Filled<E>], _: &mut Wakes) {
        (self.0)(group);
    }
}

/// Records (position, units, entry) in the order of settling.
type Record = Mutex<Vec<(u64, u64, Option<u64>)>>;

fn recorder(record: &Record) -> With<impl Fn(&mut [Filled<u64>]) + '_> {
    With(|group: &mut [Filled<u64>]| {
        record.lock().unwrap().extend(group.iter().map(|f| (f.pos, f.units, f.entry)));
    })
}

#[test]
fn a_lone_thread_finds_its_entry_settled_when_fill_returns() {
    let ring = Ring::new(2, 512).unwrap();
    let record = Record::default();
    let orderer = recorder(&record);
    let mut pos = 512;
    for i in 0..10 {
        let place = ring.reserve(i + 1, &orderer).unwrap();
        assert_eq!((place.pos(), place.units(), place.end(), place.epoch()), (pos, i + 1, pos + i + 1, 0));
        place.fill(i);
        assert_eq!(record.lock().unwrap().pop(), Some((pos, i + 1, Some(i))));
        pos += i + 1;
        assert_eq!(ring.settled_pos(), pos);
    }
}

#[test]
fn entries_wait_for_an_unfilled_place_before_them_and_then_settle_as_one_group() {
    let ring = Ring::new(8, 0).unwrap();
    let groups = Mutex::new(Vec::new());
    let orderer = With(|group: &mut [Filled<char>]| {
        groups.lock().unwrap().push(group.iter().filter_map(|f| f.entry).collect::<String>());
    });
    let [a, b, c] = [1, 2, 3].map(|units| ring.reserve(units, &orderer).unwrap());
    c.fill('c');
    b.fill('b');
    assert_eq!(ring.settled_pos(), 0);
    a.fill('a');
    assert_eq!(ring.settled_pos(), 6);
    assert_eq!(*groups.lock().unwrap(), ["abc"]);
}

#[test]
fn a_ring_says_which_sizes_it_takes() {
    for slots in [0, 1, 3, 6, MAX_SLOTS * 2] {
        let e = Ring::<u64>::new(slots, 0).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::InvalidArgument, "{slots}");
    }
    let ring = Ring::new(MAX_SLOTS, 7).unwrap();
    let record = Record::default();
    let orderer = recorder(&record);
    for units in [0, MAX_UNITS + 1, u64::MAX] {
        assert_eq!(ring.reserve(units, &orderer).err().unwrap().kind(), ErrorKind::LimitExceeded);
    }
    // Nothing was taken by the attempts.
    assert_eq!(ring.reserve(MAX_UNITS, &orderer).unwrap().pos(), 7);
}

#[test]
fn tickets_positions_and_epochs_outlive_their_bits() {
    let start = Place { ticket: TICKETS - 3, epoch: 250, pos: POS_SPAN - 3 * MAX_UNITS };
    for slots in [2, 4, 64] {
        let ring = Ring::starting_at(slots, start);
        let record = Record::default();
        let orderer = recorder(&record);
        let (mut pos, mut epoch) = (start.pos, start.epoch);
        // Far enough for the position to wrap twice, and so for its reference to move.
        for i in 0..3 * POS_SPAN / MAX_UNITS {
            if i % 997 == 3 {
                epoch += 1;
                assert_eq!(ring.bump_epoch().unwrap(), Boundary { epoch, pos });
            }
            let place = ring.reserve(MAX_UNITS, &orderer).unwrap();
            assert_eq!((place.pos(), place.epoch()), (pos, epoch), "reservation {i}, {slots} slots");
            place.fill(i);
            pos += MAX_UNITS;
        }
        assert_eq!(ring.settled_pos(), pos);
    }
}

#[test]
fn tickets_that_are_out_stay_fewer_than_can_be_told_apart_however_many_threads_wait() {
    // On a small scale: 4 slots, 2 seats, 12 threads.
    const SLOTS: u64 = 4;
    const SEATS: u64 = 2;
    const EACH: u64 = 200;
    thread_local! {
        static HAS_SEAT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
    }
    let mut ring = Ring::starting_at(SLOTS as usize, Place { ticket: TICKETS - 5, epoch: 0, pos: 0 });
    ring.seated = || HAS_SEAT.get();
    let record = Record::default();
    let orderer = recorder(&record);
    let stuck = ring.reserve(1, &orderer).unwrap();
    thread::scope(|s| {
        let threads: Vec<_> = (0..12)
            .map(|t| {
                let (ring, orderer) = (&ring, &orderer);
                s.spawn(move || {
                    HAS_SEAT.set(t < SEATS);
                    for i in 0..EACH {
                        ring.reserve(1, orderer).unwrap().fill(t * EACH + i);
                    }
                })
            })
            .collect();
        // Every slot is taken, every seat, and the standing place. All others wait without a ticket.
        let most = SLOTS + SEATS + 1;
        while ring.next_pos() < most {
            thread::yield_now();
        }
        for _ in 0..10_000 {
            assert_eq!(ring.next_pos(), most);
            thread::yield_now();
        }
        stuck.fill(u64::MAX);
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
    let record = record.lock().unwrap();
    assert!(record.iter().map(|r| r.0).eq(0..12 * EACH + 1), "each place once, in order");
    assert_eq!(record.iter().map(|r| r.2).collect::<HashSet<_>>().len() as u64, 12 * EACH + 1);
}

#[test]
fn epochs_do_not_outrun_an_unsettled_commit() {
    let ring = Ring::new(4, 0).unwrap();
    let record = Record::default();
    let orderer = recorder(&record);
    let stuck = ring.reserve(1, &orderer).unwrap();
    for epoch in 1..=64 {
        assert_eq!(ring.bump_epoch().unwrap(), Boundary { epoch, pos: 1 });
    }
    assert_eq!(ring.bump_epoch().unwrap_err().kind(), ErrorKind::LimitExceeded);
    assert_eq!(ring.reserve(1, &orderer).unwrap().epoch(), 64);
    stuck.fill(0);
    assert_eq!(ring.bump_epoch().unwrap(), Boundary { epoch: 65, pos: 2 });
}

#[test]
fn a_leader_that_panics_leaves_a_gap_that_the_orderer_is_told_of() {
    let ring = Ring::new(4, 0).unwrap();
    let record = Record::default();
    let orderer = recorder(&record);
    let first = ring.reserve(1, &orderer).unwrap();
    let second = ring.reserve(2, &orderer).unwrap();
    second.fill(2);
    let leader = catch_unwind(AssertUnwindSafe(move || {
        let _held = first;
        panic!("a leader's bug, on purpose");
    }));
    assert!(leader.is_err());
    assert_eq!(*record.lock().unwrap(), [(0, 1, None), (1, 2, Some(2))]);
}

#[test]
fn an_orderer_that_panics_fails_its_group_and_no_commit_after_it() {
    let ring = Ring::new(4, 0).unwrap();
    let fail = AtomicBool::new(true);
    let orderer = With(|group: &mut [Filled<Settler>]| {
        assert!(!fail.swap(false, Ordering::Relaxed), "an orderer's bug, on purpose");
        for f in group {
            let end = f.end();
            f.entry.take().unwrap().settle(Ok(end));
        }
    });
    let commit = || {
        let c = Completion::new();
        ring.reserve(1, &orderer).unwrap().fill(c.settler());
        c
    };
    let lost = Completion::new();
    let place = ring.reserve(1, &orderer).unwrap();
    let settler = lost.settler();
    assert!(catch_unwind(AssertUnwindSafe(move || place.fill(settler))).is_err());
    assert_eq!(lost.wait().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(commit().wait().unwrap(), 2);
}

#[test]
fn an_orderer_may_commit_without_waiting() {
    let ring = Ring::new(4, 0).unwrap();
    struct Again<'r>(&'r Ring<u64>, Mutex<Vec<u64>>);
    impl Orderer<u64> for Again<'_> {
        fn settle(&self, group: &mut [Filled<u64>], _: &mut Wakes) {
            for f in group.iter().filter_map(|f| f.entry) {
                self.1.lock().unwrap().push(f);
                if f > 0 {
                    self.0.reserve(1, self).unwrap().fill(f - 1);
                }
            }
        }
    }
    let orderer = Again(&ring, Mutex::default());
    ring.reserve(1, &orderer).unwrap().fill(5);
    assert_eq!(*orderer.1.lock().unwrap(), [5, 4, 3, 2, 1, 0]);
}

#[test]
fn entries_never_settled_are_dropped_with_the_ring() {
    let ring = Ring::new(4, 0).unwrap();
    let orderer = With(|_: &mut [Filled<Arc<()>>]| {});
    let entry = Arc::new(());
    std::mem::forget(ring.reserve(1, &orderer).unwrap());
    ring.reserve(1, &orderer).unwrap().fill(entry.clone());
    assert_eq!(Arc::strong_count(&entry), 2);
    drop(ring);
    assert_eq!(Arc::strong_count(&entry), 1);
}

/// An orderer whose settling lasts until the test lets it go, and who knows its heirs.
struct Gate {
    begun: mpsc::Sender<Vec<u64>>,
    go: Mutex<mpsc::Receiver<()>>,
    by: Mutex<Vec<thread::ThreadId>>,
}

struct Waiting {
    id: u64,
    settler: Settler,
}

impl Orderer<Waiting> for Gate {
    fn settle(&self, group: &mut [Filled<Waiting>], wakes: &mut Wakes) {
        self.by.lock().unwrap().push(thread::current().id());
        self.begun.send(group.iter().filter_map(|f| f.entry.as_ref()).map(|e| e.id).collect()).unwrap();
        self.go.lock().unwrap().recv().unwrap();
        for f in group {
            if let Some(entry) = f.entry.take() {
                entry.settler.settle_later(Ok(f.pos), wakes);
            }
        }
    }

    fn heir(&self, next: &Waiting) -> Option<Completion> {
        next.settler.willing()
    }
}

#[test]
fn after_its_own_entry_and_one_group_more_the_order_passes_to_one_who_waits() {
    let (begun, groups) = mpsc::channel();
    let (go, gate) = mpsc::channel();
    let orderer = Gate { begun, go: Mutex::new(gate), by: Mutex::default() };
    let ring = Ring::new(16, 0).unwrap();
    let resumed = AtomicU64::new(0);
    let [one, two, three] = [(); 3].map(|()| Completion::new());
    thread::scope(|s| {
        let commit = |id, completion: &Completion| {
            let (ring, orderer, resumed, completion) = (&ring, &orderer, &resumed, completion.clone());
            s.spawn(move || {
                let settler = completion.settler();
                let place = ring.reserve(1, orderer).unwrap();
                place.fill(Waiting { id, settler });
                let outcome = completion.wait_helping(|| {
                    ring.resume(orderer);
                    resumed.fetch_add(1, Ordering::SeqCst);
                });
                outcome.unwrap();
                thread::current().id()
            })
        };
        // Electing a thread for nothing shows that it sleeps and is willing.
        let asleep = |completion: &Completion| {
            let before = resumed.load(Ordering::SeqCst);
            while !completion.elect() {
                thread::yield_now();
            }
            while resumed.load(Ordering::SeqCst) == before {
                thread::yield_now();
            }
        };
        // The first orders, and is held in each group while the next one fills.
        let first = commit(1, &one);
        assert_eq!(groups.recv().unwrap(), [1]);
        let second = commit(2, &two);
        asleep(&two);
        go.send(()).unwrap();
        assert_eq!(groups.recv().unwrap(), [2]);
        let third = commit(3, &three);
        asleep(&three);
        go.send(()).unwrap();
        assert_eq!(groups.recv().unwrap(), [3]);
        // The first is back already, though nobody has let the third group go.
        let first = first.join().unwrap();
        go.send(()).unwrap();
        second.join().unwrap();
        let third = third.join().unwrap();
        assert_eq!(*orderer.by.lock().unwrap(), [first, first, third]);
    });
}

#[test]
fn a_full_ring_makes_reservers_wait_and_loses_none() {
    let ring = Ring::new(2, 0).unwrap();
    let record = Record::default();
    let orderer = recorder(&record);
    let held = ring.reserve(1, &orderer).unwrap();
    thread::scope(|s| {
        for id in 1..=6 {
            let (ring, orderer) = (&ring, &orderer);
            s.spawn(move || ring.reserve(1, orderer).unwrap().fill(id));
        }
        while ring.next_pos() < 7 {
            thread::yield_now();
        }
        assert_eq!(ring.settled_pos(), 0);
        held.fill(0);
    });
    let ids: HashSet<_> = record.lock().unwrap().iter().filter_map(|r| r.2).collect();
    assert_eq!(ids.len(), 7);
    assert_eq!(ring.settled_pos(), 7);
}

#[test]
fn many_threads_are_settled_once_each_in_order_and_in_their_epoch() {
    const THREADS: u64 = 6;
    const COMMITS: u64 = 3_000;
    for slots in [2, 8, 64] {
        let ring = Ring::starting_at(slots, Place { ticket: TICKETS - 7, epoch: 0, pos: POS_SPAN - 1000 });
        let settled = Mutex::new(Vec::new());
        struct Sync<'a>(&'a Mutex<Vec<(u64, u64)>>);
        struct Entry(u64, Settler);
        impl Orderer<Entry> for Sync<'_> {
            fn settle(&self, group: &mut [Filled<Entry>], wakes: &mut Wakes) {
                // `try_lock`, because a second orderer at the same time would be a bug.
                let mut settled = self.0.try_lock().unwrap();
                for f in group {
                    let Entry(epoch, settler) = f.entry.take().unwrap();
                    settled.push((f.pos, epoch));
                    settler.settle_later(Ok(f.end()), wakes);
                }
            }
            fn heir(&self, next: &Entry) -> Option<Completion> {
                next.1.willing()
            }
        }
        let orderer = Sync(&settled);
        let start = Barrier::new(THREADS as usize + 1);
        let boundaries = thread::scope(|s| {
            for t in 0..THREADS {
                let (ring, orderer, start) = (&ring, &orderer, &start);
                s.spawn(move || {
                    let mut own = Completion::new();
                    start.wait();
                    for i in 0..COMMITS {
                        own.renew();
                        let place = ring.reserve(1 + (t + i) % 3, orderer).unwrap();
                        let (epoch, end) = (place.epoch(), place.end());
                        place.fill(Entry(epoch, own.settler()));
                        // Some wait for each commit and some for every eighth.
                        if t % 2 == 0 || i % 8 == 7 {
                            assert_eq!(own.wait_helping(|| ring.resume(orderer)).unwrap(), end);
                        }
                    }
                });
            }
            start.wait();
            let mut boundaries = Vec::new();
            while ring.settled_pos() < POS_SPAN + 2_000 {
                boundaries.extend(ring.bump_epoch().ok());
                thread::yield_now();
            }
            boundaries
        });
        let settled = settled.into_inner().unwrap();
        assert_eq!(settled.len() as u64, THREADS * COMMITS);
        assert!(settled.is_sorted_by(|a, b| a.0 < b.0));
        for (pos, epoch) in settled {
            let begun = boundaries.partition_point(|b| b.pos <= pos);
            assert_eq!(epoch, begun as u64, "the epoch of the reservation at {pos}");
        }
    }
}

const ROOMY: Limits = Limits { bytes: 1000, count: 100 };

/// The leader's part; `None` for a follower.
fn leader<'b, R: Send>(role: Role<'b, R>) -> Option<crate::Lead<'b, R>> {
    match role {
        Role::Leader(lead) => Some(lead),
        Role::Follower => None,
    }
}

#[test]
fn the_first_leads_and_takes_the_others_along_in_order() {
    let buckets = Buckets::new(1, ROOMY);
    let lead = leader(buckets.enter(0, 1, 'a')).unwrap();
    for (hint, request) in ['b', 'c', 'd'].into_iter().enumerate() {
        assert!(leader(buckets.enter(hint, 1, request)).is_none());
    }
    assert_eq!(*lead.own(), 'a');
    let group = lead.close();
    assert_eq!(group.iter().collect::<String>(), "abcd");
    // The bucket is free for the next, before this group is done.
    let next = leader(buckets.enter(0, 1, 'e')).unwrap();
    assert_eq!(group.into_iter().collect::<String>(), "abcd");
    assert_eq!(next.close().followers.len(), 0);
}

#[test]
fn buckets_do_not_mix() {
    let buckets = Buckets::new(2, ROOMY);
    let even = leader(buckets.enter(4, 1, 0)).unwrap();
    let odd = leader(buckets.enter(7, 1, 1)).unwrap();
    assert!(leader(buckets.enter(2, 1, 2)).is_none());
    assert!(odd.close().followers.is_empty());
    assert_eq!(even.close().followers, [2]);
}

#[test]
fn a_group_grows_while_somebody_has_a_turn() {
    let ring = Ring::with_turns(8, 0).unwrap();
    let buckets = Buckets::new(1, ROOMY);
    let record = Record::default();
    let orderer = recorder(&record);
    ring.await_turn();
    let (in_turn, led) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|s| {
        s.spawn(|| {
            let assign = |_, _| {
                in_turn.wait();
                // The other leads, and waits for this to end.
                led.wait();
                assert!(leader(buckets.enter(0, 1, 'b')).is_none());
            };
            let (place, ()) = ring.reserve_in_turn(1, &orderer, assign).unwrap();
            place.fill(1);
        });
        in_turn.wait();
        let lead = leader(buckets.enter(0, 1, 'a')).unwrap();
        led.wait();
        ring.await_turn();
        assert_eq!(lead.close().followers, ['b'], "it came while somebody had a turn");
    });
}

#[test]
fn whoever_would_make_a_group_too_large_leads_alone() {
    let buckets = Buckets::new(1, Limits { bytes: 10, count: 2 });
    let lead = leader(buckets.enter(0, 10, 'a')).unwrap();
    assert!(leader(buckets.enter(0, 6, 'b')).is_none());
    let by_bytes = leader(buckets.enter(0, 5, 'c')).unwrap();
    assert!(leader(buckets.enter(0, 4, 'd')).is_none());
    let by_count = leader(buckets.enter(0, 0, 'e')).unwrap();
    let by_own_size = leader(buckets.enter(0, 11, 'f')).unwrap();
    for alone in [by_bytes, by_count, by_own_size] {
        assert!(alone.close().followers.is_empty());
    }
    assert_eq!(lead.close().iter().collect::<String>(), "abd");
    // Closing frees what the followers took.
    let lead = leader(buckets.enter(0, 1, 'g')).unwrap();
    assert!(leader(buckets.enter(0, 10, 'h')).is_none());
    assert_eq!(lead.close().followers, ['h']);
    assert_eq!(buckets.load(0), 0);
}

#[test]
fn followers_of_a_leader_that_gives_up_are_told() {
    let buckets = Buckets::new(1, ROOMY);
    let [a, b] = [(); 2].map(|()| Completion::new());
    let lead = leader(buckets.enter(0, 1, a.settler())).unwrap();
    assert!(leader(buckets.enter(0, 1, b.settler())).is_none());
    drop(lead);
    for c in [a, b] {
        assert_eq!(c.wait().unwrap_err().kind(), ErrorKind::Closed);
    }
    assert!(leader(buckets.enter(0, 1, Completion::new().settler())).is_some());
}

#[test]
fn under_load_every_request_is_in_exactly_one_group() {
    const THREADS: usize = 4;
    const EACH: usize = 5_000;
    let limits = Limits { bytes: 40, count: 2 };
    let buckets = Buckets::new(1, limits);
    let seen: Vec<_> = (0..THREADS * EACH).map(|_| AtomicU64::new(0)).collect();
    let start = Barrier::new(THREADS);
    thread::scope(|s| {
        for t in 0..THREADS {
            let (buckets, seen, start) = (&buckets, &seen, &start);
            s.spawn(move || {
                start.wait();
                for i in t * EACH..(t + 1) * EACH {
                    if let Role::Leader(lead) = buckets.enter(t, (i % 50) as u64, i) {
                        let group = lead.close();
                        assert!(group.followers.len() <= limits.count as usize);
                        assert!(
                            group.followers.iter().map(|i| i % 50).sum::<usize>() <= limits.bytes as usize
                        );
                        for i in group {
                            seen[i].fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    assert!(seen.iter().all(|n| n.load(Ordering::Relaxed) == 1));
    assert_eq!(buckets.load(0), 0);
}

#[test]
fn turns_come_in_order_under_many_threads() {
    const THREADS: u64 = 24;
    const EACH: u64 = 2000;
    let ring = Ring::with_turns(8, 0).unwrap();
    let record = Record::default();
    let orderer = recorder(&record);
    // What the places of two memories that grow by turns are: each turn adds to both.
    let ends = [AtomicU64::new(0), AtomicU64::new(0)];
    let places = Mutex::new(Vec::new());
    thread::scope(|s| {
        for thread in 0..THREADS {
            let (ring, orderer, ends, places) = (&ring, &orderer, &ends, &places);
            s.spawn(move || {
                for i in 0..EACH {
                    let units = 1 + (thread + i) % 3;
                    // Not in one step: only turns keep this right.
                    let add = |end: &AtomicU64| {
                        let at = end.load(Ordering::Relaxed);
                        end.store(at + units, Ordering::Relaxed);
                        at
                    };
                    let assign = |pos, _| (pos, [add(&ends[0]), add(&ends[1])]);
                    let (place, (pos, at)) = ring.reserve_in_turn(units, orderer, assign).unwrap();
                    assert_eq!(place.pos(), pos);
                    place.fill(pos);
                    places.lock().unwrap().push((pos, units, at));
                }
            });
        }
    });
    let mut places = places.into_inner().unwrap();
    places.sort_unstable();
    assert_eq!(places.len() as u64, THREADS * EACH);
    let mut end = 0;
    for (pos, units, at) in places {
        assert_eq!((pos, at), (end, [end, end]));
        end += units;
    }
    assert_eq!(ring.settled_pos(), end);
}

#[test]
fn a_turn_that_panics_is_passed_on_and_its_place_filled_without_an_entry() {
    let ring = Ring::with_turns(4, 0).unwrap();
    let record = Record::default();
    let orderer = recorder(&record);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let assigned: Result<(_, ()), _> = ring.reserve_in_turn(2, &orderer, |_, _| panic!("as asked"));
        drop(assigned);
    }));
    assert!(panicked.is_err());
    ring.reserve(3, &orderer).unwrap().fill(7);
    assert_eq!(*record.lock().unwrap(), [(0, 2, None), (2, 3, Some(7))]);
}

#[test]
fn a_ring_without_turns_gives_none() {
    let ring = Ring::<u64>::new(2, 0).unwrap();
    let orderer = With(|_: &mut [Filled<u64>]| ());
    let refused = ring.reserve_in_turn(1, &orderer, |_, _| ()).map(drop).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    ring.reserve(1, &orderer).unwrap().fill(1);
    assert_eq!(ring.settled_pos(), 1);
}
