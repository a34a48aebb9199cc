//! A pool: objects of one size, and a word for each of them.
//!
//! # Invariants
//! * The word of an object that was committed and not released is [`PmWord::Taken`], with its owner's tag; that of any other one
//!   [`PmWord::Free`]. A word that is neither is damage, and reported.
//! * An object is in the freelist only while its word is durably clear, so a word that a crash leaves set is never that of an object's
//!   last owner but one.
//!
//! # After a crash
//! Of an object that was being committed or released the word is as before or as after. Objects that were taken and not committed are
//! free.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use terrane_base::{Error, ErrorKind, Result};
use terrane_format::pm::{MAX_TAG, PmWord, PoolKind, PoolShape};
use terrane_media::Pmem;

use crate::freelist::{FreeList, Words, link};
use crate::halloc::Halloc;

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

    /// What the word of an object says.
    fn word(&self, number: u32) -> Result<PmWord> {
        self.decode(number, self.load(number)?)
    }

    fn decode(&self, number: u32, word: u64) -> Result<PmWord> {
        PmWord::decode(number, word).map_err(|e| match self.word_at(number) {
            Ok(at) => e.with_file(self.pmem.path()).with_offset(at as u64),
            Err(e) => e,
        })
    }

    /// Stores a word, in place of another one if that is named, which is to be durable after the next fence; false if another one stands
    /// there.
    fn store_durably(&self, number: u32, from: Option<u64>, word: PmWord) -> Result<bool> {
        let (at, word) = (self.word_at(number)?, word.encode(number));
        match from {
            Some(from) if !self.pmem.compare_exchange_word(at, from, word)? => return Ok(false),
            Some(_) => {}
            None => self.pmem.store_word(at, word)?,
        }
        self.pmem.flush(at, WORD)?;
        Ok(true)
    }
}

