//! Reading the log back.
//!
//! Segments are numbered in the order of their use, and each begins where the log ended when it was begun. So segment
//! `i` counts only up to the first LSN of any later one: what an older generation wrote beyond the point where a newer
//! one took over is void, and a segment that begins at or after that point is void altogether.

use std::sync::Arc;

use crate::log::format::{FRAME_HEADER, LOG_SECTOR};
use terrane_base::{Error, Lsn, Result};
use terrane_format::batch::{ENTRY_HEADER, EntryHeader, decode_header, entry_len};
use terrane_media::{File, Media};

use crate::log::segment::{Segment, file_number};
use crate::log::tail::Tail;
use crate::log::{FIRST_LSN, Log, LogOptions};

/// What the manifest knows about the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecoverFrom {
    /// Entries below are not needed.
    pub(crate) lsn: Lsn,
    /// The log was durable at least up to here.
    pub(crate) durable: Lsn,
    /// The newest generation that may have written.
    pub(crate) generation: u32,
    /// The database was closed in good order: `durable` is the end.
    pub(crate) clean: bool,
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// The end of the last whole entry.
    pub(crate) end: Lsn,
    /// The end of the last whole entry in segments, flushed; up to `end` only the tail has them.
    pub(crate) frames_end: Lsn,
    /// The bytes from `frames_end` to `end`.
    pub(crate) tail: Vec<u8>,
    /// Segments in order, each with its end.
    pub(crate) chain: Vec<(Segment, Lsn)>,
    /// Files that hold nothing needed.
    pub(crate) spares: Vec<Arc<dyn File>>,
    pub(crate) next_segment: u64,
    pub(crate) next_file: u64,
}

impl Recovered {
    /// First LSN of the oldest segment.
    pub(crate) fn oldest(&self) -> Lsn {
        self.chain.first().map_or(self.frames_end, |(s, _)| s.header.first_lsn)
    }
}

/// Receives entries in order.
pub(crate) type Sink<'a> = dyn FnMut(Lsn, &EntryHeader, &[u8]) -> Result<()> + 'a;

/// Cuts the stream into entries.
struct Parser {
    /// LSN of the first byte in `bytes`.
    at: Lsn,
    bytes: Vec<u8>,
    /// Entries below are passed over.
    from: Lsn,
}

impl Parser {
    /// Takes the stream's bytes from `lsn` on, which continues what came before or lies wholly below what is wanted.
    fn push(&mut self, lsn: Lsn, payload: &[u8], sink: &mut Sink<'_>) -> Result<()> {
        let end = lsn + payload.len() as u64;
        if end <= self.from {
            return Ok(());
        }
        if self.bytes.is_empty() && lsn <= self.from && self.at < self.from {
            self.at = self.from;
            self.bytes.extend_from_slice(&payload[(self.from - lsn) as usize..]);
        } else {
            self.bytes.extend_from_slice(payload);
        }
        let mut used = 0;
        while let Some(head) = self.bytes.get(used..used + ENTRY_HEADER) {
            let lsn = self.at + used as u64;
            let bad = |e: Error| e.context(format!("log entry at LSN {lsn}"));
            let header = decode_header(head).map_err(bad)?;
            if header.lsn != lsn {
                return Err(bad(Error::corruption(format!("it says that its LSN is {}", header.lsn))));
            }
            let len = entry_len(header.body_len as usize) as usize;
            let Some(entry) = self.bytes.get(used..used + len) else { break };
            let body = &entry[ENTRY_HEADER..ENTRY_HEADER + header.body_len as usize];
            header.check_body(body).map_err(bad)?;
            sink(lsn, &header, body)?;
            used += len;
        }
        self.bytes.drain(..used);
        self.at += used as u64;
        Ok(())
    }
}

