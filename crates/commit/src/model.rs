//! Every interleaving of two threads, and of three with at most three preemptions (two for the hand-over):
//! `RUSTFLAGS="--cfg loom" cargo test -p terrane-commit --lib --release`.
//!
//! Each prints how many interleavings it explored (`--nocapture`); within two preemptions that is from 6 to 70,000.
//!
//! What the orderer records lies in an [`UnsafeCell`], so loom fails a model in which two threads order at once.
//!
//! That the models can fail was tried by breaking the code, one thing at a time, within two preemptions. Models failed for: a
//! filled slot marked with a relaxed store; an orderer that leaves without looking whether somebody arrived; one that hands
//! over and does not take the role back when nobody was elected; a thread that looks at its slot before it says that it
//! waits.
//!
//! What of the order is still needed, and for whom, has models of its own: `pins::model`.

use terrane_base::sync::atomic::{AtomicU64, Ordering};
use terrane_base::sync::{Arc, UnsafeCell, thread};
use terrane_base::{Completion, Settler, Wakes};

use crate::word::{POS_SPAN, Place, TICKETS};
use crate::{Buckets, Filled, Limits, Orderer, Ring, Role};

struct Entry {
    pos: u64,
    epoch: u64,
    completion: Completion,
    settler: Settler,
}

/// Records what it settles, in order.
#[derive(Default)]
struct Recorder {
    settled: UnsafeCell<Vec<(u64, u64)>>,
    /// How often it named an heir.
    heirs: AtomicU64,
    /// Wakes those whom it settles while it has the order, as after a flush.
    wakes_at_once: bool,
    /// 1 while it does.
    waking: AtomicU64,
}

// SAFETY: the ring lets one thread at a time settle; that it does is what the models check.
unsafe impl Sync for Recorder {}

impl Orderer<Entry> for Recorder {
    fn settle(&self, group: &mut [Filled<Entry>], wakes: &mut Wakes) {
        for filled in group {
            let Some(entry) = filled.entry.take() else { continue };
            assert_eq!(entry.pos, filled.pos);
            self.settled.with_mut(|s| {
                // SAFETY: see above.
                unsafe { (*s).push((filled.pos, entry.epoch)) }
            });
            entry.settler.settle_later(Ok(filled.end()), wakes);
        }
        if self.wakes_at_once {
            self.waking.store(1, Ordering::Relaxed);
            wakes.wake();
            self.waking.store(0, Ordering::Relaxed);
        }
    }

    fn heir(&self, next: &Entry) -> Option<Completion> {
        self.heirs.fetch_add(1, Ordering::Relaxed);
        Some(next.completion.clone())
    }
}

struct Whole {
    ring: Ring<Entry>,
    recorder: Recorder,
}

impl Whole {
    fn new(slots: usize, place: Place) -> Arc<Whole> {
        Arc::new(Whole { ring: Ring::starting_at(slots, place), recorder: Recorder::default() })
    }

    fn waking_at_once(slots: usize) -> Arc<Whole> {
        let recorder = Recorder { wakes_at_once: true, ..Recorder::default() };
        Arc::new(Whole { ring: Ring::starting_at(slots, START), recorder })
    }

    /// Commits and does not wait.
    fn commit(&self) -> Completion {
        let place = self.ring.reserve(1, &self.recorder).unwrap();
        let completion = Completion::new();
        let settler = completion.settler();
        let (pos, epoch) = (place.pos(), place.epoch());
        place.fill(Entry { pos, epoch, completion: completion.clone(), settler });
        completion
    }

    /// Waits, taking the order if asked to.
    fn wait(&self, completion: &Completion) {
        completion.wait_helping(|| self.ring.resume(&self.recorder)).unwrap();
    }

    /// The same, and counts the times that it was asked.
    fn wait_counting(&self, completion: &Completion, asked: &std::sync::atomic::AtomicU64) {
        let work = || {
            asked.fetch_add(1, Ordering::Relaxed);
            self.ring.resume(&self.recorder);
        };
        completion.wait_helping(work).unwrap();
    }

    fn commit_and_wait(&self) {
        self.wait(&self.commit());
    }

    /// Everything from `from` on was settled once and in order.
    fn check(&self, from: u64, count: u64) -> Vec<(u64, u64)> {
        let settled = self.recorder.settled.with(|s| {
            // SAFETY: the threads were joined.
            unsafe { (*s).clone() }
        });
        assert!(settled.iter().map(|s| s.0).eq(from..from + count), "{settled:?}");
        assert_eq!(self.ring.settled_pos(), from + count);
        settled
    }
}

const START: Place = Place { ticket: 0, epoch: 0, pos: 0 };

pub(crate) fn bounded(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    explore(&terrane_base::sync::bounded(preemptions), f);
}

fn unbounded(f: impl Fn() + Sync + Send + 'static) {
    explore(&loom::model::Builder::new(), f);
}

