//! Reads the log stream back out of the segments, frame by frame.
//!
//! Nothing is copied: a piece of the stream lies in the memory that it was read into, and a frame that windows of memory
//! cut ([`super::ahead`]) comes in several pieces, once all of it is verified.
//!
//! A frame of one sector may stand in the sector behind it as well, with more payload or with less ([`super::writer`]): of
//! the two the longer one that is good counts.
//!
//! The stream ends at the first frame that is not good and is not the end of its segment. Whether that is the end of the
//! log or damage is the caller's to decide; the stream collects the proof: every good frame *header*, on the way and
//! behind the end, says up to where the log was durable when the frame was written.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use terrane_base::{Error, Lsn, Result};
use terrane_format::log::{FRAME_HEADER, FrameHeader, LOG_SECTOR};
use terrane_media::{File, Media};

use super::ahead::Ahead;
use super::plan::Planned;

/// The stream of bytes in a row of segments.
#[derive(Debug)]
pub(super) struct Stream<'a> {
    segments: &'a [Planned],
    /// The segment being read is `segments[index]`.
    index: usize,
    reader: Option<SegmentReader<'a>>,
    ahead: Ahead<'a>,
    position: Lsn,
    durable: Lsn,
    /// Pieces of the last frame that were not asked for yet.
    pieces: VecDeque<(Lsn, Bytes)>,
}

impl<'a> Stream<'a> {
    /// The stream from the first segment's first LSN on; of no segments, an empty one at `position`.
    pub(super) fn new(media: &'a Arc<dyn Media>, segments: &'a [Planned], position: Lsn) -> Self {
        let position = segments.first().map_or(position, |s| s.header.first_lsn);
        let ahead = Ahead::new(media, segments);
        let pieces = VecDeque::new();
        Stream {
            segments,
            index: 0,
            reader: SegmentReader::new(segments, 0),
            ahead,
            position,
            durable: 0,
            pieces,
        }
    }

    /// Where the stream has come to: the end of the last frame.
    pub(super) fn position(&self) -> Lsn {
        self.position
    }

    /// What the frames seen so far prove to have been durable.
    pub(super) fn durable(&self) -> Lsn {
        self.durable
    }

    /// File and offset that were read last, for errors.
    pub(super) fn place(&self) -> Option<(&'a Arc<dyn File>, u64)> {
        self.reader.as_ref().map(|r| (&r.segment.file, r.offset))
    }

    /// The next piece of the stream and its LSN; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(Lsn, Bytes)>> {
        if self.pieces.is_empty() {
            self.next_frame()?;
        }
        Ok(self.pieces.pop_front())
    }

    /// Reads the next good frame, if there is one.
    fn next_frame(&mut self) -> Result<()> {
        while let Some(reader) = &mut self.reader {
            let limit = reader.segment.limit;
            if self.position < limit
                && let Some(payload) = reader.frame(&mut self.ahead, self.position, &mut self.durable)?
            {
                for mut piece in payload {
                    piece.truncate(usize::try_from(limit - self.position).unwrap_or(usize::MAX));
                    let lsn = self.position;
                    self.position += piece.len() as u64;
                    self.pieces.push_back((lsn, piece));
                }
                return Ok(());
            }
            if !self.next_segment()? {
                break;
            }
        }
        Ok(())
    }

    /// Goes on to the next segment if the stream goes on there.
    fn next_segment(&mut self) -> Result<bool> {
        let (Some(here), Some(next)) = (self.segments.get(self.index), self.segments.get(self.index + 1))
        else {
            return Ok(false);
        };
        let start = next.header.first_lsn;
        if start == self.position {
            self.index += 1;
            self.reader = SegmentReader::new(self.segments, self.index);
            return Ok(true);
        }
        if start > self.position && next.header.generation == here.header.generation {
            return Ok(false);
        }
        // A generation starts at or below what its predecessors hold: they were read, up to there, when it was made. And
        // within one, the writer starts a segment where the last one ended.
        let e = Error::corruption(format!(
            "the log comes to LSN {} here, but goes on at LSN {start} in {}",
            self.position,
            next.file.path().display()
        ));
        Err(self.placed(e))
    }

    /// After the end: looks at all that lies behind it for proof that the log once went on. Says whether it went on in
    /// the segment that was read last.
    pub(super) fn collect_proof(&mut self) -> Result<bool> {
        let last = self.index;
        let mut went_on = self.reader.as_ref().is_some_and(|r| r.doubtful);
        while let Some(reader) = &mut self.reader {
            while let Some(header) = reader.search(&mut self.ahead)? {
                self.durable = self.durable.max(header.durable_lsn);
                went_on |= self.index == last;
            }
            self.index += 1;
            self.reader = SegmentReader::new(self.segments, self.index);
        }
        Ok(went_on)
    }

    /// Adds file and offset to an error about what was just read.
    pub(super) fn placed(&self, e: Error) -> Error {
        match self.place() {
            Some((file, offset)) => e.with_file(file.path()).with_offset(offset),
            None => e,
        }
    }
}

/// A frame with a good header.
#[derive(Debug)]
struct Found {
    frame_len: u64,
    /// If it verifies.
    payload: Option<Vec<Bytes>>,
}

fn len_of(pieces: &[Bytes]) -> usize {
    pieces.iter().map(Bytes::len).sum()
}

