//! A persistent memory with its pools: made once, opened and closed.
//!
//! # After a crash
//! Of the process: the memory is as it was left. Of the machine: a memory that was opened as a device has all that was fenced. One in
//! the page cache may have any of its pages old, so it is not trusted, in whatever way it is opened next, unless it was closed in order or
//! the machine has not been started since: the boot's id stands in the state before anything else is stored under it. The state stands
//! there twice, so that one that is damaged does not bring back the one before. And once a flush of the file has failed nobody knows what
//! is on its device, whatever later flushes say: the memory is not trusted any more.
//!
//! # Copies
//! A memory and what its owner keeps elsewhere belong together. Each opening has a number, which both write down; it is by a random step
//! higher than the one before, so two that were copied and opened apart have different ones. The owner writes first between which two an
//! opening is ([`Known`]), so that one that is cut short leaves no doubt; whatever else is found is a copy, or the owner is.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrane_base::{Error, ErrorKind, Result};
use terrane_format::pm::{
    Known, MAX_HEADER, MAX_OBJECTS, POOLS_AT, PmHeader, PmState, PmWord, PoolKind, PoolShape, STATE_BYTES,
    STATE_SLOTS,
};
use terrane_media::{Media, OpenMode, PM_BLOCK, Pmem, PmemMode, SECTOR, create_pmem};

use crate::pool::Pool;

/// Bytes of an object that stands for a subtable.
const SUBTABLE_BYTES: u64 = PM_BLOCK as u64;
/// Bytes of an object that stands for a memtable: what is known of it, which takes the fewest, and room for what later versions keep there.
const MEMTABLE_BYTES: u64 = 2048;

/// By how much an opening's number is above the one before, at most: two of a few copies hardly ever meet, and in 2^30 openings none is as high
/// as a state can have it.
const MOST_STEP: u64 = 1 << 32;

const FLUSH_FAILED: &str = "a flush of this memory has failed: parts of it may be old";
const MAKE_ANOTHER: &str =
    "make a new one, and fill it from what is kept elsewhere: a copy, or a log on disk";

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
    /// A flush has failed.
    lost: AtomicBool,
    pools: [Pool; 3],
}

const KINDS: [PoolKind; 3] = [PoolKind::Subtables, PoolKind::Memtables, PoolKind::Zones];

impl Halloc {
    /// Makes a memory: a file that is there whole or not at all. `uuid` and `device` say which database's memory it is, and which of them.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a plan that makes no sense; [`ErrorKind::AlreadyExists`] if there is such a file; what the
    /// medium fails with.
    pub fn create(media: &dyn Media, path: &Path, plan: &Plan, uuid: [u8; 16], device: u32) -> Result<()> {
        let header = plan.header(uuid, device).map_err(|e| e.with_file(path))?;
        let len = usize::try_from(header.file_bytes)
            .map_err(|_| Error::limit("bytes of persistent memory", header.file_bytes, usize::MAX as u64))?;
        create_pmem(media, path, len, &header.encode())
    }

    /// Opens the memory that is number `device` of the database `uuid`, and writes down that it is open. Some ten milliseconds for a million
    /// objects, and those of mapping the file. Nobody else may have it open: a lock on its file sees to that.
    ///
    /// # Errors
    /// [`ErrorKind::Corruption`] if something of it is damaged; [`ErrorKind::InvalidArgument`] if it is another database's;
    /// [`ErrorKind::Stale`] if it has another number, if the machine stopped while it was open in the page cache, or if a flush
    /// of it has failed; [`ErrorKind::NewerFormat`]; what mapping fails with ([`Media::map_pmem`]).
    pub fn open(media: &dyn Media, path: &Path, mode: PmemMode, uuid: [u8; 16], device: u32) -> Result<Self> {
        Halloc::open_on(media, media.map_pmem(path, mode)?, uuid, device)
    }

    /// As [`Halloc::open`], on a memory that is mapped already.
    ///
    /// # Errors
    /// As there, but for those of mapping.
    pub fn open_on(media: &dyn Media, pmem: Arc<dyn Pmem>, uuid: [u8; 16], device: u32) -> Result<Self> {
        Halloc::open_known(media, pmem, uuid, device, Known::default(), &mut |_| Ok(()))
    }

