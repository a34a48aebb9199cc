//! Lookups that take turns: what one has asked the processor for comes near while the others go on, so that many wait for memory
//! at the same time. What a lookup costs that finds its block in memory but not in the processor's caches is, for the most part, such
//! waiting: a handful of loads, each of which tells where the next one goes.
//!
//! A *group* goes through the memtables and runs together, and through each of them in *stages*: a loop over those that are still
//! unanswered, each of which ends by asking for what the next stage looks at. (Group prefetching: S. Chen, A. Ailamaki, P. B. Gibbons,
//! T. C. Mowry, "Improving Hash Join Performance through Prefetching", ICDE 2004.) Nothing here reads the medium but, once, the range
//! tombstones of an extent that has any.

use std::borrow::Cow;
use std::ptr;

use terrane_base::{Error, Result, Seq};
use terrane_cache::{Hold, bring_near};
use terrane_format::block::{Block, LeafProbe, Probe};
use terrane_format::extent::IndexApproach;
use terrane_format::{Kind, checksum, filter};
use terrane_memindex::Search;

use crate::levels::{Extent, ExtentRef, Known, Run};
use crate::memtable::Memtable;
use crate::read::lookup::{Asked, Found, View, run_at};
use crate::read::near::Near;

/// How many take turns. The processor has ten or a few more loads under way at the same time; some lookups have asked for more than one
/// thing, some for nothing.
pub(crate) const TURNS: usize = 16;

/// What memory says of a key, where it lies.
#[derive(Debug)]
pub(crate) enum Said<'h> {
    /// The answer: `None` if the key has no value.
    Value(Option<(Kind, Cow<'h, [u8]>)>),
    /// Nothing: something that is needed is not in memory.
    NotAll,
    /// The sequence is not registered, and can no longer be read at.
    Outdated,
}

impl Said<'_> {
    /// There is none.
    const NOTHING: Self = Said::Value(None);
}

/// Looks up `keys`, which come with their numbers and with where to look, at `seq`, and tells `done` of each of them, in any order. Those
/// that look at the same state should come one behind the other.
pub(crate) fn look_up<'h>(
    hold: &'h Hold<'h>,
    seq: Seq,
    keys: impl Iterator<Item = (usize, View<'h>, &'h [u8])>,
    mut done: impl FnMut(usize, Result<Said<'_>>),
) {
    let mut keys = keys.peekable();
    let mut group = Group { hold, seq, turns: Vec::with_capacity(TURNS), stages: Stages::default() };
    while let Some(&(_, view, _)) = keys.peek() {
        let of_it = |(_, v, _): &(usize, View<'h>, &'h [u8])| ptr::eq(v.state, view.state);
        while group.turns.len() < TURNS
            && let Some((number, _, key)) = keys.next_if(of_it)
        {
            group.begin(view, number, key);
        }
        let mut memtables = view.state.memtables.iter().peekable();
        while let Some(m) = memtables.next() {
            group.look_in_memtable(m, memtables.peek().map(|m| &***m), &mut done);
        }
        let mut at = 0;
        while !group.turns.is_empty()
            && let Some(run) = run_at(view.state, at)
        {
            group.look_in_run(view, run, &mut done);
            at += 1;
        }
        group.turns.drain(..).for_each(|t| done(t.number, Ok(Said::NOTHING)));
    }
}

/// A key that is looked up.
struct Turn<'h> {
    number: usize,
    key: &'h [u8],
    hash: u64,
    answered: bool,
}

/// Those that take turns; see the module's head.
struct Group<'h> {
    hold: &'h Hold<'h>,
    seq: Seq,
    turns: Vec<Turn<'h>>,
    stages: Stages<'h>,
}

/// Whoever is in a stage of a memtable or run, each with the place of its turn. Kept for their memory.
#[derive(Default)]
struct Stages<'h> {
    searches: Vec<(usize, Search<'h, 'h>, Seq)>,
    parts: Vec<(usize, &'h ExtentRef)>,
    indexes: Vec<InIndex<'h>>,
    blocks: Vec<InBlock<'h>>,
    next_blocks: Vec<InBlock<'h>>,
    probes: Vec<(usize, Probe<'h, 'h>)>,
    leaves: Vec<(usize, LeafProbe<'h, 'h>)>,
}

/// Knows where in the index to look for its block.
struct InIndex<'h> {
    turn: usize,
    asked: Asked<'h>,
    near: Near<'h>,
    approach: IndexApproach,
}

