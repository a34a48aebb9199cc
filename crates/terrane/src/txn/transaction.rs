//! A transaction.

use std::sync::Arc;

use terrane_base::{Error, Result, Seq};
use terrane_format::limits::check_key;
use terrane_locks::{Mode, Owner, Patience};

use crate::db::commit::PendingCommit;
use crate::db::engine::Engine;
use crate::db::request::Form;
use crate::db::snapshot::SnapshotGuard;
use crate::db::subtable::Subtable;
use crate::db::table::Table;
use crate::options::Durability;
use crate::read::iter::ReadOptions;
use crate::txn::cursor::TransactionCursor;
use crate::txn::cursor::rows::RowLocks;
use crate::txn::options::{Isolation, LockWait, TransactionOptions};
use crate::txn::reads::ReadSet;
use crate::txn::savepoint::Savepoints;
use crate::txn::writes::OwnWrites;

/// Reads and writes on any subtables of a database that take effect together or not at all, kept apart from what others do.
/// Begun by [`crate::Db::begin`].
///
/// It reads what it has written itself. It ends with [`Transaction::commit`], or [`Transaction::prepare`]; dropped, it is rolled
/// back. After an error with [`crate::Error::should_retry`] roll it back and begin anew; after other errors it may go on.
///
/// ```
/// use terrane::{Db, Durability, Options, SubtableOptions, TransactionOptions};
///
/// # fn main() -> terrane::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let db = Db::open(dir.path(), Options::new())?;
/// let accounts = db.create_subtable("accounts", SubtableOptions::new())?;
/// accounts.put(b"ada", b"100")?;
///
/// let mut t = db.begin(TransactionOptions::new())?;
/// let balance = t.get_for_update(&accounts, b"ada")?;
/// assert_eq!(balance.as_deref(), Some(&b"100"[..]));
/// t.put(&accounts, b"ada", b"90")?;
/// t.put(&accounts, b"bob", b"10")?;
/// assert_eq!(accounts.get(b"bob")?, None);
/// t.commit(Durability::Sync)?;
/// assert_eq!(accounts.get(b"bob")?.as_deref(), Some(&b"10"[..]));
/// # Ok(())
/// # }
/// ```
///
/// # Size
/// What it writes is kept in memory up to an eighth of the memtables' budget, and beyond that on the device, where it is bounded by
/// the space there is. A large one is durable when its commit returns, whatever was asked for.
#[derive(Debug)]
pub struct Transaction {
    pub(crate) engine: Arc<Engine>,
    pub(crate) locks: Owner,
    pub(super) isolation: Isolation,
    pub(super) optimistic: bool,
    pub(crate) patience: Patience,
    /// The moment at which it began, unless it reads the latest.
    pub(super) snapshot: Option<SnapshotGuard>,
    pub(crate) writes: OwnWrites,
    pub(super) reads: ReadSet,
    pub(super) savepoints: Savepoints,
}

/// A record whose lock was asked for without waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Locked<T> {
    /// It is locked now; this is what it holds.
    Here(T),
    /// Somebody else holds the lock.
    Skipped,
}

impl Transaction {
    pub(crate) fn begin(engine: &Arc<Engine>, options: &TransactionOptions) -> Result<Self> {
        if options.optimistic && options.isolation == Isolation::ReadCommitted {
            return Err(Error::invalid("an optimistic transaction cannot be read committed")
                .with_hint("choose snapshot or serializable isolation, or locks"));
        }
        engine.guard_writes()?;
        engine.transactions.begun.add(1);
        let snapshot =
            (options.optimistic || options.isolation == Isolation::Snapshot).then(|| engine.register_owned());
        Ok(Transaction {
            locks: engine.transactions.owner(),
            isolation: options.isolation,
            optimistic: options.optimistic,
            patience: options.lock_wait.into(),
            snapshot,
            writes: OwnWrites::new(engine),
            reads: ReadSet::new(engine.options.transaction_bytes() / 2),
            savepoints: Savepoints::default(),
            engine: engine.clone(),
        })
    }

    /// Its number, which errors about locks name. The later it began, the larger.
    pub fn id(&self) -> u64 {
        self.locks.number()
    }

    /// From here on it waits that long for locks.
    pub fn set_lock_wait(&mut self, wait: LockWait) {
        self.patience = wait.into();
    }