    /// Whether [`Halloc::open_known`] would refuse a file for what stands at its beginning. That is read: mapping a file brings in all of it, and
    /// gives it all its room.
    ///
    /// # Errors
    /// Those of [`Halloc::open_known`] that the beginning shows. A file that is too short for it passes: mapping it says what it is.
    pub fn look(media: &dyn Media, path: &Path, uuid: [u8; 16], device: u32, known: Known) -> Result<()> {
        let file = media.open(path, OpenMode::READ)?;
        let len = file.len()?;
        let wanted = Wanted { path, uuid, device, known, boot_id: media.boot_id() };
        match len < POOLS_AT {
            true => Ok(()),
            false => wanted.find(len, |at, buf| file.read_at(buf, at)).map(drop),
        }
    }

    /// Whether nobody can use the memory any more, whoever's it is: it says itself that it lacks what was stored there.
    ///
    /// # Errors
    /// Those of reading the file; [`ErrorKind::Corruption`] if its state is damaged.
    pub fn is_lost(media: &dyn Media, path: &Path) -> Result<bool> {
        let file = media.open(path, OpenMode::READ)?;
        let (last, _) = last_state(path, |at, buf| file.read_at(buf, at))?;
        Ok(check_trusted(last, media.boot_id()).is_err())
    }

