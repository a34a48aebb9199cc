//! Reads the log stream back out of the segments, frame by frame, with one window of memory.
//!
//! The stream ends at the first frame that is not good and is not the end of its segment. Whether that is the end of the
//! log or damage is the caller's to decide; the stream collects the proof: every good frame *header*, on the way and
//! behind the end, says up to where the log was durable when the frame was written.

use std::path::Path;

use terrane_base::{Error, Lsn, Result};
use terrane_format::log::{FrameHeader, LOG_SECTOR};
use terrane_media::AlignedBuf;

use super::plan::Planned;

/// What one read takes, unless a frame is longer.
const WINDOW: usize = 256 << 10;

/// The stream of bytes in a row of segments.
#[derive(Debug)]
pub(super) struct Stream<'a> {
    segments: &'a [Planned],
    /// The segment being read is `segments[index]`.
    index: usize,
    reader: Option<SegmentReader<'a>>,
    position: Lsn,
    durable: Lsn,
}

impl<'a> Stream<'a> {
    /// The stream from the first segment's first LSN on; of no segments, an empty one at `position`.
    pub(super) fn new(segments: &'a [Planned], position: Lsn) -> Self {
        let position = segments.first().map_or(position, |s| s.header.first_lsn);
        let reader = segments.first().map(SegmentReader::new);
        Stream { segments, index: 0, reader, position, durable: 0 }
    }

    /// Where the stream has come to.
    pub(super) fn position(&self) -> Lsn {
        self.position
    }

    /// What the frames seen so far prove to have been durable.
    pub(super) fn durable(&self) -> Lsn {
        self.durable
    }

    /// File and offset that were read last, for errors.
    pub(super) fn place(&self) -> Option<(&'a Path, u64)> {
        self.reader.as_ref().map(|r| (r.segment.file.path(), r.offset))
    }

    /// The next piece of the stream and its LSN; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(Lsn, &[u8])>> {
        let Some((header, n)) = self.next_frame()? else { return Ok(None) };
        match &mut self.reader {
            Some(reader) => Ok(Some((header.lsn, reader.take(&header, n)?))),
            None => Ok(None),
        }
    }

    /// The next good frame, which the reader stands at, and how much of its payload counts.
    fn next_frame(&mut self) -> Result<Option<(FrameHeader, usize)>> {
        while let Some(reader) = &mut self.reader {
            let limit = reader.segment.limit;
            if self.position < limit
                && let Some(header) = reader.header()?
            {
                self.durable = self.durable.max(header.durable_lsn);
                let good = header.lsn == self.position
                    && header.payload_len > 0
                    && header.generation == reader.segment.header.generation
                    && reader.payload_verifies(&header)?;
                if good {
                    self.position = header.end().min(limit);
                    return Ok(Some((header, (self.position - header.lsn) as usize)));
                }
            }
            if !self.next_segment()? {
                break;
            }
        }
        Ok(None)
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
            self.reader = Some(SegmentReader::new(next));
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
        let mut went_on = false;
        while let Some(reader) = &mut self.reader {
            while let Some(header) = reader.search()? {
                self.durable = self.durable.max(header.durable_lsn);
                went_on |= self.index == last;
            }
            self.index += 1;
            self.reader = self.segments.get(self.index).map(SegmentReader::new);
        }
        Ok(went_on)
    }

    /// Adds file and offset to an error about what was just read.
    pub(super) fn placed(&self, e: Error) -> Error {
        match self.place() {
            Some((path, offset)) => e.with_file(path).with_offset(offset),
            None => e,
        }
    }
}

/// Reads the frames of one segment.
#[derive(Debug)]
struct SegmentReader<'a> {
    segment: &'a Planned,
    /// Where the next frame is.
    offset: u64,
    end: u64,
    window: AlignedBuf,
    window_at: u64,
}

impl<'a> SegmentReader<'a> {
    fn new(segment: &'a Planned) -> Self {
        let sector = LOG_SECTOR as u64;
        let end = segment.len.min(segment.header.segment_bytes) / sector * sector;
        SegmentReader { segment, offset: sector, end, window: AlignedBuf::new(), window_at: 0 }
    }

    /// The frame header at the current offset, if there is a good one whose frame lies within the segment.
    fn header(&mut self) -> Result<Option<FrameHeader>> {
        if self.offset >= self.end {
            return Ok(None);
        }
        let (salt, room) = (self.segment.header.salt, self.end - self.offset);
        match FrameHeader::decode(self.bytes(LOG_SECTOR)?, salt) {
            Ok(h) if h.frame_len() <= room => Ok(Some(h)),
            Err(e) if e.kind() != terrane_base::ErrorKind::Corruption => {
                Err(e.with_file(self.segment.file.path()).with_offset(self.offset))
            }
            _ => Ok(None),
        }
    }

    fn payload_verifies(&mut self, header: &FrameHeader) -> Result<bool> {
        let salt = self.segment.header.salt;
        let frame = self.bytes(header.frame_len() as usize)?;
        Ok(header.verifies(salt, payload(frame, header)))
    }

    /// The first `n` bytes of a verified frame's payload; goes on to the next frame.
    fn take(&mut self, header: &FrameHeader, n: usize) -> Result<&[u8]> {
        let at = self.offset;
        self.bytes(header.frame_len() as usize)?;
        self.offset = at + header.frame_len();
        let start = (at - self.window_at) as usize;
        Ok(&payload(&self.window[start..], header)[..n])
    }

    /// Looks for a good frame header, sector by sector, from the current offset on; moves behind its first sector.
    fn search(&mut self) -> Result<Option<FrameHeader>> {
        while self.offset < self.end {
            let found = self.header()?;
            self.offset += LOG_SECTOR as u64;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// `n` bytes at the current offset; they lie within the segment.
    fn bytes(&mut self, n: usize) -> Result<&[u8]> {
        let window_end = self.window_at + self.window.len() as u64;
        if self.offset < self.window_at || self.offset + n as u64 > window_end {
            let len = (self.end - self.offset).min(n.max(WINDOW) as u64);
            self.window.resize(len as usize);
            self.window_at = self.offset;
            if let Err(e) = self.segment.file.read_at(&mut self.window, self.offset) {
                self.window.clear();
                return Err(e);
            }
        }
        let start = (self.offset - self.window_at) as usize;
        Ok(&self.window[start..start + n])
    }
}

fn payload<'b>(frame: &'b [u8], header: &FrameHeader) -> &'b [u8] {
    let start = terrane_format::log::FRAME_HEADER;
    &frame[start..start + header.payload_len as usize]
}
