//! Replaying the log into memtables, in parallel.
//!
//! One thread verifies frames and finds the entries in them, while a task reads ahead of it; other tasks verify the
//! entries' bodies and insert them. What they get is the memory that the log was read into: the first copy of a record
//! is the one in its memtable. No order is kept between tasks: an operation's sequence says where it belongs. The number
//! of chunks in flight is bounded, and with it the memory.
//!
//! Of several errors the one that comes first in the log is reported. Those of the tasks come before the reader's, who
//! has gone on.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use terrane_base::{Error, ErrorKind, Lsn, Result, SubtableId};
use terrane_format::Kind;
use terrane_format::batch::{EntryHeader, EntryKind, Ops, entry_len};
use terrane_format::prepared;
use terrane_format::value_ref::ValueRef;
use terrane_media::{Media, Pool, Signal};

use crate::levels::DbState;
use crate::log::{Log, LogOptions, Piece, RecoverFrom, Recovered, joined};
use crate::memtable::Memtable;
use crate::recovery::stages::{Doubts, Last, Stages};
use crate::recovery::target::Target;
use crate::tombstone::During;
use crate::txn::prepared::{InDoubt, values_of};

/// Bytes of entries that one background task inserts.
const CHUNK: usize = 1 << 20;
/// Chunks in flight.
const IN_FLIGHT: usize = 4;

/// What reader and workers share.
struct Shared {
    targets: HashMap<SubtableId, Target>,
    /// Makes a memtable of the subtable.
    make: MakeMemtable,
    /// Ids at or above were never given out: a record naming one is damage, not a dropped subtable's.
    next_subtable: u32,
    in_flight: AtomicUsize,
    done: Signal,
    /// The first error by LSN.
    failed: Mutex<Option<(Lsn, Error)>>,
    /// Large values that records refer to, each with the end of its entry.
    values: Mutex<Vec<(Lsn, ValueRef)>>,
    /// Numbers of those that prepares refer to, each with the end of its entry.
    prepared_values: Mutex<Vec<(Lsn, u64)>>,
    stages: Mutex<Stages>,
    /// From where to where the log lacks commits, all in all.
    gap: Mutex<Range<Lsn>>,
}

/// Makes an empty memtable for a subtable.
pub(super) type MakeMemtable = Box<dyn Fn(SubtableId) -> Memtable + Send + Sync>;

/// What a replay found.
pub(crate) struct Replayed {
    pub(crate) log: Recovered,
    /// What each subtable has beside chains: frozen, each with the number of chains that are older.
    pub(super) beside: HashMap<SubtableId, Vec<(usize, Arc<Memtable>)>>,
    /// Large values that only records in the tail refer to. Those that a segment refers to were flushed before it was written.
    pub(crate) unproved: Vec<ValueRef>,
    /// Prepared transactions that have not ended.
    pub(crate) in_doubt: Vec<InDoubt>,
    /// Large values that they need, and that others would need that were in doubt if power failed now; some may have been given
    /// up long ago. Those prepared last come first.
    pub(crate) doubtful: Vec<ValueRef>,
    /// From where to where there are commits that the log lacks; empty if it lacks none.
    pub(super) gap: Range<Lsn>,
}

/// Entries for one task.
#[derive(Default)]
struct Chunk {
    pieces: Vec<Piece>,
    /// Bytes of memory that these keep.
    memory: usize,
}

