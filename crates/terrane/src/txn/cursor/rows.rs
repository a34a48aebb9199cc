//! Cursors that lock the rows which they show.
//!
//! A row is found first, and locked then; meanwhile somebody may have changed it. So with the lock in hand the cursor looks whether
//! the row was changed since the moment that its base shows, and if so has the base show the latest: the row is there, or it is given
//! up again. A serializable cursor locks windows instead ([`super`]), in the mode asked for.

use terrane_base::Result;
use terrane_locks::{Mode, Patience, Refusal};

use crate::txn::cursor::direction::Way;
use crate::txn::cursor::{Stands, TransactionCursor};
use crate::txn::refusal::refused;

/// How a cursor locks the rows that it shows, and what it does about those that others have locked; see
/// [`crate::Transaction::locking_cursor`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowLocks {
    pub(super) mode: Mode,
    taken: Taken,
}

/// What to do about a row that somebody else has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Wait,
    Refuse,
    Skip,
}

impl RowLocks {
    /// Against everybody else (`FOR UPDATE`). For a row that is locked it waits as long as the transaction does for any lock.
    pub fn exclusive() -> Self {
        RowLocks { mode: Mode::Exclusive, taken: Taken::Wait }
    }

    /// Against who would change it (`FOR SHARE`): others may lock it so too. Waits as [`RowLocks::exclusive`] does.
    pub fn shared() -> Self {
        RowLocks { mode: Mode::Shared, taken: Taken::Wait }
    }

    /// Rows that others have locked are passed over (`SKIP LOCKED`). What is shown then is not all there is; so also under
    /// [`crate::Isolation::Serializable`] only the rows that are shown are locked, and no gaps.
    #[must_use]
    pub fn skip_locked(self) -> Self {
        RowLocks { taken: Taken::Skip, ..self }
    }

    /// At a row that somebody else has locked it fails with [`crate::ErrorKind::LockBusy`], which names the key (`NOWAIT`); where gaps are
    /// locked too, where the stretch begins that it wanted.
    #[must_use]
    pub fn no_wait(self) -> Self {
        RowLocks { taken: Taken::Refuse, ..self }
    }

    pub(super) fn skips(self) -> bool {
        self.taken == Taken::Skip
    }
}

impl TransactionCursor<'_> {
    /// How it locks what it covers.
    pub(super) fn mode(&self) -> Mode {
        self.rows.map_or(Mode::Shared, |rows| rows.mode)
    }

    /// To the nearest key past the cut `from`, waiting for locks as this cursor is to.
    pub(super) fn go(&mut self, way: Way, from: Option<Vec<u8>>, there: bool) -> Result<()> {
        if self.rows.is_none_or(|rows| rows.taken == Taken::Wait) {
            return self.walk(way, from, there);
        }
        let usual = std::mem::replace(&mut self.txn.patience, Patience::Never);
        let done = self.walk(way, from, there);
        self.txn.patience = usual;
        done
    }

    /// Whether the row in `key` may be shown: it is locked now and still there, if rows are locked. If not, the base is past it.
    pub(super) fn may_show(&mut self, way: Way, stands: Stands) -> Result<bool> {
        let Some(rows) = self.rows.filter(|_| !self.covers) else { return Ok(true) };
        if self.txn.is_optimistic() {
            self.txn.note(&self.anchor.table, &self.key);
            return Ok(true);
        }
        let mark = self.txn.locks.mark();
        let shown = self.lock_row(way, stands, rows);
        if !matches!(shown, Ok(true)) {
            self.txn.locks.release_to(mark);
        }
        self.txn.locks.forget(mark);
        shown
    }

    /// Locks the row in `key`; whether it is there still.
    fn lock_row(&mut self, way: Way, stands: Stands, rows: RowLocks) -> Result<bool> {
        match self.txn.locks.lock_key(self.anchor.table.id, &self.key, rows.mode, self.txn.patience) {
            Err(Refusal::Busy { .. }) if rows.skips() => {
                if stands == Stands::OnBase {
                    way.step(&mut self.base)?;
                }
                Ok(false)
            }
            Err(refusal) => Err(refused(refusal, &self.anchor.table, &self.key)),
            Ok(()) => self.is_there_still(way, stands),
        }
    }

    /// Whether a row is there that was found, now that it is locked. The base then shows what it holds.
    fn is_there_still(&mut self, way: Way, stands: Stands) -> Result<bool> {
        if !self.txn.engine.key_changed_since(&self.anchor.table, &self.key, self.base.seq())? {
            return Ok(true);
        }
        self.make_base()?;
        if stands == Stands::OnOwn {
            way.seek(&mut self.base, Some(&way.past(&self.key)))?;
            return Ok(true);
        }
        way.seek(&mut self.base, Some(&way.ahead_of(&self.key)))?;
        Ok(self.base.valid() && self.base.key() == self.key)
    }
}
