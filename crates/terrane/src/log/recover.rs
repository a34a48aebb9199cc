//! Reading the log after a crash or a close: segments, then tail. Changes nothing.
//!
//! # Where the log ends (design rule 3)
//! Entries are read from the segments up to the first frame that is missing or bad, then, if the tail's ring can be
//! trusted (rule 1), from the ring up to the first entry that is not whole. Then the proofs are held against it: the
//! manifest's durable LSN, that in the header of every segment, that in every good frame header wherever it lies, and
//! the tail's base. If one says that bytes at or above the end had been durable, they were damaged, and that is an
//! error; so it is if the ring was trusted and its watermark says that whole entries had been there. Otherwise the log
//! ends there, and nothing that was promised is missing: what was synced is below some proof or was readable, what was
//! not synced survives a crash of the process by the ring, and after a power failure a prefix is all that is promised.
//!
//! Bytes below the end that are not proved durable (written, but perhaps never flushed, or flushed without success) are
//! good to read but must not be built upon; [`super::start`] writes them again.

use std::sync::Arc;

use bytes::Bytes;
use terrane_base::{Error, Lsn, Result};
use terrane_format::batch::{ENTRY_HEADER, EntryHeader, EntryKind, decode_header};
use terrane_media::{File, Media};

use super::piece::{Piece, body};
use super::plan::{Plan, plan};
use super::stream::Stream;
use super::tail::TailImage;
use super::{FIRST_LSN, Log, LogOptions, RecoverFrom, Recovered};

/// Receives entries, in order.
pub(crate) type Sink<'a> = &'a mut dyn FnMut(Piece) -> Result<()>;

/// What [`super::start`] needs to go on.
#[derive(Debug)]
pub(super) struct Basis {
    pub(super) plan: Plan,
    /// Everything below is no longer needed.
    pub(super) oldest: Lsn,
    /// The stream in the segments is good up to here.
    pub(super) segments_end: Lsn,
    /// Everything below is durable in the segments.
    pub(super) durable: Lsn,
    /// The stream from `segments_end` to the end of the log, from the tail.
    pub(super) from_tail: Vec<u8>,
}

impl Log {
    /// Reads the log: calls `sink` with every entry from `from.lsn` on, in order (no-ops excepted). Changes nothing on
    /// disk, so it may be repeated, and serves `check` and read-only opens too. A directory without a log gives an
    /// empty one that ends at `from.lsn` (at least [`FIRST_LSN`]).
    ///
    /// A body that is damaged is found when it is taken out of its [`Piece`]. It comes before all that this call itself
    /// reports, and is no less an error: the log was whole there when it was written.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::Corruption`] where bytes are damaged that had been durable; whatever `sink` returns.
    pub(crate) fn recover(
        media: &Arc<dyn Media>,
        options: &LogOptions,
        from: RecoverFrom,
        sink: Sink<'_>,
    ) -> Result<Recovered> {
        let from = RecoverFrom { lsn: from.lsn.max(FIRST_LSN), ..from };
        let plan = plan(&**media, options, &from)?;
        let tail = TailImage::read(&**media, options, !from.clean)?;

        let mut entries = Entries { next: from.lsn, carried: Vec::new(), sink };
        let mut stream = Stream::new(media, &plan.segments, from.lsn);
        while let Some((lsn, bytes)) = stream.next()? {
            let fed = entries.feed(lsn, bytes, stream.place());
            fed.map_err(|e| stream.placed(e))?;
        }
        let segments_end = stream.position();
        let place = stream.place();
        // Damage, if the file that was read last goes on behind it.
        let damaged = stream.collect_proof()?;
        let mut durable = plan.durable.max(stream.durable());
        drop(stream);
        let lost = |what: String| {
            match place {
            Some((file, offset)) if damaged || plan.absent.is_empty() => Error::corruption(what)
                .with_file(file.path())
                .with_offset(offset)
                .with_hint(format!(
                    "this file is damaged, or {} is missing: restore it, or all of the database, from a backup",
                    plan.next_name()
                )),
            _ => plan.missing(what, &options.dir),
        }
        };
        if segments_end < from.lsn {
            return Err(lost(format!(
                "the log ends at LSN {segments_end}, but is needed from LSN {} on",
                from.lsn
            )));
        }

        let mut from_tail = Vec::new();
        let mut generation = plan.generation;
        if let Some(tail) = &tail {
            durable = durable.max(tail.header.base_lsn);
            generation = generation.max(tail.header.generation);
            if let Some((ring, mark)) = &tail.content {
                entries.finish_from(ring.from(segments_end), tail.header.generation)?;
                if mark.is_some_and(|m| m > entries.next) {
                    return Err(lost(format!(
                        "the log ends at LSN {}, but its tail had entries up to LSN {}",
                        entries.next,
                        mark.unwrap_or_default()
                    )));
                }
                from_tail = entries.taken(segments_end, ring.from(segments_end));
            }
        }
        let end = entries.next;
        if end < durable {
            return Err(lost(format!("the log ends at LSN {end}, but was durable up to LSN {durable}")));
        }
        if generation > from.generation {
            // The manifest hears of a generation before anything is written under it.
            return Err(lost(format!(
                "the log has generation {generation}, but the manifest knows none above {}",
                from.generation
            )));
        }
        let durable = durable.min(segments_end);
        Ok(Recovered { end, basis: Basis { oldest: from.lsn, durable, segments_end, from_tail, plan } })
    }
}

