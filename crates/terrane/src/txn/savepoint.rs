//! Going back to a moment in a transaction.

use terrane_base::{Error, Result};
use terrane_locks::Mark;

use crate::txn::options::Isolation;
use crate::txn::transaction::Transaction;
use crate::txn::writes::Moment;

/// A moment in a transaction to which it can go back; see [`Transaction::savepoint`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Savepoint {
    transaction: u64,
    number: u64,
}

/// Those of a transaction, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Savepoints {
    saved: Vec<Saved>,
    /// How many there have been.
    made: u64,
}

#[derive(Debug)]
struct Saved {
    id: Savepoint,
    moment: Moment,
    /// None where no locks are given back on the way to it.
    mark: Option<Mark>,
}

impl Savepoints {
    fn push(&mut self, transaction: u64, moment: Moment, mark: Option<Mark>) -> Savepoint {
        let id = Savepoint { transaction, number: self.made };
        self.made += 1;
        self.saved.push(Saved { id, moment, mark });
        id
    }

    fn place_of(&self, savepoint: Savepoint) -> Result<usize> {
        self.saved.iter().position(|s| s.id == savepoint).ok_or_else(|| {
            Error::invalid("this savepoint is gone: it was released, or an earlier one was returned to")
        })
    }

    pub(super) fn moments(&mut self) -> Vec<&mut Moment> {
        self.saved.iter_mut().map(|s| &mut s.moment).collect()
    }
}

impl Transaction {
    /// Remembers this moment, to go back to. Savepoints nest.
    pub fn savepoint(&mut self) -> Savepoint {
        // What a serializable transaction has read stays locked.
        let mark = (self.isolation != Isolation::Serializable).then(|| self.locks.mark());
        self.savepoints.push(self.id(), self.writes.moment(), mark)
    }

    /// Undoes what was written after `savepoint`, which stays; later savepoints are gone. Locks taken since are let go of, but
    /// under [`Isolation::Serializable`], where what was read stays locked.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidArgument`] if it is not a savepoint of this transaction (any more).
    pub fn rollback_to(&mut self, savepoint: Savepoint) -> Result<()> {
        let at = self.savepoints.place_of(savepoint)?;
        self.savepoints.saved.truncate(at + 1);
        let Saved { moment, mark, .. } = self.savepoints.saved[at];
        if let Some(mark) = mark {
            self.locks.release_to(mark);
        }
        self.writes.back_to(moment)
    }

    /// Forgets `savepoint` and those after it; what was written since stays.
    ///
    /// # Errors
    /// As for [`Transaction::rollback_to`].
    pub fn release(&mut self, savepoint: Savepoint) -> Result<()> {
        let at = self.savepoints.place_of(savepoint)?;
        if let Some(mark) = self.savepoints.saved[at].mark {
            self.locks.forget(mark);
        }
        self.savepoints.saved.truncate(at);
        if self.savepoints.saved.is_empty() {
            self.writes.forget_moments();
        }
        Ok(())
    }
}
