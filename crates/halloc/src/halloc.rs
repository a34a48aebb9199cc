//! A persistent memory with its pools: made once, opened and closed.
//!
//! # After a crash
//! Of the process: the memory is as it was left. Of the machine: a memory on a device (`Dax`) has all that was fenced. One in the page
//! cache may have any of its pages old, so it is not trusted unless it was closed in order or the machine has not been started since
//! (design rule 1): the boot's id stands in the state before anything else is stored under it.

use std::path::Path;
use std::sync::Arc;

use terrane_base::{Error, Result};
use terrane_format::pm::{
    MAX_HEADER, MAX_OBJECTS, POOLS_AT, PmHeader, PmState, PoolKind, PoolShape, STATE_BYTES, STATE_SLOTS,
};
use terrane_media::{Media, PM_BLOCK, Pmem, PmemMode, SECTOR, create_pmem};

use crate::pool::Pool;

/// Bytes of an object that stands for a subtable.
const SUBTABLE_BYTES: u64 = PM_BLOCK as u64;
/// Bytes of an object that stands for a memtable: 500 zones and what is known of it.
const MEMTABLE_BYTES: u64 = 2048;

/// How a new memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Length of the file, rounded down to 4096.
    pub bytes: u64,
    /// The most subtables.
    pub subtables: u64,
    /// The most memtables.
    pub memtables: u64,
    /// Bytes of a zone, a multiple of 4096. All that is left becomes zones.
    pub zone_bytes: u64,
}

impl Plan {
    fn header(&self, uuid: [u8; 16], device: u32) -> Result<PmHeader> {
        let refuse = |what: &str| Err(Error::invalid(format!("persistent memory {what}: {self:?}")));
        let page = SECTOR as u64;
        if self.zone_bytes == 0 || !self.zone_bytes.is_multiple_of(page) {
            return refuse("has zones of a positive multiple of 4096 bytes");
        }
        if ![self.subtables, self.memtables].iter().all(|n| (1..=MAX_OBJECTS).contains(n)) {
            return refuse("has at least one subtable and one memtable");
        }
        let file_bytes = self.bytes / page * page;
        let mut pools = Vec::new();
        let mut at = POOLS_AT;
        // Counts are below 2^32, and sizes a few thousand: nothing overflows.
        for (kind, object_bytes, objects) in [
            (PoolKind::Subtables, SUBTABLE_BYTES, self.subtables),
            (PoolKind::Memtables, MEMTABLE_BYTES, self.memtables),
        ] {
            let objects_at = at + (objects * 8).next_multiple_of(page);
            pools.push(PoolShape { kind, object_bytes, objects, words_at: at, objects_at });
            at = objects_at + (objects * object_bytes).next_multiple_of(page);
        }
        // Each zone takes its bytes and a word; what the last page of words has too much of is at most one page.
        let room = file_bytes.saturating_sub(at + page);
        let zones = (room / self.zone_bytes.saturating_add(8)).min(MAX_OBJECTS);
        if zones == 0 {
            return refuse("is too small for a single zone");
        }
        let objects_at = at + (zones * 8).next_multiple_of(page);
        pools.push(PoolShape {
            kind: PoolKind::Zones,
            object_bytes: self.zone_bytes,
            objects: zones,
            words_at: at,
            objects_at,
        });
        Ok(PmHeader { uuid, device, file_bytes, pools })
    }
}

/// An open memory. See the crate's head.
#[derive(Debug)]
pub struct Halloc {
    pmem: Arc<dyn Pmem>,
    header: PmHeader,
    state: PmState,
    pools: [Pool; 3],
}

const KINDS: [PoolKind; 3] = [PoolKind::Subtables, PoolKind::Memtables, PoolKind::Zones];

impl Halloc {
    /// Makes a memory: a file that is there whole or not at all. `uuid` and `device` say which database's memory it is, and which of them.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::InvalidArgument`] for a plan that makes no sense; [`terrane_base::ErrorKind::AlreadyExists`] if there is such a file; what the
    /// medium fails with.
    pub fn create(media: &dyn Media, path: &Path, plan: &Plan, uuid: [u8; 16], device: u32) -> Result<()> {
        let header = plan.header(uuid, device).map_err(|e| e.with_file(path))?;
        let len = usize::try_from(header.file_bytes)
            .map_err(|_| Error::limit("bytes of persistent memory", header.file_bytes, usize::MAX as u64))?;
        create_pmem(media, path, len, &header.encode())
    }