/// Explores, and prints how many interleavings those were: loom takes each once.
fn explore(builder: &loom::model::Builder, f: impl Fn() + Sync + Send + 'static) {
    let executions = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counter = executions.clone();
    builder.check(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        f();
    });
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    println!("{name}: {} interleavings", executions.load(Ordering::Relaxed));
    assert!(executions.load(Ordering::Relaxed) > 1, "nothing was explored");
}

fn join<const N: usize>(threads: [thread::JoinHandle<()>; N]) {
    for t in threads {
        t.join().unwrap();
    }
}

fn spawn(whole: &Arc<Whole>, f: impl FnOnce(&Whole) + 'static) -> thread::JoinHandle<()> {
    let whole = whole.clone();
    thread::spawn(move || f(&whole))
}

#[test]
fn two_committers_are_settled_once_each_and_in_order() {
    unbounded(|| {
        let whole = Whole::new(2, START);
        let t = spawn(&whole, Whole::commit_and_wait);
        whole.commit_and_wait();
        join([t]);
        whole.check(0, 2);
    });
}

#[test]
fn nobody_needs_to_wait_for_an_entry_to_be_settled() {
    unbounded(|| {
        let whole = Whole::new(2, START);
        let t = spawn(&whole, |w| drop(w.commit()));
        whole.commit();
        join([t]);
        whole.check(0, 2);
    });
}

#[test]
fn three_committers_lose_no_slot() {
    bounded(3, || {
        let whole = Whole::new(4, START);
        let t = spawn(&whole, |w| drop(w.commit()));
        let u = spawn(&whole, |w| drop(w.commit()));
        whole.commit();
        join([t, u]);
        whole.check(0, 3);
    });
}

#[test]
fn turns_come_in_the_order_of_the_places_in_a_full_ring_too() {
    bounded(2, || {
        let whole =
            Arc::new(Whole { ring: Ring::starting_at(2, START).turning(), recorder: Recorder::default() });
        let turns = Arc::new(UnsafeCell::new(Vec::new()));
        let commit = |whole: &Whole, turns: &UnsafeCell<Vec<u64>>| {
            let assign = |pos, _| {
                turns.with_mut(|t| {
                    // SAFETY: turns come one at a time; that they do is what the model checks.
                    unsafe { (*t).push(pos) }
                })
            };
            whole.ring.await_turn();
            let (place, ()) = whole.ring.reserve_in_turn(1, &whole.recorder, assign).unwrap();
            let (completion, (pos, epoch)) = (Completion::new(), (place.pos(), place.epoch()));
            let settler = completion.settler();
            place.fill(Entry { pos, epoch, completion: completion.clone(), settler });
        };
        let threads = [0, 1].map(|_| {
            let (whole, turns) = (whole.clone(), turns.clone());
            thread::spawn(move || commit(&whole, &turns))
        });
        commit(&whole, &turns);
        join(threads);
        whole.check(0, 3);
        let turns = turns.with(|t| {
            // SAFETY: the threads were joined.
            unsafe { (*t).clone() }
        });
        assert_eq!(turns, [0, 1, 2]);
    });
}

#[test]
fn who_waits_for_a_slot_of_a_full_ring_gets_it() {
    bounded(3, || {
        let whole = Whole::new(2, START);
        let t = spawn(&whole, |w| drop(w.commit()));
        let u = spawn(&whole, |w| drop(w.commit()));
        whole.commit();
        join([t, u]);
        whole.check(0, 3);
    });
}

#[test]
fn slots_are_reused_in_turn_across_the_wrap_of_every_field() {
    bounded(3, || {
        let place = Place { ticket: TICKETS - 2, epoch: 255, pos: POS_SPAN - 2 };
        let whole = Whole::new(2, place);
        let t = spawn(&whole, |w| {
            w.commit();
            w.commit();
        });
        whole.commit();
        whole.commit();
        join([t]);
        for (_, epoch) in whole.check(place.pos, 4) {
            assert_eq!(epoch, 255);
        }
    });
}

#[test]
fn the_order_is_handed_over_and_taken_up() {
    // One thread orders its own entry and one group more; what is then at the head belongs to others, who sleep.
    static TAKEN_UP: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    bounded(2, || {
        let whole = Whole::new(4, START);
        let t = spawn(&whole, Whole::commit_and_wait);
        let u = spawn(&whole, |w| {
            w.commit();
            w.wait_counting(&w.commit(), &TAKEN_UP);
        });
        whole.commit();
        join([t, u]);
        whole.check(0, 4);
    });
    assert_ne!(TAKEN_UP.load(Ordering::Relaxed), 0, "no execution had a hand-over");
}

