//! The database's structure, as the manifest's edits make it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use terrane_base::{ExtentId, Lsn, Result, SubtableId};
use terrane_format::extent::ExtentMeta;
use terrane_format::manifest::{Edit, LogPosition, NextIds};
use terrane_format::value_ref::ValueRef;

/// A part of an extent in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefState {
    /// First key behind the part; its first key is the map's key.
    pub(crate) hi: Vec<u8>,
    /// The extent.
    pub(crate) extent: Arc<ExtentMeta>,
}

/// Parts by first key.
pub(crate) type RunState = BTreeMap<Vec<u8>, RefState>;

/// A living subtable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubtableState {
    /// Its name.
    pub(crate) name: String,
    /// An encoded `SubtableOptionsRecord`.
    pub(crate) options: Vec<u8>,
    /// Log position of its birth.
    pub(crate) created_lsn: Lsn,
    /// All its records before this position are in extents.
    pub(crate) persisted_lsn: Lsn,
    /// Its runs by (level, run id).
    pub(crate) runs: BTreeMap<(u8, u64), RunState>,
    /// Values in units of their own, by id.
    pub(crate) values: BTreeMap<u64, ValueRef>,
}

/// The whole structure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DbState {
    pub(crate) subtables: BTreeMap<SubtableId, SubtableState>,
    pub(crate) log: LogPosition,
    pub(crate) next: NextIds,
}

/// Hands out ids; starts where the manifest's edits end.
#[derive(Debug)]
pub(crate) struct Ids {
    extent: AtomicU64,
    value: AtomicU64,
    run: AtomicU64,
    subtable: AtomicU64,
}

impl Ids {
    pub(crate) fn new(_next: &NextIds) -> Self {
        todo!()
    }
    pub(crate) fn extent(&self) -> ExtentId {
        todo!()
    }
    pub(crate) fn value(&self) -> u64 {
        todo!()
    }
    pub(crate) fn run(&self) -> u64 {
        todo!()
    }
    pub(crate) fn subtable(&self) -> SubtableId {
        todo!()
    }
    /// Values up to `id` exist (replay found one in the log).
    pub(crate) fn saw_value(&self, _id: u64) {
        todo!()
    }
}

impl DbState {
    /// Applies all edits or none.
    pub(crate) fn apply(&mut self, _edits: &[Edit]) -> Result<()> {
        todo!()
    }
    /// Edits that make this state from an empty one, without the closing `CheckpointEnd`.
    pub(crate) fn to_edits(&self) -> impl Iterator<Item = Edit> {
        std::iter::empty()
    }
    /// Every extent that is referred to, once.
    pub(crate) fn extents(&self) -> impl Iterator<Item = (SubtableId, &Arc<ExtentMeta>)> {
        std::iter::empty()
    }
    /// The subtable of this name.
    pub(crate) fn by_name(&self, _name: &str) -> Option<(SubtableId, &SubtableState)> {
        todo!()
    }
}
