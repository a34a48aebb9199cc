//! What the pacer is told: a forecast over all subtables, made whenever background work ends.

use std::sync::atomic::Ordering;

use crate::compact::pick;
use crate::db::engine::Engine;
use crate::db::pacing::forecast::{FIRST_MERGE_RATE, Figures, for_debt};
use crate::db::table::Table;

/// Memtables of others that have frozen since a subtable's own did, from which on it is idle.
const IDLE: u64 = 8;

impl Engine {
    /// Makes a new forecast.
    pub(crate) fn update_pressure(&self) {
        if !self.options.tuning.compact {
            // No place in L0 is about to come free, and none is waited for.
            return self.pacer.set_rate(None);
        }
        let tables = self.tables.load();
        // What cannot be written out is no reason to slow others down: it refuses its own writers.
        let live = tables.all().filter(|t| !t.is_dropped() && t.standstill().is_none());
        let rates = live.flat_map(|t| self.rates(t)).flatten();
        self.pacer.set_rate(rates.min_by(f64::total_cmp));
    }

    /// The rates that L0 and the debt of merging of a subtable allow.
    pub(crate) fn rates(&self, table: &Table) -> [Option<f64>; 2] {
        let state = table.state();
        let version = &state.version;
        let memtable_bytes = self.options.memtable_bytes as u64;
        let l0_due = table.l0_due(version);
        let due = pick::l0_is_due(version, memtable_bytes, l0_due);
        let debt = pick::debt(version, memtable_bytes);
        let (passes, sinking) = {
            let (mut passes, mut sinking) = (table.passes.lock(), table.sinking.lock());
            if !due {
                passes.rest();
            }
            if debt == 0.0 {
                sinking.rest();
            }
            (passes.rate(), sinking.rate())
        };
        // Others have frozen some since it did. (In persistent memory idle ones freeze by the dozen for the sake of busy ones.)
        let others = self.generation.load(Ordering::Relaxed) > state.active().generation() + IDLE;
        let idle = others && (self.journal.chains().is_none() || self.has_one_zone(state.active()));
        if (version.l0.len() < 2 || idle && !due) && state.memtables.len() < 2 {
            // Nothing of it waits, so nothing of it can be waited for: what it has says nothing about what others may write.
            return [None, for_debt(debt, sinking.unwrap_or(FIRST_MERGE_RATE))];
        }
        let which = self.memory.fuller();
        let sizes = state.memtables.iter().map(|m| m.bytes_of(which) as u64);
        // Many subtables share the budget: their memtables freeze before they are full.
        let largest = sizes.clone().max().unwrap_or(0).max(table.flushed_bytes.load(Ordering::Relaxed));
        let figures = Figures {
            budget: self.memory.limit() as u64,
            used: self.memory.used() as u64,
            own: sizes.sum(),
            memtable: largest.min(self.options.memtable_freeze_bytes() as u64).max(1),
            l0_due,
            runs: version.l0.iter().map(|r| (r.bytes(), r.birth_bytes())).collect(),
            l1: version.levels.first().map_or(0, |r| r.bytes()),
            passes,
            flush_rate: self.pacer.flush_rate(),
        };
        [figures.outlook().rate(), for_debt(debt, sinking.unwrap_or(FIRST_MERGE_RATE))]
    }
}
