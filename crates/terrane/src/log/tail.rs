//! The tail: a mapped file that holds what is committed but not yet in segments.
//!
//! ```text
//! 0      header slot 0      | one of them is current: the valid one
//! 4096   header slot 1      | of the higher generation
//! 8192   watermark
//! 12288  ring: LSN l lies at 12288 + l % ring bytes
//! ```
//!
//! # Invariants
//! * Bytes `[written, written + ring bytes)` of the stream have their places to themselves: a place is taken again only
//!   after what it held is in a segment.
//! * A slot is stored when everything below its base LSN is durable in segments, and flushed before the first entry is
//!   stored under it. The slots take turns, so at any moment one of them is whole.
//!
//! # Concurrency
//! Leaders store disjoint ranges. A drainer loads a range after it saw (acquire) the advanced LSN that the orderer
//! stored (release) once the range was filled; a leader stores over a place after it saw (acquire) the written LSN that
//! the drainer stored (release) when it had its copy in a segment.
//!
//! # After a crash
//! Of the process: the file holds every word stored. Entries are read from where the segments end until the first that
//! is not whole; if that is below the watermark, stored bytes were damaged, and that is reported. Of the machine: any
//! page may be old, so nothing in the ring is looked at (design rule 1); only the base LSN is used, which was true
//! whenever it was stored. Reading goes through `read`, never through a mapping (design rule 4).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use terrane_base::{Error, ErrorKind, Lsn, Result};
use terrane_format::log::{LOG_SECTOR, TAIL_HEADER, TailHeader, WATERMARK, Watermark};
use terrane_media::{File, Media, OpenMode, Region};

use super::LogOptions;

const SLOTS: [usize; 2] = [0, LOG_SECTOR];
const WATERMARK_AT: usize = 2 * LOG_SECTOR;
const RING_AT: usize = 3 * LOG_SECTOR;

/// Bytes in which the rest of an entry is gathered on its way into the ring behind whatever ends within a word, as the head of a prepared
/// transaction may, ...
const LARGE: usize = 1024;
/// ... and those of a small one.
const SMALL: usize = 192;

fn path(dir: &Path) -> PathBuf {
    dir.join("tail")
}

/// The tail of an open log.
#[derive(Debug)]
pub(super) struct Tail {
    region: Arc<dyn Region>,
    ring: usize,
    generation: u32,
}

impl Tail {
    /// Starts a new, empty ring for this boot of the machine; all below `base` is durable in segments.
    pub(super) fn start(media: &dyn Media, options: &LogOptions, generation: u32, base: Lsn) -> Result<Tail> {
        let path = path(&options.dir);
        let ring = options.tail_bytes;
        let len = RING_AT + ring;
        if media.exists(&path)? && media.open(&path, OpenMode::READ)?.len()? != len as u64 {
            // Mapping would refill it in place, and a crash in the middle leave a header without its ring.
            media.remove_file(&path)?;
        }
        let region = media.map(&path, len)?;
        let mut slots = [[0; TAIL_HEADER]; SLOTS.len()];
        for (slot, at) in slots.iter_mut().zip(SLOTS) {
            region.load(at, slot)?;
        }
        let [a, b] = slots.map(|s| TailHeader::decode(&s).map_or(0, |h| h.generation));
        let free = if a > b { SLOTS[1] } else { SLOTS[0] };
        let header = TailHeader {
            uuid: options.uuid,
            boot_id: media.boot_id(),
            generation,
            ring_bytes: ring as u64,
            base_lsn: base,
        };
        region.store(free, &header.encode())?;
        region.sync()?;
        Ok(Tail { region, ring, generation })
    }

    /// Stores `parts`, one behind the other and padded with zeros to a multiple of 8, from `lsn` on.
    pub(super) fn store(&self, lsn: Lsn, parts: &[&[u8]]) -> Result<()> {
        // A header and one body mostly, and then nothing has to be put together: only a last part may end within a word.
        let (mut at, mut parts) = (lsn, parts);
        while let [part, rest @ ..] = parts
            && (part.len().is_multiple_of(8) || rest.is_empty())
        {
            self.put(at, part)?;
            (at, parts) = (at + part.len() as u64, rest);
        }
        if parts.is_empty() {
            return Ok(());
        }
        let lsn = at;
        // Clearing what they are gathered in takes longer than copying a small entry.
        match parts.iter().map(|p| p.len()).sum::<usize>() {
            ..=SMALL => self.gather::<SMALL>(lsn, parts),
            _ => self.gather::<LARGE>(lsn, parts),
        }
    }

    /// As [`Tail::store`], by way of so many bytes: a multiple of 8.
    fn gather<const GATHER: usize>(&self, lsn: Lsn, parts: &[&[u8]]) -> Result<()> {
        let mut at = lsn;
        let mut gathered = [0; GATHER];
        let mut n = 0;
        for part in parts {
            let mut part = *part;
            while !part.is_empty() {
                if n == 0 && part.len() >= GATHER {
                    let whole = part.len() / 8 * 8;
                    self.put(at, &part[..whole])?;
                    at += whole as u64;
                    part = &part[whole..];
                    continue;
                }
                let take = part.len().min(GATHER - n);
                gathered[n..n + take].copy_from_slice(&part[..take]);
                n += take;
                part = &part[take..];
                if n == GATHER {
                    self.put(at, &gathered)?;
                    at += GATHER as u64;
                    (gathered, n) = ([0; GATHER], 0);
                }
            }
        }
        // With what pads the last word, which is still zero: the region then has no part of a word to put together.
        self.put(at, &gathered[..n.next_multiple_of(8)])
    }

