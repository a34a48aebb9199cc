//! Ordered reads: a cursor that goes both ways, and a Rust iterator over it.
//!
//! A cursor is a snapshot plus a position. It works on the state (memtables and version) that it found when it was last
//! positioned; when a flush or a merge retires that state, it remembers its key, takes the new state and seeks again,
//! so that long scans pin neither memtables nor old extents while they move.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrane_base::{Error, ErrorKind, Result};
use terrane_format::Kind;

use crate::db::engine::Engine;
use crate::db::snapshot::{Snapshot, SnapshotGuard};
use crate::db::table::{Super, Table};
use crate::read::merge::Merge;
use crate::read::source::Source;

/// Deletions a seek may step over before the engine is told to clear them away.
const MANY_SKIPPED: u64 = 1000;

/// What a read sees and how far it goes.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    pub(crate) snapshot: Option<Snapshot>,
    pub(crate) lower: Option<Vec<u8>>,
    pub(crate) upper: Option<Vec<u8>>,
}

impl ReadOptions {
    /// The present, unbounded.
    pub fn new() -> Self {
        Self::default()
    }

    /// Read as of `snapshot`. Default: as of the call.
    #[must_use]
    pub fn snapshot(mut self, snapshot: &Snapshot) -> Self {
        self.snapshot = Some(snapshot.clone());
        self
    }

    /// Keys at or above `key` only.
    #[must_use]
    pub fn lower(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.lower = Some(key.into());
        self
    }

    /// Keys below `key` only.
    #[must_use]
    pub fn upper(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.upper = Some(key.into());
        self
    }

    /// Keys that begin with `prefix` only. Replaces both bounds.
    #[must_use]
    pub fn prefix(mut self, prefix: &[u8]) -> Self {
        self.lower = Some(prefix.to_vec());
        self.upper = after_prefix(prefix);
        self
    }
}

/// The first key after all keys that begin with `prefix`; `None` if there is none.
fn after_prefix(prefix: &[u8]) -> Option<Vec<u8>> {
    let keep = prefix.iter().rposition(|&b| b != 0xff)?;
    let mut end = prefix[..=keep].to_vec();
    end[keep] += 1;
    Some(end)
}

/// A position among the keys of a subtable. Starts nowhere: seek first.
///
/// Blocks on I/O when it enters a block that is not cached. It is a snapshot: it shows what was there when it was made.
#[derive(Debug)]
pub struct Cursor {
    engine: Arc<Engine>,
    table: Arc<Table>,
    snapshot: SnapshotGuard,
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
    state: Arc<Super>,
    merge: Merge,
    /// Inside the bounds.
    inside: bool,
}

impl Cursor {
    pub(crate) fn new(engine: Arc<Engine>, table: Arc<Table>, options: ReadOptions) -> Result<Self> {
        table.check_alive()?;
        // Registered before the state is loaded: whatever retires versions after that respects this snapshot.
        let snapshot = match options.snapshot {
            Some(s) => {
                engine.check_snapshot(&s)?;
                s.guard
            }
            None => engine.snapshots.register(|| engine.visible()),
        };
        let state = table.state_full();
        let merge = sources(&engine, &state, snapshot.seq);
        let (lower, upper) = (options.lower, options.upper);
        Ok(Cursor { engine, table, snapshot, lower, upper, state, merge, inside: false })
    }

    /// Whether the cursor stands on a key.
    pub fn valid(&self) -> bool {
        self.inside
    }

    /// The key under the cursor; empty when not valid.
    pub fn key(&self) -> &[u8] {
        if self.inside { self.merge.key() } else { &[] }
    }

