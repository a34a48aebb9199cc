//! Many point lookups at once: what memory holds is answered at once, by lookups that take turns; what it does not hold is fetched
//! together, each block once, with the device's queue filled, and those lookups begin anew with it.
//!
//! # Bounds
//! Lookups that wait are taken in the order in which their blocks lie on the device, so many blocks at a time as
//! [`READS`] and [`bytes_at_once`] allow. Only those blocks are pinned, and only they may be private buffers if the cache is
//! full; a lookup that waits for its turn holds no block. So a call takes a bounded amount of memory beside its keys and
//! their values, however many keys and however small the cache.

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
    if let Some(values) = multi_get_at(engine, table, keys, None)? {
        return Ok(values);
    }
    let snapshot = engine.snapshots.register(|| engine.visible());
    multi_get_registered(engine, table, keys, snapshot.seq)
}

/// As [`multi_get`], at the registered `seq`.
pub(crate) fn multi_get_registered(
    engine: &Engine,
    table: &Table,
    keys: &[impl AsRef<[u8]>],
    seq: Seq,
) -> Result<Vec<Option<Vec<u8>>>> {
    multi_get_at(engine, table, keys, Some(seq))?.ok_or_else(|| outdated(seq))
}

/// As [`multi_get`], at the registered `seq` or else at the newest; `None` if the newest was overtaken meanwhile.
fn multi_get_at(
    engine: &Engine,
    table: &Table,
    keys: &[impl AsRef<[u8]>],
    seq: Option<Seq>,
) -> Result<Option<Vec<Option<Vec<u8>>>>> {
    // Of a dropped table the state may be the empty one.
    let state = table.state_full();
    table.check_alive()?;
    let seq = match seq {
        Some(seq) => seq,
        None => {
            let now = engine.visible();
            // After that: see `read::lookup`.
            if table.epoch() != state.epoch {
                return Ok(None);
            }
            now
        }
    };
    let mut out: Vec<Option<Vec<u8>>> = Vec::new();
    out.resize_with(keys.len(), || None);
    let view = View { state: &state, cache: &engine.cache, heat: &engine.heat, rows: engine.rows.as_ref() };
    let Some(lacking) = from_memory(engine, view, keys, seq, &mut out)? else { return Ok(None) };
    let overtaken = Cell::new(false);
    // Goes on with the lookup of key `at`; what it needs next, or nothing if it is answered.
    let mut step = |at: usize, walk: &mut Walk, mut supplied: Option<Pin>| -> Result<Option<Need>> {
        let mut found = Some(|hit: Found<'_>| Copied::from(hit));
        match walk.advance(view, keys[at].as_ref(), seq, &mut supplied, &mut found)? {
            Step::Done(value) => {
                out[at] = value.map(|copy| engine.value_of(copy)).transpose()?;
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
            return Ok(None);
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
    Ok(Some(out))
}

/// Answers what memory can answer; the places of the other keys, or `None` if the sequence was overtaken.
fn from_memory(
    engine: &Engine,
    view: View<'_>,
    keys: &[impl AsRef<[u8]>],
    seq: Seq,
    out: &mut [Option<Vec<u8>>],
) -> Result<Option<Vec<usize>>> {
    if keys.len() < 2 {
        return Ok(Some((0..keys.len()).collect()));
    }
    let (mut lacking, mut large, mut failed, mut overtaken) = (Vec::new(), Vec::new(), None, false);
    for (chunk, some) in keys.chunks(HELD).enumerate() {
        let hold = engine.cache.hold();
        let numbered = (chunk * HELD..).zip(some).map(|(at, key)| (at, view, key.as_ref()));
        turns::look_up(&hold, seq, numbered, |at, said| match said {
            Ok(Said::Value(value)) => {
                out[at] = value.map(|copy| {
                    if copy.kind == Kind::ValueRef {
                        large.push(at);
                    }
                    copy.value
                });
            }
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
        for at in large.drain(..) {
            let value = out[at].take().map(|encoded| engine.read_large(&encoded));
            out[at] = value.transpose()?;
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