impl Pool {
    /// Builds the freelist from the words: takes some ten milliseconds for a million objects. What they say is durable then, `flushed` or
    /// not before: a process may have died between storing one and flushing it.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] if a word is damaged.
    pub(crate) fn open(pmem: Arc<dyn Pmem>, shape: PoolShape, flushed: bool) -> Result<Self> {
        let table = Table { pmem, shape };
        if !flushed {
            table.pmem.flush(shape.words_at as usize, shape.objects as usize * WORD)?;
            table.pmem.fence();
        }
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
                let below = link(top);
                match table.decode(number, u64::from_le_bytes(*word))? {
                    PmWord::Taken(_) => {
                        taken += 1;
                        continue;
                    }
                    PmWord::Free(link) if link == below => {}
                    PmWord::Free(_) => table.store(number, PmWord::Free(below).encode(number))?,
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
    /// [`ErrorKind::OutOfSpace`] if there is none; [`ErrorKind::Corruption`] if a word is damaged.
    pub fn get(&self) -> Result<Fresh<'_>> {
        let popped = self.list.pop(&self.table).map_err(|e| e.with_file(self.table.pmem.path()))?;
        let Some(number) = popped else {
            let what = format!(
                "the persistent memory has no free object of its {} {:?}",
                self.objects(),
                self.kind()
            );
            return Err(Error::new(ErrorKind::OutOfSpace, what).with_file(self.table.pmem.path()));
        };
        self.taken.fetch_add(1, Ordering::Relaxed);
        Ok(Fresh { pool: self, number: Some(number), written: Cell::new(false), here: PhantomData })
    }

    /// The tag under which an object was committed, or `None` if it was not.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] if there is no such object, or its word is damaged.
    pub fn check(&self, number: u32) -> Result<Option<u64>> {
        Ok(match self.table.word(number)? {
            PmWord::Taken(tag) => Some(tag),
            PmWord::Free(_) => None,
        })
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
    /// object. None is given back then, unless another thread releases one of them at this very moment: then that one alone is refused.
    pub fn release(&self, numbers: &[u32]) -> Result<()> {
        let mut sorted = numbers.to_vec();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(self.nobody_has(pair[0]));
        }
        let words = sorted.iter().map(|n| match self.check(*n)? {
            Some(tag) => Ok((*n, PmWord::Taken(tag).encode(*n))),
            None => Err(self.nobody_has(*n)),
        });
        let words: Vec<(u32, u64)> = words.collect::<Result<_>>()?;
        let (mut ours, mut refused) = (Vec::with_capacity(words.len()), Ok(()));
        for (number, word) in words {
            match self.table.store_durably(number, Some(word), PmWord::Free(0))? {
                true => ours.push(number),
                false => refused = Err(self.nobody_has(number)),
            }
        }
        // In the list they may be taken at once: by then they are free after a crash too.
        self.table.pmem.fence();
        ours.iter().try_for_each(|n| self.list.push(&self.table, *n))?;
        self.taken.fetch_sub(ours.len() as u64, Ordering::Relaxed);
        refused
    }

    /// Takes back an object that was not committed.
    fn push_back(&self, number: u32) {
        // It may fail for a number that there is not, which a number from the list never is.
        if self.list.push(&self.table, number).is_ok() {
            self.taken.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[cold]
    fn nobody_has(&self, number: u32) -> Error {
        let what = format!("object {number} of {:?} is released, which nobody has", self.kind());
        Error::invalid(what).with_file(self.table.pmem.path())
    }
}

/// An object that was taken and not committed: dropping it gives it back, and so does a crash. It stays with its thread, whose fence it
/// is that makes what was written durable.
#[derive(Debug)]
#[must_use = "dropping it gives it back"]
pub struct Fresh<'p> {
    pool: &'p Pool,
    /// Until it is committed.
    number: Option<u32>,
    /// Something that no fence has followed yet.
    written: Cell<bool>,
    here: PhantomData<*const ()>,
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
        self.written.set(true);
        pool.table.pmem.write(pool.place(self.number())? + at, bytes)
    }

    /// Waits until what was written is durable.
    fn settle(&self) {
        if self.written.replace(false) {
            self.pool.table.pmem.fence();
        }
    }

    /// Makes it its owner's, under a tag of at most [`MAX_TAG`] that [`Pool::check`] tells after a crash: durable when this returns. What was
    /// written into it is durable before. One flush and one fence, and one fence more if something was written.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] for a larger tag; the object is given back then.
    pub fn commit(mut self, tag: u64) -> Result<u32> {
        let table = &self.pool.table;
        if tag > MAX_TAG {
            return Err(Error::limit("tag of an object", tag, MAX_TAG).with_file(table.pmem.path()));
        }
        let number = self.number();
        self.settle();
        // From here on its word may say that it is taken: where the memory fails nobody has it before the memory is opened again.
        self.number = None;
        table.store_durably(number, None, PmWord::Taken(tag))?;
        table.pmem.fence();
        Ok(number)
    }
}

/// An object that its owner has until it is dropped, or until the memory is opened again: for what is to vanish with the process. Its
/// content is whatever its last owner left, and whatever its own stores there, durable or not, is nobody's after a crash.
#[derive(Debug)]
#[must_use = "dropping it gives it back"]
pub struct Lent {
    /// There until it is given back or left.
    halloc: Option<Arc<Halloc>>,
    kind: PoolKind,
    number: u32,
    place: usize,
}

impl Lent {
    /// Takes an object.
    ///
    /// # Errors
    /// As [`Pool::get`].
    pub fn take(halloc: &Arc<Halloc>, kind: PoolKind) -> Result<Lent> {
        let mut fresh = halloc.pool(kind).get()?;
        let (number, place) = (fresh.number(), fresh.pool.place(fresh.number())?);
        // Nothing was written, so there is nothing to wait for.
        fresh.number = None;
        Ok(Lent { halloc: Some(halloc.clone()), kind, number, place })
    }

    /// Where in the memory it lies.
    pub fn place(&self) -> usize {
        self.place
    }

    /// Leaves it to whoever opens the memory next: nothing is stored.
    pub fn leave(mut self) {
        self.halloc = None;
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(halloc) = self.halloc.take() {
            halloc.pool(self.kind).push_back(self.number);
        }
    }
}

impl Drop for Fresh<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        // Nothing of it may come late, over what the next owner writes.
        self.settle();
        self.pool.push_back(number);
    }
}
