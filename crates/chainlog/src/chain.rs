//! A chain: the items of one memtable, in its zones, and the word that says which of them are committed.
//!
//! # Invariants
//! * Zone `slot` is committed to the allocator, with its header, before any item in it is.
//! * The items of a zone lie one behind the other from [`ZONE_HEADER`] on, without gaps, in the order of their commits.
//! * The word points at a committed item, with every item before it committed too.
//! * A commit has one item at most in a chain: its items are counted by chains.
//!
//! # Concurrency
//! | what | who | ordering |
//! |---|---|---|
//! | `tail`, `slots` | who has the turn; others look at them | relaxed: turns follow each other, which the ring orders |
//! | the bytes of a place | whoever it was assigned to | nobody else looks before the word points there |
//! | `broken` | anybody, once | relaxed: who breaks a chain leaves its place in the order without an entry, and nothing behind is ordered |
//! | `head` | the orderer | relaxed: there is one orderer at a time, which the ring orders; others look at it when it rests |
//! | `zones` | who has the turn; readers | its mutex, once a zone |

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crossbeam_utils::CachePadded;
use terrane_base::{Error, ErrorKind, Lsn, Result};
use terrane_format::chain::{
    ChainMemtable, ChainRecord, GIDX_AT, Gidx, ITEM_HEADER, ItemHeader, MAX_SLOTS, MAX_ZONE_BYTES,
    MEMTABLE_BYTES, Position, ZONE_HEADER, ZoneHeader, read_record,
};
use terrane_format::pm::PoolKind;
use terrane_media::Pmem;

use crate::place::{Place, Written};
use crate::space::{Admission, Space};

/// See the module's head.
#[derive(Debug)]
pub struct Chain {
    space: Arc<Space>,
    /// Of the memtable's object.
    pub(crate) number: u32,
    of: ChainMemtable,
    pub(crate) salt: u64,
    word_at: usize,
    /// A place was not written.
    pub(crate) broken: AtomicBool,
    /// How many zones there are; the last of them takes what comes.
    slots: AtomicU32,
    /// By slot.
    zones: Mutex<Vec<u32>>,
    /// Each commit changes these two, in its turn and in its order, and looks at what is above.
    tail: CachePadded<Tail>,
    head: CachePadded<Head>,
}

/// Where the next item goes.
#[derive(Debug)]
struct Tail {
    /// Where the last zone lies in the memory, ...
    zone_at: AtomicU64,
    /// ... and where in it the next item begins.
    next: AtomicU64,
}

/// What is committed.
#[derive(Debug)]
struct Head {
    word: AtomicU64,
    /// Where the last commit in it ends.
    end: AtomicU64,
}

impl Chain {
    /// The chain of a new memtable: durable when this returns.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::OutOfSpace`] if there are as many memtables as the memory has objects for.
    pub fn create(space: &Arc<Space>, of: ChainMemtable) -> Result<Chain> {
        let memtables = space.halloc().pool(PoolKind::Memtables);
        let fresh = memtables.get()?;
        fresh.write(0, &of.encode())?;
        fresh.write(GIDX_AT, &Gidx::default().encode().to_le_bytes())?;
        let number = fresh.commit(0)?;
        Chain::over(space, number, of, Vec::new(), None)
    }

    /// The chain of a memtable that has these zones, and this last item, in the last of them.
    pub(crate) fn over(
        space: &Arc<Space>,
        number: u32,
        of: ChainMemtable,
        zones: Vec<u32>,
        last: Option<(Gidx, Position, ItemHeader)>,
    ) -> Result<Chain> {
        let next = last.map_or(0, |(_, at, item)| at.offset() + item.total() as u64);
        let end = AtomicU64::new(last.map_or(0, |(_, _, item)| item.end_lsn()));
        let gidx = last.map_or(Gidx::default(), |(gidx, ..)| gidx);
        let word_at = space.halloc().pool(PoolKind::Memtables).place(number)? + GIDX_AT;
        let zone_at = zones.last().map_or(Ok(0), |zone| space.zones().place(*zone))? as u64;
        let slots = AtomicU32::new(zones.len() as u32);
        let tail = CachePadded::new(Tail { zone_at: AtomicU64::new(zone_at), next: AtomicU64::new(next) });
        let head = CachePadded::new(Head { word: AtomicU64::new(gidx.encode()), end });
        let (salt, broken, zones) = (of.salt(number), AtomicBool::new(false), Mutex::new(zones));
        space.chains.fetch_add(1, Ordering::Relaxed);
        Ok(Chain { space: space.clone(), number, of, salt, word_at, broken, slots, zones, tail, head })
    }

