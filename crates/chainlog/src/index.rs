//! A semi-persistent memtable: records in persistent memory, and an ordered index over them that is not.
//!
//! The index has addresses and no keys. It vanishes with the process and is built again from the chain's zones, each by whoever has time
//! ([`ChainIndex::rebuild`]). Writing is sequential and for all records of an item at once; what is random falls into the index, which
//! lies in memory made for that.
//!
//! # Invariants
//! * What the index refers to lies in zones of its chain, which keeps them as long as it lives, and the index is dropped first. There is
//!   one chain of each memtable: it is created, or comes from a recovery while there is none.
//! * Nobody writes to a zone but into places that were assigned, each once, and a record is indexed after its place was written. The memory
//!   is the space's alone, which hands it to nobody. A device may still damage what lies there: the lengths of a record lead to what can be read then
//!   ([`terrane_media::READABLE_BEHIND`]), keys compare as they may, and a value is verified before it is given away ([`ChainIndex::verify`]).
//!
//! # Concurrency
//! Any number of threads index, rebuild and read. What went around the caches is ordered by the fence that [`ChainIndex::insert`]
//! carries out before it tells the index of records.

use std::ptr::NonNull;

use terrane_base::{Error, ErrorKind, Lsn, Result};
use terrane_format::chain::{ChainRecord, ITEM_HEADER, key_at, read_record, record_len};
use terrane_media::Pmem;
use terrane_memindex::{MemIndex, Record, Search};

use crate::chain::Chain;
use crate::item::Item;
use crate::place::{Spot, Stored, StoredOne};
use crate::space::Space;

/// See the module's head.
pub struct ChainIndex {
    // Dropped before the zones that it refers to.
    index: MemIndex,
    chain: Chain,
}

impl std::fmt::Debug for ChainIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChainIndex")
            .field("chain", &self.chain)
            .field("records", &self.index.len())
            .finish_non_exhaustive()
    }
}

impl ChainIndex {
    /// The memtable of a chain; `index` is empty. One whose chain has items has them once all of its zones were [rebuilt](Self::rebuild).
    /// The index has records looked at whose keys say where others belong ([`MemIndex::check_with`]).
    pub fn new(chain: Chain, mut index: MemIndex) -> Self {
        let space = chain.space().clone();
        index.check_with(move |record| verify(&space, record).is_ok());
        ChainIndex { index, chain }
    }

    /// The chain.
    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// The index.
    pub fn index(&self) -> &MemIndex {
        &self.index
    }

    /// The chain, to be released.
    pub fn into_chain(self) -> Chain {
        self.chain
    }

    /// Tells the index the records of an item that was stored in this chain, and gives the item back, empty. Readers find them from here on,
    /// as their sequences let them.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an item of another chain: its commit must not be ordered then.
    pub fn insert(&self, mut stored: Stored<'_>) -> Result<Box<Item>> {
        let base = self.begin(&mut stored.spot)?;
        let records = stored.item.indexed().map(|(at, key, seq)| {
            // SAFETY: within the item, which lies there in the memory.
            (unsafe { base.add(at) }, key, seq)
        });
        // SAFETY: of the item that was written there, all of it fenced; the chain is ours, and so are its zones.
        unsafe { self.index.insert_all_at(records)? };
        Ok(stored.into_item())
    }

    /// As [`ChainIndex::insert`], of an item of one record, from where a search for its key in this index has come to.
    ///
    /// # Errors
    /// As [`ChainIndex::insert`].
    #[inline]
    pub fn insert_one(&self, mut stored: StoredOne<'_, '_>, search: &Search<'_, '_>) -> Result<()> {
        let item = self.begin(&mut stored.spot)?;
        // SAFETY: an item has its first record behind its header.
        let at = unsafe { item.add(ITEM_HEADER) };
        match stored.key == search.key() {
            // SAFETY: the record that was written there, fenced; the chain is ours, and so are its zones.
            true => unsafe { self.index.insert_found_at(search, at, stored.seq) },
            // SAFETY: as above.
            false => unsafe { self.index.insert_at(at, stored.key, stored.seq) },
        }
    }

    /// Where an item of this chain lies, all of it fenced.
    #[inline]
    fn begin(&self, spot: &mut Spot<'_>) -> Result<NonNull<u8>> {
        if !std::ptr::eq(spot.chain, &self.chain) {
            return Err(Error::invalid("an item of another chain"));
        }
        spot.fence();
        self.address(spot.at)
    }

