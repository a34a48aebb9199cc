//! Segment files: `log-NNNNNN` in the database's directory.
//!
//! A file serves many times over. It is created, allocated, filled with zeros, synced and its name made durable once
//! (*prepared*); after that no write to it needs space or metadata. Each use begins with a new header whose salt makes
//! void what the last use left behind; between two uses nothing is written to it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_base::Result;
use terrane_format::log::{LOG_SECTOR, SegmentHeader};
use terrane_media::{AlignedBuf, File, Media, OpenMode};

/// How much one write fills with zeros.
const PREPARE_BYTES: u64 = 1 << 20;

/// A segment file, open for writing.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) file: Arc<dyn File>,
}

/// The name of segment `number`.
pub(super) fn name(number: u64) -> String {
    format!("log-{number:06}")
}

/// The path of segment `number`.
pub(super) fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(name(number))
}

/// The number in a segment file's name; `None` for other files.
pub(super) fn parse_name(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("log-")?;
    let ours = digits.len() >= 6 && digits.bytes().all(|b| b.is_ascii_digit());
    ours.then(|| digits.parse().ok()).flatten()
}

impl Segment {
    /// Opens an existing file.
    pub(super) fn open(media: &dyn Media, dir: &Path, number: u64) -> Result<Segment> {
        let file = media.open(&path(dir, number), OpenMode::DIRECT)?;
        Ok(Segment { number, file })
    }

    /// Makes a file of `bytes` zeros, durable with its name. What it leaves behind when it fails carries no header and is
    /// taken care of at the next start.
    pub(super) fn prepare(media: &dyn Media, dir: &Path, number: u64, bytes: u64) -> Result<Segment> {
        let path = path(dir, number);
        let file = media.open(&path, OpenMode::CREATE_DIRECT)?;
        let segment = Segment { number, file };
        let filled = segment.fill(bytes).and_then(|()| media.sync_dir(dir));
        if let Err(e) = filled {
            drop(segment);
            // The space matters more than this second error: the file may be what fills the device.
            let _unremoved = media.remove_file(&path);
            return Err(e.context("preparing a log segment"));
        }
        Ok(segment)
    }

    fn fill(&self, bytes: u64) -> Result<()> {
        // First, so that a full device is found out before anything is written.
        self.file.allocate(0, bytes)?;
        let zeros = AlignedBuf::zeroed(PREPARE_BYTES.min(bytes) as usize);
        let mut at = 0;
        while at < bytes {
            let n = (bytes - at).min(zeros.len() as u64);
            self.file.write_at(&zeros[..n as usize], at)?;
            at += n;
        }
        self.file.sync()
    }

    /// Writes the header of a new use.
    pub(super) fn write_header(&self, header: &SegmentHeader) -> Result<()> {
        self.file.write_at(&AlignedBuf::copy_of(&header.encode_sector()), 0)
    }

    /// Wipes the header, durably: nobody will take the content for part of a log any more. Also makes sure that the
    /// file's space is really there, for one that was found lying about.
    pub(super) fn blank(&self, bytes: u64) -> Result<()> {
        self.file.allocate(0, bytes)?;
        self.wipe()
    }

    /// Wipes the header of a file that is to be removed.
    pub(super) fn wipe(&self) -> Result<()> {
        self.file.write_at(&AlignedBuf::zeroed(LOG_SECTOR), 0)?;
        self.file.sync()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_convert_both_ways() {
        for n in [1, 42, 999_999, 1_000_000, 123_456_789] {
            let p = path(Path::new("/db"), n);
            assert_eq!(p.file_name().and_then(|n| n.to_str()).and_then(parse_name), Some(n));
        }
        for other in
            ["log-", "log-12", "log-00000x", "data-000001", "log-99999999999999999999", "log-000001.tmp"]
        {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }
}