    /// Where the last commit in it ends; 0 if there is none. When the word rests.
    pub fn end_lsn(&self) -> Lsn {
        self.head.end.load(Ordering::Relaxed)
    }

    /// Whether nothing was ever committed in it. When the word rests.
    pub fn is_empty(&self) -> bool {
        self.end_lsn() == 0
    }

    /// Whose it is.
    pub fn of(&self) -> ChainMemtable {
        self.of
    }

    /// The most bytes that the records of an item take here.
    pub fn most(space: &Space) -> usize {
        space.zone_bytes() - ZONE_HEADER - ITEM_HEADER
    }

    /// Bytes of the zones that it has.
    pub fn bytes(&self) -> u64 {
        u64::from(self.slots.load(Ordering::Relaxed)) * self.space.zone_bytes() as u64
    }

    /// Those of them that are filled. While commits go on it may be a zone too much or too little.
    pub fn filled_bytes(&self) -> u64 {
        let full = u64::from(self.slots.load(Ordering::Relaxed)).saturating_sub(1);
        full * self.space.zone_bytes() as u64 + self.tail.next.load(Ordering::Relaxed)
    }

    /// How many zones it can still open. Nobody may begin who could need one more than that: in a turn it is too late to fail.
    pub fn slots_left(&self) -> u32 {
        MAX_SLOTS.saturating_sub(self.slots.load(Ordering::Relaxed))
    }

    /// Whether there is a place for an item whose records take `len` bytes without a zone more. In a turn that holds for what is assigned in it, and
    /// else until somebody has a turn.
    pub fn has_room(&self, len: usize) -> bool {
        let next = self.tail.next.load(Ordering::Relaxed) as usize;
        self.slots.load(Ordering::Relaxed) > 0
            && self.space.zone_bytes().saturating_sub(next) >= ITEM_HEADER + len
    }