    /// Opens a memory, and writes down that it is open. A few milliseconds for a million objects, and those of mapping the file.
    ///
    /// # Errors
    /// [`terrane_base::ErrorKind::Corruption`] if its header is damaged, or if the machine stopped while it was open and its mode does not survive
    /// that; [`terrane_base::ErrorKind::NewerFormat`]; what mapping fails with ([`Media::map_pmem`]).
    pub fn open(media: &dyn Media, path: &Path, mode: PmemMode) -> Result<Self> {
        let pmem = media.map_pmem(path, mode)?;
        let mut beginning = [0; MAX_HEADER];
        pmem.load(0, &mut beginning)?;
        let header = PmHeader::decode(&beginning).map_err(|e| e.with_file(path).with_offset(0))?;
        if header.file_bytes != pmem.len() as u64 {
            let what =
                format!("the memory has {} bytes, and its header says {}", pmem.len(), header.file_bytes);
            return Err(Error::corruption(what).with_file(path).with_offset(0));
        }
        let last = last_state(&*pmem)?;
        let boot_id = media.boot_id();
        let trusted = mode == PmemMode::Dax || last.is_none_or(|s| s.clean || s.boot_id == boot_id);
        if !trusted {
            return Err(Error::corruption("the machine stopped while this memory, in the page cache, was in use: parts of it may be old")
                .with_file(path)
                .with_hint("what was committed is in the trailing log: remove this file, and it is built anew from there"));
        }
        let state = PmState { opening: last.map_or(0, |s| s.opening) + 1, boot_id, clean: false };
        write_state(&*pmem, state)?;
        let open = |kind| {
            let shape = header.pools.iter().find(|p| p.kind == kind);
            let shape = shape.ok_or_else(|| {
                Error::corruption(format!("the memory has no pool of {kind:?}")).with_file(path)
            });
            Pool::open(pmem.clone(), *shape?)
        };
        let [subtables, memtables, zones] = KINDS.map(open);
        let pools = [subtables?, memtables?, zones?];
        Ok(Halloc { pmem, header, state, pools })
    }

    /// One of its pools.
    pub fn pool(&self, kind: PoolKind) -> &Pool {
        &self.pools[match kind {
            PoolKind::Subtables => 0,
            PoolKind::Memtables => 1,
            PoolKind::Zones => 2,
        }]
    }

    /// The memory itself.
    pub fn pmem(&self) -> &Arc<dyn Pmem> {
        &self.pmem
    }

    /// The database that it belongs to.
    pub fn uuid(&self) -> [u8; 16] {
        self.header.uuid
    }

    /// Which of the database's memories it is.
    pub fn device(&self) -> u32 {
        self.header.device
    }

    /// Writes down that it was closed in order, with all that was stored on its device. Nothing may be stored any more.
    ///
    /// # Errors
    /// What the medium fails with: the memory counts as not closed then.
    pub fn close(self, media: &dyn Media) -> Result<()> {
        self.pmem.sync()?;
        let opening = self.state.opening + 1;
        write_state(&*self.pmem, PmState { opening, boot_id: media.boot_id(), clean: true })
    }
}

/// What the newest whole slot says.
fn last_state(pmem: &dyn Pmem) -> Result<Option<PmState>> {
    let mut newest: Option<PmState> = None;
    for at in STATE_SLOTS {
        let mut slot = [0; STATE_BYTES];
        pmem.load(at as usize, &mut slot)?;
        let state = PmState::decode(&slot);
        if state.is_some_and(|s| newest.is_none_or(|n| n.opening < s.opening)) {
            newest = state;
        }
    }
    Ok(newest)
}

/// Writes a state over the older of the two: durable when this returns, on the file's device too.
fn write_state(pmem: &dyn Pmem, state: PmState) -> Result<()> {
    let at = STATE_SLOTS[(state.opening % 2) as usize] as usize;
    pmem.write(at, &state.encode())?;
    pmem.fence();
    pmem.sync()
}