    /// The value of `key`: what this transaction has written, or else what its isolation shows. Under
    /// [`Isolation::Serializable`] it locks the key against writers, and may wait. Blocks on I/O for blocks that are not cached.
    ///
    /// # Errors
    /// As for [`Subtable::get`]; for the lock [`crate::ErrorKind::LockTimeout`], [`crate::ErrorKind::LockBusy`] or
    /// [`crate::ErrorKind::Deadlock`].
    pub fn get(&mut self, subtable: &Subtable, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let table = self.table(subtable)?.clone();
        check_key(key)?;
        if let Some(own) = self.writes.find(&table, key)? {
            return Ok(own);
        }
        if self.isolation == Isolation::Serializable {
            if self.optimistic {
                self.reads.key(&table, key);
            } else {
                self.lock(&table, key, Mode::Shared)?;
            }
        }
        self.engine.get(&table, key, self.snapshot_seq(), <[u8]>::to_vec)
    }

    /// The value of `key`, which is locked against everybody else until the transaction ends: what this transaction has written,
    /// or else the latest, also under [`Isolation::Snapshot`]. Writing the key afterwards meets no conflict. An optimistic
    /// transaction reads the moment at which it began, and sees at the commit whether the key was changed since.
    ///
    /// # Errors
    /// As for [`Transaction::get`].
    pub fn get_for_update(&mut self, subtable: &Subtable, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.get_locked(subtable, key, Mode::Exclusive)
    }

    /// As [`Transaction::get_for_update`], but others may read it so too.
    ///
    /// # Errors
    /// As for [`Transaction::get`].
    pub fn get_for_share(&mut self, subtable: &Subtable, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.get_locked(subtable, key, Mode::Shared)
    }

    /// As [`Transaction::get_for_update`], but without waiting: a key that somebody else has locked is skipped (`SKIP LOCKED`).
    ///
    /// # Errors
    /// As for [`Subtable::get`].
    pub fn try_get_for_update(&mut self, subtable: &Subtable, key: &[u8]) -> Result<Locked<Option<Vec<u8>>>> {
        let patience = std::mem::replace(&mut self.patience, Patience::Never);
        let got = self.get_for_update(subtable, key);
        self.patience = patience;
        match got {
            Ok(value) => Ok(Locked::Here(value)),
            Err(e) if e.kind() == terrane_base::ErrorKind::LockBusy => Ok(Locked::Skipped),
            Err(e) => Err(e),
        }
    }

    fn get_locked(&mut self, subtable: &Subtable, key: &[u8], mode: Mode) -> Result<Option<Vec<u8>>> {
        let table = self.table(subtable)?.clone();
        check_key(key)?;
        let seq = if self.optimistic {
            self.reads.key(&table, key);
            self.snapshot_seq()
        } else {
            self.lock(&table, key, mode)?;
            None
        };
        match self.writes.find(&table, key)? {
            Some(own) => Ok(own),
            None => self.engine.get(&table, key, seq, <[u8]>::to_vec),
        }
    }

    /// Sets `key` to `value`, for itself until it commits. Locks the key, and may wait for it.
    ///
    /// # Errors
    /// [`crate::ErrorKind::LimitExceeded`], [`crate::ErrorKind::SubtableDropped`]; [`crate::ErrorKind::WriteConflict`] if
    /// somebody changed the key since this transaction began ([`Isolation::Snapshot`]); for the lock as for
    /// [`Transaction::get`].
    pub fn put(&mut self, subtable: &Subtable, key: &[u8], value: &[u8]) -> Result<()> {
        self.claim(subtable, key)?;
        self.writes.put(subtable, key, value)?;
        self.keep_within_memory()
    }

    /// Removes `key`, whether or not it is there.
    ///
    /// # Errors
    /// As for [`Transaction::put`].
    pub fn delete(&mut self, subtable: &Subtable, key: &[u8]) -> Result<()> {
        self.claim(subtable, key)?;
        self.writes.delete(subtable, key)?;
        self.keep_within_memory()
    }

