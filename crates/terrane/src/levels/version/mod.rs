//! Versions: immutable pictures of a subtable's runs. A reader holds one for as long as it reads; everything that the
//! version refers to stays readable meanwhile.
//!
//! # What becomes of what a version no longer needs
//! An extent is shared by all versions that have it, and its space is queued when the last of them is gone. A value in
//! units of its own is not known to versions, only to records, so it is left to a chain: every version holds a link,
//! and every link holds the link of the next version. What a transition makes superfluous is left at the link of the
//! version that ends. That link is gone when the version and all older ones are, so whoever could still meet such a
//! record is gone as well.

mod chain;
mod edit;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use terrane_base::{Error, Result};
use terrane_format::extent::ExtentMeta;
use terrane_format::value_ref::ValueRef;

use super::state::{MAX_LEVEL, SubtableState};
use super::{Extent, ExtentRef, Reclaimer, Run};
use chain::Link;
pub(crate) use edit::{RefKey, VersionEdit};

/// An immutable picture of a subtable's runs.
#[derive(Debug)]
pub(crate) struct Version {
    /// L0, newest first.
    pub(crate) l0: Vec<Arc<Run>>,
    /// From L1 on; a level without records is an empty run, the last one is not empty.
    pub(crate) levels: Vec<Arc<Run>>,
    link: Arc<Link>,
    reclaimer: Arc<Reclaimer>,
}

/// What [`Version::apply`] gives.
#[derive(Debug)]
pub(crate) struct Applied {
    /// The next version.
    pub(crate) version: Version,
    /// Extents that the next version no longer refers to.
    pub(crate) obsolete: Vec<Arc<Extent>>,
}

impl Version {
    /// No records.
    pub(crate) fn empty(reclaimer: Arc<Reclaimer>) -> Self {
        Version { l0: Vec::new(), levels: Vec::new(), link: Link::new(&reclaimer), reclaimer }
    }

    /// The version that the manifest describes. `open` makes an extent; it is called once for each.
    ///
    /// # Errors
    /// Those of `open`, and corruption if the state is not sound.
    pub(crate) fn from_state(
        state: &SubtableState,
        reclaimer: Arc<Reclaimer>,
        mut open: impl FnMut(&Arc<ExtentMeta>) -> Result<Arc<Extent>>,
    ) -> Result<Self> {
        let mut extents = BTreeMap::new();
        let mut edit = VersionEdit::default();
        for ((level, run), parts) in &state.runs {
            for (lo, part) in parts {
                let extent = match extents.get(&part.extent.id) {
                    Some(e) => Arc::clone(e),
                    None => open(&part.extent)?,
                };
                extents.insert(part.extent.id, extent.clone());
                let (lo, hi) = (lo.as_slice().into(), part.hi.as_slice().into());
                edit.added.push((*level, *run, ExtentRef { extent, lo, hi, size: part.size }));
            }
        }
        Ok(Version::empty(reclaimer).apply(&edit)?.version)
    }

    /// The next version. This one stays as it is; [`Version::retire`] ends it once the next one is durable.
    ///
    /// # Errors
    /// Corruption if a removed part is not there, or if added parts overlap what stays.
    pub(crate) fn apply(&self, edit: &VersionEdit) -> Result<Applied> {
        let mut changed: BTreeMap<(u8, u64), Changes<'_>> = BTreeMap::new();
        for key in &edit.removed {
            changed.entry((key.level, key.run)).or_default().removed.push(key);
        }
        for (level, run, part) in &edit.added {
            changed.entry((*level, *run)).or_default().added.push(part);
        }
        let mut l0 = self.l0.clone();
        let mut levels = self.levels.clone();
        for ((level, id), changes) in changed {
            if level > MAX_LEVEL || (level > 0 && id != 0) {
                return Err(Error::corruption(format!("there cannot be a run {id} in level {level}")));
            }
            if level > 0 {
                let at = usize::from(level) - 1;
                while levels.len() <= at {
                    levels.push(Arc::new(Run::new(0, Vec::new())?));
                }
                levels[at] = Arc::new(changes.apply(level, &levels[at])?);
            } else {
                let at = l0.partition_point(|r| r.id > id);
                if l0.get(at).is_none_or(|r| r.id != id) {
                    l0.insert(at, Arc::new(Run::new(id, Vec::new())?));
                }
                l0[at] = Arc::new(changes.apply(0, &l0[at])?);
            }
        }
        l0.retain(|r| !r.is_empty());
        while levels.last().is_some_and(|r| r.is_empty()) {
            levels.pop();
        }
        let reclaimer = self.reclaimer.clone();
        let version = Version { l0, levels, link: Link::new(&reclaimer), reclaimer };
        let obsolete = self.missing_in(&version, &edit.removed);
        Ok(Applied { version, obsolete })
    }