impl Log {
    /// Reads the log: every entry from `from.lsn` on goes to `sink`, in order. Memory is bounded by the largest entry and
    /// the tail. The segments that are read are flushed, so that what was found stays.
    ///
    /// # Errors
    /// Corruption if something is missing that is known to have been durable; I/O errors.
    pub(crate) fn recover(
        media: &Arc<dyn Media>,
        options: &LogOptions,
        from: RecoverFrom,
        sink: &mut Sink<'_>,
    ) -> Result<Recovered> {
        let mut found = Recovered {
            end: 0,
            frames_end: 0,
            tail: Vec::new(),
            chain: Vec::new(),
            spares: Vec::new(),
            next_segment: 1,
            next_file: 1,
        };
        let start = from.lsn.max(FIRST_LSN);
        let mut segments = Vec::new();
        for entry in media.list(&options.dir)? {
            let Some(number) = file_number(&entry.name) else { continue };
            found.next_file = found.next_file.max(number + 1);
            match Segment::open(&**media, &options.dir.join(&entry.name), &options.uuid)? {
                (_, Some(s)) => {
                    found.next_segment = found.next_segment.max(s.header.number + 1);
                    segments.push(s);
                }
                (file, None) => found.spares.push(file),
            }
        }
        let chain = chain(segments, start, from.generation, &mut found.spares);
        let mut parser = Parser { at: 0, bytes: Vec::new(), from: start };
        let mut pos = match chain.first() {
            Some(first) if first.header.first_lsn <= start => first.header.first_lsn,
            // Nothing (of use) was ever written: right only if nothing is known to have been.
            _ => start,
        };
        if pos == start && chain.first().is_none_or(|f| f.header.first_lsn != start) && from.durable > start {
            return Err(missing(options, start, from.durable));
        }
        let mut proof = None;
        for (i, segment) in chain.iter().enumerate() {
            if segment.header.first_lsn != pos {
                found.spares.push(segment.file.clone());
                continue;
            }
            let limit = chain.get(i + 1).map_or(Lsn::MAX, |s| s.header.first_lsn);
            let (end, at) = read_segment(segment, pos, limit, &mut parser, sink)?;
            segment.file.sync()?;
            found.chain.push((segment.clone(), end));
            pos = end;
            if end < limit {
                // The log ends here, unless something proves that it went on.
                let mut proven = segment.proven_after(at)?;
                for later in &chain[i + 1..] {
                    proven = proven.max(later.proven_after(LOG_SECTOR as u64)?);
                }
                proof = Some((segment.file.path().to_owned(), at, proven.max(from.durable)));
                found.spares.extend(chain[i + 1..].iter().map(|s| s.file.clone()));
                break;
            }
        }
        // A partial entry at the end was never acknowledged as durable.
        let whole = if parser.at == 0 { pos } else { parser.at };
        found.frames_end = whole;
        found.end = whole;
        if let Some(last) = found.chain.last_mut() {
            last.1 = last.1.min(whole).max(last.0.header.first_lsn);
        }
        if !from.clean {
            read_tail(&**media, options, from.generation, &mut found, sink)?;
        }
        match proof {
            Some((path, at, proven)) if found.end < proven => Err(Error::corruption(format!(
                "the log is damaged at LSN {pos}, but was durable up to {proven}"
            ))
            .with_file(path)
            .with_offset(at)
            .with_hint("restore from a backup")),
            None if found.end < from.durable => Err(missing(options, found.end, from.durable)),
            _ => Ok(found),
        }
    }
}

fn missing(options: &LogOptions, at: Lsn, durable: Lsn) -> Error {
    Error::corruption(format!("log files are missing: LSN {at} to {durable} cannot be found"))
        .with_file(&options.dir)
        .with_hint("restore the log-* files from a backup")
}

/// The segments that count, in order; the files of the others become spares.
fn chain(mut all: Vec<Segment>, start: Lsn, newest: u32, spares: &mut Vec<Arc<dyn File>>) -> Vec<Segment> {
    all.sort_by_key(|s| s.header.number);
    let mut kept: Vec<Segment> = Vec::new();
    let mut limit = Lsn::MAX;
    while let Some(s) = all.pop() {
        let first = s.header.first_lsn;
        // Void if a later one takes over at or before its beginning; not needed if a later one reaches below `start`.
        if first >= limit || limit <= start || s.header.generation > newest {
            spares.push(s.file);
            continue;
        }
        limit = first;
        kept.push(s);
    }
    kept.reverse();
    kept
}

/// Reads frames from `pos` up to `limit`; returns where they end, as LSN and as byte of the file.
fn read_segment(
    segment: &Segment,
    mut pos: Lsn,
    limit: Lsn,
    parser: &mut Parser,
    sink: &mut Sink<'_>,
) -> Result<(Lsn, u64)> {
    let mut at = LOG_SECTOR as u64;
    while pos < limit && at < segment.header.bytes {
        let Some((frame, buf)) = segment.frame(at)? else { break };
        if frame.lsn != pos {
            break;
        }
        let n = u64::from(frame.payload_len).min(limit - pos) as usize;
        let place = |e: Error| e.with_file(segment.file.path()).with_offset(at);
        parser.push(pos, &buf[FRAME_HEADER..FRAME_HEADER + n], sink).map_err(place)?;
        pos += n as u64;
        at += frame.stored_len() as u64;
    }
    Ok((pos, at))
}

/// Entries that only the mapped tail has.
fn read_tail(
    media: &dyn Media,
    options: &LogOptions,
    newest: u32,
    found: &mut Recovered,
    sink: &mut Sink<'_>,
) -> Result<()> {
    let Some((tail, header)) = Tail::leftover(media, options, newest)? else { return Ok(()) };
    while found.tail.len() as u64 <= header.ring_bytes {
        let Some((entry, bytes)) = tail.entry(found.end, header.generation)? else { break };
        let body = &bytes[ENTRY_HEADER..ENTRY_HEADER + entry.body_len as usize];
        sink(found.end, &entry, body)?;
        found.end += bytes.len() as u64;
        found.tail.extend_from_slice(&bytes);
    }
    Ok(())
}
