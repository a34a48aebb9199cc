//! The layers of one subtable that a transaction has spilled, oldest first.
//!
//! As many as [`FAN`] of about one size are merged into one, so that there are few: reading looks at each. Layers that were written
//! before a savepoint to which the transaction may still go back stay apart from those behind it.

use std::sync::Arc;

use terrane_base::{Result, Seq};

use crate::db::engine::Engine;
use crate::db::table::Table;
use crate::txn::big::run::{Found, OwnRun, OwnWriter};

/// Layers that are merged at a time; a layer that came of a merge is about that much larger.
const FAN: usize = 8;

/// See the module's head.
#[derive(Debug, Default)]
pub(crate) struct Layers(Vec<Layer>);

#[derive(Debug)]
struct Layer {
    run: Arc<OwnRun>,
    /// Merges that it came of, one behind the other.
    tier: u32,
}

impl Layers {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The runs, the newest first.
    pub(crate) fn runs(&self) -> Vec<Arc<OwnRun>> {
        self.0.iter().rev().map(|l| l.run.clone()).collect()
    }

    /// Adds the newest layer, and merges what has become many, as far as it is not older than `floor`.
    pub(crate) fn push(
        &mut self,
        engine: &Arc<Engine>,
        table: &Arc<Table>,
        run: OwnRun,
        floor: Seq,
    ) -> Result<()> {
        self.0.push(Layer { run: Arc::new(run), tier: 0 });
        loop {
            let Some(tier) = self.0.last().map(|l| l.tier) else { return Ok(()) };
            let alike = |l: &&Layer| l.tier == tier && l.run.seq() >= floor;
            let many = self.0.iter().rev().take_while(alike).count();
            if many < FAN {
                return Ok(());
            }
            let from = self.0.len() - many;
            let newest_first: Vec<_> = self.0[from..].iter().rev().map(|l| l.run.clone()).collect();
            let merged = join(engine, table, &newest_first)?;
            self.0.truncate(from);
            self.0.push(Layer { run: Arc::new(merged), tier: tier + 1 });
        }
    }

    /// Drops the layers that are not older than `from`.
    pub(crate) fn truncate(&mut self, from: Seq) {
        self.0.retain(|l| l.run.seq() < from);
    }

    /// What the transaction has spilled about `key`.
    pub(crate) fn find(&self, engine: &Engine, key: &[u8]) -> Result<Found> {
        for layer in self.0.iter().rev() {
            match layer.run.find(engine, key)? {
                Found::Nothing => {}
                found => return Ok(found),
            }
        }
        Ok(Found::Nothing)
    }

    /// Makes one run of all; nothing if there is none.
    pub(crate) fn into_one(mut self, engine: &Arc<Engine>, table: &Arc<Table>) -> Result<Option<OwnRun>> {
        // Nobody else has the only one.
        if self.0.len() == 1
            && let Some(only) = self.0.pop()
        {
            match Arc::try_unwrap(only.run) {
                Ok(run) => return Ok(Some(run)),
                Err(run) => self.0.push(Layer { run, ..only }),
            }
        }
        if self.0.is_empty() {
            return Ok(None);
        }
        join(engine, table, &self.runs()).map(Some)
    }
}

/// One run of `runs`, the newest first, read at the newest one's sequence.
fn join(engine: &Arc<Engine>, table: &Arc<Table>, runs: &[Arc<OwnRun>]) -> Result<OwnRun> {
    let seq = runs.first().map_or(0, |r| r.seq());
    OwnWriter::merge(engine, table, runs, seq)
}