#[test]
fn who_is_woken_before_the_order_is_another_s_can_commit_again() {
    // Whoever was settled by another one commits again while that one still has the order.
    static BESIDE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    bounded(2, || {
        let whole = Whole::waking_at_once(2);
        let t = spawn(&whole, |w| {
            w.commit_and_wait();
            // Not a load, which may be of what was stored before.
            BESIDE.fetch_add(w.recorder.waking.fetch_add(0, Ordering::Relaxed), Ordering::Relaxed);
            w.commit_and_wait();
        });
        whole.commit_and_wait();
        join([t]);
        whole.check(0, 3);
    });
    assert_ne!(BESIDE.load(Ordering::Relaxed), 0, "no execution had anybody woken so early");
}

#[test]
fn an_elected_heir_a_newcomer_and_the_old_orderer_take_the_order_once() {
    // As it is after a hand-over was marked: whoever clears the mark orders, the others leave it alone.
    bounded(3, || {
        let whole = Whole::new(4, START);
        whole.ring.mark_handed_over();
        let t = spawn(&whole, |w| w.ring.resume(&w.recorder));
        let u = spawn(&whole, |w| w.ring.resume(&w.recorder));
        whole.commit();
        join([t, u]);
        whole.check(0, 1);
    });
}

#[test]
fn a_dropped_reservation_holds_nobody_up() {
    unbounded(|| {
        let whole = Whole::new(2, START);
        let t = spawn(&whole, |w| drop(w.ring.reserve(1, &w.recorder).unwrap()));
        whole.commit_and_wait();
        join([t]);
        assert_eq!(whole.ring.settled_pos(), 2);
    });
}

#[test]
fn an_epoch_divides_reservations_by_position() {
    bounded(3, || {
        let whole = Whole::new(4, Place { ticket: TICKETS - 1, epoch: 255, pos: POS_SPAN - 1 });
        let t = spawn(&whole, |w| drop(w.commit()));
        let u = spawn(&whole, |w| drop(w.commit()));
        let boundary = whole.ring.bump_epoch().unwrap();
        join([t, u]);
        assert_eq!(boundary.epoch, 256);
        for (pos, epoch) in whole.check(POS_SPAN - 1, 2) {
            assert_eq!(epoch, if pos < boundary.pos { 255 } else { 256 });
        }
    });
}

#[test]
fn what_is_settled_can_be_seen() {
    unbounded(|| {
        let whole = Whole::new(2, START);
        let t = spawn(&whole, |w| drop(w.commit()));
        if whole.ring.settled_pos() == 1 {
            whole.recorder.settled.with(|s| {
                // SAFETY: whoever wrote it has settled and has no more to settle.
                assert_eq!(unsafe { (*s).len() }, 1);
            });
        }
        join([t]);
    });
}

#[test]
fn every_request_is_in_exactly_one_group() {
    bounded(3, || {
        let limits = Limits { bytes: 2, count: 2 };
        let buckets = Arc::new(Buckets::new(1, limits));
        let led = Arc::new([const { std::sync::atomic::AtomicU64::new(0) }; 3]);
        let enter = |id: usize| {
            let (buckets, led) = (buckets.clone(), led.clone());
            move || {
                if let Role::Leader(lead) = buckets.enter(0, 1, id) {
                    for id in lead.close() {
                        led[id].fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        };
        let t = thread::spawn(enter(0));
        let u = thread::spawn(enter(1));
        enter(2)();
        join([t, u]);
        assert!(led.iter().all(|n| n.load(Ordering::Relaxed) == 1), "{led:?}");
        assert_eq!(buckets.load(0), 0);
    });
}

#[test]
fn a_group_never_exceeds_its_limits() {
    bounded(3, || {
        let buckets = Arc::new(Buckets::new(1, Limits { bytes: 10, count: 1 }));
        let follow = || {
            let buckets = buckets.clone();
            move || {
                if let Role::Leader(lead) = buckets.enter(0, 1, 0) {
                    assert!(lead.close().followers.len() <= 1);
                }
            }
        };
        let t = thread::spawn(follow());
        let u = thread::spawn(follow());
        follow()();
        join([t, u]);
        assert_eq!(buckets.load(0), 0);
    });
}

#[test]
fn bucket_ring_and_completion_carry_two_commits_to_their_ends() {
    bounded(3, || {
        let whole = Whole::new(2, START);
        let buckets = Arc::new(Buckets::new(1, Limits { bytes: 8, count: 8 }));
        let commit = {
            let (whole, buckets) = (whole.clone(), buckets.clone());
            move || {
                let own = Completion::new();
                if let Role::Leader(lead) = buckets.enter(0, 1, own.settler()) {
                    let group = lead.close();
                    let sum = whole.commit();
                    whole.wait(&sum);
                    for settler in group {
                        settler.settle(sum.wait());
                    }
                }
                own.wait().unwrap()
            }
        };
        let other = commit.clone();
        let t = thread::spawn(move || {
            other();
        });
        commit();
        join([t]);
        assert!((1..=2).contains(&whole.ring.settled_pos()));
    });
}
