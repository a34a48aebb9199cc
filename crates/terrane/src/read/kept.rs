//! States of subtables that a thread keeps for itself, so that a lookup writes nothing that others read or write: it compares a word, and
//! finds that what it has is still the newest.
//!
//! What is kept keeps memtables and extents from being freed. Whoever keeps states lets go of those that are outdated now and then, and of
//! all when it rests.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use terrane_base::{Kept, Result, SubtableId};

use crate::db::engine::Engine;
use crate::db::table::{Super, Table};

/// The subtables that a thread reads, each with its state, if one is kept, and with what else the thread notes of it.
#[derive(Debug)]
pub(crate) struct KeptStates<T> {
    /// By the numbers of subtables, which are no secret, and which nobody chooses.
    tables: HashMap<SubtableId, (KeptState, T), BuildHasherDefault<OfNumber>>,
}

impl<T: Default> KeptStates<T> {
    pub(crate) fn new() -> Self {
        KeptStates { tables: HashMap::default() }
    }

    /// That of `table`.
    #[inline]
    pub(crate) fn of(&mut self, table: &Arc<Table>) -> &mut (KeptState, T) {
        self.tables.entry(table.id).or_insert_with(|| KeptState::noted(table))
    }

    /// That of the subtable of this number.
    ///
    /// # Errors
    /// If it was dropped.
    #[inline]
    pub(crate) fn by_id(&mut self, id: SubtableId, engine: &Engine) -> Result<&mut (KeptState, T)> {
        Ok(match self.tables.entry(id) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(KeptState::noted(engine.tables.load().alive(id)?)),
        })
    }

    /// As [`KeptStates::by_id`], of one that is here.
    #[inline]
    pub(crate) fn get(&self, id: SubtableId) -> Option<&(KeptState, T)> {
        self.tables.get(&id)
    }

    /// What is noted of each.
    pub(crate) fn notes(&mut self) -> impl Iterator<Item = (SubtableId, &mut T)> {
        self.tables.iter_mut().map(|(id, (_, note))| (*id, note))
    }

    /// Lets go of states that are outdated, or of all, and of subtables that were dropped.
    pub(crate) fn let_go(&mut self, of_all: bool) {
        self.tables.retain(|_, (kept, _)| !kept.table.is_dropped());
        for (kept, _) in self.tables.values_mut() {
            kept.state.take_if(|state| of_all || !kept.table.is_present(state));
        }
    }
}

/// A subtable with its state, if one is kept.
#[derive(Debug)]
pub(crate) struct KeptState {
    table: Arc<Table>,
    state: Option<Kept<Super>>,
}

impl KeptState {
    fn noted<T: Default>(table: &Arc<Table>) -> (Self, T) {
        (KeptState { table: table.clone(), state: None }, T::default())
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// Makes what is kept the newest state.
    pub(crate) fn refresh(&mut self) {
        self.table.refresh(&mut self.state);
    }

    /// What is kept.
    pub(crate) fn state(&self) -> Option<&Super> {
        self.state.as_ref().map(|kept| &**kept.value())
    }

    /// As [`Engine::get`] at the newest sequence.
    pub(crate) fn get_with<R>(
        &mut self,
        engine: &Engine,
        key: &[u8],
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<Option<R>> {
        // The state first, the sequence after: see `read::lookup`.
        let state = self.table.refresh(&mut self.state);
        let mut f = Some(f);
        match engine.get_in(state, &self.table, key, engine.visible(), &mut f)? {
            Some(answer) => Ok(answer),
            // Overtaken: once more, at a sequence that is registered.
            None => f.map_or(Ok(None), |f| engine.get(&self.table, key, None, f)),
        }
    }
}

#[derive(Default)]
struct OfNumber(u64);

impl Hasher for OfNumber {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|b| self.write_u64(u64::from(*b)));
    }

    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
