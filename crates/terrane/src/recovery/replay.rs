//! Replaying the log into memtables, in parallel.
//!
//! One thread reads and verifies entries and gathers them into chunks; background tasks insert the chunks. No order is
//! kept between chunks: an operation's sequence says where it belongs. The number of chunks in flight is bounded.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use terrane_base::{Error, ErrorKind, Lsn, Result, SubtableId};
use terrane_format::Kind;
use terrane_format::batch::{Ops, entry_len};
use terrane_format::value_ref::ValueRef;
use terrane_media::{Media, Pool, Signal};

use crate::levels::DbState;
use crate::log::{Log, LogOptions, RecoverFrom, Recovered};
use crate::memtable::Memtable;
use crate::tombstone::During;

/// Bytes of entries that one background task inserts.
const CHUNK: usize = 1 << 20;
/// Chunks in flight.
const IN_FLIGHT: usize = 8;

/// Where the records of a subtable go, and from which LSN on they are not in extents yet.
struct Target {
    memtable: Arc<Memtable>,
    persisted: Lsn,
}

/// What reader and workers share.
struct Shared {
    targets: HashMap<SubtableId, Target>,
    /// Ids at or above were never given out: a record naming one is damage, not a dropped subtable's.
    next_subtable: u32,
    in_flight: AtomicUsize,
    done: Signal,
    failed: Mutex<Option<Error>>,
    /// Large values that records refer to, each with the end of its entry.
    values: Mutex<Vec<(Lsn, ValueRef)>>,
}

/// What a replay found.
pub(crate) struct Replayed {
    pub(crate) log: Recovered,
    /// Large values that only records in the tail refer to. Those that a segment refers to were flushed before it was written.
    pub(crate) unproved: Vec<ValueRef>,
}

/// Entries for one task.
#[derive(Default)]
struct Chunk {
    bytes: Vec<u8>,
    entries: Vec<(Lsn, usize)>,
}

/// Replays everything that no extent holds into `memtables`.
pub(crate) fn replay(
    media: &Arc<dyn Media>,
    options: &LogOptions,
    state: &DbState,
    memtables: &HashMap<SubtableId, Arc<Memtable>>,
) -> Result<Replayed> {
    let targets = memtables
        .iter()
        .filter_map(|(id, m)| {
            let persisted = state.subtables.get(id)?.persisted_lsn;
            Some((*id, Target { memtable: m.clone(), persisted }))
        })
        .collect();
    let shared = Arc::new(Shared {
        targets,
        next_subtable: state.next.subtable,
        in_flight: AtomicUsize::new(0),
        done: Signal::new(),
        failed: Mutex::new(None),
        values: Mutex::default(),
    });
    let from = RecoverFrom {
        lsn: state.log.first_lsn,
        durable: state.log.durable_lsn,
        generation: state.log.generation,
        clean: state.log.clean,
    };
    let mut chunk = Chunk::default();
    let recovered = Log::recover(media, options, from, &mut |lsn, _, body| {
        chunk.bytes.extend_from_slice(body);
        chunk.entries.push((lsn, body.len()));
        if chunk.bytes.len() >= CHUNK {
            dispatch(media, &shared, std::mem::take(&mut chunk))?;
        }
        Ok(())
    });
    let sent = dispatch(media, &shared, chunk);
    // Whatever happened, no task may outlive this call.
    shared.done.wait_until(&**media, || shared.in_flight.load(Ordering::Acquire) == 0)?;
    sent?;
    if let Some(e) = shared.failed.lock().take() {
        return Err(e);
    }
    let log = recovered.map_err(|e| match e.kind() {
        ErrorKind::Corruption => e.with_hint("restore the named file, or all of the database, from a backup"),
        _ => e,
    })?;
    let mut values = std::mem::take(&mut *shared.values.lock());
    values.retain(|(end, _)| *end > log.segments_end());
    // Chunks end in any order; a seed gives one history.
    values.sort_unstable_by_key(|(end, v)| (*end, v.id));
    let unproved = values.into_iter().map(|(_, v)| v).collect();
    Ok(Replayed { log, unproved })
}

fn dispatch(media: &Arc<dyn Media>, shared: &Arc<Shared>, chunk: Chunk) -> Result<()> {
    if chunk.entries.is_empty() {
        return Ok(());
    }
    shared.done.wait_until(&**media, || shared.in_flight.load(Ordering::Acquire) < IN_FLIGHT)?;
    shared.in_flight.fetch_add(1, Ordering::AcqRel);
    let shared = shared.clone();
    media.spawn(
        Pool::Flush,
        "replay",
        Box::new(move || {
            if let Err(e) = shared.insert(&chunk) {
                shared.failed.lock().get_or_insert(e);
            }
            shared.in_flight.fetch_sub(1, Ordering::AcqRel);
            shared.done.notify_all();
        }),
    );
    Ok(())
}

impl Shared {
    fn insert(&self, chunk: &Chunk) -> Result<()> {
        let mut at = 0;
        for &(lsn, len) in &chunk.entries {
            let body = &chunk.bytes[at..at + len];
            at += len;
            for (i, op) in Ops::new(body).enumerate() {
                let op = op.map_err(|e| e.context(format!("log record at LSN {lsn}")))?;
                match self.targets.get(&op.subtable) {
                    Some(t) if lsn >= t.persisted => {
                        if op.kind == Kind::ValueRef {
                            let value = ValueRef::decode(op.value)?;
                            self.values.lock().push((lsn + entry_len(len), value));
                        }
                        let seq = lsn + 1 + i as u64;
                        t.memtable.insert(lsn, seq, op.kind, op.key, op.value, During::Replay)?;
                    }
                    Some(_) => {}
                    None if op.subtable.0 >= self.next_subtable => {
                        return Err(Error::new(
                            ErrorKind::Corruption,
                            format!(
                                "the log record at LSN {lsn} names subtable {}, which never existed",
                                op.subtable
                            ),
                        ));
                    }
                    // Dropped meanwhile.
                    None => {}
                }
            }
        }
        Ok(())
    }
}
