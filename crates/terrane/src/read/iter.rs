//! Ordered reads: a cursor that goes both ways, and a Rust iterator over it.
//!
//! A cursor is a snapshot plus a position. It works on the state (memtables and version) that it found when it was last
//! positioned; when a flush or a merge takes something out of that state, the cursor gives it up, be it in use or idle, and
//! seeks its key in the newest state when it goes on. So an open cursor pins neither memtables nor old extents. What it stands
//! on it keeps apart (`read::entry`, or `read::lead` while it walks through a block by itself), so that borrowed keys and
//! values stay what they are meanwhile.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;

use terrane_base::{Error, ErrorKind, Result, Seq};
use terrane_format::Kind;

use crate::compact::pick::Met;
use crate::db::anchor::{Anchor, Both};
use crate::db::snapshot::{Registered, Snapshot};
use crate::db::table::Table;
use crate::levels::Run;
use crate::read::entry::Entry;
use crate::read::lead::{Lead, Walked};
use crate::read::scan::{Scan, Seated, Tools};

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
/// Blocks on I/O when it enters a block that is not cached. It is a snapshot: it shows what was there when it was made. However
/// long it stays open, it keeps neither memtables nor space on the device from being freed between two calls, but versions of
/// keys, as every snapshot does.
#[derive(Debug)]
pub struct Cursor {
    lower: Option<Vec<u8>>,
    upper: Option<Vec<u8>>,
    /// Runs of a transaction, the newest first, that hide what the subtable has.
    own: Vec<Arc<Run>>,
    /// Where the scan lies between two calls; it may be gone at the next one.
    seated: Seated,
    /// What the cursor stands on, unless `lead` is on.
    entry: Entry,
    /// Walks alone where the scan has nothing to merge; the scan knows the position at which it began.
    lead: Lead,
    /// Inside the bounds.
    inside: bool,
    /// What it shows, and of which engine and table. The last field: nothing outlives these.
    snapshot: Registered<Anchor>,
}

impl Cursor {
    pub(crate) fn new(anchor: Anchor, options: ReadOptions) -> Result<Self> {
        Cursor::over(anchor, options, Vec::new())
    }

    /// One that shows the runs `own` of a transaction, the newest first, above the subtable.
    pub(crate) fn over(anchor: Anchor, options: ReadOptions, own: Vec<Arc<Run>>) -> Result<Self> {
        // Registered before any state is loaded: whatever retires versions after that respects this snapshot.
        let snapshot = match options.snapshot {
            Some(s) => {
                anchor.engine.check_snapshot(&s)?;
                s.guard.handed_to(anchor)
            }
            None => Registered::new(anchor, |a| a.engine.visible()),
        };
        let cursor = Cursor::seated(snapshot, (options.lower, options.upper), own);
        // After the seat was taken: from here on the subtable keeps its state for us, dropped or not.
        cursor.table().check_alive()?;
        Ok(cursor)
    }

    fn seated(
        snapshot: Registered<Anchor>,
        (lower, upper): (Option<Vec<u8>>, Option<Vec<u8>>),
        own: Vec<Arc<Run>>,
    ) -> Self {
        let (seated, Tools { entry, lead }) = Seated::new(&snapshot.among.table, own.is_empty());
        Cursor { lower, upper, own, seated, entry, lead, inside: false, snapshot }
    }

    /// Another one that shows the same, without a position.
    fn twin(&self) -> Self {
        Cursor::seated(self.snapshot.clone(), (self.lower.clone(), self.upper.clone()), self.own.clone())
    }

    fn table(&self) -> &Arc<Table> {
        &self.snapshot.among.table
    }

    /// The moment that it shows.
    pub(crate) fn seq(&self) -> Seq {
        self.snapshot.seq
    }

    /// Whether the cursor stands on a key.
    pub fn valid(&self) -> bool {
        self.inside
    }

    /// The key under the cursor; empty when not valid.
    #[inline]
    pub fn key(&self) -> &[u8] {
        if !self.inside {
            &[]
        } else if self.lead.is_on() {
            self.lead.key()
        } else {
            self.entry.key()
        }
    }

