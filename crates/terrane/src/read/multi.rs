//! Many point lookups at once: what memory holds is answered at once; what it does not hold is fetched together, each
//! block once, with the device's queue filled, and the lookups go on.

use std::collections::HashMap;

use terrane_base::Result;
use terrane_cache::{FrameKey, Pin};

use crate::db::engine::Engine;
use crate::db::table::Table;
use crate::read::blocks;
use crate::read::lookup::{Found, Need, Step, View, Walk};

/// One lookup that waits for a block.
struct Waiting {
    at: usize,
    walk: Walk,
    need: Need,
}

/// The values of `keys` at `seq`, in their order. The caller keeps `seq` registered or passes the newest.
pub(crate) fn multi_get(
    engine: &Engine,
    table: &Table,
    keys: &[impl AsRef<[u8]>],
    seq: Option<u64>,
) -> Result<Vec<Option<Vec<u8>>>> {
    let state = table.state_full();
    let seq = seq.unwrap_or_else(|| engine.visible());
    let mut out: Vec<Option<Vec<u8>>> = Vec::new();
    out.resize_with(keys.len(), || None);
    let mut waiting: Vec<Waiting> = Vec::new();
    let view = View { state: &state, cache: &engine.cache, heat: &engine.heat, rows: engine.rows.as_ref() };
    let step = |at: usize, mut walk: Walk, pin: Option<Pin>, out: &mut Vec<Option<Vec<u8>>>| {
        let key = keys[at].as_ref();
        let mut supplied = pin;
        let mut found = Some(|f: Found<'_>| engine.copy_value(&f));
        let s = walk.advance(view, key, seq, &mut supplied, &mut found)?;
        match s {
            Step::Done(None) => Ok(None),
            Step::Done(Some(value)) => {
                out[at] = Some(value?);
                Ok(None)
            }
            Step::Need(need) => Ok(Some(Waiting { at, walk, need })),
        }
    };
    for at in 0..keys.len() {
        let w: Result<Option<Waiting>> = step(at, Walk::default(), None, &mut out);
        waiting.extend(w?);
    }
    while !waiting.is_empty() {
        let mut needs: HashMap<FrameKey, Need> = HashMap::new();
        for w in &waiting {
            needs.entry(w.need.part.key(&w.need.extent)).or_insert_with(|| w.need.clone());
        }
        let pins = blocks::load_many(engine, needs)?;
        let mut still = Vec::new();
        for w in waiting {
            let pin = pins.get(&w.need.part.key(&w.need.extent)).cloned();
            still.extend(step(w.at, w.walk, pin, &mut out)?);
        }
        waiting = still;
    }
    Ok(out)
}
