//! Which segment files make up the log, and in which order: decided from their headers alone.
//!
//! Order is by (generation, first LSN); numbers in names mean nothing, since files are used again and again. Left aside are
//! * files without a good header: prepared, or being taken into use when the machine stopped;
//! * generations whose first segment is missing: recovery was cut off before it had made the generation valid;
//! * segments at or above the start of a later generation: void (design rule 3);
//! * segments that end at or below the oldest LSN needed: let go of, or about to be.
//!
//! All of these may be used again, but each good header among them still counts as proof of what it knew to be durable.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_base::{Error, ErrorKind, Lsn, Result};
use terrane_format::log::{LOG_SECTOR, SegmentHeader};
use terrane_media::{AlignedBuf, File, Media, OpenMode};

use super::segment::{name, parse_name, path};
use super::{LogOptions, RecoverFrom};

/// Absent files that are named at most.
const MOST_ABSENT: u64 = 64;

/// A segment that holds part of the log.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) file: Arc<dyn File>,
    pub(super) header: SegmentHeader,
    pub(super) len: u64,
    /// What it holds from here on is void.
    pub(super) limit: Lsn,
}

impl Planned {
    /// Where frames end at the latest: a file may have been cut short.
    pub(super) fn end(&self) -> u64 {
        let sector = LOG_SECTOR as u64;
        self.len.min(self.header.segment_bytes) / sector * sector
    }

    pub(super) fn unused(&self) -> Unused {
        Unused { number: self.header.number, len: self.len, blank: false }
    }
}

/// The log's segments, in order.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) segments: Vec<Planned>,
    /// All other segment files.
    pub(super) unused: Vec<Unused>,
    /// The highest number of any file.
    pub(super) last_number: u64,
    /// Files below that number that are not there: removed for good when the log shrank, or lost.
    pub(super) absent: Vec<PathBuf>,
    /// The highest generation in any header.
    pub(super) generation: u32,
    /// The log is known to have been durable up to here.
    pub(super) durable: Lsn,
}

/// A segment file that holds nothing needed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unused {
    pub(super) number: u64,
    pub(super) len: u64,
    /// It has no good header, so it can hold nothing needed whatever a power failure takes back.
    pub(super) blank: bool,
}

/// Looks at all segment files of a database and plans what to read.
///
/// # Errors
/// [`ErrorKind::Corruption`] if the segments that are there begin above `from.lsn`, or if one belongs
/// elsewhere.
pub(super) fn plan(media: &dyn Media, options: &LogOptions, from: &RecoverFrom) -> Result<Plan> {
    let mut plan = Plan {
        segments: Vec::new(),
        unused: Vec::new(),
        last_number: 0,
        absent: Vec::new(),
        generation: 0,
        durable: from.durable.max(from.lsn),
    };
    let mut present = BTreeSet::new();
    for entry in media.list(&options.dir)? {
        let Some(number) = parse_name(&entry.name).filter(|_| !entry.is_dir) else { continue };
        plan.last_number = plan.last_number.max(number);
        present.insert(number);
        match look(media, options, number, entry.len)? {
            None => plan.unused.push(Unused { number, len: entry.len, blank: true }),
            Some((file, header)) => {
                plan.generation = plan.generation.max(header.generation);
                plan.durable = plan.durable.max(header.durable_lsn);
                plan.segments.push(Planned { file, header, len: entry.len, limit: Lsn::MAX });
            }
        }
    }
    // Numbers are given out in order, so few can be absent; a stray file of a huge number must not make many.
    let below = plan.last_number.min(present.len() as u64 + MOST_ABSENT);
    plan.absent = (1..below).filter(|n| !present.contains(n)).map(|n| path(&options.dir, n)).collect();
    plan.choose(from.lsn, &options.dir)?;
    Ok(plan)
}

/// The header of a segment file, if it has a good one.
fn look(
    media: &dyn Media,
    options: &LogOptions,
    number: u64,
    len: u64,
) -> Result<Option<(Arc<dyn File>, SegmentHeader)>> {
    if len < LOG_SECTOR as u64 {
        return Ok(None);
    }
    let path = path(&options.dir, number);
    let file = media.open(&path, OpenMode { direct: true, ..OpenMode::READ })?;
    let mut sector = AlignedBuf::zeroed(LOG_SECTOR);
    file.read_at(&mut sector, 0)?;
    match SegmentHeader::decode_sector(&sector) {
        Ok(header) if header.uuid == options.uuid && header.number == number => Ok(Some((file, header))),
        Ok(header) => {
            let whose = if header.uuid == options.uuid { "this" } else { "another" };
            let number = header.number;
            Err(Error::corruption(format!("this log segment is number {number} of {whose} database"))
                .with_file(&path)
                .with_hint("a file was copied or renamed by hand; move it out of the database's directory"))
        }
        Err(e) if e.kind() != ErrorKind::Corruption => Err(e.with_file(&path)),
        Err(_) => Ok(None),
    }
}

impl Plan {
    /// A part of the log is in none of the files: says which file that was, as far as it can be told.
    pub(super) fn missing(&self, what: String, dir: &Path) -> Error {
        let next = path(dir, self.last_number + 1);
        let called = |p: &PathBuf| p.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (file, told) = match &self.absent[..] {
            [] => (&next, format!("none of the log's files has it, {} may have had it", self.next_name())),
            [one] => (one, format!("{} is not there", called(one))),
            [first, ..] => {
                let names: Vec<String> = self.absent.iter().map(called).collect();
                (first, format!("of {}, which are not there, one had it", names.join(", ")))
            }
        };
        Error::corruption(format!("{what}: {told}")).with_file(file).with_hint(
            "put that file back where it was; if it is lost, restore all of the database from a backup",
        )
    }

    /// The name of the file behind the last one: the log may have gone on there.
    pub(super) fn next_name(&self) -> String {
        name(self.last_number + 1)
    }

    /// Orders the segments and drops those that hold nothing needed from `oldest` on.
    fn choose(&mut self, oldest: Lsn, dir: &Path) -> Result<()> {
        let headers: Vec<SegmentHeader> = self.segments.iter().map(|s| s.header).collect();
        // A first segment is let go of only when all of it is older than what is needed.
        let valid = |h: &SegmentHeader| {
            h.generation_start < oldest
                || headers.iter().any(|o| o.generation == h.generation && o.first_lsn == h.generation_start)
        };
        let limit = |h: &SegmentHeader| {
            let later = headers.iter().filter(|o| o.generation > h.generation && valid(o));
            later.map(|o| o.generation_start).min().unwrap_or(Lsn::MAX)
        };
        let all = std::mem::take(&mut self.segments);
        for mut s in all {
            s.limit = limit(&s.header);
            if valid(&s.header) && s.header.first_lsn < s.limit {
                self.segments.push(s);
            } else {
                self.unused.push(s.unused());
            }
        }
        self.segments.sort_by_key(|s| (s.header.generation, s.header.first_lsn));
        let first = self.segments.iter().rposition(|s| s.header.first_lsn <= oldest);
        match (first, self.segments.first()) {
            (Some(i), _) => {
                let old = self.segments.drain(..i).map(|s| s.unused());
                self.unused.extend(old);
            }
            (None, None) => {}
            (None, Some(s)) => {
                let what = format!(
                    "the log begins at LSN {}, but is needed from LSN {oldest} on",
                    s.header.first_lsn
                );
                return Err(self.missing(what, dir));
            }
        }
        Ok(())
    }
}
