//! Prepared transactions by xid, and from where on the log is needed for them and for what memtables hold.
//!
//! # What is kept
//! * One that is in doubt needs its prepare, which stands at or behind the position that it was entered with. That position was
//!   settled *before* the prepare was reserved ([`Pins::enter`], [`Pins::renew`]).
//! * One whose commit need not be durable yet needs its prepare until the commit is: a power failure may take the commit away,
//!   and must leave the transaction in doubt ([`Pins::end`]).
//! * What a memtable holds and has not been written out needs the log from the memtable's first entry on.
//!
//! # Why nothing is let go of too early
//! [`Pins::needed`] begins with a position that is settled and durable, `synced`, and never answers more. What was settled by then
//! is in a memtable or written out, and stands here if it was prepared; whatever is not yet there when this looks is reserved
//! later, and stands behind. A transaction goes from those in doubt to those that have ended in one step.
//!
//! That position is the end of an entry, and so is the answer, or the beginning of one. To where a device happens to be flushed would
//! not do in its place: that may be within an entry, and what holds the entry may be written out, and gone, before this looks.
//!
//! # Concurrency
//! One mutex, for moments. What excludes two who want to end or renew the same transaction is up to the user.

use std::collections::BTreeMap;
use std::sync::Arc;

use terrane_base::sync::{Mutex, MutexGuard};

/// So many commits that are not durable are told apart; further ones are taken together.
const ENDED: usize = 64;

/// See the module's head. Positions are in whatever unit its user counts.
#[derive(Debug)]
pub struct Pins<T> {
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    in_doubt: BTreeMap<Vec<u8>, Pin<T>>,
    ended: Vec<Ended>,
}

#[derive(Debug)]
struct Pin<T> {
    /// From here on the log is needed for it, if at all.
    from: Option<u64>,
    what: Arc<T>,
}

/// The log is needed from `from` on until it is durable to `end`.
#[derive(Clone, Copy, Debug)]
struct Ended {
    from: u64,
    end: u64,
}

impl<T> Default for Pins<T> {
    fn default() -> Self {
        Pins { state: Mutex::new(State { in_doubt: BTreeMap::new(), ended: Vec::new() }) }
    }
}

impl<T> Pins<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // Nothing panics under it.
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Enters a transaction, before its prepare is reserved: it needs the log from `settled` on, if it is in the log at all. False if
    /// another one has this xid.
    pub fn enter(&self, xid: &[u8], settled: Option<u64>, what: Arc<T>) -> bool {
        use std::collections::btree_map::Entry;
        match self.lock().in_doubt.entry(xid.to_vec()) {
            Entry::Vacant(free) => {
                free.insert(Pin { from: settled, what });
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    /// What was entered with this xid.
    pub fn get(&self, xid: &[u8]) -> Option<Arc<T>> {
        self.lock().in_doubt.get(xid).map(|pin| pin.what.clone())
    }

    /// All xids, in order.
    pub fn xids(&self) -> Vec<Vec<u8>> {
        self.lock().in_doubt.keys().cloned().collect()
    }

    /// All that have not ended, in the order of their xids.
    pub fn all(&self) -> Vec<(Vec<u8>, Arc<T>)> {
        self.lock().in_doubt.iter().map(|(xid, pin)| (xid.clone(), pin.what.clone())).collect()
    }

    /// How many have not ended.
    pub fn len(&self) -> usize {
        self.lock().in_doubt.len()
    }

    /// Whether all have ended.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Those that need the log from before `pos`.
    pub fn before(&self, pos: u64) -> Vec<(Vec<u8>, Arc<T>)> {
        let state = self.lock();
        let old = state.in_doubt.iter().filter(|(_, pin)| pin.from.is_some_and(|from| from < pos));
        old.map(|(xid, pin)| (xid.clone(), pin.what.clone())).collect()
    }

    /// Has `write` write a prepare once more, behind `settled`, and make it durable; then the old one is not needed any more. Nobody else
    /// ends it meanwhile.
    ///
    /// # Errors
    /// Those of `write`; the old one stays.
    pub fn renew<E>(&self, xid: &[u8], settled: u64, write: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        write()?;
        self.set(xid, settled);
        Ok(())
    }

    fn set(&self, xid: &[u8], from: u64) {
        if let Some(pin) = self.lock().in_doubt.get_mut(xid) {
            pin.from = Some(from);
        }
    }

    /// Forgets one that has ended, or was not prepared after all. If its end need not be durable yet, `volatile` is where that ends in
    /// the log.
    pub fn end(&self, xid: &[u8], volatile: Option<u64>) {
        let mut state = self.lock();
        let from = state.in_doubt.remove(xid).and_then(|pin| pin.from);
        if let (Some(from), Some(end)) = (from, volatile) {
            state.note_ended(Ended { from, end });
        }
    }

    /// From where on transactions need the log, which is durable to `durable` at least.
    pub fn oldest(&self, durable: u64) -> Option<u64> {
        let mut state = self.lock();
        state.ended.retain(|e| e.end > durable);
        let in_doubt = state.in_doubt.values().filter_map(|pin| pin.from);
        in_doubt.chain(state.ended.iter().map(|e| e.from)).min()
    }

    /// From where on the log is needed. Everything before `synced` is settled and durable. `held` is where the first entry of each
    /// memtable stands that is not written out; it is asked for after `synced` was found.
    pub fn needed(&self, synced: u64, held: impl Iterator<Item = u64>) -> u64 {
        held.chain(self.oldest(synced)).fold(synced, u64::min)
    }
}

impl<T> State<T> {
    fn note_ended(&mut self, ended: Ended) {
        if self.ended.len() == ENDED {
            let all = self.ended.drain(..);
            let whole = all.reduce(|a, b| Ended { from: a.from.min(b.from), end: a.end.max(b.end) });
            self.ended.extend(whole);
        }
        self.ended.push(ended);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod model;