/// Knows its block.
struct InBlock<'h> {
    turn: usize,
    asked: Asked<'h>,
    near: Near<'h>,
    number: u32,
    known: &'h Known,
    /// The filter, if the block has one.
    filter: &'h [u8],
    /// The next block may have the key too.
    next_has_key: bool,
}

/// What a stage comes to for one lookup that does not go on to the next.
enum End<'h> {
    /// The run says nothing of the key.
    Nothing,
    Said(Result<Said<'h>>),
}

impl End<'_> {
    const NOT_ALL: Self = End::Said(Ok(Said::NotAll));
}

impl From<Error> for End<'_> {
    fn from(e: Error) -> Self {
        End::Said(Err(e))
    }
}

impl<'h> Turn<'h> {
    fn answer(&mut self, said: Result<Said<'_>>, done: &mut impl FnMut(usize, Result<Said<'_>>)) {
        self.answered = true;
        done(self.number, said);
    }

    /// The end of a look at an extent.
    #[inline]
    fn end(&mut self, asked: &Asked<'h>, end: End<'h>, done: &mut impl FnMut(usize, Result<Said<'_>>)) {
        match end {
            End::Said(said) => self.answer(said, done),
            // What lies below is older than the tombstone.
            End::Nothing if asked.cover > 0 => self.answer(Ok(Said::NOTHING), done),
            End::Nothing => {}
        }
    }
}

impl<'h> Group<'h> {
    /// Takes a key in. What is looked at first comes near.
    #[inline]
    fn begin(&mut self, view: View<'h>, number: usize, key: &'h [u8]) {
        let hash = checksum::key_hash(key);
        view.state.memtables.first().inspect(|m| m.announce_lookup(hash));
        self.turns.push(Turn { number, key, hash, answered: false });
    }

