//! States of subtables that a thread keeps for itself, so that a lookup writes nothing that others read or write: it compares a word, and
//! finds that what it has is still the newest.
//!
//! What is kept keeps memtables and extents from being freed. Whoever keeps states lets go of those that are outdated now and then, and of
//! all when it rests.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use terrane_base::{Kept, Result, SubtableId};

use crate::db::engine::Engine;
use crate::db::table::{Super, Table};

/// A subtable with its state, if one is kept.
#[derive(Debug)]
pub(crate) struct KeptState {
    table: Arc<Table>,
    state: Option<Kept<Super>>,
}

impl KeptState {
    pub(crate) fn new(table: Arc<Table>) -> Self {
        KeptState { table, state: None }
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

    /// Lets go of the state if it is outdated, or in any case.
    pub(crate) fn let_go(&mut self, in_any_case: bool) {
        self.state.take_if(|kept| in_any_case || !self.table.is_present(kept));
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

/// By the numbers of subtables, which are no secret, and which nobody chooses.
pub(crate) type BySubtable<T> = HashMap<SubtableId, T, BuildHasherDefault<OfNumber>>;

#[derive(Default)]
pub(crate) struct OfNumber(u64);

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