    /// The extents of these parts that `next` has nowhere.
    fn missing_in(&self, next: &Version, removed: &[RefKey]) -> Vec<Arc<Extent>> {
        let mut seen = BTreeSet::new();
        let mut missing = Vec::new();
        for key in removed {
            let of_level = self.runs().filter(|(level, run)| (*level, run.id) == (key.level, key.run));
            let part = of_level.filter_map(|(_, run)| run.find(&key.lo)).find(|p| key.names(p));
            let Some(extent) = part.map(|p| &p.extent) else { continue };
            let meta = &extent.meta;
            let stays = |run: &Arc<Run>| {
                run.overlapping(&meta.lo, Some(&meta.hi)).iter().any(|p| p.extent.meta.id == meta.id)
            };
            if seen.insert(meta.id) && !next.runs().any(|(_, run)| stays(run)) {
                missing.push(extent.clone());
            }
        }
        missing
    }

    /// Ends this version, after the edit that leads to `next` is durable. `obsolete` (of [`Version::apply`]) and
    /// `values` (removed by the same edit) are needed by readers of this version and of older ones only; their space is
    /// queued at the reclaimer when those are gone. Every transition is told, even if nothing became superfluous.
    pub(crate) fn retire(&self, next: &Version, obsolete: Vec<Arc<Extent>>, values: Vec<ValueRef>) {
        obsolete.iter().for_each(|e| e.retire());
        self.link.end(Some(next.link.clone()), values);
    }

    /// Ends this version, and with it the subtable, after the edit that drops it is durable. `values` are all values of
    /// the subtable.
    pub(crate) fn retire_all(&self, values: Vec<ValueRef>) {
        for part in self.runs().flat_map(|(_, run)| run.refs()) {
            part.extent.retire();
        }
        self.link.end(None, values);
    }

    /// All runs from newest to oldest, each with its level.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u8, &Arc<Run>)> {
        self.l0.iter().map(|r| (0, r)).chain((1..).zip(&self.levels))
    }
}

/// What changes in one run.
#[derive(Default)]
struct Changes<'a> {
    removed: Vec<&'a RefKey>,
    added: Vec<&'a ExtentRef>,
}

impl Changes<'_> {
    fn apply(mut self, level: u8, run: &Run) -> Result<Run> {
        self.removed.sort_by(|a, b| a.lo.cmp(&b.lo));
        self.added.sort_by(|a, b| a.lo.cmp(&b.lo));
        let mut removed = self.removed.into_iter().peekable();
        let mut added = self.added.into_iter().peekable();
        let mut refs = Vec::with_capacity(run.refs().len() + added.len());
        for part in run.refs() {
            if removed.next_if(|k| k.names(part)).is_some() {
                continue;
            }
            while let Some(new) = added.next_if(|new| new.lo < part.lo) {
                refs.push(Arc::new(new.clone()));
            }
            refs.push(part.clone());
        }
        refs.extend(added.map(|new| Arc::new(new.clone())));
        if let Some(key) = removed.next() {
            return Err(Error::corruption(format!(
                "a part of extent {} that is to be removed is not in level {level}",
                key.extent
            )));
        }
        Ok(Run::new(run.id, refs)?.after(run))
    }
}
