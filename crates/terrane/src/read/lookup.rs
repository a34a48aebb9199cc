//! Point lookup as a resumable walk: memtables newest first, then L0 runs newest first, then L1 and down; the first
//! version at or below the snapshot answers.
//!
//! A walk never blocks by itself. [`Walk::advance`] answers from memory or names the one block that it needs; the caller
//! fetches that block in its own way (blocking, batched with others, later), hands it in, and the walk goes on where it
//! was. `get`, `multi_get` and the public [`crate::Lookup`] differ only in how they fetch.
//!
//! # Why a lookup needs no registered snapshot
//! It loads the Super first and the published sequence after. Later merges cannot take versions from a Super that it
//! holds; records that were published in a memtable younger than its Super are newer than every record in it, so what it
//! sees is still a prefix of the commits. A run that is attached (`txn::attach`) is published with neither: it is in a newer Super, and
//! what is published behind it may be in a memtable of the older. For one key that makes no difference: what the older Super shows of it
//! was the newest at some moment of the call. Who reads several keys looks, after it has read the published sequence, whether its
//! Super is still of the newest epoch.
//!
//! One thing it can come too late for: range tombstones of a memtable as of its sequence, if later ones took their place
//! in between (see `tombstone`). Then it is told so ([`Step::Outdated`]) and begins anew with a registered snapshot.

use std::sync::Arc;

use terrane_base::{Result, Seq};
use terrane_cache::{Cache, HeatSampler, Hold, Pin};
use terrane_format::block::{self, Block};
use terrane_format::extent::{BlockHandle, Index};
use terrane_format::{Kind, checksum, filter};

use crate::db::table::Super;
use crate::levels::{Extent, ExtentRef, Run};
use crate::read::blocks::Part;
use crate::read::near::{Near, filter_at};
use crate::read::rows::{Row, RowCache};

/// A version that answers a lookup.
#[derive(Debug)]
pub(crate) struct Found<'a> {
    pub(crate) kind: Kind,
    pub(crate) value: &'a [u8],
}

/// The same, copied: within a walk nothing is read from the medium, since cache memory waits for its end before it can be
/// used again.
#[derive(Debug)]
pub(crate) struct Copied {
    pub(crate) kind: Kind,
    pub(crate) value: Vec<u8>,
}

impl From<Found<'_>> for Copied {
    fn from(hit: Found<'_>) -> Self {
        Copied { kind: hit.kind, value: hit.value.to_vec() }
    }
}

/// A block that a walk waits for.
#[derive(Clone, Debug)]
pub(crate) struct Need {
    pub(crate) extent: Arc<Extent>,
    pub(crate) part: Part,
}

/// What one step of a walk came to.
#[derive(Debug)]
pub(crate) enum Step<R> {
    /// The answer: `None` if the key has no value.
    Done(Option<R>),
    /// Goes on once this block is handed in. (Apart: what is in memory is answered without moving it about.)
    Need(Box<Need>),
    /// The sequence is not registered, and can no longer be read at: begin anew at a registered one.
    Outdated,
}

/// The position of a walk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Walk {
    /// Memtables are done.
    below_memtables: bool,
    /// Next run: L0 runs newest first, then levels.
    run: usize,
    /// The key's hash, once computed.
    hash: Option<u64>,
    /// The blocks of the present run's extent that may hold the key, once its index was searched.
    candidates: Option<Box<[Candidate; 2]>>,
}

/// A block that may hold the key.
#[derive(Clone, Copy, Debug)]
enum Candidate {
    None,
    /// Its filter has not been asked yet.
    Unfiltered(BlockHandle),
    Search(BlockHandle),
}

impl From<Option<BlockHandle>> for Candidate {
    fn from(handle: Option<BlockHandle>) -> Self {
        match handle {
            None => Candidate::None,
            Some(h) if h.filter_len > 0 => Candidate::Unfiltered(h),
            Some(h) => Candidate::Search(h),
        }
    }
}

pub(crate) fn run_at(state: &Super, at: usize) -> Option<&Arc<Run>> {
    let l0 = &state.version.l0;
    l0.get(at).or_else(|| state.version.levels.get(at - l0.len()))
}

/// Runs `f` on a block from the cache, or on the one handed in.
fn with_block<R>(
    cache: &Cache,
    extent: &Extent,
    part: &Part,
    supplied: &mut Option<Pin>,
    f: impl FnOnce(&[u8]) -> R,
) -> Option<R> {
    match supplied.take() {
        Some(pin) => Some(f(&pin)),
        None => cache.with(part.key(extent), f),
    }
}

