//! A pool: objects of one size, and a word for each of them.
//!
//! # Invariants
//! * A word with the top bit set belongs to an object that was committed and not released; what else stands in it is its owner's tag.
//! * An object is in the freelist only while its word is durably clear, so a word that a crash leaves set is never that of an object's
//!   last owner but one.
//!
//! # After a crash
//! Of an object that was being committed or released the word is as before or as after. Objects that were taken and not committed are
//! free.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrane_base::{Error, ErrorKind, Result};
use terrane_format::pm::{PoolKind, PoolShape};
use terrane_media::Pmem;

use crate::freelist::{FreeList, PERSISTED, Words, link};

/// The largest tag that [`Fresh::commit`] takes.
pub const MAX_TAG: u64 = PERSISTED - 1;

const WORD: usize = size_of::<u64>();
/// How many words opening a pool loads at a time.
const SCAN: usize = 4096;

/// See the module's head. All methods may be called from any number of threads at once, and none blocks.
#[derive(Debug)]
pub struct Pool {
    table: Table,
    list: FreeList,
    /// Objects that are not in the freelist.
    taken: AtomicU64,
}

/// The words where they lie.
#[derive(Debug)]
struct Table {
    pmem: Arc<dyn Pmem>,
    shape: PoolShape,
}

impl Words for Table {
    fn load(&self, number: u32) -> Result<u64> {
        self.pmem.load_word(self.word_at(number)?)
    }

    fn store(&self, number: u32, word: u64) -> Result<()> {
        self.pmem.store_word(self.word_at(number)?, word)
    }
}

impl Table {
    fn word_at(&self, number: u32) -> Result<usize> {
        if u64::from(number) < self.shape.objects {
            return Ok(self.shape.words_at as usize + number as usize * WORD);
        }
        let what =
            format!("{:?} have {} objects, there is no number {number}", self.shape.kind, self.shape.objects);
        Err(Error::corruption(what).with_file(self.pmem.path()))
    }

    /// Stores a word that is to be durable after the next fence.
    fn store_durably(&self, number: u32, word: u64) -> Result<()> {
        self.store(number, word)?;
        self.pmem.flush(self.word_at(number)?, WORD)
    }
}

impl Pool {
    /// Builds the freelist from the words: takes a few milliseconds for a million objects.
    pub(crate) fn open(pmem: Arc<dyn Pmem>, shape: PoolShape) -> Result<Self> {
        let table = Table { pmem, shape };
        let (mut top, mut taken) = (None, 0);
        let mut bytes = [0; SCAN * WORD];
        // From the end, so that the lowest numbers are on top.
        let mut end = shape.objects as usize;
        while end > 0 {
            let start = end.saturating_sub(SCAN);
            let part = &mut bytes[..(end - start) * WORD];
            table.pmem.load(shape.words_at as usize + start * WORD, part)?;
            let (words, _) = part.as_chunks::<WORD>();
            for (number, word) in (start as u32..end as u32).zip(words).rev() {
                let (word, below) = (u64::from_le_bytes(*word), link(top));
                if word & PERSISTED != 0 {
                    taken += 1;
                    continue;
                }
                if word != below {
                    table.store(number, below)?;
                }
                top = Some(number);
            }
            end = start;
        }
        Ok(Pool { table, list: FreeList::new(top), taken: AtomicU64::new(taken) })
    }

    /// What the objects are.
    pub fn kind(&self) -> PoolKind {
        self.table.shape.kind
    }

    /// Bytes of an object.
    pub fn object_bytes(&self) -> usize {
        self.table.shape.object_bytes as usize
    }

    /// How many objects there are.
    pub fn objects(&self) -> u64 {
        self.table.shape.objects
    }

    /// How many of them somebody has.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Where in the memory an object lies.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] if there is no such object: numbers come from here, or from a memory.
    pub fn place(&self, number: u32) -> Result<usize> {
        self.table.word_at(number)?;
        Ok(self.table.shape.objects_at as usize + number as usize * self.object_bytes())
    }

