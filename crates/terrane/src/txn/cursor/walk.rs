//! How a cursor comes from a cut to the nearest key that it shows.

use std::sync::Arc;

use terrane_base::Result;

use crate::db::anchor::Anchor;
use crate::db::snapshot::{Snapshot, SnapshotGuard};
use crate::read::iter::{Cursor, ReadOptions};
use crate::txn::big::run::OwnRun;
use crate::txn::cursor::direction::Way;
use crate::txn::cursor::window::Window;
use crate::txn::cursor::{MOST_WINDOW, Stands, TransactionCursor};
use crate::txn::transaction::Transaction;
use crate::txn::writes::Own;

impl TransactionCursor<'_> {
    /// To the nearest key past the cut `from`, where the base may be already.
    pub(super) fn walk(&mut self, way: Way, mut from: Option<Vec<u8>>, mut there: bool) -> Result<()> {
        self.stands = Stands::Nowhere;
        self.way = way;
        self.see_spills()?;
        loop {
            if !self.bounds.goes_on(way, from.as_deref()) {
                return Ok(());
            }
            let inside = self.window.goes_on(way, from.as_deref());
            if !inside {
                self.cover(way, from.as_deref())?;
            }
            if !there || !inside {
                way.seek(&mut self.base, from.as_deref())?;
            }
            there = false;
            let mut stands = self.find(way, from.as_deref())?;
            while stands != Stands::Nowhere {
                if self.may_show(way, stands)? {
                    self.stands = stands;
                    return Ok(());
                }
                stands = self.find(way, Some(&way.past(&self.key)))?;
            }
            if self.window.far(way) == self.bounds.far(way) {
                return Ok(());
            }
            from = self.window.far(way).map(<[u8]>::to_vec);
        }
    }

    /// Looks for the nearest key in the window past the cut `from`, which the base is past too. The key is then in `key`.
    fn find(&mut self, way: Way, from: Option<&[u8]>) -> Result<Stands> {
        let TransactionCursor { txn, anchor, base, window, key, .. } = self;
        let table = &anchor.table;
        let mut passed: Option<Vec<u8>> = None;
        loop {
            // What the transaction has deleted, the database does not show.
            while base.valid() && window.reaches(way, base.key()) {
                match way.out_of_deleted(&txn.writes, table, base.key()) {
                    Some(cut) => way.seek(base, Some(&cut))?,
                    None => break,
                }
            }
            let in_base = Some(base.key()).filter(|key| base.valid() && window.reaches(way, key));
            let own = way.own(&txn.writes, table, passed.as_deref().or(from));
            let own = own.filter(|(key, _)| window.reaches(way, key));
            match (in_base, own) {
                (Some(b), own) if own.is_none_or(|(o, _)| way.meets_first(b, o)) => {
                    b.clone_into(key);
                    return Ok(Stands::OnBase);
                }
                (_, None) => return Ok(Stands::Nowhere),
                (in_base, Some((o, what))) => {
                    let shown = matches!(what, Own::Value(_));
                    o.clone_into(key);
                    if in_base == Some(o) {
                        way.step(base)?;
                    }
                    if shown {
                        return Ok(Stands::OnOwn);
                    }
                    passed = Some(way.past(o));
                }
            }
        }
    }

    /// Makes a window that begins at `from`, as one goes.
    fn cover(&mut self, way: Way, from: Option<&[u8]>) -> Result<()> {
        self.renew_base()?;
        way.seek(&mut self.base, from)?;
        for _ in 1..self.ahead {
            way.step(&mut self.base)?;
        }
        let far = if self.base.valid() {
            Some(way.past(self.base.key()))
        } else {
            self.bounds.far(way).map(<[u8]>::to_vec)
        };
        self.ahead = (self.ahead * 2).min(MOST_WINDOW);
        let window = Window::passed(way, from.map(<[u8]>::to_vec), far);
        self.txn.cover(&self.anchor.table, &window.start, window.end.as_deref(), self.mode())?;
        self.window = window;
        self.renew_base()
    }

    /// Has the base show the latest, if it is to.
    pub(super) fn renew_base(&mut self) -> Result<()> {
        if self.snapshot.is_none() { self.make_base() } else { Ok(()) }
    }

    /// Has the base show what was spilled since it was made, and nothing that was undone.
    fn see_spills(&mut self) -> Result<()> {
        self.txn.writes.check()?;
        if self.changes == self.txn.writes.changes() { Ok(()) } else { self.make_base() }
    }

    pub(super) fn make_base(&mut self) -> Result<()> {
        (self.base, self.spilled) = base(self.txn, &self.anchor, self.snapshot.as_ref(), &self.bounds)?;
        self.changes = self.txn.writes.changes();
        Ok(())
    }
}

/// What a cursor shows beneath what its transaction has in memory: the database's records, and above them what was spilled.
pub(super) fn base(
    txn: &Transaction,
    anchor: &Anchor,
    snapshot: Option<&SnapshotGuard>,
    bounds: &Window,
) -> Result<(Cursor, Vec<Arc<OwnRun>>)> {
    let snapshot = snapshot.map(|guard| Snapshot { guard: guard.clone(), database: txn.engine.database });
    let options = ReadOptions { snapshot, lower: Some(bounds.start.clone()), upper: bounds.end.clone() };
    let spilled = txn.writes.runs(&anchor.table);
    let own = spilled.iter().map(|r| r.run().clone()).collect();
    Ok((Cursor::over(anchor.clone(), options, own)?, spilled))
}
