//! A thread's own way to read, for servers that have a thread for each processor already.

use std::fmt;

use terrane_base::Result;
use terrane_base::reclaim::Stay;

use crate::Subtable;
use crate::db::engine::Engine;
use crate::read::kept::KeptStates;

/// Reads between two looks at what is outdated.
const SWEEP: u32 = 1024;

/// Point lookups of one thread that costs it no atomic read-modify-write and no fence, if memory holds what is needed; see
/// [`crate::Db::reader`]. It stays with its thread.
///
/// While it is not in use it keeps the memory of what it has read, and what leaves the cache, from being used again: before the thread
/// waits for something, it [rests](Reader::rest).
///
/// ```
/// # fn main() -> terrane::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let db = terrane::Db::open(dir.path(), terrane::Options::new())?;
/// # let users = db.create_subtable("users", terrane::SubtableOptions::new())?;
/// users.put(b"ada", b"1815")?;
/// let mut reader = db.reader();
/// assert_eq!(reader.get(&users, b"ada")?.as_deref(), Some(&b"1815"[..]));
/// reader.rest();
/// # Ok(())
/// # }
/// ```
pub struct Reader<'db> {
    engine: &'db Engine,
    /// None while it rests.
    stay: Option<Stay<'db>>,
    tables: KeptStates<()>,
    reads: u32,
}

impl<'db> Reader<'db> {
    pub(crate) fn new(engine: &'db Engine) -> Self {
        Reader { engine, stay: None, tables: KeptStates::new(), reads: 0 }
    }

    /// Calls `f` with the value of `key`, if it has one: as [`Subtable::get_with`].
    ///
    /// # Errors
    /// As for [`Subtable::get_with`]; [`crate::ErrorKind::InvalidArgument`] for a subtable of another database.
    pub fn get_with<R>(
        &mut self,
        table: &Subtable,
        key: &[u8],
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        let table = table.table();
        self.engine.check_is_own(table)?;
        // Nothing is held of what was read before.
        self.stay.get_or_insert_with(|| self.engine.clock.stay()).renew();
        self.reads = self.reads.wrapping_add(1);
        if self.reads.is_multiple_of(SWEEP) {
            self.tables.let_go(false);
        }
        let (kept, ()) = self.tables.of(table);
        kept.get_with(self.engine, key, f)
    }

    /// The value of `key`: as [`Subtable::get`].
    ///
    /// # Errors
    /// As for [`Reader::get_with`].
    pub fn get(&mut self, table: &Subtable, key: &[u8]) -> Result<Option<Vec<u8>>> {
        self.get_with(table, key, <[u8]>::to_vec)
    }

    /// Keeps nothing any more, until the next lookup.
    pub fn rest(&mut self) {
        self.stay = None;
        self.tables.let_go(true);
    }
}

impl fmt::Debug for Reader<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("rests", &self.stay.is_none()).finish_non_exhaustive()
    }
}