    /// Gives a commit's item, whose records take `len` bytes, its place. To be called in the commit's turn alone, once. Opens a zone of
    /// `admission`'s unless there [is room](Chain::has_room); nothing is written yet.
    ///
    /// # Errors
    /// [`ErrorKind::LimitExceeded`] if the records take more than [`Chain::most`] or there are too many zones; [`ErrorKind::InvalidArgument`]
    /// for a length that is no multiple of 8, and if it takes a zone and none was admitted; [`ErrorKind::Poisoned`] if an item before it was not
    /// written. All but the last can be ruled out before anything is assigned.
    pub fn assign(&self, len: usize, admission: Option<&mut Admission>) -> Result<Place<'_>> {
        self.check_whole()?;
        let most = Chain::most(&self.space);
        if len > most {
            return Err(Error::limit("bytes of a chain log's item", len as u64, most as u64));
        }
        if !len.is_multiple_of(8) {
            return Err(Error::invalid(format!(
                "an item of a chain log has a multiple of 8 bytes, not {len}"
            )));
        }
        let total = ITEM_HEADER + len;
        let mut slots = self.slots.load(Ordering::Relaxed);
        let mut next = self.tail.next.load(Ordering::Relaxed) as usize;
        let mut opened = None;
        if !self.has_room(len) {
            if slots == MAX_SLOTS {
                return Err(Error::limit("zones of a memtable", u64::from(slots) + 1, u64::from(MAX_SLOTS)));
            }
            let admission =
                admission.ok_or_else(|| Error::invalid("a zone is opened that was not set aside"))?;
            let fresh = admission.open(&self.space)?;
            let at = self.space.zones().place(fresh.number())?;
            self.lock_zones().push(fresh.number());
            self.tail.zone_at.store(at as u64, Ordering::Relaxed);
            let header = ZoneHeader { memtable: self.number, slot: slots, before: next as u64 };
            opened = Some(Box::new((fresh, header)));
            (slots, next) = (slots + 1, ZONE_HEADER);
            self.slots.store(slots, Ordering::Relaxed);
        }
        self.tail.next.store((next + total) as u64, Ordering::Relaxed);
        let position = Position::new(slots - 1, next as u64)
            .ok_or_else(|| Error::limit("bytes of a zone", next as u64, MAX_ZONE_BYTES))?;
        let at = self.tail.zone_at.load(Ordering::Relaxed) as usize + next;
        Ok(Place::new(self, position, at, total, opened))
    }

    /// Has the word point at an item that was written and fenced: committed with the fence that follows, which is the caller's. To
    /// be called by the orderer alone, in the order of the commits, with a fence behind each commit, and for none behind one that was
    /// not written.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an item that is not behind the last one; what the memory fails with.
    pub fn advance(&self, to: Written) -> Result<()> {
        let word = Gidx::advance(self.head.word.load(Ordering::Relaxed), to.position).ok_or_else(|| {
            Error::invalid("the items of a chain are committed in another order than they lie")
        })?;
        self.head.word.store(word, Ordering::Relaxed);
        self.head.end.store(to.end_lsn, Ordering::Relaxed);
        let pmem = self.pmem();
        pmem.store_word(self.word_at, word)?;
        pmem.flush(self.word_at, size_of::<u64>())
    }

    /// How many zones there are to read: [`Chain::read`] takes numbers below.
    pub fn slots(&self) -> Result<u32> {
        let gidx = Gidx::decode(self.head.word.load(Ordering::Relaxed))?;
        Ok(gidx.current.map_or(0, |p| p.slot() + 1))
    }

    /// Tells `f` each committed record of a zone, in the order of the commits, with its commit's LSN and where in the memory it lies. Any number
    /// of zones may be read at the same time, when the word rests. Holds one zone's bytes in memory.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] for whatever is damaged; [`ErrorKind::InvalidArgument`] for a zone that there is not; what `f` fails with.
    pub fn read(
        &self,
        slot: u32,
        mut f: impl FnMut(Lsn, usize, ChainRecord<'_>) -> Result<()>,
    ) -> Result<()> {
        let (at, end) = self.extent_of(slot)?;
        let mut bytes = vec![0; end];
        self.pmem().load(at, &mut bytes)?;
        let mut offset = ZONE_HEADER;
        let mut last = self.of.from_lsn;
        while offset < end {
            let place = |e: Error| self.space.in_place(e, at + offset);
            let item = self.item_in(&bytes, slot, offset).map_err(place)?;
            if item.lsn < last {
                return Err(place(Error::corruption("the items of a zone are out of order")));
            }
            last = item.end_lsn();
            let from = offset + ITEM_HEADER;
            let to = from + item.len as usize;
            let Some(mut records) = bytes.get(from..to) else {
                return Err(place(Error::corruption("an item does not end where its zone's items do")));
            };
            while !records.is_empty() {
                let record_at = at + to - records.len();
                let (record, len) = read_record(records).map_err(|e| self.space.in_place(e, record_at))?;
                if record.seq <= item.lsn || record.seq > item.end_lsn() {
                    let what = "a record's sequence is not one of its commit's";
                    return Err(self.space.in_place(Error::corruption(what), record_at));
                }
                f(item.lsn, record_at, record)?;
                records = &records[len..];
            }
            offset = to;
        }
        Ok(())
    }

    /// Gives its zones back, and then its object: durable when this returns. Nobody may have anything to do with it any more. It must be
    /// durable elsewhere that all commits before `settled` are ([`crate::recover()`]), those in this chain among them: they may have other
    /// items, which are counted after a crash. A crash in between leaves an empty chain, to be released again.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if `settled` is before the end of the last commit here; what the allocator fails with.
    pub fn release(self, settled: Lsn) -> Result<()> {
        if settled < self.end_lsn() {
            let what =
                format!("a chain with commits up to {} is released, settled is {settled}", self.end_lsn());
            return Err(Error::invalid(what));
        }
        // A word that points into a zone that is gone would be damage. And the object goes last: the next one of its number must not find
        // these zones.
        let pmem = self.pmem();
        pmem.store_word(self.word_at, Gidx::default().encode())?;
        pmem.flush(self.word_at, size_of::<u64>())?;
        pmem.fence();
        self.space.release(&self.lock_zones())?;
        self.space.halloc().pool(PoolKind::Memtables).release(&[self.number])
    }

    /// Where a zone lies, and how much of it are committed items and what stands in front of them.
    fn extent_of(&self, slot: u32) -> Result<(usize, usize)> {
        let current = Gidx::decode(self.head.word.load(Ordering::Relaxed))?.current;
        let last =
            current.filter(|p| slot <= p.slot()).ok_or_else(|| Error::invalid("a chain has no such zone"))?;
        let at = self.zone_at(slot)?;
        zone_header(&self.space, self.number, slot, at)?;
        let end = match slot == last.slot() {
            true => last.offset() as usize + item_at(&self.space, self.salt, at, last)?.total(),
            false => {
                let next = self.zone_at(slot + 1)?;
                zone_header(&self.space, self.number, slot + 1, next)?.before as usize
            }
        };
        match (ZONE_HEADER..=self.space.zone_bytes()).contains(&end) {
            true => Ok((at, end)),
            false => Err(self.space.in_place(Error::corruption("the items of a zone end beyond it"), at)),
        }
    }

    fn item_in(&self, zone: &[u8], slot: u32, offset: usize) -> Result<ItemHeader> {
        let bytes = zone.get(offset..).and_then(|b| b.first_chunk::<ITEM_HEADER>());
        match (bytes, Position::new(slot, offset as u64)) {
            (Some(bytes), Some(position)) => ItemHeader::decode(bytes, self.salt, position),
            _ => Err(Error::corruption("an item does not end where its zone's items do")),
        }
    }

    fn zone_at(&self, slot: u32) -> Result<usize> {
        let zone = self.lock_zones().get(slot as usize).copied();
        self.space.zones().place(zone.ok_or_else(|| Error::invalid("a chain has no such zone"))?)
    }

    fn check_whole(&self) -> Result<()> {
        match self.broken.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::Poisoned, "a commit to this memtable was not written")
                .with_file(self.pmem().path())
                .with_hint("open the database again")),
        }
    }

    /// An error that says where in the memory it is.
    pub(crate) fn in_place(&self, e: Error, at: usize) -> Error {
        self.space.in_place(e, at)
    }

    pub(crate) fn space(&self) -> &Arc<Space> {
        &self.space
    }

    pub(crate) fn pmem(&self) -> &dyn Pmem {
        self.space.pmem()
    }

    fn lock_zones(&self) -> MutexGuard<'_, Vec<u32>> {
        // Only whole numbers are pushed.
        self.zones.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        self.space.chains.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The tag under which a zone is its memtable's.
