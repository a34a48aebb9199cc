//! Writes the log stream into segments, as frames.
//!
//! One caller at a time (the engine holds a mutex around it). Frames follow one another without gaps: in a segment at
//! sector boundaries, across segments at the LSN where the last one ended.
//!
//! # A sector that is written again
//! A frame of one sector that was flushed is continued, while there is room in it: the next flush writes it again with more
//! payload, to the sector behind it; the one after that, again with more, to the first sector, and so on, in turn. So
//! many small flushes share two sectors instead of taking one each. Of the two the one that is written holds nothing that
//! the other, flushed by then, does not hold: a torn write can only damage what nobody was promised, or what is
//! elsewhere (design rule 4). All other sectors are written once in a use of the segment.

use std::sync::Arc;

use terrane_base::{Error, Lsn, Result};
use terrane_format::checksum::key_hash;
use terrane_format::log::{FRAME_HEADER, FrameHeader, LOG_SECTOR, SegmentHeader, frame_len};
use terrane_media::{AlignedBuf, File, Media};

use super::LogOptions;
use super::pool::Pool;
use super::segment::Segment;

/// A segment that holds part of the log, from `first_lsn` to where the next one begins.
#[derive(Clone, Debug)]
pub(super) struct Used {
    pub(super) segment: Segment,
    pub(super) first_lsn: Lsn,
}

#[derive(Debug)]
pub(super) struct Writer {
    media: Arc<dyn Media>,
    options: LogOptions,
    generation: u32,
    generation_start: Lsn,
    current: Option<Current>,
    /// Taken from the pool, to become the current one.
    next: Option<Segment>,
    /// Everything below is in frames.
    written: Lsn,
    /// Written to since their last sync.
    dirty: Vec<Arc<dyn File>>,
    /// The last frame, as it was written.
    buf: AlignedBuf,
    /// That frame, if it takes one sector.
    last: Option<Short>,
}

/// A frame of one sector.
#[derive(Clone, Copy, Debug)]
struct Short {
    lsn: Lsn,
    payload: usize,
    /// Where it is written next, with more payload: the sector behind it and its own in turn.
    next: u64,
    /// Where it was written last.
    at: u64,
    /// It is flushed there.
    flushed: bool,
}

#[derive(Debug)]
struct Current {
    segment: Segment,
    salt: u64,
    offset: u64,
}

/// The header that makes a generation valid, not yet written.
#[derive(Debug)]
pub(super) struct Opening {
    segment: Segment,
    header: SegmentHeader,
}

impl Opening {
    /// The segment, as part of the log.
    pub(super) fn used(&self) -> Used {
        Used { segment: self.segment.clone(), first_lsn: self.header.first_lsn }
    }
}

impl Writer {
    /// Begins a generation at `start`. Its first segment has no header yet, so that all of it is void until
    /// [`Writer::commit_generation`] has run.
    pub(super) fn begin_generation(
        media: Arc<dyn Media>,
        options: LogOptions,
        pool: &Pool,
        generation: u32,
        start: Lsn,
        durable: Lsn,
    ) -> Result<(Writer, Opening)> {
        let mut writer = Writer {
            media,
            options,
            generation,
            generation_start: start,
            current: None,
            next: None,
            written: start,
            dirty: Vec::new(),
            buf: AlignedBuf::new(),
            last: None,
        };
        writer.reserve(pool, 0)?;
        match writer.next_segment(pool, durable) {
            Some((segment, header)) => Ok((writer, Opening { segment, header })),
            None => Err(Error::corruption("no segment to begin a generation of the log with")),
        }
    }

    /// Makes the generation valid with all that was written so far, in one step: a header sector.
    pub(super) fn commit_generation(&mut self, opening: &Opening) -> Result<()> {
        self.sync()?;
        opening.segment.write_header(&opening.header)?;
        opening.segment.file.sync()
    }

    /// Everything below is in frames.
    pub(super) fn written(&self) -> Lsn {
        self.written
    }

    /// Sees to it that the next frame, of `len` bytes of the stream, has a place. Failing here changes nothing: it may be
    /// tried again.
    pub(super) fn reserve(&mut self, pool: &Pool, len: u64) -> Result<()> {
        if self.room() < LOG_SECTOR as u64 && self.next.is_none() && self.continued(len).is_none() {
            self.next = Some(pool.take()?);
        }
        Ok(())
    }

