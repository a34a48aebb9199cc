//! Many point lookups at once: what memory holds is answered at once, by lookups that take turns; what it does not hold is fetched
//! together, each block once, with the device's queue filled, and those lookups begin anew with it.
//!
//! # Bounds
//! Lookups that wait are taken in the order in which their blocks lie on the device, so many blocks at a time as [`READS`] and
//! [`bytes_at_once`] allow. Only those blocks are pinned, and only they may be private buffers, if the cache is full or blocks
//! are read where they lie below it; a lookup that waits for its turn holds no block. So a call takes a bounded amount of memory
//! beside its keys and their values, however many keys and however small the cache.

use std::borrow::Cow;
use std::cell::Cell;

use terrane_base::{Result, Seq};
use terrane_cache::{FrameKey, Pin};
use terrane_format::Kind;

use crate::db::engine::Engine;
use crate::db::table::Table;
use crate::read::blocks;
use crate::read::lookup::{Copied, Found, Need, Step, View, Walk};
use crate::read::turns::{self, Said};
use crate::tombstone::outdated;

/// Most reads on their way at once: what keeps a device busy.
const READS: usize = 128;

/// Keys that are looked up under one hold of the cache: what leaves that meanwhile is freed after it.
const HELD: usize = 256;

/// Most bytes of blocks fetched at once (one block may be larger): the twentieth of the cache by which private buffers and
/// frames in use may exceed it, but what a small read takes at least, and what a device needs to be busy at most.
fn bytes_at_once(cache_bytes: usize) -> usize {
    (cache_bytes / 20).clamp(256 << 10, 4 << 20)
}

/// One lookup that waits for a block.
struct Waiting {
    /// Place of its key.
    at: usize,
    walk: Walk,
    need: Need,
    done: bool,
}

impl Waiting {
    fn block(&self) -> FrameKey {
        self.need.part.key(&self.need.extent)
    }
}

/// The values of `keys` as of one moment, in their order.
pub(crate) fn multi_get(
    engine: &Engine,
    table: &Table,
    keys: &[impl AsRef<[u8]>],
) -> Result<Vec<Option<Vec<u8>>>> {
    let mut values = Values::of(keys);
    if tell_at(engine, table, keys, None, |at, value| values.take(at, value))? {
        return Ok(values.0);
    }
    let snapshot = engine.register();
    multi_get_registered(engine, table, keys, snapshot.seq)
}

/// As [`multi_get`], at the registered `seq`.
pub(crate) fn multi_get_registered(
    engine: &Engine,
    table: &Table,
    keys: &[impl AsRef<[u8]>],
    seq: Seq,
) -> Result<Vec<Option<Vec<u8>>>> {
    let mut values = Values::of(keys);
    tell_registered(engine, table, keys, seq, |at, value| values.take(at, value))?;
    Ok(values.0)
}

/// Tells `f` the value of each of `keys`, with its number, as of one moment, in any order.
pub(crate) fn multi_get_with(
    engine: &Engine,
    table: &Table,
    keys: &[impl AsRef<[u8]>],
    mut f: impl FnMut(usize, Option<&[u8]>),
) -> Result<()> {
    // Registered from the beginning, for what was told cannot be taken back.
    let snapshot = engine.register();
    tell_registered(engine, table, keys, snapshot.seq, |at, value| f(at, value.as_deref()))
}

/// Values in the order of their keys.
struct Values(Vec<Option<Vec<u8>>>);

impl Values {
    fn of<K>(keys: &[K]) -> Self {
        Values(keys.iter().map(|_| None).collect())
    }

    fn take(&mut self, at: usize, value: Option<Cow<'_, [u8]>>) {
        self.0[at] = value.map(Cow::into_owned);
    }
}

