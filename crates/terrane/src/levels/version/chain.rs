//! The chain that tells when the last reader of something is gone.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use terrane_format::value_ref::ValueRef;

use crate::levels::Reclaimer;

/// Held by one version and by the link before it, so it lives as long as any version up to its own.
#[derive(Debug)]
pub(super) struct Link {
    reclaimer: Arc<Reclaimer>,
    /// What the end of this version made superfluous.
    values: Mutex<Vec<ValueRef>>,
    next: OnceLock<Arc<Link>>,
}

impl Link {
    /// The newest link.
    pub(super) fn new(reclaimer: &Arc<Reclaimer>) -> Arc<Self> {
        Arc::new(Link { reclaimer: reclaimer.clone(), values: Mutex::new(Vec::new()), next: OnceLock::new() })
    }

    /// The version has ended: `values` go with it, and `next` must not go before it.
    pub(super) fn end(&self, next: Option<Arc<Link>>, values: Vec<ValueRef>) {
        self.values.lock().extend(values);
        if let Some(next) = next {
            let second = self.next.set(next).is_err();
            debug_assert!(!second, "a version has ended twice");
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for value in self.values.get_mut().drain(..) {
            self.reclaimer.queue_value(&value);
        }
        // A long-lived reader may leave a long chain, which must not be taken down by recursion.
        let mut next = self.next.take();
        while let Some(mut link) = next.and_then(Arc::into_inner) {
            next = link.next.take();
        }
    }
}
