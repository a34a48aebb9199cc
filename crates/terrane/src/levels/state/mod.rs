//! The database's structure, as the manifest's edits make it: subtables, the parts of extents in their runs, values in
//! units of their own, the log's position, used-up ids.
//!
//! [`DbState::apply`] checks every edit against the state, both when edits are written (a mistake above is refused before
//! it becomes durable) and when they are read back. A group is applied whole or not at all: what was applied of a group
//! that fails is undone.
//!
//! # Invariants
//! * Parts of a run do not overlap and lie within their extents' bounds.
//! * An extent belongs to one subtable; all its parts carry the same meta; it is known exactly as long as a part is.
//! * Names of living subtables are unique. Used-up ids only grow.

mod ids;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use terrane_base::{Error, ErrorKind, ExtentId, Lsn, Result, SubtableId};
use terrane_format::extent::ExtentMeta;
use terrane_format::limits::{MAX_NAME, MAX_SUBTABLES};
use terrane_format::manifest::{Edit, LogPosition, MemoryPlace, NextIds, PartSize};
use terrane_format::value_ref::ValueRef;

pub(crate) use ids::Ids;

/// The highest level there can be.
pub(crate) const MAX_LEVEL: u8 = 31;

/// A part of an extent in a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefState {
    /// First key behind the part; its first key is the map's key.
    pub(crate) hi: Vec<u8>,
    /// What it holds.
    pub(crate) size: PartSize,
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
    /// Its runs by level and id; none is empty.
    pub(crate) runs: BTreeMap<(u8, u64), RunState>,
    /// Values in units of their own, by id.
    pub(crate) values: BTreeMap<u64, ValueRef>,
}

/// An extent that some part refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    subtable: SubtableId,
    meta: Arc<ExtentMeta>,
    parts: u32,
}

/// A prepared transaction whose records are in extents that nobody sees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StageState {
    /// Xid and locks, as a prepare in the log has them in front.
    pub(crate) front: Vec<u8>,
    /// Extents, each with the subtable that it is for, which may be dropped by now.
    pub(crate) extents: Vec<(SubtableId, Arc<ExtentMeta>)>,
    /// Large values, likewise.
    pub(crate) values: Vec<(SubtableId, ValueRef)>,
}

/// The whole structure.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DbState {
    /// The living subtables.
    pub(crate) subtables: BTreeMap<SubtableId, SubtableState>,
    /// The log's position.
    pub(crate) log: LogPosition,
    /// Where commits go, if not to a log.
    pub(crate) memory: Option<MemoryPlace>,
    /// Ids below these are used up.
    pub(crate) next: NextIds,
    /// Prepared transactions in extents, by xid.
    pub(crate) stages: BTreeMap<Vec<u8>, StageState>,
    names: BTreeMap<String, SubtableId>,
    extents: BTreeMap<ExtentId, Held>,
}

/// How to take back one applied edit.
enum Undo {
    Uncreate(SubtableId),
    Options(SubtableId, Vec<u8>),
    Undrop(SubtableId, Box<SubtableState>),
    Unadd { subtable: SubtableId, run: (u8, u64), lo: Vec<u8> },
    Unremove { subtable: SubtableId, run: (u8, u64), lo: Vec<u8>, part: RefState },
    Persisted(SubtableId, Lsn),
    Valueless(SubtableId, u64),
    Value(SubtableId, ValueRef),
    Unstage(Vec<u8>),
    UnstageExtent(Vec<u8>),
    UnstageValue(Vec<u8>),
    Stage(Vec<u8>, Box<StageState>),
    Memory(Option<MemoryPlace>),
}

impl DbState {
    /// Applies all edits or none.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] for a second subtable of a name, [`ErrorKind::SubtableDropped`] for an edit of one
    /// that does not live, [`ErrorKind::LimitExceeded`], and [`ErrorKind::Corruption`] for whatever breaks an invariant.
    pub(crate) fn apply(&mut self, edits: &[Edit]) -> Result<()> {
        let _ = self.apply_undoable(edits)?;
        Ok(())
    }

    /// As [`DbState::apply`]; what is returned takes it back.
    pub(super) fn apply_undoable(&mut self, edits: &[Edit]) -> Result<Applied> {
        let mut applied = Applied { log: self.log, next: self.next, undo: Vec::with_capacity(edits.len()) };
        for edit in edits {
            match self.apply_one(edit) {
                Ok(Some(undo)) => applied.undo.push(undo),
                Ok(None) => {}
                Err(e) => {
                    self.undo(applied);
                    return Err(e);
                }
            }
        }
        Ok(applied)
    }

    /// Takes back the group applied last.
    pub(super) fn undo(&mut self, applied: Applied) {
        for undo in applied.undo.into_iter().rev() {
            self.undo_one(undo);
        }
        self.log = applied.log;
        self.next = applied.next;
    }

