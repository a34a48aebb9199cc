//! The index as the memtable sees it: one safe face over both structures, with the arena of their records.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrane_base::metrics::Counter;
use terrane_base::reclaim::Clock;
use terrane_base::{Error, MAX_SEQ, MemoryBudget, Result, Seq};

use crate::art::{Art, Descent, Inserted, MAX_DEPTH};
use crate::cursor::IndexCursor;
use crate::memory::{ChunkSource, Home};
use crate::record::{Record, RecordArena, RecordPtr};
use crate::skiplist::List;

/// Longest key that an index takes, in bytes.
pub const MAX_KEY_BYTES: usize = MAX_DEPTH;

/// Longest value that an index takes, in bytes.
pub const MAX_VALUE_BYTES: usize = u32::MAX as usize;

/// Which structure a [`MemIndex`] searches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IndexKind {
    /// The adaptive radix tree: every operation in a few memory accesses, whatever the number of keys.
    #[default]
    Art,
    /// A skiplist: several times slower; memory for its nodes is estimated, [`MemIndex::keys`] and a cursor's steps
    /// search.
    Skiplist,
}

#[expect(clippy::large_enum_variant, reason = "the tree is what nearly all are: a box would cost a load")]
pub(crate) enum Structure {
    Art(Art),
    Skiplist(Box<List>),
}

/// Tells indexes apart, so that a cursor knows its own.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A concurrent ordered map from keys to versions of records.
///
/// All methods may be called from any number of threads at once. Reads never wait for writes, except that of an old
/// version of a key for an insert of the same key out of order. What a read returns borrows from the index and stays
/// valid, and unchanged, as long as that lives.
pub struct MemIndex {
    id: u64,
    // Dropped before the records that it points at.
    structure: Structure,
    records: RecordArena,
    /// Records that were the first of their key, of a skiplist none, ...
    keys: Counter,
    /// ... and all others. A record is counted in one place.
    others: Counter,
}

impl MemIndex {
    /// An empty index whose memory (records and nodes) is charged to `budget` until it is dropped.
    pub fn new(kind: IndexKind, budget: MemoryBudget) -> Self {
        MemIndex::on(Arc::default(), kind, budget)
    }

    /// As [`MemIndex::new`]; whoever stays inside of `clock` reads it without an atomic read-modify-write.
    pub fn on(clock: Arc<Clock>, kind: IndexKind, budget: MemoryBudget) -> Self {
        MemIndex::in_home(clock, kind, budget.into())
    }

    /// As [`MemIndex::on`], with nodes in memory of `source`, as long as that has any; that is not charged. Of a skiplist nothing is there.
    pub fn in_chunks(
        clock: Arc<Clock>,
        source: Arc<dyn ChunkSource>,
        kind: IndexKind,
        budget: MemoryBudget,
    ) -> Self {
        MemIndex::in_home(clock, kind, Home { budget, source: Some(source) })
    }

    fn in_home(clock: Arc<Clock>, kind: IndexKind, home: Home) -> Self {
        let budget = home.budget.clone();
        MemIndex {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            structure: match kind {
                IndexKind::Art => Structure::Art(Art::new(clock, home)),
                IndexKind::Skiplist => Structure::Skiplist(Box::new(List::new(budget.clone()))),
            },
            records: RecordArena::new(budget),
            keys: Counter::new(),
            others: Counter::new(),
        }
    }

    /// Has records looked at whose keys say where others belong, for they lie in memory that may damage them: by inserts and by cursors, one
    /// for each stretch of more than eight bytes that keys have in common, and one where they end. `check` says whether a record is as it was
    /// written. In a skiplist nothing is looked at: there too many keys say that.
    pub fn check_with(&mut self, check: impl Fn(&Record<'_>) -> bool + Send + Sync + 'static) {
        if let Structure::Art(art) = &mut self.structure {
            art.check_with(Box::new(check));
        }
    }

    /// Whether records may be in the wrong place, for the [check](MemIndex::check_with) found one that was damaged beside which others were put:
    /// what is not found may be there.
    #[inline]
    pub fn is_misled(&self) -> bool {
        match &self.structure {
            Structure::Art(art) => art.is_misled(),
            Structure::Skiplist(_) => false,
        }
    }

    /// Of an index that is [misled](MemIndex::is_misled), the record of `key` that was found damaged when another version was put
    /// beside it. It counts as older than all others, and may not be.
    pub fn misplaced(&self, key: &[u8]) -> Option<Record<'_>> {
        match &self.structure {
            Structure::Art(art) => art.misplaced(key),
            Structure::Skiplist(_) => None,
        }
    }

