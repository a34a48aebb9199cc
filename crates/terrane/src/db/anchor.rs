//! What keeps a database and one of its subtables in memory for those who read from it, at no cost to other threads.
//!
//! Were a cursor to count on the engine and the table themselves, all processors would write to the same lines whenever one opens or
//! closes. So a handle has anchors that hold both, one for each stripe of threads, and a cursor counts on that of its thread.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use terrane_base::metrics::{STRIPES, stripe};

use crate::db::engine::Engine;
use crate::db::snapshot::Snapshots;
use crate::db::table::Table;

/// An engine and one of its tables, for as long as it lives. Cheap to clone among the threads of one stripe.
#[derive(Clone, Debug)]
pub(crate) struct Anchor(Arc<CachePadded<Both>>);

/// See [`Anchor`].
#[derive(Debug)]
pub(crate) struct Both {
    pub(crate) engine: Arc<Engine>,
    pub(crate) table: Arc<Table>,
}

impl Deref for Anchor {
    type Target = Both;

    #[inline]
    fn deref(&self) -> &Both {
        &self.0
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
pub(crate) struct Anchors([OnceLock<Anchor>; STRIPES]);

impl Anchors {
    /// That of the calling thread; all are of the same engine and table.
    #[inline]
    pub(crate) fn own(&self, engine: &Arc<Engine>, table: &Arc<Table>) -> Anchor {
        let own = &self.0[stripe() % STRIPES];
        own.get_or_init(|| {
            let both = Both { engine: engine.clone(), table: table.clone() };
            Anchor(Arc::new(CachePadded::new(both)))
        })
        .clone()
    }
}
