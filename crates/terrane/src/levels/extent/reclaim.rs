//! Where space waits between its last reader and [`crate::levels::Space::free`].

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use terrane_base::ExtentId;
use terrane_format::extent::ExtentMeta;
use terrane_format::value_ref::ValueRef;

use crate::levels::space::Alloc;

/// Space that nobody needs any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reclaimed {
    /// The extent that it held, whose frames may leave the cache; `None` for a value.
    pub(crate) extent: Option<ExtentId>,
    /// The space.
    pub(crate) space: Alloc,
}

/// Queues space. Whoever drops the last reader may be in the middle of anything, so it only queues and calls `wake`;
/// freeing, which may punch and remove files, is done by the task that `wake` schedules.
pub(crate) struct Reclaimer {
    queue: Mutex<Vec<Reclaimed>>,
    wake: Box<dyn Fn() + Send + Sync>,
}

impl Reclaimer {
    /// `wake` is called each time the queue stops being empty. It must be quick and must not block: it schedules a task
    /// that calls [`Reclaimer::take`].
    pub(crate) fn new(wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Reclaimer { queue: Mutex::new(Vec::new()), wake: Box::new(wake) })
    }

    /// Takes all that is queued.
    pub(crate) fn take(&self) -> Vec<Reclaimed> {
        std::mem::take(&mut *self.queue.lock())
    }

    pub(in crate::levels) fn queue_extent(&self, meta: &ExtentMeta) {
        self.queue([Reclaimed { extent: Some(meta.id), space: Alloc::of_extent(meta) }]);
    }

    pub(in crate::levels) fn queue_value(&self, value: &ValueRef) {
        self.queue(value.pieces.iter().map(|p| Reclaimed { extent: None, space: Alloc::of_piece(p) }));
    }

    fn queue(&self, what: impl IntoIterator<Item = Reclaimed>) {
        let mut queue = self.queue.lock();
        let was_empty = queue.is_empty();
        queue.extend(what);
        let wake = was_empty && !queue.is_empty();
        drop(queue);
        if wake {
            (self.wake)();
        }
    }
}

impl fmt::Debug for Reclaimer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reclaimer").field("queued", &self.queue.lock().len()).finish()
    }
}
