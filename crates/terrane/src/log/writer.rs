//! Writing frames: the current segment, those behind it, and spare files ahead of it.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::log::format::{FRAME_HEADER, FrameHeader, LOG_SECTOR, SegmentHeader};
use terrane_base::{Lsn, Result};
use terrane_format::checksum::salted_crc;
use terrane_media::{AlignedBuf, File, Media};

use crate::log::segment::{Segment, prepare};
use crate::log::{LogOptions, Recovered};

/// Largest payload of a frame.
const MAX_PAYLOAD: u64 = (1 << 20) - LOG_SECTOR as u64;
/// Spare files kept when segments are released; more are removed.
const KEEP_SPARES: usize = 2;
/// Commits that may be on their way when room is checked, each taking a sector of its own.
const IN_FLIGHT: u64 = 64;

/// A segment that is full.
#[derive(Debug)]
struct Full {
    file: Arc<dyn File>,
    first: Lsn,
    end: Lsn,
}

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Writer {
    generation: u32,
    current: Segment,
    /// Where the next frame goes.
    at: u64,
    full: VecDeque<Full>,
    /// Prepared files.
    spares: Vec<Arc<dyn File>>,
    /// Files with frames that are not flushed.
    dirty: Vec<Arc<dyn File>>,
    /// Number of the next segment, and of the next file.
    next_segment: u64,
    next_file: u64,
    frame: AlignedBuf,
}

impl Writer {
    /// Begins a fresh segment of `generation` where the recovered frames end, and makes durable in it what only the tail
    /// had.
    pub(crate) fn start(
        media: &dyn Media,
        options: &LogOptions,
        generation: u32,
        recovered: Recovered,
    ) -> Result<Writer> {
        let Recovered { end, frames_end, tail, chain, mut spares, next_segment, mut next_file, .. } =
            recovered;
        let full = chain
            .into_iter()
            .map(|c| Full { file: c.0.file, first: c.0.header.first_lsn, end: c.1 })
            .collect();
        // A spare of another size is of no use.
        let mut misfits = Vec::new();
        let mut usable = Vec::new();
        for f in spares.drain(..) {
            if f.len()? == options.segment_bytes && usable.len() < KEEP_SPARES {
                usable.push(f)
            } else {
                misfits.push(f)
            }
        }
        for f in misfits {
            media.remove_file(f.path())?;
        }
        let file = match usable.pop() {
            Some(f) => f,
            None => {
                next_file += 1;
                prepare(media, &options.dir, next_file - 1, options.segment_bytes)?
            }
        };
        let header = SegmentHeader {
            generation,
            uuid: options.uuid,
            number: next_segment,
            salt: media.entropy(),
            first_lsn: frames_end,
            bytes: options.segment_bytes,
        };
        let current = Segment::begin(file, header)?;
        let mut writer = Writer {
            generation,
            dirty: vec![current.file.clone()],
            current,
            at: LOG_SECTOR as u64,
            full,
            spares: usable,
            next_segment: next_segment + 1,
            next_file,
            frame: AlignedBuf::new(),
        };
        let copy = |lsn: Lsn, buf: &mut [u8]| {
            let from = (lsn - frames_end) as usize;
            buf.copy_from_slice(&tail[from..from + buf.len()]);
            Ok(())
        };
        writer.write(media, options, frames_end, frames_end, end, copy)?;
        writer.flush()?;
        Ok(writer)
    }