/// Replays everything that neither extents nor chains hold into the memtables of `targets`; `make` makes those that are not there yet.
pub(super) fn replay(
    media: &Arc<dyn Media>,
    options: &LogOptions,
    state: &DbState,
    targets: HashMap<SubtableId, Target>,
    make: MakeMemtable,
) -> Result<Replayed> {
    let shared = Arc::new(Shared {
        targets,
        make,
        next_subtable: state.next.subtable,
        in_flight: AtomicUsize::new(0),
        done: Signal::new(),
        failed: Mutex::new(None),
        values: Mutex::default(),
        prepared_values: Mutex::default(),
        stages: Mutex::default(),
        gap: Mutex::new(0..0),
    });
    let from = RecoverFrom::of(&state.log);
    let mut chunk = Chunk::default();
    let recovered = Log::recover(media, options, from, &mut |piece| {
        chunk.memory += piece.memory();
        chunk.pieces.push(piece);
        if chunk.memory >= CHUNK {
            dispatch(media, &shared, std::mem::take(&mut chunk))?;
        }
        Ok(())
    });
    let sent = dispatch(media, &shared, chunk);
    // Whatever happened, no task may outlive this call.
    shared.done.wait_until(&**media, || shared.in_flight.load(Ordering::Acquire) == 0)?;
    sent?;
    let failed = shared.failed.lock().take();
    let log = failed.map_or(recovered, |(_, e)| Err(e)).map_err(|e| match e.kind() {
        ErrorKind::Corruption => e.with_hint("restore the named file, or all of the database, from a backup"),
        _ => e,
    })?;
    let Doubts { in_doubt, values: doubtful } =
        std::mem::take(&mut *shared.stages.lock()).doubts(log.proved());
    let mut values = std::mem::take(&mut *shared.values.lock());
    for prepared in &in_doubt {
        let end = prepared.lsn + entry_len(prepared.body.len());
        values.extend(prepared.values.iter().map(|v| (end, v.clone())));
    }
    // What the record of a prepare in a segment refers to was flushed before, whatever the tail repeats of it.
    let mut flushed = std::mem::take(&mut *shared.prepared_values.lock());
    flushed.retain(|(end, _)| *end <= log.segments_end());
    let flushed: HashSet<u64> = flushed.into_iter().map(|(_, id)| id).collect();
    values.retain(|(end, v)| *end > log.segments_end() && !flushed.contains(&v.id));
    // Chunks end in any order; a seed gives one history.
    values.sort_unstable_by_key(|(end, v)| (*end, v.id));
    let unproved = values.into_iter().map(|(_, v)| v).collect();
    let beside = shared.targets.iter().map(|(id, t)| (*id, t.freeze(log.end))).collect();
    let gap = shared.gap.lock().clone();
    Ok(Replayed { log, beside, unproved, in_doubt, doubtful, gap })
}

fn dispatch(media: &Arc<dyn Media>, shared: &Arc<Shared>, chunk: Chunk) -> Result<()> {
    if chunk.pieces.is_empty() {
        return Ok(());
    }
    shared.done.wait_until(&**media, || shared.in_flight.load(Ordering::Acquire) < IN_FLIGHT)?;
    shared.in_flight.fetch_add(1, Ordering::AcqRel);
    let shared = shared.clone();
    media.spawn(
        Pool::Flush,
        "replay",
        Box::new(move || {
            if let Err(e) = chunk.pieces.iter().try_for_each(|p| shared.insert(p)) {
                shared.fail(e);
            }
            // The memory can be read into again before the next chunk is let in.
            drop(chunk);
            shared.in_flight.fetch_sub(1, Ordering::AcqRel);
            shared.done.notify_all();
        }),
    );
    Ok(())
}

impl Shared {
    fn fail(&self, (lsn, e): (Lsn, Error)) {
        let mut failed = self.failed.lock();
        if failed.as_ref().is_none_or(|(first, _)| lsn < *first) {
            *failed = Some((lsn, e));
        }
    }

    /// Inserts the entries of a piece. An error comes with the LSN of its entry.
    fn insert(&self, piece: &Piece) -> std::result::Result<(), (Lsn, Error)> {
        for (header, body) in piece.entries() {
            let inserted = body.and_then(|body| self.insert_entry(header, body));
            inserted.map_err(|e| {
                let e = if e.kind() == ErrorKind::Corruption { piece.placed(e) } else { e };
                (header.lsn, e)
            })?;
        }
        Ok(())
    }