    /// Stores `bytes` at `lsn`, a multiple of 8, around the ring's end if need be.
    fn put(&self, lsn: Lsn, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let at = self.offset(lsn);
        let (first, rest) = bytes.split_at(bytes.len().min(self.ring - at));
        self.region.store(RING_AT + at, first)?;
        if rest.is_empty() {
            return Ok(());
        }
        self.region.store(RING_AT, rest)
    }

    /// Where an LSN lies in the ring.
    fn offset(&self, lsn: Lsn) -> usize {
        (lsn % self.ring as u64) as usize
    }

    /// Copies the stream from `lsn` on. Frames cut the stream anywhere, so `lsn` may be any byte.
    pub(super) fn load(&self, lsn: Lsn, out: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < out.len() {
            let at = self.offset(lsn + done as u64);
            let skip = at % 8;
            if skip != 0 {
                let mut word = [0; 8];
                self.region.load(RING_AT + at - skip, &mut word)?;
                let n = (out.len() - done).min(8 - skip);
                out[done..done + n].copy_from_slice(&word[skip..skip + n]);
                done += n;
                continue;
            }
            let n = (out.len() - done).min(self.ring - at);
            self.region.load(RING_AT + at, &mut out[done..done + n])?;
            done += n;
        }
        Ok(())
    }

    /// Says that all entries below `lsn` are whole.
    pub(super) fn mark(&self, lsn: Lsn) -> Result<()> {
        let mark = Watermark { lsn, generation: self.generation };
        self.region.store(WATERMARK_AT, &mark.encode())
    }

    /// Withdraws the watermark: the device failed, and what can be read afterwards is what there is.
    pub(super) fn unmark(&self) -> Result<()> {
        self.region.store(WATERMARK_AT, &[0; WATERMARK])
    }
}

/// What a tail says at recovery.
#[derive(Debug)]
pub(super) struct TailImage {
    pub(super) header: TailHeader,
    /// The ring with its watermark, if it can be trusted.
    pub(super) content: Option<(RingImage, Option<Lsn>)>,
}

/// The bytes of a ring.
#[derive(Debug)]
pub(super) struct RingImage(Vec<u8>);

impl RingImage {
    /// The stream from `lsn` on, once around.
    pub(super) fn from(&self, lsn: Lsn) -> impl Iterator<Item = &[u8]> {
        let at = (lsn % self.0.len() as u64) as usize;
        [&self.0[at..], &self.0[..at]].into_iter()
    }
}

impl TailImage {
    /// Reads the tail; `None` if there is none, or none that was ever used. The ring is read only if `wanted` and if it
    /// was written under this boot of the machine.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] if it was used and its header is damaged.
    pub(super) fn read(media: &dyn Media, options: &LogOptions, wanted: bool) -> Result<Option<TailImage>> {
        let path = path(&options.dir);
        if !media.exists(&path)? {
            return Ok(None);
        }
        let file = media.open(&path, OpenMode::READ)?;
        let len = file.len()?;
        if len < RING_AT as u64 {
            return Ok(None);
        }
        let read = |at, n| {
            let mut bytes = vec![0; n];
            file.read_at(&mut bytes, at as u64).map(|()| bytes)
        };
        let mark = Watermark::decode(&read(WATERMARK_AT, WATERMARK)?);
        let mut newest: Option<TailHeader> = None;
        for at in SLOTS {
            match TailHeader::decode(&read(at, TAIL_HEADER)?) {
                Ok(h) if h.uuid == options.uuid && newest.is_none_or(|n| n.generation < h.generation) => {
                    newest = Some(h);
                }
                Err(e) if e.kind() != ErrorKind::Corruption => return Err(e.with_file(&path)),
                _ => {}
            }
        }
        // A watermark is stored under a header that is flushed already.
        let marked = mark.map_or(0, |m| m.generation);
        if newest.map_or(0, |h| h.generation) < marked {
            let what = format!("the log's tail has no good header of generation {marked}, but was in use");
            return Err(damaged(&*file, &what));
        }
        let Some(header) = newest else { return Ok(None) };
        if !wanted || header.boot_id != media.boot_id() {
            return Ok(Some(TailImage { header, content: None }));
        }
        if header.ring_bytes == 0 || header.ring_bytes != len - RING_AT as u64 {
            return Err(damaged(&*file, "the log's tail has not the length that its header says"));
        }
        let ring = RingImage(read(RING_AT, header.ring_bytes as usize)?);
        let mark = mark.filter(|m| m.generation == header.generation).map(|m| m.lsn);
        Ok(Some(TailImage { header, content: Some((ring, mark)) }))
    }
}

#[cold]
fn damaged(file: &dyn File, what: &str) -> Error {
    Error::corruption(what).with_file(file.path()).with_offset(0)
}