    /// Adds a version of `key`. Any number of threads may insert at once; the sequences of one key may arrive in any
    /// order. A (key, sequence) pair that is there already stays as it is.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::LimitExceeded`] above [`MAX_KEY_BYTES`], [`MAX_VALUE_BYTES`] or
    /// [`terrane_base::MAX_SEQ`]; nothing else.
    #[inline]
    pub fn insert(&self, key: &[u8], seq: Seq, kind: u8, value: &[u8]) -> Result<()> {
        if key.len() > MAX_KEY_BYTES || value.len() > MAX_VALUE_BYTES || seq > MAX_SEQ {
            return Err(beyond_limits(key, seq, value));
        }
        let at = self.records.push(key, seq, kind, value);
        // SAFETY: pushed just now, by this thread, to the arena that is dropped after the structure.
        unsafe { self.link(key, seq, at) };
        Ok(())
    }

    /// As [`MemIndex::insert`], of a record that lies elsewhere already and stays there: nothing is copied. `key` and `seq` are the record's
    /// own, wherever they are read from.
    ///
    /// # Safety
    /// At `at` there is a record as [`RecordArena`] has them, with this key and this sequence. What wrote it happened before this call, and
    /// it stays there, unchanged, until this index is dropped. Memory that may change by itself can be read as far behind it as two lengths of four
    /// bytes lead.
    ///
    /// # Errors
    /// As [`MemIndex::insert`] for a key or a sequence that is too large; `InvalidArgument` unless the address is a multiple of 8 below 2^48.
    pub unsafe fn insert_at(&self, at: NonNull<u8>, key: &[u8], seq: Seq) -> Result<()> {
        let at = self.accept(at, key, seq)?;
        // SAFETY: as is this function's contract.
        unsafe { self.link(key, seq, at) };
        Ok(())
    }

    /// As [`MemIndex::insert_at`], of a record with the key of a search in this index, from where that has come to.
    ///
    /// # Safety
    /// As [`MemIndex::insert_at`].
    ///
    /// # Errors
    /// As [`MemIndex::insert_at`].
    #[inline]
    pub unsafe fn insert_found_at(&self, search: &Search<'_, '_>, at: NonNull<u8>, seq: Seq) -> Result<()> {
        let at = self.accept(at, search.key, seq)?;
        match (&self.structure, &search.place) {
            (Structure::Art(art), SearchPlace::Tree(found)) if found.is_of(art) => {
                self.count(art.insert_found(found, search.key, seq, at));
            }
            // SAFETY: as is this function's contract.
            _ => unsafe { self.link(search.key, seq, at) },
        }
        Ok(())
    }

    /// As [`MemIndex::insert_at`], of many records, each with its key and sequence. Where keys follow each other in order that is faster than
    /// one after the other.
    ///
    /// # Safety
    /// As [`MemIndex::insert_at`], of each record.
    ///
    /// # Errors
    /// As [`MemIndex::insert_at`], of the first record that is refused; those before it are inserted.
    pub unsafe fn insert_all_at<'k>(
        &self,
        records: impl Iterator<Item = (NonNull<u8>, &'k [u8], Seq)>,
    ) -> Result<()> {
        let Structure::Art(art) = &self.structure else {
            for (at, key, seq) in records {
                // SAFETY: as is this function's contract.
                unsafe { self.insert_at(at, key, seq)? };
            }
            return Ok(());
        };
        let (mut refused, mut keys, mut others) = (Ok(()), 0, 0);
        let records = records.map_while(|(at, key, seq)| match self.accept(at, key, seq) {
            Ok(at) => Some((key, seq, at)),
            Err(e) => {
                refused = Err(e);
                None
            }
        });
        art.insert_all(records, |inserted| {
            keys += u64::from(inserted == Inserted::Key);
            others += u64::from(inserted == Inserted::Version);
        });
        self.keys.add(keys);
        self.others.add(others);
        refused
    }

    /// The record at an address, if an index can refer to it.
    #[inline]
    fn accept(&self, at: NonNull<u8>, key: &[u8], seq: Seq) -> Result<RecordPtr> {
        if key.len() > MAX_KEY_BYTES || seq > MAX_SEQ {
            return Err(beyond_limits(key, seq, &[]));
        }
        RecordPtr::elsewhere(at).ok_or_else(|| Error::invalid("an index refers to multiples of 8 below 2^48"))
    }

    /// Adds a version that is not there yet.
    ///
    /// # Safety
    /// The record has this key and this sequence; it was written before, and stays until this index is dropped.
    #[inline]
    unsafe fn link(&self, key: &[u8], seq: Seq, at: RecordPtr) {
        match &self.structure {
            Structure::Art(art) => self.count(art.insert(key, seq, at)),
            Structure::Skiplist(list) => {
                // SAFETY: as is this function's contract.
                let key = unsafe { at.read() }.key;
                // SAFETY: the key is the record's own.
                if unsafe { list.insert(key, seq, at) } {
                    self.others.add(1);
                }
            }
        }
    }

