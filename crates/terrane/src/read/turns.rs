//! Lookups that take turns: what one has asked the processor for comes near while the others go on, so that many wait for memory
//! at the same time. What a lookup costs that finds its block in memory but not in the processor's caches is, for the most part, such
//! waiting: a handful of loads, each of which tells where the next one goes.
//!
//! Each lookup is a future that gives way where it has asked for something, and they are polled in a round. (Interleaving with
//! coroutines: G. Psaropoulos, T. Legler, N. May, A. Ailamaki, "Interleaving with Coroutines: A Practical Approach for Robust Index
//! Joins", VLDB 2017.) Nothing here reads the medium but, once, the range tombstones of an extent that has any.

use std::borrow::Cow;
use std::future::{Future, poll_fn};
use std::task::{Context, Poll, Waker};

use terrane_base::{Result, Seq};
use terrane_cache::Hold;
use terrane_format::block::{Block, Probe};
use terrane_format::{Kind, checksum, filter};

use crate::levels::{Extent, ExtentRef};
use crate::read::lookup::{Asked, Found, View, filter_at, run_at};
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
    /// A copy.
    pub(crate) fn into_owned(self) -> Said<'static> {
        match self {
            Said::Value(v) => Said::Value(v.map(|(kind, value)| (kind, Cow::Owned(value.into_owned())))),
            Said::NotAll => Said::NotAll,
            Said::Outdated => Said::Outdated,
        }
    }
}

/// Looks up `keys`, which come with their numbers and with where to look, at `seq`, and tells `done` of each of them, in any order.
pub(crate) fn look_up<'h>(
    hold: &'h Hold<'h>,
    seq: Seq,
    mut keys: impl Iterator<Item = (usize, View<'h>, &'h [u8])>,
    mut done: impl FnMut(usize, Result<Said<'_>>),
) {
    let mut turns: Vec<_> = Vec::with_capacity(TURNS);
    for (number, view, key) in keys.by_ref().take(TURNS) {
        turns.push((number, Box::pin(begin(view, hold, key, seq))));
    }
    let mut nobody = Context::from_waker(Waker::noop());
    while !turns.is_empty() {
        let mut at = 0;
        while let Some((number, lookup)) = turns.get_mut(at) {
            match lookup.as_mut().poll(&mut nobody) {
                Poll::Pending => at += 1,
                Poll::Ready(said) => {
                    done(*number, said);
                    // The next key has the place, and the memory.
                    match keys.next() {
                        Some((next, view, key)) => {
                            *number = next;
                            lookup.set(begin(view, hold, key, seq));
                            at += 1;
                        }
                        None => drop(turns.swap_remove(at)),
                    }
                }
            }
        }
    }
}

/// Lets the others go on.
fn give_way() -> impl Future<Output = ()> {
    let mut given = false;
    poll_fn(move |_| match std::mem::replace(&mut given, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
}

/// A lookup, to be gone on with in the next round: what it looks at first comes near until then.
fn begin<'h>(
    view: View<'h>,
    hold: &'h Hold<'h>,
    key: &'h [u8],
    seq: Seq,
) -> impl Future<Output = Result<Said<'h>>> {
    let hash = checksum::key_hash(key);
    view.state.memtables.iter().for_each(|m| m.announce_lookup(hash));
    one(view, hold, (key, seq), hash)
}

/// As [`crate::read::lookup::Walk`], but that what memory lacks is not named.
async fn one<'h>(
    view: View<'h>,
    hold: &'h Hold<'h>,
    (key, seq): (&'h [u8], Seq),
    hash: u64,
) -> Result<Said<'h>> {
    for m in &view.state.memtables {
        let Some(cover) = m.tombstones.covering(key, seq) else { return Ok(Said::Outdated) };
        if m.may_have(|| hash) {
            let mut search = m.index().search(key);
            loop {
                give_way().await;
                if !search.step() {
                    break;
                }
            }
            if let Some(r) = search.finish(seq) {
                m.verify_read(&r)?;
                let found = Found { kind: Kind::from_u8(r.kind)?, value: r.value };
                return Ok(Said::Value(value((r.seq >= cover).then_some(found))));
            }
        }
        // What lies below is older than any tombstone here.
        if cover > 0 {
            return Ok(Said::Value(None));
        }
    }
    let mut run = 0;
    while let Some(r) = run_at(view.state, run) {
        run += 1;
        let Some(r) = r.find(key) else { continue };
        let asked = Asked::new(r, view, key, seq)?;
        match in_extent(asked, r, view, hold, (key, seq), hash).await? {
            Some(said) => return Ok(said),
            None if asked.cover > 0 => return Ok(Said::Value(None)),
            None => {}
        }
    }
    Ok(Said::Value(None))
}

/// What one extent says; `None` is nothing.
async fn in_extent<'h>(
    asked: Asked<'h>,
    r: &'h ExtentRef,
    view: View<'h>,
    hold: &'h Hold<'h>,
    (key, seq): (&'h [u8], Seq),
    hash: u64,
) -> Result<Option<Said<'h>>> {
    let extent: &Extent = &r.extent;
    if extent.meta.blocks == 0 {
        return Ok(None);
    }
    if let Some(row) = asked.row() {
        return Ok(Some(Said::Value(value(asked.judge(row.seq, row.kind, &row.value))).into_owned()));
    }
    let Some(near) = Near::of(extent, view.cache, hold) else { return Ok(Some(Said::NotAll)) };
    let approach = near.approach(key)?;
    give_way().await;
    let Some((first, next_has_key)) = near.own_position_from(&approach, key, seq)? else { return Ok(None) };
    for number in first..=first + u32::from(next_has_key) {
        let Some(known) = near.known(number) else { return Ok(Some(Said::NotAll)) };
        near.announce(number, known);
        if known.filter_len() > 0 {
            let Some(filters) = near.filters() else { return Ok(Some(Said::NotAll)) };
            let own = filter_at(filters.bytes(), (known.filter_offset, known.filter_len()), extent)?;
            near.announce_bytes(filter::probed(own, hash));
            give_way().await;
            if !filter::may_contain(own, hash) {
                continue;
            }
        } else {
            give_way().await;
        }
        let Some(block) = near.block(number, known) else { return Ok(Some(Said::NotAll)) };
        let in_block = |e| near.in_block(number, e);
        let probe = Probe::new(Block::parse(block.bytes()).map_err(in_block)?, key, seq);
        give_way().await;
        let probe = probe.to_leaf();
        give_way().await;
        if let Some(hit) = probe.look().map_err(in_block)? {
            return Ok(Some(Said::Value(value(asked.meet(hit)))));
        }
    }
    Ok(None)
}

fn value(found: Option<Found<'_>>) -> Option<(Kind, Cow<'_, [u8]>)> {
    found.filter(|f| !f.kind.is_delete()).map(|f| (f.kind, Cow::Borrowed(f.value)))
}
