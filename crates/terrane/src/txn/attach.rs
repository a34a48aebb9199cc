//! Attaching: sorted runs that were written beforehand become part of the database, all at once, at one place in the order of
//! commits. So commit transactions that are larger than memory, and so is sorted data taken in.
//!
//! The runs' records are stored without their sequence; it is that of the place. What makes the commit is one group of edits in the
//! manifest, durable at once, whatever the number of subtables: it has happened or not, and the log need not repeat what extents
//! hold.
//!
//! # Steps
//! 1. The caller holds exclusive locks on all that the runs change; what was there before is written out. From here on no memtable
//!    holds anything about those keys, and none will before the locks are let go of: a run may join L0 on top of what is there
//!    and below the memtables, and yet for every key what is newer is above (design rule 8).
//! 2. The runs' space is durable. The subtables' `edit` locks are taken, in the order of their ids, when each has room in L0.
//! 3. A place in the order is reserved; in the log it is a no-op. When its turn comes, the orderer makes the log durable up to there
//!    (design rule 2), appends the edits, shows the runs, and publishes.
//!
//! # Concurrency
//! Between showing and publishing readers may meet the records, whose sequence is above what they read at. Those who read the
//! published sequence and then find that their state is older begin anew (`read::lookup`). Merges may take the run in: it is newer
//! than everything that is published, so they keep it, and for those who read at what is published what was there before.
//! The thread that waits holds the `edit` locks meanwhile; the orderer takes none.
//!
//! # After a crash
//! The group of edits is in the manifest, or the runs' space is nobody's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::smallvec;
use terrane_base::{Completion, Error, ErrorKind, Result, Seq};
use terrane_format::batch::entry_len;
use terrane_format::extent::ExtentMeta;
use terrane_format::manifest::Edit;
use terrane_format::value_ref::ValueRef;

use crate::db::engine::Engine;
use crate::db::request::Request;
use crate::db::table::Table;
use crate::levels::{ExtentRef, VersionEdit};

/// What a subtable gets.
#[derive(Debug)]
pub(crate) struct Share {
    pub(crate) table: Arc<Table>,
    /// In key order, not overlapping; durable.
    pub(crate) extents: Vec<Arc<ExtentMeta>>,
    /// Large values that the records refer to; durable.
    pub(crate) values: Vec<ValueRef>,
    /// Set once it is the subtable's: it is not if that is dropped.
    pub(crate) shown: Arc<AtomicBool>,
}

impl Share {
    pub(crate) fn new(table: &Arc<Table>, extents: Vec<Arc<ExtentMeta>>, values: Vec<ValueRef>) -> Self {
        Share { table: table.clone(), extents, values, shown: Arc::default() }
    }
}

/// What is attached at once.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) shares: Vec<Share>,
    /// Edits that belong to it.
    pub(crate) further: Vec<Edit>,
}

impl Engine {
    /// Attaches runs at the end of the order of commits. The caller holds locks on all that they change, and keeps the space: it is the
    /// database's if this succeeds, or fails with [`ErrorKind::Poisoned`].
    pub(crate) fn attach(self: &Arc<Self>, mut attachment: Attachment) -> Result<Seq> {
        self.check_open()?;
        attachment.shares.sort_by_key(|s| s.table.id);
        let tables: Vec<Arc<Table>> = attachment.shares.iter().map(|s| s.table.clone()).collect();
        // Those that are dropped are left out when its turn comes.
        let alive = |t: &&Arc<Table>| !t.is_dropped();
        for table in tables.iter().filter(alive) {
            match self.flush_table(table) {
                Err(e) if e.kind() != ErrorKind::SubtableDropped => return Err(e),
                _ => {}
            }
        }
        // Its entry in the log takes room too, if little.
        let _admission = self.journal.log().map(|log| self.admit_to_log(log, entry_len(0))).transpose()?;
        let completion = Completion::new();
        let guards = loop {
            for t in &tables {
                t.attaching.fetch_add(1, Ordering::AcqRel);
            }
            let waited = self.wait_for_l0(&tables);
            for t in &tables {
                t.attaching.fetch_sub(1, Ordering::AcqRel);
            }
            waited?;
            let guards: Vec<_> = tables.iter().map(|t| t.edit.lock()).collect();
            if tables.iter().filter(alive).all(|t| t.has_l0_room()) {
                break guards;
            }
        };
        self.place(smallvec![Request::attach(attachment, completion.settler())]);
        let attached = completion.wait_helping(|| self.ring.resume(&**self));
        drop(guards);
        if attached.is_ok() {
            for t in &tables {
                t.readers.strip();
                let newest = t.state().version.l0.first().map_or(0, |run| run.birth_bytes());
                t.spent.run_came(newest);
                self.account_for_change(t);
            }
            self.update_pressure();
            self.schedule_compactions();
            self.progress.notify_all();
        }
        attached
    }

    /// Waits until each of `tables` has room for a run in L0.
    fn wait_for_l0(self: &Arc<Self>, tables: &[Arc<Table>]) -> Result<()> {
        let mut failed: Option<Error> = None;
        self.progress.wait_until(&*self.media, || {
            let is_full = |t: &&Arc<Table>| !t.is_dropped() && !t.has_l0_room();
            let Some(full) = tables.iter().find(is_full) else { return true };
            failed = self.check_writable().err().or_else(|| full.given_up());
            self.schedule_compactions();
            failed.is_some()
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// Makes an attachment durable and shows it, at the sequence `seq`. For the orderer, in its turn, with the log durable up to
    /// there.
    pub(crate) fn show(&self, attachment: &Attachment, seq: Seq) -> Result<()> {
        let mut edits = attachment.further.clone();
        let mut shown = Vec::new();
        for share in attachment.shares.iter().filter(|s| !s.table.is_dropped()) {
            let run = self.ids.run();
            let mut edit = VersionEdit::default();
            let homes = self.estates.homes(share.table.id);
            for meta in &share.extents {
                let meta = Arc::new(meta.attached(seq));
                edit.added.push((0, run, ExtentRef::whole(self.open_extent(&share.table, &meta, &homes)?)));
            }
            let version = share.table.state().version.clone();
            let applied = version.apply(&edit)?;
            edits.extend(edit.to_edits(share.table.id));
            let values = share.values.iter();
            edits.extend(values.map(|v| Edit::AddValue { subtable: share.table.id, value: v.clone() }));
            shown.push((share, version, edit, applied));
        }
        edits.push(self.log_position(self.oldest_needed(self.settled(), |_| None)));
        self.append_edits(&edits)?;
        for (share, version, edit, applied) in shown {
            share.shown.store(true, Ordering::Release);
            let next = Arc::new(applied.version);
            share.table.install_version(next.clone(), None);
            self.check_homes(share.table.id, &edit);
            version.retire(&next, applied.obsolete, Vec::new());
        }
        self.counters.attached.add(1);
        Ok(())
    }

    /// Fails if nothing can be attached now.
    pub(crate) fn check_open(&self) -> Result<()> {
        self.check_writable()?;
        if self.ending.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Closed, "the database is being closed"));
        }
        Ok(())
    }
}
