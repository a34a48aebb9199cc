//! A persistent memory for a database, and what stands for one.

use std::path::PathBuf;

use terrane_base::{Error, Result};
use terrane_chainlog::Plan;
use terrane_media::{PmemCost, PmemMode};

use crate::chains::SPARE;
use crate::recovery::MEMORY;

/// Smallest legal persistent memory.
pub(super) const MIN_PMEM_BYTES: u64 = 4 << 20;
/// Largest legal one, as of all budgets.
const MAX_PMEM_BYTES: u64 = 1 << 44;
/// What memtables may take of a large one at least: sixteen of its zones.
const LEAST_MEMTABLE_BYTES: u64 = 64 << 20;

/// A persistent memory for a database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PmemOptions {
    pub(crate) path: PathBuf,
    pub(crate) bytes: u64,
    pub(crate) mode: PmemMode,
    pub(crate) trailing_log: bool,
    pub(crate) index_in_pmem: bool,
    pub(crate) memtable_bytes: Option<u64>,
    pub(crate) zone_bytes: u64,
    pub(crate) cost: Option<PmemCost>,
}

impl PmemOptions {
    /// A memory of `bytes` bytes, 4 MiB to 16 TiB: a file `pmem` in the database's directory, which for [`PmemMode::Dax`], the default,
    /// must lie on a file system of persistent memory. Memtables may take seven eighths of it, in place of
    /// [`crate::Options::memtable_bytes`] (see [`PmemOptions::memtable_bytes`]), and are written out when they have half of that, and one of them
    /// when it has 12 GiB.
    ///
    /// Each subtable that is written to has a *zone* of it at least: 512 KiB with 32 MiB to 2 GiB, 4 MiB with more than 8 GiB, a 64th of a smaller
    /// one. Choose a hundred times what all these zones take, or more. The file is written whole when it is made, and keeps its size: other `bytes` count
    /// only where opening finds no file that it can open, and makes a new one.
    ///
    /// What finds the records, indexes and filters, is in main memory in addition, some 50 bytes a record
    /// ([`crate::Stats::memtable_index_bytes`]): a tenth of what a record of 500 bytes takes here, four fifths of what one of 24 does
    /// that is committed alone, and more than what it does in a batch. All indexes together may take as much as memtables may
    /// take here; before they take more, memtables are written out, and writers wait. Where main memory is short see
    /// [`PmemOptions::index_in_pmem`].
    pub fn new(bytes: u64) -> Self {
        PmemOptions {
            path: PathBuf::from(MEMORY),
            bytes,
            mode: PmemMode::Dax,
            trailing_log: false,
            index_in_pmem: false,
            memtable_bytes: None,
            zone_bytes: 0,
            cost: None,
        }
    }

    /// One of which memtables may take `bytes` bytes, about: a seventh larger, and 4 MiB at least.
    pub fn for_memtables(bytes: u64) -> Self {
        let spare = SPARE as u64;
        Self::new(bytes.div_ceil(spare - 1).saturating_mul(spare).max(MIN_PMEM_BYTES))
    }

    /// Bytes that are wanted. Its file has as many, down to whole pages of 4096.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Another file: absolute, or in the database's directory. [`crate::Db::destroy`] removes one called `pmem` in its directory, and leaves
    /// any other.
    ///
    /// For a new database nothing may lie there, else opening fails with [`crate::ErrorKind::InvalidArgument`] or what is wrong with it; nor
    /// beside it what is called so and ends in `.new` or `.try`, files that are there while it is made
    /// ([`crate::ErrorKind::AlreadyExists`] if they are another's).
    #[must_use]
    pub fn path(mut self, path: impl Into<PathBuf>) -> Self {
        self.path = path.into();
        self
    }

    /// How the file is mapped; default [`PmemMode::Dax`], which opening refuses with [`crate::ErrorKind::Unsupported`] where the file system does
    /// not map it so, and on processors other than x86-64. [`PmemMode::StandIn`] is for development, on any file: commits survive the
    /// process, and a database whose machine stopped while it was open does not open again, but from a log behind it.
    ///
    /// [`PmemMode::PageCache`] is for machines without persistent memory, on any file. The memory is main memory then too, that of the
    /// system's cache, and indexes come in addition: see [`PmemOptions::new`]. It promises what [`crate::Medium::Log`] does, for there is a
    /// log behind it: `Buffered` commits survive the process, `Sync` ones a power failure. Opening after the death of the process reads
    /// both, and takes little from the log; after a power failure, or if the file is gone, a new memory is made and all is taken from
    /// the log.
    ///
    /// A database that has one of the first two modes can be opened with the other; `PageCache` and these cannot take each other's place.
    #[must_use]
    pub fn mode(mut self, mode: PmemMode) -> Self {
        self.mode = mode;
        self
    }

    /// Whether commits go to a log in the database's directory too, behind the memory. Default: no; in the page cache there always is one.
    ///
    /// It guards against the loss of the persistent memory. With [`crate::Durability::Sync`] a commit waits until the log is flushed, and so
    /// survives that; with [`crate::Durability::Buffered`] it waits for the memory alone, and the log has it later: 64 MiB of commits may
    /// be written and not flushed, and 16 MiB more wait to be written. [`crate::Options::renew_pmem`] takes the database up again from
    /// the log. (After a power failure the memory is needed until what the log lost is written out, which begins when the database is
    /// opened, and which [`crate::Db::sync`] waits for: [`crate::Stats::log_gap`].)
    ///
    /// A commit costs what it costs with [`crate::Medium::Log`] in addition, and opening reads the log, which takes twice what memtables may
    /// take, or 128 MiB if that is more ([`PmemOptions::memtable_bytes`] bounds it). It cannot be changed once there is a database.
    #[must_use]
    pub fn trailing_log(mut self, yes: bool) -> Self {
        self.trailing_log = yes;
        self
    }

