//! The mapped tail: a ring of the newest entries, in a file of its own.

use std::sync::Arc;

use crate::log::format::{LOG_SECTOR, TailHeader};
use terrane_base::{Lsn, Result};
use terrane_format::batch::{ENTRY_HEADER, EntryHeader, decode_header, entry_len};
use terrane_media::{Media, Region};

use crate::log::LogOptions;

const NAME: &str = "tail";

/// See the module's head.
#[derive(Debug)]
pub(crate) struct Tail {
    region: Arc<dyn Region>,
    ring: u64,
}

impl Tail {
    /// Maps the tail for writing, under a new generation: what it held is void from here on.
    pub(crate) fn open(media: &dyn Media, options: &LogOptions, generation: u32) -> Result<Tail> {
        let ring = options.tail_bytes as u64;
        let region = media.map(&options.dir.join(NAME), LOG_SECTOR + options.tail_bytes)?;
        let header = TailHeader { generation, uuid: options.uuid, boot: media.boot_id(), ring_bytes: ring };
        region.store(0, &header.encode())?;
        Ok(Tail { region, ring })
    }

    fn place(&self, lsn: Lsn) -> usize {
        LOG_SECTOR + (lsn % self.ring) as usize
    }

    /// Stores the parts one behind the other from `lsn` on. All but the last are multiples of 8 long.
    pub(crate) fn store(&self, mut lsn: Lsn, parts: &[&[u8]]) -> Result<()> {
        for part in parts {
            let mut rest = *part;
            while !rest.is_empty() {
                let room = (self.ring - lsn % self.ring) as usize;
                let (now, later) = rest.split_at(rest.len().min(room));
                self.region.store(self.place(lsn), now)?;
                lsn += now.len() as u64;
                rest = later;
            }
        }
        Ok(())
    }

    /// Fills `buf` (a multiple of 8 long) with what stands at `lsn`.
    pub(crate) fn load(&self, mut lsn: Lsn, buf: &mut [u8]) -> Result<()> {
        let mut rest = buf;
        while !rest.is_empty() {
            let room = (self.ring - lsn % self.ring) as usize;
            let n = rest.len().min(room);
            let (now, later) = rest.split_at_mut(n);
            self.region.load(self.place(lsn), now)?;
            lsn += n as u64;
            rest = later;
        }
        Ok(())
    }

    /// The tail that an earlier process left, if its content can be trusted: same database, same boot.
    pub(crate) fn leftover(
        media: &dyn Media,
        options: &LogOptions,
        newest_generation: u32,
    ) -> Result<Option<(Tail, TailHeader)>> {
        let path = options.dir.join(NAME);
        if !media.exists(&path)? {
            return Ok(None);
        }
        // The size may have been another one: the header tells.
        let name = |e: &terrane_media::DirEntry| e.name == NAME;
        let Some(entry) = media.list(&options.dir)?.into_iter().find(name) else { return Ok(None) };
        if entry.len < 2 * LOG_SECTOR as u64 {
            return Ok(None);
        }
        let region = media.map(&path, entry.len as usize)?;
        let mut sector = vec![0; LOG_SECTOR];
        region.load(0, &mut sector)?;
        let Some(header) = TailHeader::decode(&sector)? else { return Ok(None) };
        let fits = header.ring_bytes + LOG_SECTOR as u64 == entry.len && header.ring_bytes % 8 == 0;
        let ours = header.uuid == options.uuid
            && header.boot == media.boot_id()
            && header.generation <= newest_generation;
        Ok((fits && ours).then(|| (Tail { region, ring: header.ring_bytes }, header)))
    }

    /// The entry at `lsn`, whole and verified, if there is one of this generation.
    pub(crate) fn entry(&self, lsn: Lsn, generation: u32) -> Result<Option<(EntryHeader, Vec<u8>)>> {
        let mut head = [0; ENTRY_HEADER];
        self.load(lsn, &mut head)?;
        let Ok(header) = decode_header(&head) else { return Ok(None) };
        let len = entry_len(header.body_len as usize);
        if header.lsn != lsn || header.generation != generation || len > self.ring {
            return Ok(None);
        }
        let mut bytes = vec![0; len as usize];
        self.load(lsn, &mut bytes)?;
        let body = &bytes[ENTRY_HEADER..ENTRY_HEADER + header.body_len as usize];
        Ok(header.check_body(body).is_ok().then_some((header, bytes)))
    }
}
