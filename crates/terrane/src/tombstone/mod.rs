//! Range tombstones of a memtable.
//!
//! A `delete_range` writes a [start, end) interval with its sequence. Readers ask "the newest tombstone at or below my
//! snapshot that covers this key"; a record is hidden when that sequence is above its own. Older tombstones than the
//! newest that a reader sees say nothing more to it: so for a reader one sequence for each stretch of keys is enough.
//!
//! [`tree`] is that: a persistent map from stretches to one sequence. [`pictures`] has such a tree for each stretch of
//! *reader's* sequences; they share what they have in common. Adding a tombstone costs a logarithmic number of nodes
//! for each picture that must show it, which is the newest one alone unless commits overtake each other.
//!
//! # Which pictures are kept
//! A batch is published as a whole, so there is a picture for each batch, not for each tombstone. Once they have doubled
//! in number, pictures that nobody can need are dropped. Needed are: those that a reader at the published sequence or
//! above sees, and those of the registered snapshots. The published sequence is read before the snapshots, as
//! `db::snapshot` argues: a registration that is missed has a sequence at or above it.
//!
//! A reader that registers nothing (`Engine::get`) reads the published sequence and then comes here. If meanwhile later
//! batches are published and its picture is dropped, [`MemTombstones::covering`] tells it so (`None`), and it begins anew
//! as a registered reader. It is never given a neighbour's picture: an older one would show what was deleted, a newer
//! one would hide what the same read has found elsewhere. What it reads is still a moment within its call.
//!
//! During replay nobody reads, and all readers to come see everything: there is one picture.
//!
//! # Memory
//! There are at most eight pictures, or twice as many as were needed at the last look: the newest one's fragments (fewer
//! than two for each tombstone) and what the others do not share with it, which is at most what was made since. All of
//! it is charged to the memtables' budget and counts in `Memtable::bytes`, by which memtables freeze.
//!
//! # Concurrency
//! Readers load one pointer (null: there are none, the usual case) and never block. Writers take a mutex, make the next
//! pictures and swap them in. A tombstone is there for whoever loads them after [`MemTombstones::insert`] returned, which
//! happens before its sequence is published.

mod account;
mod pictures;
#[cfg(test)]
mod tests;
mod tree;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use terrane_base::{Lsn, MemoryBudget, Result, Seq};
use terrane_format::tombstone::RangeTombstones;

use account::Account;
use pictures::Pictures;
use tree::Maker;

pub(crate) use pictures::{Needed, Picture, outdated};
pub(crate) use tree::Fragment;

/// Pictures that are kept without asking whether anybody needs them.
const FEW: usize = 8;

/// What goes on while a tombstone is added.
#[derive(Clone, Copy)]
pub(crate) enum During<'a> {
    /// The log is being replayed: nobody reads.
    Replay,
    /// Others read at these sequences, which are asked for now and then.
    Reads(&'a dyn Fn() -> Needed),
}

/// The range tombstones of one memtable.
#[derive(Debug)]
pub(crate) struct MemTombstones {
    /// Whether there has been any: most memtables have none, and every read asks. Set before the first one's sequence is published.
    any: AtomicBool,
    pictures: ArcSwapOption<Pictures>,
    account: Arc<Account>,
    writer: Mutex<Writer>,
}

#[derive(Debug)]
struct Writer {
    make: Maker,
    /// Number of pictures from which on those are dropped that nobody needs.
    most: usize,
}

impl MemTombstones {
    pub(crate) fn new(budget: MemoryBudget) -> Self {
        let account = Account::new(budget);
        let make = Maker::new(account.clone());
        MemTombstones {
            any: AtomicBool::new(false),
            pictures: ArcSwapOption::empty(),
            account,
            writer: Mutex::new(Writer { make, most: FEW }),
        }
    }

    /// With other random numbers inside.
    pub(crate) fn salt(&mut self, salt: u64) {
        self.writer.get_mut().make.salt(salt);
    }

    /// Adds [start, end) at `seq`, of the batch at `lsn`. Empty and inverted intervals cover nothing and are ignored.
    ///
    /// # Errors
    /// None, as long as `seq` is above the published sequence or nobody reads.
    pub(crate) fn insert(
        &self,
        lsn: Lsn,
        seq: Seq,
        start: &[u8],
        end: &[u8],
        during: During<'_>,
    ) -> Result<()> {
        if start >= end {
            return Ok(());
        }
        let mut writer = self.writer.lock();
        let Writer { make, most } = &mut *writer;
        let old = self.pictures.load_full().unwrap_or_else(|| Arc::new(Pictures::new(make)));
        let next = match during {
            During::Replay => old.with_for_all(start, end, seq, make),
            During::Reads(needed) => {
                let all = old.with(lsn + 1, start, end, seq, make)?;
                if all.len() <= *most {
                    all
                } else {
                    let kept = all.needed(&needed(), make);
                    *most = FEW.max(2 * kept.len());
                    kept
                }
            }
        };
        self.pictures.store(Some(Arc::new(next)));
        self.any.store(true, Ordering::Release);
        drop(writer);
        // Here, and not under the lock, goes what nobody shares.
        drop(old);
        Ok(())
    }

    /// The newest tombstone that covers `key` for a reader at `seq`, 0 if none does; `None` if that is not known any more.
    #[inline]
    pub(crate) fn covering(&self, key: &[u8], seq: Seq) -> Option<Seq> {
        if !self.any.load(Ordering::Acquire) {
            return Some(0);
        }
        match &*self.pictures.load() {
            None => Some(0),
            Some(all) => all.at(seq).map(|p| p.covering(key)),
        }
    }

    /// What a reader at the registered sequence `seq` sees, if there is any tombstone.
    ///
    /// # Errors
    /// [`outdated`] if `seq` is not registered.
    pub(crate) fn picture(&self, seq: Seq) -> Result<Option<Picture>> {
        match &*self.pictures.load() {
            None => Ok(None),
            Some(all) => match all.at(seq) {
                Some(p) if p.is_empty() => Ok(None),
                Some(p) => Ok(Some(p.clone())),
                None => Err(outdated(seq)),
            },
        }
    }

    /// Memory held, in bytes: what readers of older pictures alone hold included.
    pub(crate) fn bytes(&self) -> usize {
        self.account.used()
    }

    /// In the form that extents store: those that `snapshots` (ascending, the published sequence among them) need.
    ///
    /// # Errors
    /// [`outdated`] if one of `snapshots` is neither registered nor published.
    pub(crate) fn to_ranges(&self, snapshots: &[Seq]) -> Result<RangeTombstones> {
        match &*self.pictures.load() {
            None => Ok(RangeTombstones::default()),
            Some(all) => {
                let kept = all.kept(snapshots)?;
                Ok(RangeTombstones::from_ranges(kept.iter().map(|f| (f.start, f.end, f.seq))))
            }
        }
    }
}