    /// Whether memtables have their indexes there too, as long as there is room: where main memory is short. Default: no, they are in main
    /// memory, which is faster. For memtables that are radix trees ([`crate::IndexKind::Art`]), and for a device: in the page cache it is refused.
    ///
    /// An index takes about as much as 40 bytes a record (what else finds records, some ten, stays in main memory); what it takes there,
    /// records do not have. It vanishes with the process wherever it is, and is built again when the database is opened. It may be another
    /// choice at each opening; one without a medium ([`crate::Options::medium`]), as the program's, has them in main memory.
    ///
    /// Source: the "semi-persistent memtable" of X-Engine's engine for persistent memory, in its form with the index in volatile persistent memory.
    #[must_use]
    pub fn index_in_pmem(mut self, yes: bool) -> Self {
        self.index_in_pmem = yes;
        self
    }

    /// The most that memtables may take of it, bytes; default seven eighths of it, which is the most: more is taken for that. At least
    /// 64 MiB, or a quarter of the memory where that is less, else opening fails with [`crate::ErrorKind::InvalidArgument`]. What they do not
    /// take holds cached blocks (not in the page cache, where these would be in main memory twice).
    ///
    /// It bounds two things that go into main memory: the indexes of memtables, which may take as much; and, where there is a log behind it,
    /// what an opening takes from that which finds the memory gone, or (in the page cache) from before a power failure: all records that
    /// were not written out yet. So it is for memories that are as large as main memory or larger. The less it is, the smaller are the
    /// runs that are written out, and the more is rewritten for each record. Memtables take whole zones of it ([`PmemOptions::new`]): with
    /// less than some zones for each subtable that is written to, they are written out with next to nothing in them. It may be another
    /// choice at each opening; one without a medium ([`crate::Options::medium`]), as the program's, has the default.
    #[must_use]
    pub fn memtable_bytes(mut self, bytes: u64) -> Self {
        self.memtable_bytes = Some(bytes);
        self
    }

    /// Whether there is a log behind it.
    pub(crate) fn has_log(&self) -> bool {
        self.trailing_log || self.mode == PmemMode::PageCache
    }

    /// Bytes of a zone, a multiple of 4096; for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn zone_bytes(mut self, bytes: u64) -> Self {
        self.zone_bytes = bytes;
        self
    }

    /// What a [stand-in](PmemMode::StandIn) costs beside ordinary memory until the database is closed: for development, without persistent
    /// memory. Charged are stores and fences, blocks of data that are read there, and records that lookups, cursors, flushes and openings
    /// read; not indexes there ([`PmemOptions::index_in_pmem`]), nor looks at other keys' records. For [`crate::Db::open`] alone.
    #[must_use]
    pub fn cost(mut self, cost: PmemCost) -> Self {
        self.cost = Some(cost);
        self
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.cost.is_some() && self.mode != PmemMode::StandIn {
            return Err(Error::invalid("costs are for what stands for persistent memory")
                .with_hint("ask for PmemMode::StandIn, or leave PmemOptions::cost off"));
        }
        if self.bytes < MIN_PMEM_BYTES && self.zone_bytes == 0 {
            let what = format!("a persistent memory has {MIN_PMEM_BYTES} bytes at least, not {}", self.bytes);
            return Err(Error::invalid(what));
        }
        if self.bytes > MAX_PMEM_BYTES {
            let what = format!("a persistent memory has {MAX_PMEM_BYTES} bytes at most, not {}", self.bytes);
            return Err(Error::invalid(what));
        }
        let least = LEAST_MEMTABLE_BYTES.min(self.bytes / 4);
        if let Some(bytes) = self.memtable_bytes.filter(|bytes| *bytes < least) {
            let what =
                format!("PmemOptions::memtable_bytes is {bytes}, the least is {least} for this memory");
            return Err(Error::invalid(what));
        }
        if self.index_in_pmem && self.mode == PmemMode::PageCache {
            return Err(Error::invalid("indexes cannot lie in the page cache, which is written back")
                .with_hint("leave PmemOptions::index_in_pmem off: main memory is what there is"));
        }
        Ok(())
    }

    /// How a new memory is divided.
    pub(crate) fn plan(&self) -> Plan {
        let zone_bytes = match self.zone_bytes {
            // So many that a thousand subtables have room in a GiB, and no more than a memtable can have.
            0 => (self.bytes / 4096)
                .next_power_of_two()
                .clamp(512 << 10, 4 << 20)
                .min(self.bytes / 64 / 4096 * 4096),
            n => n,
        };
        // One that holds anything has a zone at least, and each needs another one to freeze.
        let memtables = (self.bytes.saturating_mul(2) / zone_bytes.max(1)).clamp(64, 1 << 15);
        Plan { bytes: self.bytes, subtables: 1, memtables, zone_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A zone for each to fill, and another one for what it freezes, within what memtables may take.
    #[test]
    fn a_thousand_subtables_have_room_in_a_gib() {
        let options = PmemOptions::new(1 << 30);
        let plan = options.plan();
        assert!(1000 * plan.zone_bytes * 8 / 7 < plan.bytes, "{plan:?}");
        assert!(plan.memtables >= 2000, "{plan:?}");
        // Where there is more there is no need for more zones, and where there is little they are still some.
        for (bytes, zones) in [(8 << 20, 60), (64 << 20, 60), (16 << 30, 4000), (100 << 30, 20_000)] {
            let plan = PmemOptions::new(bytes).plan();
            assert!(
                plan.bytes / plan.zone_bytes >= zones && plan.zone_bytes.is_multiple_of(4096),
                "{plan:?}"
            );
        }
    }
}
