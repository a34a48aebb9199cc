//! What keeps a database and one of its subtables in memory for those who read from it, at no cost to threads of other stripes.
//!
//! Were a cursor to count on the engine and the table themselves, all processors would write to the same lines whenever one opens or
//! closes. So a handle has anchors that hold both, one for each stripe of threads, and a cursor counts on that of the thread that makes
//! it. Nothing that the engine or the table holds refers to an anchor.
//!
//! Batches need no more than their tables, and must not keep the database open. So each anchor has its table by way of a reference
//! that is counted for itself, and batches count on that.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use terrane_base::metrics::{STRIPES, stripe};

use crate::db::engine::Engine;
use crate::db::snapshot::Snapshots;
use crate::db::table::Table;

/// Keeps an engine and one of its tables as long as there is a clone of it. Cheap to clone among the threads of one stripe.
#[derive(Clone)]
pub(crate) struct Anchor(Arc<CachePadded<Both>>);

/// See [`Anchor`].
pub(crate) struct Both {
    pub(crate) engine: Arc<Engine>,
    pub(crate) table: TableRef,
}

/// Keeps a table as long as there is a clone of it. Cheap to clone among the threads of one stripe, if it comes from [`Anchors`].
#[derive(Clone, Debug)]
pub(crate) struct TableRef(Arc<CachePadded<Arc<Table>>>);

impl From<Arc<Table>> for TableRef {
    fn from(table: Arc<Table>) -> Self {
        TableRef(Arc::new(CachePadded::new(table)))
    }
}

impl Deref for TableRef {
    type Target = Arc<Table>;

    #[inline]
    fn deref(&self) -> &Arc<Table> {
        &self.0
    }
}

impl Deref for Anchor {
    type Target = Both;

    #[inline]
    fn deref(&self) -> &Both {
        &self.0
    }
}

impl fmt::Debug for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Anchor").field("table", &self.table.name).finish_non_exhaustive()
    }
}

impl AsRef<Snapshots> for Anchor {
    #[inline]
    fn as_ref(&self) -> &Snapshots {
        &self.engine.snapshots
    }
}

/// The anchors of a handle, each made when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct Anchors(CachePadded<[OnceLock<Anchor>; STRIPES]>);

impl Anchors {
    /// That of the calling thread; all are of the same engine and table.
    #[inline]
    pub(crate) fn own(&self, engine: &Arc<Engine>, table: &Arc<Table>) -> &Anchor {
        let own = &self.0[stripe()];
        own.get_or_init(|| {
            let both = Both { engine: engine.clone(), table: table.clone().into() };
            Anchor(Arc::new(CachePadded::new(both)))
        })
    }
}

#[cfg(test)]
mod tests {
    use terrane_media::sim::SimMedia;

    use super::*;
    use crate::{Db, Options, ReadOptions, SubtableOptions};

    #[test]
    fn threads_of_different_stripes_count_in_different_places_and_the_last_lets_go() {
        let db = Db::open_on(SimMedia::new(1), "/db", Options::new()).unwrap();
        let t = db.create_subtable("t", SubtableOptions::new()).unwrap();
        t.put(b"k", b"v").unwrap();
        let engine = Arc::downgrade(&db.engine);
        let (here, again) = (t.anchor(), t.clone().anchor());
        assert!(Arc::ptr_eq(&here.0, &again.0));
        // Threads are dealt over the stripes in turn.
        let there: Vec<_> =
            (0..STRIPES).map(|_| std::thread::scope(|s| s.spawn(|| t.anchor()).join().unwrap())).collect();
        let others = there.iter().filter(|a| !Arc::ptr_eq(&a.0, &here.0)).count();
        assert!(others >= STRIPES / 2, "{others} of {STRIPES} threads count elsewhere");
        assert!(
            there.iter().all(|a| Arc::ptr_eq(&a.engine, &here.engine) && Arc::ptr_eq(&a.table, &here.table))
        );

        // A batch keeps the table, and not the engine.
        let mut batch = crate::WriteBatch::new();
        batch.put(&t, b"k", b"v").unwrap();
        let elsewhere = there.iter().find(|a| !Arc::ptr_eq(&a.0, &here.0)).unwrap();
        let counted = |r: &TableRef| Arc::strong_count(&r.0);
        assert_eq!((counted(&here.table), counted(&elsewhere.table)), (2, 1));
        assert!(Arc::ptr_eq(&batch.tables()[0].0, &here.table.0));

        drop((here, again, there));
        let mut cursor = t.cursor(ReadOptions::new()).unwrap();
        cursor.seek(b"k").unwrap();
        drop((t, db));
        assert_eq!(cursor.value().unwrap(), &b"v"[..]);
        assert!(engine.upgrade().is_some());
        drop(cursor);
        assert!(engine.upgrade().is_none());
        assert_eq!(&*batch.tables()[0].name, "t");
    }
}
