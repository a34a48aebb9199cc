//! Where commits become safe: a log, persistent memory, or both.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use terrane_base::{Error, Lsn, Result};
use terrane_commit::Filled;

use crate::chains::Chains;
use crate::db::request::Placed;
use crate::log::Log;

/// See the module's head.
#[derive(Debug)]
pub(crate) enum Journal {
    /// A write-ahead log: an entry for each commit, in segments on the device.
    Log(Log),
    /// Chains in persistent memory. What is published is durable, unless that is the page cache: there it survives the process. A log may
    /// *trail* behind, and does so there: it has the same commits at the same LSNs. What the chains have, the log's tail has too, for a
    /// commit is in both before it is ordered; so after the death of the process the chains have nothing that the log lacks. After a power
    /// failure the log is all that is needed in the page cache; on a device the chains have more, and the log is what is left when the device
    /// is lost.
    Chains { chains: Arc<Chains>, trailing: Option<Log>, gap: Gap },
}

/// Where the log lacks what the chains had, since the last power failure, until all of that is in extents. There may be none.
#[derive(Debug)]
pub(crate) struct Gap {
    range: Range<Lsn>,
    live: AtomicBool,
}

impl Gap {
    /// One that the log has; none if it is empty.
    pub(crate) fn new(range: Range<Lsn>) -> Self {
        Gap { live: AtomicBool::new(!range.is_empty()), range }
    }
}

impl Journal {
    /// The log, whether or not it is all there is.
    pub(crate) fn log(&self) -> Option<&Log> {
        match self {
            Journal::Log(log) => Some(log),
            Journal::Chains { trailing, .. } => trailing.as_ref(),
        }
    }

    pub(crate) fn chains(&self) -> Option<&Arc<Chains>> {
        match self {
            Journal::Log(_) => None,
            Journal::Chains { chains, .. } => Some(chains),
        }
    }

    /// For the orderer: commits groups, up to `end`, in their order.
    ///
    /// # Errors
    /// What the memory fails with. What was committed before stays.
    pub(crate) fn advance(&self, groups: &[Filled<Placed>], end: Lsn) -> Result<()> {
        if let Some(chains) = self.chains() {
            chains.advance(groups)?;
        }
        match self {
            Journal::Log(log) | Journal::Chains { trailing: Some(log), .. } => log.advance(end),
            Journal::Chains { chains, trailing: None, .. } => chains.is_durable_to(end),
        }
        Ok(())
    }

    /// Makes all that is published before `lsn` survive a power failure.
    pub(crate) fn sync_to(&self, lsn: Lsn) -> Result<()> {
        if let Some(chains) = self.chains()
            && chains.is_poisoned()
        {
            chains.check()?;
        }
        // In chains on a device it is so already; what is waited for there is that the loss of the device can be survived.
        self.log().map_or(Ok(()), |log| log.sync_to(lsn))
    }

    /// What is published below it survives a power failure.
    pub(crate) fn durable_lsn(&self) -> Lsn {
        match self {
            Journal::Log(log) | Journal::Chains { trailing: Some(log), .. } => log.durable_lsn(),
            Journal::Chains { chains, trailing: None, .. } => chains.durable_lsn(),
        }
    }

    /// Whether what is published survives a power failure at once.
    pub(crate) fn is_durable_at_once(&self) -> bool {
        self.chains().is_some_and(|chains| chains.space().is_on_device())
    }

    /// Bytes that the next opening would read back of a log.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.log().map_or(0, Log::live_bytes)
    }

    /// Where an opening can begin to read that needs all from `lsn` on: where an entry begins. Within a gap none does for each commit.
    pub(crate) fn readable_from(&self, lsn: Lsn) -> Lsn {
        match self {
            Journal::Chains { gap, .. } if gap.range.contains(&lsn) => gap.range.start,
            _ => lsn,
        }
    }

    /// What the log lacks still.
    pub(crate) fn live_gap(&self) -> Option<Range<Lsn>> {
        match self {
            Journal::Chains { gap, .. } if gap.live.load(Ordering::Acquire) => Some(gap.range.clone()),
            _ => None,
        }
    }

    /// The manifest says that nothing in the gap is needed any more.
    pub(crate) fn gap_is_closed(&self) {
        if let Journal::Chains { gap, .. } = self {
            gap.live.store(false, Ordering::Release);
        }
    }

    /// Lets go of what the log keeps of commits before `lsn`. Memtables in chains let go of these themselves.
    pub(crate) fn release_before(&self, lsn: Lsn) -> Result<()> {
        self.log().map_or(Ok(()), |log| log.release_before(lsn))
    }

    /// Refuses all further writes because of `cause` (design rule 16).
    pub(crate) fn poison(&self, cause: &Error) {
        if let Some(log) = self.log() {
            log.poison(cause);
        }
        if let Some(chains) = self.chains() {
            chains.poison(cause);
        }
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.chains().is_some_and(|chains| chains.is_poisoned()) || self.log().is_some_and(Log::is_poisoned)
    }

    /// Refuses further commits, and makes all there are durable. May be called again after an error.
    pub(crate) fn close(&self) -> Result<()> {
        if let Some(chains) = self.chains() {
            chains.close();
        }
        self.log().map_or(Ok(()), Log::close)
    }

    /// Whether closing has begun. (For the log it must be its own word: see [`Log::is_closed`].)
    pub(crate) fn is_closed(&self) -> bool {
        self.log().is_some_and(Log::is_closed) || self.chains().is_some_and(|chains| chains.is_closed())
    }
}
