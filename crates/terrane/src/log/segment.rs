//! Segments: files of the log, written before use, used, and used again.

use std::path::Path;
use std::sync::Arc;

use crate::log::format::{FRAME_HEADER, FrameHeader, LOG_SECTOR, SegmentHeader};
use terrane_base::{Lsn, Result};
use terrane_media::{AlignedBuf, File, Media, OpenMode};

/// Bytes written at a time while a file is prepared.
const PREPARE: usize = 1 << 20;

/// A segment in use.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) file: Arc<dyn File>,
    pub(crate) header: SegmentHeader,
}

/// The number in a segment file's name.
pub(crate) fn file_number(name: &str) -> Option<u64> {
    name.strip_prefix("log-").and_then(|n| n.parse().ok())
}

/// Makes a file of `bytes` zeros, durable with its name, so that writing to it later changes no metadata.
pub(crate) fn prepare(media: &dyn Media, dir: &Path, number: u64, bytes: u64) -> Result<Arc<dyn File>> {
    let path = dir.join(format!("log-{number:06}"));
    let made = (|| {
        let file = media.open(&path, OpenMode::CREATE_DIRECT)?;
        file.allocate(0, bytes)?;
        let zeros = AlignedBuf::zeroed(PREPARE.min(bytes as usize));
        let mut at = 0;
        while at < bytes {
            let n = (bytes - at).min(zeros.len() as u64) as usize;
            file.write_at(&zeros[..n], at)?;
            at += n as u64;
        }
        file.sync()?;
        media.sync_dir(dir)?;
        Ok(file)
    })();
    if made.is_err() {
        // Best effort: a full device should not keep half a file; the next opening removes what is left.
        let _ = media.remove_file(&path);
    }
    made
}

impl Segment {
    /// Begins a use of `file`. Not flushed: the flush of the first frames covers it.
    pub(crate) fn begin(file: Arc<dyn File>, header: SegmentHeader) -> Result<Segment> {
        file.write_at(&AlignedBuf::copy_of(&header.encode()), 0)?;
        Ok(Segment { file, header })
    }

    /// Opens a file that may be a segment of this database.
    pub(crate) fn open(
        media: &dyn Media,
        path: &Path,
        uuid: &[u8; 16],
    ) -> Result<(Arc<dyn File>, Option<Segment>)> {
        let file = media.open(path, OpenMode::DIRECT)?;
        let len = file.len()?;
        if len < LOG_SECTOR as u64 {
            return Ok((file, None));
        }
        let mut sector = AlignedBuf::zeroed(LOG_SECTOR);
        file.read_at(&mut sector, 0)?;
        let header = SegmentHeader::decode(&sector).map_err(|e| e.with_file(path))?;
        let segment = header
            .filter(|h| h.uuid == *uuid && h.bytes <= len && h.bytes % LOG_SECTOR as u64 == 0)
            .map(|header| Segment { file: file.clone(), header });
        Ok((file, segment))
    }

    /// The frame at byte `at`, whole and verified, if there is one.
    pub(crate) fn frame(&self, at: u64) -> Result<Option<(FrameHeader, AlignedBuf)>> {
        let Some(header) = self.frame_header(at)? else { return Ok(None) };
        let stored = header.stored_len() as u64;
        if at + stored > self.header.bytes {
            return Ok(None);
        }
        let mut buf = AlignedBuf::zeroed(stored as usize);
        self.file.read_at(&mut buf, at)?;
        let payload = &buf[FRAME_HEADER..FRAME_HEADER + header.payload_len as usize];
        Ok(header.verifies(payload, self.header.salt).then_some((header, buf)))
    }

    /// The frame header at byte `at`, if one verifies there.
    pub(crate) fn frame_header(&self, at: u64) -> Result<Option<FrameHeader>> {
        if at + LOG_SECTOR as u64 > self.header.bytes {
            return Ok(None);
        }
        let mut sector = AlignedBuf::zeroed(LOG_SECTOR);
        self.file.read_at(&mut sector, at)?;
        let header = FrameHeader::decode(&sector, self.header.salt)
            .map_err(|e| e.with_file(self.file.path()).with_offset(at))?;
        Ok(header.filter(|h| h.generation == self.header.generation))
    }

    /// The largest durable LSN that any frame from byte `at` on vouches for.
    pub(crate) fn proven_after(&self, mut at: u64) -> Result<Lsn> {
        let mut proven = 0;
        while at < self.header.bytes {
            let frame = self.frame_header(at)?;
            proven = proven.max(frame.map_or(0, |f| f.durable_lsn));
            at += LOG_SECTOR as u64;
        }
        Ok(proven)
    }
}