/// Reads the frames of one segment.
#[derive(Debug)]
struct SegmentReader<'a> {
    segment: &'a Planned,
    index: usize,
    /// Where the next frame is.
    offset: u64,
    end: u64,
    /// What is in memory, without gaps, and where each part lies.
    windows: VecDeque<(u64, Bytes)>,
    /// The last frame, or one of its two places, had a good header and does not verify.
    doubtful: bool,
}

impl<'a> SegmentReader<'a> {
    fn new(segments: &'a [Planned], index: usize) -> Option<Self> {
        let segment = segments.get(index)?;
        let (offset, end) = (LOG_SECTOR as u64, segment.end());
        Some(SegmentReader { segment, index, offset, end, windows: VecDeque::new(), doubtful: false })
    }

    /// The payload of the frame at `position`, which stands at the current offset, if it is good; moves behind it. What
    /// the headers on the way prove goes to `durable`.
    fn frame(
        &mut self,
        ahead: &mut Ahead<'_>,
        position: Lsn,
        durable: &mut Lsn,
    ) -> Result<Option<Vec<Bytes>>> {
        let sector = LOG_SECTOR as u64;
        // Of a frame in two places either may be all that is left.
        let (skip, one) = match self.found(ahead, 0, position, durable)? {
            Some(f) => (0, Some(f)),
            None => (sector, self.found(ahead, sector, position, durable)?),
        };
        let Some(one) = one else { return Ok(None) };
        let two = match one.frame_len == sector {
            true => self.found(ahead, skip + sector, position, durable)?,
            false => None,
        };
        let end = skip + two.as_ref().map_or(one.frame_len, |two| sector + two.frame_len);
        self.doubtful = one.payload.is_none() || two.as_ref().is_some_and(|two| two.payload.is_none());
        let longest =
            [Some(one), two].into_iter().flatten().filter_map(|f| f.payload).max_by_key(|p| len_of(p));
        if longest.is_some() {
            self.offset += end;
        }
        Ok(longest)
    }

    /// The frame at `position`, if its header stands at `skip` behind the current offset.
    fn found(
        &mut self,
        ahead: &mut Ahead<'_>,
        skip: u64,
        position: Lsn,
        durable: &mut Lsn,
    ) -> Result<Option<Found>> {
        let Some(header) = self.header(ahead, skip)? else { return Ok(None) };
        *durable = header.durable_lsn.max(*durable);
        let is_next = header.lsn == position
            && header.payload_len > 0
            && header.generation == self.segment.header.generation;
        if !is_next {
            return Ok(None);
        }
        let frame_len = header.frame_len();
        self.load(ahead, skip + frame_len)?;
        let pieces = self.loaded(skip + FRAME_HEADER as u64, u64::from(header.payload_len));
        let pieces: Vec<Bytes> = pieces.collect();
        let good = header.verifies_pieces(self.segment.header.salt, pieces.iter().map(|p| &p[..]));
        Ok(Some(Found { frame_len, payload: good.then_some(pieces) }))
    }

    /// The frame header `skip` behind the current offset, if there is a good one whose frame lies within the segment.
    fn header(&mut self, ahead: &mut Ahead<'_>, skip: u64) -> Result<Option<FrameHeader>> {
        let at = self.offset + skip;
        if at >= self.end {
            return Ok(None);
        }
        self.load(ahead, skip + LOG_SECTOR as u64)?;
        let (salt, room) = (self.segment.header.salt, self.end - at);
        // Windows are whole sectors.
        let sector = self.loaded(skip, LOG_SECTOR as u64).next().unwrap_or_default();
        match FrameHeader::decode(&sector, salt) {
            Ok(h) if h.frame_len() <= room => Ok(Some(h)),
            Err(e) if e.kind() != terrane_base::ErrorKind::Corruption => {
                Err(e.with_file(self.segment.file.path()).with_offset(at))
            }
            _ => Ok(None),
        }
    }

    /// Looks for a good frame header, sector by sector, from the current offset on; moves behind its first sector.
    fn search(&mut self, ahead: &mut Ahead<'_>) -> Result<Option<FrameHeader>> {
        while self.offset < self.end {
            let found = self.header(ahead, 0)?;
            self.offset += LOG_SECTOR as u64;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Has `n` bytes from the current offset on in memory; they lie within the segment.
    fn load(&mut self, ahead: &mut Ahead<'_>, n: u64) -> Result<()> {
        let end = |(at, bytes): &(u64, Bytes)| at + bytes.len() as u64;
        while self.windows.pop_front_if(|w| end(w) <= self.offset).is_some() {}
        let mut to = self.windows.back().map_or(self.offset, end);
        while to < self.offset + n {
            let (at, bytes) = (to, ahead.read(self.index, to)?);
            to += bytes.len() as u64;
            self.windows.push_back((at, bytes));
        }
        Ok(())
    }

    /// `n` bytes from `skip` behind the current offset on, as far as they are in memory.
    fn loaded(&self, skip: u64, n: u64) -> impl Iterator<Item = Bytes> {
        let from = self.offset + skip;
        self.windows.iter().filter_map(move |(at, bytes)| {
            let end = at + bytes.len() as u64;
            let (lo, hi) = (from.clamp(*at, end), (from + n).clamp(*at, end));
            (lo < hi).then(|| bytes.slice((lo - at) as usize..(hi - at) as usize))
        })
    }
}