fn tell_registered(
    engine: &Engine,
    table: &Table,
    keys: &[impl AsRef<[u8]>],
    seq: Seq,
    tell: impl FnMut(usize, Option<Cow<'_, [u8]>>),
) -> Result<()> {
    match tell_at(engine, table, keys, Some(seq), tell)? {
        true => Ok(()),
        false => Err(outdated(seq)),
    }
}

/// Tells of each key, at the registered `seq` or else at the newest, unless it fails; false if the newest was overtaken meanwhile.
fn tell_at(
    engine: &Engine,
    table: &Table,
    keys: &[impl AsRef<[u8]>],
    seq: Option<Seq>,
    mut tell: impl FnMut(usize, Option<Cow<'_, [u8]>>),
) -> Result<bool> {
    // Of a dropped table the state may be the empty one.
    let state = table.state_full();
    table.check_alive()?;
    let seq = match seq {
        Some(seq) => seq,
        None => {
            let now = engine.visible();
            // After that: see `read::lookup`.
            if table.epoch() != state.epoch {
                return Ok(false);
            }
            now
        }
    };
    let view = View { state: &state, cache: &engine.cache, heat: &engine.heat, rows: engine.rows.as_ref() };
    let Some(lacking) = from_memory(engine, view, keys, seq, &mut tell)? else { return Ok(false) };
    let overtaken = Cell::new(false);
    // Goes on with the lookup of key `at`; what it needs next, or nothing if it is answered.
    let mut step = |at: usize, walk: &mut Walk, mut supplied: Option<Pin>| -> Result<Option<Need>> {
        let mut found = Some(|hit: Found<'_>| Copied::from(hit));
        match walk.advance(view, keys[at].as_ref(), seq, &mut supplied, &mut found)? {
            Step::Done(value) => {
                tell(at, value.map(|copy| engine.value_of(copy)).transpose()?.map(Cow::Owned));
                Ok(None)
            }
            Step::Need(need) => Ok(Some(*need)),
            Step::Outdated => {
                overtaken.set(true);
                Ok(None)
            }
        }
    };
    let mut waiting: Vec<Waiting> = Vec::new();
    for at in lacking {
        let mut walk = Walk::default();
        if let Some(need) = step(at, &mut walk, None)? {
            waiting.push(Waiting { at, walk, need, done: false });
        }
        // Memtables are looked at here, so it does not come later.
        if overtaken.get() {
            return Ok(false);
        }
    }
    let most = bytes_at_once(engine.options.cache_bytes);
    while !waiting.is_empty() {
        waiting.sort_unstable_by_key(Waiting::block);
        let mut rest = &mut waiting[..];
        while !rest.is_empty() {
            let group;
            (group, rest) = rest.split_at_mut(group_len(rest, most));
            let blocks = || group.chunk_by(|a, b| a.block() == b.block());
            let needs: Vec<&Need> = blocks().map(|same| &same[0].need).collect();
            let pins = blocks::load_many(engine, &needs)?;
            for (same, pin) in group.chunk_by_mut(|a, b| a.block() == b.block()).zip(pins) {
                for w in same {
                    match step(w.at, &mut w.walk, Some(pin.clone()))? {
                        Some(need) => w.need = need,
                        None => w.done = true,
                    }
                }
            }
        }
        waiting.retain(|w| !w.done);
    }
    Ok(true)
}

/// Tells what memory can answer; the places of the other keys, or `None` if the sequence was overtaken.
fn from_memory(
    engine: &Engine,
    view: View<'_>,
    keys: &[impl AsRef<[u8]>],
    seq: Seq,
    tell: &mut impl FnMut(usize, Option<Cow<'_, [u8]>>),
) -> Result<Option<Vec<usize>>> {
    if keys.len() < 2 {
        return Ok(Some((0..keys.len()).collect()));
    }
    let (mut lacking, mut large, mut failed, mut overtaken) = (Vec::new(), Vec::new(), None, false);
    for (chunk, some) in keys.chunks(HELD).enumerate() {
        let hold = engine.cache.hold();
        let numbered = (chunk * HELD..).zip(some).map(|(at, key)| (at, view, key.as_ref()));
        turns::look_up(&hold, seq, numbered, |at, said| match said {
            Ok(Said::Value(Some((Kind::ValueRef, encoded)))) => large.push((at, encoded.into_owned())),
            Ok(Said::Value(value)) => tell(at, value.map(|(_, bytes)| bytes)),
            Ok(Said::NotAll) => lacking.push(at),
            Ok(Said::Outdated) => overtaken = true,
            Err(e) => failed = Some(e),
        });
        drop(hold);
        if let Some(e) = failed {
            return Err(e);
        }
        if overtaken {
            return Ok(None);
        }
        for (at, encoded) in large.drain(..) {
            tell(at, Some(Cow::Owned(engine.read_large(&encoded)?)));
        }
    }
    Ok(Some(lacking))
}

/// How many of `waiting`, which are sorted by block, are served together.
fn group_len(waiting: &[Waiting], most_bytes: usize) -> usize {
    let (mut len, mut bytes) = (0, 0);
    for (n, same) in waiting.chunk_by(|a, b| a.block() == b.block()).enumerate() {
        let need = &same[0].need;
        bytes += need.part.bytes(&need.extent);
        if n == READS || (n > 0 && bytes > most_bytes) {
            break;
        }
        len += same.len();
    }
    len
}