    fn apply_one(&mut self, edit: &Edit) -> Result<Option<Undo>> {
        Ok(Some(match edit {
            Edit::CreateSubtable { id, name, options, lsn } => self.create(*id, name, options, *lsn)?,
            Edit::SetOptions { id, options } => {
                let old = std::mem::replace(&mut self.living(*id)?.options, options.clone());
                Undo::Options(*id, old)
            }
            Edit::DropSubtable { id, .. } => self.drop_subtable(*id)?,
            Edit::AddRef { subtable, level, run, lo, hi, size, extent } => {
                let part = RefState { hi: hi.clone(), size: *size, extent: extent.clone() };
                self.add_part(*subtable, (*level, *run), lo, part)?;
                Undo::Unadd { subtable: *subtable, run: (*level, *run), lo: lo.clone() }
            }
            Edit::RemoveRef { subtable, level, run, extent, lo } => {
                let run = (*level, *run);
                let part = self.living(*subtable)?.runs.get(&run).and_then(|r| r.get(lo));
                if part.is_none_or(|p| p.extent.id != *extent) {
                    return Err(wrong(
                        *subtable,
                        format!("no part of extent {extent} in level {} begins there", run.0),
                    ));
                }
                match self.remove_part(*subtable, run, lo) {
                    Some(part) => Undo::Unremove { subtable: *subtable, run, lo: lo.clone(), part },
                    None => return Ok(None),
                }
            }
            Edit::Persisted { subtable, lsn } => {
                let at = &mut self.living(*subtable)?.persisted_lsn;
                let old = std::mem::replace(at, (*at).max(*lsn));
                Undo::Persisted(*subtable, old)
            }
            Edit::AddValue { subtable, value } => {
                let values = &mut self.living(*subtable)?.values;
                if values.contains_key(&value.id) {
                    return Err(wrong(*subtable, format!("value {} is there already", value.id)));
                }
                values.insert(value.id, value.clone());
                self.next.value = self.next.value.max(value.id.saturating_add(1));
                let files = value.pieces.iter().map(|p| p.file.saturating_add(1)).max().unwrap_or(0);
                self.next.file = self.next.file.max(files);
                Undo::Valueless(*subtable, value.id)
            }
            Edit::RemoveValue { subtable, id } => match self.living(*subtable)?.values.remove(id) {
                Some(value) => Undo::Value(*subtable, value),
                None => return Err(wrong(*subtable, format!("there is no value {id}"))),
            },
            Edit::Stage { xid, front } => {
                if self.stages.contains_key(xid) {
                    return Err(Error::corruption(format!(
                        "the transaction \"{}\" is prepared twice",
                        xid.escape_ascii()
                    )));
                }
                self.stages.insert(xid.clone(), StageState { front: front.clone(), ..StageState::default() });
                Undo::Unstage(xid.clone())
            }
            Edit::StageExtent { xid, subtable, extent } => {
                self.staged(xid)?.extents.push((*subtable, extent.clone()));
                self.next.extent = self.next.extent.max(extent.id.0.saturating_add(1));
                self.next.file = self.next.file.max(extent.file.saturating_add(1));
                Undo::UnstageExtent(xid.clone())
            }
            Edit::StageValue { xid, subtable, value } => {
                self.staged(xid)?.values.push((*subtable, value.clone()));
                self.next.value = self.next.value.max(value.id.saturating_add(1));
                let files = value.pieces.iter().map(|p| p.file.saturating_add(1)).max().unwrap_or(0);
                self.next.file = self.next.file.max(files);
                Undo::UnstageValue(xid.clone())
            }
            Edit::Unstage { xid } => {
                self.staged(xid)?;
                match self.stages.remove(xid) {
                    Some(stage) => Undo::Stage(xid.clone(), Box::new(stage)),
                    None => return Ok(None),
                }
            }
            Edit::Log(to) => {
                let log = &mut self.log;
                log.generation = log.generation.max(to.generation);
                log.first_lsn = log.first_lsn.max(to.first_lsn);
                log.durable_lsn = log.durable_lsn.max(to.durable_lsn);
                log.clean = to.clean;
                return Ok(None);
            }
            Edit::Memory(place) => Undo::Memory(self.memory.replace(place.clone())),
            Edit::NextIds(to) => {
                let next = &mut self.next;
                next.extent = next.extent.max(to.extent);
                next.file = next.file.max(to.file);
                next.subtable = next.subtable.max(to.subtable);
                next.value = next.value.max(to.value);
                next.run = next.run.max(to.run);
                return Ok(None);
            }
            Edit::CheckpointEnd => return Ok(None),
        }))
    }