/// Where a walk looks.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) state: &'a Super,
    pub(crate) cache: &'a Cache,
    pub(crate) heat: &'a HeatSampler,
    pub(crate) rows: Option<&'a RowCache>,
}

impl Walk {
    /// Goes on with the walk for `key` at `seq`. `supplied` is the block last asked for. `found` is called at most once,
    /// with the version that answers, if it is not a deletion.
    pub(crate) fn advance<R>(
        &mut self,
        view: View<'_>,
        key: &[u8],
        seq: Seq,
        supplied: &mut Option<Pin>,
        found: &mut Option<impl FnOnce(Found<'_>) -> R>,
    ) -> Result<Step<R>> {
        let mut answer = |f: Found<'_>| -> Step<R> {
            if f.kind.is_delete() {
                return Step::Done(None);
            }
            Step::Done(found.take().map(|call| call(f)))
        };
        // One guard for all of the step: memtables, and index, filter and data of each run.
        let hold = view.cache.hold();
        if !self.below_memtables {
            for m in &view.state.memtables {
                let Some(cover) = m.tombstones.covering(key, seq) else { return Ok(Step::Outdated) };
                let hash = || *self.hash.get_or_insert_with(|| checksum::key_hash(key));
                if m.may_have(hash) {
                    let found = m.index().get(key, seq);
                    m.verify_read(key, seq, found.as_ref())?;
                    if let Some(r) = found {
                        if r.seq < cover {
                            return Ok(Step::Done(None));
                        }
                        let f = Found { kind: Kind::from_u8(r.kind)?, value: r.value };
                        return Ok(answer(f));
                    }
                }
                // What lies below is older than any tombstone here.
                if cover > 0 {
                    return Ok(Step::Done(None));
                }
            }
            self.below_memtables = true;
        }
        while let Some(run) = run_at(view.state, self.run) {
            if let Some(r) = run.find(key) {
                match self.search(r, view, &hold, (key, seq), supplied, &mut answer)? {
                    Some(step) => return Ok(step),
                    None => self.candidates = None,
                }
            }
            self.run += 1;
        }
        Ok(Step::Done(None))
    }