pub(crate) fn zone_tag(memtable: u32, slot: u32) -> u64 {
    u64::from(memtable) * u64::from(MAX_SLOTS) + u64::from(slot)
}

/// Whose a zone with this tag is, and which of its zones; `None` if it is nobody's.
pub(crate) fn of_zone_tag(tag: u64) -> Option<(u32, u32)> {
    Some((u32::try_from(tag / u64::from(MAX_SLOTS)).ok()?, (tag % u64::from(MAX_SLOTS)) as u32))
}

/// The description and the word of a memtable. What the word says is durable after the next fence: a process may have died between storing
/// and flushing it.
pub(crate) fn memtable(space: &Space, number: u32) -> Result<(ChainMemtable, Gidx)> {
    let at = space.halloc().pool(PoolKind::Memtables).place(number)?;
    let pmem = space.halloc().pmem();
    let place = |e| space.in_place(e, at);
    let mut bytes = [0; MEMTABLE_BYTES];
    pmem.load(at, &mut bytes)?;
    let of = ChainMemtable::decode(&bytes).map_err(place)?;
    let gidx = Gidx::decode(pmem.load_word(at + GIDX_AT)?).map_err(place)?;
    pmem.flush(at + GIDX_AT, size_of::<u64>())?;
    Ok((of, gidx))
}

/// The header of the item at `position` of the zone that lies at `zone_at`, in the memtable with this salt.
pub(crate) fn item_at(space: &Space, salt: u64, zone_at: usize, position: Position) -> Result<ItemHeader> {
    let pmem = space.halloc().pmem();
    let at = zone_at + position.offset() as usize;
    let place = |e| space.in_place(e, at);
    if position.offset() as usize + ITEM_HEADER > space.zone_bytes() {
        return Err(place(Error::corruption("the word of a memtable points beyond its zone")));
    }
    let mut bytes = [0; ITEM_HEADER];
    pmem.load(at, &mut bytes)?;
    let item = ItemHeader::decode(&bytes, salt, position).map_err(place)?;
    match position.offset() as usize + item.total() <= space.zone_bytes() {
        true => Ok(item),
        false => Err(place(Error::corruption("an item ends beyond its zone"))),
    }
}

/// The beginning of the zone that lies at `at`, which is to be this one.
pub(crate) fn zone_header(space: &Space, memtable: u32, slot: u32, at: usize) -> Result<ZoneHeader> {
    let pmem = space.halloc().pmem();
    let place = |e| space.in_place(e, at);
    let mut bytes = [0; ZONE_HEADER];
    pmem.load(at, &mut bytes)?;
    let header = ZoneHeader::decode(&bytes).map_err(place)?;
    match (header.memtable, header.slot) == (memtable, slot) {
        true => Ok(header),
        false => Err(place(Error::corruption("a zone is not the one that the allocator says"))),
    }
}
