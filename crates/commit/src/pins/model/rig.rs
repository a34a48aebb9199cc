//! A small engine: the ring, the pins and the stretches are the real ones; the log, the manifest and the extents are what would be on
//! the disk, and are looked at whenever they change: a crash at that moment must leave what was promised.

use std::collections::{BTreeMap, BTreeSet};

use terrane_base::sync::atomic::{AtomicU64, Ordering};
use terrane_base::sync::{Arc, Mutex};
use terrane_base::{Completion, Settler, Wakes};

use super::Flaw;
use crate::word::Place;
use crate::{Filled, Orderer, Pins, Ring, Stretch, of_epoch};

/// Length of an entry: a device may be flushed to its middle.
const LEN: u64 = 2;
pub(super) const XID: &[u8] = b"x";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Put,
    Prepare,
    Commit,
    Rollback,
}

pub(super) struct Entry {
    is_sync: bool,
    completion: Completion,
    settler: Settler,
}

pub(super) struct Memtable {
    stretch: Stretch,
    records: Mutex<BTreeSet<u64>>,
}

impl Memtable {
    fn new(epoch: u64) -> std::sync::Arc<Memtable> {
        std::sync::Arc::new(Memtable { stretch: Stretch::new(epoch), records: Mutex::new(BTreeSet::new()) })
    }
}

/// Newest first.
type Chain = Vec<std::sync::Arc<Memtable>>;

/// What the caller of the transaction was told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Told {
    #[default]
    Nothing,
    Prepared,
    Committing,
    Committed,
    RollingBack,
    RolledBack,
}

/// Each change is one step.
#[derive(Debug, Default)]
struct Disk {
    log: BTreeMap<u64, Kind>,
    advanced: u64,
    /// The segments are flushed to here; the rest of the log is in the tail.
    durable: u64,
    /// The manifest says that the log is needed from here on.
    first: u64,
    /// The entries whose operations are in extents.
    extents: BTreeSet<u64>,
    told: Told,
}

impl Disk {
    /// What a crash leaves that cuts the log off at `end`.
    fn check_cut(&self, end: u64) {
        let whole = |(pos, _): &(&u64, &Kind)| **pos + LEN <= end;
        for (&pos, kind) in self.log.iter().filter(whole) {
            assert!(!(pos < self.first && self.first < pos + LEN), "cut within an entry: {self:?}");
            if matches!(kind, Kind::Put | Kind::Commit) {
                assert!(pos >= self.first || self.extents.contains(&pos), "operations are lost: {self:?}");
            }
        }
        let replayed = self.log.range(self.first..).filter(whole);
        let last = replayed.filter(|(_, kind)| **kind != Kind::Put).map(|(_, kind)| *kind).last();
        let committed = self.extents.iter().any(|pos| self.log.get(pos) == Some(&Kind::Commit));
        let rolled_back = self.log.iter().filter(whole).any(|(_, kind)| *kind == Kind::Rollback);
        let fits = match self.told {
            Told::Nothing => true,
            Told::Prepared => last == Some(Kind::Prepare),
            // A commit may be taken away by the power, but it leaves the prepare.
            Told::Committing | Told::Committed => last.is_some() || committed,
            Told::RollingBack => last.is_some() || rolled_back,
            Told::RolledBack => last.is_none_or(|kind| kind == Kind::Rollback),
        };
        assert!(fits, "not as promised, with the log cut at {end}: {self:?}");
    }

    /// A power failure leaves the segments and whatever was written behind them; the death of the process leaves all.
    fn check(&self) {
        assert!(self.first <= self.durable, "what is not durable was let go of: {self:?}");
        for end in self.durable..=self.advanced {
            self.check_cut(end);
        }
    }
}

pub(super) struct Rig {
    ring: Ring<Entry>,
    pub(super) pins: Pins<Mutex<bool>>,
    chain: Mutex<std::sync::Arc<Chain>>,
    published: AtomicU64,
    disk: Mutex<Disk>,
    pub(super) flaw: Flaw,
}

impl Orderer<Entry> for Rig {
    fn settle(&self, group: &mut [Filled<Entry>], wakes: &mut Wakes) {
        let Some(end) = group.last().map(Filled::end) else { return };
        let is_sync = group.iter().flat_map(|f| &f.entry).any(|e| e.is_sync);
        self.change(|disk| {
            disk.advanced = end;
            disk.durable = if is_sync { end } else { disk.durable };
        });
        self.published.store(end, Ordering::SeqCst);
        for entry in group.iter_mut().filter_map(|f| f.entry.take()) {
            entry.settler.settle_later(Ok(end), wakes);
        }
    }

    fn heir(&self, next: &Entry) -> Option<Completion> {
        Some(next.completion.clone())
    }
}

impl Rig {
    pub(super) fn new(flaw: Flaw) -> Arc<Rig> {
        Arc::new(Rig {
            ring: Ring::starting_at(4, Place { ticket: 0, epoch: 0, pos: 0 }),
            pins: Pins::default(),
            chain: Mutex::new(std::sync::Arc::new(vec![Memtable::new(0)])),
            published: AtomicU64::new(0),
            disk: Mutex::new(Disk::default()),
            flaw,
        })
    }