    /// The value under the cursor; empty when not valid. Borrowed, except for a large value, which is read from the
    /// medium at this moment.
    ///
    /// # Errors
    /// I/O errors and corruption while reading a large value.
    pub fn value(&self) -> Result<Cow<'_, [u8]>> {
        if !self.inside {
            return Ok(Cow::Borrowed(&[]));
        }
        match self.merge.kind() {
            Kind::ValueRef => self
                .engine
                .read_large(self.merge.value())
                .map(Cow::Owned)
                .map_err(|e| e.with_subtable(&*self.table.name)),
            _ => Ok(Cow::Borrowed(self.merge.value())),
        }
    }

    /// To the first key at or after `key`.
    ///
    /// # Errors
    /// I/O errors and corruption; the cursor is then not valid.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.renew();
        let from = match &self.lower {
            Some(l) if &l[..] > key => l.clone(),
            _ => key.to_vec(),
        };
        let done = self.merge.seek(&from);
        self.settle(done)
    }

    /// To the last key at or before `key`.
    ///
    /// # Errors
    /// As for [`Cursor::seek`].
    pub fn seek_for_prev(&mut self, key: &[u8]) -> Result<()> {
        if self.upper.as_deref().is_some_and(|u| key >= u) {
            return self.seek_to_last();
        }
        self.renew();
        let done = self.merge.seek_for_prev(key);
        self.settle(done)
    }

    /// To the first key within the bounds.
    ///
    /// # Errors
    /// As for [`Cursor::seek`].
    pub fn seek_to_first(&mut self) -> Result<()> {
        self.renew();
        let done = match self.lower.clone() {
            Some(l) => self.merge.seek(&l),
            None => self.merge.seek_first(),
        };
        self.settle(done)
    }

    /// To the last key within the bounds.
    ///
    /// # Errors
    /// As for [`Cursor::seek`].
    pub fn seek_to_last(&mut self) -> Result<()> {
        self.renew();
        let done = match self.upper.clone() {
            Some(u) => self.merge.seek_for_prev(&u).and_then(|()| {
                if self.merge.valid() && self.merge.key() == u { self.merge.prev() } else { Ok(()) }
            }),
            None => self.merge.seek_last(),
        };
        self.settle(done)
    }

    /// To the next key; not valid after the last one.
    ///
    /// # Errors
    /// As for [`Cursor::seek`].
    #[allow(
        clippy::should_implement_trait,
        reason = "a cursor goes both ways and keeps its place: not an iterator"
    )]
    pub fn next(&mut self) -> Result<()> {
        if !self.inside {
            return Ok(());
        }
        let done = match self.move_over(true) {
            Ok(true) => Ok(()),
            Ok(false) => self.merge.next(),
            Err(e) => Err(e),
        };
        self.settle(done)
    }

    /// To the key before; not valid before the first one.
    ///
    /// # Errors
    /// As for [`Cursor::seek`].
    pub fn prev(&mut self) -> Result<()> {
        if !self.inside {
            return Ok(());
        }
        let done = match self.move_over(false) {
            Ok(true) => Ok(()),
            Ok(false) => self.merge.prev(),
            Err(e) => Err(e),
        };
        self.settle(done)
    }

    /// Takes the newest state if the present one is retired, without a position.
    fn renew(&mut self) -> bool {
        if !self.state.retired.load(Ordering::Acquire) {
            return false;
        }
        self.state = self.table.state_full();
        self.merge = sources(&self.engine, &self.state, self.snapshot.seq);
        true
    }

    /// Moves to the newest state if the present one is retired, and there one step on. Says whether it did.
    fn move_over(&mut self, forward: bool) -> Result<bool> {
        if !self.state.retired.load(Ordering::Acquire) {
            return Ok(false);
        }
        let key = self.merge.key().to_vec();
        self.renew();
        if forward {
            self.merge.seek(&key)?;
        } else {
            self.merge.seek_for_prev(&key)?;
        }
        // The snapshot shows the same keys in every state, so the key is there again; step off it.
        if self.merge.valid() && self.merge.key() == key {
            if forward {
                self.merge.next()?;
            } else {
                self.merge.prev()?;
            }
        }
        Ok(true)
    }

    fn settle(&mut self, done: Result<()>) -> Result<()> {
        self.inside = false;
        done.map_err(|e| e.with_subtable(&*self.table.name))?;
        if self.merge.skipped > MANY_SKIPPED {
            self.merge.skipped = 0;
            self.engine.many_deletions(&self.table);
        }
        let key = self.merge.key();
        self.inside = self.merge.valid()
            && self.lower.as_deref().is_none_or(|l| key >= l)
            && self.upper.as_deref().is_none_or(|u| key < u);
        Ok(())
    }
}

fn sources(engine: &Engine, state: &Super, seq: u64) -> Merge {
    let runs = state.version.runs().filter(|(_, r)| !r.is_empty());
    let runs = runs.map(|(_, r)| Source::run(r.clone(), engine.cache.clone(), seq));
    let mems = state.memtables.iter().filter(|m| !m.is_empty());
    Merge::new(mems.map(|m| Source::memtable(m.clone(), seq)).chain(runs).collect())
}

/// The keys and values of a range, in order; from the back with [`Iterator::rev`]. Made by
/// [`crate::Subtable::range`].
///
/// After an error it yields that error once and then ends.
#[derive(Debug)]
pub struct Range {
    front: Cursor,
    back: Option<Cursor>,
    started: bool,
    done: bool,
}

/// A key with its value.
pub type KeyValue = (Vec<u8>, Vec<u8>);

impl Range {
    pub(crate) fn new(cursor: Cursor) -> Self {
        Range { front: cursor, back: None, started: false, done: false }
    }

    fn step_front(&mut self) -> Result<Option<KeyValue>> {
        if self.started {
            self.front.next()?;
        } else {
            self.started = true;
            self.front.seek_to_first()?;
        }
        if !self.front.valid() || self.back.as_ref().is_some_and(|b| b.key() <= self.front.key()) {
            return Ok(None);
        }
        Ok(Some((self.front.key().to_vec(), self.front.value()?.into_owned())))
    }

    fn step_back(&mut self) -> Result<Option<KeyValue>> {
        let back = match &mut self.back {
            Some(b) => {
                b.prev()?;
                b
            }
            none => {
                let f = &self.front;
                let options = ReadOptions {
                    snapshot: Some(Snapshot { guard: f.snapshot.clone(), database: f.engine.database }),
                    lower: f.lower.clone(),
                    upper: f.upper.clone(),
                };
                let b = none.insert(Cursor::new(f.engine.clone(), f.table.clone(), options)?);
                b.seek_to_last()?;
                b
            }
        };
        if !back.valid() || (self.started && self.front.valid() && back.key() <= self.front.key()) {
            return Ok(None);
        }
        Ok(Some((back.key().to_vec(), back.value()?.into_owned())))
    }

    fn fuse(&mut self, step: Result<Option<KeyValue>>) -> Option<Result<KeyValue>> {
        self.done = !matches!(step, Ok(Some(_)));
        step.transpose()
    }
}

impl Iterator for Range {
    type Item = Result<KeyValue>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let step = self.step_front();
        self.fuse(step)
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let step = self.step_back();
        self.fuse(step)
    }
}

impl std::iter::FusedIterator for Range {}

pub(crate) fn foreign_snapshot() -> Error {
    Error::new(ErrorKind::InvalidArgument, "the snapshot belongs to another database")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix() {
        assert_eq!(after_prefix(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(after_prefix(b"a\xff\xff"), Some(b"b".to_vec()));
        assert_eq!(after_prefix(b"\xff\xff"), None);
        assert_eq!(after_prefix(b""), None);
    }
}