/// Cuts the stream into entries.
struct Entries<'a> {
    /// Where the next entry starts.
    next: Lsn,
    /// The stream from there on, as far as it has come.
    carried: Vec<u8>,
    sink: Sink<'a>,
}

/// What stands at the front of some bytes of the stream.
enum Front {
    /// An entry of this length. Its body was not looked at.
    Entry(EntryHeader, usize),
    /// The beginning of an entry, if it goes on; this many bytes of it say more.
    Short(usize),
}

/// File and offset.
type Place<'a> = Option<(&'a Arc<dyn File>, u64)>;

impl Entries<'_> {
    /// Takes a piece of the stream out of a good frame: an entry in it that is not good is damage.
    fn feed(&mut self, lsn: Lsn, mut bytes: Bytes, place: Place<'_>) -> Result<()> {
        // The first segment may begin before what is needed.
        let wanted = self.next + self.carried.len() as u64;
        let _skipped = bytes.split_to(wanted.saturating_sub(lsn).min(bytes.len() as u64) as usize);
        if !self.carried.is_empty() {
            // What has begun in other memory is made whole there.
            while let Front::Short(whole) = front(&self.carried, self.next)? {
                if bytes.is_empty() {
                    return Ok(());
                }
                let n = bytes.len().min(whole - self.carried.len());
                self.carried.extend_from_slice(&bytes.split_to(n));
            }
            let carried = std::mem::take(&mut self.carried);
            self.give(carried.into(), place)?;
        }
        let rest = self.give(bytes, place)?;
        self.carried.extend_from_slice(&rest);
        Ok(())
    }

    /// Takes the rest of the stream out of the tail: the first entry that is not good is the end.
    fn finish_from<'b>(&mut self, ring: impl Iterator<Item = &'b [u8]>, generation: u32) -> Result<()> {
        let mut bytes = std::mem::take(&mut self.carried);
        ring.for_each(|piece| bytes.extend_from_slice(piece));
        let (mut at, mut next) = (0, self.next);
        while is_here(&bytes[at..], next, generation) {
            match front(&bytes[at..], next) {
                Ok(Front::Entry(header, len)) if header.check_body(body(&header, &bytes[at..])).is_ok() => {
                    (at, next) = (at + len, header.end());
                }
                Err(e) if e.kind() != terrane_base::ErrorKind::Corruption => return Err(e),
                _ => break,
            }
        }
        bytes.truncate(at);
        self.give(bytes.into(), None).map(drop)
    }

    /// The bytes from `start` to the end, out of `ring`, which begins at `start`.
    fn taken<'b>(&self, start: Lsn, ring: impl Iterator<Item = &'b [u8]>) -> Vec<u8> {
        let mut left = self.next.saturating_sub(start) as usize;
        let mut out = Vec::with_capacity(left);
        for piece in ring {
            let n = left.min(piece.len());
            out.extend_from_slice(&piece[..n]);
            left -= n;
        }
        out
    }

    /// Hands on the whole entries at the front of `bytes`; returns the rest.
    fn give(&mut self, bytes: Bytes, place: Place<'_>) -> Result<Bytes> {
        let (mut at, mut entries) = (0, Vec::new());
        let ended = loop {
            match front(&bytes[at..], self.next) {
                Ok(Front::Entry(header, len)) => {
                    if header.kind != EntryKind::NoOp {
                        entries.push((at, header));
                    }
                    (at, self.next) = (at + len, header.end());
                }
                Ok(Front::Short(_)) => break Ok(bytes.slice(at..)),
                Err(e) => break Err(e),
            }
        };
        // Also before an error: if one of these is damaged, that comes first.
        if !entries.is_empty() {
            let place = place.map(|(file, offset)| (file.clone(), offset));
            (self.sink)(Piece::new(bytes, entries, place))?;
        }
        ended
    }
}

/// What stands at the front of `bytes`, where the entry at `lsn` is to begin.
fn front(bytes: &[u8], lsn: Lsn) -> Result<Front> {
    if bytes.len() < ENTRY_HEADER {
        return Ok(Front::Short(ENTRY_HEADER));
    }
    let header = decode_header(bytes)?;
    if header.lsn != lsn {
        return Err(Error::corruption(format!(
            "the log entry at LSN {lsn} says that it is the one at LSN {}",
            header.lsn
        )));
    }
    let len = usize::try_from(header.entry_len()).unwrap_or(usize::MAX);
    Ok(if bytes.len() < len { Front::Short(len) } else { Front::Entry(header, len) })
}

/// Whether a ring's bytes may begin an entry at `lsn`, as opposed to what an earlier lap or life left there. Looked at
/// before anything else, so that leftovers of a newer version do not read as a newer format.
fn is_here(bytes: &[u8], lsn: Lsn, generation: u32) -> bool {
    bytes.get(8..16) == Some(&lsn.to_le_bytes()[..])
        && bytes.get(16..20) == Some(&generation.to_le_bytes()[..])
}
