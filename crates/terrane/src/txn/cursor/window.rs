//! A stretch of keys.

use crate::txn::cursor::direction::Way;

/// From one cut to before another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) start: Vec<u8>,
    pub(super) end: Option<Vec<u8>>,
}

impl Window {
    /// What one passes who goes from one cut to another.
    pub(super) fn passed(way: Way, near: Option<Vec<u8>>, far: Option<Vec<u8>>) -> Window {
        let (start, end) = match way {
            Way::Forward => (near, far),
            Way::Backward => (far, near),
        };
        // Nothing begins behind all keys.
        Window { start: start.unwrap_or_default(), end }
    }

    /// Where it ends, as one goes.
    pub(super) fn far(&self, way: Way) -> Option<&[u8]> {
        match way {
            Way::Forward => self.end.as_deref(),
            Way::Backward => Some(&self.start),
        }
    }

    /// Whether one is in it who goes on from a cut.
    pub(super) fn goes_on(&self, way: Way, from: Option<&[u8]>) -> bool {
        let (start, end) = (Some(&*self.start), self.end.as_deref());
        match way {
            Way::Forward => !is_before(from, start) && is_before(from, end),
            Way::Backward => is_before(start, from) && !is_before(end, from),
        }
    }

    /// Whether `key` is in it, which lies past a cut in it.
    pub(super) fn reaches(&self, way: Way, key: &[u8]) -> bool {
        match way {
            Way::Forward => self.end.as_deref().is_none_or(|end| key < end),
            Way::Backward => key >= &*self.start,
        }
    }
}

/// Whether a cut lies before another one.
fn is_before(a: Option<&[u8]>, b: Option<&[u8]>) -> bool {
    a.is_some_and(|a| b.is_none_or(|b| a < b))
}