    /// Takes the stream on by `len` bytes, or as many as fit into one frame of at most `most` bytes: `load` fills a
    /// buffer with the stream from an LSN on. The place was reserved. Returns a segment newly taken into use. After an
    /// error it is unknown what the segment holds, and the writer must not be used any more.
    pub(super) fn frame(
        &mut self,
        pool: &Pool,
        durable: Lsn,
        len: u64,
        most: usize,
        load: impl FnOnce(Lsn, &mut [u8]) -> Result<()>,
    ) -> Result<Option<Used>> {
        let mut new = None;
        let (begun, n) = match self.continued(len) {
            Some(last) => (last, len as usize),
            None => {
                if self.room() < LOG_SECTOR as u64
                    && let Some((segment, header)) = self.next_segment(pool, durable)
                {
                    segment.write_header(&header)?;
                    new = Some(Used { segment, first_lsn: header.first_lsn });
                }
                let room = self.room();
                let Some(current) = self.current.as_ref().filter(|_| room >= LOG_SECTOR as u64) else {
                    return Err(Error::corruption("a log frame was to be written without a place for it"));
                };
                let next = current.offset;
                self.buf.clear();
                let fresh = Short {
                    lsn: self.written,
                    payload: 0,
                    next,
                    at: next + LOG_SECTOR as u64,
                    flushed: false,
                };
                (fresh, len.min(most as u64).min(room - FRAME_HEADER as u64) as usize)
            }
        };
        let Some(current) = self.current.as_mut() else {
            return Err(Error::corruption("a log frame was to be written into no segment"));
        };
        let payload = begun.payload + n;
        self.buf.resize(frame_len(payload) as usize);
        let bytes = &mut self.buf[FRAME_HEADER..FRAME_HEADER + payload];
        load(self.written, &mut bytes[begun.payload..])?;
        let header = FrameHeader::new(current.salt, self.generation, begun.lsn, durable, bytes);
        self.buf[..FRAME_HEADER].copy_from_slice(&header.encode(current.salt));
        current.segment.file.write_at(&self.buf, begun.next)?;
        current.offset = current.offset.max(begun.next + self.buf.len() as u64);
        let written = Short { payload, at: begun.next, next: begun.at, flushed: false, ..begun };
        self.last = (self.buf.len() == LOG_SECTOR).then_some(written);
        self.written = header.end();
        pool.set_current_room(self.room());
        Ok(new)
    }

    /// The last frame, if `len` bytes more go into it and it can be written again.
    fn continued(&self, len: u64) -> Option<Short> {
        let sector = LOG_SECTOR as u64;
        self.last.filter(|last| {
            last.flushed
                && (FRAME_HEADER + last.payload) as u64 + len <= sector
                && last.next + sector <= self.options.segment_bytes
        })
    }

    /// Flushes all segments that were written to.
    pub(super) fn sync(&mut self) -> Result<()> {
        for file in &self.dirty {
            file.sync()?;
        }
        self.dirty.clear();
        if let Some(last) = &mut self.last {
            last.flushed = true;
        }
        // The current segment is dirty again with its next frame, which comes before the next call here.
        if let Some(c) = &self.current {
            self.dirty.push(c.segment.file.clone());
        }
        Ok(())
    }

    fn room(&self) -> u64 {
        self.current.as_ref().map_or(0, |c| self.options.segment_bytes - c.offset)
    }

    /// A number for this use of a segment alone. Random bits would do; the rest keeps uses apart even where a machine draws
    /// the same bits again after a reset.
    fn draw_salt(&self, number: u64) -> u64 {
        let mut from = self.media.boot_id().to_vec();
        for n in [self.media.entropy(), number, u64::from(self.generation), self.written] {
            from.extend_from_slice(&n.to_le_bytes());
        }
        key_hash(&from)
    }

    /// Makes the reserved segment the current one; its header is the caller's to write.
    fn next_segment(&mut self, pool: &Pool, durable: Lsn) -> Option<(Segment, SegmentHeader)> {
        let segment = self.next.take()?;
        let header = SegmentHeader {
            uuid: self.options.uuid,
            number: segment.number,
            salt: self.draw_salt(segment.number),
            generation: self.generation,
            first_lsn: self.written,
            durable_lsn: durable,
            segment_bytes: self.options.segment_bytes,
            generation_start: self.generation_start,
        };
        self.dirty.push(segment.file.clone());
        let offset = LOG_SECTOR as u64;
        self.current = Some(Current { segment: segment.clone(), salt: header.salt, offset });
        self.last = None;
        pool.set_current_room(self.room());
        Some((segment, header))
    }
}