    /// Looks in `m`, of whose filter what is looked at has been asked for; asks for that of the `next` one.
    fn look_in_memtable(
        &mut self,
        m: &'h Memtable,
        next: Option<&Memtable>,
        done: &mut impl FnMut(usize, Result<Said<'_>>),
    ) {
        let (seq, searches) = (self.seq, &mut self.stages.searches);
        for (at, turn) in self.turns.iter_mut().enumerate() {
            next.inspect(|next| next.announce_lookup(turn.hash));
            match m.tombstones.covering(turn.key, seq) {
                None => turn.answer(Ok(Said::Outdated), done),
                Some(cover) if m.may_have(|| turn.hash) => {
                    searches.push((at, m.index().search(turn.key), cover));
                }
                // What lies below is older than any tombstone here.
                Some(1..) => turn.answer(Ok(Said::NOTHING), done),
                Some(0) => {}
            }
        }
        let mut under_way = !searches.is_empty();
        while under_way {
            under_way = false;
            searches.iter_mut().for_each(|(_, search, _)| under_way |= search.step());
        }
        for (at, search, cover) in searches.drain(..) {
            let turn = &mut self.turns[at];
            let found = search.finish(seq);
            match m.verify_read(turn.key, seq, found.as_ref()).map(|()| found) {
                Ok(Some(r)) => {
                    let said = Kind::from_u8(r.kind).map(|kind| {
                        let found = Found { kind, value: r.value };
                        value((r.seq >= cover).then_some(found))
                    });
                    turn.answer(said, done);
                }
                Ok(None) if cover > 0 => turn.answer(Ok(Said::NOTHING), done),
                Ok(None) => {}
                Err(e) => turn.answer(Err(e), done),
            }
        }
        self.turns.retain(|t| !t.answered);
    }

    fn look_in_run(&mut self, view: View<'h>, run: &'h Run, done: &mut impl FnMut(usize, Result<Said<'_>>)) {
        let (hold, seq) = (self.hold, self.seq);
        let Group {
            turns, stages: Stages { parts, indexes, blocks, next_blocks, probes, leaves, .. }, ..
        } = self;
        for (at, turn) in turns.iter().enumerate() {
            if let Some(r) = run.find(turn.key) {
                bring_near(&**r);
                parts.push((at, r));
            }
        }
        parts.iter().for_each(|(_, r)| bring_near(&*r.extent));
        for (at, r) in parts.drain(..) {
            let turn = &mut turns[at];
            let extent: &Extent = &r.extent;
            let asked = match Asked::new(r, view, turn.key, seq) {
                Ok(asked) => asked,
                Err(e) => {
                    turn.answer(Err(e), done);
                    continue;
                }
            };
            if extent.meta.blocks == 0 {
                turn.end(&asked, End::Nothing, done);
            } else if let Some(row) = asked.row() {
                let said = value(asked.judge(row.seq, row.kind, &row.value));
                turn.answer(Ok(said), done);
            } else if let Some(near) = Near::of(extent, view.cache, hold) {
                match near.approach(turn.key) {
                    Ok(approach) => indexes.push(InIndex { turn: at, asked, near, approach }),
                    Err(e) => turn.answer(Err(e), done),
                }
            } else {
                turn.answer(Ok(Said::NotAll), done);
            }
        }
        for look in indexes.iter() {
            let turn = &mut turns[look.turn];
            match look.to_block(turn, seq) {
                Ok(block) => blocks.push(block),
                Err(end) => turn.end(&look.asked, end, done),
            }
        }
        indexes.clear();
        // A second time for those that go on in the block behind.
        while !blocks.is_empty() {
            let mut end = |turns: &mut [Turn<'h>], look: &InBlock<'h>, end: End<'h>| {
                let turn = &mut turns[look.turn];
                let end = match end {
                    End::Nothing if look.next_has_key => match look.to_next(turn) {
                        Ok(next) => return next_blocks.push(next),
                        Err(end) => end,
                    },
                    end => end,
                };
                turn.end(&look.asked, end, done);
            };
            for (at, look) in blocks.iter().enumerate() {
                match look.probe(&turns[look.turn], seq) {
                    Ok(probe) => probes.push((at, probe)),
                    Err(nothing) => end(turns, look, nothing),
                }
            }
            leaves.extend(probes.iter().map(|(at, probe)| (*at, probe.to_leaf())));
            probes.clear();
            for (at, leaf) in leaves.iter() {
                let look = &blocks[*at];
                let said = match leaf.look() {
                    Ok(Some(hit)) => End::Said(Ok(value(look.asked.meet(hit)))),
                    Ok(None) => End::Nothing,
                    Err(e) => look.near.in_block(look.number, e).into(),
                };
                end(turns, look, said);
            }
            leaves.clear();
            blocks.clear();
            std::mem::swap(blocks, next_blocks);
        }
        turns.retain(|t| !t.answered);
    }
}

impl<'h> InIndex<'h> {
    /// Finds the block.
    #[inline]
    fn to_block(&self, turn: &Turn<'h>, seq: Seq) -> Result<InBlock<'h>, End<'h>> {
        let InIndex { near, asked, .. } = *self;
        let position = near.own_position_from(&self.approach, turn.key, seq)?.ok_or(End::Nothing)?;
        InBlock::announced(self.turn, asked, near, position, turn.hash)
    }
}

impl<'h> InBlock<'h> {
    /// Has what a search of the block looks at first brought near.
    #[inline]
    fn announced(
        turn: usize,
        asked: Asked<'h>,
        near: Near<'h>,
        (number, next_has_key): (u32, bool),
        hash: u64,
    ) -> Result<Self, End<'h>> {
        let known = near.known(number).ok_or(End::NOT_ALL)?;
        near.announce(number, known);
        let filter = near.filter_of(known)?.ok_or(End::NOT_ALL)?;
        near.announce_bytes(filter::probed(filter, hash));
        Ok(InBlock { turn, asked, near, number, known, filter, next_has_key })
    }

    /// The block behind: where a block begins with the key, the index leads to the one before.
    fn to_next(&self, turn: &Turn<'h>) -> Result<Self, End<'h>> {
        InBlock::announced(self.turn, self.asked, self.near, (self.number + 1, false), turn.hash)
    }

    /// Begins to search the block, unless its filter says no.
    #[inline]
    fn probe(&self, turn: &Turn<'h>, seq: Seq) -> Result<Probe<'h, 'h>, End<'h>> {
        if !filter::may_contain(self.filter, turn.hash) {
            return Err(End::Nothing);
        }
        let block = self.near.block(self.number, self.known).ok_or(End::NOT_ALL)?;
        let block = Block::parse(block.bytes()).map_err(|e| self.near.in_block(self.number, e))?;
        Ok(Probe::new(block, turn.key, seq))
    }
}

fn value(found: Option<Found<'_>>) -> Said<'_> {
    Said::Value(found.filter(|f| !f.kind.is_delete()).map(|f| (f.kind, Cow::Borrowed(f.value))))
}