    /// Removes every key from `start` (included) to `end` (excluded), and keeps others from adding any there until it ends.
    ///
    /// # Errors
    /// As for [`Transaction::put`].
    pub fn delete_range(&mut self, subtable: &Subtable, start: &[u8], end: &[u8]) -> Result<()> {
        let table = self.table(subtable)?.clone();
        check_key(start)?;
        check_key(end)?;
        if start >= end {
            return Ok(());
        }
        self.claim_range(&table, start, end)?;
        self.writes.delete_range(subtable, start, end)?;
        self.keep_within_memory()
    }

    /// A cursor over the keys that `options` allow, as this transaction sees them: its own writes included, those that it makes
    /// while the cursor is open too ([`TransactionCursor::transaction`]). A snapshot in `options` takes the place of what the
    /// isolation shows, and then nothing is locked. Under [`Isolation::Serializable`] it locks all that it passes, the
    /// gaps between the keys included. Seek before use.
    ///
    /// # Errors
    /// As for [`Subtable::cursor`].
    pub fn cursor(&mut self, subtable: &Subtable, options: ReadOptions) -> Result<TransactionCursor<'_>> {
        self.table(subtable)?;
        TransactionCursor::new(self, subtable.anchor(), options, None)
    }

    /// A cursor that locks each row before it shows it, and shows what is committed then: `SELECT ... FOR UPDATE` and its kin. What
    /// `rows` says is how. Seek before use. The locks are kept as those of [`Transaction::get_for_update`] are, and what is
    /// locked may be written without a conflict.
    ///
    /// * [`Isolation::ReadCommitted`], [`Isolation::Snapshot`]: it looks for rows among what is committed when it is positioned
    ///   by a seek, locks one, and looks at it again: one that is gone meanwhile is let go of and passed over. Gaps are not locked.
    /// * [`Isolation::Serializable`]: it locks all that it passes, the gaps included, stretch by stretch as [`Transaction::cursor`]
    ///   does, in the mode asked for; with [`RowLocks::skip_locked`] the rows alone.
    /// * An optimistic transaction locks nothing. It shows the moment at which it began, and at the commit sees whether any row that
    ///   was shown has changed since.
    ///
    /// ```
    /// use terrane::{Db, Durability, Options, ReadOptions, RowLocks, SubtableOptions, TransactionOptions};
    ///
    /// # fn main() -> terrane::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// let db = Db::open(dir.path(), Options::new())?;
    /// let queue = db.create_subtable("queue", SubtableOptions::new())?;
    /// queue.put(b"1", b"first")?;
    /// queue.put(b"2", b"second")?;
    ///
    /// // Two that take from a queue, at the same time: each gets a row of its own.
    /// let rows = RowLocks::exclusive().skip_locked();
    /// let mut took = Vec::new();
    /// let mut takers = [db.begin(TransactionOptions::new())?, db.begin(TransactionOptions::new())?];
    /// for taker in &mut takers {
    ///     let mut c = taker.locking_cursor(&queue, ReadOptions::new(), rows)?;
    ///     c.seek_to_first()?;
    ///     let key = c.key().to_vec();
    ///     c.transaction().delete(&queue, &key)?;
    ///     took.push(key);
    /// }
    /// assert_eq!(took, [b"1", b"2"]);
    /// for taker in takers {
    ///     taker.commit(Durability::Buffered)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Subtable::cursor`]; [`crate::ErrorKind::InvalidArgument`] for a snapshot in `options`.
    pub fn locking_cursor(
        &mut self,
        subtable: &Subtable,
        options: ReadOptions,
        rows: RowLocks,
    ) -> Result<TransactionCursor<'_>> {
        self.table(subtable)?;
        TransactionCursor::new(self, subtable.anchor(), options, Some(rows))
    }

    /// Commits: all that it has written takes effect at once, with the durability asked for. Then its locks are let go of. Blocks
    /// as [`crate::Db::write`] does. Returns the commit's sequence.
    ///
    /// # Errors
    /// As for [`crate::Db::write`]; of an optimistic transaction [`crate::ErrorKind::WriteConflict`], and for locks as
    /// for [`Transaction::get`]. It is rolled back then.
    pub fn commit(mut self, durability: Durability) -> Result<Seq> {
        self.settle()?;
        let committed = if self.writes.is_large() {
            self.engine.attach_runs(self.writes.into_runs()?)?
        } else {
            self.engine.commit(self.writes.into_batch(), Form::locked(durability, None))?
        };
        self.engine.transactions.committed.add(1);
        // Published: others may see it now.
        drop(self.locks);
        Ok(committed)
    }

    /// Commits without waiting for the outcome; see [`PendingCommit`]. When the call returns, the commit has its place in the
    /// order: whatever is submitted or committed later, by whomever, stands behind it in the log and becomes visible after
    /// it. So a host with a log of its own can have commits in that log's order, and wait for their durability elsewhere. The
    /// locks are let go of when the commit is published.
    ///
    /// # Errors
    /// As for [`Transaction::commit`], as far as they are known at once.
    pub fn submit(mut self, durability: Durability) -> Result<PendingCommit> {
        self.settle()?;
        if self.writes.is_large() {
            let seq = self.engine.attach_runs(self.writes.into_runs()?)?;
            self.engine.transactions.committed.add(1);
            return Ok(PendingCommit::done(&self.engine, seq));
        }
        let form = Form { ordered: true, ..Form::locked(durability, Some(self.locks)) };
        let pending = self.engine.submit(self.writes.into_batch(), form)?;
        self.engine.transactions.committed.add(1);
        Ok(pending)
    }

    /// First phase of a two-phase commit: when it returns, the transaction survives a power failure, holds its locks, and can
    /// still be committed or rolled back, by [`crate::Db::commit_prepared`] and [`crate::Db::rollback_prepared`], also after the
    /// database was closed, or crashed. Nobody sees it until then. `xid` is the caller's name for it, 1 to 255 bytes, unique among
    /// the prepared ones. Blocks for a flush.
    ///
    /// An optimistic transaction is validated here, and has locks from then on: on what it has written, and shared ones on what it
    /// has read (under snapshot isolation: with locking reads), which the prepare records like any others. What it has read must
    /// hold until it ends: else somebody could change that between prepare and commit, when nobody looks any more, and each of two
    /// could miss what the other one writes. So also for one that wrote nothing here: that it is prepared says that it is part of
    /// something larger, which ends elsewhere, later.
    ///
    /// # Errors
    /// As for [`Transaction::commit`]; [`crate::ErrorKind::AlreadyExists`] for an xid that is in use. It is rolled back then;
    /// after an error of a flush a restart may find it prepared.
    pub fn prepare(mut self, xid: &[u8]) -> Result<()> {
        self.writes.check()?;
        // Its locks stand in the prepare, which has a limit.
        self.reads.shrink_to(self.engine.options.max_batch_bytes() as usize / 4);
        self.validate()?;
        self.engine.prepare(xid, self.writes, self.locks)
    }

    /// Undoes everything and lets go of all locks, as dropping it does.
    pub fn rollback(self) {
        drop(self);
    }

    /// Number of operations written.
    pub fn len(&self) -> u64 {
        self.writes.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Before a commit. An optimistic transaction that wrote nothing has seen one moment, which is all that there is to it.
    fn settle(&mut self) -> Result<()> {
        self.writes.check()?;
        if self.writes.is_empty() { Ok(()) } else { self.validate() }
    }

    pub(super) fn table<'s>(&self, subtable: &'s Subtable) -> Result<&'s Arc<Table>> {
        self.writes.check()?;
        let table = subtable.table();
        if table.database != self.engine.database {
            return Err(Error::invalid("the transaction is on another database").with_subtable(&*table.name));
        }
        table.check_alive()?;
        Ok(table)
    }

    pub(super) fn snapshot_seq(&self) -> Option<Seq> {
        self.snapshot.as_ref().map(|s| s.seq)
    }

    /// Spills what takes more memory than a transaction may.
    fn keep_within_memory(&mut self) -> Result<()> {
        if self.writes.memory() + self.reads.memory() <= self.engine.options.transaction_bytes() {
            return Ok(());
        }
        self.writes.spill(&mut self.savepoints.moments())
    }

    pub(crate) fn is_optimistic(&self) -> bool {
        self.optimistic
    }

    /// What its cursors read: a snapshot, or (none) the latest, and whether they have to cover what they pass.
    pub(crate) fn view(&self) -> (Option<SnapshotGuard>, bool) {
        (self.snapshot.clone(), self.isolation == Isolation::Serializable)
    }
}