    /// Takes an object that nobody has. Its content is whatever its last owner left.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfSpace`] if there is none.
    pub fn get(&self) -> Result<Fresh<'_>> {
        let Some(number) = self.list.pop(&self.table)? else {
            let what = format!(
                "the persistent memory has no free object of its {} {:?}",
                self.objects(),
                self.kind()
            );
            return Err(Error::new(ErrorKind::OutOfSpace, what).with_file(self.table.pmem.path()));
        };
        self.taken.fetch_add(1, Ordering::Relaxed);
        Ok(Fresh { pool: self, number: Some(number) })
    }

    /// The tag under which an object was committed, or `None` if it was not.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] if there is no such object.
    pub fn check(&self, number: u32) -> Result<Option<u64>> {
        let word = self.table.load(number)?;
        Ok((word & PERSISTED != 0).then_some(word & MAX_TAG))
    }

    /// All objects that were committed, with their tags. What others commit and release meanwhile may be among them or not.
    pub fn committed(&self) -> impl Iterator<Item = Result<(u32, u64)>> {
        (0..self.objects() as u32).filter_map(|n| self.check(n).map(|tag| tag.map(|t| (n, t))).transpose())
    }

    /// Gives committed objects back, with one fence for all of them: durable when this returns. Nothing may refer to them any more, after
    /// a crash neither.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if one was not committed (or is named twice); [`ErrorKind::Corruption`] if there is no such
    /// object. None is given back then.
    pub fn release(&self, numbers: &[u32]) -> Result<()> {
        let mut sorted = numbers.to_vec();
        sorted.sort_unstable();
        let twice = sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        let free = sorted
            .iter()
            .map(|n| self.check(*n).map(|tag| (*n, tag)))
            .find(|c| !matches!(c, Ok((_, Some(_)))));
        match (twice, free.transpose()?) {
            (None, None) => {}
            (Some(number), _) | (None, Some((number, _))) => {
                let what = format!("object {number} of {:?} is released, which nobody has", self.kind());
                return Err(Error::invalid(what).with_file(self.table.pmem.path()));
            }
        }
        sorted.iter().try_for_each(|n| self.table.store_durably(*n, 0))?;
        self.table.pmem.fence();
        sorted.iter().try_for_each(|n| self.list.push(&self.table, *n))?;
        self.taken.fetch_sub(sorted.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// An object that was taken and not committed: dropping it gives it back, and so does a crash.
#[derive(Debug)]
#[must_use = "dropping it gives it back"]
pub struct Fresh<'p> {
    pool: &'p Pool,
    /// Until it is committed.
    number: Option<u32>,
}

impl Fresh<'_> {
    /// Its number, for links to it. They lead nowhere until it is committed.
    pub fn number(&self) -> u32 {
        self.number.unwrap_or_default()
    }

    /// Writes into it, `at` bytes from its beginning, a multiple of eight. What is written is flushed, and durable with the commit.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] beyond the object's end.
    pub fn write(&self, at: usize, bytes: &[u8]) -> Result<()> {
        let pool = self.pool;
        if at.checked_add(bytes.len()).is_none_or(|end| end > pool.object_bytes()) {
            let what = format!("{} bytes at {at} of an object of {} bytes", bytes.len(), pool.object_bytes());
            return Err(Error::invalid(what).with_file(pool.table.pmem.path()));
        }
        pool.table.pmem.write(pool.place(self.number())? + at, bytes)
    }

    /// Makes it its owner's, under a tag of at most [`MAX_TAG`] that [`Pool::check`] tells after a crash: durable when this returns. What
    /// this thread has written and flushed before, the object's content among it, is durable before it is committed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a larger tag; the object is given back then.
    pub fn commit(mut self, tag: u64) -> Result<u32> {
        let table = &self.pool.table;
        if tag > MAX_TAG {
            return Err(Error::limit("tag of an object", tag, MAX_TAG).with_file(table.pmem.path()));
        }
        let number = self.number();
        table.pmem.fence();
        table.store_durably(number, PERSISTED | tag)?;
        table.pmem.fence();
        self.number = None;
        Ok(number)
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let pool = self.pool;
        // It may fail for a number that there is not, which a number from the list never is.
        if pool.list.push(&pool.table, number).is_ok() {
            pool.taken.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
