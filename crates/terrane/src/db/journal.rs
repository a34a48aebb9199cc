//! Where commits become safe: a log, or persistent memory.

use std::sync::Arc;

use terrane_base::{Error, Lsn, Result};

use crate::chains::Chains;
use crate::log::Log;

/// See the module's head.
#[derive(Debug)]
pub(crate) enum Journal {
    /// A write-ahead log: an entry for each commit, in segments on the device.
    Log(Log),
    /// Chains in persistent memory: what is published is durable.
    Chains(Arc<Chains>),
}

impl Journal {
    pub(crate) fn log(&self) -> Option<&Log> {
        match self {
            Journal::Log(log) => Some(log),
            Journal::Chains(_) => None,
        }
    }

    pub(crate) fn chains(&self) -> Option<&Arc<Chains>> {
        match self {
            Journal::Log(_) => None,
            Journal::Chains(chains) => Some(chains),
        }
    }

    /// Makes all that is published before `lsn` survive a power failure.
    pub(crate) fn sync_to(&self, lsn: Lsn) -> Result<()> {
        match self {
            Journal::Log(log) => log.sync_to(lsn),
            // It is so already.
            Journal::Chains(chains) if !chains.is_poisoned() => Ok(()),
            Journal::Chains(chains) => chains.check(),
        }
    }

    /// What is published below it survives a power failure.
    pub(crate) fn durable_lsn(&self) -> Lsn {
        match self {
            Journal::Log(log) => log.durable_lsn(),
            Journal::Chains(chains) => chains.durable_lsn(),
        }
    }

    /// Bytes that the next opening would read back of a log.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.log().map_or(0, Log::live_bytes)
    }

    /// Lets go of what is kept of commits before `lsn`: memtables do that themselves where they are all that is kept.
    pub(crate) fn release_before(&self, lsn: Lsn) -> Result<()> {
        self.log().map_or(Ok(()), |log| log.release_before(lsn))
    }

    /// Refuses all further writes because of `cause` (design rule 16).
    pub(crate) fn poison(&self, cause: &Error) {
        match self {
            Journal::Log(log) => log.poison(cause),
            Journal::Chains(chains) => chains.poison(cause),
        }
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        match self {
            Journal::Log(log) => log.is_poisoned(),
            Journal::Chains(chains) => chains.is_poisoned(),
        }
    }

    /// Refuses further commits, and makes all there are durable. May be called again after an error.
    pub(crate) fn close(&self) -> Result<()> {
        match self {
            Journal::Log(log) => log.close(),
            Journal::Chains(chains) => {
                chains.close();
                Ok(())
            }
        }
    }

    /// Whether closing has begun.
    pub(crate) fn is_closed(&self) -> bool {
        match self {
            Journal::Log(log) => log.is_closed(),
            Journal::Chains(chains) => chains.is_closed(),
        }
    }
}
