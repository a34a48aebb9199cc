//! A place in a chain, and what was stored there.

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use terrane_base::{Error, Lsn, Result, Seq};
use terrane_format::chain::{
    ChainRecord, ITEM_HEADER, ItemHeader, Position, ZoneHeader, record_len, write_record,
};
use terrane_halloc::Fresh;

use crate::chain::{Chain, zone_tag};
use crate::item::{Item, check_record};

/// Where an item of a commit goes. It stays with its thread, whose fence makes what was written durable. Dropped unwritten it
/// breaks its chain, which takes no more items: what lies behind it could never be committed.
#[derive(Debug)]
#[must_use = "dropping it breaks its chain"]
pub struct Place<'c> {
    chain: &'c Chain,
    _own_thread: PhantomData<*const ()>,
    position: Position,
    at: usize,
    /// Bytes, with the header.
    total: usize,
    /// A zone that is opened for it: for one item in thousands, and so apart.
    opened: Option<Box<(Fresh<'c>, ZoneHeader)>>,
    written: bool,
}

/// An item that was written: see [`Chain::advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    pub(crate) position: Position,
    pub(crate) end_lsn: Lsn,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if !self.written {
            self.chain.broken.store(true, Ordering::Relaxed);
            // The chain has the zone: it must not become another's before the memory is opened again.
            std::mem::forget(self.opened.take());
        }
    }
}

impl<'c> Place<'c> {
    /// Of `total` bytes, which lie at `at` of the memory.
    pub(crate) fn new(
        chain: &'c Chain,
        position: Position,
        at: usize,
        total: usize,
        opened: Option<Box<(Fresh<'c>, ZoneHeader)>>,
    ) -> Self {
        Place { chain, _own_thread: PhantomData, position, at, total, opened, written: false }
    }

    /// Writes the item, one of `items` of the commit at `lsn`, which takes `units` of the order. Durable once this thread has fenced, at
    /// the latest when the item is told to an index ([`crate::ChainIndex::insert`]).
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::InvalidArgument`] if it is not as long as was said, or says what cannot be; what the memory
    /// fails with. The chain is broken then.
    pub fn write(mut self, lsn: Lsn, items: u32, units: u32, mut item: Box<Item>) -> Result<Stored<'c>> {
        let header = self.header(lsn, items, units, item.len(), item.seqs())?;
        let bytes = header.encode(self.chain.salt, self.position);
        let spot = self.store(&header, item.under(&bytes))?;
        Ok(Stored { spot, item })
    }

    /// As [`Place::write`], of an item that is this record alone, which is to be indexed. It is put together in `scratch`, which keeps its memory.
    ///
    /// # Errors
    /// As there; as [`Item::push`].
    pub fn write_one<'r>(
        mut self,
        lsn: Lsn,
        items: u32,
        units: u32,
        record: &ChainRecord<'r>,
        scratch: &mut Vec<u8>,
    ) -> Result<StoredOne<'c, 'r>> {
        check_record(record)?;
        let (seq, len) = (record.seq, record_len(record.key.len(), record.value.len()));
        let header = self.header(lsn, items, units, len, Some((seq, seq)))?;
        scratch.clear();
        scratch.reserve(self.total);
        scratch.extend_from_slice(&header.encode(self.chain.salt, self.position));
        write_record(scratch, record);
        let spot = self.store(&header, scratch)?;
        Ok(StoredOne { spot, key: record.key, seq })
    }

    /// The header of an item whose records take `len` bytes, and have sequences from the first to the second of `seqs`.
    #[inline]
    fn header(
        &self,
        lsn: Lsn,
        items: u32,
        units: u32,
        len: usize,
        seqs: Option<(Seq, Seq)>,
    ) -> Result<ItemHeader> {
        let room = self.total - ITEM_HEADER;
        if len != room {
            return Err(Error::invalid(format!("an item of {len} bytes in a place for {room}")));
        }
        let header = ItemHeader { lsn, len: len as u32, items, units };
        header.check()?;
        if seqs.is_some_and(|(least, most)| least <= lsn || most > header.end_lsn()) {
            return Err(Error::invalid("a record's sequence is not one of its commit's"));
        }
        Ok(header)
    }

    /// Stores all of an item, in a zone that has become its chain's by then.
    #[inline]
    fn store(&mut self, header: &ItemHeader, item: &[u8]) -> Result<Spot<'c>> {
        let chain = self.chain;
        if let Some(opened) = &self.opened {
            opened.0.write(0, &opened.1.encode())?;
        }
        if let Some(opened) = self.opened.take() {
            let (fresh, zone) = *opened;
            fresh.commit(zone_tag(chain.number, zone.slot))?;
        }
        chain.pmem().write(self.at, item)?;
        self.written = true;
        let written = Written { position: self.position, end_lsn: header.end_lsn() };
        Ok(Spot { chain, _own_thread: PhantomData, at: self.at, written, fenced: false })
    }
}

/// Where an item was stored. As its place it stays with its thread.
#[derive(Debug)]
pub(crate) struct Spot<'c> {
    pub(crate) chain: &'c Chain,
    _own_thread: PhantomData<*const ()>,
    /// Where in the memory it begins.
    pub(crate) at: usize,
    written: Written,
    fenced: bool,
}

impl Spot<'_> {
    /// Fences, unless that was done.
    pub(crate) fn fence(&mut self) {
        if !std::mem::replace(&mut self.fenced, true) {
            self.chain.pmem().fence();
        }
    }
}

/// An item of one record that was stored in its place: as [`Stored`].
#[derive(Debug)]
#[must_use = "its record is in no index yet"]
pub struct StoredOne<'c, 'r> {
    pub(crate) spot: Spot<'c>,
    pub(crate) key: &'r [u8],
    pub(crate) seq: Seq,
}

impl StoredOne<'_, '_> {
    /// As [`Stored::written`].
    pub fn written(&self) -> Written {
        self.spot.written
    }
}

/// An item that was stored in its place. As that it stays with its thread. A commit without an index's entry would not be seen before the
/// next start: what no index was told of must not be ordered.
#[derive(Debug)]
#[must_use = "its records are in no index yet"]
pub struct Stored<'c> {
    pub(crate) spot: Spot<'c>,
    pub(crate) item: Box<Item>,
}

impl<'c> Stored<'c> {
    /// What [`Chain::advance`] is to be called with once this thread has fenced.
    pub fn written(&self) -> Written {
        self.spot.written
    }

    /// Makes all of them durable, with one fence if they are of one memory, as those of a commit are.
    pub fn fence_all(all: &mut [Stored<'c>]) {
        let Some(chain) = all.first().map(|first| first.spot.chain) else { return };
        chain.space().fence();
        for Stored { spot, .. } in all {
            spot.fenced |= Arc::ptr_eq(spot.chain.space(), chain.space());
            spot.fence();
        }
    }

    /// The item, empty, if no index is to be told of its records.
    pub fn into_item(self) -> Box<Item> {
        let mut item = self.item;
        item.clear();
        item
    }
}
