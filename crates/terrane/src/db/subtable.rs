//! The handle of a subtable.

use std::sync::Arc;

use terrane_base::{Result, Seq};

use crate::batch::WriteBatch;
use crate::db::anchor::{Anchor, Anchors, TableRef};
use crate::db::engine::Engine;
use crate::db::request::Form;
use crate::db::snapshot::Snapshot;
use crate::db::table::Table;
use crate::options::{Durability, SubtableOptions};
use crate::read::iter::{Cursor, Range, ReadOptions};
use crate::read::multi;
use crate::read::resume::Lookup;

/// A subtable of an open database: an ordered map from keys to values. Cloning is cheap and shares it.
///
/// The handle does not keep the database open: once it is closed, or its last [`crate::Db`] has gone, writes fail with
/// [`crate::ErrorKind::Closed`]. (The directory stays locked until the last handle and cursor have gone.) After the
/// subtable is dropped every operation on it fails with [`crate::ErrorKind::SubtableDropped`], but cursors that were
/// open go on to their end.
#[derive(Clone, Debug)]
pub struct Subtable {
    engine: Arc<Engine>,
    table: Arc<Table>,
    anchors: Arc<Anchors>,
}

impl Subtable {
    pub(crate) fn new(engine: Arc<Engine>, table: Arc<Table>) -> Self {
        Subtable { engine, table, anchors: Arc::default() }
    }

    /// What keeps both for a reader.
    pub(crate) fn anchor(&self) -> Anchor {
        self.anchors.own(&self.engine, &self.table).clone()
    }

    /// The table, for a batch.
    pub(crate) fn table_ref(&self) -> TableRef {
        self.anchors.own(&self.engine, &self.table).table.clone()
    }