    /// Searches one extent; `None` means that it says nothing about the key.
    fn search<R>(
        &mut self,
        r: &ExtentRef,
        view: View<'_>,
        hold: &Hold<'_>,
        (key, seq): (&[u8], Seq),
        supplied: &mut Option<Pin>,
        answer: &mut impl FnMut(Found<'_>) -> Step<R>,
    ) -> Result<Option<Step<R>>> {
        let extent = &r.extent;
        let need = |part: Part| Ok(Some(Step::Need(Box::new(Need { extent: extent.clone(), part }))));
        let asked = Asked::new(r, view, key, seq)?;
        let gone = || (asked.cover > 0).then_some(Step::Done(None));
        if extent.meta.blocks == 0 {
            return Ok(gone());
        }
        if let Some(row) = asked.row() {
            return Ok(Some(asked.judge(row.seq, row.kind, &row.value).map_or(Step::Done(None), answer)));
        }
        // What a block says of the key.
        let mut look = |bytes: &[u8], offset: u32| -> Result<Option<Step<R>>> {
            let hit = Block::parse(bytes).and_then(|block| block::get(block, key, seq));
            let hit = hit.map_err(|e| extent.place(e, offset))?;
            Ok(hit.map(|hit| asked.meet(hit).map_or(Step::Done(None), &mut *answer)))
        };
        if self.candidates.is_none()
            && supplied.is_none()
            && let Some(near) = Near::of(extent, view.cache, hold)
            && let Said::All(said) = self.search_near(near, (key, seq), &mut look)?
        {
            return Ok(said.or_else(gone));
        }
        let candidates = match &mut self.candidates {
            Some(c) => c,
            none => {
                let searched = with_block(view.cache, extent, &Part::Index, supplied, |bytes| {
                    Index::parse(bytes)?.find(key, seq)
                });
                match searched {
                    Some(c) => {
                        let c = c.map_err(|e| extent.place(e, extent.meta.index.offset))?;
                        let blocks = c.map_or([None, None], |f| [Some(f.handle), f.then]);
                        none.insert(Box::new(blocks.map(Candidate::from)))
                    }
                    None => return need(Part::Index),
                }
            }
        };
        for slot in candidates.iter_mut() {
            let handle = match *slot {
                Candidate::None => continue,
                Candidate::Search(handle) => handle,
                Candidate::Unfiltered(handle) => {
                    let hash = *self.hash.get_or_insert_with(|| checksum::key_hash(key));
                    match filter_may_contain(view.cache, extent, &handle, hash, supplied)? {
                        Some(true) => {
                            *slot = Candidate::Search(handle);
                            handle
                        }
                        Some(false) => {
                            *slot = Candidate::None;
                            continue;
                        }
                        None => return need(Part::Filter),
                    }
                }
            };
            let part = Part::Data(handle);
            let looked = with_block(view.cache, extent, &part, supplied, |bytes| look(bytes, handle.offset));
            match looked.transpose()? {
                Some(Some(step)) => return Ok(Some(step)),
                Some(None) => *slot = Candidate::None,
                None => return need(part),
            }
        }
        Ok(gone())
    }

    /// Searches an extent as far as memory has it, without a search for its blocks.
    fn search_near<R>(
        &mut self,
        near: Near<'_>,
        (key, seq): (&[u8], Seq),
        look: &mut impl FnMut(&[u8], u32) -> Result<Option<Step<R>>>,
    ) -> Result<Said<R>> {
        let approach = near.approach(key)?;
        let Some((first, next_has_key)) = near.own_position_from(&approach, key, seq)? else {
            return Ok(Said::All(None));
        };
        for number in first..=first + u32::from(next_has_key) {
            let Some(known) = near.known(number) else { return Ok(Said::NotAll) };
            near.announce(number, known);
            let Some(filter) = near.filter_of(known)? else { return Ok(Said::NotAll) };
            let mut hash = || *self.hash.get_or_insert_with(|| checksum::key_hash(key));
            if !filter.is_empty() && !filter::may_contain(filter, hash()) {
                continue;
            }
            // After the filter: for keys that are not there these loads would be wasted.
            near.announce_next(number, known, &approach);
            let Some(block) = near.block(number, known) else { return Ok(Said::NotAll) };
            if let Some(step) = look(block.bytes(), known.offset)? {
                return Ok(Said::All(Some(step)));
            }
        }
        Ok(Said::All(None))
    }
}

/// A lookup in one extent: what of its versions there counts.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    extent: &'a Extent,
    key: &'a [u8],
    /// The newest sequence whose range tombstone covers the key here; 0 if none does.
    pub(crate) cover: Seq,
    rows: Option<&'a RowCache>,
    heat: &'a HeatSampler,
}

impl<'a> Asked<'a> {
    pub(crate) fn new(r: &'a ExtentRef, view: View<'a>, key: &'a [u8], seq: Seq) -> Result<Self> {
        let extent = &*r.extent;
        // Rows are the newest of their extent: good for lookups that see all of it.
        let rows = view.rows.filter(|_| extent.meta.max_seq <= seq);
        Ok(Asked { extent, key, cover: r.covering(key, seq)?, rows, heat: view.heat })
    }

    /// The row, if it is cached.
    pub(crate) fn row(&self) -> Option<Arc<Row>> {
        self.rows.and_then(|rows| rows.get(self.extent.meta.id.0, self.key))
    }

    /// What a version that a block holds comes to; `None` if it is deleted by range. (Neither says whether it is a deletion.)
    #[inline]
    pub(crate) fn meet<'v>(&self, (seq, kind, value): (Seq, Kind, &'v [u8])) -> Option<Found<'v>> {
        if let Some(rows) = self.rows {
            rows.insert(self.extent.meta.id.0, self.key, Row { seq, kind, value: value.into() });
        }
        self.heat.touch(self.extent.meta.id.0);
        self.judge(seq, kind, value)
    }

    /// As [`Asked::meet`], of a row.
    #[inline]
    pub(crate) fn judge<'v>(&self, seq: Seq, kind: Kind, value: &'v [u8]) -> Option<Found<'v>> {
        (seq >= self.cover).then_some(Found { kind, value })
    }
}

/// What memory says of a key, of what an extent says of it.
enum Said<R> {
    /// Everything; `None` is nothing.
    All(Option<Step<R>>),
    /// Memory has not all that is needed.
    NotAll,
}

fn filter_may_contain(
    cache: &Cache,
    extent: &Extent,
    handle: &BlockHandle,
    hash: u64,
    supplied: &mut Option<Pin>,
) -> Result<Option<bool>> {
    let place = (handle.filter_offset, handle.filter_len);
    let ask = |bytes: &[u8]| Ok(filter::may_contain(filter_at(bytes, place, extent)?, hash));
    with_block(cache, extent, &Part::Filter, supplied, ask).transpose()
}