    fn staged(&mut self, xid: &[u8]) -> Result<&mut StageState> {
        self.stages.get_mut(xid).ok_or_else(|| {
            Error::corruption(format!(
                "manifest edit of the transaction \"{}\", which is not prepared",
                xid.escape_ascii()
            ))
        })
    }

    fn create(&mut self, id: SubtableId, name: &str, options: &[u8], lsn: Lsn) -> Result<Undo> {
        if name.len() > MAX_NAME {
            return Err(Error::limit("subtable name in bytes", name.len() as u64, MAX_NAME as u64));
        }
        if self.subtables.len() >= MAX_SUBTABLES {
            return Err(Error::limit("subtables", self.subtables.len() as u64 + 1, MAX_SUBTABLES as u64));
        }
        if self.names.contains_key(name) {
            return Err(Error::new(ErrorKind::AlreadyExists, "there is a subtable of this name already")
                .with_subtable(name));
        }
        if self.subtables.contains_key(&id) {
            return Err(wrong(id, "the id is taken".into()));
        }
        self.names.insert(name.to_owned(), id);
        let subtable = SubtableState {
            name: name.to_owned(),
            options: options.to_vec(),
            created_lsn: lsn,
            persisted_lsn: lsn,
            runs: BTreeMap::new(),
            values: BTreeMap::new(),
        };
        self.subtables.insert(id, subtable);
        self.next.subtable = self.next.subtable.max(id.0.saturating_add(1));
        Ok(Undo::Uncreate(id))
    }

    fn drop_subtable(&mut self, id: SubtableId) -> Result<Undo> {
        let Some(subtable) = self.subtables.remove(&id) else { return Err(gone(id)) };
        self.names.remove(&subtable.name);
        for part in subtable.runs.values().flat_map(RunState::values) {
            self.extents.remove(&part.extent.id);
        }
        Ok(Undo::Undrop(id, Box::new(subtable)))
    }

    fn add_part(&mut self, id: SubtableId, run: (u8, u64), lo: &[u8], part: RefState) -> Result<()> {
        let meta = part.extent.clone();
        let parts = self.living(id)?.runs.get(&run);
        if run.0 > MAX_LEVEL || (run.0 > 0 && run.1 != 0) {
            return Err(wrong(id, format!("there cannot be a run {} in level {}", run.1, run.0)));
        }
        let hi = part.hi.as_slice();
        if lo >= hi || lo < meta.lo.as_slice() || hi > meta.hi.as_slice() {
            return Err(wrong(id, format!("a part of extent {} lies outside of it", meta.id)));
        }
        part.size.check(&meta).map_err(|e| wrong(id, e.message().to_owned()))?;
        if let Some(parts) = parts {
            let before = parts.range::<[u8], _>((Bound::Unbounded, Bound::Included(lo))).next_back();
            let after = parts.range::<[u8], _>((Bound::Included(lo), Bound::Unbounded)).next();
            if before.is_some_and(|(_, p)| p.hi.as_slice() > lo)
                || after.is_some_and(|(l, _)| l.as_slice() < hi)
            {
                return Err(wrong(id, format!("extent {} overlaps another in level {}", meta.id, run.0)));
            }
        }
        if let Some(held) = self.extents.get(&meta.id)
            && (held.subtable != id || held.meta != meta)
        {
            return Err(wrong(id, format!("extent {} is described in two ways", meta.id)));
        }
        self.next.extent = self.next.extent.max(meta.id.0.saturating_add(1));
        self.next.file = self.next.file.max(meta.file.saturating_add(1));
        self.next.run = self.next.run.max(run.1.saturating_add(1));
        self.insert_part(id, run, lo.to_vec(), part);
        Ok(())
    }

    fn insert_part(&mut self, id: SubtableId, run: (u8, u64), lo: Vec<u8>, part: RefState) {
        let Some(subtable) = self.subtables.get_mut(&id) else { return };
        let held = || Held { subtable: id, meta: part.extent.clone(), parts: 0 };
        self.extents.entry(part.extent.id).or_insert_with(held).parts += 1;
        subtable.runs.entry(run).or_default().insert(lo, part);
    }

    fn remove_part(&mut self, id: SubtableId, run: (u8, u64), lo: &[u8]) -> Option<RefState> {
        let runs = &mut self.subtables.get_mut(&id)?.runs;
        let parts = runs.get_mut(&run)?;
        let part = parts.remove(lo)?;
        if parts.is_empty() {
            runs.remove(&run);
        }
        if let Some(held) = self.extents.get_mut(&part.extent.id) {
            held.parts -= 1;
            if held.parts == 0 {
                self.extents.remove(&part.extent.id);
            }
        }
        Some(part)
    }