    /// The value under the cursor; empty when not valid. Borrowed, not copied, except for a large value, which is read from
    /// the medium at this moment.
    ///
    /// # Errors
    /// I/O errors and corruption while reading a large value.
    #[inline]
    pub fn value(&self) -> Result<Cow<'_, [u8]>> {
        if !self.inside {
            return Ok(Cow::Borrowed(&[]));
        }
        let (kind, value) = if self.lead.is_on() {
            (self.lead.kind(), self.lead.value())
        } else {
            (self.entry.kind, self.entry.value())
        };
        match kind {
            Kind::ValueRef => {
                let large = self.snapshot.among.engine.read_large(value);
                large.map(Cow::Owned).map_err(|e| e.with_subtable(&*self.table().name))
            }
            _ => Ok(Cow::Borrowed(value)),
        }
    }

    /// To the first key at or after `key`.
    ///
    /// # Errors
    /// I/O errors and corruption; the cursor is then not valid.
    pub fn seek(&mut self, key: &[u8]) -> Result<()> {
        let mut scan = self.scan();
        let from = self.lower.as_deref().filter(|l| *l > key).unwrap_or(key);
        let done = scan.seek(&self.snapshot.among.engine, from);
        self.settle(scan, done)
    }

    /// To the last key at or before `key`.
    ///
    /// # Errors
    /// As for [`Cursor::seek`].
    pub fn seek_for_prev(&mut self, key: &[u8]) -> Result<()> {
        if self.upper.as_deref().is_some_and(|u| key >= u) {
            return self.seek_to_last();
        }
        let mut scan = self.scan();
        let done = scan.merge.seek_for_prev(key);
        self.settle(scan, done)
    }

    /// To the first key within the bounds.
    ///
    /// # Errors
    /// As for [`Cursor::seek`].
    pub fn seek_to_first(&mut self) -> Result<()> {
        let mut scan = self.scan();
        let done = match &self.lower {
            Some(l) => scan.seek(&self.snapshot.among.engine, l),
            None => scan.merge.seek_first(),
        };
        self.settle(scan, done)
    }

    /// To the last key within the bounds.
    ///
    /// # Errors
    /// As for [`Cursor::seek`].
    pub fn seek_to_last(&mut self) -> Result<()> {
        let mut scan = self.scan();
        let done = match &self.upper {
            Some(u) => scan.merge.seek_for_prev(u).and_then(|()| {
                let on_it = scan.merge.valid() && scan.merge.key() == u;
                if on_it { scan.merge.prev(u) } else { Ok(()) }
            }),
            None => scan.merge.seek_last(),
        };
        self.settle(scan, done)
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
        if !self.lead.is_on() {
            return self.step(true);
        }
        match self.lead.step() {
            Ok(true) => Ok(()),
            Ok(false) => self.step(true),
            Err(e) => self.fail(e),
        }
    }

    /// Tells `f` of the key under the cursor and its value, then of the next one, and so on, until `f` breaks or there is none. As
    /// [`Cursor::key`], [`Cursor::value`] and [`Cursor::next`] in turn, but in less time where keys lie side by side.
    ///
    /// Returns what `f` broke with. The cursor then stands on the key of which `f` was told last; another walk begins by telling of it
    /// again. After a walk that was not broken off the cursor is not valid.
    ///
    /// ```
    /// # fn main() -> terrane::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = terrane::Db::open(dir.path(), terrane::Options::new())?;
    /// # let users = db.create_subtable("users", terrane::SubtableOptions::new())?;
    /// use std::ops::ControlFlow;
    ///
    /// for (name, born) in [("ada", "1815"), ("charles", "1791"), ("mary", "1780")] {
    ///     users.put(name.as_bytes(), born.as_bytes())?;
    /// }
    /// // The first two from "b" on.
    /// let mut cursor = users.cursor(terrane::ReadOptions::new())?;
    /// cursor.seek(b"b")?;
    /// let mut names = Vec::new();
    /// cursor.walk(|name, _| {
    ///     names.push(name.to_vec());
    ///     if names.len() < 2 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    /// })?;
    /// assert_eq!(names, [&b"charles"[..], b"mary"]);
    /// assert_eq!(cursor.key(), b"mary");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Cursor::next`]; then the cursor is not valid. As for [`Cursor::value`]; then it stands on the key whose value cannot be
    /// read. Either way `f` was told of all keys in front of it, and of none from there on.
    pub fn walk<B>(&mut self, mut f: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>) -> Result<Option<B>> {
        while self.inside {
            match self.lead.walk(&mut f) {
                Ok(Walked::Broken(b)) => return Ok(Some(b)),
                Ok(Walked::AllTold) => self.step(true)?,
                Ok(Walked::Untold) => {
                    if let ControlFlow::Break(b) = f(self.key(), &self.value()?) {
                        return Ok(Some(b));
                    }
                    self.next()?;
                }
                Err(e) => return self.fail(e).map(|()| None),
            }
        }
        Ok(None)
    }

    /// To the key before; not valid before the first one.
    ///
    /// # Errors
    /// As for [`Cursor::seek`].
    pub fn prev(&mut self) -> Result<()> {
        self.step(false)
    }

    fn step(&mut self, forward: bool) -> Result<()> {
        if !self.inside {
            return Ok(());
        }
        let led = self.lead.is_on();
        if led {
            self.entry.set_key(self.lead.key());
        }
        let key = self.entry.key();
        let (scan, done) = match self.seated.take() {
            Some(mut scan) => {
                let taken = if led {
                    scan.merge.skipped.show(self.lead.steps());
                    scan.merge.take_back(&mut self.lead)
                } else {
                    Ok(())
                };
                let done = taken.and_then(|()| scan.step(forward, key));
                (scan, done)
            }
            None => {
                self.lead.end();
                let mut scan = self.build();
                let done = scan.step_from(&self.snapshot.among.engine, forward, key);
                (scan, done)
            }
        };
        self.settle(scan, done)
    }

    /// The scan, at whatever position: to be followed by a seek.
    fn scan(&mut self) -> Box<Scan> {
        self.lead.end();
        let left = self.seated.take();
        left.and_then(|mut scan| scan.show(self.table(), self.snapshot.seq).then_some(scan))
            .unwrap_or_else(|| self.build())
    }

    #[cold]
    fn build(&self) -> Box<Scan> {
        Scan::new(&self.snapshot.among, self.snapshot.seq, &self.own)
    }

    /// Ends a call: remembers what the scan stands on, or lets the lead go on from there, and leaves the scan in the seat.
    #[inline]
    fn settle(&mut self, mut scan: Box<Scan>, done: Result<()>) -> Result<()> {
        if let Err(e) = done {
            return self.fail(e);
        }
        if scan.merge.skipped.are_many() {
            let (lo, hi) = scan.merge.stepped_over();
            let in_memory = scan.merge.skipped.mostly_newest();
            scan.merge.skipped.begin();
            let Registered { among, seq, .. } = &self.snapshot;
            among.engine.many_deletions(&among.table, Met { lo, hi, seq: *seq }, in_memory);
        }
        scan.merge.skipped.show(1);
        if let Some(looks) = scan.count() {
            self.snapshot.among.engine.merged(self.table(), looks);
        }
        let (lower, upper) = (self.lower.as_deref(), self.upper.as_deref());
        let key = scan.merge.key();
        self.inside = scan.merge.valid() && lower.is_none_or(|l| key >= l) && upper.is_none_or(|u| key < u);
        if self.inside
            && let Err(e) = scan.merge.lend(&mut self.lead, upper)
        {
            return self.fail(e);
        }
        if self.inside && !self.lead.is_on() {
            scan.merge.show(&mut self.entry);
        } else {
            // What the lead shows, it pins.
            self.entry.clear();
        }
        self.seated.put(scan, &self.snapshot.among.table);
        Ok(())
    }

    #[cold]
    fn fail(&mut self, e: Error) -> Result<()> {
        self.inside = false;
        self.entry.clear();
        self.lead.end();
        Err(e.with_subtable(&*self.table().name))
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        let tools = Tools {
            entry: std::mem::replace(&mut self.entry, Entry::new()),
            lead: std::mem::replace(&mut self.lead, Lead::new()),
        };
        let Both { engine, table } = &*self.snapshot.among;
        self.seated.leave(table, tools, self.own.is_empty(), &engine.left);
    }
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
                let b = none.insert(self.front.twin());
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