    fn count(&self, inserted: Inserted) {
        match inserted {
            Inserted::Key => self.keys.add(1),
            Inserted::Version => self.others.add(1),
            Inserted::Nothing => {}
        }
    }

    /// The newest version of `key` with a sequence at or below `snapshot`.
    #[inline]
    pub fn get(&self, key: &[u8], snapshot: Seq) -> Option<Record<'_>> {
        match &self.structure {
            Structure::Art(art) => art.get(key, snapshot),
            Structure::Skiplist(list) => list.get(key, snapshot),
        }
    }

    /// What a search for the version of `key` at `snapshot` ends at, or between, whether it is found or not: where records may be
    /// damaged, one of these may be what was looked for.
    pub fn ends_of_search(&self, key: &[u8], snapshot: Seq) -> impl Iterator<Item = Record<'_>> {
        let ends = match &self.structure {
            Structure::Art(art) => [art.end_of_search(key), None],
            Structure::Skiplist(list) => list.around(key, snapshot).map(|at| at.map(|at| self.record(at))),
        };
        ends.into_iter().flatten()
    }

    /// [`MemIndex::get`] in steps, for whoever has something else to do between them: each asks the processor for what the next one looks
    /// at. In a skiplist there is but one.
    #[inline]
    pub fn search<'k>(&self, key: &'k [u8]) -> Search<'_, 'k> {
        let place = match &self.structure {
            Structure::Art(art) => SearchPlace::Tree(Descent::new(art, key)),
            Structure::Skiplist(list) => SearchPlace::List(list),
        };
        Search { key, place }
    }

    /// A cursor that borrows this index. See [`crate::Cursor`] for one that does not.
    pub fn cursor(&self) -> IndexCursor<'_> {
        IndexCursor::new(self)
    }

    /// Records inserted.
    pub fn len(&self) -> usize {
        (self.keys.get() + self.others.get()) as usize
    }

    /// Whether nothing was inserted.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Distinct keys.
    pub fn keys(&self) -> usize {
        match &self.structure {
            Structure::Art(_) => self.keys.get() as usize,
            Structure::Skiplist(list) => list.keys(),
        }
    }

    /// Bytes charged to the budget for records and nodes. Records that lie elsewhere are not among them.
    pub fn bytes(&self) -> usize {
        self.records.bytes()
            + match &self.structure {
                Structure::Art(art) => art.bytes(),
                Structure::Skiplist(list) => list.bytes(),
            }
    }

    /// Bytes of the chunks that nodes have of a source ([`MemIndex::in_chunks`]), which are not charged.
    pub fn lent_bytes(&self) -> usize {
        match &self.structure {
            Structure::Art(art) => art.lent_bytes(),
            Structure::Skiplist(_) => 0,
        }
    }

    /// A record of this index.
    #[inline]
    pub(crate) fn record(&self, at: RecordPtr) -> Record<'_> {
        // SAFETY: the tree and the list hold records that were pushed to this arena, or written elsewhere to stay, before they came to
        // know of them.
        unsafe { at.read() }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn structure(&self) -> &Structure {
        &self.structure
    }
}

/// A lookup under way; see [`MemIndex::search`]. It stays with its thread, and what the index replaces meanwhile is used again only after
/// it has ended: it should not last.
pub struct Search<'a, 'k> {
    key: &'k [u8],
    place: SearchPlace<'a>,
}

enum SearchPlace<'a> {
    Tree(Descent<'a>),
    List(&'a List),
}

impl<'a, 'k> Search<'a, 'k> {
    /// What it looks for.
    pub fn key(&self) -> &'k [u8] {
        self.key
    }

    /// Takes a step. Whether it is worth giving what that has asked for the time to come near.
    #[inline]
    pub fn step(&mut self) -> bool {
        match &mut self.place {
            SearchPlace::Tree(descent) => descent.step(self.key),
            SearchPlace::List(_) => false,
        }
    }

    /// The newest version with a sequence at or below `snapshot`.
    #[inline]
    pub fn finish(self, snapshot: Seq) -> Option<Record<'a>> {
        match self.place {
            SearchPlace::Tree(descent) => descent.finish(self.key, snapshot),
            SearchPlace::List(list) => list.get(self.key, snapshot),
        }
    }
}

#[cold]
fn beyond_limits(key: &[u8], seq: Seq, value: &[u8]) -> Error {
    if key.len() > MAX_KEY_BYTES {
        Error::limit("key size in bytes", key.len() as u64, MAX_KEY_BYTES as u64)
    } else if value.len() > MAX_VALUE_BYTES {
        Error::limit("value size in bytes", value.len() as u64, MAX_VALUE_BYTES as u64)
    } else {
        Error::limit("sequence", seq, MAX_SEQ)
    }
}