    fn undo_one(&mut self, undo: Undo) {
        match undo {
            Undo::Uncreate(id) => drop(self.drop_subtable(id)),
            Undo::Undrop(id, mut subtable) => {
                let runs = std::mem::take(&mut subtable.runs);
                self.names.insert(subtable.name.clone(), id);
                self.subtables.insert(id, *subtable);
                for (run, parts) in runs {
                    for (lo, part) in parts {
                        self.insert_part(id, run, lo, part);
                    }
                }
            }
            Undo::Unadd { subtable, run, lo } => drop(self.remove_part(subtable, run, &lo)),
            Undo::Unremove { subtable, run, lo, part } => self.insert_part(subtable, run, lo, part),
            Undo::Options(id, old) => self.undo_in(id, |s| s.options = old),
            Undo::Persisted(id, old) => self.undo_in(id, |s| s.persisted_lsn = old),
            Undo::Valueless(id, value) => self.undo_in(id, |s| drop(s.values.remove(&value))),
            Undo::Value(id, value) => self.undo_in(id, |s| drop(s.values.insert(value.id, value))),
            Undo::Unstage(xid) => drop(self.stages.remove(&xid)),
            Undo::UnstageExtent(xid) => drop(self.stages.get_mut(&xid).and_then(|s| s.extents.pop())),
            Undo::UnstageValue(xid) => drop(self.stages.get_mut(&xid).and_then(|s| s.values.pop())),
            Undo::Stage(xid, stage) => drop(self.stages.insert(xid, *stage)),
            Undo::Memory(old) => self.memory = old,
        }
    }

    fn undo_in(&mut self, id: SubtableId, f: impl FnOnce(&mut SubtableState)) {
        if let Some(s) = self.subtables.get_mut(&id) {
            f(s);
        }
    }

    fn living(&mut self, id: SubtableId) -> Result<&mut SubtableState> {
        self.subtables.get_mut(&id).ok_or_else(|| gone(id))
    }

    /// Edits that make this state of an empty one, without the closing [`Edit::CheckpointEnd`].
    pub(crate) fn to_edits(&self) -> impl Iterator<Item = Edit> {
        let ends = [Edit::Log(self.log), Edit::NextIds(self.next)];
        let stages = self.stages.iter().flat_map(|(xid, s)| s.to_edits(xid));
        let memory = self.memory.clone().map(Edit::Memory);
        self.subtables.iter().flat_map(|(id, s)| s.to_edits(*id)).chain(stages).chain(memory).chain(ends)
    }

    /// Every extent that a part refers to, once, with its subtable.
    pub(crate) fn extents(&self) -> impl Iterator<Item = (SubtableId, &Arc<ExtentMeta>)> {
        self.extents.values().map(|h| (h.subtable, &h.meta))
    }
}

/// What [`DbState::undo`] needs.
#[must_use = "dropping it makes the group final"]
pub(super) struct Applied {
    undo: Vec<Undo>,
    log: LogPosition,
    next: NextIds,
}

impl StageState {
    /// The edits that make it.
    pub(crate) fn to_edits(&self, xid: &[u8]) -> Vec<Edit> {
        let mut edits = vec![Edit::Stage { xid: xid.to_vec(), front: self.front.clone() }];
        edits.extend(self.extents.iter().map(|(subtable, extent)| Edit::StageExtent {
            xid: xid.to_vec(),
            subtable: *subtable,
            extent: extent.clone(),
        }));
        edits.extend(self.values.iter().map(|(subtable, value)| Edit::StageValue {
            xid: xid.to_vec(),
            subtable: *subtable,
            value: value.clone(),
        }));
        edits
    }
}

impl SubtableState {
    fn to_edits(&self, id: SubtableId) -> impl Iterator<Item = Edit> {
        let create = Edit::CreateSubtable {
            id,
            name: self.name.clone(),
            options: self.options.clone(),
            lsn: self.created_lsn,
        };
        let parts = self.runs.iter().flat_map(move |((level, run), parts)| {
            parts.iter().map(move |(lo, part)| Edit::AddRef {
                subtable: id,
                level: *level,
                run: *run,
                lo: lo.clone(),
                hi: part.hi.clone(),
                size: part.size,
                extent: part.extent.clone(),
            })
        });
        let values = self.values.values().map(move |v| Edit::AddValue { subtable: id, value: v.clone() });
        [create, Edit::Persisted { subtable: id, lsn: self.persisted_lsn }]
            .into_iter()
            .chain(parts)
            .chain(values)
    }
}

fn wrong(id: SubtableId, what: String) -> Error {
    Error::corruption(format!("manifest edit of subtable {id}: {what}"))
}

fn gone(id: SubtableId) -> Error {
    Error::new(ErrorKind::SubtableDropped, format!("there is no subtable {id}"))
}