    /// Tells the index what is committed in a zone, of which there are [`Chain::slots`], once, after recovery and before anything is stored.
    /// `see` gets each record that was verified, with its commit's LSN, and says whether it has a place in the index. Holds one
    /// zone's bytes in memory.
    ///
    /// # Errors
    /// As [`Chain::read`]; [`ErrorKind::Corruption`] for a key that no index takes.
    pub fn rebuild(
        &self,
        slot: u32,
        mut see: impl FnMut(Lsn, &ChainRecord<'_>) -> Result<bool>,
    ) -> Result<()> {
        self.chain.read(slot, |lsn, at, record| {
            if !see(lsn, &record)? {
                return Ok(());
            }
            // SAFETY: read and verified a moment ago, there and nowhere else; the chain is ours, and so are its zones.
            let indexed = unsafe { self.index.insert_at(self.address(at)?, record.key, record.seq) };
            indexed.map_err(|e| {
                // Nobody could have stored such a key.
                let damage = e.kind() == ErrorKind::LimitExceeded;
                let e = if damage { Error::new(ErrorKind::Corruption, e.to_string()) } else { e };
                self.chain.in_place(e, at)
            })
        })
    }

    /// Whether a record of this index is as it was written.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] if not; [`ErrorKind::InvalidArgument`] for a record that lies elsewhere.
    pub fn verify(&self, record: &Record<'_>) -> Result<()> {
        verify(self.chain.space(), record)
    }

    /// Where a place of the memory is mapped.
    fn address(&self, at: usize) -> Result<NonNull<u8>> {
        address(self.chain.pmem(), at)
    }
}

/// As [`ChainIndex::verify`], of a record that an index of this space refers to.
fn verify(space: &Space, record: &Record<'_>) -> Result<()> {
    let (key_len, value_len) = (record.key.len(), record.value.len());
    let pmem = space.pmem();
    let elsewhere = || Error::invalid("a record lies outside of its memory");
    let key = record.key.as_ptr().addr().checked_sub(pmem.base().addr().get()).ok_or_else(elsewhere)?;
    let at = key.checked_sub(key_at(key_len, value_len)).ok_or_else(elsewhere)?;
    let len = record_len(key_len, value_len);
    if at.checked_add(len).is_none_or(|end| end > pmem.len()) {
        return Err(space.in_place(Error::corruption("a record ends beyond its memory"), at));
    }
    // A memory that costs something is told of what is read there.
    if pmem.is_costly() {
        pmem.touch(at, len);
    }
    // SAFETY: within the memory, which is mapped from there on as long as the space lives. Nobody stores to a place that an index
    // refers to, and this one has a record there: its key begins where that of a record of these lengths would.
    let bytes = unsafe { std::slice::from_raw_parts(address(pmem, at)?.as_ptr(), len) };
    let found = read_record(bytes).map_err(|e| space.in_place(e, at))?.0;
    // (It may change under us.)
    let lens = (found.key.len(), found.value.len());
    match (found.seq, found.kind as u8, lens) == (record.seq, record.kind, (key_len, value_len)) {
        true => Ok(()),
        false => Err(space.in_place(Error::corruption("a record is another one than its index has"), at)),
    }
}

/// Where a place of a memory is mapped.
fn address(pmem: &dyn Pmem, at: usize) -> Result<NonNull<u8>> {
    if at >= pmem.len() {
        return Err(Error::invalid("a record lies outside of its memory"));
    }
    // SAFETY: within the memory, which is mapped from there on.
    Ok(unsafe { pmem.base().add(at) })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use terrane_base::MemoryBudget;
    use terrane_format::Kind;
    use terrane_format::chain::ChainMemtable;
    use terrane_halloc::{Halloc, Plan};
    use terrane_media::sim::{CountingPmem, SimMedia};
    use terrane_media::{Media, PmemMode};
    use terrane_memindex::IndexKind;

    use super::*;
    use crate::space::Space;

    #[test]
    fn a_memory_that_costs_something_is_told_of_records_that_are_read() {
        for costly in [true, false] {
            let media = SimMedia::new(1);
            let path = Path::new("/pm");
            let plan = Plan { bytes: 4 << 20, subtables: 1, memtables: 4, zone_bytes: 64 << 10 };
            Space::create(&*media, path, &plan, [1; 16], 0).unwrap();
            let inner = media.map_pmem(path, PmemMode::Dax).unwrap();
            let pmem = Arc::new(CountingPmem::new(inner, costly));
            let space = Space::on(Halloc::open_on(&*media, pmem.clone(), [1; 16], 0).unwrap()).unwrap();
            let of = ChainMemtable { subtable: 1, generation: 1, from_lsn: 1 };
            let index = MemIndex::new(IndexKind::Art, MemoryBudget::new(0));
            let memtable = ChainIndex::new(Chain::create(&space, of).unwrap(), index);
            let mut item = Box::new(Item::new());
            let record = ChainRecord { key: b"key", seq: 2, kind: Kind::Put, value: &[7; 500] };
            item.push(&record, true).unwrap();
            let mut admission = space.admit(1).unwrap();
            let place = memtable.chain().assign(item.len(), Some(&mut admission)).unwrap();
            let insert = || drop(memtable.insert(place.write(1, 1, 1, item).unwrap()).unwrap());
            assert_eq!(pmem.of(insert).1.touched, 0, "it was written, and not read");
            let verify = || memtable.verify(&memtable.index().get(b"key", 2).unwrap()).unwrap();
            let read = if costly { record_len(3, 500) as u64 } else { 0 };
            assert_eq!(pmem.of(verify).1.touched, read);
        }
    }
}
