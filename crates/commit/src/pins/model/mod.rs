//! Loom models of two-phase commit against freezing, writing out and letting go of the log: after every step of every interleaving a
//! crash at that moment leaves what was promised ([`rig`]). With what the protocol rests on left out ([`Flaw`]), it does not.

use terrane_base::sync::{Arc, Mutex, thread};

use super::*;
use crate::model::bounded;
use rig::{Kind, Rig, Told, XID};

mod rig;

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// A prepare is entered when it is in the log already.
    LateEntry,
    /// What it needs is taken from what is settled behind it.
    LateFrom,
    /// The old prepare is given up before the new one is durable.
    HastyRenewal,
    /// Renewing and ending do not exclude each other.
    Unguarded,
    /// A commit that need not be durable leaves nothing behind.
    Forgetful,
    /// It is taken from those in doubt, and then put to those that have ended.
    TwoSteps,
    /// Those that have ended are looked at first, and those in doubt next.
    EndedFirst,
    /// A transaction is forgotten before its rollback is durable.
    HastyRollback,
    /// What is settled is read after the memtables are looked at.
    LateSettled,
    /// The log is let go of up to where it happens to be flushed.
    AtDurable,
    /// The epoch begins before its memtable is in place.
    LateMemtable,
    /// A frozen memtable is written out before all that belongs to it is settled.
    HastyFlush,
}

impl Rig {
    fn prepare(&self) {
        let what = std::sync::Arc::new(Mutex::new(true));
        match self.flaw {
            Flaw::LateEntry => {
                let settled = self.settled();
                self.write(Kind::Prepare, true);
                self.pins.enter(XID, Some(settled), what);
            }
            Flaw::LateFrom => {
                self.pins.enter(XID, None, what);
                self.write(Kind::Prepare, true);
                self.pins.set(XID, self.settled());
            }
            _ => {
                self.pins.enter(XID, Some(self.settled()), what);
                self.write(Kind::Prepare, true);
            }
        }
        self.tell(Told::Prepared);
    }

    fn commit(&self, is_sync: bool) {
        let prepared = self.pins.get(XID).unwrap();
        let mut alive = prepared.lock().unwrap();
        self.tell(Told::Committing);
        let end = self.write(Kind::Commit, is_sync);
        let volatile = (!is_sync).then_some(end);
        match self.flaw {
            Flaw::Forgetful => self.pins.end(XID, None),
            Flaw::TwoSteps => self.pins.end_in_two_steps(XID, end),
            _ => self.pins.end(XID, volatile),
        }
        *alive = false;
        drop(alive);
        self.tell(Told::Committed);
    }

    fn roll_back(&self) {
        let prepared = self.pins.get(XID).unwrap();
        let mut alive = prepared.lock().unwrap();
        self.tell(Told::RollingBack);
        if self.flaw == Flaw::HastyRollback {
            self.pins.end(XID, None);
        }
        self.write(Kind::Rollback, true);
        self.pins.end(XID, None);
        *alive = false;
        drop(alive);
        self.tell(Told::RolledBack);
    }

    fn renew(&self) {
        for (xid, prepared) in self.pins.before(self.settled()) {
            if self.flaw == Flaw::Unguarded {
                self.pins.renew(&xid, self.settled(), || self.write_again()).unwrap();
                continue;
            }
            let Ok(alive) = prepared.try_lock() else { continue };
            if !*alive {
                continue;
            }
            if self.flaw == Flaw::HastyRenewal {
                self.pins.renew(&xid, self.settled(), || Ok::<_, ()>(())).unwrap();
                self.write(Kind::Prepare, true);
                continue;
            }
            self.pins.renew(&xid, self.settled(), || self.write_again()).unwrap();
        }
    }

    fn write_again(&self) -> Result<(), ()> {
        self.write(Kind::Prepare, true);
        Ok(())
    }
}

impl<T> Pins<T> {
    fn end_in_two_steps(&self, xid: &[u8], end: u64) {
        let from = self.lock().in_doubt.remove(xid).and_then(|pin| pin.from);
        self.lock().note_ended(Ended { from: from.unwrap(), end });
    }

    fn oldest_in_doubt(&self) -> Option<u64> {
        self.lock().in_doubt.values().filter_map(|pin| pin.from).min()
    }

    fn oldest_ended(&self) -> Option<u64> {
        self.lock().ended.iter().map(|e| e.from).min()
    }
}

fn spawn(rig: &Arc<Rig>, f: impl FnOnce(&Rig) + 'static) -> thread::JoinHandle<()> {
    let rig = rig.clone();
    thread::spawn(move || f(&rig))
}

/// One thread does `f`, one writes out and lets go; in the end everything is let go of, if `all`.
fn against_recycling(flaw: Flaw, before: fn(&Rig), f: fn(&Rig), beside: fn(&Rig), all: bool) {
    bounded(4, move || {
        let rig = Rig::new(flaw);
        before(&rig);
        let t = spawn(&rig, f);
        beside(&rig);
        t.join().unwrap();
        rig.recycle();
        if all {
            rig.freeze();
            rig.flush();
            assert!(rig.needs_nothing(), "something is kept for nobody");
        }
    });
}

fn put(rig: &Rig) {
    rig.write(Kind::Put, false);
}

fn prepare(flaw: Flaw) {
    let beside = |rig: &Rig| {
        rig.freeze();
        rig.flush();
        rig.recycle();
    };
    against_recycling(flaw, put, Rig::prepare, beside, false);
}