    pub(crate) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.table.name
    }

    /// How it stores its records.
    pub fn options(&self) -> SubtableOptions {
        (*self.table.options()).clone()
    }

    /// Sets `key` to `value`. Survives the death of the process when it returns (see [`Durability::Buffered`]).
    ///
    /// # Errors
    /// Limits, a full device, a dropped subtable, a poisoned or closed database, I/O errors; nothing of it is visible
    /// then, see [`crate::Db::write`].
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let mut batch = WriteBatch::of_one();
        batch.put(self, key, value)?;
        self.write(batch, Durability::Buffered)
    }

    /// Removes `key`, whether or not it is there.
    ///
    /// # Errors
    /// As for [`Subtable::put`].
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        let mut batch = WriteBatch::of_one();
        batch.delete(self, key)?;
        self.write(batch, Durability::Buffered)
    }

    /// Removes every key from `start` (included) to `end` (excluded), at a cost that does not depend on their number.
    ///
    /// # Errors
    /// As for [`Subtable::put`].
    pub fn delete_range(&self, start: &[u8], end: &[u8]) -> Result<()> {
        let mut batch = WriteBatch::of_one();
        batch.delete_range(self, start, end)?;
        self.write(batch, Durability::Buffered)
    }

    fn write(&self, batch: WriteBatch, durability: Durability) -> Result<()> {
        self.engine.commit(batch, Form::plain(durability)).map(|_| ())
    }

    /// The value of `key`, copied; `None` if there is none. Blocks on I/O for blocks that are not cached.
    ///
    /// # Errors
    /// I/O errors and corruption on the way to it; [`crate::ErrorKind::SubtableDropped`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.get_with(key, <[u8]>::to_vec)
    }

    /// Calls `f` on the value of `key` where it lies, without a copy. `f` must be quick: it may hold up the reclamation
    /// of cache memory while it runs, and must not call into the database.
    ///
    /// # Errors
    /// As for [`Subtable::get`].
    pub fn get_with<R>(&self, key: &[u8], f: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        self.engine.get(&self.table, key, None, f)
    }

    /// The value of `key` as of `snapshot`.
    ///
    /// # Errors
    /// As for [`Subtable::get`]; [`crate::ErrorKind::InvalidArgument`] for another database's snapshot.
    pub fn get_at(&self, key: &[u8], snapshot: &Snapshot) -> Result<Option<Vec<u8>>> {
        self.engine.check_snapshot(snapshot)?;
        self.engine.get(&self.table, key, Some(snapshot.guard.seq), <[u8]>::to_vec)
    }

    /// The values of many keys, in their order, as of one moment. Blocks that are not cached are read together, up to 128
    /// or 4 MiB at a time: beside keys and values a call takes a bounded amount of memory.
    ///
    /// # Errors
    /// As for [`Subtable::get`]; one failed key fails the call.
    pub fn multi_get(&self, keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Vec<u8>>>> {
        multi::multi_get(&self.engine, &self.table, keys).map_err(|e| e.with_subtable(&*self.table.name))
    }

    /// Tells `f` the values of many keys, each with the number of its key, in any order; as of one moment. What memory holds is told where
    /// it lies, without a copy.
    /// `f` must be quick: it may hold up the reclamation of cache memory while it runs, and must not call into the database. What is not
    /// cached is read as in [`Subtable::multi_get`].
    ///
    /// ```
    /// # fn main() -> terrane::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let db = terrane::Db::open(dir.path(), terrane::Options::new())?;
    /// # let users = db.create_subtable("users", terrane::SubtableOptions::new())?;
    /// users.put(b"ada", b"1815")?;
    /// users.put(b"charles", b"1791")?;
    /// let mut lengths = [0; 3];
    /// users.multi_get_with(&["ada", "mary", "charles"], |at, value| lengths[at] = value.map_or(0, <[u8]>::len))?;
    /// assert_eq!(lengths, [4, 0, 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Subtable::multi_get`]; some keys may have been told of before.
    pub fn multi_get_with(
        &self,
        keys: &[impl AsRef<[u8]>],
        f: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        multi::multi_get_with(&self.engine, &self.table, keys, f)
            .map_err(|e| e.with_subtable(&*self.table.name))
    }

    /// A lookup in steps: each answers from memory or names the block that it needs.
    ///
    /// # Errors
    /// [`crate::ErrorKind::SubtableDropped`].
    pub fn lookup(&self, key: &[u8]) -> Result<Lookup> {
        Lookup::new(self.engine.clone(), self.table.clone(), key)
    }

    /// A cursor over the keys that `options` allow. Seek before use.
    ///
    /// # Errors
    /// [`crate::ErrorKind::SubtableDropped`], or [`crate::ErrorKind::InvalidArgument`] for another database's snapshot.
    pub fn cursor(&self, options: ReadOptions) -> Result<Cursor> {
        Cursor::new(self.anchor(), options)
    }

    /// The keys and values that `options` allow, in order, from both ends.
    ///
    /// # Errors
    /// As for [`Subtable::cursor`].
    pub fn range(&self, options: ReadOptions) -> Result<Range> {
        Ok(Range::new(self.cursor(options)?))
    }

    /// Changes how records written from now on are stored; durable when it returns.
    ///
    /// # Errors
    /// [`crate::ErrorKind::InvalidArgument`], or what writing the manifest can fail with.
    pub fn set_options(&self, options: SubtableOptions) -> Result<()> {
        self.engine.set_subtable_options(&self.table, options)
    }

    /// Writes all memtables of this subtable out and waits. Not needed for durability.
    ///
    /// # Errors
    /// A full device, I/O errors, [`crate::ErrorKind::SubtableDropped`].
    pub fn flush(&self) -> Result<()> {
        self.engine.flush_table(&self.table)
    }

    /// Writes all memtables out and merges everything that is there by now down to the bottom level, piece by piece, while
    /// reads, writes and other compactions go on. One at a time per subtable; a second call waits for its turn. Long; blocks.
    /// Not needed in normal use.
    ///
    /// # Errors
    /// A full device, I/O errors, corruption.
    pub fn compact(&self) -> Result<()> {
        self.engine.compact_table(&self.table)
    }

    /// The sequence of the newest commit that readers see.
    pub fn sequence(&self) -> Seq {
        self.engine.visible()
    }
}