    fn change<R>(&self, change: impl FnOnce(&mut Disk) -> R) -> R {
        let mut disk = self.disk.lock().unwrap();
        let done = change(&mut disk);
        disk.check();
        done
    }

    pub(super) fn tell(&self, told: Told) {
        self.change(|disk| disk.told = told);
    }

    pub(super) fn settled(&self) -> u64 {
        self.published.load(Ordering::SeqCst)
    }

    fn chain(&self) -> std::sync::Arc<Chain> {
        self.chain.lock().unwrap().clone()
    }

    fn change_chain(&self, change: impl FnOnce(&mut Chain)) {
        let mut chain = self.chain.lock().unwrap();
        let mut next = (**chain).clone();
        change(&mut next);
        *chain = std::sync::Arc::new(next);
    }

    /// Brings an entry to the log, and its operations to their memtable; returns where it ends once it is published.
    pub(super) fn write(&self, kind: Kind, is_sync: bool) -> u64 {
        let place = self.ring.reserve(LEN, self).unwrap();
        let pos = place.pos();
        self.change(|disk| disk.log.insert(pos, kind));
        if matches!(kind, Kind::Put | Kind::Commit) {
            let chain = self.chain();
            let memtable = of_epoch(&chain, place.epoch(), |m| &m.stretch).unwrap_or(&chain[chain.len() - 1]);
            memtable.stretch.note(pos);
            memtable.records.lock().unwrap().insert(pos);
        }
        let completion = Completion::new();
        let settler = completion.settler();
        place.fill(Entry { is_sync, completion: completion.clone(), settler });
        completion.wait_helping(|| self.ring.resume(self)).unwrap()
    }

    /// Flushes the log, and says up to where everything is settled and durable.
    fn sync_settled(&self) -> u64 {
        let settled = self.settled();
        self.change(|disk| disk.durable = if disk.durable < settled { disk.advanced } else { disk.durable });
        settled
    }

    /// Flushes what happens to be written of the log: not the last bytes.
    pub(super) fn sync_some(&self) {
        self.change(|disk| disk.durable = disk.durable.max(disk.advanced.saturating_sub(1)));
    }

    /// Freezes the active memtable. One thread does.
    pub(super) fn freeze(&self) {
        let old = self.chain()[0].clone();
        let next = Memtable::new(old.stretch.epoch() + 1);
        let push = || self.change_chain(|chain| chain.insert(0, next));
        let boundary = if self.flaw == Flaw::LateMemtable {
            let boundary = self.ring.bump_epoch().unwrap();
            push();
            boundary
        } else {
            push();
            self.ring.bump_epoch().unwrap()
        };
        old.stretch.close(boundary.pos);
    }

    /// Writes the oldest frozen memtable out, if it is whole. One thread does.
    pub(super) fn flush(&self) {
        let chain = self.chain();
        let Some(oldest) = chain[1..].last() else { return };
        let is_whole = match self.flaw {
            Flaw::HastyFlush => true,
            _ => oldest.stretch.is_whole(self.settled()),
        };
        if !is_whole {
            return;
        }
        let synced = self.sync_settled();
        let written = oldest.records.lock().unwrap().clone();
        let needed = self.needed(synced, Some(oldest));
        self.change(|disk| {
            disk.extents.extend(written);
            disk.first = disk.first.max(needed);
        });
        self.change_chain(|chain| chain.retain(|m| !std::sync::Arc::ptr_eq(m, oldest)));
    }

    /// Lets go of what of the log nobody needs.
    pub(super) fn recycle(&self) {
        let needed = match self.flaw {
            Flaw::LateSettled => {
                let held: Vec<u64> = self.held(None).collect();
                self.pins.needed(self.sync_settled(), held.into_iter())
            }
            Flaw::AtDurable => {
                let settled = self.settled();
                let durable = self.change(|disk| disk.durable);
                self.needed(settled.min(durable), None)
            }
            Flaw::EndedFirst => {
                let synced = self.sync_settled();
                let held = self.held(None);
                // As many steps as there are maps: those that have ended meanwhile are in neither.
                let ended = self.pins.oldest_ended();
                let in_doubt = self.pins.oldest_in_doubt();
                held.chain(ended).chain(in_doubt).fold(synced, u64::min)
            }
            _ => self.needed(self.sync_settled(), None),
        };
        self.change(|disk| disk.first = disk.first.max(needed));
    }

    fn needed(&self, synced: u64, skip: Option<&std::sync::Arc<Memtable>>) -> u64 {
        self.pins.needed(synced, self.held(skip))
    }

    /// Looks when it is asked, as the engine does.
    fn held(&self, skip: Option<&std::sync::Arc<Memtable>>) -> impl Iterator<Item = u64> {
        let counts = move |m: &std::sync::Arc<Memtable>| skip.is_none_or(|s| !std::sync::Arc::ptr_eq(m, s));
        let all = std::iter::once_with(|| (*self.chain()).clone()).flatten();
        all.filter(counts).filter_map(|m| m.stretch.first())
    }

    /// What has ended is let go of in the end.
    pub(super) fn needs_nothing(&self) -> bool {
        self.recycle();
        self.change(|disk| disk.first == disk.advanced)
    }
}