    fn insert_entry(&self, header: &EntryHeader, body: &[u8]) -> Result<()> {
        let lsn = header.lsn;
        match header.kind {
            EntryKind::Batch => return self.insert_ops(lsn, body, body.len()),
            // Whatever it has was refused.
            EntryKind::NoOp => return Ok(()),
            _ => {}
        }
        if header.kind == EntryKind::Gap {
            let mut gap = self.gap.lock();
            *gap = joined(&gap, &(lsn..header.end()));
            return Ok(());
        }
        let named = |e: Error| e.context(format!("log record at LSN {lsn}"));
        let stage = prepared::decode(header.kind, body).map_err(named)?;
        let (entry, values) = match header.kind {
            EntryKind::Prepare => (
                Last::Prepared { count: header.count, body: body.to_vec() },
                values_of(stage.ops, |_| true).map_err(named)?,
            ),
            _ => (Last::Ended, Vec::new()),
        };
        let end = lsn + entry_len(body.len());
        self.prepared_values.lock().extend(values.iter().map(|v| (end, v.id)));
        self.stages.lock().see(stage.xid, lsn, end, entry, values);
        match header.kind {
            EntryKind::Commit => self.insert_ops(lsn, stage.ops, body.len()),
            _ => Ok(()),
        }
    }

    /// Inserts the operations of the entry at `lsn`, whose body has this length.
    fn insert_ops(&self, lsn: Lsn, ops: &[u8], body_len: usize) -> Result<()> {
        for (i, op) in Ops::new(ops).enumerate() {
            let op = op.map_err(|e| e.context(format!("log record at LSN {lsn}")))?;
            match self.targets.get(&op.subtable) {
                Some(t) if !t.is_persisted(lsn) => {
                    if op.kind == Kind::ValueRef {
                        // If a chain has it too: in the page cache nothing proves that it was flushed.
                        let value = ValueRef::decode(op.value)?;
                        self.values.lock().push((lsn + entry_len(body_len), value));
                    }
                    let seq = lsn + 1 + i as u64;
                    if let Some(memtable) = t.memtable(lsn, || (self.make)(op.subtable)) {
                        memtable.insert(lsn, seq, op.kind, op.key, op.value, During::Replay)?;
                    }
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
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use terrane_format::batch::{EntryHeader, EntryKind, body_crc};
    use terrane_format::manifest::LogPosition;
    use terrane_media::sim::SimMedia;

    use super::*;
    use crate::log::FIRST_LSN;

    #[test]
    fn of_two_damaged_bodies_the_first_is_reported_with_its_file() {
        let media: Arc<dyn Media> = SimMedia::new(1);
        media.create_dir_all(Path::new("/db")).unwrap();
        let options =
            LogOptions { segment_bytes: 2 << 20, tail_bytes: 1 << 20, ..LogOptions::new("/db", [7; 16]) };
        let mut state = DbState::default();
        let from = |state: &DbState| RecoverFrom {
            lsn: FIRST_LSN,
            durable: FIRST_LSN,
            generation: state.log.generation,
            clean: false,
        };
        let recovered = Log::recover(&media, &options, from(&state), &mut |_| Ok(())).unwrap();
        let log = Log::start(media.clone(), options.clone(), 1, recovered).unwrap();
        let body = vec![0; 100 << 10];
        let mut damaged = Vec::new();
        for i in 0..100 {
            let lsn = log.advanced_lsn();
            let header = EntryHeader {
                kind: EntryKind::NoOp,
                body_len: body.len() as u32,
                count: 0,
                lsn,
                generation: 1,
                body_crc: body_crc(&[&body]),
            };
            let header = match i {
                20 | 80 => {
                    damaged.push(lsn);
                    EntryHeader { kind: EntryKind::Batch, body_crc: header.body_crc ^ 1, ..header }
                }
                _ => header,
            };
            let _admission = log.admit(header.entry_len()).unwrap();
            log.write(lsn, &[&header.encode(), &body]).unwrap();
            log.advance(header.end());
        }
        log.close().unwrap();
        drop(log);

        state.log = LogPosition { generation: 1, ..state.log };
        let make: MakeMemtable = Box::new(|_| unreachable!());
        let Err(e) = replay(&media, &options, &state, HashMap::new(), make) else { panic!("no damage") };
        assert_eq!(e.kind(), ErrorKind::Corruption);
        assert!(e.message().contains(&format!("the batch at LSN {}", damaged[0])), "{e}");
        assert!(e.file().is_some() && e.offset().is_some() && e.hint().is_some(), "{e}");
    }
}