    /// Whether there is nothing in the memory, whoever's it is: nobody has an object of it.
    ///
    /// # Errors
    /// Those of reading the file; [`ErrorKind::Corruption`] if something of it is damaged; [`ErrorKind::NewerFormat`].
    pub fn is_unused(media: &dyn Media, path: &Path) -> Result<bool> {
        let file = media.open(path, OpenMode::READ)?;
        let header = header_of(path, |at, buf| file.read_at(buf, at))?;
        let mut words = vec![0; SECTOR];
        for pool in header.pools {
            for first in (0..pool.objects).step_by(SECTOR / 8) {
                let part = &mut words[..(pool.objects - first).min(SECTOR as u64 / 8) as usize * 8];
                file.read_at(part, pool.words_at + first * 8)?;
                for (number, word) in (first as u32..).zip(part.as_chunks().0) {
                    let word = PmWord::decode(number, u64::from_le_bytes(*word));
                    if let PmWord::Taken(_) = word.map_err(|e| e.with_file(path))? {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// As [`Halloc::open_on`], on a memory that stands where its owner knows it to be. `note` has the owner write down,
    /// durably, what it knows from here on, and is called before the memory stands elsewhere.
    ///
    /// # Errors
    /// As there; [`ErrorKind::Stale`] too for a memory that stands elsewhere, which stays as it is; what `note` fails with.
    pub fn open_known(
        media: &dyn Media,
        pmem: Arc<dyn Pmem>,
        uuid: [u8; 16],
        device: u32,
        known: Known,
        note: &mut dyn FnMut(Known) -> Result<()>,
    ) -> Result<Self> {
        let (path, mode) = (pmem.path().to_owned(), pmem.mode());
        let wanted = Wanted { path: &path, uuid, device, known, boot_id: media.boot_id() };
        let load = |at: u64, buf: &mut [u8]| pmem.load(at as usize, buf);
        let Found { header, shapes, last, slots } = wanted.find(pmem.len() as u64, load)?;
        let (boot_id, before) = (wanted.boot_id, last.map_or(0, |s| s.opening));
        let on_device = mode == PmemMode::Dax;
        let opening = before + 1 + media.entropy() % MOST_STEP;
        let state = PmState { opening, boot_id, clean: false, lost: false, on_device };
        // It says so itself now.
        let lost = |e| {
            Error::new(ErrorKind::Stale, format!("{FLUSH_FAILED} ({e})"))
                .with_file(&path)
                .with_hint(MAKE_ANOTHER)
        };
        // Who died may have stored the newest copy and no more: it is durable before its owner relies on it, and before the other one is touched.
        pmem.flush(slots[1] as usize, STATE_BYTES)?;
        settle(&*pmem, state).map_err(lost)?;
        note(Known { opening, before: Some(before) })?;
        write_state(&*pmem, slots, state).map_err(lost)?;
        let flushed = last.is_none_or(|s| s.clean);
        let open = |at: usize| Pool::open(pmem.clone(), shapes[at], flushed);
        let pools = [open(0)?, open(1)?, open(2)?];
        Ok(Halloc { pmem, header, state, lost: AtomicBool::new(false), pools })
    }

    /// One of its pools.
    pub fn pool(&self, kind: PoolKind) -> &Pool {
        &self.pools[match kind {
            PoolKind::Subtables => 0,
            PoolKind::Memtables => 1,
            PoolKind::Zones => 2,
        }]
    }

    /// The number of this opening: no copy of the memory from before has as high a one.
    pub fn opening(&self) -> u64 {
        self.state.opening
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

    /// Has all that was stored written to the file's device, and waits: where the memory is the page cache. On a device a fence.
    ///
    /// # Errors
    /// What the medium fails with. The memory is not trusted any more then: the next opening refuses it.
    pub fn sync(&self) -> Result<()> {
        let synced = self.pmem.sync();
        if synced.is_err() {
            self.lost.store(true, Ordering::Release);
            store_state(&*self.pmem, PmState { lost: true, ..self.state })?;
        }
        synced
    }

    /// Writes down that it was closed in order, with all that was stored on its device. Nothing may be stored any more, as long as it is mapped.
    ///
    /// # Errors
    /// What the medium fails with: the memory counts as not closed then.
    pub fn close(&self, media: &dyn Media) -> Result<()> {
        self.sync()?;
        if self.lost.load(Ordering::Acquire) {
            let what = "a flush of this memory failed before, so what is on its device is not known";
            return Err(Error::new(ErrorKind::Poisoned, what).with_file(self.pmem.path()));
        }
        let opening = self.state.opening + 1;
        // Opening has left both copies whole and alike.
        let state = PmState { opening, boot_id: media.boot_id(), clean: true, ..self.state };
        write_state(&*self.pmem, STATE_SLOTS, state)
    }
}

/// Which memory it is to be.
struct Wanted<'a> {
    path: &'a Path,
    uuid: [u8; 16],
    device: u32,
    known: Known,
    boot_id: [u8; 16],
}

/// What stands at its beginning.
struct Found {
    header: PmHeader,
    shapes: [PoolShape; 3],
    last: Option<PmState>,
    /// As [`last_state`].
    slots: [u64; 2],
}

impl Wanted<'_> {
    /// What a memory of `len` bytes is, of which `load` gives some: the one that is wanted, and as it was left.
    fn find(&self, len: u64, load: impl Fn(u64, &mut [u8]) -> Result<()>) -> Result<Found> {
        let path = self.path;
        let header = header_of(path, &load)?;
        if header.file_bytes != len {
            let what = format!("the memory has {len} bytes, and its header says {}", header.file_bytes);
            return Err(Error::corruption(what).with_file(path).with_offset(0));
        }
        if header.uuid != self.uuid {
            return Err(Error::invalid("the memory is another database's")
                .with_file(path)
                .with_hint("give each memory its own file"));
        }
        if header.device != self.device {
            let what =
                format!("the memory is number {} of this database, and not {}", header.device, self.device);
            return Err(Error::new(ErrorKind::Stale, what).with_file(path).with_hint(
                "give each memory its own file; one that another one took the place of is of no use any more",
            ));
        }
        let shape = |kind| {
            let missing = || Error::corruption(format!("the memory has no pool of {kind:?}")).with_file(path);
            header.pools.iter().find(|p| p.kind == kind).copied().ok_or_else(missing)
        };
        let [subtables, memtables, zones] = KINDS;
        let shapes = [shape(subtables)?, shape(memtables)?, shape(zones)?];
        let (last, slots) = last_state(path, load)?;
        check_trusted(last, self.boot_id).map_err(|e| e.with_file(path))?;
        check_known(last, self.known).map_err(|e| e.with_file(path))?;
        Ok(Found { header, shapes, last, slots })
    }
}

fn header_of(path: &Path, load: impl Fn(u64, &mut [u8]) -> Result<()>) -> Result<PmHeader> {
    let mut beginning = [0; MAX_HEADER];
    load(0, &mut beginning)?;
    PmHeader::decode(&beginning).map_err(|e| e.with_file(path).with_offset(0))
}

/// Whether a memory has what was stored there, as far as its state tells.
fn check_trusted(last: Option<PmState>, boot_id: [u8; 16]) -> Result<()> {
    let Some(last) = last else { return Ok(()) };
    let what = match last {
        PmState { lost: true, .. } => FLUSH_FAILED,
        PmState { clean: true, .. } | PmState { on_device: true, .. } => return Ok(()),
        _ if last.boot_id == boot_id => return Ok(()),
        _ => "the machine stopped while this memory, in the page cache, was in use: parts of it may be old",
    };
    Err(Error::new(ErrorKind::Stale, what).with_hint(MAKE_ANOTHER))
}

/// Whether a memory stands where its owner knows it to be.
fn check_known(last: Option<PmState>, known: Known) -> Result<()> {
    let (at, clean) = last.map_or((0, false), |s| (s.opening, s.clean));
    let is_closed_behind = clean && at.checked_sub(1) == Some(known.opening);
    if known.opening == 0 || at == known.opening || is_closed_behind || known.before == Some(at) {
        return Ok(());
    }
    let (what, hint) = match at < known.opening {
        true => (
            "this is a copy of the memory from before it was last open: what was stored since is elsewhere",
            "open the database with the memory itself; one that is put back from a backup needs the directory from then too",
        ),
        false => (
            "this memory was open since with another copy of the database's directory, which has what belongs to it",
            "open that one, or put the memory back that belongs to this one: a copy of a directory needs a copy of its memory, from the \
             same backup",
        ),
    };
    Err(Error::new(ErrorKind::Stale, what).with_hint(hint))
}

/// What the state says, of which there are two copies: that of the higher opening, where one is older. `None` if the memory was never
/// opened. With it the places of the copies in the order in which they are to be written: that of the newest last, for the other one may
/// be torn already, by a crash of an opening before.
fn last_state(
    path: &Path,
    load: impl Fn(u64, &mut [u8]) -> Result<()>,
) -> Result<(Option<PmState>, [u64; 2])> {
    let mut newest: Option<PmState> = None;
    let mut slots = STATE_SLOTS;
    let mut damaged = 0;
    for at in STATE_SLOTS {
        let mut slot = [0; STATE_BYTES];
        load(at, &mut slot)?;
        match PmState::decode(&slot) {
            Some(state) if newest.is_none_or(|n| (n.opening, n.lost) < (state.opening, state.lost)) => {
                newest = Some(state);
                slots = if at == STATE_SLOTS[0] { [STATE_SLOTS[1], at] } else { STATE_SLOTS };
            }
            Some(_) => {}
            None => damaged += usize::from(slot != [0; STATE_BYTES]),
        }
    }
    if damaged == STATE_SLOTS.len() {
        return Err(Error::corruption("both copies of the memory's state are damaged")
            .with_file(path)
            .with_offset(STATE_SLOTS[0]));
    }
    Ok((newest, slots))
}

/// Writes a state: durable when this returns, on the file's device too. One copy after the other, so that one of them is whole.
fn write_state(pmem: &dyn Pmem, slots: [u64; 2], state: PmState) -> Result<()> {
    for at in slots {
        pmem.write(at as usize, &state.encode())?;
        settle(pmem, state)?;
    }
    Ok(())
}

/// Waits until a copy is durable, on the file's device too. If that fails, the memory is lost.
fn settle(pmem: &dyn Pmem, state: PmState) -> Result<()> {
    pmem.fence();
    pmem.sync().or_else(|e| {
        store_state(pmem, PmState { lost: true, ..state })?;
        Err(e)
    })
}

/// Stores a state where the next opening under this boot sees it. Openings under later ones trust nothing that was not closed in order.
fn store_state(pmem: &dyn Pmem, state: PmState) -> Result<()> {
    STATE_SLOTS.into_iter().try_for_each(|at| pmem.write(at as usize, &state.encode()))?;
    pmem.fence();
    Ok(())
}