    /// Writes the stream's bytes `[from, upto)` as frames. `load` fetches them.
    pub(crate) fn write(
        &mut self,
        media: &dyn Media,
        options: &LogOptions,
        durable: Lsn,
        from: Lsn,
        upto: Lsn,
        mut load: impl FnMut(Lsn, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut lsn = from;
        while lsn < upto {
            if self.at == self.current.header.bytes {
                self.roll(media, options, lsn)?;
            }
            let room = self.current.header.bytes - self.at - FRAME_HEADER as u64;
            let n = (upto - lsn).min(room).min(MAX_PAYLOAD) / 8 * 8;
            let salt = self.current.header.salt;
            self.frame.clear();
            self.frame.resize(FRAME_HEADER + n as usize);
            load(lsn, &mut self.frame[FRAME_HEADER..])?;
            let header = FrameHeader {
                generation: self.generation,
                payload_len: n as u32,
                lsn,
                durable_lsn: durable,
                payload_crc: salted_crc(salt, &self.frame[FRAME_HEADER..]),
            };
            self.frame[..FRAME_HEADER].copy_from_slice(&header.encode(salt));
            self.frame.pad_to(LOG_SECTOR);
            self.current.file.write_at(&self.frame, self.at)?;
            self.at += self.frame.len() as u64;
            if self.dirty.last().is_none_or(|f| !Arc::ptr_eq(f, &self.current.file)) {
                self.dirty.push(self.current.file.clone());
            }
            lsn += n;
        }
        Ok(())
    }

    /// Goes on in the next segment.
    fn roll(&mut self, media: &dyn Media, options: &LogOptions, lsn: Lsn) -> Result<()> {
        let file = match self.spares.pop() {
            Some(f) => f,
            None => self.prepare_one(media, options)?,
        };
        let header = SegmentHeader {
            number: self.next_segment,
            salt: media.entropy(),
            first_lsn: lsn,
            bytes: options.segment_bytes,
            ..self.current.header
        };
        self.next_segment += 1;
        let next = Segment::begin(file, header)?;
        let old = std::mem::replace(&mut self.current, next);
        self.full.push_back(Full { file: old.file, first: old.header.first_lsn, end: lsn });
        self.at = LOG_SECTOR as u64;
        Ok(())
    }

    fn prepare_one(&mut self, media: &dyn Media, options: &LogOptions) -> Result<Arc<dyn File>> {
        let number = self.next_file;
        self.next_file += 1;
        prepare(media, &options.dir, number, options.segment_bytes)
    }

    /// Flushes everything written. After an error nothing is known about it.
    pub(crate) fn flush(&mut self) -> Result<()> {
        for f in &self.dirty {
            f.sync()?;
        }
        self.dirty.clear();
        Ok(())
    }

    /// Room for what may be on its way: the whole tail, and a sector for each commit that wants one of its own.
    fn wanted(options: &LogOptions) -> u64 {
        options.tail_bytes as u64 * 2 + IN_FLIGHT * LOG_SECTOR as u64
    }

    /// Whether more spare files are wanted.
    pub(crate) fn is_short(&self, options: &LogOptions) -> bool {
        let left = self.current.header.bytes - self.at;
        let spare = (options.segment_bytes - LOG_SECTOR as u64) * self.spares.len() as u64;
        left + spare < Self::wanted(options)
    }

    /// Prepares files until there is room for what may be on its way.
    pub(crate) fn prepare_spares(&mut self, media: &dyn Media, options: &LogOptions) -> Result<()> {
        while self.is_short(options) {
            let f = self.prepare_one(media, options)?;
            self.spares.push(f);
        }
        Ok(())
    }

    pub(crate) fn oldest_lsn(&self) -> Lsn {
        self.full.front().map_or(self.current.header.first_lsn, |f| f.first)
    }

    /// Recycles segments that end at or below `lsn`.
    pub(crate) fn release_before(&mut self, media: &dyn Media, lsn: Lsn) -> Result<()> {
        while let Some(f) = self.full.front()
            && f.end <= lsn
        {
            let Some(f) = self.full.pop_front() else { break };
            self.dirty.retain(|d| !Arc::ptr_eq(d, &f.file));
            if self.spares.len() < KEEP_SPARES && f.file.len()? == self.current.header.bytes {
                self.spares.push(f.file);
            } else {
                media.remove_file(f.file.path())?;
            }
        }
        Ok(())
    }
}