#[test]
fn a_prepare_is_kept_from_its_first_moment() {
    prepare(Flaw::None);
}

#[test]
#[should_panic(expected = "not as promised")]
fn a_prepare_must_be_entered_before_it_is_in_the_log() {
    prepare(Flaw::LateEntry);
}

#[test]
#[should_panic(expected = "not as promised")]
fn what_a_prepare_needs_must_be_settled_before_it() {
    prepare(Flaw::LateFrom);
}

fn commit(flaw: Flaw) {
    let commit = |rig: &Rig| rig.commit(false);
    against_recycling(flaw, Rig::prepare, commit, Rig::recycle, true);
}

#[test]
fn a_commit_that_is_not_durable_leaves_its_prepare() {
    commit(Flaw::None);
}

#[test]
#[should_panic(expected = "not as promised")]
fn a_commit_that_is_not_durable_must_keep_its_prepare() {
    commit(Flaw::Forgetful);
}

#[test]
#[should_panic(expected = "not as promised")]
fn a_commit_must_end_in_one_step() {
    commit(Flaw::TwoSteps);
}

#[test]
#[should_panic(expected = "not as promised")]
fn those_that_have_ended_must_not_be_looked_at_first() {
    commit(Flaw::EndedFirst);
}

#[test]
fn a_durable_commit_needs_no_prepare() {
    let commit = |rig: &Rig| rig.commit(true);
    against_recycling(Flaw::None, Rig::prepare, commit, Rig::recycle, true);
}

fn roll_back(flaw: Flaw) {
    against_recycling(flaw, Rig::prepare, Rig::roll_back, Rig::recycle, true);
}

#[test]
fn a_rollback_lets_go_of_its_prepare() {
    roll_back(Flaw::None);
}

#[test]
#[should_panic(expected = "not as promised")]
fn a_rollback_must_be_durable_first() {
    roll_back(Flaw::HastyRollback);
}

fn renew(flaw: Flaw) {
    against_recycling(flaw, Rig::prepare, Rig::renew, Rig::recycle, false);
}

#[test]
fn a_renewed_prepare_takes_the_place_of_the_old_one() {
    renew(Flaw::None);
}

#[test]
#[should_panic(expected = "not as promised")]
fn a_renewed_prepare_must_be_durable_first() {
    renew(Flaw::HastyRenewal);
}

fn renew_and_end(flaw: Flaw, end: fn(&Rig)) {
    let renew = |rig: &Rig| {
        rig.renew();
        rig.recycle();
    };
    against_recycling(flaw, Rig::prepare, end, renew, true);
}

#[test]
fn a_transaction_is_renewed_or_committed() {
    renew_and_end(Flaw::None, |rig| rig.commit(false));
}

#[test]
fn a_transaction_is_renewed_or_rolled_back() {
    renew_and_end(Flaw::None, Rig::roll_back);
}

#[test]
fn a_transaction_is_renewed_committed_and_let_go_of_by_three() {
    bounded(3, || {
        let rig = Rig::new(Flaw::None);
        rig.prepare();
        let t = spawn(&rig, |rig| rig.commit(false));
        let u = spawn(&rig, Rig::renew);
        rig.recycle();
        t.join().unwrap();
        u.join().unwrap();
        assert!(rig.pins.is_empty());
    });
}

#[test]
#[should_panic(expected = "not as promised")]
fn what_has_been_rolled_back_must_not_be_prepared_again() {
    renew_and_end(Flaw::Unguarded, Rig::roll_back);
}

fn freeze(flaw: Flaw) {
    let commit = |rig: &Rig| rig.commit(false);
    let beside = |rig: &Rig| {
        rig.freeze();
        rig.flush();
    };
    let before = |rig: &Rig| {
        rig.prepare();
        put(rig);
    };
    against_recycling(flaw, before, commit, beside, false);
}

#[test]
fn a_commit_goes_to_one_side_of_a_freeze() {
    freeze(Flaw::None);
}

#[test]
#[should_panic(expected = "operations are lost")]
fn the_next_memtable_must_be_there_when_its_epoch_begins() {
    freeze(Flaw::LateMemtable);
}

#[test]
#[should_panic(expected = "operations are lost")]
fn a_memtable_must_be_whole_when_it_is_written_out() {
    freeze(Flaw::HastyFlush);
}

/// The log is flushed to the middle of an entry when one thread writes that out and ends what stands before it, and the other lets go.
fn recycle_beside_a_flush(flaw: Flaw) {
    let before = |rig: &Rig| {
        rig.prepare();
        put(rig);
        rig.sync_some();
        rig.freeze();
    };
    let flush = |rig: &Rig| {
        rig.flush();
        rig.roll_back();
    };
    against_recycling(flaw, before, flush, Rig::recycle, true);
}

#[test]
fn the_log_is_cut_between_entries() {
    recycle_beside_a_flush(Flaw::None);
}

#[test]
#[should_panic(expected = "cut within an entry")]
fn the_log_must_not_be_cut_where_it_happens_to_be_flushed() {
    recycle_beside_a_flush(Flaw::AtDurable);
}

#[test]
#[should_panic(expected = "operations are lost")]
fn what_is_settled_must_be_read_first() {
    against_recycling(Flaw::LateSettled, Rig::prepare, |rig| rig.commit(true), Rig::recycle, false);
}
